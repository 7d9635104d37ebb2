"""Simulated data are the known ones: a seed gives the same data in every version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from known_numbers import check_numbers

from factorflow.data.simulation.noise import Noise
from factorflow.data.simulation.simulate import find_simulator

KNOWN = Path(__file__).with_name("known_numbers.json")

MIXED = {"a": ("gaussian", 7), "b": ("bernoulli", 6), "c": ("poisson", 5)}
COUNTS = {"linear": {"cover": 3}, "missing": 0.2, "missing_codes": {"site": 0.3}, "n_components": 2}

CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "views": ("sparse_gfa", 90, {"n_factors": 3, "views": MIXED}),
    "groups": (
        "sparse_gfa",
        90,
        {
            "n_factors": 4,
            "views": MIXED,
            "groups": 3,
            "missing": 0.1,
            "missing_samples": {"a": 0.4, "c": 0.4},
        },
    ),
    "nonnegative": ("binary", 90, {"n_features": 8, "n_factors": 3}),
    "spike and slab": ("binary", 90, {"n_features": 8, "factors": "spike_slab", "missing": 0.2}),
    "binary": ("binary", 90, {"n_features": 8, "factors": "binary", "on": 0.7, "inclusion": 0.3}),
    "counts": ("table", 2100, {}),
    "linear": ("table", 90, COUNTS),
    "measurements": ("table", 90, {"response": "gaussian", "noise": 0.3, "exposure": True}),
    "sequences": ("sequence", 2200, {"n_sequences": 5, "n_factors": 2, "n_features": 3, "missing": 0.1}),
    "identities": ("identity_attribute", 2200, {"n_sequences": 3, "n_features": 4, "missing": 0.1}),
    "equal lengths": ("identity_attribute", 90, {"n_sequences": 4, "equal_lengths": True, "n_views": 2}),
    "decoders": ("gplvm", 90, {"views": {"a": ("gaussian", 5), "b": ("bernoulli", 4)}, "missing": 0.1}),
    "smooth": ("gplvm", 90, {"inputs": "x", "n_factors": 3, "length": 0.5, "scatter": 0.5, "strength": 1.0}),
}


@pytest.mark.parametrize("case", CASES)
def test_simulated_data_are_the_known_ones(case: str) -> None:
    """All rows, some rows from the middle of a tile, and what they were made of."""
    kind, n, settings = CASES[case]
    simulator, suited = find_simulator(kind)
    made = simulator(n, Noise(11), **{**suited, **settings})
    found: dict[str, Any] = {f"truth/{name}": values for name, (_, values) in made.truth.arrays.items()}
    for part, (start, stop) in {"all": (0, n), "some": (37, 75)}.items():
        found |= {f"{part}/{view.name}": view.read(start, stop) for view in made.views}
        found |= {f"{part}/{name}": codes(start, stop) for name, codes in made.codes.items()}
        found |= {f"{part}/rows/{name}": rows.read(start, stop) for name, rows in made.truth.rows.items()}
    check_numbers(KNOWN, case, found)
