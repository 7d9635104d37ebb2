"""Fit data that do not fit in memory, beside merely reading them.

    python benchmarks/out_of_core.py --gb 20 --folder /scratch [--json benchmarks/results/out_of_core.json]
    python benchmarks/out_of_core.py --frames 100000000 --folder /scratch --json .../out_of_core_frames.json

Complete Gaussian float32 values, K = 10, two workers of 1 GiB each. The rate of the fit (bytes of the store a
second in a warm-up iteration) is set beside the rate at which the same two workers merely read the same
blocks, both from the same state of the page cache: emptied of the store before every pass that is timed.
A pass of the fit is timed over consecutive warm-up iterations, from record to record.

With ``--frames``: sequences of 1000 frames of 20 features, the identity/attribute model with 4 identities x 2
attributes, whose posterior of every frame is larger than the data and lies on the disk, two workers of 2 GiB.
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
from factorflow.engine.executors.local_cluster import local_cluster


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


def frames(folder: Path, n_frames: int, n_iterations: int) -> dict[str, Any]:
    """Return seconds and memory of a fit to sequences."""
    path = folder / "frames.zarr"
    begun = time.perf_counter()
    if not path.exists():
        factorflow.simulate(
            "identity_attribute", path, n_samples=n_frames, n_sequences=n_frames // 1000, n_features=20,
            n_identities=4, n_attributes=2, equal_lengths=True, seed=1,
        )  # fmt: skip
    simulated = time.perf_counter() - begun
    dataset = factorflow.open_dataset(path)
    client, owned = local_cluster(2, "2GiB")
    times: list[float] = []

    def watch(event: Any) -> None:
        if isinstance(event, IterationDone):
            times.append(time.perf_counter())
            print("iteration", len(times), round(times[-1] - begun), "s", flush=True)

    begun = time.perf_counter()
    model = models.IdentityAttribute(
        n_identities=4, n_attributes=2, factorisation="frame", relevance=False, max_iter=n_iterations
    )
    posterior = factorflow.fit(
        dataset, model, executor=client, out=folder / "posterior.zarr", overwrite=True, on_event=watch
    )
    whole = time.perf_counter() - begun
    results = {
        "frames": dataset.n_rows,
        "blocks": dataset.n_blocks,
        "gigabytes": sum(dataset.nbytes.values()) / 1e9,
        "posterior_gigabytes": sum(f.stat().st_size for f in (folder / "posterior.zarr").rglob("*")) / 1e9,
        "simulate_seconds": simulated,
        "iteration_seconds": [b - a for a, b in itertools.pairwise(times)],
        "first_iteration_after_seconds": times[0] - begun,
        "whole_fit_seconds": whole,
        "iterations": int(posterior.run["n_iterations"]),
        "worker_peak_mib": sorted(client.run(worker_peak).values()),
    }
    for thing in owned:
        thing.close()
    return results


def main() -> None:
    """Simulate (unless it is there), read, fit, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=20.0)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--frames", type=int)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.frames:
        found = {"date": time.strftime("%Y-%m-%d")} | frames(args.folder, args.frames, args.iterations)
        print(json.dumps(found, indent=1))
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")
        return
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
