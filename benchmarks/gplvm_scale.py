"""GP-LVM-CMF by minibatches over worker processes: memory, seconds a step, and what two workers gain.

    python benchmarks/gplvm_scale.py --folder /scratch [--parts million steps workers] [--rows 1000000] \
        [--out benchmarks/results/gplvm_scale.json]

100 binary features, Q = 5, R = 2, M = 20, 64 hidden units; workers of one thread.

- ``million``: a whole fit of some tens of steps, after half as many of the warm-up, from a Zarr store by two
  workers of 1 GiB: first passes, steps of about 8192 rows, evaluations of all rows, the posterior of all
  rows; the largest resident memory of each worker.
- ``steps``: seconds a step by rows of a step, one and two workers, of a store of 131 072 rows: median
  wall clock (records are read some at a time, so that the least says nothing), and the CPU seconds of the
  worker that took most (its tasks' own work and Dask's). Beside them, in turns, what this machine has for two
  processes at that moment: one that fits the same rows without Dask, two at once that fit half of them each
  and know nothing of each other, and the same two in step: after each step they wait for each other.
  ``dask_milliseconds_a_step``, of a step of one block of 32 rows: wall clock and CPU of the busiest worker
  less the same in this process; CPU of the client and the scheduler.
- ``workers``: the same of steps of as many rows as the largest of ``--sizes`` only, in ``--repeats`` turns:
  how many times as fast two are as one by wall clock, with Dask and of plain processes in step, which is the
  limit of the machine at that moment; and medians over turns. For an idle machine: others slow two, not one.

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
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import factorflow  # noqa: E402 - after the number of threads is set
from factorflow.engine.events import IterationDone  # noqa: E402
from factorflow.engine.executors.local_cluster import local_cluster  # noqa: E402

SIZES = {"n_factors": 5, "n_inputs": 2, "n_inducing": 20}
PARTS = ("million", "steps", "workers")
KINDS = ("workers 1", "workers 2", "processes 1", "processes 2", "processes 2 in step")
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
    config["warmup_iter"] = n_steps // 2
    posterior = factorflow.fit(
        dataset, {**config, "evaluate_every": n_steps}, executor=client, out=folder / "posterior.zarr",
        overwrite=True, on_event=watch,
    )  # fmt: skip
    found |= {
        "steps": n_steps,
        "warm_up_steps": n_steps // 2,
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


def steps(
    folder: Path, sizes: list[int], n_steps: int, n_rows: int = 1 << 17, repeats: int = 3
) -> dict[str, Any]:
    """Return seconds a step by rows of a step, of one worker and two, and of one plain process and two."""
    clusters = {n: local_cluster(n, "2GiB") for n in (1, 2)}
    found = _in_turns(folder, sizes, n_steps, n_rows, repeats, clusters)
    small = simulated(folder / "small.zarr", 512, 32)
    places = [clusters[1][0], clusters[2][0], "local"]
    each = [[_timed(small, 32, 200, place) for place in places] for _ in range(repeats)]
    found["dask_milliseconds_a_step"] = {
        KINDS[i]: {
            "wall": round(1e3 * min(e[i]["median"] - e[2]["median"] for e in each), 1),
            "worker_cpu": round(1e3 * min(e[i]["cpu"] - e[2]["cpu"] for e in each), 1),
            "client_and_scheduler_cpu": round(1e3 * min(e[i]["here_cpu"] for e in each), 1),
        }
        for i in range(2)
    }
    shutil.rmtree(folder / "small.zarr")
    _close(clusters)
    return found


def workers(folder: Path, n_steps: int, n_rows: int, repeats: int) -> dict[str, Any]:
    """Return what two workers gain at steps of all rows, beside what two processes do, turn by turn."""
    clusters = {n: local_cluster(n, "2GiB") for n in (1, 2)}
    found = _in_turns(folder, [n_rows], n_steps, n_rows, repeats, clusters)
    _close(clusters)
    gains = found["one_over_two"][str(n_rows)]
    dask, limit = gains["workers 2, median"], gains["processes 2 in step, median"]
    found["summary"] = {
        "wall_two_workers": round(statistics.median(dask), 2),
        "wall_two_processes_in_step": round(statistics.median(limit), 2),
        "share_of_that_limit": round(statistics.median(a / b for a, b in zip(dask, limit, strict=True)), 2),
        "turns_at_least_1.6": sum(gain >= 1.6 for gain in dask),
        "turns": repeats,
        "load_after": round(os.getloadavg()[0], 1),
    }
    return found


def _close(clusters: dict[int, Any]) -> None:
    for _, owned in clusters.values():
        for thing in owned:
            thing.close()


def _in_turns(
    folder: Path, sizes: list[int], n_steps: int, n_rows: int, repeats: int, clusters: dict[int, Any]
) -> dict[str, Any]:
    """Return seconds a step of every kind, one kind after another in each turn."""
    found: dict[str, Any] = {**about(), "rows": n_rows, "steps": n_steps, "block_rows": 1024}
    whole = simulated(folder / "whole.zarr", n_rows, 1024)
    simulated(folder / "half.zarr", n_rows // 2, 1024)
    runs: dict[str, dict[str, list[Any]]] = {str(size): {kind: [] for kind in KINDS} for size in sizes}
    for _, size, kind in itertools.product(range(repeats), sizes, KINDS):
        load = round(os.getloadavg()[0], 1)
        if kind.startswith("workers"):
            of_kind = _timed(whole, size, n_steps, clusters[int(kind[-1])][0])
        else:
            of_kind = _plain(folder, size, n_steps, 1 + ("2" in kind), in_step="in step" in kind)
        runs[str(size)][kind].append({**of_kind, "load": load})
        print(size, kind, runs[str(size)][kind][-1], flush=True)
    found["seconds"] = runs
    found["one_over_two"] = {size: _gains(of_size) for size, of_size in runs.items()}
    for name in ("whole", "half"):
        shutil.rmtree(folder / f"{name}.zarr")
    return found


def _gains(runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Return how many times as fast two are as one, by repeat."""
    found: dict[str, Any] = {}
    for two, of in itertools.product((kind for kind in KINDS if "2" in kind), ("median", "cpu")):
        pairs = zip(runs[f"{two.split()[0]} 1"], runs[two], strict=True)
        found[f"{two}, {of}"] = [round(a[of] / b[of], 2) for a, b in pairs]
    return found


