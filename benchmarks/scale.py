"""What travels and what the scheduler does, by the number of workers.

    python benchmarks/scale.py [--workers 3 8 16] [--columns 64] [--local-bytes 1000] [--json scale.json]

The model adds up a matrix of features x columns for each block, and sleeps for a given time instead of
computing: the messages are those of a model whose statistics are of that size. Counted are, for a round, the
bytes that the worker of the root receives, and the most that any worker does (Dask's own counter,
``Worker.transfer_incoming_log``), in sizes of one set of statistics, and the most that any worker sends;
transitions of the scheduler for each worker, beyond those of a start and an end; seconds of the processor
that it takes, a process of its own with Dask's settings, and those of the client; and the largest size of a
worker's process. Times are of one machine whose cores the workers share.

With ``--mbit`` each worker is in a network namespace, and its link to the others has that bandwidth in either
direction (Linux, as root: ``ip`` and ``tc`` make a bridge, and links with a token bucket)::

    python benchmarks/scale.py --workers 2 4 8 --seconds 0.1 --mbit 100 --json scale-100mbit.json

With ``--delay-ms`` a process stands before the scheduler and before each worker, and hands on what comes that
much later, in either direction (`delays.py`)::

    python benchmarks/scale.py --workers 2 4 8 --seconds 0.1 --delay-ms 5 --json scale-5ms.json
"""

# ruff: noqa: E402  (threads are limited before anything is imported)

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from delays import delayed, free_port
from distributed import Client, get_worker

import factorflow
from factorflow.models.configuration import ModelConfig
from factorflow.models.contract import Meta, Model, Stage, Sweep, Variable
from factorflow.models.registry import register

N_FEATURES = 2000
N_SHORT = 2
"""Iterations of the fit before that which is measured: its transitions are those of a start and an end."""
LOCAL, HOST, SPACE = "127.0.0.1", "10.79.0.1", "factorflow"
"""Addresses of the scheduler without and with a network of its own; how its bridge and links are named."""


@dataclass(frozen=True)
class Sums:
    value: Any


@dataclass(frozen=True)
class Learned:
    value: Any
    more: Any
    """As large as is asked for, and never read."""


