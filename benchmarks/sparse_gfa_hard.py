"""How many factors sparse GFA counts and finds in sets that are harder than those of the truth table.

Each of seventeen sets breaks one assumption or goes to one edge: noise and scales by feature, features
without noise, weak, sparse or many factors, heavy tails, outliers, a factor of one small view, absent
samples, rare binary features, few samples. Loadings are w = s N(0, 1), s ~ Bern(0.4), scores N(0, 1), noise
of variance 1 unless a set says more. Usage::

    python benchmarks/sparse_gfa_hard.py --out benchmarks/results/sparse_gfa_hard.json \\
        [--seeds 9500 9501 9502] [--sets NAME ...] [--draws 2] [--products 1] [--count]

Printed for each set and seed: the true number, how many components were counted before the fit, how many
factors were kept, passes. ``--draws`` and ``--products`` change constants of the count (`start.count`);
``--count``: nothing is fitted.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import tempfile
from pathlib import Path

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set
from scipy.special import expit  # noqa: E402


def signal(rng, z, D, share=0.4, size=1.0):
    """Return z w' of sparse loadings; every factor has at least three features that load on it."""
    w = rng.standard_normal((D, z.shape[1])) * (rng.random((D, z.shape[1])) < share)
    for k in range(z.shape[1]):
        w[rng.choice(D, min(3, D), replace=False), k] += rng.choice([-1.0, 1.0], min(3, D))
    return z @ (w * size).T


def gaussian(rng, N, D, K=3, noise=1.0, **loadings):
    x = signal(rng, rng.standard_normal((N, K)), D, **loadings)
    return x + noise * rng.standard_normal(x.shape)


def binary(rng, x):
    return (rng.random(x.shape) < expit(x)).astype(float)


def counts(rng, x, mean=5.0):
    """Return counts of which a fifth of the variance is of the factors."""
    return rng.poisson(mean * np.exp(np.sqrt(0.25 / mean) * x / x.std())).astype(float)


def noise_by_feature(rng):
    return [gaussian(rng, 400, 60, noise=np.exp(0.7 * rng.standard_normal(60)))], 3


def scales_by_feature(rng):
    return [gaussian(rng, 400, 60) * np.exp(1.5 * rng.standard_normal(60))], 3


def features_without_noise(rng):
    return [gaussian(rng, 2000, 30, noise=np.where(np.arange(30) < 5, 0.03, 1.0))], 3


def strong_and_weak(rng):
    return [gaussian(rng, 400, 100, size=np.array([5.0, 1.0, 0.35]))], 3


def sparse_loadings(rng):
    return [gaussian(rng, 300, 300, share=0.04)], 3


def ten_factors(rng):
    return [gaussian(rng, 500, 100, K=10)], 10


def t4_errors(rng):
    x = signal(rng, rng.standard_normal((400, 3)), 60)
    return [x + rng.standard_t(4, x.shape) / np.sqrt(2)], 3


def factor_of_small_view(rng):
    z = rng.standard_normal((200, 3))
    wide, small = signal(rng, z[:, :2], 1000), signal(rng, z[:, 2:], 10, share=1.0)
    return [wide + rng.standard_normal(wide.shape), small + rng.standard_normal(small.shape)], 3


def samples_absent(rng):
    z, views = rng.standard_normal((300, 3)), []
    for D in (80, 60, 40):
        x = signal(rng, z, D)
        views.append(np.where(rng.random((300, 1)) < 0.3, np.nan, x + rng.standard_normal(x.shape)))
    return views, 3


def rare_binary_features(rng):
    base = np.log(1 / rng.uniform(0.02, 0.15, 100) - 1)
    return [binary(rng, signal(rng, rng.standard_normal((1000, 3)), 100, size=1.5) - base)], 3


def weak_factors(rng):
    return [gaussian(rng, 5000, 20, size=np.array([1.0, 0.3, 0.2]))], 3


def five_binary_factors(rng):
    return [binary(rng, signal(rng, rng.standard_normal((800, 5)), 120, size=1.2))], 5


def outlying_samples(rng):
    x = signal(rng, rng.standard_normal((300, 3)), 60)
    return [x + np.where(np.arange(300) < 9, 6.0, 1.0)[:, None] * rng.standard_normal(x.shape)], 3


def thirty_samples(rng):
    return [gaussian(rng, 30, 200)], 3


def own_factors_of_views(rng):
    z, views = rng.standard_normal((400, 5)), []
    for m in range(4):
        x = signal(rng, z[:, [0, m + 1]], 40)
        views.append(x + rng.standard_normal(x.shape))
    return views, 5


