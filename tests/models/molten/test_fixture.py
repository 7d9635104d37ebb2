"""States of another implementation, after 1, 10 and 50 iterations from equal starts (``shared/fixtures``)."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorflow.kernels.random import Step
from factorflow.models import MoltenPoisson
from factorflow.models.molten.factors import complete_levels
from factorflow.models.molten.state import Levels

SHARED = Path(os.environ.get("FACTORFLOW_DATA", "data"))
FIXTURE = SHARED.parent / "fixtures" / "molten_poisson.json"

STEP = Step(0)

pytestmark = pytest.mark.skipif(not FIXTURE.exists(), reason="the fixtures are not here")


def read(name: str, case: dict[str, Any], tools: Any, cut: int) -> tuple[Any, Any]:
    with open(SHARED / "tables" / f"{name}.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    codes = [[case["levels"][g].index(row[v]) for g, v in enumerate(case["variables"])] for row in rows]
    given = {"exposure": [float(row[case["exposure"]]) for row in rows]} if case.get("exposure") else {}
    return tools.table(codes, [float(row["count"]) for row in rows], "poisson", cut, **given)


def point_mass(model: Any, start: Any, blank: Any) -> Any:
    """Return globals whose q(lambda) are point masses; that of a missing level is the prior."""
    levels, totals, first, hyper = {}, {}, 0, model.settings.hyper
    for name, size in model.settings.roles.variables:
        mean = start[first : first + size]
        shape = np.vstack([np.full(mean.shape, 1e13), [2 * [hyper.shape]]])[:, None]
        rate = np.vstack([1e13 / mean, [2 * [hyper.rate]]])[:, None]
        given = Levels(shape, rate, np.zeros(shape.shape), np.append(np.ones(size), 0.0))
        levels[name], totals[name] = complete_levels(given, np.ones((size + 1, 2), dtype=bool))
        first += size
    return replace(blank, levels=levels, totals=totals)


@pytest.mark.parametrize("cut", [7, 1000])
@pytest.mark.parametrize("name", ["mass_insurance_exposure", "hair_eye_color"])
def test_states_of_the_fixture(name: str, cut: int, tools: Any) -> None:
    case = json.loads(FIXTURE.read_text())[name]
    meta, blocks = read(name, case, tools, cut)
    prior = case["prior"]
    config = MoltenPoisson(n_components=2, shape=prior["a"], rate=prior["b"], n_starts=1, scale_step=False)
    model = config.build(meta)
    start = point_mass(model, np.array(case["start_mean"]), model.init(STEP))
    found = [globals_ for globals_, _ in tools.rounds(config, meta, blocks, 50, start)]
    for state in case["states"]:
        after = found[len(case["variables"]) * state["iteration"] - 1]
        levels = [after.levels[v] for v in model.settings.names]
        for values, field in (("shape", "one"), ("rate", "two")):
            stacked = np.concatenate([getattr(level, field)[:-1, 0] for level in levels])
            np.testing.assert_allclose(stacked, state[values], rtol=1e-10)
        assert tools.bound(model, blocks, after) == pytest.approx(state["elbo"], rel=1e-10)
