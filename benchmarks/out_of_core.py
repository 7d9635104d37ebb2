"""Fit data that do not fit in memory, beside merely reading them.

    python benchmarks/out_of_core.py --gb 20 --folder /scratch [--json benchmarks/results/out_of_core.json]

Complete Gaussian float32 values, K = 10, two workers of 1 GiB each. The rate of the fit (bytes of the store a
second in a warm-up iteration) is set beside the rate at which the same two workers merely read the same
blocks, both from the same state of the page cache: emptied of the store before every pass that is timed.
A pass of the fit is timed over consecutive warm-up iterations, from record to record.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import factorflow
from factorflow import models
from factorflow.engine.events import IterationDone
from factorflow.engine.executors.dask import local_cluster


def forget(folder: Path) -> None:
    """Drop the store from the page cache."""
    for file in folder.rglob("*"):
        if file.is_file():
            with open(file, "rb") as handle:
                os.fsync(handle.fileno())
                os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_blocks(path: str, start: int, stop: int) -> int:
    """Read blocks one after the other, as a fit does, and let them go."""
    dataset = factorflow.open_dataset(path)
    return sum(int(dataset.block(n).data["x"].nbytes) for n in range(start, stop))


def worker_peak() -> float:
    """Return the largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def seconds_to_read(client: Any, dataset: Any) -> float:
    """Return the time two workers take to read everything."""
    half = dataset.n_blocks // 2
    begun = time.perf_counter()
    client.gather(
        [
            client.submit(read_blocks, str(dataset.path), a, b, pure=False, workers=[worker])
            for (a, b), worker in zip(
                [(0, half), (half, dataset.n_blocks)], client.scheduler_info()["workers"], strict=True
            )
        ]
    )
    return time.perf_counter() - begun


def main() -> None:
    """Simulate (unless it is there), read, fit, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=20.0)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    path = args.folder / "out_of_core.zarr"
    n_features = 1000
    if not path.exists():
        factorflow.simulate(
            "sparse_gfa", path, n_samples=int(args.gb * 1e9 / 4 / n_features),
            views={"x": ("gaussian", n_features)}, n_factors=10, seed=1,
        )  # fmt: skip
    dataset = factorflow.open_dataset(path)
    size = sum(dataset.nbytes.values())
    client, owned = local_cluster(2, "1GiB")
    forget(path)
    read = [seconds_to_read(client, dataset)]
    times: list[float] = []

    def watch(event: Any) -> None:
        if isinstance(event, IterationDone):
            times.append(time.perf_counter())
        forget(path)

    begun = time.perf_counter()
    posterior = factorflow.fit(
        dataset, models.SparseGFA(n_factors=10), executor=client, out=args.folder / "posterior.zarr",
        overwrite=True, max_iter=args.iterations, on_event=watch,
    )  # fmt: skip
    whole = time.perf_counter() - begun
    forget(path)
    read.append(seconds_to_read(client, dataset))
    peaks = client.run(worker_peak)
    passes = [b - a for a, b in itertools.pairwise(times)]
    a_pass = (times[-1] - times[0]) / len(passes)
    results = {
        "date": time.strftime("%Y-%m-%d"),
        "gigabytes": size / 1e9,
        "rows": dataset.n_rows,
        "blocks": dataset.n_blocks,
        "workers": 2,
        "memory_limit": "1GiB",
        "read_seconds": read,
        "pass_seconds": passes,
        "read_gb_s": size / 1e9 / min(read),
        "fit_gb_s": size / 1e9 / a_pass,
        "fit_over_read": min(read) / a_pass,
        "whole_fit_seconds": whole,
        "iterations": int(posterior.run["n_iterations"]),
        "worker_peak_mib": sorted(peaks.values()),
    }
    print(json.dumps(results, indent=1))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    for thing in owned:
        thing.close()


if __name__ == "__main__":
    main()
