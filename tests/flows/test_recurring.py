"""Recurring runs: when a fit is due, what it begins with, the history of posteriors, what drifted."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import factorflow
from factorflow.cli import app
from factorflow.errors import InputError, RunError
from factorflow.posterior.record import RunRecord
from factorflow.settings import RefreshOptions, RunOptions, SourceOptions
from factorflow.storage.local import delete
from factorflow.storage.publish import delete_location, write_file
from factorflow.workflow import history, pipeline
from factorflow.workflow.drift import alerts, compare_data, compare_factors
from factorflow.workflow.due import Due, Last, check_rows, due
from factorflow.workflow.folder import Folder
from factorflow.workflow.history import Entry, History
from factorflow.workflow.refresh import RefreshResult, refresh

NOW = datetime(2026, 1, 10, tzinfo=UTC)
MODEL = {"model": "sparse_gfa", "n_factors": 3, "tol": 1e-5}


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Write reports in one test only: their figures take longer than all the rest."""

    def publish(folder: Folder) -> Path:
        folder.report.write_text(folder.name)
        folder.record_output(folder.report)
        return folder.report

    if request.function.__name__ != "test_what_drifted_is_said":
        monkeypatch.setattr(pipeline, "publish", publish)


def record(fingerprint: str = "f", warm: str = "", **options: Any) -> RunRecord:
    chosen = RunOptions(**options)
    return RunRecord.begin("d", fingerprint, {"model": "m"}, chosen, {"factorflow": "1"}, ("", warm))


def last(
    rows: int = 100, days: float = 1.0, fingerprint: str = "f", reason: str = "converged", **options: Any
) -> Last:
    done = record(warm="of an earlier one", **options).ended("complete", reason, 9)
    return Last(done, Path("0001.zarr"), rows, NOW - timedelta(days=days), fingerprint)


@pytest.mark.parametrize(
    ("there", "rows", "rule", "action"),
    [
        (None, 100, {}, "fit"),
        (last(fingerprint="g"), 100, {}, "nothing"),
        (last(seed=1), 100, {}, "fit"),
        (last(seed=1, fingerprint="g"), 100, {}, "fit"),
        (last(max_iter=9, reason="max_iter", fingerprint="g"), 100, {}, "fit"),
        (last(), 101, {}, "fit"),
        (last(), 110, {"refit_growth": 0.2}, "project"),
        (last(), 120, {"refit_growth": 0.2}, "fit"),
        (last(), 100, {"refit_growth": 0.2}, "fit"),
        (last(), 90, {"refit_growth": 0.2}, "fit"),
        (last(days=6.9), 110, {"refit_growth": 0.2, "refit_days": 7}, "project"),
        (last(days=7.0), 110, {"refit_growth": 0.2, "refit_days": 7}, "fit"),
        (last(days=9.0, fingerprint="g"), 100, {"refit_days": 7}, "nothing"),
    ],
)
def test_the_rule(there: Last | None, rows: int, rule: dict[str, Any], action: str) -> None:
    found = due(there, record("g"), rows, RefreshOptions(**rule), NOW)
    assert isinstance(found, Due)
    assert found.action == action, found.reason
    assert found.reason.endswith(".")


def write(path: Path, n: int, shift: float = 0.0) -> Path:
    """A table of the first ``n`` samples of one world."""
    rng = np.random.default_rng(1)
    loadings = rng.standard_normal((2, 9)) * [[1.5], [1.0]]
    y = rng.standard_normal((200, 2)) @ loadings + 0.5 * rng.standard_normal((200, 9))
    y[:, 0] += shift
    lines = [",".join(["sample", *(f"gene{d}" for d in range(9))])]
    lines += [",".join([f"s{i}", *(f"{value:.6f}" for value in y[i])]) for i in range(n)]
    path.write_text("\n".join(lines) + "\n")
    return path


def again(source: Path, out: Path, rule: dict[str, Any] | None = None, **options: Any) -> RefreshResult:
    model = {**MODEL, **options.pop("model", {})}
    return refresh(source, Folder.at(out), model, RunOptions(**options), RefreshOptions(**(rule or {})))


def latest(out: Path) -> str:
    return str(json.loads((out / "latest.json").read_text())["posterior"])


