"""One setting for every cluster: what it may be, what is started for it, and that it is closed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec
from uuid import uuid4

import bayesian_pca
import dask
import pytest
from contract_tools import assert_same_bits
from distributed import LocalCluster, Scheduler, Worker
from distributed.utils import LoopRunner

import factorflow
from factorflow.engine.events import IterationDone
from factorflow.engine.executors import clusters, keeping
from factorflow.engine.executors.launch import open_executor, shared_cluster
from factorflow.engine.executors.places import placed
from factorflow.errors import InputError
from factorflow.settings import ResumeOptions, TrialOptions
from factorflow.settings.clusters import TLS, Address, BatchCluster, Bounds, Kubernetes, Processes, seconds_of

JOBS = {"workers": 4, "memory": "2GB", "walltime": "2h"}

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
    monkeypatch.setattr(clusters, "_class_of", lambda *_: OneProcess)
    MADE.clear()
    return {"kind": "class", "path": "one:OneProcess", "arguments": {"n_workers": 0}, "workers": 2}


@pytest.mark.parametrize(
    ("setting", "parameter"),
    [
        ({"kind": "slum"}, "cluster"),
        ({"workers": 4}, "cluster"),
        ({"kind": "slurm", "memory": "2GB", "walltime": "2h"}, "workers"),
        ({"kind": "slurm", **JOBS, "memory": "2 pounds"}, "memory"),
        ({"kind": "slurm", **JOBS, "walltime": "soon"}, "walltime"),
        ({"kind": "slurm", **JOBS, "workers": {"minimum": 5, "maximum": 2}}, "minimum"),
        ({"kind": "slurm", **JOBS, "quue": "long"}, "quue"),
        ({"kind": "address", "address": "host:8786"}, "address"),
        ({"kind": "address", "address": "tcp://h:1", "tls": dict.fromkeys(("ca", "certificate", "key"), "f")},
         "address"),
        ("nowhere.yaml", "cluster"),
        ("{kind: [", "cluster"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(setting: Any, parameter: str) -> None:
    with pytest.raises(InputError) as caught:
        ResumeOptions(cluster=setting)
    assert caught.value.parameter == parameter
    assert caught.value.remedy


def test_a_file_or_json(tmp_path: Path) -> None:
    """Alone, or as the ``cluster`` of a file that says more than a shell could."""
    alone, named = tmp_path / "a.yaml", tmp_path / "b.yaml"
    alone.write_text("kind: slurm\nworkers: 4\nmemory: 2GB\nwalltime: 02:00:00\n")
    named.write_text("cluster:\n  kind: slurm\n  workers: 4\n  memory: 2GB\n  walltime: 7200 s\n")
    expected = ResumeOptions(cluster={"kind": "slurm", **JOBS}).cluster
    assert isinstance(expected, BatchCluster)
    for given in (str(alone), str(named), json.dumps({"kind": "slurm", **JOBS})):
        found = ResumeOptions(cluster=given).cluster
        assert isinstance(found, BatchCluster)
        seconds = seconds_of("walltime", found.walltime)
        assert (seconds, found.workers) == (7200, expected.workers), given


def test_the_files_of_deploy() -> None:
    deploy = Path(factorflow.__file__).parents[1] / "deploy"
    for name, kind in (("slurm/cluster.yaml", BatchCluster), ("kubernetes/cluster-setting.yaml", Kubernetes)):
        assert isinstance(ResumeOptions(cluster=str(deploy / name)).cluster, kind)


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("90 minutes", 5400), ("1:30", 5400), ("1-00:00:10", 86410)]
)
def test_times(text: str, seconds: int) -> None:
    assert seconds_of("walltime", text) == seconds


@pytest.mark.parametrize("also", [{"executor": "threads"}, {"workers": 2}, {"memory_limit": "1GB"}])
def test_two_answers_to_one_question(also: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="nothing beside cluster"):
        ResumeOptions(cluster={"kind": "dask"}, **also)


@pytest.mark.thorough
def test_a_class_gives_the_same_bits_and_is_closed(
    data: Any, config: Any, own_class: Any, tmp_path: Path
) -> None:
    alone = factorflow.fit(data, config, seed=3)
    there = factorflow.fit(data, config, seed=3, executor=own_class, out=tmp_path / "p.zarr")
    assert_same_bits(there, alone)
    assert [cluster.status.name for cluster in MADE] == ["closed"]
    # Of the setting a posterior keeps the kind alone: arguments may be secrets.
    assert there.run["executor"] == "class"
    assert "OneProcess" not in (tmp_path / "p.zarr" / "zarr.json").read_text()


def test_closed_after_errors(data: Any, config: Any, own_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(event: Any) -> None:
        raise RuntimeError("the listener fails")

    with pytest.raises(Exception, match="the listener fails"):
        factorflow.fit(data, config, executor=own_class, on_event=fails)
    monkeypatch.setattr(clusters, "DaskExecutor", lambda *_, **__: fails(None))
    with pytest.raises(RuntimeError):
        factorflow.fit(data, config, executor=own_class)
    assert [cluster.status.name for cluster in MADE] == ["closed", "closed"]


def test_no_worker_comes(data: Any, config: Any, own_class: Any) -> None:
    own_class |= {"workers": None, "wait": "1s"}
    with pytest.raises(InputError, match="at least one worker within 1 s"):
        factorflow.fit(data, config, executor=own_class)
    assert [cluster.status.name for cluster in MADE] == ["closed"]


def test_runs_share_one_cluster(own_class: Any) -> None:
    with shared_cluster(TrialOptions(cluster=own_class)) as shared:
        assert isinstance(shared.cluster, Address)
        executor = open_executor(shared.cluster)
        assert len(executor.cut(100)) == 2
        executor.close()
        assert [cluster.status.name for cluster in MADE] == ["running"]
    assert [cluster.status.name for cluster in MADE] == ["closed"]
    with shared_cluster(TrialOptions(cluster={"kind": "threads", "workers": 2})) as shared:
        assert shared.cluster is not None
        assert shared.cluster.kind == "threads"


def test_missing_packages_name_the_extra() -> None:
    for path, extra in (("nowhere_at_all:Cluster", "kubernetes"), ("nowhere_at_all:Cluster", "jobqueue")):
        with pytest.raises(InputError, match=rf"factorflow\[{extra}\]"):
            clusters._class_of("cluster", path, clusters._extra(extra))
    with pytest.raises(InputError, match="package.module:Class"):
        clusters._class_of("path", "json:Nothing", "")
    with pytest.raises(InputError, match="a class of Dask clusters"):
        open_executor(ResumeOptions(cluster={"kind": "class", "path": "json:JSONDecoder"}).cluster)  # type: ignore[arg-type]


@pytest.mark.thorough
def test_a_worker_that_was_lost_is_replaced(
    data: Any, config: Any, own_class: Any, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them in the middle of a run; Dask alone would wait for ever."""
    monkeypatch.setattr(keeping, "LOOK_SECONDS", 0.05)
    lost: list[str] = []

    def watch(event: Any) -> None:
        if isinstance(event, IterationDone) and event.iteration == 3:
            cluster = MADE[0]
            lost.extend(cluster.scheduler.workers)
            for worker in list(cluster.workers.values()):
                cluster.sync(worker.close)

    times = {"distributed.deploy.lost-worker-timeout": "200ms", "factorflow.no-workers-timeout": "20s"}
    with dask.config.set(times):
        there = factorflow.fit(data, config, seed=3, executor=own_class, on_event=watch)
    assert len(lost) == 2
    assert_same_bits(there, factorflow.fit(data, config, seed=3))


