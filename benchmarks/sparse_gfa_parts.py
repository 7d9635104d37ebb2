"""Non-negative loadings and scores of sparse group factor analysis beside spikes and NMF, on parts.

300 samples of 100 features, five factors, scores Exp(1) with probability .5, loadings Exp(1) with probability
.3, noise of standard deviation .5, a tenth of the entries hidden::

    python benchmarks/sparse_gfa_parts.py [--sets 4] [--out results.json]

NMF is scikit-learn's, best of 5 starts, with as many components as there are; column means stand for what is
missing. Eight factors at most otherwise; "right" is the share of sets in which five are found. Means of sets.
One thread; seconds are of CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set

FIRST_SEED, N_FACTORS, AT_MOST = 13320, 5, 8
Array = Any
FITS = {
    "spike_slab": {},
    "nonnegative, exponential": {"loadings": "nonnegative"},
    "nonnegative, half_normal": {"loadings": "nonnegative", "slab": "half_normal"},
    "scores": {"scores": "nonnegative"},
    "both": {"scores": "nonnegative", "loadings": "nonnegative"},
    "both, no intercepts": {"scores": "nonnegative", "loadings": "nonnegative", "intercepts": False},
}


def simulate(seed: int) -> tuple[Array, Array, Array, Array]:
    """Return scores, loadings, what is expected of the entries, and the entries, hidden ones missing."""
    rng = np.random.default_rng(seed)
    scores = rng.exponential(size=(300, N_FACTORS)) * (rng.random((300, N_FACTORS)) < 0.5)
    loadings = rng.exponential(size=(100, N_FACTORS)) * (rng.random((100, N_FACTORS)) < 0.3)
    expected = scores @ loadings.T
    values = expected + 0.5 * rng.standard_normal(expected.shape)
    values[rng.random(values.shape) < 0.1] = np.nan
    return scores, loadings, expected, values


def alike(found: Array, true: Array) -> float:
    """Return the mean correlation of each true column with the one most like it."""
    k = found.shape[1]
    return float(np.corrcoef(found.T, true.T)[:k, k:].max(axis=0).mean())


def r2(found: Array, expected: Array, hidden: Array) -> float:
    """Return the share of the variance of what is expected of hidden entries that is explained."""
    total = ((expected - expected.mean(axis=0))[hidden] ** 2).sum()
    return float(1.0 - ((found - expected)[hidden] ** 2).sum() / total)


def nmf(scores: Array, loadings: Array, expected: Array, values: Array) -> dict[str, float]:
    """Factorise with scikit-learn."""
    from sklearn.decomposition import NMF

    begun, hidden = time.process_time(), np.isnan(values)
    filled = np.where(hidden, np.nanmean(values, axis=0), values).clip(min=0.0)
    fits = [NMF(N_FACTORS, init="random", random_state=i, max_iter=2000) for i in range(5)]
    found = [fit.fit_transform(filled) for fit in fits]
    best = int(np.argmin([fit.reconstruction_err_ for fit in fits]))
    z, w = found[best], fits[best].components_.T
    seconds = time.process_time() - begun
    row = {"factors": N_FACTORS, "right": 1.0, "scores": alike(z, scores), "loadings": alike(w, loadings)}
    return row | {"r2": r2(z @ w.T, expected, hidden), "seconds": seconds}


def compare(seed: int, folder: Path) -> dict[str, dict[str, float]]:
    """Fit one set of data by each prior, and factorise it."""
    import factorflow
    from factorflow.models import SparseGFA

    scores, loadings, expected, values = simulate(seed)
    data = factorflow.write_dataset(folder / "data.zarr", {"y": values}, overwrite=True)
    rows = {"NMF": nmf(scores, loadings, expected, values)}
    for name, options in FITS.items():
        begun = time.process_time()
        posterior = factorflow.fit(data, SparseGFA(n_factors=AT_MOST, **options), progress=False)
        w = posterior.loadings("y").transpose("feature_y", "factor").to_numpy()
        rows[name] = {
            "factors": w.shape[1],
            "right": float(w.shape[1] == N_FACTORS),
            "scores": alike(posterior.scores().to_numpy(), scores),
            "loadings": alike(w, loadings),
            "r2": r2(posterior.predict("y")["mean"].to_numpy(), expected, np.isnan(values)),
            "objective": float(posterior.trace["objective"].to_numpy()[-1]),
            "seconds": time.process_time() - begun,
        }
    return rows


def main() -> None:
    """Compare several sets of data."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=10)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [compare(FIRST_SEED + i, Path(folder)) for i in range(a.sets)]
    means = {
        name: {key: round(float(np.mean([rows[name][key] for rows in found])), 3) for key in found[0][name]}
        for name in found[0]
    }
    print(json.dumps(means, indent=1))
    if a.out:
        a.out.write_text(json.dumps(means, indent=1) + "\n")


if __name__ == "__main__":
    main()
