"""What is shown of a run: a bar, or lines, or nothing."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

import factorflow
from factorflow.api.posterior import FINDINGS, log_findings
from factorflow.engine import progress
from factorflow.engine.events import (
    CheckpointWritten,
    Event,
    GroupsChanged,
    IterationDone,
    RunFinished,
    RunStarted,
    StageEntered,
)
from factorflow.engine.progress import progress_bar, watching

EVENTS = [
    RunStarted("toy", 100, 4, 2, "http://127.0.0.1:8787/status", ("fit",), 20),
    StageEntered("fit", 0.0),
    IterationDone("fit", 1, -5.0, None, 10.0),
    IterationDone("fit", 2, -4.0, 1.0, 40.0),
    CheckpointWritten("x", 2, 40.0),
    GroupsChanged(1, 41.0),
    GroupsChanged(2, 42.0),
    IterationDone("fit", 3, -3.0, 1.0, 75.0),
    IterationDone("fit", 4, -2.0, 1.0, 80.0),
    RunFinished("converged", 4, 81.0, None),
]


def played(capsys: pytest.CaptureFixture[str], bar: bool | None) -> str:
    with progress_bar(bar) as on_event:
        for event in EVENTS:
            on_event(event)
    return capsys.readouterr().err


def test_the_bar_shows_bound_and_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    shown = played(capsys, bar=True)
    assert "0/20" in shown
    assert "bound -2, gain 1.0e+00" in shown
    assert "8787/status" in shown
    assert shown.index("one worker takes all blocks") < shown.index("All workers share the blocks again")
    end = shown.split("converged")[-1]
    assert "100%" in end
    assert "4/4" in end


@pytest.mark.thorough
def test_the_bar_is_there_before_the_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what is done, and its clock runs: also while the first pass compiles kernels."""
    monkeypatch.setattr(progress, "CLOCK_SECONDS", 0.01)
    with progress_bar(True, "starting workers") as on_event:
        time.sleep(1.1)
        shown = capsys.readouterr().err
        assert "starting workers [00:00]" in shown
        assert "starting workers [00:01]" in shown
        on_event(EVENTS[0])
        on_event(StageEntered("moments", 0.0))
        time.sleep(1.1)
        shown = capsys.readouterr().err
        assert "reading the data, compiling kernels" in shown
        assert "[00:01" in shown
        on_event(StageEntered("warm-up", 2.0))
        on_event(IterationDone("warm-up", 1, -5.0, None, 3.0))
        shown = capsys.readouterr().err
        assert re.search(r"finding factors: .*1/20 \[.*at most .* left, bound -5\]", shown)
        assert "compiling" not in shown.split("finding factors: ")[-1]
        on_event(EVENTS[-1])


def test_a_projection_has_no_bound(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress.LOGGER, "hasHandlers", lambda: False)
    for bar in (True, False):
        with progress_bar(bar) as on_event:
            on_event(EVENTS[0])
            for seconds in (0.0, 100.0):
                on_event(IterationDone("projection", 1, float("nan"), None, seconds))
    shown = capsys.readouterr().err
    assert "iteration 1 of at most 20, " in shown
    assert "nan" not in shown
    assert ", ," not in shown


def test_a_notebook_without_widgets_has_a_bar_of_text() -> None:
    """Without a warning of tqdm."""
    script = """
import sys, types
shell = types.SimpleNamespace(kernel=None, config={"IPKernelApp": 1})
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
sys.modules["ipywidgets"] = None
from factorflow.engine.progress import progress_bar
with progress_bar():
    pass
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "preparing [00:00]" in done.stderr
    assert "Warning" not in done.stderr


def test_lines_stand_above_the_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On lines of their own, with the bar drawn again below."""
    monkeypatch.setattr(progress.LOGGER, "hasHandlers", lambda: False)
    with progress_bar(True, "preparing"):
        progress.say("dataset in d.zarr")
    lines = re.split(r"[\r\n]+", capsys.readouterr().err)
    assert any(re.fullmatch(r"\d\d:\d\d:\d\d factorflow: dataset in d\.zarr", line) for line in lines)


