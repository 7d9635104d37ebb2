"""The CUDA paths beside the CPU's on one machine, and beside the limits of the card.

    pip install 'factorflow[gpu-cu12]'
    python benchmarks/gpu.py [--quick] [--json benchmarks/results/gpu.json]

- ``limits``: single-precision products and copies of the card, measured in this run;
- ``trajectories``: exact HMC of nonnegative probit factors, a sweep of a block, device beside CPU;
- ``messages``: those of a block of binary entries and of counts, and their share of the card's bandwidth;
- ``fits``: whole runs of sparse GFA with device="cuda" and "cpu": seconds a pass, and how far the bound, the
  scores and the variance explained are apart;
- ``tables``: iterations of molten components of counts on both, beside the time in which the card moves 40
  bytes a row, and how far the bounds and the levels' means are apart;
- ``sequences``: iterations of identities and attributes on both, of frames one by one and of chains, beside
  the time of the matrix products of the former at the rate of one large product of double precision, and how
  far bounds and loadings are apart.

One CPU thread. Without a CUDA device it says so and exits with code 2.
"""

# ruff: noqa: E402  (threads are limited before anything is imported)

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import factorflow
from factorflow.errors import InputError
from factorflow.kernels.device import check_device
from factorflow.kernels.random import Step
from factorflow.likelihoods import get_likelihood
from factorflow.models import IdentityAttribute, MoltenPoisson, SparseGFA
from factorflow.models.probit.kernels.blocks import sweep_block
from factorflow.models.probit.kernels.samplers import HMC, NONNEGATIVE
from factorflow.models.probit.kernels.tables import FactorTables

Array = Any


def seconds(call: Callable[[], Any], repeats: int = 5) -> float:
    """Return the least wall-clock seconds of a call that ends when the device has."""
    import cupy

    times = []
    for _ in range(repeats + 1):  # the first compiles
        begun = time.perf_counter()
        call()
        cupy.cuda.Device().synchronize()
        times.append(time.perf_counter() - begun)
    return min(times[1:])


def limits(size: int) -> dict[str, float]:
    """Return the card's products, of single and of double precision, and copies."""
    import cupy

    matrix, double = cupy.ones((size, size), cupy.float32), cupy.ones((size, size))
    return {
        "gflops": 2e-9 * size**3 / seconds(lambda: matrix @ matrix),
        "double_gflops": 2e-9 * size**3 / seconds(lambda: double @ double),
        "gb_per_second": 2e-9 * matrix.nbytes / seconds(matrix.copy),
    }


def trajectories(n_rows: int) -> dict[str, Any]:
    """One sweep of exact trajectories, K = 10, 100 features, a tenth of the entries missing."""
    import cupy

    rng = np.random.default_rng(0)
    z, offset, odds = rng.normal(size=(10, 100)), rng.normal(size=100), np.full(10, 1.0)
    tables = FactorTables(z, offset, z @ z.T, odds, NONNEGATIVE, HMC, 2.5 * np.pi, 100_000)
    x = rng.integers(0, 2, (n_rows, 100)).astype(np.int8)
    x[rng.random(x.shape) < 0.1] = -1
    factors = (rng.random((n_rows, 10)) < 0.5) * np.abs(rng.normal(size=(n_rows, 10)))
    there = cupy.asarray(x)
    found = {
        "rows": n_rows,
        "cpu_seconds": seconds(lambda: sweep_block(x, 0, factors, tables, Step(1)), 1),
        "gpu_seconds": seconds(lambda: sweep_block(there, 0, factors, tables, Step(1))),
    }
    ours, theirs = (sweep_block(values, 0, factors, tables, Step(1)) for values in (x, there))
    apart = np.abs(cupy.asnumpy(theirs[0]) - ours[0]) > 1e-4
    return found | {
        "ratio": found["cpu_seconds"] / found["gpu_seconds"],
        "share_of_samples_that_differ": float(apart.any(axis=1).mean()),
        "largest_difference_of_mean_factors": float(
            np.abs(cupy.asnumpy(theirs[0]).mean(0) - ours[0].mean(0)).max()
        ),
    }