@pytest.mark.thorough
def test_a_history_grows_and_is_pruned(tmp_path: Path) -> None:
    """Fit, nothing, projected, fitted from the last fit, pruned: the pointer and its fit stay."""
    source, out = write(tmp_path / "y.csv", 100), tmp_path / "out"
    rule = {"refit_growth": 0.2, "keep": 1}
    first = again(source, out, rule, holdout=0.1)
    assert first.describe()["done"] == "ingested, fitted"
    assert first.entry is not None
    assert first.entry.start == ""
    assert again(source, out, rule, holdout=0.1).describe()["done"] == "nothing to do"

    write(source, 110)
    second = again(source, out, rule, holdout=0.1)
    assert second.describe()["done"] == "ingested, projected"
    projected = factorflow.open_posterior(second.folder.posterior)
    assert projected.run["status"] == "projected"
    assert projected.scores().sizes["obs"] == 110
    pointer = json.loads((out / "latest.json").read_text())
    assert (pointer["posterior"], pointer["fit"]) == ("0002.zarr", "0001.zarr")
    assert (out / "0001.zarr").exists()  # the fit of what is kept, whatever `keep`
    assert again(source, out, rule, holdout=0.1).due.action == "nothing"

    write(source, 125)
    third = again(source, out, rule, holdout=0.1)
    assert third.entry is not None
    assert (third.entry.kind, third.entry.start, third.entry.note) == ("fit", "0001.zarr", "")
    fit = factorflow.open_posterior(third.folder.posterior)
    assert fit.run["warm_from"].endswith("0001.zarr")
    assert sorted(path.name for path in out.glob("0*")) == ["0003.json", "0003.npz", "0003.zarr"]
    changed = third.entry.comparison
    assert changed["with"] == "0001.zarr"
    assert [row["factor"] for row in changed["factors"]] == [row["before"] for row in changed["factors"]]
    assert min(row["correlation"] for row in changed["factors"]) > 0.95
    assert [row["view"] for row in changed["scores"]] == ["y"]
    assert (changed["data"][0]["rows_before"], changed["data"][0]["rows_after"]) == (110, 125)
    assert third.alerts == ()


@pytest.mark.thorough
def test_rows_with_other_features_are_fitted(tmp_path: Path) -> None:
    """A projection would leave the new column out, and nobody would hear of it."""
    source, out = write(tmp_path / "y.csv", 60), tmp_path / "out"
    again(source, out, max_iter=3)
    lines = write(source, 62).read_text().splitlines()
    wider = [f"{lines[0]},another", *(f"{line},{number % 7}.5" for number, line in enumerate(lines[1:]))]
    source.write_text("\n".join([*wider, ""]))
    found = again(source, out, {"refit_growth": 0.2}, max_iter=3)
    assert (found.due.action, found.due.reason) == ("fit", "Other features than those of the last fit: y.")
    assert factorflow.open_posterior(found.folder.posterior).features("y")[-1] == "another"


@pytest.mark.thorough
def test_a_long_table_grows(tmp_path: Path) -> None:
    """Rows of known levels are projected, though the posterior has no name for the response."""
    source, out, rng = tmp_path / "counts.csv", Folder.at(tmp_path / "out"), np.random.default_rng(0)
    cells = [f"s{i},p{j},{n}" for (i, j), n in np.ndenumerate(rng.poisson(4.0, (12, 8)))]

    def run(rows: list[str]) -> RefreshResult:
        source.write_text("\n".join(["site,species,count", *rows, ""]))
        table, rule = SourceOptions(formula="count ~ site + species"), RefreshOptions(refit_growth=0.2)
        model = {"model": "molten_poisson", "n_components": 2}
        return refresh(source, out, model, RunOptions(max_iter=20), rule, source_options=table)

    assert run(cells[:-6]).due.action == "fit"
    second = run(cells)
    assert second.describe()["done"] == "ingested, projected"
    third = run([*cells, "s0,new,3"])
    assert third.due.reason == "Other features than those of the last fit: species."
    assert third.entry is not None
    assert third.entry.kind == "fit"
    compared = third.entry.comparison["factors"]  # by the variables, not by the response
    assert len(compared) >= 2
    assert max(abs(row["correlation"] or 0.0) for row in compared) > 0.5


@pytest.mark.thorough
def test_sequences_grow(tmp_path: Path) -> None:
    """Identities have loadings and no factors: the data are compared, and nothing fails."""
    source, obs, out = tmp_path / "y.csv", tmp_path / "obs.csv", Folder.at(tmp_path / "out")

    def run(n: int) -> RefreshResult:
        write(source, n)
        rows = [f"s{i},v{i // 20}" for i in range(n)]
        obs.write_text("\n".join(["sample,video", *rows, ""]))
        model = {"model": "identity_attribute", "n_identities": 2}
        matrix = SourceOptions(obs=str(obs), sequences="video")
        return refresh(source, out, model, RunOptions(max_iter=3), source_options=matrix)

    assert run(40).due.action == "fit"
    again = run(60)
    assert again.entry is not None
    assert again.entry.comparison["factors"] == []
    assert [row["view"] for row in again.entry.comparison["data"]] == ["y"]


