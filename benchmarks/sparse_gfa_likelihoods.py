"""Sparse GFA under likelihoods that users choose, beside the default one, on simulated data.

Three sparse factors, 60 features, a tenth of the entries hidden. Usage::

    python benchmarks/sparse_gfa_likelihoods.py --out benchmarks/results/sparse_gfa_likelihoods.json \\
        [--first 3000] [--sets 10] [--rows 100 300] [--only "outliers" ...]

For each kind of data and fit: in how many sets how many factors were found; the correlation of each true
factor's scores with the found factor that is most like it, the mean over factors and sets (0 where there is
none); log likelihood of hidden entries, the mean above that of the default fit of the same set, with its
standard error; the share of hidden entries within 90 % intervals; CPU seconds of a fit, the median.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set
from scipy.special import expit  # noqa: E402

DATA: dict[str, tuple[str, tuple[dict[str, Any], ...]]] = {
    "normal noise": ("gaussian", ({}, {"likelihoods": "student_t"}, {"loadings": "horseshoe"})),
    "t of 4 degrees": ("gaussian", ({}, {"likelihoods": "student_t"})),
    "outliers": ("gaussian", ({}, {"likelihoods": "student_t"})),
    "2 trials": ("poisson", ({}, {"likelihoods": "binomial(trials=2)"})),
    "20 trials": ("poisson", ({}, {"likelihoods": "binomial(trials=20)"})),
    "heavy loadings": ("gaussian", ({}, {"loadings": "horseshoe"}, {"loadings": "ard"})),
}
"""By kind of data, how entries are stored, and the options of the fits; the first is the default."""


def simulate(kind: str, n_rows: int, seed: int) -> tuple[Any, Any]:
    """Return scores (N, 3) and entries (N, 60)."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((n_rows, 3))
    loadings = rng.standard_normal((60, 3)) * (rng.random((60, 3)) < 0.4)
    if kind == "heavy loadings":
        loadings = 0.3 * rng.standard_cauchy((60, 3)).clip(-15.0, 15.0)
    x = scores @ loadings.T + 0.5 * rng.standard_normal(60)
    noise = 0.7 * (rng.standard_t(4, x.shape) if kind == "t of 4 degrees" else rng.standard_normal(x.shape))
    if kind == "outliers":
        noise = noise + 20.0 * rng.standard_normal(x.shape) * (rng.random(x.shape) < 0.03)
    y = rng.binomial(int(kind.split()[0]), expit(x)) if kind.endswith("trials") else x + noise
    return scores, y.astype(np.float32)


def correlations(found: Any, truth: Any) -> float:
    """Return the mean correlation of the true factors with those most like them."""
    if not found.shape[1]:
        return 0.0
    both = np.abs(np.corrcoef(found.T, truth.T)[: found.shape[1], found.shape[1] :])
    return float(both.max(axis=0).mean())


def coverage(posterior: Any, dataset: Any) -> float:
    """Return the share of hidden entries within 90 % intervals."""
    from factorflow.data import Holdout

    ends, hidden = posterior.predict("y", interval=0.9), Holdout.of(posterior.run, None)
    low, high, inside = ends["lower"].to_numpy(), ends["upper"].to_numpy(), []
    for number in range(dataset.n_blocks):
        block, whole = dataset.block(number, ["y"], hidden), dataset.block(number, ["y"])
        rows, features = block.hidden["y"]
        y, at = whole.data["y"][rows, features], (block.start + rows, features)
        inside.append((low[at] <= y) & (y <= high[at]))
    return float(np.concatenate(inside).mean())


def measure(kind: str, n_rows: int, seeds: range) -> list[dict[str, Any]]:
    """Return what each fit of a kind of data found."""
    import factorflow
    from factorflow.models import SparseGFA

    stored, fits = DATA[kind]
    found: list[list[tuple[Any, ...]]] = [[] for _ in fits]
    for seed in seeds:
        scores, y = simulate(kind, n_rows, seed)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = factorflow.write_dataset(Path(folder) / "d", {"y": y}, {"y": stored})
            for results, options in zip(found, fits, strict=True):
                begun = time.process_time()
                fit = factorflow.fit(data, SparseGFA(n_factors=10, **options), holdout=0.1, progress=False)
                seconds = time.process_time() - begun
                likely = float(fit.holdout_scores()["log_likelihood"]["y"])
                r = correlations(fit.scores().to_numpy(), scores)
                results.append((len(fit.factors), r, likely, coverage(fit, data), seconds))
    rows = []
    for results, options in zip(found, fits, strict=True):
        numbers, r, likely, inside, seconds = map(np.array, zip(*results, strict=True))
        gain = likely - np.array([first[2] for first in found[0]])
        rows.append(
            {
                "data": kind,
                "samples": n_rows,
                "fit": options,
                "factors": {str(n): c for n, c in sorted(Counter(numbers.tolist()).items())},
                "correlation": round(float(r.mean()), 4),
                "above_default": round(float(gain.mean()), 4),
                "above_default_error": round(float(gain.std(ddof=1) / np.sqrt(len(gain))), 4),
                "covered_90": round(float(inside.mean()), 4),
                "seconds": round(float(np.median(seconds)), 3),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--first", type=int, default=3000, help="first seed")
    parser.add_argument("--sets", type=int, default=10)
    parser.add_argument("--rows", type=int, nargs="+", default=[100, 300])
    parser.add_argument("--only", nargs="+", choices=DATA, default=list(DATA))
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.sets)
    rows = [row for kind in given.only for n in given.rows for row in measure(kind, n, seeds)]
    if given.out is not None:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, one thread"
        given.out.write_text(json.dumps({"machine": machine, "first": given.first, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