@pytest.mark.parametrize("group", [None, ["-0", "-1"]])
def test_who_is_replaced(group: Any) -> None:
    """What was there and is gone, as a whole, for long enough; once."""
    spec = {} if group is None else {"group": group}
    names = ["job"] if group is None else ["job-0", "job-1"]

    class Jobs:
        loop = SimpleNamespace(add_callback=lambda _: None)

        def __init__(self) -> None:
            self.periodic_callbacks: dict[str, Any] = {}
            self.worker_spec, self.workers, self.plan = {"job": spec}, {"job": self}, names
            self.scheduler_info: dict[str, Any] = {"workers": {}}
            self.done: list[Any] = []

        def come(self, *there: str) -> None:
            self.scheduler_info["workers"] = {name: {"name": name} for name in there}

        async def close(self) -> None:
            self.done.append("closed")

        def scale(self, n: int) -> None:
            self.done.append(n)

    def looks(*there: str, patience: float) -> list[Any]:
        keeper._patience = patience
        jobs.come(*there)
        asyncio.run(keeper.look())
        return jobs.done

    jobs = Jobs()
    keeper = keeping.Keeper(jobs)
    assert looks(patience=0) == []  # it has not come yet
    assert looks(*names, patience=0) == []
    assert looks(*names[1:], patience=0) == ([] if group else ["closed", 1])
    if group:
        assert looks(patience=60) == []  # it may come back
        assert looks(patience=0) == ["closed", 2]
    assert len(looks(patience=0)) == 2  # the next one has not come yet


