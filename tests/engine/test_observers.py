"""Who looks on at a run: the log of JSON lines, the endpoint for Prometheus, Dask's report."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import bayesian_pca
import pytest
from distributed import LocalCluster
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import factorflow
from factorflow.engine.events import IterationDone
from factorflow.engine.observers import _name, _Writer
from factorflow.engine.source import READING
from factorflow.errors import InputError, UnusedWarning


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    case = bayesian_pca.BayesianPCA.examples()["default"]
    path = tmp_path_factory.mktemp("data") / "data.zarr"
    return factorflow.simulate(case.simulator, path, n_samples=97, block_rows=32, seed=7, **case.data)


@pytest.fixture
def config() -> Any:
    return bayesian_pca.BayesianPCA.examples()["default"].config


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.thorough
def test_a_line_of_json_for_each_event(data: Any, config: Any, tmp_path: Path) -> None:
    """Each is on the disk when the user hears of the event; what a second run says is appended."""
    log, seen = tmp_path / "log.jsonl", []

    def watch(event: Any) -> None:
        seen.append(event)
        assert len(lines_of(log)) == len(seen)

    options = {"log_json": log, "out": tmp_path / "p.zarr", "checkpoint_every": 2}
    factorflow.fit(data, config, on_event=watch, **options)
    lines = lines_of(log)
    assert [line["event"] for line in lines] == [_name(event) for event in seen]
    assert {(line["run"], line["model"]) for line in lines} == {(seen[0].run, "bayesian_pca")}
    told = [line for line in lines if line["event"] == "iteration_done"]
    expected = [event for event in seen if isinstance(event, IterationDone)]
    for line, event in zip(told, expected, strict=True):
        for name in ("stage", "iteration", "objective", "seconds"):
            assert line[name] == getattr(event, name)
    assert {"run_started", "stage_entered", "checkpoint_written", "run_finished"} <= {
        x["event"] for x in lines
    }
    factorflow.fit(data, config, log_json=log)
    assert len(lines_of(log)) > len(lines)


def test_a_run_that_fails_says_so_in_its_log(data: Any, config: Any, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"

    def fails(event: Any) -> None:
        if isinstance(event, IterationDone):
            raise ZeroDivisionError("by the listener")

    with pytest.raises(Exception, match="by the listener"):
        factorflow.fit(data, config, log_json=log, on_event=fails)
    last = lines_of(log)[-1]
    assert last["event"] == "run_failed"
    assert "by the listener" in last["error"]


def test_a_full_disk_ends_the_log_and_not_the_run(data: Any, config: Any) -> None:
    with pytest.warns(RuntimeWarning, match="the log in /dev/full ends here"):
        logged = factorflow.fit(data, config, log_json="/dev/full", progress=False)
    assert logged.run["reason"]


def test_numbers_that_json_lacks(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with path.open("w") as file:
        _Writer(file, str(path), {}).tell(
            IterationDone("fit", 1, float("nan"), None, 0.5, {"a": (float("inf"),)})
        )
    line = lines_of(path)[0]
    assert (line["objective"], line["gain"], line["info"]) == (None, None, {"a": [None]})


@pytest.mark.thorough
def test_prometheus_fetches_the_numbers(data: Any, config: Any, tmp_path: Path) -> None:
    """Over HTTP, in its own format, while the run lasts, and no longer."""
    port, scraped = free_port(), []

    def watch(event: Any) -> None:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        found = {sample.name: sample for family in families for sample in family.samples}
        scraped.append((event, found))

    options = {"metrics": port, "out": tmp_path / "p.zarr", "checkpoint_every": 2}
    factorflow.fit(data, config, on_event=watch, **options)
    iterations = [(event, found) for event, found in scraped if isinstance(event, IterationDone)]
    for event, found in iterations:
        assert found["factorflow_iterations"].value == event.iteration
        assert found["factorflow_objective"].value == event.objective
        assert found["factorflow_stage"].labels["stage"] == event.stage
        assert found["factorflow_iterations"].labels == {"run": scraped[0][0].run, "model": "bayesian_pca"}
    (before, _), (after, found) = iterations[-2:]
    assert found["factorflow_iteration_seconds"].value == pytest.approx(after.seconds - before.seconds)
    last = scraped[-1][1]
    assert (last["factorflow_finished"].value, last["factorflow_rows"].value) == (1, 97)
    assert last["factorflow_checkpoint_iteration"].value >= 2
    with pytest.raises(URLError):
        urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)


def read_and_kept(text: str) -> dict[str, float]:
    """Return what is said of reading, without the names' beginning."""
    samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
    found = {s.name.removeprefix("factorflow_"): s.value for s in samples}
    return {name: value for name, value in found.items() if name.startswith(("read_", "kept_"))}


