"""What the engine itself costs: overhead a sweep, speed-up on two workers, memory over 2000 iterations.

    python benchmarks/engine.py [--quick] [--json benchmarks/results/engine.json] [--parts small wide]

The model multiplies matrices and nothing else, so that the compute of a sweep can be set. "wide" is a sparse
GFA of 320 samples by 60 000 features, most of whose work is updating the features; ``--missing`` says of what
shares of missing entries. A part that is left out stays in the file as it was. Figures are of one run on one
machine; compare ratios, and run it on an idle one.
"""

# ruff: noqa: E402  (threads are limited before anything is imported)

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

import factorflow
from factorflow.models.configuration import ModelConfig
from factorflow.models.contract import Meta, Model, Stage, Sweep, Variable
from factorflow.models.registry import register


@dataclass(frozen=True)
class Mean:
    value: Any


def multiply(work: int) -> float:
    square = np.full((256, 256), 1e-3)
    for _ in range(work):
        square = square @ square
    return float(square[0, 0])


def read(work: int) -> float:
    values = np.ones(64 << 20, np.float32)
    return sum(float(values.sum()) for _ in range(work))


def machine_speed_up(function: Callable[[int], float], work: int) -> float:
    """Return how much faster two plain processes do the same work than one: what the machine can give."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    seconds = []
    for n in (1, 2):
        with ProcessPoolExecutor(n, mp_context=get_context("spawn")) as pool:
            list(pool.map(function, [1] * n))
            begun = time.perf_counter()
            list(pool.map(function, [work // n] * n))
            seconds.append(time.perf_counter() - begun)
    return seconds[0] / seconds[1]


@dataclass(frozen=True)
class Multiply(Sweep[Mean, Any, Mean]):
    """Adds up the columns of a block, after ``work`` products of 256 x 256 matrices."""

    work: int

    def map(self, block: Any, local: Any, globals_: Mean, step: Any) -> tuple[None, Mean]:
        return None, Mean(block.data["x"].sum(axis=0, dtype=float) + 0.0 * multiply(self.work))

    def update(self, globals_: Mean, stats: Mean, step: Any) -> tuple[Mean, dict[str, float]]:
        return stats, {"objective": float(step.iteration), "observed": 1.0}


@dataclass(frozen=True)
class BusyModel(Model[Mean, Any]):
    work: int
    n_iter: int
    kind: ClassVar[Literal["variational"]] = "variational"

    def stages(self) -> tuple[Stage[Mean], ...]:
        return (Stage("multiply", (Multiply(self.work),), self.n_iter),)

    def init(self, step: Any) -> Mean:
        return Mean(np.zeros(self.meta.views[0].n_features))

    def variables(self) -> tuple[Variable, ...]:
        return (Variable("mean", ("feature_x",), "column sums", lambda g: g.value),)


@register
class Busy(ModelConfig):
    model: Literal["busy"] = "busy"
    work: int = 0
    n_iter: int = 100

    def build(self, meta: Meta) -> BusyModel:
        return BusyModel(meta, self.work, self.n_iter)


def seconds_a_sweep(dataset: Any, executor: Any, work: int, n_iter: int, skip: int) -> float:
    """Return the mean wall-clock time between iterations, after the first ``skip``."""
    times: list[float] = []
    factorflow.fit(
        dataset, Busy(work=work, n_iter=n_iter), executor=executor, checkpoint_every=10**6,
        on_event=lambda e: times.append(e.seconds) if type(e).__name__ == "IterationDone" else None,
    )  # fmt: skip
    kept = times[skip:]
    return (kept[-1] - kept[0]) / (len(kept) - 1)


def wide(folder: Path, missing: float) -> dict[str, float]:
    """Return seconds an iteration of sparse GFA with many features, by one worker and by two.

    In turns: the second number of a pair is of the same minutes as the first. Of each the median of the
    turns, and the CPU seconds an iteration takes, of all workers and of the process with client and
    scheduler: these say on a busy machine, too, what two cores have to do.
    """
    from factorflow.engine.executors.local_cluster import local_cluster

    dataset = factorflow.simulate(
        "sparse_gfa", folder / f"wide{missing}.zarr", 320, views={"x": ("gaussian", 60_000)}, n_factors=8,
        missing=missing, seed=1,
    )  # fmt: skip
    settings = {"n_factors": 20, "warmup_iter": 6, "max_iter": 24, "tol": 1e-12, "precision": 32}
    clusters = {workers: local_cluster(workers, "4GiB") for workers in (1, 2)}
    found: dict[str, Any] = {"speed_up_2_processes_that_read": machine_speed_up(read, 200)}
    config = factorflow.models.SparseGFA(**settings)
    turns: dict[int, list[tuple[float, ...]]] = {1: [], 2: []}
    for turn in range(4):
        for workers, (client, _) in clusters.items():
            seconds = _sparse_iteration(dataset, config, client)
            turns[workers] += [seconds] if turn else []  # the first compiles
    for name, workers in (("1_worker", 1), ("2_workers", 2)):
        median, of_workers, of_client = np.median(turns[workers], axis=0).tolist()
        found |= {f"s_{name}": median, f"cpu_s_{name}": of_workers, f"cpu_s_client_{name}": of_client}
    found["speed_up"] = found["s_1_worker"] / found["s_2_workers"]
    for _, owned in clusters.values():
        for thing in owned:
            thing.close()
    return found


def _sparse_iteration(dataset: Any, config: Any, client: Any) -> tuple[float, ...]:
    """Return the mean time of an iteration of the sparse stage, and CPU seconds of workers and client."""
    times: list[float] = []
    used: list[tuple[float, float, float]] = []

    def note(event: Any) -> None:
        if type(event).__name__ == "IterationDone" and event.stage == "sparse":
            times.append(event.seconds)
            if len(times) in (4, 24):
                of_workers = sum(client.run(cpu_seconds).values())
                used.append((time.perf_counter(), of_workers, time.process_time()))

    factorflow.fit(dataset, config, executor=client, checkpoint_every=10**6, on_event=note)
    (first, *before), (last, *after) = used
    # The mean, and CPU by time and not by iterations: of those some are reported at once.
    seconds = (times[-1] - times[4]) / (len(times) - 5)
    cpu = [(b - a) * seconds / (last - first) for a, b in zip(before, after, strict=True)]
    return seconds, *cpu


def cpu_seconds() -> float:
    return time.process_time()


def scheduler_state(dask_scheduler: Any) -> tuple[int, float]:
    import psutil

    return len(dask_scheduler.tasks), psutil.Process().memory_info().rss / 2**20


def small(folder: Path, quick: bool) -> dict[str, Any]:
    """Return what sweeps of a small model cost, without compute and with a second of it."""
    from factorflow.engine.executors.local_cluster import local_cluster

    n_iter = 60 if quick else 300
    values = np.random.default_rng(0).normal(size=(2048, 16)).astype(np.float32)
    dataset = factorflow.write_dataset(
        folder / "data.zarr", views={"x": values}, likelihoods={"x": "gaussian"}, block_rows=128
    )
    results: dict[str, Any] = {"load": os.getloadavg(), "blocks": dataset.n_blocks}
    results["serial_ms"] = 1e3 * seconds_a_sweep(dataset, "local", 0, n_iter, 10)
    one = _calibrate(dataset)
    for workers in (1, 2):
        client, owned = local_cluster(workers, "1GiB")
        results[f"overhead_ms_{workers}_workers"] = 1e3 * seconds_a_sweep(dataset, client, 0, n_iter, 20)
        results[f"busy_s_{workers}_workers"] = seconds_a_sweep(dataset, client, one, 6 if quick else 16, 2)
        if workers == 2:
            n_long = 200 if quick else 2000
            results["over_time"] = _over_time(dataset, client, n_long, folder / "p.zarr")
        for thing in owned:
            thing.close()
    results["speed_up_2_plain_processes"] = machine_speed_up(multiply, one * dataset.n_blocks * 3)
    results["speed_up_2_workers"] = results["busy_s_1_workers"] / results["busy_s_2_workers"]
    return results


def main() -> None:
    """Run everything and print (and write) one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--missing", type=float, nargs="+", default=[0.0, 0.05])
    parser.add_argument("--parts", nargs="+", choices=["small", "wide"], default=["small", "wide"])
    args = parser.parse_args()
    results = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    results |= {"date": time.strftime("%Y-%m-%d"), "machine": platform.processor() or platform.machine()}
    with tempfile.TemporaryDirectory() as folder:
        if "small" in args.parts:
            results |= small(Path(folder), args.quick)
        if "wide" in args.parts and not args.quick:
            for missing in args.missing:
                load = {"load": os.getloadavg()}
                results.setdefault("wide", {})[str(missing)] = load | wide(Path(folder), missing)
    text = json.dumps(results, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


def _calibrate(dataset: Any) -> int:
    """Return the products a block that make a serial sweep last about a second."""
    probe = 4
    seconds = seconds_a_sweep(dataset, "local", probe, 8, 2)
    return max(1, round(probe * 1.0 / seconds))


def _over_time(dataset: Any, client: Any, n_iter: int, out: Path) -> list[dict[str, float]]:
    """Return tasks known to the scheduler and its memory at every tenth of a long run."""
    samples: list[dict[str, float]] = []

    def watch(event: Any) -> None:
        if type(event).__name__ == "IterationDone" and event.iteration % (n_iter // 10) == n_iter // 20:
            tasks, mib = client.run_on_scheduler(scheduler_state)
            samples.append({"iteration": event.iteration, "tasks": tasks, "scheduler_mib": round(mib, 1)})

    factorflow.fit(dataset, Busy(n_iter=n_iter), executor=client, out=out, on_event=watch)
    return samples


if __name__ == "__main__":
    main()