@dataclass(frozen=True)
class Add(Sweep[Learned, Any, Sums]):
    columns: int
    seconds: float
    local_bytes: int

    def map(self, block: Any, local: Any, globals_: Learned, step: Any) -> tuple[Any, Sums]:
        time.sleep(self.seconds)
        column = block.data["x"].sum(axis=0, dtype=float)
        new = np.zeros((len(block.data["x"]), self.local_bytes // 8)) if self.local_bytes else None
        return new, Sums(np.repeat(column[:, None], self.columns, axis=1))

    def update(self, globals_: Learned, stats: Sums, step: Any) -> tuple[Learned, dict[str, float]]:
        with suppress(ValueError):  # in no task: the trial that measures memory
            worker = get_worker()
            worker.n_roots = getattr(worker, "n_roots", 0) + 1
        new = Learned(stats.value[:, 0].copy(), globals_.more + 1.0)
        return new, {"objective": float(step.iteration), "observed": 1.0}


@dataclass(frozen=True)
class AddModel(Model[Learned, Any]):
    columns: int
    seconds: float
    local_bytes: int
    state_mib: float
    n_iter: int
    kind: ClassVar[Literal["variational"]] = "variational"

    def stages(self) -> tuple[Stage[Learned], ...]:
        return (Stage("add", (Add(self.columns, self.seconds, self.local_bytes),), self.n_iter),)

    def init(self, step: Any) -> Learned:
        return Learned(np.zeros(self.meta.views[0].n_features), np.zeros(int(self.state_mib * 2**17)))

    def variables(self) -> tuple[Variable, ...]:
        return (Variable("mean", ("feature_x",), "column sums", lambda g: g.value),)


@register
class AddUp(ModelConfig):
    model: Literal["add_up"] = "add_up"
    columns: int = 64
    seconds: float = 0.0
    local_bytes: int = 0
    state_mib: float = 0.0
    n_iter: int = 20

    def build(self, meta: Meta) -> AddModel:
        return AddModel(meta, self.columns, self.seconds, self.local_bytes, self.state_mib, self.n_iter)


def counters(dask_worker: Any) -> dict[str, int]:
    """Return the bytes that a worker has received, how often it was the root, and its largest size."""
    status = Path("/proc/self/status").read_text()
    return {
        "received": sum(entry["total"] for entry in dask_worker.transfer_incoming_log),
        "sent": sum(entry["total"] for entry in dask_worker.transfer_outgoing_log),
        "roots": getattr(dask_worker, "n_roots", 0),
        "peak": int(status.split("VmHWM:")[1].split()[0]) << 10,
    }


def transitions(dask_scheduler: Any) -> tuple[int, float]:
    """Return the transitions of the scheduler so far, and seconds of the processor that it took."""
    return int(dask_scheduler.transition_counter), time.process_time()


@contextmanager
def network(n_workers: int, mbit: int) -> Iterator[None]:
    """Make a bridge, and for each worker a namespace with a link to it of so many Mbit/s."""

    def run(line: str) -> None:
        subprocess.run(line.split(), check=True)

    burst = max(mbit * 1_000_000 // 8 // 250, 1 << 16)  # bytes of a tick of 4 ms, or the largest packet
    bucket = f"root tbf rate {mbit}mbit burst {burst} latency 100ms"
    names = [f"{SPACE}{n}" for n in range(n_workers)]
    run(f"ip link add name {SPACE} type bridge")
    try:
        run(f"ip address add {HOST}/16 dev {SPACE}")
        run(f"ip link set {SPACE} up")
        for n, name in enumerate(names):
            run(f"ip netns add {name}")
            run(f"ip link add {name}o type veth peer name {name}i netns {name}")
            run(f"ip link set {name}o master {SPACE} up")
            run(f"tc qdisc add dev {name}o {bucket}")
            run(f"ip -n {name} address add {address_of(n)}/16 dev {name}i")
            run(f"ip -n {name} link set {name}i up")
            run(f"ip -n {name} link set lo up")
            run(f"ip netns exec {name} tc qdisc add dev {name}i {bucket}")
        yield
    finally:
        lines = [line for name in names for line in (f"ip link delete {name}o", f"ip netns delete {name}")]
        for line in [*lines, f"ip link delete {SPACE}"]:  # what there is of them
            subprocess.run(line.split(), check=False, stderr=subprocess.DEVNULL)


def address_of(number: int) -> str:
    """Return the address of a worker in its namespace."""
    return HOST.rpartition(".")[0] + f".{number + 2}"


@contextmanager
def cluster(n_workers: int, mbit: int, delay: float) -> Iterator[Client]:
    """Start a scheduler and workers, each a process, with Dask's settings (a context manager)."""
    from factorflow.engine.executors.local_cluster import WORKER_VARIABLES

    with tempfile.TemporaryDirectory() as folder, network(n_workers, mbit) if mbit else nullcontext():
        file = Path(folder) / "scheduler.json"
        dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", HOST if mbit else LOCAL]
        dask += ["--port", "0", "--no-dashboard", "--dashboard-address", ":0", "--scheduler-file", str(file)]
        processes = [subprocess.Popen(dask, stderr=subprocess.DEVNULL)]
        try:
            with Client(scheduler_file=str(file), set_as_default=False) as client, ExitStack() as stack:
                scheduler = client.scheduler.address
                if delay:
                    to = int(scheduler.rpartition(":")[2])
                    scheduler = f"tcp://{LOCAL}:{stack.enter_context(delayed(to, delay))}"
                for n in range(n_workers):
                    place = ["ip", "netns", "exec", f"{SPACE}{n}"] if mbit else []
                    dask = [*place, sys.executable, "-m", "distributed.cli.dask_worker", scheduler]
                    if delay:
                        own = free_port()
                        dask += ["--listen-address", f"tcp://{LOCAL}:{own}", "--contact-address"]
                        dask += [f"tcp://{LOCAL}:{stack.enter_context(delayed(own, delay))}"]
                    else:
                        dask += ["--host", address_of(n) if mbit else LOCAL]
                    dask += ["--no-dashboard", "--nthreads", "1", "--memory-limit", "4GiB", "--no-nanny"]
                    environment = {**os.environ, **WORKER_VARIABLES}
                    processes.append(subprocess.Popen(dask, stderr=subprocess.DEVNULL, env=environment))
                client.wait_for_workers(n_workers, timeout=120)
                yield client
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait()


def measure(dataset: Any, n_workers: int, config: AddUp, mbit: int, delay: float) -> dict[str, Any]:
    """Return the figures of one number of workers; those of a round are means over the rounds of a fit."""
    with cluster(n_workers, mbit, delay) as client:
        begun = client.run_on_scheduler(transitions)
        short = config.model_copy(update={"n_iter": N_SHORT})
        factorflow.fit(dataset, short, executor=client, progress=False, checkpoint_every=10**6)
        idle = client.run(counters)
        known = client.run_on_scheduler(transitions)
        times: list[float] = []
        used: list[float] = []

        def note(event: Any) -> None:
            if type(event).__name__ == "IterationDone":
                times.append(event.seconds)
                used.append(time.process_time())

        factorflow.fit(
            dataset, config, executor=client, progress=False, checkpoint_every=10**6, on_event=note
        )
        now = client.run_on_scheduler(transitions)
        found = client.run(counters)
    more = now[0] - known[0] - (known[0] - begun[0])
    unit = N_FEATURES * config.columns * 8 * config.n_iter
    received = {a: (found[a]["received"] - idle[a]["received"]) / unit for a in found}
    sent = (found[a]["sent"] - idle[a]["sent"] for a in found)
    root = max(found, key=lambda a: found[a]["roots"] - idle[a]["roots"])
    return {
        "ms_an_iteration": round(1e3 * float(np.median(np.diff(times)[2:])), 1),
        "cpu_ms_of_client": round(1e3 * (used[-1] - used[2]) / (len(used) - 3), 1),
        "cpu_ms_of_scheduler": round(1e3 * (now[1] - known[1]) / config.n_iter, 1),
        "sets_into_the_root": round(received[root], 2),
        "sets_into_any_worker": round(max(received.values()), 2),
        "mib_out_of_any_worker": round(max(sent) / config.n_iter / 2**20, 1),
        "transitions_a_worker_and_iteration": round(more / n_workers / (config.n_iter - N_SHORT), 1),
        "peak_mib": max(found[a]["peak"] for a in found) >> 20,
        "peak_mib_of_the_root": found[root]["peak"] >> 20,
    }


def main() -> None:
    """Run everything and print (and write) one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[3, 8, 16])
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("--columns", type=int, default=64, help="of the statistics, beside 2000 features")
    parser.add_argument("--seconds", type=float, default=0.0, help="that each block takes")
    parser.add_argument("--local-bytes", type=int, default=0, help="of local state a row has, of 4 a block")
    parser.add_argument("--state-mib", type=float, default=0.0, help="that every worker gets")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--mbit", type=int, default=0, help="bandwidth of each worker; 0: the loopback's")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="of what goes to scheduler or workers")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    config = AddUp(
        columns=args.columns,
        seconds=args.seconds,
        local_bytes=args.local_bytes,
        state_mib=args.state_mib,
        n_iter=args.iterations,
    )
    results: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()}
    results |= {"blocks": args.blocks, "seconds_a_block": args.seconds}
    results |= {"mbit": args.mbit} if args.mbit else {}
    results |= {"delay_ms": args.delay_ms} if args.delay_ms else {}
    results |= {"set_mib": N_FEATURES * args.columns * 8 / 2**20}
    with tempfile.TemporaryDirectory() as folder:
        values = np.random.default_rng(0).normal(size=(args.blocks * 4, N_FEATURES)).astype(np.float32)
        dataset = factorflow.write_dataset(f"{folder}/d.zarr", views={"x": values}, block_rows=4)
        for n_workers in args.workers:
            results[str(n_workers)] = measure(dataset, n_workers, config, args.mbit, args.delay_ms / 1e3)
            print(n_workers, json.dumps(results[str(n_workers)]))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
