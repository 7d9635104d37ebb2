"""How many factors sparse group factor analysis finds in simulated data, and what it costs.

Three factors, z ~ N(0, 1), w = s N(0, 1), s ~ Bern(0.4), noise of variance 1 (Gaussian) or a logistic model;
counts are those of ``sparse_gfa_counts.py`` (a fifth of their variance in the factors); of "mixed" views, in
this order, the second is counts of mean 5 and the third binary. Usage::

    python benchmarks/sparse_gfa_truth.py --out benchmarks/results/sparse_gfa_truth.json \\
        [--first 40] [--sets 10] [--seconds 600] [--cases NAME ...]

Printed for each case and number of factors at the start: in how many sets how many factors were found, and
CPU seconds of a fit, the median. "noise" has no factors; "wide and small" is a view of three features beside
one of 4000, of 500 or of 20 000: there for each set also the share of the small view's variance that is
explained, by the true signal and by the fit (`variance_explained_total`), and the least noise variance of its
features (1 is drawn): a factor that stands for the noise of a feature would take it down (a Heywood case).
With "both noises" samples have precisions of their own in the model (``noise="both"``), in truth none.
Rules and constants of the family were chosen while looking at seeds below 40: a table of others says more.
``--seconds``: where a row takes longer (CPU), it ends with the sets it has.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set

FACTORS, SHARE = 3, 0.4
SMALL = 3
"""Features of a last view whose share explained is looked at."""
MISSING = {"a fifth missing": 0.2, "half missing": 0.5}
"""Share of the entries that are missing, by the end of a name."""
OPTIONS = {"both noises": {"noise": "both"}}
"""Options, by words of a name."""
BLOCK_ROWS = 256
"""Rows of a block where there are options: several blocks."""
MIXED, MEAN = ("gaussian", "poisson", "bernoulli"), 5.0
CASES: dict[str, tuple[int, tuple[int, ...], str, int, tuple[int, ...]]] = {
    "1000 x 20": (1000, (20,), "gaussian", FACTORS, (5, 8, 20)),
    "10 000 x 20": (10_000, (20,), "gaussian", FACTORS, (5, 8)),
    "40 000 x 20": (40_000, (20,), "gaussian", FACTORS, (8,)),
    "100 000 x 20": (100_000, (20,), "gaussian", FACTORS, (8, 20)),
    "2000 x 20, a fifth missing": (2000, (20,), "gaussian", FACTORS, (8,)),
    "10 000 x 20, half missing": (10_000, (20,), "gaussian", FACTORS, (8,)),
    "100 000 x 20, a fifth missing": (100_000, (20,), "gaussian", FACTORS, (8,)),
    "5000 x 100, a fifth missing": (5000, (100,), "gaussian", FACTORS, (20,)),
    "noise 5000 x 20, a fifth missing": (5000, (20,), "gaussian", 0, (8,)),
    "200 x 200": (200, (200,), "gaussian", FACTORS, (8, 30)),
    "200 x 200, a fifth missing": (200, (200,), "gaussian", FACTORS, (8,)),
    "100 x 5000": (100, (5000,), "gaussian", FACTORS, (8,)),
    "100 x 20 000": (100, (20_000,), "gaussian", FACTORS, (8,)),
    "300 x 20 000": (300, (20_000,), "gaussian", FACTORS, (5, 30)),
    "mixed 300 x (60, 40, 40)": (300, (60, 40, 40), "mixed", FACTORS, (5, 15)),
    "mixed 2000 x (20, 10, 10)": (2000, (20, 10, 10), "mixed", FACTORS, (8,)),
    "mixed 2000 x (20, 10, 10), a fifth missing": (2000, (20, 10, 10), "mixed", FACTORS, (8, 30)),
    "mixed 2400 x (10, 200, 100), a fifth missing": (2400, (10, 200, 100), "mixed", FACTORS, (14,)),
    "mixed 100 x (1000, 200, 200)": (100, (1000, 200, 200), "mixed", FACTORS, (8,)),
    "noise, mixed 200 x (40, 40, 40)": (200, (40, 40, 40), "mixed", 0, (5,)),
    "noise, mixed 2400 x (10, 200, 100), a fifth missing": (2400, (10, 200, 100), "mixed", 0, (14,)),
    "wide and small": (250, (4000, 3), "gaussian", FACTORS, (6,)),
    "wide and small, 500": (250, (500, 3), "gaussian", FACTORS, (6,)),
    "wide and small, 20 000": (250, (20_000, 3), "gaussian", FACTORS, (6,)),
    "1100 x (370, 3), a fifth missing": (1100, (370, 3), "gaussian", FACTORS, (6,)),
    "2400 x (290, 20), a fifth missing": (2400, (290, 20), "gaussian", FACTORS, (20,)),
    "1100 x (370, 11), both noises": (1100, (370, 11), "gaussian", FACTORS, (12,)),
    "1100 x (370, 11), both noises, a fifth missing": (1100, (370, 11), "gaussian", FACTORS, (12,)),
    "noise 2600 x (380, 12), both noises, a fifth missing": (2600, (380, 12), "gaussian", 0, (14,)),
    "noise 100 x 100": (100, (100,), "gaussian", 0, (5,)),
    "noise 2600 x (380, 12)": (2600, (380, 12), "gaussian", 0, (14,)),
    "noise 60 x 40": (60, (40,), "gaussian", 0, (5,)),
    "noise 100 x 100, binary": (100, (100,), "bernoulli", 0, (5,)),
    "binary 200 x 40": (200, (40,), "bernoulli", FACTORS, (5, 15)),
    "binary 1000 x 200": (1000, (200,), "bernoulli", FACTORS, (8,)),
    "binary 10 000 x 20": (10_000, (20,), "bernoulli", FACTORS, (8,)),
    "binary 2000 x 100": (2000, (100,), "bernoulli", FACTORS, (15,)),
    "binary 20 000 x 20, a fifth missing": (20_000, (20,), "bernoulli", FACTORS, (8,)),
    "binary 700 x (300, 200)": (700, (300, 200), "bernoulli", FACTORS, (5,)),
    "counts of mean 0.5, 300 x 60": (300, (60,), "poisson 0.5", FACTORS, (8,)),
    "counts of mean 5, 300 x 60": (300, (60,), "poisson 5", FACTORS, (8,)),
    "counts of mean 5, 2000 x 20, a fifth missing": (2000, (20,), "poisson 5", FACTORS, (8,)),
    "counts of mean 100, 300 x 60": (300, (60,), "poisson 100", FACTORS, (8,)),
}
"""Samples, features of each view, likelihood (and mean count), true factors, factors at the start."""


def simulated(n_rows: int, sizes: tuple[int, ...], likelihood: str, n_factors: int, seed: int) -> Any:
    """Return views of a sparse factor model."""
    return with_signals(n_rows, sizes, likelihood, n_factors, seed)[0]


def with_signals(n_rows: int, sizes: tuple[int, ...], likelihood: str, n_factors: int, seed: int) -> Any:
    """Return views of a sparse factor model, and z w' of each (none of counts alone)."""
    if likelihood.startswith("poisson"):
        from sparse_gfa_counts import simulate

        return {"v0": simulate(seed, n_rows, sizes[0], float(likelihood.split()[1]), 0.0, 0.2)[1]}, {}
    rng = np.random.default_rng([seed, n_rows, sum(sizes)])
    scores, views, signals = rng.standard_normal((n_rows, n_factors)), {}, {}
    for m, size in enumerate(sizes):
        loadings = rng.standard_normal((size, n_factors)) * (rng.random((size, n_factors)) < SHARE)
        x = signals[f"v{m}"] = scores @ loadings.T
        kind = MIXED[m] if likelihood == "mixed" else likelihood
        if kind == "poisson":
            spread = np.sqrt(MEAN * 0.25) / -np.expm1(-MEAN) / (x.std() or 1.0)  # a fifth of the variance
            rate = np.logaddexp(0.0, np.log(np.expm1(MEAN)) + spread * x)
            views[f"v{m}"] = rng.poisson(rate).astype(np.float32)
        elif kind == "bernoulli":
            views[f"v{m}"] = (rng.random(x.shape) < 1.0 / (1.0 + np.exp(-x))).astype(np.int8)
        else:
            views[f"v{m}"] = (x + rng.standard_normal(x.shape)).astype(np.float32)
    return views, signals


