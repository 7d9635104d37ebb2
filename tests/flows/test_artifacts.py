"""What runs show in Prefect, without a server: artifacts are kept in a list, lines are printed."""

from __future__ import annotations

import base64
import re
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow
from factorflow.engine import progress
from factorflow.engine.events import CheckpointWritten, IterationDone, RunFinished, RunStarted, StageEntered

NAMES = ["HLA-A*02:01", "![x](http://h/x.png)", "[c](javascript:a)", '"><img src=x>', "<b>g</b>", "a\nb"]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Artifacts by key, data and description."""
    kept: dict[str, Any] = {}

    def keep(data: Any, *_: Any, key: str, description: str = "", **__: Any) -> str:
        kept[key] = (data, description)
        return key

    def update(artifact: str, progress: float, description: str) -> None:
        kept[artifact] = (progress, description)

    for kind in ("link", "markdown", "progress", "table"):
        monkeypatch.setattr(f"flows.artifacts.create_{kind}_artifact", keep)
    monkeypatch.setattr("flows.artifacts.update_progress_artifact", update)
    return kept


@pytest.fixture(scope="module")
def posterior(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rng = np.random.default_rng(0)
    y = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 6)) + 0.3 * rng.normal(size=(60, 6))
    folder = tmp_path_factory.mktemp("names")
    data = factorflow.write_dataset(folder / "d.zarr", views={"view": pd.DataFrame(y, columns=NAMES)})
    return factorflow.fit(data, factorflow.models.SparseGFA(n_factors=2, max_iter=5), progress=False)


def label() -> Any:
    from flows.artifacts import Label

    return Label("<b>cohort</b>", "runs/a_b_c")


@pytest.mark.thorough
def test_names_are_text_everywhere(shown: dict[str, Any], posterior: Any) -> None:
    from flows.artifacts import publish_factors, publish_objective, publish_report

    publish_factors(posterior.summary()["factors"], label())
    publish_report(posterior, None, label())
    publish_objective(posterior, label())
    assert len(shown) == 3
    for data, description in shown.values():
        text = data if isinstance(data, str) else " ".join(str(v) for row in data for v in row.values())
        outside = re.sub(r"(`{3,})text\n.*?\n\1", "", text, flags=re.DOTALL) + description
        outside = re.sub(r"!\[[^\]]*\]\(data:image/png;base64,[\w+/=]*\)", "", outside)
        assert not re.search(r"<[a-z!]|(?<!\\)\*|(?<!\\)\]\(|\n *b\b", outside), outside
    (table,) = (data for data, _ in shown.values() if isinstance(data, list))
    names = " ".join(str(row) for row in table)
    assert r"HLA-A\\*02:01" in names  # the repr of a backslash
    assert "&lt;b&gt;g&lt;/b&gt;" in names
    assert "a b" in names


def test_pictures_are_small(shown: dict[str, Any], posterior: Any) -> None:
    from PIL import Image

    from flows.artifacts import publish_report

    publish_report(posterior, None, label())
    (page, _) = next(iter(shown.values()))
    pictures = re.findall(r"data:image/png;base64,([\w+/=]+)", page)
    assert len(pictures) == 2
    for picture in pictures:
        assert len(picture) < 16_000
        with Image.open(BytesIO(base64.b64decode(picture))) as image:
            assert 400 <= image.width <= 600
    assert len(page) < 40_000


def test_a_large_figure_is_made_small(tmp_path: Any) -> None:
    from PIL import Image

    from flows.artifacts import picture_of

    Image.effect_noise((2000, 1000), 30).save(tmp_path / "large.png")
    with Image.open(BytesIO(base64.b64decode(picture_of(tmp_path / "large.png").partition(",")[2]))) as image:
        assert image.size == (560, 280)


def test_a_checkpoint_says_how_to_go_on(shown: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    from flows.artifacts import RunWatcher

    watcher = RunWatcher(label())
    watcher(CheckpointWritten("x", 50, 1.0, "factorflow resume runs/p.zarr --executor tcp://host:8786"))
    watcher.close()
    said = capsys.readouterr().out
    assert said == (
        "checkpoint after iteration 50; to go on from it: "
        "factorflow resume runs/p.zarr --executor tcp://host:8786\n"
    )


def test_progress_is_the_share_of_iterations_and_ends_at_all(
    shown: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run that converged before; between, it is not updated at every iteration."""
    from flows.artifacts import RunWatcher

    watcher, key = RunWatcher(label()), label().key("progress")
    watcher(RunStarted("x", 9, 1, 1, "http://h:8787/status", ("all",), max_iter=40))
    assert shown[key] == (0.0, f"Iterations: {label().as_markdown()}")
    watcher(IterationDone("all", 10, -5.5, None, 1.0))
    assert shown[key] == (25.0, f"{label().as_markdown()}: all: bound -5.5")
    watcher(IterationDone("all", 11, -5.4, None, 1.1))
    assert shown[key][0] == 25.0
    watcher(RunFinished("converged", 12, 3.21, None))
    assert shown[key] == (100.0, f"{label().as_markdown()}: converged after 12 iterations")
    assert shown[label().key("dask-dashboard")][1].startswith("While ")
    watcher.close()
    assert shown[label().key("dask-dashboard")][1].startswith("The run is over.")
    assert "converged after 12 iterations, 3.2 s" in capsys.readouterr().out


