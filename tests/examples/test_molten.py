"""The tables of the fixture, run anew on a small scale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from examples.reproduce.molten import main_effects, reproduce
from factorflow.errors import InputError


@pytest.mark.thorough
def test_numbers_of_a_table(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    rng = np.random.default_rng(0)
    lines = [f"{a},{b},{rng.poisson(3 * (1 + a) * (1 + b))}" for a in range(4) for b in range(3)]
    table.write_text("\n".join(["a,b,count", *lines]) + "\n")
    found = reproduce(tmp_path / "out", table, n_components=(1, 2), n_starts=1, splits=1, max_iter=10)
    assert json.loads((tmp_path / "out" / "molten.json").read_text()) == json.loads(json.dumps(found))
    assert set(found) == {"simulated", "t"}
    truth = found["simulated"]["components"]
    assert truth["2"]["held_out"] > truth["1"]["held_out"]
    assert truth["2"]["held_out"] > found["simulated"]["glm"]
    assert found["t"]["best_by_bound"] == 1


def test_main_effects_maximise_the_likelihood() -> None:
    rng = np.random.default_rng(1)
    codes = np.column_stack([rng.integers(0, 3, 50), rng.integers(0, 4, 50)])
    codes[:4] = [[0, 0], [1, 1], [2, 2], [0, 3]]
    y, t = rng.poisson(4.0, 50).astype(float), rng.uniform(0.5, 2.0, 50)

    def loss(b: np.ndarray) -> float:
        eta = b[codes[:, 0]] + b[3 + codes[:, 1]] + np.log(t)
        return float(np.exp(eta).sum() - y @ eta)

    best = minimize(loss, np.zeros(7), method="BFGS", options={"gtol": 1e-9})
    a, b = main_effects(codes, y, t)
    assert loss(np.log(np.concatenate([a, b]))) == pytest.approx(best.fun, rel=1e-9)


@pytest.mark.parametrize("given", ["1,x", "", "0,1", [], 0])
def test_numbers_of_components_that_are_none_are_refused(given: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="whole numbers from 1 on"):
        reproduce(tmp_path, n_components=given)


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="column 'count'"):
        reproduce(tmp_path / "out", tmp_path)
