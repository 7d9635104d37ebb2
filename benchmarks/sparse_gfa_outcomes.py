"""Outcomes of sparse group factor analysis: open, guided, with spikes, and regressed on scores afterwards.

300 samples, views of 200 and 100 features, five factors, noise of variance 1. The outcome hangs on the
weakest factor (loadings of standard deviation .25 in 15 % of the features) and, .4 times as much, on the
strongest; it is known of 200 samples and predicted for the others::

    python benchmarks/sparse_gfa_outcomes.py [--first 12201] [--sets 6] [--out results.json]

R2 of a measurement, AUC of a binary outcome, Spearman's correlation of levels and predictions, concordance of
times to an event, of which about a third is censored. "without" are the scores of a fit without the outcome:
ridge regression (penalty 1; of binary outcomes and levels on their codes), Cox regression of times
(statsmodels). "features" is ridge regression on all features, penalty their mean square (times: martingale
residuals). "two too few": at most three factors.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set
import pandas as pd  # noqa: E402

FIRST_SEED, N, SHOWN, N_FACTORS, AT_MOST, TOO_FEW = 12201, 300, 200, 5, 8, 3
SIZES, DENSE = np.array([1.0, 0.8, 0.6, 0.4, 0.25]), np.array([0.3, 0.3, 0.3, 0.3, 0.15])
NOISE, ODDS, HAZARD, GRADES = 0.83, 1.3, 2.0, (-1.0, 0.0, 1.0)
LIKELIHOODS = {
    "continuous": "gaussian",
    "binary": "bernoulli",
    "ordinal": "ordinal",
    "survival": "survival",
}
FITS: dict[str, dict[str, Any]] = {
    "open": {},
    "guided": {"outcomes": {"outcome": "guided"}},
    "with spikes": {"loadings": {"outcome": "spike_slab"}},
    "open, two too few": {"n_factors": TOO_FEW},
    "guided, two too few": {"n_factors": TOO_FEW, "outcomes": {"outcome": "guided"}},
}
Array = Any


def simulate(seed: int) -> tuple[dict[str, Array], Array, dict[str, Any]]:
    """Return views, scores, and the outcomes of all samples."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((N, N_FACTORS))
    views = {}
    for name, d in (("rna", 200), ("protein", 100)):
        loadings = SIZES * rng.standard_normal((d, N_FACTORS)) * (rng.random((d, N_FACTORS)) < DENSE)
        views[name] = scores @ loadings.T + rng.standard_normal((N, d))
    x = scores[:, -1] + 0.4 * scores[:, 0]
    latent = x + NOISE * rng.standard_normal(N)
    event, end = rng.exponential(np.exp(-HAZARD * x)), 2.0 * rng.exponential(size=N)
    times = pd.DataFrame({"time": np.minimum(event, end), "event": (event <= end).astype(float)})
    outcomes = {
        "continuous": latent,
        "binary": (rng.random(N) < 1.0 / (1.0 + np.exp(-ODDS * x))).astype(float),
        "ordinal": np.digitize(latent, GRADES).astype(float),
        "survival": times,
    }
    return views, scores, outcomes


