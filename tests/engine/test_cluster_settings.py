"""What is given as executor: a cluster's setting, a cluster object, a client; that it is closed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bayesian_pca
import dask
import pytest
from contract_tools import assert_same_bits
from distributed import Client, LocalCluster, Scheduler, Worker, get_client
from distributed.utils import LoopRunner

import factorflow
from factorflow.engine.executors import clusters
from factorflow.engine.executors.assignment import assign_groups
from factorflow.engine.executors.dask import DaskExecutor
from factorflow.engine.executors.environment import digest_of_modules, environment, one_thread
from factorflow.engine.executors.launch import open_executor, shared_cluster
from factorflow.errors import InputError
from factorflow.settings import ClusterSetting, ResumeOptions, TrialOptions
from factorflow.settings.base import describe
from factorflow.settings.clusters import seconds_of

SLURM = {
    "class": "dask_jobqueue.SLURMCluster",
    "kwargs": {
        "cores": 1,
        "memory": "1GB",
        "walltime": "01:00:00",
        "interface": "lo",
        "scheduler_options": {"dashboard_address": "127.0.0.1:0"},
    },
    "adapt": {"minimum": 1, "maximum": 2},
}

MADE: list[LocalCluster] = []


class OneProcess(LocalCluster):
    """A cluster of a class of one's own: workers in threads of this process."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(processes=False, threads_per_worker=1, dashboard_address="127.0.0.1:0", **arguments)
        MADE.append(self)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    case = bayesian_pca.BayesianPCA.examples()["default"]
    path = tmp_path_factory.mktemp("data") / "data.zarr"
    return factorflow.simulate(case.simulator, path, n_samples=200, block_rows=32, seed=7, **case.data)


@pytest.fixture
def config() -> Any:
    return bayesian_pca.BayesianPCA.examples()["default"].config


