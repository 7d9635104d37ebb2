"""Few binary entries: where a stage ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorflow
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa import enough
from factorflow.models.sparse_gfa.enough import GAIN, LIKELIHOOD, weighed


def test_bound_and_likelihood_say_what_a_pass_gained(tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the eighth pass on; less than a share of a nat is nothing, and what was taken back no gain."""
    problem = tools.Problem(("bernoulli",), "scattered")
    settings, new = problem.settings, problem.globals_
    before = replace(new, objective=-10.0)
    for count, gain in ((0, None), (1, 1.0), (6, 1.0), (7, 1.0)):
        after, gained = weighed(settings, before, new, -9.0, -5.0, count)
        assert gained == gain
        assert after.weighed == pytest.approx(-9.0 + LIKELIHOOD * -5.0) or count < 7
    assert weighed(settings, before, new, -10.0 + 0.9 * GAIN, -5.0, 3)[1] == 0.0
    known = replace(after, objective=-9.0)
    for count in (0, 9):  # a bound that rises by 1, and a likelihood that falls by 3 and by 4
        assert weighed(settings, known, new, -8.0, -8.0, count)[1] == pytest.approx(1.0 - 3.0 * LIKELIHOOD)
        assert weighed(settings, known, new, -8.0, -9.0, count)[1] == 0.0
    back, gained = weighed(settings, known, replace(new, restored=True), -9.0, 0.0, 9)
    assert (back.weighed, gained) == (known.weighed, 0.0)
    mixed = tools.Problem(("bernoulli", "gaussian"), "scattered").settings
    assert weighed(mixed, known, new, -8.0, -8.0, 9) == (new, None)
    monkeypatch.setattr(enough, "FEW", 1)
    assert weighed(settings, known, new, -8.0, -8.0, 9) == (new, None)


def test_a_stage_ends_though_its_bound_rises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recorded is the bound, which goes on rising where it alone decides; it never falls."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((150, 2)) @ rng.standard_normal((2, 30)) + rng.standard_normal((150, 30))
    values = np.where(rng.random(x.shape) < 0.3, np.nan, x > 0.3).astype(np.float32)
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"v": values}, {"v": "bernoulli"})
    ends = []
    for weight, least in ((LIKELIHOOD, GAIN), (0.0, 0.0)):
        monkeypatch.setattr(enough, "LIKELIHOOD", weight)
        monkeypatch.setattr(enough, "GAIN", least)
        fit = factorflow.fit(data, SparseGFA(n_factors=4, drop=0.0, tol=1e-7), progress=False)
        bound = fit.trace["objective"].values[fit.trace["stage"].values == "sparse"]
        assert (np.diff(bound) >= -1e-9 * np.abs(bound[1:])).all()
        ends.append((len(bound), bound[-1]))
    assert ends[0][0] < 0.7 * ends[1][0]
    assert ends[0][1] < ends[1][1]
