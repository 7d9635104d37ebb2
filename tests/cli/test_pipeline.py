"""Fingerprints of sources, plans of selections, findings of the doctor."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow
from factorflow.cli import doctor
from factorflow.engine.executors.worker_info import WorkerInfo
from factorflow.errors import InputError
from factorflow.posterior.findings import Finding
from factorflow.settings import TrialOptions
from factorflow.settings.clusters import ClusterSetting
from factorflow.workflow import pipeline
from factorflow.workflow.folder import Folder
from factorflow.workflow.pipeline import fingerprint
from factorflow.workflow.select import Trial, Verdict, choose, plan, refit, run_trial


def test_fingerprint_follows_content_and_names(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1")
    first = fingerprint(tmp_path)
    assert fingerprint(tmp_path) == first
    (tmp_path / "a.csv").write_text("2")
    second = fingerprint(tmp_path)
    (tmp_path / "a.csv").rename(tmp_path / "b.csv")
    assert len({first, second, fingerprint(tmp_path)}) == 3
    with pytest.raises(InputError, match="nothing"):
        fingerprint(tmp_path / "nothing")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    np.savez(tmp_path / "data.npz", x=np.ones((4, 2)))
    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(InputError, match=r"out = .*results: expected a path that can be written") as caught:
        pipeline.ingest(tmp_path / "data.npz", Folder.at(tmp_path / "results"))
    assert "Read-only file system" in caught.value.remedy


def test_plan_is_every_combination_and_seed() -> None:
    trials = plan(
        {"model": "sparse_gfa"}, {"n_factors": [2, 3], "loadings": ["ard", "horseshoe"]}, seeds=[0, 1]
    )
    assert len(trials) == len({trial.name for trial in trials}) == 8
    assert {tuple(trial.varied.values()) for trial in trials} == {
        (2, "ard"),
        (2, "horseshoe"),
        (3, "ard"),
        (3, "horseshoe"),
    }
    assert all(trial.model["n_factors"] == trial.varied["n_factors"] for trial in trials)


@pytest.mark.parametrize(
    ("grid", "seeds", "named"),
    [
        ({"n_factors": []}, [0], "n_factors"),
        ({"n_factor": [1]}, [0], "n_factor"),
        ({"n_factors": [1]}, [], "seeds"),
        ({"n_factors": [1]}, [0, -1], "seed = -1: expected a number >= 0"),
        ({"n_factors": [1, 0]}, [0], "n_factors = 0: expected a number >= 1"),
    ],
)
def test_plan_refuses(grid: dict[str, list[int]], seeds: list[int], named: str) -> None:
    with pytest.raises(InputError, match=named):
        plan({"model": "sparse_gfa"}, grid, seeds)


def test_choose_takes_the_best_mean() -> None:
    scores = {2: (-1.0, -3.0), 3: (-1.5, -1.7), 4: (-1.8, -1.9)}
    verdicts = [
        Verdict(Trial({"model": "m", "k": k}, {"k": k}, seed), score, f"{k}-{seed}")
        for k, pair in scores.items()
        for seed, score in enumerate(pair)
    ]
    chosen = choose(verdicts)
    assert chosen.best == {"model": "m", "k": 3}
    assert [row["k"] for row in chosen.table] == [3, 4, 2]
    assert chosen.table[0]["log_likelihood"] == pytest.approx(-1.6)
    assert chosen.table[2]["posterior"] == "2-0"
    assert chosen.table[0]["standard_error"] == pytest.approx(0.1)  # 0.2 / sqrt(2) / sqrt(2)
    # Split by split, -1.5 + 1.0 and -1.7 + 3.0: not the difference of two scores with errors of their own.
    assert chosen.table[2]["behind"] == pytest.approx((-0.5 + 1.3) / 2)
    assert chosen.table[2]["behind_error"] == pytest.approx(0.9)
    assert (chosen.table[0]["behind"], chosen.table[0]["behind_error"]) == (0.0, 0.0)
    assert chosen.table[0]["options"] == "k=3"
    alone = choose(verdicts[:1]).table[0]
    assert (alone["standard_error"], alone["behind_error"]) == (None, None)


def test_a_selection_keeps_what_is_to_be_known() -> None:
    """Kinds of all seeds in the table; in full those of the posterior that is handed on."""
    mixing, budget = Finding("mixing", "Not mixed.", "More draws."), Finding("budget", "Ended.", "Go on.")
    said = {(1, 0): (mixing, budget), (1, 1): (budget,), (2, 0): (), (2, 1): (mixing,)}
    verdicts = [
        Verdict(Trial({"k": k}, {"k": k}, seed), -1.0 * k + 0.1 * seed, f"{k}-{seed}", found)
        for (k, seed), found in said.items()
    ]
    chosen = choose(verdicts)
    assert [row["findings"] for row in chosen.table] == ["mixing, budget", "mixing"]
    assert chosen.table[0]["posterior"] == "1-1"
    assert chosen.describe()["findings"] == [{"kind": "budget", "message": "Ended.", "remedy": "Go on."}]


def test_a_selection_starts_one_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that would each start their own are given the address of one; it is closed at the end."""
    from factorflow.engine.executors import launch

    closed: list[bool] = []

    class Cluster:
        address, security = "tcp://127.0.0.1:1", None

        def close(self) -> None:
            closed.append(True)

    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(launch, "open_executor", lambda *given: asked.append(given) or Cluster())
    own = TrialOptions(executor="dask", workers=3, memory_limit="1GB", holdout=0.1)
    with launch.shared_cluster(own) as shared:
        assert shared.cluster == ClusterSetting(address=Cluster.address, workers=3)
        assert (shared.workers, shared.memory_limit) == (None, None)
        assert shared.holdout == 0.1
        assert not closed
    assert asked == [("dask", 3, "1GB")]
    assert closed == [True]
    threads = TrialOptions(executor="threads", workers=2)
    with launch.shared_cluster(threads) as shared:
        assert shared == threads


