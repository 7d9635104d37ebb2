"""Counts stored sparse and dense: bytes a non-zero, and how fast blocks are read; one process, one core.

    python benchmarks/sparse_store.py [--samples 8192] [--features 5000] [--block-rows 1024] [--repeats 7]

Negative binomial counts with programs, 7 % of them non-zero. Prints one JSON object: rates are the best of
the repeats, and the two layouts are read in turn.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import factorflow

N_PROGRAMS, DISPERSION, SHARE = 10, 4.0, 0.07


def simulate(n_samples: int, n_features: int, seed: int = 0) -> Any:
    """Return counts of cells x genes with the wanted share of non-zeros."""
    rng = np.random.default_rng(seed)
    programs = rng.gamma(0.3, 1.0, (N_PROGRAMS, n_features)) * rng.lognormal(0.0, 1.0, n_features)
    programs /= programs.sum(axis=1, keepdims=True)
    depth = rng.lognormal(0.0, 0.35, n_samples)

    def draw(scale: float, first: int, last: int, rng: np.random.Generator) -> Any:
        usage = rng.gamma(0.3, 1.0, (last - first, N_PROGRAMS)) + 1e-3
        usage /= usage.sum(axis=1, keepdims=True)
        rate = scale * depth[first:last, None] * (usage @ programs)
        return sp.csr_array(rng.poisson(rate * rng.gamma(DISPERSION, 1 / DISPERSION, rate.shape)))

    scale, size = 0.2 * n_features, min(500, n_samples)
    for _ in range(12):
        scale *= (SHARE / (draw(scale, 0, size, np.random.default_rng(1)).nnz / size / n_features)) ** 1.2
    return sp.vstack(
        [draw(scale, i, min(i + 1000, n_samples), rng) for i in range(0, n_samples, 1000)]
    ).tocsr()


ARRAYS = {"dense": ["values"], "sparse": ["data", "indices", "row_nnz", "indptr"]}
"""What holds the values of a view, by layout."""


def bytes_of(path: Path) -> int:
    """Return the bytes of the files below a folder."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--features", type=int, default=5000)
    parser.add_argument("--block-rows", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    counts = simulate(arguments.samples, arguments.features)
    nnz = int(counts.nnz)
    report: dict[str, Any] = {"non_zeros": nnz, "share": round(nnz / np.prod(counts.shape), 4)}
    with tempfile.TemporaryDirectory() as folder:
        stores = {}
        for layout in ("dense", "sparse"):
            start = time.perf_counter()
            stores[layout] = factorflow.write_dataset(
                Path(folder) / layout, {"x": counts}, layout={"x": layout}, block_rows=arguments.block_rows
            )
            report[f"{layout}_ingest_seconds"] = round(time.perf_counter() - start, 1)
            size = sum(bytes_of(Path(folder) / layout / "x" / name) for name in ARRAYS[layout])
            report[f"{layout}_bytes_a_non_zero"] = round(size / nnz, 3)
        numbers = range(stores["sparse"].n_blocks)
        sparse = stores["sparse"].opened_view("x")
        ways = {
            "dense_blocks": lambda: deque((stores["dense"].block(i) for i in numbers), 0),
            "sparse_blocks": lambda: deque((stores["sparse"].block(i) for i in numbers), 0),
            "sparse_entries": lambda: deque((sparse.rows(i) for i in numbers), 0),  # none is kept,
        }
        for way in ways.values():  # files are in the page cache, and loops compiled
            way()
        seconds = dict.fromkeys(ways, np.inf)
        for _ in range(arguments.repeats):
            for name, way in ways.items():
                start = time.perf_counter()
                way()
                seconds[name] = min(seconds[name], time.perf_counter() - start)
        for name in ways:
            report[f"{name}_million_non_zeros_a_second"] = round(nnz / seconds[name] / 1e6)
        report["blocks_sparse_to_dense"] = round(seconds["dense_blocks"] / seconds["sparse_blocks"], 2)
        report["entries_to_dense_blocks"] = round(seconds["dense_blocks"] / seconds["sparse_entries"], 2)
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