@pytest.fixture
def own_class(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A setting with the class above; what of it ran is in ``MADE``."""
    monkeypatch.setattr(clusters, "_class_at", lambda *_: OneProcess)
    MADE.clear()
    return {"class": "one.OneProcess", "kwargs": {"n_workers": 2}}


@pytest.fixture
def running() -> Iterator[OneProcess]:
    with OneProcess(n_workers=2) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("setting", "parameter"),
    [
        ({}, "cluster"),
        ({"workers": 4}, "cluster"),
        ({**SLURM, "address": "tcp://host:1"}, "cluster"),
        ({**SLURM, "adapt": {"minimum": 5, "maximum": 2}}, "adapt: minimum"),
        ({**SLURM, "adapt": {"minimum": 5}}, "adapt: maximum"),
        ({**SLURM, "wait": "soon"}, "wait"),
        ({**SLURM, "quue": "long"}, "quue"),
        ({"address": "host:8786"}, "address"),
        ({"address": "tcp://host:8786", "adapt": {"maximum": 2}}, "adapt"),
        ("nowhere.yaml", "cluster"),
        ("{class: [", "cluster"),
    ],
)
def test_what_is_wrong_is_named(setting: Any, parameter: str) -> None:
    with pytest.raises(InputError) as caught:
        ResumeOptions(cluster=setting)
    assert caught.value.parameter == parameter
    assert caught.value.remedy


def test_a_file_or_json(tmp_path: Path) -> None:
    """Alone, or as the ``cluster`` of a file that says more than a shell could."""
    alone, named = tmp_path / "a.yaml", tmp_path / "b.yaml"
    alone.write_text(json.dumps(SLURM))
    named.write_text(json.dumps({"cluster": SLURM}))
    expected = ClusterSetting(**SLURM)
    assert expected.n_workers == 2
    for text in (str(alone), str(named), json.dumps(SLURM), expected.model_dump_json(exclude_none=True)):
        assert ResumeOptions(cluster=text).cluster == expected, text


def test_the_files_of_deploy() -> None:
    deploy = Path(factorflow.__file__).parents[1] / "deploy"
    for name, end in (
        ("slurm/cluster.yaml", "SLURMCluster"),
        ("kubernetes/cluster-setting.yaml", "KubeCluster"),
    ):
        setting = ResumeOptions(cluster=str(deploy / name)).cluster
        assert setting is not None
        assert str(setting.class_name).endswith(end)


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("90 minutes", 5400), ("1:30", 5400), ("1-00:00:10", 86410)]
)
def test_times(text: str, seconds: int) -> None:
    assert seconds_of("walltime", text) == seconds


@pytest.mark.parametrize("also", [{"executor": "threads"}, {"workers": 2}, {"memory_limit": "1GB"}])
def test_two_answers_to_one_question(also: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="None with cluster"):
        ResumeOptions(cluster={"address": "tcp://host:8786"}, **also)


@pytest.mark.thorough
def test_a_class_gives_the_same_bits_and_is_closed(
    data: Any, config: Any, own_class: Any, tmp_path: Path
) -> None:
    alone = factorflow.fit(data, config, seed=3)
    there = factorflow.fit(data, config, seed=3, executor=own_class, out=tmp_path / "p.zarr")
    assert_same_bits(there, alone)
    assert [cluster.status.name for cluster in MADE] == ["closed"]
    # Of the setting a posterior keeps the class alone: arguments may be secrets.
    assert there.run["executor"] == "one.OneProcess"
    assert "n_workers" not in (tmp_path / "p.zarr" / "zarr.json").read_text()


@pytest.mark.thorough
def test_a_cluster_object_and_a_client(data: Any, config: Any, running: OneProcess) -> None:
    """They stay open, with nothing of the run on them, and are cut for the workers that will be there."""
    plugins = lambda dask_worker: sorted(dask_worker.plugins)  # noqa: E731
    with Client(running, set_as_default=False) as client:
        before = client.run(plugins), sorted(running.scheduler.plugins)
        alone = factorflow.fit(data, config, seed=3)
        assert_same_bits(factorflow.fit(data, config, seed=3, executor=running, workers=3), alone)
        assert_same_bits(factorflow.fit(data, config, seed=3, executor=client), alone)
        with pytest.raises(Exception, match="the listener fails"):
            factorflow.fit(data, config, executor=running, on_event=fails)
        assert (client.run(plugins), sorted(running.scheduler.plugins)) == before
        while client.processing() and any(client.processing().values()):
            time.sleep(0.01)
        cut: Any = open_executor(running, workers=3)
        assert len(cut.cut(100)) == 3
        cut.close()
    assert running.status.name == "running"


def fails(event: Any) -> None:
    raise RuntimeError("the listener fails")


def test_what_cannot_be_waited_for(data: Any, config: Any, running: OneProcess) -> None:
    """Asynchronous and closed ones are refused at once."""

    async def asynchronous() -> None:
        async with Client(running.scheduler_address, asynchronous=True, set_as_default=False) as client:
            with pytest.raises(InputError, match="an asynchronous client"):
                factorflow.fit(data, config, executor=client)

    asyncio.run(asynchronous())
    client = Client(running, set_as_default=False)
    client.close()
    with pytest.raises(InputError, match="a client that is closed"):
        factorflow.fit(data, config, executor=client)
    closed = OneProcess(n_workers=0)
    closed.close()
    with pytest.raises(InputError, match="a cluster that is closed"):
        factorflow.fit(data, config, executor=closed)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["client", "address"])
def test_inside_a_task(how: str, data: Any, config: Any, tmp_path: Path) -> None:
    """The thread of the task leaves the pool, or the only thread would wait for itself."""
    with OneProcess(n_workers=1) as cluster, Client(cluster, set_as_default=False) as client:
        future = client.submit(work_in_a_task, str(data.path), config, how, pure=False)
        assert future.result(timeout=60) == "complete"
        assert client.submit(int, 1).result(timeout=20) == 1


def work_in_a_task(path: str, config: Any, how: str) -> str:
    client = get_client()
    executor = client if how == "client" else client.scheduler.address
    found = factorflow.fit(path, config, seed=3, executor=executor, progress=False)
    return str(found.run["status"])


def test_an_asynchronous_task_is_refused(data: Any, config: Any, running: OneProcess) -> None:
    async def task(address: str) -> str:
        with pytest.raises(InputError, match="stop the event loop"):
            factorflow.fit(data, config, executor=address, progress=False)
        return "refused"

    with Client(running, set_as_default=False) as client:
        assert client.submit(task, running.scheduler_address).result(timeout=60) == "refused"


def test_one_thread_as_long_as_anyone_works() -> None:
    from threadpoolctl import threadpool_info, threadpool_limits

    def threads() -> set[int]:
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    with threadpool_limits(limits=2):
        with one_thread():
            with one_thread():
                assert threads() == {1}
            assert threads() == {1}
        assert threads() == {2}


def test_the_scheduler_is_compared(
    data: Any, config: Any, running: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "run_on_scheduler", lambda *_: {**environment(), "dask": "0.0.1"})
    with pytest.raises(InputError, match=r"dask 0\.0\.1 on the scheduler"):
        factorflow.fit(data, config, executor=running)


@pytest.mark.thorough
def test_builds_of_one_version_are_told_apart(
    data: Any, config: Any, running: OneProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the names and the content of the modules, wherever they lie."""
    monkeypatch.setattr(Client, "run_on_scheduler", lambda *_: {**environment(), "build": "0123"})
    with pytest.raises(InputError, match=r"build 0123 on the scheduler, [0-9a-f]{12} here"):
        factorflow.fit(data, config, executor=running)
    here = Path(factorflow.__file__).parent
    there = tmp_path / "factorflow"
    for path in here.rglob("*.py"):
        copy = there / path.relative_to(here)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    own = digest_of_modules(here)
    assert environment()["build"] == own == digest_of_modules(there)
    (there / "trees.py").write_text("")
    assert digest_of_modules(there) != own


def test_workers_that_do_not_see_the_data_are_named(running: OneProcess, tmp_path: Path) -> None:
    executor: Any = open_executor(running)
    executor.check_paths(str(tmp_path), "s3://bucket/name")
    with pytest.raises(
        InputError, match=r"see /nowhere/d.zarr: worker inproc://\S+ on host \S+ does not"
    ) as caught:
        executor.check_paths(str(tmp_path), "/nowhere/d.zarr")
    assert "Mount it there under the same path; `factorflow doctor" in caught.value.remedy
    executor.close()


@pytest.mark.thorough
def test_which_paths_workers_must_see(
    data: Any, config: Any, running: OneProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dataset, and the folder of a run with ``out``: short runs to memory need none."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(DaskExecutor, "check_paths", lambda self, *paths: asked.append(paths))
    factorflow.fit(data, config, executor=running)
    factorflow.fit(data, config, executor=running, out=tmp_path / "p.zarr")
    assert asked == [(str(data.path),), (str(data.path), str(tmp_path / "p.zarr.run"))]


def test_closed_after_errors(data: Any, config: Any, own_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Exception, match="the listener fails"):
        factorflow.fit(data, config, executor=own_class, on_event=fails)
    monkeypatch.setattr(clusters, "DaskExecutor", lambda *_, **__: fails(None))
    with pytest.raises(RuntimeError):
        factorflow.fit(data, config, executor=own_class)
    assert [cluster.status.name for cluster in MADE] == ["closed", "closed"]


def test_no_worker_comes(data: Any, config: Any, own_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a queue that starts no job."""
    monkeypatch.setattr(clusters, "_adapt", lambda *_: None)
    own_class |= {"kwargs": {"n_workers": 0}, "workers": 2, "wait": "1s"}
    with pytest.raises(InputError, match="at least one worker within 1 s"):
        factorflow.fit(data, config, executor=own_class)
    assert [cluster.status.name for cluster in MADE] == ["closed"]


def test_runs_share_one_cluster(own_class: Any) -> None:
    with shared_cluster(TrialOptions(cluster=own_class)) as shared:
        assert shared.cluster is not None
        assert shared.cluster.address == MADE[0].scheduler_address
        executor: Any = open_executor(shared.cluster)
        assert len(executor.cut(100)) == 2
        executor.close()
        assert [cluster.status.name for cluster in MADE] == ["running"]
    assert [cluster.status.name for cluster in MADE] == ["closed"]
    with shared_cluster(TrialOptions(executor="threads", workers=2)) as shared:
        assert shared.executor == "threads"


def test_classes_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for path, remedy in (
        ("dask_cuda_of_nobody.LocalCUDACluster", "the package of dask_cuda_of_nobody"),
        ("json.Nothing", "SLURMCluster"),
        ("json.JSONDecoder", "SLURMCluster"),
    ):
        with pytest.raises(InputError) as caught:
            open_executor(ClusterSetting(**{"class": path}))
        assert caught.value.parameter == "class"
        assert remedy in caught.value.remedy
    monkeypatch.setitem(sys.modules, "dask_kubernetes", None)
    with pytest.raises(InputError, match=r"factorflow\[kubernetes\]"):
        open_executor(ClusterSetting(**{"class": "dask_kubernetes.operator.KubeCluster"}))
    with pytest.raises(InputError, match="unexpected keyword argument 'corse'"):
        open_executor(ClusterSetting(**{"class": "json.JSONDecoder", "kwargs": {"corse": 1}}))


@pytest.mark.thorough
def test_python_without_assertions_is_refused_before_a_run() -> None:
    """Zarr's own assertions have effects: nothing could be written at the end."""
    program = "from factorflow.engine.executors.launch import open_executor; open_executor('local')"
    done = subprocess.run([sys.executable, "-O", "-c", program], check=False, capture_output=True, text=True)
    assert "python = -O: expected Python with assertions" in done.stderr


IMPORT_ELSEWHERE = """
import signal, threading
from factorflow.errors import InputError
from factorflow.engine.executors.clusters import _class_at
said = []
def work():
    try:
        _class_at("dask_jobqueue.SLURMCluster")
    except InputError as error:
        said.append(str(error))
thread = threading.Thread(target=work); thread.start(); thread.join()
assert "Import it in the main thread, at the top of the program: import dask_jobqueue" in said[0], said
_class_at("dask_jobqueue.SLURMCluster")
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
thread = threading.Thread(target=work); thread.start(); thread.join()
assert len(said) == 1, said
"""


@pytest.mark.thorough
def test_a_queue_from_a_thread() -> None:
    """dask-jobqueue replaces the handler of Ctrl-C when it is imported, which the main thread alone may."""
    pytest.importorskip("dask_jobqueue")
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ELSEWHERE], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def queue(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program in place of SLURM's."""
    for name, text in (("sbatch", script), ("scancel", "exit 0")):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(folder)


def test_a_queue_that_refuses_jobs(
    data: Any, config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends at once with what the queue says."""
    pytest.importorskip("dask_jobqueue")
    queue(tmp_path, monkeypatch, "echo 'sbatch: error: Invalid account or partition' >&2; exit 1")
    with pytest.raises(InputError, match="jobs that the queue takes .*Invalid account or partition"):
        factorflow.fit(data, config, executor=SLURM)
    (tmp_path / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="No such file or directory: 'sbatch'"):
        factorflow.fit(data, config, executor=SLURM)


@pytest.mark.thorough
def test_jobs_that_die(data: Any, config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their last lines are said when none has come."""
    pytest.importorskip("dask_jobqueue")
    queue(tmp_path, monkeypatch, "echo 'Segmentation fault' > slurm-77.out; echo 'Submitted batch job 77'")
    with pytest.raises(InputError, match="Job 77 wrote: Segmentation fault"):
        factorflow.fit(data, config, executor={**SLURM, "wait": "2s"})


@pytest.mark.thorough
def test_a_queue_that_nothing_is_asked_of(
    data: Any, config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers without `adapt` are asked for; a job that never starts is given back, and the wait ends."""
    pytest.importorskip("dask_jobqueue")
    queue(tmp_path, monkeypatch, "echo asked >> asked; echo 'Submitted batch job 77'")
    (tmp_path / "scancel").write_text("#!/bin/sh\necho $@ >> cancelled\n")
    setting = {name: value for name, value in SLURM.items() if name != "adapt"}
    with pytest.raises(InputError, match="SLURMCluster without workers: expected a number of workers"):
        factorflow.fit(data, config, executor=setting)
    assert not (tmp_path / "asked").exists()
    with pytest.raises(InputError, match="at least one worker within 2 s"):
        factorflow.fit(data, config, executor={**setting, "workers": 1, "wait": "2s"})
    assert (tmp_path / "asked").read_text().split() == ["asked"]
    assert (tmp_path / "cancelled").read_text().split() == ["77"]


@pytest.mark.parametrize("more", [{}, {"wait_count": 9}])
def test_how_clusters_adapt(more: dict[str, Any]) -> None:
    """A worker for 50 ms of work, unless something else is said; an operator takes the bounds alone."""
    told: list[dict[str, Any]] = []

    class Adapts(OneProcess):
        def adapt(self, **options: Any) -> None:  # type: ignore[override]
            told.append(options)

    class Operator:
        def adapt(self, minimum: int, maximum: int) -> None:
            told.append({"minimum": minimum, "maximum": maximum})

    bounds = {"minimum": 1, "maximum": 4}
    with Adapts(n_workers=0) as cluster:
        clusters._adapt(cluster, {**bounds, **more})
        assert len(cluster.workers) == 1
    clusters._adapt(Operator(), bounds)
    assert told == [{"target_duration": "50ms", "wait_count": 60, **bounds, **more}, bounds]


@pytest.mark.thorough
def test_a_worker_that_was_lost_is_replaced(
    data: Any, config: Any, own_class: Any, opened: list[Any]
) -> None:
    """All of them in the middle of a run, where the bounds are equal."""
    lost: list[str] = []

    def watch(event: Any) -> None:
        if type(event).__name__ == "IterationDone" and event.iteration == 3:
            cluster = MADE[0]
            lost.extend(cluster.scheduler.workers)
            for worker in list(cluster.workers.values()):
                cluster.sync(worker.close)

    setting = {**own_class, "kwargs": {}, "adapt": {"minimum": 2, "maximum": 2, "interval": "100ms"}}
    times = {"distributed.deploy.lost-worker-timeout": "200ms", "factorflow.no-workers-timeout": "40s"}
    with dask.config.set(times):
        there = factorflow.fit(data, config, seed=3, executor=setting, on_event=watch)
    assert len(lost) == 2
    assert_same_bits(there, factorflow.fit(data, config, seed=3))


@pytest.mark.thorough
def test_the_manifest_of_deploy() -> None:
    """It is what the operator's own definition of a DaskCluster allows."""
    kubernetes = pytest.importorskip("dask_kubernetes")
    import jsonschema
    import yaml

    helm = Path(kubernetes.__file__).parent / "operator" / "deployment" / "helm" / "dask-kubernetes-operator"
    definition = yaml.safe_load((helm / "crds" / "daskcluster.yaml").read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    written = Path(factorflow.__file__).parents[1] / "deploy" / "kubernetes" / "cluster.yaml"
    jsonschema.validate(yaml.safe_load(written.read_text()), schema)


def authority(folder: Path, name: str, days: int = 30) -> Any:
    """Make an authority; return what signs certificates."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def issue(who: str, days: int, signer: Any = None) -> Any:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, who)])
        issuer, signs = signer or (subject, key)
        ends = datetime.now(UTC) + timedelta(days=days)
        builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(ends - timedelta(days=60)).not_valid_after(ends)
        if signer is None:
            builder = builder.add_extension(x509.BasicConstraints(True, None), critical=True)
        text = serialization.Encoding.PEM
        (folder / f"{who}.pem").write_bytes(builder.sign(signs, hashes.SHA256()).public_bytes(text))
        kind, no = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        (folder / f"{who}.key").write_bytes(key.private_bytes(text, kind, no))
        return subject, key

    signer = issue(name, days)
    return lambda who, days=30: issue(who, days, signer)


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, str]:
    """Dask's configuration with a certificate of an authority of its own."""
    authority(tmp_path, "ca")("me")
    files = {"ca-file": "ca.pem"}
    for role in ("scheduler", "worker", "client"):
        files |= {f"{role}.cert": "me.pem", f"{role}.key": "me.key"}
    found = {f"distributed.comm.tls.{name}": str(tmp_path / file) for name, file in files.items()}
    return {**found, "distributed.comm.require-encryption": True}  # type: ignore[dict-item]


@pytest.mark.thorough
def test_an_address_behind_tls(data: Any, config: Any, certificates: dict[str, str]) -> None:
    """By Dask's configuration alone; without it the address is refused, with where they belong."""
    alone = factorflow.fit(data, config, seed=3)
    runner = LoopRunner()
    runner.start()

    async def start() -> tuple[Any, Any]:
        scheduler = await Scheduler(protocol="tls", port=0, dashboard_address="127.0.0.1:0", host="127.0.0.1")
        return scheduler, await Worker(scheduler.address, nthreads=1)

    async def end(scheduler: Any, worker: Any) -> None:
        await worker.close()
        await scheduler.close()

    with dask.config.set(certificates):
        scheduler, worker = runner.run_sync(start)
        assert_same_bits(factorflow.fit(data, config, seed=3, executor=scheduler.address), alone)
    with pytest.raises(InputError, match=r"distributed\.comm\.tls in Dask's configuration"):
        factorflow.fit(data, config, executor=scheduler.address)
    with dask.config.set(certificates):
        runner.run_sync(end, scheduler, worker)
    runner.stop()


def test_assignment() -> None:
    """Every worker gets a share; who stays keeps what is not too much; threads count."""
    assert assign_groups(4, ["a", "a", "b", "b"]) == ["a", "a", "b", "b"]
    assert assign_groups(2, ["a", "a", "b", "b"]) == ["a", "b"]
    assert assign_groups(4, ["a", "b"]) == ["a", "a", "b", "b"]
    assert assign_groups(4, ["a"], ["a", "a", "b", "b"]) == ["a"] * 4
    grown = assign_groups(4, ["a", "b", "c", "d"], ["a"] * 4)
    assert sorted(grown) == ["a", "b", "c", "d"]
    assert grown[0] == "a"
    assert sorted(assign_groups(4, ["a", "b", "b", "b"], ["a"] * 4)) == ["a", "b", "b", "b"]


def test_cut_by_the_most(own_class: Any) -> None:
    """Whoever has come yet."""
    setting = {**own_class, "kwargs": {}, "adapt": {"minimum": 0, "maximum": 5}}
    executor: Any = open_executor(ClusterSetting(**setting))
    try:
        assert len(executor.cut(100)) == 5
    finally:
        executor.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The executors that settings were turned into; they look at every round who is there."""
    found: list[Any] = []
    kind = clusters.DaskExecutor

    def keep(*given: Any, **options: Any) -> Any:
        found.append(kind(*given, **options))
        return found[-1]

    monkeypatch.setattr("factorflow.engine.executors.dask.FOLLOW_SECONDS", 0.0)
    monkeypatch.setattr(clusters, "DaskExecutor", keep)
    return found


@pytest.mark.thorough
def test_shrinking_and_growing_give_the_same_bits(
    data: Any, config: Any, own_class: Any, opened: list[Any]
) -> None:
    """Those that are left, and those that join, share the groups; the cut stays."""
    used = []

    def change(event: Any) -> None:
        if type(event).__name__ != "IterationDone":
            return
        cluster, executor = MADE[0], opened[0]
        used.append(len(set(executor._addresses)))
        size = {2: 1, 4: 3}.get(event.iteration)
        if size is not None:
            cluster.scale(size)
            while len(cluster.scheduler.workers) != size:
                time.sleep(0.02)

    setting = own_class
    there = factorflow.fit(data, config, seed=3, executor=setting, on_event=change)
    assert_same_bits(there, factorflow.fit(data, config, seed=3))
    assert {1, 2} <= set(used), used
    assert used[-1] == 2, "two groups are never on more than two workers, and spread again"


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:nothing was computed")
def test_an_adaptive_cluster_grows_and_gives_the_same_bits(
    data: Any, config: Any, own_class: Any, opened: list[Any]
) -> None:
    """It is cut by the most workers, begins with none, ends with several, and gives none back in between."""
    sizes, seen = [], set()

    def watch(event: Any) -> None:
        sizes.append(len(MADE[0].scheduler.workers))
        seen.update(MADE[0].scheduler.workers)
        time.sleep(0.05)

    # Tiny tasks are work enough.
    adapt = {"minimum": 1, "maximum": 3, "interval": "20ms", "target_duration": "1us"}
    setting = {**own_class, "kwargs": {}, "adapt": adapt}
    there = factorflow.fit(data, config, seed=3, executor=setting, on_event=watch)
    assert_same_bits(there, factorflow.fit(data, config, seed=3))
    assert len(opened[0]._addresses) == 3
    assert max(sizes) > 1, sizes
    assert len(seen) <= 3
    assert [cluster.status.name for cluster in MADE] == ["closed"]


def test_a_worker_with_other_versions_joins(own_class: Any, opened: list[Any], monkeypatch: Any) -> None:
    """A run is told before it uses one whose results might have other bits."""
    executor: Any = open_executor(ClusterSetting(**own_class))
    try:
        MADE[0].scale(4)
        opened[0]._client.wait_for_workers(4, timeout=20)
        other = {"numpy": "0.0.1", "factorflow": ""}
        monkeypatch.setattr(Client, "run", lambda *_, **__: {"tcp://w:1": other})
        with pytest.raises(InputError, match="numpy 0.0.1 on tcp://w:1"):
            executor.submit("update_samples", len, [], group=0)
    finally:
        executor.close()


def test_settings_are_described_by_the_names_that_are_given() -> None:
    """As they are written, for pages and help: of fields whose name is a word of Python, too."""
    found = {option["option"]: option for option in describe(ClusterSetting)}
    assert found["class"]["description"].startswith("Class of a Dask cluster")
    assert found["class"]["default"] == "null"
    assert found["kwargs"]["default"] == "{}"


def test_runs_of_other_processes_share_the_memory() -> None:
    """Of a cluster that is running, as Dask's configuration says; not of one that a run starts itself."""

    def memory(executor: Any) -> int:
        opened: Any = open_executor(executor)
        opened.close()
        return int(opened.memory_bytes)

    options: dict[str, Any] = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    # The worker is this process: a limit below what it has by now would pause it.
    with LocalCluster(**options, processes=False, memory_limit="1TB") as cluster:
        address = cluster.scheduler_address
        alone = memory(address)
        with dask.config.set({"factorflow.share": 2}):
            assert memory(address) == pytest.approx(alone / 2, abs=2)
            assert memory(ClusterSetting(address=address)) == pytest.approx(alone / 2, abs=2)
            assert memory(ClusterSetting(address=address, share=3)) == pytest.approx(alone / 6, abs=2)
            with clusters.shared_security(address, cluster.security):  # as a run's own
                assert memory(address) == alone
                assert memory(ClusterSetting(address=address, share=3)) == pytest.approx(alone / 3, abs=2)
        for wrong in (0, "two", True):
            with (
                dask.config.set({"factorflow.share": wrong}),
                pytest.raises(InputError, match="DASK_FACTORFLOW__SHARE = .*an integer >= 1"),
            ):
                memory(address)
