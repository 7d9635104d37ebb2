"""The flows in this process, on a Prefect server of the tests' own, with the local executor."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest

from factorflow.errors import InputError

pytestmark = pytest.mark.usefixtures("prefect_api")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two views of 60 samples with 2 factors, as one file."""
    return write_source(tmp_path / "source.npz", seed=0)


def write_source(path: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((60, 2))
    views = {
        f"Y_{name}": scores @ rng.standard_normal((2, d)) + rng.standard_normal((60, d))
        for name, d in (("a", 12), ("b", 8))
    }
    np.savez(path, view_names=["a", "b"], likelihoods=["gaussian", "gaussian"], **views)
    return path


def options(**more: Any) -> Any:
    from flows.parameters import RunOptions

    return RunOptions(executor="local", **{"max_iter": 20, **more})


def model(n_factors: int = 2) -> Any:
    from factorflow.models import configure

    return configure({"model": "sparse_gfa", "n_factors": n_factors})


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What flows log as warnings; the logger of a run hands nothing on to others."""
    said: list[str] = []
    logger = SimpleNamespace(warning=lambda text, *values: said.append(text % values))
    monkeypatch.setattr("flows.tasks.get_run_logger", lambda: logger)
    return said


def artifacts(api_url: str) -> dict[str, Any]:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        found = client.read_artifacts()
    named = [artifact for artifact in found if artifact.key]
    return {artifact.key: artifact for artifact in sorted(named, key=lambda artifact: artifact.created)}


@pytest.mark.thorough
def test_fit_writes_everything_once(
    source: Path, tmp_path: Path, prefect_api: str, warned: list[str]
) -> None:
    from flows.fit import fit

    out = tmp_path / "out"
    outcome = fit(str(source), str(out), model=model(), run=options(max_iter=2))
    assert outcome["done"] == "ingested, fitted"
    assert "<html" in (out / "report.html").read_text().lower()
    assert json.loads((out / "summary.json").read_text())["factors"]
    shown = artifacts(prefect_api)
    named = f"-source-{tmp_path.name}-out".replace("_", "-").lower()
    assert {f"{what}{named}" for what in ("progress", "objective", "factors", "report")} <= set(shown)
    report = shown[f"report{named}"].data
    assert "variance explained (%)" in report
    assert report.count("](data:image/png;base64,") == 2
    assert str(out / "report.html") in report.replace("\\", "")

    warned.clear()
    summary, modified = (out / "summary.json").read_bytes(), (out / "report.html").stat().st_mtime_ns
    (out / "summary.json").write_bytes(summary[:20])
    again = fit(str(source), str(out), model=model(), run=options(max_iter=2))
    assert again["done"] == "nothing to do"
    assert (out / "summary.json").read_bytes() == summary
    assert (out / "report.html").stat().st_mtime_ns == modified
    assert [finding["kind"] for finding in again["findings"]] == ["budget"]
    assert warned[0].startswith("The run was ended by max_iter after 2 iterations")
    assert "The run was ended by max_iter after 2 iterations" in report
    with pytest.raises(InputError, match="out"):
        fit(str(source), str(out), model=model(), run=options(seed=1, max_iter=2))


@pytest.mark.slow
def test_refresh_does_only_what_is_needed(source: Path, tmp_path: Path) -> None:
    from flows.refresh import refresh

    out = tmp_path / "out"
    done = []
    for seed in (0, 0, 1):
        write_source(source, seed)
        done.append(refresh(str(source), str(out), model=model(), run=options())["done"])
    done.append(refresh(str(source), str(out), model=model(3), run=options())["done"])
    assert done == ["ingested, fitted", "nothing to do", "ingested, fitted", "fitted"]


def events(api_url: str, folder: Path) -> list[dict[str, Any]]:
    """Return what flows told of a folder, oldest first, once it has arrived."""
    asked = {"filter": {"event": {"prefix": ["factorflow.refresh."]}, "order": "ASC"}, "limit": 50}
    request = Request(
        f"{api_url}/events/filter", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=30) as answer:
        found = json.loads(answer.read())["events"]
    return [event for event in found if event["resource"]["factorflow.folder"] == str(folder)]


@pytest.mark.thorough
def test_refreshes_of_a_folder_wait_for_each_other(tmp_path: Path) -> None:
    """Those of another folder do not."""
    from prefect.concurrency.sync import concurrency

    from factorflow.workflow.folder import Folder
    from flows.refresh import _exclusive_folder, limit_of

    here, there = Folder.at(tmp_path / "a"), Folder.at(tmp_path / "b")
    with (
        _exclusive_folder(here),
        _exclusive_folder(there),
        pytest.raises(TimeoutError),
        concurrency(limit_of(here), timeout_seconds=1, strict=True),
    ):
        pass
    with _exclusive_folder(here):
        pass


@pytest.mark.thorough
def test_refresh_says_what_changed(
    source: Path, tmp_path: Path, prefect_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An artifact to read, and events for automations: fitted, unchanged, drifted."""
    from flows.refresh import refresh

    def publish(folder: Any, label: Any) -> str:  # reports take longer than all the rest
        folder.report.write_text(label.run)
        folder.record_output(folder.report)
        return str(folder.report)

    monkeypatch.setattr("flows.tasks.publish", publish)
    out = tmp_path / "out"
    for seed in (0, 0, 1):
        write_source(source, seed)
        outcome = refresh(str(source), str(out), model=model(), run=options())
    assert outcome["alerts"]
    key = f"changes-source-{tmp_path.name}-out".replace("_", "-").lower()
    page = artifacts(prefect_api)[key].data
    assert "## Factors beside those of 0001.zarr" in page
    assert all(alert in page for alert in outcome["alerts"])
    limit = time.monotonic() + 60
    while len(found := events(prefect_api, out)) < 3 and time.monotonic() < limit:
        time.sleep(0.5)
    told = [event["event"].rpartition(".")[2] for event in found]
    assert sorted(told) == ["drifted", "fitted", "unchanged"]
    drifted = next(event for event in found if event["event"].endswith("drifted"))
    assert drifted["payload"]["alerts"] == outcome["alerts"]


@pytest.mark.thorough
def test_select_ranks_by_held_out_score(
    source: Path, tmp_path: Path, prefect_api: str, warned: list[str]
) -> None:
    from flows.select import select

    out = tmp_path / "out"
    found = select(
        str(source),
        str(out),
        {"n_factors": [1, 2]},
        model=model(),
        seeds=[0, 1],
        run=options(holdout=0.2, max_iter=5),
    )
    assert found["best"]["n_factors"] == 2
    assert [row["n_seeds"] for row in found["table"]] == [2, 2]
    assert len(list((out / "trials").glob("*.zarr"))) == 4
    assert any(key.startswith("selection-source-") for key in artifacts(prefect_api))
    assert any(key.startswith("selection-figure-source-") for key in artifacts(prefect_api))
    assert any(key.startswith("report-source-") and key.endswith("-best") for key in artifacts(prefect_api))
    assert [finding["kind"] for finding in found["findings"]] == ["budget"]
    assert warned[-1].startswith(found["findings"][0]["message"])
    assert found["posterior"] == str(out / "best.zarr")
    assert (out / "best.zarr" / "zarr.json").exists()


@pytest.mark.slow
def test_select_runs_trials_at_the_same_time(source: Path, tmp_path: Path, prefect_api: str) -> None:
    """With the results of one after the other."""
    from flows.select import select

    found = []
    for number, parallel in enumerate((1, 2)):
        run = options(holdout=0.2, max_iter=5)
        run = run.model_copy(update={"executor": "dask", "workers": 1} if parallel == 2 else {})
        out, grid = str(tmp_path / str(number)), {"n_factors": [1, 2]}
        rest = {"refit": False, "parallel": parallel}
        found.append(select(str(source), out, grid, model=model(), run=run, **rest))
    numbers = [[row["log_likelihood"] for row in one["table"]] for one in found]
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize(
    ("grid", "holdout", "said"),
    [
        ({"n_factors": [2, 0]}, 0.1, "n_factors = 0: expected a number >= 1"),
        ({"n_factor": [2]}, 0.1, "Did you mean n_factors"),
        ({"n_factors": [2]}, 0.0, "run.holdout = 0.0: expected a number > 0"),
    ],
)
def test_a_selection_is_refused_before_its_source_is_read(
    tmp_path: Path, grid: dict[str, list[int]], holdout: float, said: str
) -> None:
    from flows.select import select

    with pytest.raises(InputError, match=said):
        select("nowhere.csv", str(tmp_path / "out"), grid, model=model(), run=options(holdout=holdout))


@pytest.mark.thorough
def test_a_trial_that_fails_ends_the_others_in_order(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows import select

    begun, ended = threading.Event(), list[int]()

    def run_trial(_: str, trial: Any, *given: Any, on_event: Any) -> Any:
        if trial.varied["n_factors"] == 1:
            assert begun.wait(60)
            raise InputError("n_factors", 1, "more", "Choose more.")
        begun.set()
        try:
            while True:
                on_event(None)
                time.sleep(0.01)
        except KeyboardInterrupt:
            ended.append(trial.varied["n_factors"])
            raise

    @contextmanager
    def shared_cluster(run: Any, parallel: int = 1) -> Iterator[Any]:
        yield run

    monkeypatch.setattr(select, "run_trial", run_trial)
    monkeypatch.setattr(select, "shared_cluster", shared_cluster)
    grid, run = {"n_factors": [1, 2, 3]}, options(holdout=0.1)
    with pytest.raises(InputError, match="Choose more"):
        select.select(str(source), str(tmp_path / "out"), grid, model=model(), run=run, parallel=2)
    assert ended[0] == 2


def test_bad_input_is_not_retried(source: Path, tmp_path: Path) -> None:
    from flows.fit import fit

    with pytest.raises(InputError, match="n_factors"):
        fit(str(source), str(tmp_path / "out"), model=model(1000), run=options())
    assert not (tmp_path / "out" / "posterior.zarr").exists()


def test_the_form_offers_the_models_with_bounds() -> None:
    from factorflow.models.registry import registered_models
    from flows.fit import fit

    schema = fit.parameters.model_dump()
    choice = schema["properties"]["model"]
    assert "oneOf" not in choice  # Prefect's form would show JSON
    assert choice["anyOf"][-1] == {"title": "as JSON", "type": "object"}
    names = [part["$ref"].rpartition("/")[2] for part in choice["anyOf"][:-1]]
    assert names[0] == "SparseGFA"
    assert sorted(names) == sorted(kind.__name__ for kind in registered_models().values())
    for name in ("source", "out", "model", "overwrite"):
        assert schema["properties"][name]["description"], name
    assert "(number >= 0 and < 1)" in schema["definitions"]["SparseGFA"]["properties"]["drop"]["description"]
    taken = set(schema["definitions"]["SourceOptions"]["properties"])
    assert {"obs", "groups", "sequences", "index_col", "layer", "likelihoods", "formula"} <= taken
    chosen = schema["definitions"]["SparseGFA"]
    assert chosen["additionalProperties"] is False
    assert chosen["properties"]["n_factors"]["description"]


def test_every_field_of_the_forms_says_what_it_is() -> None:
    """What Prefect draws: a type for each field (else it shows JSON), its bounds, what it is for."""
    from examples.reproduce.flow import reproduce
    from flows.fit import fit
    from flows.refresh import refresh
    from flows.select import select

    bounds = {"minimum": ">= ", "maximum": "<= ", "exclusiveMinimum": "> ", "exclusiveMaximum": "< "}
    for flow in (fit, refresh, select, reproduce):
        schema = flow.parameters.model_dump()
        assert '"oneOf"' not in json.dumps(schema)
        fields = {f"{flow.name}.{name}": field for name, field in schema["properties"].items()}
        for title, definition in schema["definitions"].items():
            assert definition["description"], title
            chosen = {name: field for name, field in definition["properties"].items() if "const" not in field}
            fields |= {f"{title}.{name}": field for name, field in chosen.items()}
        for name, field in fields.items():
            assert field.get("description"), name
            assert {"type", "anyOf", "$ref", "enum"} & set(field), name
            for part in (field, *field.get("anyOf", ())):
                for bound in set(bounds) & set(part):
                    assert f"{bounds[bound]}{part[bound]}" in field["description"], name


@pytest.mark.thorough
def test_a_flow_takes_what_ingest_takes(tmp_path: Path) -> None:
    from factorflow import open_dataset
    from flows.parameters import SourceOptions
    from flows.refresh import refresh

    rng = np.random.default_rng(0)
    table = tmp_path / "rna.csv"
    lines = ["id," + ",".join(f"g{i}" for i in range(5))]
    lines += [f"s{i}," + ",".join(f"{v:.3f}" for v in rng.standard_normal(5)) for i in range(30)]
    table.write_text("\n".join(lines) + "\n")
    obs = tmp_path / "obs.csv"
    obs.write_text("id,sex\n" + "".join(f"s{i},{'ab'[i % 2]}\n" for i in range(30)))
    given = SourceOptions(obs=str(obs), groups="sex", index_col="id", likelihoods={"rna": "gaussian"})
    out = tmp_path / "out"
    arguments = {"model": model(1), "run": options(), "source_options": given}
    assert refresh(str(table), str(out), **arguments)["done"] == "ingested, fitted"
    assert open_dataset(out / "dataset.zarr").meta().groups == ("a", "b")
    assert refresh(str(table), str(out), **arguments)["done"] == "nothing to do"
    obs.write_text(obs.read_text().replace("s0,a", "s0,b"))
    assert refresh(str(table), str(out), **arguments)["done"] == "ingested, fitted"
    with pytest.raises(InputError, match="since .* is a dataset already"):
        refresh(str(out / "dataset.zarr"), str(tmp_path / "other"), **arguments)


def test_a_dashboard_is_said_to_be_gone(prefect_api: str) -> None:
    from prefect import flow

    from factorflow.engine.events import RunStarted
    from flows.artifacts import Label, RunWatcher

    label = Label.of("study.csv", "/runs/A study/second")
    assert label.key("report") == "report-study-a-study-second"

    @flow
    def a_run() -> None:
        watcher = RunWatcher(label)
        watcher(RunStarted("run", 10, 1, 1, "http://127.0.0.1:1/status", ("sparse",), 5))
        assert "(running)" in artifacts(prefect_api)[label.key("dask-dashboard")].data
        watcher.close()
        watcher.close()

    a_run()
    over = artifacts(prefect_api)[label.key("dask-dashboard")]
    assert "(over)" in over.data
    assert "The run is over" in over.description


def test_the_form_offers_a_cluster() -> None:
    """Each of its settings is described; a run takes what was given."""
    from flows.fit import fit
    from flows.parameters import RunOptions

    schema = fit.parameters.model_dump()
    run = schema["definitions"]["RunOptions"]["properties"]["cluster"]
    names = {part["$ref"].rpartition("/")[2] for part in run["anyOf"] if "$ref" in part}
    assert names == {"ClusterSetting"}
    settings = schema["definitions"]["ClusterSetting"]["properties"]
    assert {"class", "kwargs", "adapt", "address"} <= set(settings)
    assert all(setting.get("description") for setting in settings.values())
    cluster = {"class": "distributed.LocalCluster", "kwargs": {"n_workers": 2}}
    chosen = RunOptions.model_validate({"cluster": cluster, "executor": "dask"})
    assert chosen.cluster is not None
    assert chosen.cluster.class_name == "distributed.LocalCluster"