def test_what_was_read_is_counted_once_and_kept(config: Any, tmp_path: Path) -> None:
    """97 rows in blocks of 32, 12 columns of 4 bytes; another run of the same data finds them in memory."""
    case = bayesian_pca.BayesianPCA.examples()["default"]
    path = tmp_path / "data.zarr"
    data = factorflow.simulate(case.simulator, path, n_samples=97, block_rows=32, seed=8, **case.data)
    registry = CollectorRegistry()
    registry.register(READING)

    def told() -> dict[str, float]:
        return read_and_kept(generate_latest(registry).decode())

    before = told()
    for _ in range(2):
        factorflow.fit(data, config, progress=False)
        after = told()
        assert after["read_blocks_total"] - before["read_blocks_total"] == 4
        assert after["read_bytes_total"] - before["read_bytes_total"] == 97 * 12 * 4
        assert (after["kept_blocks"], after["kept_bytes"]) == (4, 97 * 12 * 4)


@pytest.mark.thorough
def test_workers_serve_what_they_read(data: Any, config: Any) -> None:
    with LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=":0", worker_dashboard_address=":0"
    ) as cluster:
        factorflow.fit(data, config, executor=cluster.scheduler_address, progress=False)
        (worker,) = cluster.scheduler_info["workers"].values()
        with urlopen(f"http://127.0.0.1:{worker['services']['dashboard']}/metrics", timeout=5) as answer:
            found = read_and_kept(answer.read().decode())
    size = 97 * 12 * 4
    assert found == {
        "read_blocks_total": 4,
        "read_bytes_total": size,
        "kept_blocks": 4,
        "kept_bytes": size,
    }


@pytest.mark.thorough
def test_the_report_of_dask(data: Any, config: Any, tmp_path: Path) -> None:
    """A page with its scripts in itself, with the tasks of the run."""
    report = tmp_path / "report.html"
    factorflow.fit(data, config, performance_report=report, executor="dask", workers=1, progress=False)
    text = report.read_text()
    assert "update_samples" in text
    page = re.sub(r"(<script[^>]*>).*?</script>", r"\1", text, flags=re.DOTALL)  # what scripts say is no page
    assert "src=" not in page
    with pytest.warns(UnusedWarning, match="without Dask workers"):
        factorflow.fit(data, config, performance_report=tmp_path / "no.html", progress=False)
    assert not (tmp_path / "no.html").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["log_json", "performance_report"])
def test_files_that_cannot_be_written(name: str, data: Any, config: Any, tmp_path: Path) -> None:
    where = "dask" if name == "performance_report" else "local"
    workers = {"workers": 1} if where == "dask" else {}
    with pytest.raises(InputError, match=name):
        factorflow.fit(
            data, config, executor=where, **workers, **{name: tmp_path / "nowhere" / "f"}, progress=False
        )


def test_ports_that_cannot_be_listened_at(data: Any, config: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="metrics"):
            factorflow.fit(data, config, metrics=taken.getsockname()[1], progress=False)
    with pytest.raises(InputError, match="metrics"):
        factorflow.fit(data, config, metrics="a port")


def test_records_do_not_keep_who_looked_on(data: Any, config: Any, tmp_path: Path) -> None:
    posterior = factorflow.fit(data, config, log_json=tmp_path / "log.jsonl", out=tmp_path / "p.zarr")
    assert "log_json" not in posterior.run
    assert "log.jsonl" not in (tmp_path / "p.zarr" / "zarr.json").read_text()