@pytest.mark.thorough
def test_what_drifted_is_said(tmp_path: Path) -> None:
    source, out = write(tmp_path / "y.csv", 100), tmp_path / "out"
    again(source, out)
    write(source, 100, shift=3.0)
    found = again(source, out)
    assert found.due.action == "fit"
    assert "no more rows" in found.due.reason
    assert any("gene0 of y moved by" in alert for alert in found.alerts)
    assert found.describe()["alerts"] == list(found.alerts)
    assert "<html" in found.folder.report.read_text().lower()


@pytest.mark.thorough
def test_other_settings_begin_anew(tmp_path: Path) -> None:
    source, out = write(tmp_path / "y.csv", 60), tmp_path / "out"
    again(source, out, max_iter=5)
    other = again(source, out, max_iter=5, model={"n_factors": 2})
    assert other.describe()["done"] == "fitted"
    assert other.entry is not None
    assert other.entry.start == ""
    assert "n_factors" in other.entry.note
    anew = again(source, out, rule={"warm": False}, max_iter=4, model={"n_factors": 2})
    assert anew.entry is not None
    assert (anew.entry.start, anew.entry.note) == ("", "")


@pytest.mark.thorough
def test_a_posterior_of_a_fit_is_where_the_history_begins(tmp_path: Path) -> None:
    """What flow `fit` left in the folder is the last fit; it is left where it is."""
    source, folder = write(tmp_path / "y.csv", 60), Folder.at(tmp_path / "out")
    dataset, _ = pipeline.ingest(source, folder)
    pipeline.fit(dataset, folder, MODEL, RunOptions(max_iter=5))
    assert again(source, folder.path, max_iter=5).describe()["done"] == "nothing to do"
    write(source, 80)
    found = again(source, folder.path, max_iter=5)
    assert found.entry is not None
    assert (found.entry.name, found.entry.start) == ("0001.zarr", "posterior.zarr")


@pytest.mark.thorough
def test_an_interrupted_refresh_goes_on(tmp_path: Path) -> None:
    """The same number, the same start; until then the pointer names the one before."""
    source, out = write(tmp_path / "y.csv", 60), tmp_path / "out"
    again(source, out, max_iter=30)
    write(source, 80)

    def interrupt(event: Any) -> None:
        if getattr(event, "iteration", 0) == 3 and hasattr(event, "objective"):
            raise KeyboardInterrupt

    options = RunOptions(max_iter=30, checkpoint_every=1)
    model = {**MODEL, "tol": 1e-12}
    again(source, out, max_iter=30, model={"tol": 1e-12})
    write(source, 100)
    with pytest.raises(KeyboardInterrupt):
        refresh(source, Folder.at(out), model, options, on_event=interrupt)
    assert json.loads((out / "latest.json").read_text())["posterior"] == "0002.zarr"
    resumed: list[Any] = []
    found = refresh(source, Folder.at(out), model, options, on_event=resumed.append)
    assert resumed[0].resumed_from == 3
    assert found.entry is not None
    assert (found.entry.name, found.entry.start) == ("0003.zarr", "0002.zarr")