def test_the_manifest_of_pods() -> None:
    """What the operator is asked for is what its own definition of a DaskCluster allows."""
    kubernetes = pytest.importorskip("dask_kubernetes")
    pytest.importorskip("kr8s")
    import jsonschema
    import yaml

    setting = Kubernetes(
        image="factorflow", name="k15", workers=4, memory="4GiB", claims={"runs": "/app/runs"},
        environment={"A": "b"},
    )  # fmt: skip
    spec = clusters.kubernetes_spec(setting)
    worker = spec["spec"]["worker"]
    container = worker["spec"]["containers"][0]
    assert worker["replicas"] == 4
    assert container["args"][:6] == ["dask", "worker", "--nthreads", "1", "--memory-limit", str(4 << 30)]
    assert {"name": "A", "value": "b"} in container["env"]
    assert container["volumeMounts"] == [{"name": "runs", "mountPath": "/app/runs"}]
    helm = Path(kubernetes.__file__).parent / "operator" / "deployment" / "helm" / "dask-kubernetes-operator"
    definition = yaml.safe_load((helm / "crds" / "daskcluster.yaml").read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    jsonschema.validate(spec, schema)
    written = Path(factorflow.__file__).parents[1] / "deploy" / "kubernetes" / "cluster.yaml"
    jsonschema.validate(yaml.safe_load(written.read_text()), schema)
    del container["name"]
    with pytest.raises(jsonschema.ValidationError, match="name"):
        jsonschema.validate(spec, schema)


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


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    sign = authority(folder, "ca")
    sign("me")
    sign("late", -1)
    authority(folder, "other")("stranger")
    authority(folder, "old", -1)("young")
    return folder


def files(folder: Path, ca: str = "ca", name: str = "me") -> TLS:
    return TLS(
        ca=str(folder / f"{ca}.pem"), certificate=str(folder / f"{name}.pem"), key=str(folder / f"{name}.key")
    )


@pytest.fixture
def secured(certificates: Path) -> Iterator[Any]:
    """Start schedulers with a certificate, and a worker each; return their addresses."""
    runner = LoopRunner()
    runner.start()
    begun: list[Any] = []

    def start(ca: str = "ca", name: str = "me") -> str:
        from distributed import Security

        own = files(certificates, ca, name)
        security = Security(
            require_encryption=True, tls_ca_file=own.ca,
            tls_scheduler_cert=own.certificate, tls_scheduler_key=own.key,
            tls_worker_cert=own.certificate, tls_worker_key=own.key,
        )  # fmt: skip

        async def begin() -> str:
            scheduler = await Scheduler(
                protocol="tls", security=security, port=0, dashboard_address="127.0.0.1:0", host="127.0.0.1"
            )
            begun.append(scheduler)
            if name != "late":
                begun.append(await Worker(scheduler.address, security=security, nthreads=1))
            return str(scheduler.address)

        return runner.run_sync(begin)

    yield start

    async def end() -> None:
        for server in reversed(begun):
            await server.close()

    runner.run_sync(end)
    runner.stop()


def test_an_operator_is_given_the_bounds_alone() -> None:
    """It adapts by itself; what Dask's own rules are called is an error there."""
    operator = pytest.importorskip("dask_kubernetes.operator")
    cluster = create_autospec(operator.KubeCluster, instance=True)
    clusters._scale(cluster, Bounds(minimum=1, maximum=4))
    cluster.adapt.assert_called_once_with(minimum=1, maximum=4)


@pytest.mark.thorough
def test_an_address_behind_tls(data: Any, config: Any, certificates: Path, secured: Any) -> None:
    setting = Address(address=secured(), tls=files(certificates))
    assert_same_bits(
        factorflow.fit(data, config, seed=3, executor=setting), factorflow.fit(data, config, seed=3)
    )


@pytest.mark.parametrize(
    ("ca", "name", "parameter", "said"),
    [
        ("ca", "late", "tls.certificate", "expired"),
        ("other", "me", "tls.certificate", "signed"),
        ("old", "young", "tls.ca", "expired"),
        ("ca", "missing", "tls.certificate", "No such file"),
    ],
)
def test_certificates_that_do_not_fit(
    certificates: Path, ca: str, name: str, parameter: str, said: str
) -> None:
    """Before anything is connected to: the file and the remedy are named."""
    with pytest.raises(InputError, match=said) as caught:
        open_executor(Address(address="tls://127.0.0.1:1", tls=files(certificates, ca, name)))
    assert caught.value.parameter == parameter
    assert str(caught.value.value).startswith(str(certificates))
    assert caught.value.remedy


def test_keys_and_certificates_that_are_none(certificates: Path, tmp_path: Path) -> None:
    (tmp_path / "text.pem").write_text("dear")
    for wrong in ("ca", "certificate", "key"):
        given = files(certificates).model_copy(update={wrong: str(tmp_path / "text.pem")})
        with pytest.raises(InputError, match="PEM") as caught:
            open_executor(Address(address="tls://127.0.0.1:1", tls=given))
        assert "text.pem" in str(caught.value)
    swapped = files(certificates).model_copy(update={"key": str(certificates / "late.key")})
    with pytest.raises(InputError, match="its own key"):
        open_executor(Address(address="tls://127.0.0.1:1", tls=swapped))


def test_schedulers_that_do_not_fit(certificates: Path, secured: Any) -> None:
    of_ca = secured()
    with pytest.raises(InputError, match="signed") as caught:
        open_executor(Address(address=of_ca, tls=files(certificates, "other", "stranger")))
    assert caught.value.parameter == "tls.ca"
    assert str(certificates / "other.pem") in str(caught.value)
    with pytest.raises(InputError, match="valid now") as caught:
        open_executor(Address(address=secured("ca", "late"), tls=files(certificates)))
    assert caught.value.parameter == "address"
    with OneProcess(n_workers=0, protocol="tcp") as plain:
        address = plain.scheduler_address.replace("tcp://", "tls://")
        with pytest.raises(InputError, match="speaks TLS"):
            open_executor(Address(address=address, tls=files(certificates)))


def test_places() -> None:
    """Every worker gets a share; who stays keeps what is not too much; threads count."""
    assert placed(4, ["a", "a", "b", "b"]) == ["a", "a", "b", "b"]
    assert placed(2, ["a", "a", "b", "b"]) == ["a", "b"]
    assert placed(4, ["a", "b"]) == ["a", "a", "b", "b"]
    assert placed(4, ["a"], ["a", "a", "b", "b"]) == ["a"] * 4
    grown = placed(4, ["a", "b", "c", "d"], ["a"] * 4)
    assert sorted(grown) == ["a", "b", "c", "d"]
    assert grown[0] == "a"
    assert sorted(placed(4, ["a", "b", "b", "b"], ["a"] * 4)) == ["a", "b", "b", "b"]


def test_bounds_cut_by_the_most() -> None:
    """Whoever has come yet."""
    executor = open_executor(Processes(workers={"minimum": 1, "maximum": 5}, memory="1GiB"))  # type: ignore[arg-type]
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
        used.append(len(set(executor._places)))
        size = {2: 1, 4: 3}.get(event.iteration)
        if size is not None:
            cluster.scale(size)
            while len(cluster.scheduler.workers) != size:
                time.sleep(0.02)

    setting = own_class | {"workers": 2}
    there = factorflow.fit(data, config, seed=3, executor=setting, on_event=change)
    assert_same_bits(there, factorflow.fit(data, config, seed=3))
    assert {1, 2} <= set(used), used
    assert used[-1] == 2, "two groups are never on more than two workers, and spread again"


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:nothing was computed")
def test_an_adaptive_cluster_grows_and_gives_the_same_bits(
    data: Any, config: Any, own_class: Any, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut by the most workers, begins with none, ends with several, and gives none back in between."""
    monkeypatch.setattr(clusters, "TARGET", "1us")  # tiny tasks are work enough
    sizes, seen = [], set()

    def watch(event: Any) -> None:
        sizes.append(len(MADE[0].scheduler.workers))
        seen.update(MADE[0].scheduler.workers)
        time.sleep(0.05)

    setting = own_class | {"workers": {"minimum": 1, "maximum": 3}}
    with dask.config.set({"distributed.adaptive.interval": "20ms"}):
        there = factorflow.fit(data, config, seed=3, executor=setting, on_event=watch)
    assert_same_bits(there, factorflow.fit(data, config, seed=3))
    assert len(opened[0]._places) == 3
    assert max(sizes) > 1, sizes
    assert len(seen) <= 3
    assert [cluster.status.name for cluster in MADE] == ["closed"]


def test_a_worker_with_other_versions_joins(own_class: Any, opened: list[Any], monkeypatch: Any) -> None:
    """A run is told before it uses one whose results might have other bits."""
    executor: Any = open_executor(ResumeOptions(cluster=own_class).cluster)  # type: ignore[arg-type]
    try:
        MADE[0].scale(4)
        opened[0]._client.wait_for_workers(4, timeout=20)
        other = lambda: {"numpy": uuid4().hex, "factorflow": ""}  # noqa: E731  (of each that is asked)
        monkeypatch.setattr("factorflow.engine.executors.sameness.environment", other)
        with pytest.raises(InputError, match="numpy"):
            executor.submit("update_samples", len, [], group=0)
    finally:
        executor.close()