def with_gaps(views: Any, name: str, seed: int) -> Any:
    """Return the views of a case without the entries that its name says are missing, each as likely."""
    share = MISSING.get(name.rpartition(", ")[2])
    if share is None:
        return views
    rng = np.random.default_rng([seed, 1])
    return {
        view: np.where(rng.random(y.shape) < share, np.nan, y).astype(np.float32) for view, y in views.items()
    }


def explained(y: Any, signal: Any) -> float:
    """Return the share of the variance of a view that its signal explains, but for means."""
    noise = y - signal
    return float(1.0 - ((noise - noise.mean(axis=0)) ** 2).sum() / ((y - y.mean(axis=0)) ** 2).sum())


def found(views: Any, likelihood: str, start: int, **options: Any) -> tuple[int, float, float, float]:
    """Return how many factors a fit finds, its CPU seconds, and of the last view, if Gaussian, more.

    That is the share explained of its variance, and the least noise variance of a feature.
    """
    import factorflow
    from factorflow.models import SparseGFA

    with tempfile.TemporaryDirectory() as folder:
        kinds = MIXED if likelihood == "mixed" else [likelihood.split()[0]] * len(views)
        kinds_of, rows = dict(zip(views, kinds, strict=True)), BLOCK_ROWS if options else None
        data = factorflow.write_dataset(Path(folder) / "d.zarr", views, kinds_of, block_rows=rows)
        begun = time.process_time()
        posterior = factorflow.fit(data, SparseGFA(n_factors=start, **options), out=Path(folder) / "p.zarr")
        seconds = time.process_time() - begun
        last, share, noise = list(views)[-1], np.nan, np.nan
        if kinds[-1] == "gaussian":
            share = float(np.asarray(posterior.variance_explained_total()).ravel()[-1])
            noise = 1.0 / float(posterior.variable(f"noise_precision_{last}").values.max())
        return int(posterior.scores().shape[1]), seconds, share, noise


