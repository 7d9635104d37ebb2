"""Passes of sparse GFA over missing and binary entries beside what the machine could do, and peak memory.

One thread, everything measured in one run::

    python benchmarks/sparse_gfa_limits.py [--out benchmarks/results/sparse_gfa_limits.json] [--parts ...]

- ``missing``: a Gaussian view with a tenth of its entries missing. Its limit if every entry is weighted: four
  products, Y W and Y'Z of width K + 1 and 1(observed) P of width Q = (K + 1) (K + 2) / 2 for samples and for
  features. If the missing entries' share is subtracted: the first two and half of the others.
- ``binary``: a complete binary view. Its limit: three products of width Q with one weight an entry (Var x,
  precisions of samples, of features), two of width K + 1, and E log(1 + e^x) of every entry.
- ``memory``: peak resident memory of a whole fit above that of the process before it, over the float32 bytes
  of the blocks in flight (one at a time here; blocks are kept in memory when they fit, so also over those of
  the whole dataset). Of a small fit before it the compiled code is already loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sparse_gfa import best_of, binary_data, complete_data, machine_limits, with_missing  # noqa: E402

Array = Any
N_ROWS, N_GAUSSIAN, N_BINARY, N_FACTORS = 5000, 2000, 500, 20


def pass_seconds(values: Array, likelihood: str, passes: int) -> dict[str, float]:
    """Return CPU seconds of a sparse pass of a whole fit: the median, and the least."""
    import factorflow
    from factorflow.engine.events import IterationDone
    from factorflow.models.sparse_gfa import SparseGFA

    ticks: list[tuple[str, float, float]] = []

    def on_event(event: Any) -> None:
        if isinstance(event, IterationDone):
            ticks.append((event.stage, time.process_time(), time.monotonic()))

    model = SparseGFA(n_factors=N_FACTORS, warmup_iter=2, drop=0.0)
    with tempfile.TemporaryDirectory() as folder:
        store = factorflow.write_dataset(Path(folder) / "data.zarr", {"v": values}, {"v": likelihood})
        factorflow.fit(store, model, max_iter=3)
        ticks.clear()
        factorflow.fit(store, model, max_iter=2 + passes, on_event=on_event)
    sparse = [seconds for stage, seconds, _ in ticks if stage == "sparse"]
    spent = np.diff(sparse)
    return {"median": float(np.median(spent)), "least": float(spent.min())}


def product_seconds(values: Array, block_rows: int) -> dict[str, float]:
    """Return CPU seconds of the products of a pass, by their kind, block by block."""
    rng = np.random.default_rng(0)
    n_rows, n_features = values.shape
    q = (N_FACTORS + 1) * (N_FACTORS + 2) // 2
    width = -(-(N_FACTORS + 1) // 8) * 8
    weight = np.where(np.isnan(values), 0.0, 0.2).astype(np.float32)
    w, z = (rng.random((n, width), dtype=np.float32) for n in (n_features, n_rows))
    pw, pz = (rng.random((n, q), dtype=np.float32) for n in (n_features, n_rows))
    cuts = [slice(s, s + block_rows) for s in range(0, n_rows, block_rows)]

    def narrow() -> None:
        for cut in cuts:
            _ = weight[cut] @ w
            _ = weight[cut].T @ z[cut]

    def weighted() -> None:
        for cut in cuts:
            _ = weight[cut] @ pw
            _ = weight[cut].T @ pz[cut]

    def second() -> None:
        for cut in cuts:
            _ = pz[cut] @ pw.T

    return {
        "narrow": best_of(narrow, 3),
        "weighted": best_of(weighted, 3),
        "second_moments": best_of(second, 3),
    }


def loop_seconds(values: Array) -> float:
    """Return CPU seconds of E log(1 + e^x) and its derivatives at all entries, by the table."""
    from factorflow.kernels.softplus_table import expected_softplus
    from factorflow.models.sparse_gfa.messages import TILE

    rows = max(1, TILE // values.shape[1])
    mean = np.random.default_rng(0).standard_normal((rows, values.shape[1]), np.float32)
    variance = np.full(mean.shape, 0.3, np.float32)

    def run() -> None:
        for _ in range(0, len(values), rows):
            expected_softplus(mean, variance)

    return best_of(run, 3)


def missing() -> dict[str, float]:
    """Measure a Gaussian view with a tenth of its entries missing."""
    values = with_missing(complete_data(N_ROWS, N_GAUSSIAN), 0.1)["views"]["v"]
    ours, parts = pass_seconds(values, "gaussian", 12), product_seconds(values, 512)
    weighted = parts["narrow"] + parts["weighted"]
    subtracted = parts["narrow"] + 0.5 * parts["weighted"]
    nanoseconds = 1e9 / values.size
    return {
        "seconds_a_pass": ours["median"],
        "least_seconds_a_pass": ours["least"],
        "nanoseconds_an_entry": ours["median"] * nanoseconds,
        "limit_weighted": weighted,
        "limit_subtracted": subtracted,
        "ratio_weighted": ours["median"] / weighted,
        "ratio_subtracted": ours["median"] / subtracted,
    }


def binary() -> dict[str, float]:
    """Measure a complete binary view."""
    values = binary_data(N_ROWS, N_BINARY)["views"]["v"]
    ours, parts = pass_seconds(values, "bernoulli", 12), product_seconds(values, 512)
    loop = loop_seconds(values)
    limit = sum(parts.values()) + loop
    return {
        "seconds_a_pass": ours["median"],
        "least_seconds_a_pass": ours["least"],
        "nanoseconds_an_entry": ours["median"] * 1e9 / values.size,
        "products": sum(parts.values()),
        "loop": loop,
        "limit": limit,
        "ratio": ours["median"] / limit,
    }


def resident() -> float:
    """Return megabytes of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def memory(kind: str, n_rows: int, n_features: int) -> dict[str, float]:
    """Measure the peak of a fit of a stored dataset, in this process (a fresh one)."""
    import factorflow
    from factorflow.models.sparse_gfa import SparseGFA

    likelihood = "bernoulli" if kind == "binary" else "gaussian"
    model = SparseGFA(n_factors=N_FACTORS, warmup_iter=3)

    def values_of(n: int) -> Array:
        values = binary_data(n, n_features) if kind == "binary" else complete_data(n, n_features)
        return (with_missing(values, 0.1) if kind == "missing" else values)["views"]["v"]

    with tempfile.TemporaryDirectory() as folder:
        small, large = (Path(folder) / name for name in ("small.zarr", "large.zarr"))
        factorflow.write_dataset(small, {"v": values_of(1000)}, {"v": likelihood})
        write = [sys.executable, str(Path(__file__).resolve()), "--write", kind, str(n_rows), str(n_features)]
        subprocess.run([*write, str(large)], check=True)  # elsewhere: its arrays are not to count
        factorflow.fit(small, model, max_iter=6)
        store = factorflow.open_dataset(large)
        before = resident()
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        factorflow.fit(store, model, max_iter=6)
        status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024 / 1e6
    block = store.block_rows * n_features * 4 / 1e6
    dataset = n_rows * n_features * 4 / 1e6
    return {
        "peak_megabytes": peak,
        "rise_megabytes": peak - before,
        "block_megabytes": block,
        "dataset_megabytes": dataset,
        "rise_over_block": (peak - before) / block,
        "rise_over_dataset": (peak - before) / dataset,
    }


