"""What intervals of a variational fit of sparse group factor analysis cover, and how shrunk loadings are.

Gaussian sets are those of ``sparse_gfa_draws.py`` (40 features in two views, three factors, 15 % of the
entries hidden); binary ones have 200 features, counts 60 of mean 2 or so, with the links of the model.
Usage::

    python benchmarks/sparse_gfa_intervals.py --out benchmarks/results/sparse_gfa_intervals.json \\
        [--sets 10] [--first 0] [--seconds 600]

Of all sets: the share of hidden Gaussian entries within central 50, 90 and 95 % intervals. Of sets that find
all three factors: 90 % intervals of scores, 95 % intervals of loadings of inclusion above .95, the share of
these that are truly 0, what the inclusions claim it is, and the slope of true loadings on estimated ones;
intervals and slope also of the loadings under the likelihood itself (``corrected_loadings_<view>``).
``--seconds``: no set is begun after so many (CPU).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set
from scipy.optimize import linear_sum_assignment  # noqa: E402
from scipy.stats import norm  # noqa: E402
from sparse_gfa_draws import FACTORS, FEATURES, HIDDEN, SHARE, simulate, summarise  # noqa: E402

CASES = (
    *(("gaussian", n) for n in (12, 25, 50, 100)),
    *((kind, n) for kind in ("bernoulli", "poisson") for n in (100, 400)),
)
WIDTH = {"bernoulli": 200, "poisson": 60}
LEVELS = (0.5, 0.9, 0.95)
PREDICTED = [f"predictions {100 * share:g} %" for share in LEVELS]
CORRECTED = [f"corrected {100 * share:g} %" for share in LEVELS]


def discrete(likelihood: str, n_rows: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Return scores, loadings, binary entries or counts, and which of them are hidden."""
    rng = np.random.default_rng([n_rows, seed, 2])
    shape = (WIDTH[likelihood], FACTORS)
    z, w = rng.normal(size=(n_rows, FACTORS)), (rng.random(shape) < SHARE) * rng.normal(size=shape)
    if likelihood == "bernoulli":
        y = (rng.random((n_rows, len(w))) < 1.0 / (1.0 + np.exp(-(z @ w.T)))).astype(np.float32)
    else:
        w = 0.5 * w
        y = rng.poisson(np.exp(0.5 + z @ w.T)).astype(np.float32)
    return z, w, y, rng.random(y.shape) < HIDDEN


def judge(posterior: Any, z: Any, w: Any, y: Any, hidden: Any, names: list[str]) -> dict[str, list[float]]:
    """Return pairs of sums, each of a share or a slope."""
    counted: dict[str, list[float]] = {}
    if posterior.meta.views[0].likelihood == "gaussian":
        for share, label in zip(LEVELS, PREDICTED, strict=True):
            predicted = [posterior.predict(name, interval=share).load() for name in names]
            low, high = (
                np.concatenate([p[end].values for p in predicted], axis=1) for end in ("lower", "upper")
            )
            counted[label] = [float(((y >= low) & (y <= high))[hidden].sum()), float(hidden.sum())]
    if len(posterior.factors) != FACTORS:
        return counted
    found = summarise(posterior, names)
    r = np.corrcoef(z.T, found["scores"][0].T)[:FACTORS, FACTORS:]
    _, order = linear_sum_assignment(-np.abs(r))
    sign, sure = np.sign(r[np.arange(FACTORS), order]), found["inclusion"][:, order] > 0.95
    _, low, high = (part[:, order] for part in found["scores"])
    counted["scores 90 %"] = [float(((z * sign >= low) & (z * sign <= high)).sum()), float(z.size)]
    mean, low, high = (part[:, order] for part in found["loadings"])
    truth, n = w * sign, float(sure.sum())
    counted["loadings 95 %"] = [float(((truth >= low) & (truth <= high))[sure].sum()), n]
    counted["false loadings"] = [float((w[sure] == 0).sum()), n]
    counted["false, claimed"] = [float((1.0 - found["inclusion"][:, order])[sure].sum()), n]
    counted["slope"] = [float((truth * mean)[sure].sum()), float((mean[sure] ** 2).sum())]
    mean, sd = (
        np.concatenate([posterior.variable(f"corrected_{kind}_{name}").values for name in names])[:, order]
        for kind in ("loadings", "loadings_sd")
    )
    for share, label in zip(LEVELS, CORRECTED, strict=True):
        inside = np.abs(truth - mean) <= norm.ppf(0.5 + 0.5 * share) * sd
        counted[label] = [float(inside[sure].sum()), n]
    counted["slope, corrected"] = [float((truth * mean)[sure].sum()), float((mean[sure] ** 2).sum())]
    return counted


def run(likelihood: str, n_rows: int, seed: int) -> dict[str, list[float]]:
    """Fit one set and judge it."""
    import factorflow
    from factorflow.models import SparseGFA

    z, w, y, hidden = (
        simulate(n_rows, seed) if likelihood == "gaussian" else discrete(likelihood, n_rows, seed)
    )
    sizes = FEATURES if likelihood == "gaussian" else (WIDTH[likelihood],)
    parts = np.split(np.where(hidden, np.nan, y), np.cumsum(sizes)[:-1], axis=1)
    views = {f"view{m}": part for m, part in enumerate(parts)}
    with tempfile.TemporaryDirectory() as folder:
        data = factorflow.write_dataset(Path(folder, "d.zarr"), views, dict.fromkeys(views, likelihood))
        fit = factorflow.fit(data, SparseGFA(n_factors=6), seed=seed, progress=False)
        return judge(fit, z, w, y, hidden, list(views))


def main() -> None:
    """Run all sets, print and write what they gave."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sets", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0)
    given = parser.parse_args()
    logging.getLogger("factorflow").setLevel(logging.ERROR)
    rows: list[dict[str, Any]] = []
    begun = time.process_time()
    for i, (likelihood, n_rows) in enumerate(CASES):
        sets = []
        for seed in range(given.first, given.first + given.sets):
            if time.process_time() - begun > given.seconds * (i + 1) / len(CASES):
                break
            sets.append(run(likelihood, n_rows, seed))
        row: dict[str, Any] = {"likelihood": likelihood, "samples": n_rows, "sets": len(sets)}
        row["all factors"] = sum("slope" in found for found in sets)
        for label in [
            *PREDICTED,
            "scores 90 %",
            "loadings 95 %",
            "false loadings",
            "false, claimed",
            "slope",
            *CORRECTED,
            "slope, corrected",
        ]:
            pairs = np.array([found[label] for found in sets if label in found]).sum(axis=0)
            row[label] = None if not np.size(pairs) > 1 or not pairs[1] else round(pairs[0] / pairs[1], 3)
        rows.append(row)
        print(json.dumps(row), flush=True)
        if given.out:
            machine = f"{platform.machine()}, {os.cpu_count()} cores, one thread, loaded"
            lines = ",\n".join(f"  {json.dumps(one)}" for one in rows)
            given.out.write_text(f'{{\n "machine": {json.dumps(machine)},\n "rows": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
