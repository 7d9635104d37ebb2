"""Tutorials run as they are written: every block of Python, one after the other, in an empty folder."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:variable 'site'. 1 level that the dataset did not have")
@pytest.mark.skipif("FACTORFLOW_DATA" not in os.environ, reason="FACTORFLOW_DATA is not set")
def test_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    source = Path(os.environ["FACTORFLOW_DATA"]) / "tables" / "vegan_mite.csv"
    shutil.copy(source, tmp_path / "mites.csv")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tutorial-tables.md").read_text(), re.S)
    assert len(blocks) == 7
    space: dict[str, Any] = {}
    for block in blocks:
        exec(block, space)  # noqa: S102  it is ours
    assert max(space["bounds"], key=space["bounds"].get) > 1
    scores = space["posterior"].holdout_scores().loc["count"]
    one = space["fits"][1].holdout_scores().loc["count"]
    assert scores["log_likelihood"] > one["log_likelihood"] + 0.2
    assert (tmp_path / "mites.html").exists()
    predicted = space["clumped"].predict(space["new"])
    assert predicted["sd"].values[2] > predicted["sd"].values[0]
    assert "Brachy" in capsys.readouterr().out