def _plain(
    folder: Path, part_rows: int, n_steps: int, n_processes: int, *, in_step: bool = False
) -> dict[str, float]:
    """Return wall clock and CPU seconds of a step shared by processes that know nothing of each other.

    Each fits a store of as many rows as its share, all begin at once; a step has taken as long as the slower.
    In step: none begins a step before all have ended the one before, as workers must.
    """
    store = folder / ("whole.zarr" if n_processes == 1 else "half.zarr")
    command = [sys.executable, __file__, "--folder", str(folder), "--plain", str(store)]
    command += [str(part_rows // n_processes), str(n_steps), "in step" if in_step else "alone"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, **pipes) for _ in range(n_processes)]
    for _ in range(n_steps * in_step):
        for process in started:
            while process.stdout.readline() != "step\n":
                pass
        for process in started:
            process.stdin.write("go on\n")
            process.stdin.flush()
    outputs = [process.communicate()[0] for process in started]
    assert not any(process.returncode for process in started)
    each = [json.loads(text.splitlines()[-1]) for text in outputs]
    return {name: max(found[name] for found in each) for name in each[0]}


def _in_step(event: Any) -> None:
    """Say that a step is done, and wait until all have done it."""
    if isinstance(event, IterationDone) and event.stage == "bound":
        print("step", flush=True)
        sys.stdin.readline()


def _timed(dataset: Any, part_rows: int, n_steps: int, executor: Any, after: Any = None) -> dict[str, float]:
    """Return wall clock of a step, CPU seconds a step of the worker that took most, and of this process."""
    config = {"model": "gplvm_cmf", **SIZES, **QUICK, "max_iter": n_steps, "part_rows": part_rows}
    watch = StepsOnly(executor, n_steps)

    def on_event(event: Any) -> None:
        watch(event)
        if after is not None:
            after(event)

    factorflow.fit(
        dataset, {**config, "evaluate_every": 2 * n_steps}, executor=executor, on_event=on_event, seed=1
    )
    gaps = watch.gaps()
    return {
        "median": round(statistics.median(gaps), 4),
        "cpu": round(watch.cpu_a_step(), 4),
        "here_cpu": round(watch.here_a_step(), 4),
    }


class StepsOnly(Watch):
    """Also CPU seconds of the workers and of this process, from the third step to the last but two."""

    def __init__(self, executor: Any, n_steps: int) -> None:
        super().__init__(None if isinstance(executor, str) else executor)
        self.marks, self.here = (3, n_steps - 2), []

    def __call__(self, event: Any) -> None:
        super().__call__(event)
        if len(self.times) in self.marks and len(self.cpu) < 2 and isinstance(event, IterationDone):
            seconds = self.client.run(time.process_time) if self.client else {"here": time.process_time()}
            if len(self.times) == self.marks[len(self.cpu)]:
                self.cpu.append(seconds)
                self.here.append(time.process_time())

    def cpu_a_step(self) -> float:
        """Return CPU seconds a step of the worker that took most."""
        first, last = self.cpu
        return max(last[name] - first[name] for name in first) / (self.marks[1] - self.marks[0])

    def here_a_step(self) -> float:
        """Return CPU seconds a step of this process (with Dask: client and scheduler)."""
        return (self.here[1] - self.here[0]) / (self.marks[1] - self.marks[0])


def main() -> None:
    """Measure the parts, and write them beside those that are there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 8192, 32768, 131072])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plain", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.plain:
        store, part_rows, n_steps, how = given.plain
        after = _in_step if how == "in step" else None
        each = _timed(factorflow.open_dataset(store), int(part_rows), int(n_steps), "local", after)
        print(json.dumps(each))
        return
    found: dict[str, Any] = {}
    if given.out is not None and given.out.exists():
        found = json.loads(given.out.read_text())
    given.folder.mkdir(parents=True, exist_ok=True)
    if "million" in given.parts:
        found["million"] = million(given.folder, given.rows, given.steps)
    if "steps" in given.parts:
        found["steps"] = steps(given.folder, given.sizes, given.steps, repeats=given.repeats)
    if "workers" in given.parts:
        found["workers"] = workers(given.folder, given.steps, max(given.sizes), given.repeats)
        print(found["workers"]["summary"])
    print(json.dumps(found, indent=1))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
