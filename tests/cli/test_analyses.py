"""Options of `associate` and `enrich` in a shell are those of the functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from given_posterior import given_family, make_given
from typer.testing import CliRunner

from factorflow.cli import app

__all__ = ["given_family", "make_given"]


@pytest.fixture
def posterior(make_given: Any, given_family: None, tmp_path: Path) -> Any:
    found = make_given().posterior
    found.save(tmp_path / "p.zarr")
    return found


def rows(tmp_path: Path, *words: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [words[0], str(tmp_path / "p.zarr"), *words[1:], "--json"])
    assert result.exit_code == code, result.output
    return pd.DataFrame(json.loads(result.stdout)["rows"]) if code == 0 else result.output


def test_associate(posterior: Any, tmp_path: Path) -> None:
    found = rows(tmp_path, "associate", "--column", "sex", "--adjust", "age", "--blocks", "group")
    expected = posterior.associate("sex", adjust="age", blocks="group")
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    assert "two columns" in rows(tmp_path, "associate", "--survival", "age", code=2)


def test_enrich(posterior: Any, tmp_path: Path) -> None:
    sets = tmp_path / "sets.gmt"
    sets.write_text("A\t\t" + "\t".join(f"rna {j}" for j in range(6)) + "\n")
    found = rows(tmp_path, "enrich", "rna", str(sets), "--correlation-adjusted")
    expected = posterior.enrich("rna", sets, correlation_adjusted=True)
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
