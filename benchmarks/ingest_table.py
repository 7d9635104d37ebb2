"""How fast a long table becomes a dataset, and in how much memory: CSV and Parquet.

    python benchmarks/ingest_table.py [--rows 10000000 30000000] [--distinct] [--path DIR] [--out FILE]

A table of 1000 sites x 200 species x 50 years with an exposure, labels as text, rows in random order; with
``--distinct`` every row is a combination of its own (10 million at most), else some occur in several rows.
Each ingest is a process, of which the largest resident memory is taken; beside it stands the time that
pyarrow takes to read the same columns and do nothing with them. Prints one JSON object, by number of rows.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from factorflow.data import write_table
from factorflow.data.tables.sources import open_table

LEVELS = {"site": 1000, "species": 200, "year": 50}
FORMULA = "count ~ site + species + year + offset(log(effort))"
PIECE = 1_000_000


def batches(n_rows: int, distinct: bool) -> Iterator[pa.RecordBatch]:
    rng = np.random.default_rng(0)
    size = int(np.prod(list(LEVELS.values())))
    step = 6_700_417  # a prime: multiples of it go through all cells in no order
    names = {name: np.char.add(f"{name}_", np.arange(n).astype(str)) for name, n in LEVELS.items()}
    names["year"] = (1970 + np.arange(50)).astype(str)
    for start in range(0, n_rows, PIECE):
        row = np.arange(start, min(start + PIECE, n_rows))
        cell = row * step % size if distinct else rng.integers(0, size, row.size)
        codes = np.unravel_index(cell, tuple(LEVELS.values()))
        columns = {name: names[name][code] for name, code in zip(LEVELS, codes, strict=True)}
        columns |= {"count": rng.poisson(3.0, row.size), "effort": rng.integers(1, 400, row.size) / 8}
        yield pa.RecordBatch.from_pydict(columns)


def make(path: Path, n_rows: int, distinct: bool) -> None:
    pieces = batches(n_rows, distinct)
    first = next(pieces)
    if path.suffix == ".csv":
        out = csv.CSVWriter(path, first.schema)
    else:
        out = parquet.ParquetWriter(path, first.schema)
    with out:
        out.write_batch(first)
        for piece in pieces:
            out.write_batch(piece)


def read(source: str) -> dict[str, float]:
    """Return what it takes to read the columns and look at nothing."""
    start = time.perf_counter()
    n_rows = sum(piece.n_rows for piece in open_table(source).read(list(LEVELS), ["count", "effort"]))
    return {"seconds": round(time.perf_counter() - start, 2), "rows": n_rows}


def ingest(source: str, target: str) -> dict[str, float]:
    start, before = time.perf_counter(), time.process_time()
    dataset = write_table(target, source, FORMULA, overwrite=True)
    return {
        "seconds": round(time.perf_counter() - start, 2),
        "cpu_seconds": round(time.process_time() - before, 2),
        "cells": dataset.n_rows,
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def alone(*arguments: str) -> dict[str, float]:
    """Run a part of this script in a process of its own."""
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(n_rows: int, distinct: bool, where: Path | None) -> dict[str, dict[str, float]]:
    """Return what both forms of a table take."""
    result = {}
    with tempfile.TemporaryDirectory(dir=where) as folder:
        for ending in ("csv", "parquet"):
            source = Path(folder) / f"table.{ending}"
            make(source, n_rows, distinct)
            only_read = alone("--read", str(source))
            found = alone("--ingest", str(source), f"{folder}/data.zarr")
            result[ending] = {
                "file_mb": round(source.stat().st_size / 1e6),
                "rows_a_second": round(n_rows / found["seconds"]),
                "rows_a_cpu_second": round(n_rows / found["cpu_seconds"]),
                "rows_a_second_read_alone": round(n_rows / only_read["seconds"]),
                **found,
            }
            source.unlink()
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000_000])
    parser.add_argument("--distinct", action="store_true")
    parser.add_argument("--path", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parser.add_argument("--ingest", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(read(options.read)))
        return
    if options.ingest:
        print(json.dumps(ingest(*options.ingest)))
        return
    result = {str(n_rows): measure(n_rows, options.distinct, options.path) for n_rows in options.rows}
    text = json.dumps({"distinct": options.distinct, "pyarrow": pa.__version__, **result}, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