def score(kind: str, outcome: Any, predicted: Array) -> float:
    """Return the score of predictions of the samples whose outcome was not known."""
    from factorflow.posterior.ranks import concordance, rank_correlation

    y, new = np.asarray(outcome)[SHOWN:], np.asarray(predicted)[SHOWN:]
    if kind == "survival":
        return concordance(y[:, 0], y[:, 1] > 0, new)
    if kind == "binary":
        return concordance(1.0 - y, y > 0, new)
    if kind == "ordinal":
        return rank_correlation(y, new)
    return float(1.0 - ((y - new) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def ridge(columns: Array, y: Array, penalty: float) -> Array:
    """Return predictions of all samples by ridge regression on those that are shown."""
    mean, level = columns[:SHOWN].mean(axis=0), y[:SHOWN].mean()
    x = columns - mean
    kernel = x[:SHOWN] @ x[:SHOWN].T
    return level + x @ x[:SHOWN].T @ np.linalg.solve(kernel + penalty * np.eye(SHOWN), y[:SHOWN] - level)


def without(kind: str, scores: Array, outcome: Any) -> Array:
    """Return predictions from the scores of a fit without the outcome."""
    if kind != "survival":
        return ridge(scores, np.asarray(outcome), 1.0)
    from statsmodels.duration.hazard_regression import PHReg

    time, event = np.asarray(outcome)[:SHOWN].T
    return scores @ PHReg(time, scores[:SHOWN], status=event).fit(disp=0).params


def by_features(kind: str, views: dict[str, Array], outcome: Any) -> Array:
    """Return predictions by ridge regression on all features."""
    from factorflow.likelihoods.survival import Survival, baseline_hazard, event_intervals

    everything = np.concatenate(list(views.values()), axis=1)
    y = np.asarray(outcome)
    if kind == "survival":
        edges = event_intervals(*y[:SHOWN].T)
        hazards = baseline_hazard(edges, *y[:SHOWN].T)
        density = Survival(*(":".join(map(repr, map(float, part))) for part in (edges, hazards)))
        y = density.start(y[:, 0], 1.0 - y[:, 1])
    centred = everything[:SHOWN] - everything[:SHOWN].mean(axis=0)
    return ridge(everything, y, float((centred**2).sum() / SHOWN))


def alike(scores: Array, truth: Array) -> float:
    """Return the correlation of the weakest factor with the one most like it."""
    found = np.corrcoef(scores.T, truth[:, -1])[-1, :-1] if scores.shape[1] else np.zeros(1)
    return float(np.abs(found).max())


def compare(seed: int, folder: Path) -> dict[str, dict[str, float]]:
    """Predict the outcomes of one set of data in every way."""
    import factorflow
    from factorflow.models import SparseGFA

    views, scores, outcomes = simulate(seed)
    truth = scores[:, -1] + 0.4 * scores[:, 0]
    names = ("without", *FITS, "without, two too few", "features", "truth")
    rows: dict[str, dict[str, float]] = {name: {} for name in names}
    plain = factorflow.write_dataset(folder / "plain.zarr", views, overwrite=True)
    for name, k in (("without", AT_MOST), ("without, two too few", TOO_FEW)):
        found = factorflow.fit(plain, SparseGFA(n_factors=k), progress=False).scores().to_numpy()
        rows[name] |= {kind: score(kind, y, without(kind, found, y)) for kind, y in outcomes.items()}
        rows[name]["factor"] = alike(found, scores)
    for kind, outcome in outcomes.items():
        frame = pd.DataFrame(outcome, copy=True)
        frame.iloc[SHOWN:] = np.nan
        data = factorflow.write_dataset(
            folder / "data.zarr",
            views | {"outcome": frame if kind == "survival" else frame.to_numpy()},
            likelihoods={"outcome": LIKELIHOODS[kind]},
            overwrite=True,
        )
        rows["features"][kind] = score(kind, outcome, by_features(kind, views, outcome))
        rows["truth"][kind] = score(kind, outcome, truth)
        for name, options in FITS.items():
            posterior = factorflow.fit(data, SparseGFA(**{"n_factors": AT_MOST, **options}), progress=False)
            if kind == "survival":
                predicted = posterior.risk("outcome").to_numpy()
            else:
                predicted = posterior.predict("outcome")["mean"].to_numpy()[:, 0]
            rows[name][kind] = score(kind, outcome, predicted)
            found = alike(posterior.scores().to_numpy(), scores)
            rows[name]["factor"] = rows[name].get("factor", 0.0) + found / len(outcomes)
    return rows


def main() -> None:
    """Compare several sets of data."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=FIRST_SEED)
    parser.add_argument("--sets", type=int, default=6)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [compare(a.first + i, Path(folder)) for i in range(a.sets)]
    table = {}
    for name, row in found[0].items():
        for key in row:
            values = np.array([rows[name][key] for rows in found])
            error = float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")
            table.setdefault(name, {})[key] = [round(float(values.mean()), 3), round(error, 3)]
    print(json.dumps(table, indent=1))
    if a.out:
        a.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