def messages(n_rows: int, n_features: int, bandwidth: float) -> dict[str, Any]:
    """Value, slope and curvature of every entry: reads the entry, mean and variance, writes three numbers."""
    import cupy

    rng = np.random.default_rng(0)
    m = rng.standard_normal((n_rows, n_features)).astype(np.float32)
    v = np.full(m.shape, 0.3, np.float32)
    counts = rng.poisson(1.0, m.shape).astype(np.float32)
    cases = {"bernoulli": np.minimum(counts, 1.0), "poisson": counts, "negative_binomial": counts}
    out = {}
    for name, y in cases.items():
        density = get_likelihood(name)
        here = y, m, v, np.zeros((density.n_phi, n_features), np.float32)
        there = tuple(cupy.asarray(a) for a in here)
        gpu = seconds(lambda f=density.message, a=there: f(*a))
        ours, theirs = density.message(*here), density.message(*there)
        out[name] = {
            "cpu_ns_per_entry": 1e9 * seconds(lambda f=density.message, a=here: f(*a), 2) / m.size,
            "gpu_ns_per_entry": 1e9 * gpu / m.size,
            "share_of_copy_bandwidth": 1e-9 * 6 * m.nbytes / gpu / bandwidth,
            "largest_difference": max(
                float(np.abs(a - cupy.asnumpy(b)).max()) for a, b in zip(ours, theirs, strict=True)
            ),
        }
    return out