def test_the_page_says_where_the_whole_report_is(shown: dict[str, Any], posterior: Any) -> None:
    from flows.artifacts import publish_report

    publish_report(posterior, Path("/runs/a_b/report.html"), label())
    page = shown[label().key("report")][0]
    assert "The whole report, one HTML file on the disk of the worker: " in page
    assert "/runs/a_b/report.html" in page.replace("\\", "")
    assert "Objective" in page
    publish_report(posterior, None, label())
    assert "The whole report" not in shown[label().key("report")][0]


def test_the_command_of_a_checkpoint_is_that_of_the_run(tmp_path: Any) -> None:
    heard: list[Any] = []
    data = factorflow.write_dataset(
        tmp_path / "d.zarr", views={"x": np.random.default_rng(0).normal(size=(40, 5))}
    )
    model = factorflow.models.SparseGFA(n_factors=1, max_iter=3, tol=1e-12)
    options: dict[str, Any] = {"checkpoint_every": 1, "executor": "threads", "workers": 1}
    factorflow.fit(data, model, out=tmp_path / "p.zarr", on_event=heard.append, **options)
    commands = {event.resume for event in heard if isinstance(event, CheckpointWritten)}
    out = tmp_path / "p.zarr"
    assert commands == {f"factorflow resume {out} --executor threads --workers 1 --checkpoint-every 1"}


@pytest.mark.thorough
def test_a_line_a_minute_while_nothing_iterates(
    shown: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the run begins, in a long iteration, after the last; not while iterations come."""
    from flows.artifacts import RunWatcher

    monkeypatch.setattr(progress, "LINE_SECONDS", 0.2)
    watcher = RunWatcher(label())

    def lines(seconds: float = 0.5) -> list[str]:
        time.sleep(seconds)
        return [line for line in capsys.readouterr().out.splitlines() if " since " in line]

    assert 1 <= len(found := lines()) <= 3
    assert found[0].endswith("minutes since the run was asked for")
    watcher(RunStarted("run", 10, 1, 1, None, ("sparse",), 5))
    assert lines()[0].endswith("since the run began")
    watcher(StageEntered("sparse", 1.0))
    assert lines()[0].endswith("since it began refining")
    for number in range(1, 11):
        watcher(IterationDone("sparse", number, -1.0, None, 2.0))
        assert not lines(0.04)
    assert lines()[0].endswith("since iteration 10, refining")
    watcher(RunFinished("converged", 10, 3.0, None))
    assert not lines()
    watcher.close()
    assert not lines()


def test_the_lines_of_a_command_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.1)
    with caplog.at_level("INFO", "factorflow"), progress.progress_bar(bar=False):
        time.sleep(0.35)
    n = len(caplog.records)
    assert 1 <= n <= 3
    time.sleep(0.3)
    assert len(caplog.records) == n