def test_a_clock_where_nothing_iterates(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a terminal; it leaves nothing behind."""
    with progress.clock("drawing the report"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.clock("drawing the report"):
        pass
    shown = capsys.readouterr().err
    assert "drawing the report [00:00]" in shown
    assert shown.split("\r")[-1].strip() == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("warm-up", "finding factors"),
        ("sparse 3", "refining (start 3)"),
        ("best sparse", "refining (best start)"),
        ("burn-in", "burn-in"),
    ],
)
def test_stages_are_named_in_words(name: str, words: str) -> None:
    assert progress.stage_words(name) == words


def test_without_a_terminal_there_is_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # those of pytest
    monkeypatch.setattr(logging.getLogger("factorflow"), "handlers", [])  # Prefect's, in tests of flows
    lines = [re.sub(r"^\d\d:\d\d:\d\d factorflow: ", "", line) for line in played(capsys, None).splitlines()]
    assert lines == [
        "Dask dashboard: http://127.0.0.1:8787/status",
        "Iterations are short: one worker takes all blocks.",
        "All workers share the blocks again: one alone takes longer.",
        "fit: iteration 3 of at most 20, bound -3, gain 1.0e+00, 1.2 minutes, at most 9.2 minutes left",
        "converged after 4 iterations, 1.4 minutes",
    ]


class Gone:
    """A stream whose reader is gone, and that cannot say whether it is a terminal."""

    def write(self, text: str) -> None:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


def closed() -> Any:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, closed(), Gone()], ids=["none", "closed", "gone"])
def test_a_run_does_not_need_a_place_for_its_lines(
    stream: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Services, and programs without a window, have no stderr; a pipe may have lost its reader."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(progress.LOGGER, "handlers", [])
    monkeypatch.setattr(FINDINGS, "propagate", False)
    monkeypatch.setattr(sys, "stderr", stream)
    with watching(True, None) as on_event:
        for event in EVENTS:
            on_event(event)
    log_findings(SimpleNamespace(findings=["a finding"]))  # type: ignore[arg-type]
    assert capsys.readouterr().out == ""


def test_a_bar_may_lose_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(bar=True) as on_event:
        on_event(EVENTS[0])
        assert "0/20" in stream.getvalue()
        monkeypatch.setattr(stream, "write", Gone().write)
        monkeypatch.setattr(stream, "flush", Gone().flush)
        for event in EVENTS:  # the first again: the dashboard
            on_event(event)


def test_handlers_and_levels_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of a program whose other threads log meanwhile."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(progress.LOGGER, "handlers", [])
    monkeypatch.setattr(progress.LOGGER, "level", logging.ERROR)
    with progress_bar(bar=False) as on_event:
        on_event(EVENTS[0])
        assert (progress.LOGGER.handlers, progress.LOGGER.level) == ([], logging.ERROR)
    assert "8787/status" in capsys.readouterr().err


def test_lines_go_where_logging_says(caplog: pytest.LogCaptureFixture, capsys: Any) -> None:
    with caplog.at_level(logging.INFO, "factorflow"):
        assert played(capsys, bar=False) == ""
    assert [record.name for record in caplog.records] == ["factorflow"] * 5
    caplog.clear()
    played(capsys, bar=False)  # by default logging leaves out what is no warning
    assert not caplog.records


def test_a_notebook_and_a_terminal_have_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        shell = SimpleNamespace(kernel=None, config={})
        patched.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
        assert "4/4" in played(capsys, None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "4/4" in played(capsys, None)


@pytest.mark.parametrize(
    ("choice", "listens", "shown"), [(None, False, 1), (None, True, 0), (True, True, 1), (False, False, 0)]
)
def test_progress_is_shown_unless_somebody_listens(
    choice: bool | None, listens: bool, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or as ``progress`` says; who listens is told in any case."""
    heard: list[Event] = []
    lines: list[Event] = []
    monkeypatch.setattr(progress, "_Lines", lambda: lines.append)
    with watching(choice, heard.append if listens else None) as on_event:
        for event in EVENTS:
            on_event(event)
    assert len(lines) == shown * len(EVENTS)
    assert heard == (EVENTS if listens else [])


def test_fit_and_project_show_progress(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[Event] = []
    monkeypatch.setattr(progress, "_Lines", lambda: lines.append)
    data = factorflow.simulate("sparse_gfa", tmp_path / "data.zarr", 20, views={"a": ("gaussian", 4)})
    config = {"model": "sparse_gfa", "n_factors": 1, "max_iter": 3, "warmup_iter": 1}
    posterior = factorflow.fit(data, config)
    assert [type(event) for event in lines][-1] is RunFinished
    lines.clear()
    posterior.project(data, progress=False)
    assert not lines
    posterior.project(data, progress=True)
    assert isinstance(lines[0], RunStarted)