def absent_binary_beside_counts(rng):
    z = rng.standard_normal((500, 3))
    b = np.where(rng.random((500, 1)) < 0.5, np.nan, binary(rng, signal(rng, z, 60)))
    return [counts(rng, signal(rng, z, 60)), b], 3


def noise_with_heavy_tails(rng):
    return [rng.standard_t(3, (400, 60))], 0


SETS = {
    "noise by feature, log-normal (400 x 60)": (noise_by_feature, "g", 12),
    "scales by feature, log-normal (400 x 60)": (scales_by_feature, "g", 12),
    "five features nearly without noise (2000 x 30)": (features_without_noise, "g", 12),
    "strong and weak: sizes 5, 1, .35 (400 x 100)": (strong_and_weak, "g", 12),
    "4 % of loadings (300 x 300)": (sparse_loadings, "g", 12),
    "ten factors (500 x 100)": (ten_factors, "g", 20),
    "t4 errors (400 x 60)": (t4_errors, "g", 12),
    "factor of a small view (200 x (1000, 10))": (factor_of_small_view, "gg", 12),
    "samples absent (300 x (80, 60, 40))": (samples_absent, "ggg", 12),
    "rare binary features (1000 x 100)": (rare_binary_features, "b", 10),
    "weak factors, N >> D (5000 x 20)": (weak_factors, "g", 8),
    "five binary factors (800 x 120)": (five_binary_factors, "b", 12),
    "outlying samples (300 x 60)": (outlying_samples, "g", 12),
    "thirty samples (30 x 200)": (thirty_samples, "g", 12),
    "four views with own factors (400 x 4 x 40)": (own_factors_of_views, "gggg", 12),
    "half-absent binary beside counts (500 x (60, 60))": (absent_binary_beside_counts, "pb", 10),
    "noise with heavy tails (400 x 60)": (noise_with_heavy_tails, "g", 10),
}
"""Generator, a letter of the likelihood of each view, `n_factors`."""
KINDS = {"g": "gaussian", "b": "bernoulli", "p": "poisson"}


def simulate(name, seed):
    """Return views, their likelihoods, the true number, and ``n_factors``."""
    make, letters, most = SETS[name]
    views, true = make(np.random.default_rng([seed, list(SETS).index(name)]))
    return views, [KINDS[c] for c in letters], true, most


def main() -> None:
    """Run the sets and write the table."""
    import factorflow
    from factorflow.models import SparseGFA
    from factorflow.models.sparse_gfa.start import count, signs

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=[9500, 9501, 9502])
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS))
    parser.add_argument("--draws", type=int, default=count.FLIPS)
    parser.add_argument("--products", type=int, default=count.PRODUCTS)
    parser.add_argument("--count", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    signs.FLIPS = count.FLIPS = options.draws
    count.PRODUCTS = options.products
    table = json.loads(options.out.read_text()) if options.out.exists() else {}
    table["machine"] = {"machine": platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()}
    rows, n_right, n_counted, n_below, surplus = {}, 0, 0, 0, 0
    for name in options.sets:
        for seed in options.seeds:
            views, kinds, true, most = simulate(name, seed)
            data = {f"v{m}": y.astype(np.float32) for m, y in enumerate(views)}
            with tempfile.TemporaryDirectory() as folder:
                dataset = factorflow.write_dataset(
                    Path(folder) / "d.zarr", data, dict(zip(data, kinds, strict=True))
                )
                last = {"max_iter": 1} if options.count else {}
                fit = factorflow.fit(dataset, SparseGFA(n_factors=most), progress=False, **last)
            counted, kept = int(fit.variable("n_factors_counted")), len(fit.factors)
            n_right, n_counted = n_right + (kept == true), n_counted + (counted == true)
            n_below, surplus = n_below + (counted < true), surplus + max(counted - true, 0)
            row = {"true": true, "counted": counted}
            if not options.count:
                row |= {"kept": kept, "passes": fit.run["n_iterations"]}
            rows.setdefault(name, []).append(row)
            print(f"{name}, seed {seed}:", row, flush=True)
    total = {"sets": sum(map(len, rows.values())), "counted": n_counted}
    total |= {"counted_below": n_below, "counted_surplus": surplus}
    if not options.count:
        total |= {"kept": n_right}
    key = f"{options.draws} draws, {options.products} products, seeds {options.seeds}"
    table[key + (", count" if options.count else "")] = {"right": total, "sets": rows}
    print(total)
    options.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
