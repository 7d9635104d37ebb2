"""The flow that runs a published experiment anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("prefect_api")


def test_probit_experiments_in_small(tmp_path: Path) -> None:
    from flows.reproduce import reproduce

    out = tmp_path / "probit"
    options = {"n_factors": [2], "splits": 1, "sweeps": 6, "burn_in": 2, "long_draws": 0, "figures": False}
    found = reproduce(str(out), options=options)
    rows = found["synthetic"]["scores"]
    assert {row["factors"] for row in rows} == {"binary", "spike_slab", "nonnegative"}
    assert json.loads((out / "probit.json").read_text())["synthetic"]["scores"] == rows
