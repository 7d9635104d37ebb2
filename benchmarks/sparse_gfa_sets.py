"""What feature sets add to sparse group factor analysis: factors found, names that hold, sets refined.

200 samples of 400 features, 30 sets of 25 of which eight carry a factor, a fifth of the members wrong both
ways, two factors without a set, noise of variance 1, loadings s (1/2 + U), a fifth of them negative::

    python benchmarks/sparse_gfa_sets.py [--many] [--sizes 0.7 0.4 0.3] [--sets 8] [--out results.json]

``--many``: 1000 samples of 5000 features, 500 sets of which 40 carry a factor, at most 60 factors. Beside the
fit with sets that without. Of a set with a factor, 5 features are missing and 5 are wrong: of eight, 40 and
40 in all are to be found. One thread; seconds are of CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set
import pandas as pd  # noqa: E402

SIZE, WRONG, FREE = 25, 5, 2
FIRST_SEED = 6000


class Shape(NamedTuple):
    """Numbers of samples, features, sets, sets with a factor, and factors of a fit at most."""

    rows: int
    features: int
    sets: int
    named: int
    most: int


FEW, MANY = Shape(200, 400, 30, 8, 16), Shape(1000, 5000, 500, 40, 60)


def simulate(seed: int, size: float, shape: Shape) -> tuple[dict[str, list[str]], Any, Any, pd.DataFrame]:
    """Return sets, scores, loadings and data."""
    rng = np.random.default_rng(seed)
    loadings, sets = np.zeros((shape.features, shape.named + FREE)), {}
    for t in range(shape.sets):
        drawn = rng.permutation(shape.features)[: SIZE + WRONG]
        sets[f"set{t}"] = [f"g{i}" for i in drawn[WRONG:]]
        if t < shape.named:
            loadings[drawn[:SIZE], t] = 1.0
    for k in range(shape.named, shape.named + FREE):
        loadings[rng.permutation(shape.features)[:SIZE], k] = 1.0
    sign = np.where(rng.random(loadings.shape) < 0.2, -1.0, 1.0)
    loadings *= size * (0.5 + rng.random(loadings.shape)) * sign
    scores = rng.standard_normal((shape.rows, shape.named + FREE))
    values = scores @ loadings.T + rng.standard_normal((shape.rows, shape.features))
    return sets, scores, loadings, pd.DataFrame(values, columns=[f"g{i}" for i in range(shape.features)])


def refined(posterior: Any, loadings: Any, named: int) -> dict[str, int]:
    """Return how many features sets whose names hold gain and lose, and how many rightly."""
    found = posterior.refined_sets()
    counts = dict.fromkeys(("added", "added rightly", "removed", "removed rightly"), 0)
    for row in found[found["factor"] == found["set"]].itertuples():
        number = int(row.set[3:])
        there = number < named and loadings[int(row.feature[1:]), number] != 0.0
        counts[row.change] += 1
        counts[f"{row.change} rightly"] += there == (row.change == "added")
    return counts


def compare(seed: int, size: float, shape: Shape, folder: Path) -> dict[str, Any]:
    """Fit one set of data with and without feature sets."""
    import factorflow
    from factorflow.models import SparseGFA

    sets, scores, loadings, frame = simulate(seed, size, shape)
    data = factorflow.write_dataset(folder / "data.zarr", {"rna": frame}, overwrite=True)
    row: dict[str, Any] = {}
    for name, options in {"sets": {"loadings": "informed", "feature_sets": sets}, "none": {}}.items():
        begun = time.process_time()
        posterior = factorflow.fit(data, SparseGFA(n_factors=shape.most, **options), progress=False)
        seconds = time.process_time() - begun
        found = posterior.scores().to_numpy()
        alike = np.zeros((0, shape.named + FREE))
        if found.shape[1]:
            alike = np.abs(np.corrcoef(found.T, scores.T)[: found.shape[1], found.shape[1] :])
        row[name] = {
            "factors": found.shape[1],
            "correlation": float(alike.max(axis=0, initial=0.0).mean()),
            "objective": float(posterior.trace["objective"].to_numpy()[-1]),
            "seconds": seconds,
        }
        if posterior.has("n_factors_counted"):
            row[name]["counted"] = int(posterior.variable("n_factors_counted"))
        if name == "sets":
            held = [k for k, factor in enumerate(posterior.factors) if factor.startswith("set")]
            right = sum(int(posterior.factors[k][3:]) == alike[k].argmax() for k in held)
            row[name] |= {
                "names": len(held),
                "names rightly": right,
                **refined(posterior, loadings, shape.named),
            }
    return row


def main() -> None:
    """Compare sets of data of each size of loadings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--many", action="store_true", help="500 sets")
    parser.add_argument("--sizes", nargs="*", type=float, default=[0.7, 0.4, 0.3])
    parser.add_argument("--sets", type=int, default=8, help="sets of data of each size")
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in a.sizes:
            rows = [
                compare(FIRST_SEED + i, size, MANY if a.many else FEW, Path(folder)) for i in range(a.sets)
            ]
            means = {
                name: {
                    key: round(float(np.mean([row[name][key] for row in rows])), 3) for key in rows[0][name]
                }
                for name in rows[0]
            }
            results[str(size)] = means
            print(size, json.dumps(means), flush=True)
    if a.out:
        a.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
