"""The experiment with Gaussian processes, on a small scale."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.reproduce import gplvm
from examples.reproduce.gplvm import reproduce
from factorflow.errors import InputError

pytestmark = pytest.mark.torch
pytest.importorskip("torch")


def test_numbers_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    few = {name: {**options, "compare_steps": 5} for name, options in gplvm.FAMILIES.items()}
    monkeypatch.setattr(gplvm, "FAMILIES", few)
    table = tmp_path / "t.csv"
    values = np.random.default_rng(0).normal(size=(60, 4))
    np.savetxt(table, values, delimiter=",", header="a,b,c,d", comments="")
    said: list[str] = []
    found = reproduce(
        tmp_path / "out",
        table,
        families=("point", "full"),
        n_inducing=5,
        steps=4,
        rows=40,
        report=said.append,
    )
    assert json.loads((tmp_path / "out" / "gplvm.json").read_text()) == found
    assert set(found) == {"simulated", "t"}
    assert "digits: left out, since scikit-learn is not installed" in said
    for each in found.values():
        assert each["shape"][0] == 40
        for family in ("point", "full"):
            numbers = each["families"][family]
            assert np.isfinite([numbers["bound"], numbers["held_out"], numbers["held_out_error"]]).all()
    assert (tmp_path / "out" / "t_point.zarr").exists()


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="families = all"):
        reproduce(tmp_path / "out", families=("all",))
    (tmp_path / "words.csv").write_text("a\nb\n")
    with pytest.raises(InputError, match="columns of numbers"):
        reproduce(tmp_path / "out", tmp_path / "words.csv", steps=4)
