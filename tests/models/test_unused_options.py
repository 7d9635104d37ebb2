"""Options that do nothing beside others are warned of, and do nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorflow
from factorflow.errors import UnusedWarning
from factorflow.models import IdentityAttribute, MoltenNormal, MoltenPoisson, ProbitFactors
from factorflow.models.configuration import ModelConfig

TABLE: dict[str, Any] = {"variables": {"site": 5, "year": 4}, "n_components": 2}
SHORT: dict[str, Any] = {"n_components": 2, "n_starts": 1, "max_iter": 2}
COUNTS = "table", {**TABLE, "response": "poisson"}, MoltenPoisson(**SHORT)
MEASUREMENTS = "table", {**TABLE, "response": "gaussian"}, MoltenNormal(**SHORT)
SEQUENCES = (
    "identity_attribute",
    {"n_features": 4, "n_identities": 1, "n_sequences": 2},
    IdentityAttribute(n_identities=1, n_attributes=1, max_iter=2, relevance=False),
)
BINARY = (
    "binary",
    {"n_features": 6, "n_factors": 1},
    ProbitFactors(n_factors=1, n_burn_in=0, n_draws=4, chains=1),
)


@pytest.mark.parametrize(
    ("case", "beside", "unused"),
    [
        (COUNTS, {"shape": 0.7}, {"shape_mean": 3.0}),
        (COUNTS, {"rate": 0.7}, {"rate_prior": (2.0, 3.0)}),
        (COUNTS, {}, {"additive_prior": (2.0, 3.0)}),
        (MEASUREMENTS, {"precision": 0.7}, {"precision_prior": (2.0, 3.0)}),
        (MEASUREMENTS, {"intercept": False}, {"intercept_precision": 3.0}),
        (SEQUENCES, {"start": "random"}, {"start_frames": 20}),
        (BINARY, {"priors": "paper"}, {"activity_prior": (5.0, 2.0)}),
        (BINARY, {"priors": "paper"}, {"density_prior": (5.0, 2.0)}),
        (BINARY, {"priors": "paper"}, {"variance_prior": (5.0, 2.0)}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is improper")
def test_an_option_that_does_nothing_is_warned_of(
    case: tuple[str, dict[str, Any], ModelConfig],
    beside: dict[str, Any],
    unused: dict[str, Any],
    tmp_path: Path,
) -> None:
    simulator, settings, config = case
    dataset = factorflow.simulate(simulator, tmp_path / "data.zarr", 60, **settings)
    plain = factorflow.fit(dataset, config.model_copy(update=beside))
    (name,) = unused
    with pytest.warns(UnusedWarning, match=rf"{name}=.* does nothing here: ") as said:
        found = factorflow.fit(dataset, config.model_copy(update=beside | unused))
    assert len([each for each in said if issubclass(each.category, UnusedWarning)]) == 1
    assert np.array_equal(plain.trace["objective"], found.trace["objective"])


@pytest.mark.parametrize(
    ("case", "used"),
    [
        (COUNTS, {"shape_mean": 3.0}),
        (COUNTS, {"rate_prior": (2.0, 3.0)}),
        (COUNTS, {"additive": True, "additive_prior": (2.0, 3.0)}),
        (MEASUREMENTS, {"precision_prior": (2.0, 3.0)}),
        (MEASUREMENTS, {"intercept_precision": 3.0}),
        (SEQUENCES, {"start_frames": 20}),
        (BINARY, {"activity_prior": (5.0, 2.0)}),
    ],
)
def test_where_it_counts_it_is_not(
    case: tuple[str, dict[str, Any], ModelConfig], used: dict[str, Any], tmp_path: Path
) -> None:
    simulator, settings, config = case
    dataset = factorflow.simulate(simulator, tmp_path / "data.zarr", 60, **settings)
    plain = factorflow.fit(dataset, config)
    found = factorflow.fit(dataset, config.model_copy(update=used))  # warnings are errors
    assert not np.array_equal(plain.trace["objective"], found.trace["objective"])