def main() -> None:
    """Run the cases and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--first", type=int, default=40, help="seed of the first set")
    parser.add_argument("--sets", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    options = parser.parse_args()
    table = json.loads(options.out.read_text()) if options.out.exists() else {}
    table["machine"] = {"machine": platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()}
    found(simulated(60, (20,), "gaussian", 1, 0), "gaussian", 2)  # compiles and imports
    for name in options.cases:
        n_rows, sizes, likelihood, true, starts = CASES[name]
        for start in starts:
            runs: list[tuple[int, float, float, float]] = []
            shares: list[tuple[float, float, float]] = []
            for seed in range(options.first, options.first + options.sets):
                views, signals = with_signals(n_rows, sizes, likelihood, true, seed)
                given = next((OPTIONS[words] for words in OPTIONS if words in name), {})
                runs.append(found(with_gaps(views, name, seed), likelihood, start, **given))
                if sizes[-1] == SMALL:
                    last = list(views)[-1]
                    shares.append((explained(views[last], signals[last]), *runs[-1][2:]))
                if sum(run[1] for run in runs) > options.seconds:
                    break
            counts = Counter(run[0] for run in runs)
            row: dict[str, Any] = {
                "true": true,
                "first_seed": options.first,
                "found": {str(n): counts[n] for n in sorted(counts)},
                "cpu_seconds": round(float(np.median([run[1] for run in runs])), 2),
            }
            if shares:
                names = ("share_true", "share_found", "least_noise")
                columns = np.round(np.transpose(shares), 3).tolist()
                row |= dict(zip(names, columns, strict=True))
            key = f"{name}, from {start}, seeds from {options.first}"
            table[key] = row
            print(f"{key}:", row, flush=True)
            options.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
