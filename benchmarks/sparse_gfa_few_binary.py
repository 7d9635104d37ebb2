"""How well sparse group factor analysis predicts few binary entries, beside fits that keep K factors.

200 x 40 binary entries of three factors (as in ``sparse_gfa_truth.py``), a tenth hidden. Usage::

    python benchmarks/sparse_gfa_few_binary.py --out benchmarks/results/sparse_gfa_few_binary.json \\
        [--first 600] [--sets 30] [--start 5] [--rows 200] [--features 40]

Of each set: the factors that a fit from ``--start`` finds; the log-loss of its predictions of the hidden
entries; and that of fits that keep K = 1 to 5 factors (``drop=0``). Log-losses are expected ones, over the
values that the true probabilities give: those of 800 hidden values alone have a standard error of .01.
Printed are the numbers found; the mean log-loss of each K less that of the default; by how much the default
is over the best K of all sets together, and over the best of each set; in how many sets by less than .0005.
Another version on PYTHONPATH fits the same sets.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set
from scipy.special import expit  # noqa: E402
from sparse_gfa_truth import FACTORS, SHARE  # noqa: E402

KEPT = (1, 2, 3, 4, 5)
HIDDEN, NEAR = 0.1, 0.0005


def simulated(n_rows: int, n_features: int, seed: int) -> tuple[Any, Any, Any]:
    """Return binary entries, the probability of each, and which are hidden."""
    rng = np.random.default_rng([seed, n_rows, n_features])
    scores = rng.standard_normal((n_rows, FACTORS))
    shape = (n_features, FACTORS)
    loadings = rng.standard_normal(shape) * (rng.random(shape) < SHARE)
    p = expit(scores @ loadings.T)
    y = (rng.random(p.shape) < p).astype(np.int8)
    return y, p, rng.random(p.shape) < HIDDEN


def run(shape: tuple[int, int], seed: int, start: int) -> dict[str, Any]:
    """Return factors found, log-losses and CPU seconds of the fits of one set."""
    import factorflow
    from factorflow.models import SparseGFA

    y, p, hidden = simulated(*shape, seed)
    fits: dict[str, dict[str, Any]] = {"default": {"n_factors": start}}
    fits |= {str(k): {"n_factors": k, "drop": 0.0} for k in KEPT}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        shown = np.where(hidden, np.nan, y).astype(np.float32)
        data = factorflow.write_dataset(Path(folder) / "d.zarr", {"v": shown}, {"v": "bernoulli"})
        for name, chosen in fits.items():
            begun = time.process_time()
            fit = factorflow.fit(data, SparseGFA(**chosen), progress=False)
            seconds = time.process_time() - begun
            q = np.clip(fit.predict("v")["mean"].values, 1e-6, 1.0 - 1e-6)
            loss = -(p * np.log(q) + (1.0 - p) * np.log1p(-q))[hidden].mean()
            found[name] = {"factors": len(fit.factors), "loss": float(loss), "seconds": seconds}
    return found


def summarise(sets: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the numbers of a table."""
    ours = np.array([s["default"]["loss"] for s in sets])
    kept = np.array([[s[str(k)]["loss"] for k in KEPT] for s in sets])
    mean, over = kept.mean(axis=0), ours - kept.min(axis=1)
    counts = Counter(s["default"]["factors"] for s in sets)
    return {
        "sets": len(sets),
        "found": {str(n): counts[n] for n in sorted(counts)},
        "log-loss": round(float(ours.mean()), 5),
        "K less default": {str(k): round(float(m - ours.mean()), 5) for k, m in zip(KEPT, mean, strict=True)},
        "over the best K": round(float(ours.mean() - mean.min()), 5),
        "standard error": round(float((ours - kept[:, mean.argmin()]).std() / len(sets) ** 0.5), 5),
        "over the best K of each set": round(float(over.mean()), 5),
        "sets within .0005 of it": int((over < NEAR).sum()),
        "cpu_seconds": round(float(np.median([s["default"]["seconds"] for s in sets])), 2),
    }


def main() -> None:
    """Run the sets, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--first", type=int, default=600, help="seed of the first set")
    parser.add_argument("--sets", type=int, default=30)
    parser.add_argument("--start", type=int, default=5, help="factors that the default starts from")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--features", type=int, default=40)
    given = parser.parse_args()
    logging.getLogger("factorflow").setLevel(logging.ERROR)
    sets = []
    table = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    for seed in range(given.first, given.first + given.sets):
        sets.append(run((given.rows, given.features), seed, given.start))
        print(seed, {k: (v["factors"], round(v["loss"], 4)) for k, v in sets[-1].items()}, flush=True)
        if given.out:
            table["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, one thread, loaded"
            table[f"{given.rows} x {given.features}, from {given.start}, seeds from {given.first}"] = (
                summarise(sets)
            )
            given.out.write_text(json.dumps(table, indent=1) + "\n")
    print(json.dumps(summarise(sets), indent=1))


if __name__ == "__main__":
    main()
