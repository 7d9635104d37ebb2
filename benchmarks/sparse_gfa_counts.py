"""Sparse GFA of counts on simulated data: factors found, their correlations, held-out intervals.

Rates are log(1 + e^x) about a mean count, x with three sparse factors that carry a share of its variance with
the noise; with a dispersion each rate is multiplied by a gamma variable of that variance. Beside fits of the
counts stands one of 2 (y + 3/8)^1/2 as measurements. A tenth of the entries is hidden; the share of them
within the 90 % intervals of `Posterior.predict` is what they cover.

    python benchmarks/sparse_gfa_counts.py --sets 3 --out benchmarks/results/sparse_gfa_counts.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from factorflow import fit, write_dataset
from factorflow.models import SparseGFA

SETTINGS = [(mean, 0.0) for mean in (0.5, 2.0, 5.0, 8.0, 20.0, 100.0, 500.0)] + [
    (2.0, 1.0),
    (20.0, 0.5),
    (500.0, 0.1),
]
"""Mean counts and dispersions."""


def simulate(seed, n_rows, n_features, mean, dispersion, share):
    """Return scores (N, 3) and counts (N, D)."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((n_rows, 3))
    loadings = rng.standard_normal((n_features, 3)) * (rng.random((n_features, 3)) < 0.4)
    signal = scores @ loadings.T
    slope = -np.expm1(-mean)
    spread = np.sqrt((mean + dispersion * mean**2) * share / (1.0 - share)) / slope
    rate = np.logaddexp(0.0, np.log(np.expm1(mean)) + spread * signal / signal.std())
    if dispersion:
        rate = rate * rng.gamma(1.0 / dispersion, dispersion, rate.shape)
    return scores, rng.poisson(rate).astype(np.float32)


def run(counts, hidden, folder, kind, options):
    """Return the posterior, CPU seconds and whether a warning of dispersion was given."""
    values = np.where(hidden, np.nan, counts).astype(np.float32)
    values = 2.0 * np.sqrt(values + np.float32(0.375)) if kind == "gaussian" else values
    data = write_dataset(Path(folder) / "data.zarr", {"v": values}, {"v": kind}, overwrite=True)
    begun = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = fit(data, SparseGFA(n_factors=8, **options))
    return posterior, time.process_time() - begun, any("vary" in str(w.message) for w in caught)


def matched(found, scores):
    """Return for each true factor the highest correlation with one that was found."""
    together = np.corrcoef(found.T, scores.T)[: found.shape[1], found.shape[1] :]
    return np.abs(together).max(axis=0, initial=0.0)


def main() -> None:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=3)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--features", type=int, default=60)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    fits = {
        "poisson": ("poisson", {}),
        "negative binomial": ("poisson", {"counts": "negative_binomial"}),
        "root, gaussian": ("gaussian", {}),
    }
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for mean, dispersion in SETTINGS:
            for name, (kind, options) in fits.items():
                found = []
                for seed in range(chosen.sets):
                    scores, counts = simulate(
                        seed, chosen.rows, chosen.features, mean, dispersion, chosen.share
                    )
                    hidden = np.random.default_rng(seed + 1000).random(counts.shape) < 0.1
                    posterior, seconds, warned = run(counts, hidden, folder, kind, options)
                    cover = np.nan
                    if kind == "poisson":
                        predicted = posterior.predict("v", interval=0.9)
                        low, high = (predicted[end].to_numpy()[hidden] for end in ("lower", "upper"))
                        cover = float(np.mean((counts[hidden] >= low) & (counts[hidden] <= high)))
                    r = matched(posterior.scores().to_numpy(), scores)
                    found.append((len(posterior.factors), r.mean(), r.min(), cover, warned, seconds))
                many = "/".join(str(row[0]) for row in found)
                means = np.mean([[float(x) for x in row[1:]] for row in found], axis=0)
                rows.append((mean, dispersion, name, many, *np.round(means, 3).tolist()))
                print(*rows[-1], flush=True)
    if chosen.out:
        names = ("mean", "dispersion", "fit", "factors", "r", "lowest_r", "cover_90", "warned", "cpu_seconds")
        table = [{k: v for k, v in zip(names, row, strict=True) if v == v} for row in rows]
        chosen.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