def test_doctor_names_what_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: "2.18" if name == "zarr" else installed(name))
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr("factorflow.engine.executors.clusters.CONNECT_SECONDS", 1)
    wrong = {check.name: check for check in doctor.examine("tcp://127.0.0.1:9", tmp_path) if not check.ok}
    assert set(wrong) == {"zarr", "prefect server", "cluster"}
    assert "zarr>=3" in wrong["zarr"].remedy
    assert all(check.remedy for check in wrong.values())


def facts(**changed: Any) -> WorkerInfo:
    known = {"host": "h", "job": "", "threads": 1, "memory_limit": 4 * 10**9, "machine_memory": 9 * 10**9}
    return WorkerInfo(**{**known, "pauses_at": 0.8, "keeps_heap": False, "sees": {}, **changed})


@pytest.mark.parametrize(
    ("workers", "wrong", "said"),
    [
        ([{}, {}], None, ""),
        ([{"threads": 2}], None, "more than one on w0"),
        ([{"memory_limit": 0}], None, "9.0 GB"),  # alone on its machine
        ([{"memory_limit": 0}, {}], "worker memory", "2 workers on h"),
        ([{"memory_limit": 0}, {"host": "other"}], None, "4.0 GB"),
        ([{}, {}, {}], "worker memory", "12.0 GB together on h, which has 9.0 GB"),
        ([{"job": "7"}, {"job": "8"}, {"job": "9"}], None, "4.0 GB"),  # each has memory of its own
        (
            [{"job": "7"}, {"job": "8"}, {"job": "8"}, {"job": "8"}],
            "worker memory",
            "in job 8 on h, which has",
        ),
        ([{"keeps_heap": True}], "worker pauses", "w0"),
        ([{"keeps_heap": True, "pauses_at": 0.0}], None, "never"),
    ],
)
def test_doctor_looks_at_workers(workers: list[dict[str, Any]], wrong: str | None, said: str) -> None:
    checks = doctor.memory_checks({f"w{i}": facts(**changed) for i, changed in enumerate(workers)})
    bad = [check for check in checks if not check.ok]
    assert [check.name for check in bad] == ([] if wrong is None else [wrong])
    assert all(check.remedy for check in bad)
    assert said in " ".join(check.found for check in bad or checks)


def test_doctor_names_workers_that_see_something_else() -> None:
    there = {"a": facts(sees={"p": "x"}), "b": facts(sees={"p": ""}), "c": facts(sees={"p": "y"})}
    found = doctor.check_shared_path("dataset", "data.zarr", "p", "x", there)
    assert not found.ok
    assert "on b, c" in found.found
    assert doctor.check_shared_path("dataset", "data.zarr", "p", "x", {"a": there["a"]}).ok
    many = doctor.check_shared_path("dataset", "d", "p", "x", {f"w{i}": facts() for i in range(5)})
    assert many.found.endswith("w0, w1, w2 and 2 more")


@pytest.mark.thorough
def test_doctor_asks_a_cluster(tmp_path: Path) -> None:
    """Workers tell what they have and see; nothing is left in the folder."""
    from factorflow.data import write_dataset
    from factorflow.engine.executors.launch import shared_cluster

    data = write_dataset(tmp_path / "data.zarr", {"x": np.random.default_rng(0).standard_normal((40, 3))})
    own = TrialOptions(executor="dask", workers=1, memory_limit="500MB")
    with shared_cluster(own) as shared:
        checks = {c.name: c for c in doctor.examine(shared.cluster, tmp_path, data.path)}
        assert shared.cluster is not None
        nowhere = doctor.examine(shared.cluster.address, tmp_path, tmp_path / "nowhere")[-1]
    for name in ("cluster", "worker threads", "worker memory", "worker pauses", "results", "dataset"):
        assert checks[name].ok, checks[name]
    assert checks["worker memory"].found == "0.5 GB or more each"
    assert checks["worker pauses"].found == "never"
    assert (nowhere.name, nowhere.ok) == ("dataset", False)
    assert [path.name for path in tmp_path.iterdir()] == ["data.zarr"]


