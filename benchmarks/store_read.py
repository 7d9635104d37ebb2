"""How fast a store is read: by block, by fromfile of its chunk files, by zarr; and a copy in memory.

    python benchmarks/store_read.py [--gb 2] [--features 1000] [--cold] [--path DIR]

With ``--cold`` the files are dropped from the page cache before every pass. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import factorflow.data
from factorflow.data import Dataset, Holdout


def forget(files: list[Path]) -> None:
    """Drop files from the page cache."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def rate(
    pieces: Callable[[], Iterator[object]], n_bytes: int, before: Callable[[], None], repeats: int
) -> float:
    """Return the best rate over the repeats, in GB/s."""
    best = float("inf")
    for _ in range(repeats):
        before()
        start = time.perf_counter()
        for _piece in pieces():  # nothing is kept
            pass
        best = min(best, time.perf_counter() - start)
    return round(n_bytes / best / 1e9, 3)


def measure(dataset: Dataset, cold: bool, repeats: int) -> dict[str, float]:
    import zarr

    view = next(iter(dataset.views))
    files = sorted(file for file in (dataset.path / view / "values" / "c").rglob("*") if file.is_file())
    n_bytes = sum(dataset.nbytes.values())
    array = zarr.open_array(str(dataset.path / view / "values"), mode="r")
    rows, numbers, holdout = dataset.block_rows, range(dataset.n_blocks), Holdout(0.1)
    block = dataset.block(0).data[view]
    holdout.mask(0, 0, 2, 2)  # compiles
    ways: dict[str, Callable[[], Iterator[object]]] = {
        "fromfile": lambda: (np.fromfile(file, np.uint8) for file in files),
        "block": lambda: (dataset.block(i) for i in numbers),
        "block_with_holdout": lambda: (dataset.block(i, holdout=holdout) for i in numbers),
        "zarr": lambda: (array[i * rows : (i + 1) * rows] for i in numbers),
        "copy_in_memory": lambda: (block.copy() for _ in numbers),
    }
    before = (lambda: forget(files)) if cold else (lambda: None)
    return {name: rate(way, n_bytes, before, repeats) for name, way in ways.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--features", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--path", type=Path, help="keep the store here, and use it again")
    arguments = parser.parse_args()
    n_samples = round(arguments.gb * 1e9 / 4 / arguments.features)
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.path or Path(folder) / "store"
        start = time.perf_counter()
        if path.exists():
            dataset = factorflow.data.open_dataset(path)
        else:
            views = {"dense": ("gaussian", arguments.features)}
            dataset = factorflow.data.simulate("sparse_gfa", path, n_samples, views=views)
        made = time.perf_counter() - start
        report = {
            "gb": sum(dataset.nbytes.values()) / 1e9,
            "block_rows": dataset.block_rows,
            "cold": arguments.cold,
        }
        report["simulate_seconds"] = round(made, 2)
        report["gb_per_second"] = measure(dataset, arguments.cold, arguments.repeats)
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