@pytest.mark.parametrize("damaged", ["group-000000.tree", "state.tree", "trace.json", "manifest.json"])
def test_an_interrupted_refresh_begins_anew_where_its_checkpoint_is_damaged(
    tmp_path: Path, damaged: str
) -> None:
    """Nobody is there to remove it, and what it replaces is its own."""
    source, out = write(tmp_path / "y.csv", 60), tmp_path / "out"

    def interrupt(event: Any) -> None:
        if type(event).__name__ == "CheckpointWritten":
            raise KeyboardInterrupt

    options = RunOptions(max_iter=8, checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        refresh(source, Folder.at(out), MODEL, options, on_event=interrupt)
    (file,) = (out / "0001.zarr.run").rglob(damaged)
    file.write_bytes(file.read_bytes()[:-1])
    heard: list[Any] = []
    with pytest.warns(RuntimeWarning, match=rf"the run in .*0001\.zarr\.run begins anew, since .*{damaged}"):
        found = refresh(source, Folder.at(out), MODEL, options, on_event=heard.append)
    assert found.due.action == "fit"
    assert heard[0].resumed_from is None
    assert latest(out) == "0001.zarr"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("damage", "with_draws"),
    [
        ("cut off", True),
        ("metadata", True),
        ("root", False),
        pytest.param("deleted", True, marks=pytest.mark.slow),
        pytest.param("metadata", False, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_sampler_begins_anew_where_its_draws_are_damaged(
    tmp_path: Path, damage: str, with_draws: bool
) -> None:
    """Where it had none yet, nothing is lost: it goes on."""
    source, out = write(tmp_path / "y.csv", 60), tmp_path / "out"
    model = {**MODEL, "n_factors": 1, "max_iter": 5, "n_draws": 8, "n_burn_in": 6, "chains": 1}
    store = out / "0001.zarr.run/posterior.zarr"

    def chunks() -> list[Path]:
        return [file for file in sorted(store.rglob("*")) if file.is_file() and "c" in file.parts]

    def interrupt(event: Any) -> None:
        if type(event).__name__ == "CheckpointWritten" and bool(chunks()) == with_draws:
            raise KeyboardInterrupt

    options = RunOptions(checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        refresh(source, Folder.at(out), model, options, on_event=interrupt)
    if damage == "cut off":
        chunks()[0].write_bytes(chunks()[0].read_bytes()[:-3])
    elif damage == "deleted":
        chunks()[0].unlink()
    else:
        folder = store if damage == "root" else min(store.glob("*/*/zarr.json")).parent
        (folder / "zarr.json").write_text("{")
    heard: list[Any] = []
    if with_draws:
        with pytest.warns(RuntimeWarning, match=r"the run in .*0001\.zarr\.run begins anew, since its check"):
            refresh(source, Folder.at(out), model, options, on_event=heard.append)
    else:
        refresh(source, Folder.at(out), model, options, on_event=heard.append)
    assert (heard[0].resumed_from is None) == with_draws
    assert latest(out) == "0001.zarr"
    assert factorflow.open_posterior(out / "0001.zarr").n_draws == 8


@pytest.mark.thorough
def test_a_killed_refresh_is_repaired_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the pointer, or while it prunes: the next refresh repairs both, of the same data too."""
    source, out = write(tmp_path / "y.csv", 60), tmp_path / "out"
    again(source, out, max_iter=3)
    write(source, 70)

    def dies(path: Path) -> None:
        delete(path / "variational")
        raise KeyboardInterrupt

    def dies_at_the_pointer(path: Path, *given: Any) -> None:
        if path.name == "latest.json":
            raise KeyboardInterrupt
        write_file(path, *given)

    monkeypatch.setattr(history, "write_file", dies_at_the_pointer)
    with pytest.raises(KeyboardInterrupt):
        again(source, out, max_iter=3)
    monkeypatch.setattr(history, "write_file", write_file)
    assert latest(out) == "0001.zarr"
    assert again(source, out, {"keep": 1}, max_iter=3).due.action == "nothing"
    assert latest(out) == "0002.zarr"

    write(source, 80)
    monkeypatch.setattr(history, "delete_location", dies)
    with pytest.raises(KeyboardInterrupt):
        again(source, out, {"keep": 1}, max_iter=3)
    monkeypatch.setattr(history, "delete_location", delete_location)
    assert [entry.name for entry in History(out).entries()] == ["0003.zarr"]
    assert (out / "0002.zarr").exists()
    assert again(source, out, max_iter=3).due.action == "nothing"
    assert sorted(path.name for path in out.glob("0*")) == ["0003.json", "0003.npz", "0003.zarr"]


@pytest.mark.thorough
def test_what_is_damaged_in_a_history_is_an_error_or_made_anew(tmp_path: Path) -> None:
    """Moments that cannot be read are named before a fit; a latest posterior that is gone is made anew."""
    source, out = write(tmp_path / "y.csv", 60), tmp_path / "out"
    for rows in (60, 70):
        write(source, rows)
        again(source, out, max_iter=3)
    moments = (out / "0002.npz").read_bytes()
    write(source, 80)
    for damaged in (b"", b"null", moments[: len(moments) // 2]):
        (out / "0002.npz").write_bytes(damaged)
        with pytest.raises(InputError, match=r"0002\.npz: expected moments of the data of 0002\.zarr"):
            again(source, out, max_iter=3)
        assert not (out / "0003.zarr").exists()
    (out / "0002.npz").unlink()
    write(source, 70)
    assert again(source, out, max_iter=3).due.action == "nothing"
    delete(out / "0002.zarr")
    found = again(source, out, {"refit_growth": 0.5}, max_iter=3)
    assert found.due.reason == "The latest posterior is gone, or cannot be read."
    assert latest(out) == "0003.zarr"
    assert (out / latest(out)).exists()


@pytest.mark.parametrize(("rows", "share"), [(90, 0.9), (55, 0.55), (57, 0.57)])
def test_the_bound_itself_is_enough_rows(tmp_path: Path, rows: int, share: float) -> None:
    """Whatever the product of share and rows is rounded to."""
    rule, empty = RefreshOptions(min_rows=share), History(tmp_path)
    check_rows(empty, last(), SimpleNamespace(n_rows=rows, design=None), rule)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="rows of the source"):
        check_rows(empty, last(), SimpleNamespace(n_rows=rows - 1, design=None), rule)  # type: ignore[arg-type]


@pytest.mark.thorough
def test_a_source_that_lost_its_rows_does_not_become_the_latest(tmp_path: Path) -> None:
    """Most of them: refused, whatever is asked for. A few: an alert, and the hook decides."""
    source, out = write(tmp_path / "y.csv", 100), tmp_path / "out"
    again(source, out, max_iter=3)
    write(source, 89)
    with pytest.raises(InputError, match="rows of the source = 89: expected >= 90"):
        again(source, out, max_iter=3)
    assert latest(out) == "0001.zarr"
    write(source, 92)
    asked: list[Any] = []

    def accept(answer: bool) -> RefreshResult:
        def hook(comparison: Any) -> bool:
            asked.append(comparison)
            return answer

        return refresh(source, Folder.at(out), MODEL, RunOptions(max_iter=3), accept=hook)

    report = (out / "report.html").read_text()
    refused = accept(False)
    assert refused.describe()["done"] == "ingested, fitted, not accepted"
    assert (latest(out), (out / "report.html").read_text()) == ("0001.zarr", report)
    assert asked[0]["rows"] == {"before": 100, "after": 92}
    assert asked[0]["alerts"][0] == "8 % of the rows went: 100 before, 92 now."

    def fails(comparison: Any) -> bool:
        raise KeyError("speed")

    with pytest.raises(RunError, match=r"accept.*0002\.zarr, raised KeyError: 'speed'"):
        refresh(source, Folder.at(out), MODEL, RunOptions(max_iter=3), accept=fails)
    assert latest(out) == "0001.zarr"
    assert accept(True).entry == History(out).entries()[-1]
    assert latest(out) == "0002.zarr"
    write(source, 50)
    assert again(source, out, {"min_rows": 0.0}, max_iter=3).due.action == "fit"


@pytest.mark.thorough
def test_rows_are_known_where_no_posterior_of_the_history_can_be_read(tmp_path: Path) -> None:
    """The bound on them holds, and the hook is asked."""
    source, out = write(tmp_path / "y.csv", 100), tmp_path / "out"
    again(source, out, max_iter=3)
    delete(out / "0001.zarr")
    write(source, 50)
    with pytest.raises(InputError, match="rows of the source = 50: expected >= 90"):
        again(source, out, max_iter=3)
    write(source, 95)
    asked: list[Any] = []

    def accept(comparison: Any) -> bool:
        asked.append(comparison)
        return True

    found = refresh(source, Folder.at(out), MODEL, RunOptions(max_iter=3), accept=accept)
    assert found.due.action == "fit"
    assert asked[0]["rows"] == {"before": 100, "after": 95}
    assert latest(out) == "0002.zarr"


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a function that takes what has no alerts; its module is in a folder of the path."""
    (tmp_path / "cohort_checks.py").write_text(
        "def calm(found):\n    return not found['alerts']\n\nlimit = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "cohort_checks:calm"


@pytest.mark.thorough
def test_a_hook_is_named_by_its_path(hook: str, tmp_path: Path) -> None:
    """In the rule, as the form and the command have it."""
    source, out = write(tmp_path / "y.csv", 100), tmp_path / "out"
    again(source, out, {"accept": hook}, max_iter=3)
    write(source, 92)
    refused = again(source, out, {"accept": hook}, max_iter=3)
    assert refused.describe()["done"] == "ingested, fitted, not accepted"
    assert latest(out) == "0001.zarr"
    taken = again(source, out, {"accept": hook, "drift_rows": 0.2, "drift_loadings": 1}, max_iter=3)
    assert taken.accepted
    assert latest(out) == "0002.zarr"


@pytest.mark.thorough
def test_a_hook_of_the_command(hook: str, tmp_path: Path) -> None:
    source, out = write(tmp_path / "y.csv", 100), tmp_path / "out"
    command = ["refresh", str(source), "--out", str(out), "--set", "n_factors=1", "--max-iter", "3", "--json"]
    command += ["--accept", hook]
    assert json.loads(CliRunner().invoke(app, command).stdout)["done"] == "ingested, fitted"
    write(source, 92)
    assert json.loads(CliRunner().invoke(app, command).stdout)["done"] == "ingested, fitted, not accepted"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("cohort_checks.calm", "accept = cohort_checks.calm: expected package.module:function"),
        ("os.path:exists; 1", "expected package.module:function"),
        ("no_such_package:f", "expected a function that can be imported .ModuleNotFoundError"),
        ("cohort_checks:gone", "expected a function that can be imported .AttributeError"),
        ("cohort_checks:limit", "expected a function, not a int"),
    ],
)
def test_a_hook_that_is_none_is_refused_first(hook: str, path: str, said: str, tmp_path: Path) -> None:
    source, out = write(tmp_path / "y.csv", 30), tmp_path / "out"
    with pytest.raises(InputError, match=said):
        again(source, out, {"accept": path}, max_iter=3)
    assert not (out / "dataset.zarr").exists()


def test_two_hooks_are_refused(hook: str, tmp_path: Path) -> None:
    source, rule = write(tmp_path / "y.csv", 30), RefreshOptions(accept=hook)
    with pytest.raises(InputError, match="rule.accept"):
        refresh(source, Folder.at(tmp_path / "out"), MODEL, RunOptions(), rule, accept=lambda _: True)


def test_two_refreshes_of_a_folder_are_kept_apart(tmp_path: Path) -> None:
    source, out = write(tmp_path / "y.csv", 60), tmp_path / "out"
    with History(out).locked(), pytest.raises(InputError, match="no other process"):
        again(source, out)
    assert not out.exists()
    with pytest.raises(InputError, match="nowhere"):
        again(tmp_path / "nowhere.csv", out)
    assert not out.exists()
    out.mkdir()
    (out / "0001.json").write_text("{")
    with pytest.raises(InputError, match="0001.json"):
        again(source, out)


@pytest.mark.thorough
def test_factors_are_matched_with_sign_and_share(tmp_path: Path) -> None:
    source, out = write(tmp_path / "y.csv", 100), tmp_path / "out"
    path = again(source, out).folder.posterior
    before, after = factorflow.open_posterior(path).load(), factorflow.open_posterior(path).load()
    loadings = after.tree["variational"]["loadings_y"]
    loadings.values[:, 0] *= -1.0
    found = compare_factors(before, after)
    assert found[0]["correlation"] == pytest.approx(-1.0)
    assert sum(row["share"] for row in found) == pytest.approx(1.0, abs=1e-4)
    assert alerts({"factors": found}, RefreshOptions()) == [f"{before.factors[0]} has turned its sign."]


def moments(mean: float, observed: int, features: list[str]) -> dict[str, Any]:
    ones = np.ones(len(features))
    return {
        "n_rows": 10,
        "n_observed": observed * ones,
        "mean": mean * ones,
        "variance": 4.0 * ones,
        "feature": np.array(features),
    }


def test_data_are_compared_by_name() -> None:
    found = compare_data({"y": moments(0.0, 10, ["a", "b"])}, {"y": moments(3.0, 8, ["b", "c"])})[0]
    assert (found["shift"], found["feature"]) == (1.5, "b")
    assert (found["missing_before"], found["missing_after"]) == (0.0, 0.2)
    said = alerts({"data": [found]}, RefreshOptions())
    missing = "20 % of the entries of y are missing, 0 % before."
    assert said == [missing, "The mean of b of y moved by 1.5 standard deviations."]
    assert not alerts({"data": [found]}, RefreshOptions(drift_means=1.5, drift_missing=0.2))
    rows = {"rows": {"before": 100, "after": 97}}
    assert alerts(rows, RefreshOptions()) == ["3 % of the rows went: 100 before, 97 now."]
    assert not alerts(rows, RefreshOptions(drift_rows=0.03))
    assert not alerts({"rows": {"before": 100, "after": 100}}, RefreshOptions())
    lost = [{"view": "y", "before": -1.0, "after": -1.2, "change": -0.2}]
    assert alerts({"scores": lost}, RefreshOptions()) == [
        "The held-out log-likelihood of y fell by 0.2 an entry."
    ]


@pytest.mark.parametrize(
    ("keep", "left"), [(1, [3, 6]), (2, [3, 5, 6]), (4, [3, 4, 5, 6]), (9, list(range(1, 7)))]
)
def test_the_last_posteriors_and_the_last_fit_stay(tmp_path: Path, keep: int, left: list[int]) -> None:
    """Of two fits, of which the second was projected on three times."""
    kinds, history = ["fit", "projection", "fit", "projection", "projection", "projection"], History(tmp_path)
    for number, kind in enumerate(kinds, start=1):
        entry = Entry(number, kind, "2026-01-01", 10, "", "")  # type: ignore[arg-type]
        (tmp_path / entry.name).mkdir()
        (tmp_path / entry.name / "zarr.json").write_text("{}")
        (tmp_path / f"{number:04d}.npz").write_bytes(b"")
        (tmp_path / f"{number:04d}.json").write_text(json.dumps(asdict(entry)))
    (tmp_path / "notes.npz").write_bytes(b"of somebody else")
    removed = history.prune(keep)
    assert removed == [f"{n:04d}.zarr" for n in range(1, 7) if n not in left]
    assert [entry.number for entry in history.entries()] == left
    for ending in ("zarr", "npz", "json"):
        assert sorted(path.stem for path in tmp_path.glob(f"0*.{ending}")) == [f"{n:04d}" for n in left]
    assert (tmp_path / "notes.npz").exists()
    assert history.next_name() == "0007.zarr"
    assert history.prune(keep) == []


@pytest.mark.thorough
def test_summary_and_report_that_are_not_whole_are_written_anew(tmp_path: Path) -> None:
    """Cut off, changed, deleted, or with no word of what they are of; where nothing is to be done, too."""
    source, out = write(tmp_path / "y.csv", 60), tmp_path / "out"
    again(source, out, max_iter=3)
    files = {name: (out / name).read_bytes() for name in ("summary.json", "report.html")}
    written = (out / "written.json").read_bytes()
    for name, content in files.items():
        for damage in (content[: len(content) // 2], content.replace(b"0", b"1"), b"", None):
            (out / name).unlink() if damage is None else (out / name).write_bytes(damage)
            assert again(source, out, max_iter=3).describe()["done"] == "nothing to do"
            assert (out / name).read_bytes() == content
    (out / "written.json").write_text("{")
    again(source, out, max_iter=3)
    assert (out / "written.json").read_bytes() == written
    before = [(out / name).stat().st_mtime_ns for name in files]
    again(source, out, max_iter=3)
    assert before == [(out / name).stat().st_mtime_ns for name in files]  # what is whole is left alone


def by_command(posterior: Path) -> None:
    assert CliRunner().invoke(app, ["resume", str(posterior)]).exit_code == 0


@pytest.mark.thorough
@pytest.mark.parametrize("resume", [by_command, factorflow.resume])
def test_resume_repairs_summary_and_report(tmp_path: Path, resume: Any) -> None:
    """Of a complete run, whose posterior a flow summarised; where no flow did, it writes none."""
    source, folder = write(tmp_path / "y.csv", 60), Folder.at(tmp_path / "out")
    dataset, _ = pipeline.ingest(source, folder)
    pipeline.fit(dataset, folder, MODEL, RunOptions(max_iter=3))
    summary, report = (tmp_path / "out/summary.json"), (tmp_path / "out/report.html")
    resume(folder.posterior)
    assert not summary.exists()
    assert not report.exists()
    pipeline.summarise(folder)
    content = summary.read_bytes()
    report.write_text("<ht")  # killed in writing the first report
    for damaged in (content, content[:9]):
        summary.write_bytes(damaged)
        resume(folder.posterior)
        assert summary.read_bytes() == content
        assert report.read_text() == folder.name
        report.unlink()


@pytest.mark.thorough
def test_a_source_that_is_refused_leaves_the_dataset_of_the_posterior(tmp_path: Path) -> None:
    """Whose rows are read where they are: anomalies, predictions; and the source is looked at again."""
    source, out = write(tmp_path / "y.csv", 60), tmp_path / "out"
    again(source, out, max_iter=3)
    before = factorflow.open_dataset(out / "dataset.zarr").fingerprint
    record = (out / "source.json").read_bytes()
    write(source, 40)
    for _ in range(2):
        with pytest.raises(InputError, match=r"rows of the source = 40: expected >= 54"):
            again(source, out, max_iter=3)
    assert factorflow.open_dataset(out / "dataset.zarr").fingerprint == before
    assert (out / "source.json").read_bytes() == record
    assert not list(out.glob("dataset.zarr.*"))
    write(source, 60)
    assert again(source, out, max_iter=3).describe()["done"] == "nothing to do"
    write(source, 70)
    assert "new rows of the source were appended" in again(source, out, max_iter=3).describe()["ingest"]


def test_a_dataset_that_cannot_be_opened_is_made_anew(tmp_path: Path) -> None:
    """It is made of the source; what is not of a refresh is left alone."""
    source, out = write(tmp_path / "y.csv", 60), tmp_path / "out"
    again(source, out, max_iter=3)
    before = factorflow.open_dataset(out / "dataset.zarr").fingerprint
    for damaged in ("{", None):
        root = out / "dataset.zarr/zarr.json"
        root.unlink() if damaged is None else root.write_text(damaged)
        found = again(source, out, max_iter=3).describe()
        assert (found["done"], factorflow.open_dataset(out / "dataset.zarr").fingerprint) == (
            "ingested",
            before,
        )
        assert found["ingest"] == "The source was ingested anew, 60 rows: its dataset could not be opened."
    (out / "source.json").write_text("[1]")
    assert again(source, out, max_iter=3).due.action == "nothing"
    (out / "source.json").unlink()
    (out / "dataset.zarr/zarr.json").write_text("{")
    with pytest.raises(InputError, match="expected an output of the same kind to overwrite"):
        again(source, out, max_iter=3)


def test_results_within_their_source_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "y.csv", 30)
    for out in (tmp_path, tmp_path / "out"):
        with pytest.raises(InputError, match="out = .*: expected a folder outside of the source"):
            again(tmp_path, out)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="It is a pipe or a device"):
        again(tmp_path / "pipe", tmp_path / "out")


@pytest.mark.parametrize(
    "changes",
    [{"number": "one"}, {"number": 2}, {"n_rows": 0}, {"kind": "guess"}, {"made": "noon"}, {"new": 1}],
)
def test_records_with_values_that_cannot_be_are_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    entry = asdict(Entry(1, "fit", "2026-01-01T00:00:00+00:00", 10, "f", ""))
    (tmp_path / "0001.json").write_text(json.dumps(entry))
    assert len(History(tmp_path).entries()) == 1
    (tmp_path / "0001.json").write_text(json.dumps(entry | changes))
    with pytest.raises(InputError, match=r"0001\.json: expected the record of a posterior"):
        History(tmp_path).entries()


@pytest.mark.thorough
def test_a_dataset_that_lost_rows_is_refused(tmp_path: Path) -> None:
    """Where the source is a dataset, which is used where it is."""
    source, out = tmp_path / "d.zarr", tmp_path / "out"
    for rows in (60, 40):
        factorflow.write_dataset(source, write(tmp_path / "y.csv", rows), overwrite=True)
        if rows == 60:
            assert again(source, out, max_iter=3).due.action == "fit"
    with pytest.raises(InputError, match=r"rows of the source = 40: expected >= 54"):
        again(source, out, max_iter=3)
    assert again(source, out, {"min_rows": 0.5}, max_iter=3).due.action == "fit"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*not among the levels of the fit")  # a warm start keeps its levels
def test_a_changed_covariate_is_changed_data(tmp_path: Path) -> None:
    """Columns that the model is given, after a fit and after a projection; no other column."""
    source, obs, out = tmp_path / "y.csv", tmp_path / "obs.csv", tmp_path / "out"
    model = {**MODEL, "covariates": "~ age + sex"}

    def run(rows: int, age: int = 0, sex: str = "f", site: int = 0) -> str:
        write(source, rows)
        samples = [f"s{i},{(i * 7 + age) % 50},{'m' if i % 3 else sex},{i % 4 + site}" for i in range(rows)]
        obs.write_text("\n".join(["sample,age,sex,site", *samples]) + "\n")
        options = {"rule": RefreshOptions(refit_growth=0.5), "source_options": SourceOptions(obs=str(obs))}
        done = refresh(source, Folder.at(out), model, RunOptions(max_iter=3), **options)  # type: ignore[arg-type]
        return done.due.action

    assert [run(60), run(60, site=1)] == ["fit", "nothing"]
    assert [run(60, age=1), run(60, 1, "w"), run(60, 1, "w")] == ["fit", "fit", "nothing"]
    assert [run(70, 1, "w"), run(70, 2, "w"), run(70, 2, "w")] == ["project", "project", "nothing"]
    assert run(70, 2, "4") == "project"  # of a level that the fit does not know
    head, *lines = obs.read_text().splitlines()
    lines = [re.sub(r",(\d)\d*,", r",decade \1,", line) for line in lines]
    obs.write_text("\n".join([head, *lines]) + "\n")
    rule, reading = RefreshOptions(refit_growth=0.5), SourceOptions(obs=str(obs))
    found = refresh(source, Folder.at(out), model, RunOptions(max_iter=3), rule, source_options=reading)
    assert found.due == Due("fit", "Other features than those of the last fit: covariates.")
    assert run(70, 2, "4") == "fit"
    assert run(72, 2, "4") == "project"
    assert factorflow.open_posterior(out / latest(out)).run["status"] == "projected"
