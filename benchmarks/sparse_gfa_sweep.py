"""What a sweep of the sampler of sparse group factor analysis costs, in passes of the variational fit.

Two views of N samples and D features in all, K sparse factors, entries Gaussian or of their signs ("binary");
CPU seconds of one core. Usage::

    python benchmarks/sparse_gfa_sweep.py --out benchmarks/results/sparse_gfa_sweep.json [--rounds 5]

A round is three variational fits, a fit with draws of two chains, and three more fits, one after the other,
since the speed of a machine that others use, too, changes within minutes: a sweep is what the fit with draws
takes longer over the sweeps of both chains, everything counted that a run does besides (writing draws, making
the posterior), a pass the mean of the six fits over their iterations. Printed: milliseconds of both, the
median of the ratios of all rounds, and all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(
    dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")  # one core each
)

import numpy as np  # noqa: E402

CASES = (
    (50, 40, 3, "gaussian", 500),
    (100, 40, 3, "gaussian", 500),
    (400, 40, 3, "bernoulli", 300),
    (1000, 200, 5, "gaussian", 100),
    (1000, 200, 5, "bernoulli", 100),
    (200, 5000, 5, "bernoulli", 100),
    (1000, 200, 15, "gaussian", 100),
    (200, 5000, 5, "gaussian", 100),
    (60, 3000, 4, "gaussian", 100),
    (40, 6000, 8, "gaussian", 100),
    (30, 10000, 3, "gaussian", 100),
    (5000, 500, 5, "gaussian", 50),
)
"""N, D, K, likelihood, and draws of each chain."""
FITS, CHAINS, BURN_IN = 3, 2, 100


def simulate(n_rows: int, n_features: int, n_factors: int, likelihood: str) -> dict[str, Any]:
    """Return two views of as many features."""
    rng = np.random.default_rng([n_rows, n_features])
    w = rng.normal(size=(n_features, n_factors)) * (rng.random((n_features, n_factors)) < 0.4)
    y = rng.normal(size=(n_rows, n_factors)) @ w.T + rng.normal(size=(n_rows, n_features))
    y = (y > 0.0).astype(np.float64) if likelihood == "bernoulli" else y
    return {"a": y[:, : n_features // 2], "b": y[:, n_features // 2 :]}


def run(n_rows: int, n_features: int, n_factors: int, likelihood: str, draws: int, rounds: int) -> Any:
    """Return what a pass and a sweep take, and the ratios of all rounds."""
    import factorflow
    from factorflow.models import SparseGFA

    views = simulate(n_rows, n_features, n_factors, likelihood)
    with tempfile.TemporaryDirectory() as folder:
        dataset = factorflow.write_dataset(Path(folder, "data"), views, dict.fromkeys(views, likelihood))

        def taken(fits: int, **options: int) -> tuple[float, int]:
            begun = time.process_time()
            for _ in range(fits):
                model = SparseGFA(n_factors=2 * n_factors, **options)
                fit = factorflow.fit(dataset, model, seed=1, progress=False)
            return time.process_time() - begun, int(fit.trace.sizes["iteration"])

        taken(1, n_draws=3, chains=CHAINS, n_burn_in=2)  # compiles what is compiled
        passes, sweeps = [], []
        for _ in range(rounds):
            before, iterations = taken(FITS)
            seconds, _ = taken(1, n_draws=draws, chains=CHAINS, n_burn_in=BURN_IN)
            fit = (before + taken(FITS)[0]) / (2 * FITS)
            passes.append(fit / iterations)
            sweeps.append((seconds - fit) / (CHAINS * (draws + BURN_IN)))
    ratios = np.array(sweeps) / passes
    return {
        "pass, ms": round(1e3 * float(np.median(passes)), 2),
        "sweep, ms": round(1e3 * float(np.median(sweeps)), 2),
        "ratio": round(float(np.median(ratios)), 2),
        "ratios": np.round(ratios, 2).tolist(),
    }


def main() -> None:
    """Run all cases; print and write what they took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    found: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg(),
    }
    for case in CASES:
        n_rows, n_features, n_factors, likelihood, _ = case
        name = f"{n_rows} x {n_features}, {n_factors} factors, {likelihood}"
        found[name] = run(*case, options.rounds)
        print(name, found[name], flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
