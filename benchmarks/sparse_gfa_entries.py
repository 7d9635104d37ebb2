"""Sparse GFA of log-normalised counts: rows by their entries that are not zero, beside dense rows.

    python benchmarks/sparse_gfa_entries.py [--samples 100000] [--features 5000] [--factors 20] [--out FILE]
    python benchmarks/sparse_gfa_entries.py --samples 1000000 --workers 2

Counts are those of `poisson_factors.py`: negative binomial, 7 % of them not zero. Each fit is a process of
its own, of one thread, with 2 GiB for blocks and what is kept of them. Seconds are those of the processor, so
that neighbours on the machine count less: a pass is the median of those of the last stage. The first part
multiplies the rows of one block alone, without reading. With ``--workers`` one fit by entries runs on so many
processes of 2 GiB each; seconds are those of the wall then, and memory is that of the largest worker.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from poisson_factors import simulate

import factorflow
from factorflow.models import SparseGFA

FOLDER = Path(tempfile.gettempdir()) / "factorflow-sparse-gfa-entries"
"""Where stores stay between runs."""
REPEATS = 9
MEMORY = "2GiB"


def store_of(n: int, d: int) -> Path:
    """Return a dataset of counts and their logarithms; it is made once."""
    path = FOLDER / f"{n}-{d}.zarr"
    if not path.exists():
        counts = simulate(n, d, 15)["counts"]
        factorflow.write_dataset(path, {"rna": counts}, {"rna": "poisson"}, layout={"rna": "sparse"})
        factorflow.add_view(path, "log", of="rna", transform="log1p")
    return path


def products(path: Path, k: int) -> dict[str, float]:
    """Return nanoseconds an entry (dense: of all; else of those not zero) of the two products of a pass."""
    from factorflow.kernels.linalg import pad_columns
    from factorflow.models.sparse_gfa.kernels import products as gfa

    dataset = factorflow.open_dataset(path)
    rows = dataset.read(0, ["log"], sparse=["log"])[0].data["log"]
    dense = dataset.block(0, ["log"]).data["log"]
    n, d = dense.shape
    rng, one, zero = np.random.default_rng(0), np.ones(d), np.zeros(d)
    left, right = rng.standard_normal((d, k + 1)), rng.standard_normal((n, k + 1))
    out: dict[str, float] = {}
    for name, values, count in (("entries", rows, rows.entries.size), ("dense", dense, dense.size)):
        centred = gfa.centred(values, zero, one, np.float32)
        width = (
            (lambda m: m.astype(np.float32)) if name == "entries" else (lambda m: pad_columns(m, np.float32))
        )
        for what, product in (
            ("rows", lambda c=centred, w=width: c @ w(left)),
            ("features", lambda c=centred, w=width: c.T @ w(right)),
        ):
            seconds = []
            for _ in range(REPEATS):
                begun = time.process_time()
                product()
                seconds.append(time.process_time() - begun)
            out[f"{name}_{what}"] = round(1e9 * min(seconds) / count, 2)
    return out


def fit(path: Path, k: int, by_entries: bool, workers: int = 0) -> dict[str, Any]:
    """Return seconds and memory of a fit in this process, or on workers."""
    clock = time.time if workers else time.process_time
    if not by_entries:
        SparseGFA.sparse_views = lambda self, meta: ()  # type: ignore[method-assign]
    at: list[tuple[str, float]] = []

    def listen(event: Any) -> None:
        if type(event).__name__ == "IterationDone":
            at.append((event.stage, clock()))

    begun = clock()
    model = SparseGFA(views=("log",), n_factors=k)
    place: dict[str, Any] = {"executor": "dask", "workers": workers} if workers else {}
    posterior = factorflow.fit(path, model, memory_limit=MEMORY, on_event=listen, progress=False, **place)
    seconds = clock() - begun
    last = at[-1][0]
    passes = [b - a for (_, a), (stage, b) in zip(at, at[1:], strict=False) if stage == last]
    summary = posterior.summary()
    whose = resource.RUSAGE_CHILDREN if workers else resource.RUSAGE_SELF
    return {
        "seconds": round(seconds, 1),
        "pass": round(float(np.median(passes)), 3),
        "passes": len(at),
        "n_factors": summary["n_factors"],
        "objective": summary["objective"],
        "MiB": resource.getrusage(whose).ru_maxrss // 1024,
    }


def save(out: str | None, name: str, report: dict[str, Any]) -> None:
    """Print a report, and put it into a file."""
    print(json.dumps({name: report}), flush=True)
    if out:
        path = Path(out)
        whole = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        whole[name] = whole.get(name, {}) | report
        path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=5000)
    parser.add_argument("--factors", type=int, default=20)
    parser.add_argument("--parts", default="products,entries,dense")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--out", help="JSON file; what is in it of other sizes stays.")
    parser.add_argument("--only", choices=["products", "entries", "dense"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(threads, "1")
    warnings.simplefilter("ignore")
    FOLDER.mkdir(exist_ok=True)
    path = store_of(arguments.samples, arguments.features)
    if arguments.only:
        k = arguments.factors
        found = (
            products(path, k) if arguments.only == "products" else fit(path, k, arguments.only == "entries")
        )
        print(json.dumps(found))
        return 0
    data = factorflow.open_dataset(path)
    blocks = (data.read(i, ["rna"], sparse=["rna"])[0].data["rna"] for i in range(data.n_blocks))
    report: dict[str, Any] = {
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "factors": arguments.factors,
        "nonzero": sum(block.entries.size for block in blocks),
    }
    name = f"{arguments.samples} x {arguments.features}"
    if arguments.workers:
        name += f", {arguments.workers} workers"
        report["entries"] = fit(path, arguments.factors, True, arguments.workers)
        save(arguments.out, name, report)
        return 0
    given = ["--samples", arguments.samples, "--features", arguments.features, "--factors", arguments.factors]
    for part in arguments.parts.split(","):
        command = [sys.executable, __file__, *map(str, given), "--only", part]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        report[part] = json.loads(done.stdout.strip().splitlines()[-1])
        save(arguments.out, name, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