@pytest.mark.thorough
def test_doctor_starts_a_cluster_and_closes_it(tmp_path: Path) -> None:
    """By one setting; threads, limits and pauses are those that runs on it would have."""
    import psutil

    def workers() -> set[int]:
        found = set()
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # one that compiles for an earlier test may end meanwhile
                if "spawn_main" in " ".join(child.cmdline()):
                    found.add(child.pid)
        return found

    before = workers()
    workers_of = {"n_workers": 1, "threads_per_worker": 2, "memory_limit": "600MB"}
    arguments = {**workers_of, "dashboard_address": "127.0.0.1:0"}
    setting = ClusterSetting(**{"class": "distributed.LocalCluster", "kwargs": arguments})
    checks = {c.name: c for c in doctor.examine(setting, tmp_path)}
    assert checks["cluster"].found.startswith("distributed.LocalCluster, tcp://127.0.0.1:")
    assert "cut for 2 worker threads, same versions" in checks["cluster"].found
    assert "more than one on tcp://" in checks["worker threads"].found
    assert checks["worker memory"].found == "0.6 GB or more each"
    assert workers() <= before
    here = doctor.examine("threads", tmp_path)[-1]
    assert (here.ok, here.found) == (True, "threads: this process alone")


def test_the_score_of_a_trial_is_a_mean_over_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all views, whichever has more of them; the best model is fitted to everything."""
    given: list[dict[str, Any]] = []
    scores = pd.DataFrame({"n_entries": [10, 90], "log_likelihood": [-1.0, -2.0]})

    def fit(*args: Any, **options: Any) -> Any:
        given.append(options)
        return SimpleNamespace(holdout_scores=lambda: scores, findings=())

    monkeypatch.setattr("factorflow.api.fit", fit)
    (trial,) = plan({"model": "sparse_gfa"}, {"n_factors": [2]}, seeds=[7])
    verdict = run_trial("d.zarr", trial, tmp_path)
    assert verdict.log_likelihood == pytest.approx(-1.9)
    assert (given[0]["seed"], given[0]["holdout"]) == (7, 0.1)
    found = refit("d.zarr", choose([verdict]), tmp_path / "best.zarr", seed=5)
    assert (given[1]["seed"], given[1]["holdout"]) == (5, 0.0)
    assert found.posterior == str(tmp_path / "best.zarr")


def test_errors_of_a_selection_are_over_seeds() -> None:
    """Behind the best by the seeds that both have."""
    trials = plan({"model": "sparse_gfa"}, {"n_factors": [2, 3]}, seeds=[0, 1, 2, 3])
    score = {2: [-1.0, -2.0, -3.0, -2.0], 3: [-1.5, -2.0, -4.5, -4.0]}
    found = choose([Verdict(t, score[t.varied["n_factors"]][t.seed], "p") for t in trials]).table
    assert [row["n_factors"] for row in found] == [2, 3]
    apart = np.array(score[2]) - np.array(score[3])
    assert found[0]["behind"] == 0.0
    assert found[1]["behind"] == pytest.approx(apart.mean())
    assert found[1]["behind_error"] == pytest.approx(apart.std(ddof=1) / 2.0)
    assert found[1]["standard_deviation"] == pytest.approx(np.std(score[3], ddof=1))
    assert found[1]["standard_error"] == pytest.approx(np.std(score[3], ddof=1) / 2.0)


def test_a_deleted_working_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a relative path is asked for; an absolute one is as good as ever."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    calls: dict[str, Callable[[], object]] = {
        "path": lambda: factorflow.write_dataset("d", {"y": np.eye(4)}),
        "dataset": lambda: factorflow.open_dataset("d"),
        "posterior": lambda: factorflow.open_posterior("p"),
        "out": lambda: factorflow.resume("p"),
        "folder": lambda: doctor.examine(),
        "source": lambda: pipeline.ingest("y.csv", Folder.at(tmp_path / "out")),
    }
    for parameter, call in calls.items():
        with pytest.raises(InputError, match="since the current directory was deleted") as caught:
            call()
        assert caught.value.parameter == parameter
    assert factorflow.write_dataset(tmp_path / "d", {"y": np.eye(4)}).n_rows == 4