def write(kind: str, n_rows: int, n_features: int, path: Path) -> None:
    """Write the data of `memory`, 5000 rows at a time."""
    import factorflow

    rng = np.random.default_rng(0)
    loadings = rng.standard_normal((10, n_features)).astype(np.float32)
    values = np.empty((n_rows, n_features), np.float32)
    for start in range(0, n_rows, 5000):
        part = values[start : start + 5000]
        part[:] = rng.standard_normal((len(part), 10), dtype=np.float32) @ loadings
        part += 2 * rng.standard_normal(part.shape, dtype=np.float32)
        if kind == "missing":
            part[rng.random(part.shape, dtype=np.float32) < 0.1] = np.nan
    if kind == "binary":
        values = (values > 0).astype(np.int8)
    factorflow.write_dataset(path, {"v": values}, {"v": "bernoulli" if kind == "binary" else "gaussian"})


def main() -> None:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = ("missing", "binary", "memory")
    parser.add_argument("--parts", nargs="*", choices=parts, default=list(parts))
    parser.add_argument("--rows", type=int, default=40_000, help="samples of the memory part")
    parser.add_argument("--kinds", nargs="*", default=["complete", "missing", "binary"])
    parser.add_argument("--out", type=Path, help="results; those of other parts that it holds are kept")
    parser.add_argument("--write", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.write:
        kind, n_rows, n_features, path = a.write
        write(kind, int(n_rows), int(n_features), Path(path))
        return
    if a.memory:
        print(json.dumps(memory(a.memory[0], int(a.memory[1]), N_GAUSSIAN)))
        return
    results = json.loads(a.out.read_text()) if a.out and a.out.exists() else {}
    if {"missing", "binary"} & set(a.parts):
        results["limits"] = machine_limits()
    for part in a.parts:
        if part != "memory":
            results[part] = {"missing": missing, "binary": binary}[part]()
            print(part, json.dumps(results[part], indent=1), flush=True)
            continue
        for kind in a.kinds:
            command = [sys.executable, str(Path(__file__).resolve()), "--memory", kind, str(a.rows)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results[f"memory {kind}"] = json.loads(done.stdout.strip().splitlines()[-1])
            print(part, kind, json.dumps(results[f"memory {kind}"], indent=1), flush=True)
    if a.out:
        a.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