def fits(n_rows: int, n_features: int) -> dict[str, Any]:
    """Whole runs on both, of a fixed number of passes."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((n_rows, 8))
    x = scores @ (rng.standard_normal((n_features, 8)) * (rng.random((n_features, 8)) < 0.3)).T
    gaussian = (x + 2.0 * rng.standard_normal(x.shape)).astype(np.float32)
    gappy = np.where(rng.random(x.shape) < 0.1, np.nan, gaussian).astype(np.float32)
    binary = (rng.random(x.shape) < 1.0 / (1.0 + np.exp(-x))).astype(np.int8)
    counts = rng.poisson(np.exp(0.5 * x)).astype(np.float32)
    kinds = {"gaussian": gaussian, "missing": gappy, "bernoulli": binary, "poisson": counts}
    out = {}
    for name, values in kinds.items():
        likelihood = name if name in {"bernoulli", "poisson"} else "gaussian"
        with tempfile.TemporaryDirectory() as folder:
            data = factorflow.write_dataset(Path(folder) / "d.zarr", {"y": values}, {"y": likelihood})
            model = SparseGFA(n_factors=20, drop=0.0, warmup_iter=6, max_iter=6, tol=1e-12)
            factorflow.fit(data, model, max_iter=2, device="cuda")  # compiles
            runs = {where: factorflow.fit(data, model, device=where) for where in ("cpu", "cuda")}
        out[name] = compare(runs["cpu"], runs["cuda"])
    return out


def tables(n_rows: int, gb_per_second: float) -> dict[str, float]:
    """Counts of a table of 1000 x 200 x 50 levels, 8 components: a fixed number of iterations on both."""
    rng, sizes = np.random.default_rng(0), {"site": 1000, "species": 200, "year": 50}
    cells = np.unravel_index(rng.choice(10_000_000, n_rows, replace=False), tuple(sizes.values()))
    views = {"count": rng.poisson(rng.gamma(0.7, 3.0 / 0.7, n_rows)).astype(float)[:, None]}
    views |= {name: cell.astype(str) for name, cell in zip(sizes, cells, strict=True)}
    inputs = dict.fromkeys(sizes, "categorical")
    with tempfile.TemporaryDirectory() as folder:
        data = factorflow.write_dataset(Path(folder) / "d.zarr", views, {"count": "poisson"}, inputs=inputs)
        model = MoltenPoisson(n_components=8, n_starts=1, max_iter=20, tol=1e-300, drop=0.0)
        factorflow.fit(data, model, max_iter=2, device="cuda")  # compiles
        runs = {where: factorflow.fit(data, model, device=where) for where in ("cpu", "cuda")}
    a, b = (runs[where].loadings("site").values for where in ("cpu", "cuda"))
    found = speeds(runs["cpu"], runs["cuda"]) | {"largest_difference_of_means": float(np.abs(a - b).max())}
    return found | {"times_limit": found["gpu_seconds_a_pass"] / (40e-9 * n_rows / gb_per_second)}


def sequences(n_rows: int, double_gflops: float) -> dict[str, Any]:
    """40 identities of 2 attributes, 100 features, sequences of 200 frames: ten iterations on both."""
    y = np.random.default_rng(1).normal(size=(n_rows, 100)).astype(np.float32)
    names, out = (np.arange(n_rows) // 200).astype(str), {}
    with tempfile.TemporaryDirectory() as folder:
        data = factorflow.write_dataset(Path(folder) / "d.zarr", {"y": y}, {"y": "gaussian"}, sequences=names)
        for way in ("frame", "chain"):
            options = {"factorisation": way, "start": "random", "relevance": False, "tol": 1e-300}
            model = IdentityAttribute(n_identities=40, max_iter=10, **options)
            factorflow.fit(data, model, max_iter=2, device="cuda")  # compiles
            runs = {where: factorflow.fit(data, model, device=where) for where in ("cpu", "cuda")}
            a, b = (runs[where].loadings("y").values for where in ("cpu", "cuda"))
            apart = {"largest_difference_of_loadings": float(np.abs(a - b).max())}
            out[way] = speeds(runs["cpu"], runs["cuda"]) | apart
    limit = 4e-9 * 80 * (100 + 80) * n_rows / double_gflops
    out["frame"]["times_limit"] = out["frame"]["gpu_seconds_a_pass"] / limit
    return out


def speeds(cpu: Any, cuda: Any) -> dict[str, float]:
    """Return seconds a pass on both, and how far the bounds are apart."""
    passes = {"cpu": np.diff(cpu.trace.seconds.values), "gpu": np.diff(cuda.trace.seconds.values)}
    median = {f"{where}_seconds_a_pass": float(np.median(found)) for where, found in passes.items()}
    ours, theirs = cpu.trace.objective.values[-1], cuda.trace.objective.values[-1]
    return median | {
        "ratio": median["cpu_seconds_a_pass"] / median["gpu_seconds_a_pass"],
        "relative_difference_of_bound": float(abs(theirs / ours - 1.0)),
    }


def compare(cpu: Any, cuda: Any) -> dict[str, float]:
    """Return seconds a pass on both, and how far the results are apart."""
    a, b = cpu.scores().values, cuda.scores().values
    return speeds(cpu, cuda) | {
        "largest_difference_of_scores": float(np.abs(a - b).max()),
        "largest_difference_of_variance_explained": float(
            np.abs(cpu.variance_explained().values - cuda.variance_explained().values).max()
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "gpu.json")
    given = parser.parse_args()
    try:
        check_device("cuda", ("cuda",))
    except InputError as error:
        print(f"GPU: not run. {error}", file=sys.stderr)
        sys.exit(2)
    import cupy

    rows, wide = (2048, 1000) if given.quick else (65536, 5000)
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "card": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        "processor": platform.processor() or platform.machine(),
        "versions": {name: version(name) for name in ("numpy", "numba", "numba-cuda")}
        | {"cupy": cupy.__version__},
        "quick": given.quick,
    }
    found["limits"] = limits(2048 if given.quick else 16384)
    gb, double = found["limits"]["gb_per_second"], found["limits"]["double_gflops"]
    parts: dict[str, Callable[[], Any]] = {
        "trajectories": lambda: trajectories(rows),
        "messages": lambda: messages(4096, wide, gb),
        "sequences": lambda: sequences(rows, double),
        "tables": lambda: tables(20 * rows, gb),
        "fits": lambda: fits(rows // 8, wide),
    }
    for name, part in parts.items():
        found[name] = part()
        given.json.write_text(json.dumps(found, indent=1) + "\n")  # amid the next a lease may end
        print(json.dumps({name: found[name]}, indent=1), flush=True)


if __name__ == "__main__":
    main()
