"""GP-LVM-CMF by minibatches over worker processes: memory, seconds a step, and what two workers gain.

    python benchmarks/gplvm_scale.py --folder /scratch [--parts million steps] [--rows 1000000] \
        [--out benchmarks/results/gplvm_scale.json]

100 binary features, Q = 5, R = 2, M = 20, 64 hidden units; workers of one thread.

- ``million``: a whole fit of some tens of steps from a Zarr store by two workers of 1 GiB: first passes,
  steps of about 8192 rows, an evaluation of all rows, the posterior of all rows; the largest resident memory
  of each worker.
- ``steps``: seconds a step by rows of a step, one and two workers, of a store of 65 536 rows: wall clock
  (least and median), and the CPU seconds of the worker that took most (its tasks' own work and Dask's).
  ``dask`` is the least wall clock of a step of one block of 32 rows less the same in this process: what Dask
  costs a step.

Each number is that of the machine as it was: ``load`` is its load average, ``cores`` what it has.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import factorflow  # noqa: E402 - after the number of threads is set
from factorflow.engine.events import IterationDone  # noqa: E402
from factorflow.engine.executors.own import local_cluster  # noqa: E402

SIZES = {"n_factors": 5, "n_inputs": 2, "n_inducing": 20}
QUICK = {"warmup_iter": 0, "evaluation_draws": 1, "compare_rows": 0}


def peak_mib() -> float:
    """Return the largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def about() -> dict[str, Any]:
    """Return what the numbers were measured on."""
    import torch

    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "load": [round(x, 1) for x in os.getloadavg()],
        **SIZES,
    }


def simulated(path: Path, n_rows: int, block_rows: int | None) -> Any:
    """Return a dataset of 100 binary features, written block by block."""
    options = {} if block_rows is None else {"block_rows": block_rows}
    return factorflow.simulate("gplvm", path, n_rows, views={"y": ("bernoulli", 100)}, seed=1, **options)


class Watch:
    """Notes when each step is done, and with a client the CPU seconds of its workers so far."""

    def __init__(self, client: Any = None) -> None:
        self.client, self.times, self.cpu = client, [], []

    def __call__(self, event: Any) -> None:
        if isinstance(event, IterationDone) and event.stage == "bound":
            self.times.append(time.perf_counter())

    def gaps(self, skip: int = 2) -> list[float]:
        """Return seconds between steps, without the first ones."""
        return [b - a for a, b in itertools.pairwise(self.times)][skip:]


def million(folder: Path, n_rows: int, n_steps: int) -> dict[str, Any]:
    """Return seconds and memory of a whole fit by two workers."""
    path = folder / "million.zarr"
    begun = time.perf_counter()
    dataset = simulated(path, n_rows, None)
    found: dict[str, Any] = {
        **about(),
        "rows": dataset.n_rows,
        "features": 100,
        "blocks": dataset.n_blocks,
        "store_megabytes": round(sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) / 1e6, 1),
        "simulate_seconds": round(time.perf_counter() - begun, 1),
    }
    client, owned = local_cluster(2, "1GiB")
    watch, begun = Watch(), time.perf_counter()
    config = {"model": "gplvm_cmf", **SIZES, **QUICK, "max_iter": n_steps, "part_rows": 8192}
    posterior = factorflow.fit(
        dataset, {**config, "evaluate_every": n_steps}, executor=client, out=folder / "posterior.zarr",
        overwrite=True, on_event=watch,
    )  # fmt: skip
    found |= {
        "steps": n_steps,
        "whole_fit_seconds": round(time.perf_counter() - begun, 1),
        "first_step_after_seconds": round(watch.times[0] - begun, 1),
        "step_seconds_least": round(min(watch.gaps()), 3),
        "step_seconds_median": round(statistics.median(watch.gaps()), 3),
        "bound_a_row": round(posterior.summary()["objective"] / n_rows, 3),
        "worker_peak_mib": [round(x) for x in sorted(client.run(peak_mib).values())],
        "client_peak_mib": round(peak_mib()),
        "load_after": round(os.getloadavg()[0], 1),
    }
    for thing in owned:
        thing.close()
    shutil.rmtree(folder / "posterior.zarr")
    shutil.rmtree(path)
    return found


def steps(folder: Path, sizes: list[int], n_steps: int, n_rows: int = 1 << 16) -> dict[str, Any]:
    """Return seconds a step by rows of a step, of one worker and of two."""
    found: dict[str, Any] = {**about(), "rows": n_rows, "seconds": {}}
    dataset = simulated(folder / "steps.zarr", n_rows, 1024)
    for n_workers in (1, 2):
        client, owned = local_cluster(n_workers, "2GiB")
        each = {}
        for part_rows in sizes:
            each[str(part_rows)] = _timed(dataset, part_rows, n_steps, client)
            print(n_workers, part_rows, each[str(part_rows)], flush=True)
        found["seconds"][str(n_workers)] = each
        for thing in owned:
            thing.close()
    shutil.rmtree(folder / "steps.zarr")
    one, two = found["seconds"]["1"], found["seconds"]["2"]
    kinds = ("least", "median", "worker_cpu")
    found["one_over_two"] = {
        size: {kind: round(one[size][kind] / two[size][kind], 2) for kind in kinds} for size in one
    }
    small = simulated(folder / "small.zarr", 512, 32)
    client, owned = local_cluster(2, "2GiB")
    gaps = [_timed(small, 32, 200, where)["least"] for where in (client, "local")]
    found["dask_seconds_a_step"] = round(gaps[0] - gaps[1], 4)
    for thing in owned:
        thing.close()
    shutil.rmtree(folder / "small.zarr")
    return found


def _timed(dataset: Any, part_rows: int, n_steps: int, executor: Any) -> dict[str, float]:
    """Return wall clock of a step, and CPU seconds a step of the worker that took most."""
    config = {"model": "gplvm_cmf", **SIZES, **QUICK, "max_iter": n_steps, "part_rows": part_rows}
    watch = StepsOnly(executor, n_steps)
    factorflow.fit(
        dataset, {**config, "evaluate_every": 2 * n_steps}, executor=executor, on_event=watch, seed=1
    )
    gaps = watch.gaps()
    return {
        "least": round(min(gaps), 4),
        "median": round(statistics.median(gaps), 4),
        "worker_cpu": round(watch.cpu_a_step(), 4),
    }


class StepsOnly(Watch):
    """Also CPU seconds of the workers, from the third step to the last but two."""

    def __init__(self, executor: Any, n_steps: int) -> None:
        super().__init__(None if isinstance(executor, str) else executor)
        self.marks = (3, n_steps - 2)

    def __call__(self, event: Any) -> None:
        super().__call__(event)
        if len(self.times) in self.marks and len(self.cpu) < 2 and isinstance(event, IterationDone):
            seconds = self.client.run(time.process_time) if self.client else {"here": time.process_time()}
            if len(self.times) == self.marks[len(self.cpu)]:
                self.cpu.append(seconds)

    def cpu_a_step(self) -> float:
        """Return CPU seconds a step of the worker that took most."""
        first, last = self.cpu
        return max(last[name] - first[name] for name in first) / (self.marks[1] - self.marks[0])


def main() -> None:
    """Measure the parts, and write them beside those that are there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", default=["million", "steps"], choices=["million", "steps"])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {}
    if given.out is not None and given.out.exists():
        found = json.loads(given.out.read_text())
    if "million" in given.parts:
        found["million"] = million(given.folder, given.rows, given.steps)
    if "steps" in given.parts:
        found["steps"] = steps(given.folder, given.sizes, given.steps)
    print(json.dumps(found, indent=1))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
