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
from collections.abc import Callable
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
    "gamma of shape 2": ("gaussian", ({}, {"likelihoods": "gamma"}, {"likelihoods": "lognormal"})),
    "lognormal": ("gaussian", ({}, {"likelihoods": "lognormal"}, {"likelihoods": "gamma"})),
    "beta of precision 10": ("gaussian", ({}, {"likelihoods": "beta"}, {"likelihoods": "logit_normal"})),
    "logit-normal": ("gaussian", ({}, {"likelihoods": "logit_normal"}, {"likelihoods": "beta"})),
    "30 % zeros": (
        "poisson",
        (
            {},
            {"likelihoods": "negative_binomial"},
            {"likelihoods": "zero_inflated_poisson"},
            {"likelihoods": "zero_inflated_negative_binomial"},
        ),
    ),
    "5 levels": ("poisson", ({}, {"likelihoods": "ordinal"})),
    "coverage": ("poisson", ({"likelihoods": "poisson"}, {})),
    "heavy loadings": (
        "gaussian",
        ({}, {"loadings": "horseshoe"}, {"loadings": "adaptive_shrinkage"}, {"loadings": "ard"}),
    ),
}
"""By kind of data, how entries are stored, and the options of the fits; the first is the default."""


def simulate(kind: str, n_rows: int, seed: int) -> tuple[Any, Any, dict[str, Any]]:
    """Return scores (N, 3), entries (N, 60), and what else is said of them at ingest."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((n_rows, 3))
    loadings = rng.standard_normal((60, 3)) * (rng.random((60, 3)) < 0.4)
    if kind == "heavy loadings":
        loadings = 0.3 * rng.standard_cauchy((60, 3)).clip(-15.0, 15.0)
    x = scores @ loadings.T + 0.5 * rng.standard_normal(60)
    noise = 0.7 * (rng.standard_t(4, x.shape) if kind == "t of 4 degrees" else rng.standard_normal(x.shape))
    if kind == "outliers":
        noise = noise + 20.0 * rng.standard_normal(x.shape) * (rng.random(x.shape) < 0.03)
    cuts = np.array([-1.5, -0.5, 0.5, 1.5])[:, None, None]
    coverage = rng.poisson(rng.gamma(1.0, 12.0, x.shape))
    small = 0.7 * x  # of logarithms: larger ones are of no assay
    draws: dict[str, Callable[[], Any]] = {
        "gamma of shape 2": lambda: rng.gamma(2.0, np.exp(small) / 2.0),
        "lognormal": lambda: np.exp(small + noise),
        "beta of precision 10": lambda: rng.beta(10 * expit(x), 10 * expit(-x)).clip(1e-5, 1 - 1e-5),
        "logit-normal": lambda: expit(x + noise),
        "30 % zeros": lambda: (
            rng.poisson(rng.gamma(4.0, np.exp(small + 2.0) / 4.0)) * (rng.random(x.shape) > 0.3)
        ),
        "5 levels": lambda: (1.5 * x + rng.logistic(size=x.shape) > cuts).sum(axis=0),
        "coverage": lambda: rng.binomial(coverage, expit(x)),
    }
    if kind in draws:
        y = draws[kind]()
    elif kind.endswith("trials"):
        y = rng.binomial(int(kind.split()[0]), expit(x))
    else:
        y = x + noise
    return scores, y.astype(np.float32), {"trials": {"y": coverage}} if kind == "coverage" else {}


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
        scores, y, said = simulate(kind, n_rows, seed)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = factorflow.write_dataset(Path(folder) / "d", {"y": y}, {"y": stored}, **said)
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


LIMITS = ("limits", "left out", "half a sd below", "at the limit")
"""What becomes of values below a limit of detection."""


def measure_limits(n_rows: int, seeds: range) -> list[dict[str, Any]]:
    """Return what each treatment of values below a common limit, 30 % of all, makes of loadings and noise."""
    import factorflow
    from factorflow.data import Holdout
    from factorflow.models import SparseGFA

    found: dict[str, list[tuple[float, ...]]] = {how: [] for how in LIMITS}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        z, w = rng.standard_normal((n_rows, 3)), rng.standard_normal((60, 3)) * (rng.random((60, 3)) < 0.35)
        x = z @ w.T + rng.standard_normal(60)
        y = x + 0.6 * rng.standard_normal(x.shape)
        limit = np.quantile(y, 0.3)
        kept = (y < limit).mean(axis=0) < 0.9
        x, y, w = x[:, kept], y[:, kept], w[kept]
        below, sd = y < limit, y.std()
        for how in LIMITS:
            instead = {"left out": np.nan, "half a sd below": limit - 0.5 * sd}.get(how, limit)
            values = np.where(below, instead, y)
            said = {"limits": {"y": (limit, None)}} if how == "limits" else {"likelihoods": {"y": "gaussian"}}
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                data = factorflow.write_dataset(Path(folder) / "d", {"y": values}, **said)
                fit = factorflow.fit(data, SparseGFA(n_factors=8), holdout=0.1, progress=False)
                hidden = np.zeros(y.shape, bool)
                for number in range(data.n_blocks):
                    block = data.block(number, ["y"], Holdout.of(fit.run, None))
                    rows, features = block.hidden["y"]
                    hidden[block.start + rows, features] = True
                error = fit.predict("y")["mean"].to_numpy() - x
                turn = np.linalg.lstsq(z, fit.scores().to_numpy(), rcond=None)[0]
                loadings, many = fit.loadings("y").to_numpy() @ turn.T, below.mean(axis=0) > 0.4
                slopes = [(loadings[of] * w[of]).sum() / (w[of] ** 2).sum() for of in (many, ~many)]
                spread = fit.tree["variational"]
                noise = spread["noise_scale_y"] if how == "limits" else spread["noise_precision_y"] ** -0.5
                beyond = error[below & hidden] if how != "left out" else error[below]
                errors = [(error[hidden] ** 2).mean() ** 0.5, (beyond**2).mean() ** 0.5, beyond.mean()]
                found[how].append((*slopes, *errors, float(noise.mean())))
    names = "slope_censored", "slope_others", "rmse_hidden", "rmse_below", "bias_below", "noise_sd"
    rows = []
    for how, results in found.items():
        means = np.mean(results, axis=0).round(3).tolist()
        rows.append({"values": how, "samples": n_rows, **dict(zip(names, means, strict=True))})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--first", type=int, default=3000, help="first seed")
    parser.add_argument("--sets", type=int, default=10)
    parser.add_argument("--rows", type=int, nargs="+", default=[100, 300])
    parser.add_argument("--only", nargs="+", choices=[*DATA, "limits"], default=[*DATA, "limits"])
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.sets)
    rows = [
        row for kind in given.only if kind != "limits" for n in given.rows for row in measure(kind, n, seeds)
    ]
    limits = measure_limits(200, seeds) if "limits" in given.only else []
    if given.out is not None:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, one thread"
        found = {"machine": machine, "first": given.first, "rows": rows, "limits": limits}
        given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
