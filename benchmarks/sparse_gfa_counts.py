"""Sparse GFA of counts on simulated data: factors found, their correlations, held-out intervals.

Rates are log(1 + e^x) about a mean count, x with three sparse factors; their share of the variance of the
counts is a fifth (``--share``; the noise has the rest). With a dispersion each rate is multiplied by a gamma
variable of that variance. With ``--log-linear`` rates are e^x. Beside fits of the counts stands one of
2 (y + 3/8)^1/2 as measurements. A tenth of the entries is hidden. Usage::

    python benchmarks/sparse_gfa_counts.py --out benchmarks/results/sparse_gfa_counts.json \\
        [--first 2000] [--sets 10] [--rows 300] [--features 60] [--share 0.2] [--log-linear]

For each setting and fit: how many factors were found in how many sets; ``r``: the correlation of each true
factor's scores with the found factor that is most like it, their mean, with its standard error over sets, and
the lowest; ``r_beside_root``: what that mean is above the one of the Gaussian fit of the same set, with its
standard error, and the same of the sets in which both find three factors, if there are any; the share of
hidden entries within the 90 % intervals of `Posterior.predict` (of roots where roots were fitted), and what
intervals of the true distribution of each entry cover, which is more than 90 % of small counts; in how many
sets counts were said to vary too much; CPU seconds of a fit, the median.
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
from scipy import stats  # noqa: E402

SETTINGS = [(mean, 0.0) for mean in (0.5, 2.0, 5.0, 8.0, 20.0, 100.0, 500.0)] + [
    (2.0, 1.0),
    (20.0, 0.5),
    (500.0, 0.1),
]
"""Mean counts and dispersions."""

FITS: dict[str, tuple[str, dict[str, Any]]] = {
    "poisson": ("poisson", {}),
    "negative binomial": ("poisson", {"likelihoods": "negative_binomial"}),
    "root, gaussian": ("gaussian", {}),
}


def simulate(
    seed: int,
    n_rows: int,
    n_features: int,
    mean: float,
    dispersion: float,
    share: float,
    log_linear: bool = False,
) -> Any:
    """Return scores (N, 3), counts (N, D) and what is expected of each count given the scores."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((n_rows, 3))
    loadings = rng.standard_normal((n_features, 3)) * (rng.random((n_features, 3)) < 0.4)
    signal = scores @ loadings.T
    spread = np.sqrt((mean + dispersion * mean**2) * share / (1.0 - share)) * signal / signal.std()
    if log_linear:
        rate = mean * np.exp(spread / mean)
    else:
        rate = np.logaddexp(0.0, np.log(np.expm1(mean)) + spread / -np.expm1(-mean))
    drawn = rate * rng.gamma(1.0 / dispersion, dispersion, rate.shape) if dispersion else rate
    return scores, rng.poisson(drawn).astype(np.float32), rate


def within(counts: Any, rate: Any, dispersion: float) -> Any:
    """Return which counts lie in the central 90 % interval of the distribution they were drawn from."""
    if dispersion:
        true = stats.nbinom(1.0 / dispersion, 1.0 / (1.0 + dispersion * rate))
    else:
        true = stats.poisson(rate)
    return (counts >= true.ppf(0.05)) & (counts <= true.ppf(0.95))


def matched(found: Any, scores: Any) -> Any:
    """Return for each true factor the highest correlation with one that was found."""
    if not found.shape[1]:
        return np.zeros(scores.shape[1])
    together = np.corrcoef(found.T, scores.T)[: found.shape[1], found.shape[1] :]
    return np.abs(together).max(axis=0)


def run(counts: Any, hidden: Any, scores: Any, kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """Fit one set; return what was found."""
    from factorflow import fit, write_dataset
    from factorflow.models import SparseGFA

    values = 2.0 * np.sqrt(counts + np.float32(0.375)) if kind == "gaussian" else counts
    shown = np.where(hidden, np.nan, values).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = write_dataset(Path(folder) / "data.zarr", {"v": shown}, {"v": kind})
        begun = time.process_time()
        posterior = fit(data, SparseGFA(n_factors=8, **options), progress=False)
        seconds = time.process_time() - begun
        predicted = posterior.predict("v", interval=0.9)
        low, high = (predicted[end].to_numpy()[hidden] for end in ("lower", "upper"))
        return {
            "factors": len(posterior.factors),
            "r": matched(posterior.scores().to_numpy(), scores),
            "cover": float(np.mean((values[hidden] >= low) & (values[hidden] <= high))),
            "warned": any(finding.kind == "overdispersion" for finding in posterior.findings),
            "seconds": seconds,
        }


def error(values: Any) -> float:
    """Return the standard error of a mean over sets."""
    return round(float(np.std(values, ddof=1) / len(values) ** 0.5), 4) if len(values) > 1 else 0.0


def summarise(found: list[dict[str, Any]], beside: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a row of one fit; ``beside`` are those of roots of the same sets."""
    factors, r = Counter(one["factors"] for one in found), np.array([one["r"] for one in found])
    more = r.mean(axis=1) - [one["r"].mean() for one in beside]
    row: dict[str, Any] = {"factors": {str(n): factors[n] for n in sorted(factors)}}
    row |= {
        "r": round(float(r.mean()), 4),
        "r_error": error(r.mean(axis=1)),
        "r_lowest": round(float(r.min()), 3),
    }
    if found is not beside:
        row |= {"r_beside_root": round(float(more.mean()), 4), "r_beside_root_error": error(more)}
        both = [a["factors"] == b["factors"] == 3 for a, b in zip(found, beside, strict=True)]
        if any(both):
            row |= {"r_beside_root_of_three": round(float(more[both].mean()), 4)}
            row |= {"r_beside_root_of_three_error": error(more[both])}
    row |= {"cover_90": round(float(np.mean([one["cover"] for one in found])), 4)}
    row |= {"warned": sum(one["warned"] for one in found)}
    return row | {"cpu_seconds": round(float(np.median([one["seconds"] for one in found])), 2)}


def main() -> None:
    """Run all sets, print and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=2000, help="seed of the first set")
    parser.add_argument("--sets", type=int, default=10)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--features", type=int, default=60)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--log-linear", action="store_true", help="rates of e^x")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    given = {k: getattr(chosen, k) for k in ("first", "sets", "rows", "features", "share", "log_linear")}
    table: dict[str, Any] = {"machine": f"{platform.machine()}, {os.cpu_count()} cores, loaded"} | given
    rows: list[dict[str, Any]] = []
    for number, (mean, dispersion) in enumerate(SETTINGS):
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in FITS}
        cover = []
        for seed in range(chosen.first, chosen.first + chosen.sets):
            size = chosen.rows, chosen.features
            scores, counts, rate = simulate(
                seed, *size, mean, dispersion, chosen.share, log_linear=chosen.log_linear
            )
            hidden = np.random.default_rng([seed, 1]).random(counts.shape) < 0.1
            cover.append(within(counts, rate, dispersion)[hidden].mean())
            for name, (kind, options) in FITS.items():
                if not number and seed == chosen.first:
                    run(counts, hidden, scores, kind, options)  # compiles what is compiled
                found[name].append(run(counts, hidden, scores, kind, options))
        for name in FITS:
            row = {"mean": mean, "dispersion": dispersion, "fit": name}
            row |= summarise(found[name], found["root, gaussian"])
            rows.append(row | {"cover_90_of_truth": round(float(np.mean(cover)), 4)})
            print(json.dumps(rows[-1]), flush=True)
        if chosen.out:
            lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
            chosen.out.write_text(f'{{\n {json.dumps(table)[1:-1]},\n "rows": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
