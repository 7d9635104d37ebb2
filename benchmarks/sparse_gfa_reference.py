"""Held-out scores of sparse group factor analysis on five real datasets, beside reference values.

The reference values come from a slow implementation of the same equations, on the same hidden entries; they
are read from the table below. Ten percent of the observed entries are hidden by NumPy's generator with seed
0, view by view. Usage::

    python benchmarks/sparse_gfa_reference.py --data FOLDER [--datasets breast_tcga ...] [--out FILE]
        [--seeds 0 1 2 --before EARLIER.json]

FOLDER holds ``views/*.npz`` with ``view_names``, ``Y_<view>``. One hiding says little where a bound has many
optima: ``--seeds`` hides others (the reference has the first), and ``--before`` compares with what an
earlier version on PYTHONPATH wrote for the same seeds: the mean difference of the scores (log-losses with a
minus) with its standard error, and the spread (standard deviation) of the score over the hidings. A score
has fallen if the mean difference and twice its standard error lie below a tenth of the spread.
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
from numpy.typing import NDArray  # noqa: E402

import factorflow  # noqa: E402
from factorflow.models.sparse_gfa import SparseGFA  # noqa: E402

Array = NDArray[Any]

REFERENCE: dict[str, dict[int, dict[str, tuple[float, ...]]]] = {
    "breast_tcga": {
        5: {"mirna": (0.350,), "mrna": (0.382,), "protein": (0.256,)},
        15: {"mirna": (0.480,), "mrna": (0.476,), "protein": (0.433,)},
    },
    "nci60_multidrug": {
        5: {"ABC": (0.098,), "compound": (0.413,)},
        15: {"ABC": (0.130,), "compound": (0.458,)},
    },
    "uci_multifeature": {
        5: {
            "fac": (0.780,),
            "fou": (0.217,),
            "kar": (0.454,),
            "mor": (0.421,),
            "pix": (0.421,),
            "zer": (0.310,),
        },
        15: {
            "fac": (0.928,),
            "fou": (0.380,),
            "kar": (0.679,),
            "mor": (0.698,),
            "pix": (0.639,),
            "zer": (0.628,),
        },
    },
    "hmp_diverse16s": {10: {"otu_present": (0.935, 0.211)}},
    "pbmc68k_reduced": {10: {"rna_detected": (0.841, 0.446)}},
}
"""R2 of Gaussian views; AUC and log-loss of binary ones; by number of factors."""

TOLERANCE = {"ABC": 0.03, "mor": 0.03}
"""How far the reference itself spreads, where that is more than 0.01."""


def hide(values: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Return shown values, the mask of hidden entries, and which features are kept."""
    hidden = (rng.random(values.shape) < 0.1) & ~np.isnan(values)
    shown = np.where(hidden, np.nan, values)
    kept = np.zeros(values.shape[1], bool)
    for d in range(values.shape[1]):
        column = shown[~np.isnan(shown[:, d]), d]
        kept[d] = len(column) > 2 and np.std(column) > 0
    return shown[:, kept], hidden[:, kept], kept


def auc(y: Array, p: Array) -> float:
    """Return the area under the ROC curve."""
    from scipy.stats import rankdata

    ranks, positive = rankdata(p), y > 0
    n = int(positive.sum())
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * (len(y) - n)))


def run(path: Path, names: list[str], n_factors: int, options: dict[str, Any], seed: int) -> dict[str, Any]:
    """Fit one dataset and score its hidden entries."""
    file = np.load(path)
    rng = np.random.default_rng(seed)
    full, shown, hidden = {}, {}, {}
    for name in names:
        values = file[f"Y_{name}"].astype(np.float64)
        shown[name], hidden[name], kept = hide(values, rng)
        full[name] = values[:, kept]
    binary = {name for name in names if set(np.unique(full[name][~np.isnan(full[name])])) <= {0.0, 1.0}}
    likelihoods = {name: "bernoulli" if name in binary else "gaussian" for name in names}
    with tempfile.TemporaryDirectory() as folder:
        store = factorflow.write_dataset(
            Path(folder) / "data.zarr", {n: v.astype(np.float32) for n, v in shown.items()}, likelihoods
        )
        begun = time.process_time()
        posterior = factorflow.fit(store, SparseGFA(n_factors=n_factors, **options))
        seconds = time.process_time() - begun
    tree = posterior.tree["variational"]
    scores = tree["scores"].to_numpy()
    out: dict[str, Any] = {"seconds": seconds, "n_factors": scores.shape[1]}
    for name in names:
        fit = scores @ tree[f"loadings_{name}"].to_numpy().T + tree[f"intercept_{name}"].to_numpy()
        y, x, mask = full[name], fit, hidden[name]
        if name in binary:
            p = np.clip(1.0 / (1.0 + np.exp(-x[mask])), 1e-4, 1 - 1e-4)
            loss = -np.mean(np.where(y[mask] > 0, np.log(p), np.log(1 - p)))
            out[name] = [auc(y[mask], x[mask]), float(loss)]
        else:
            mean = np.nanmean(shown[name], axis=0)
            out[name] = [float(1 - ((y - x)[mask] ** 2).sum() / ((y - mean)[mask] ** 2).sum())]
    return out


def differences(now: dict[str, Any], before: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return how far each score of a view is above an earlier version's, over the hidings of both."""
    both = [seed for seed in now if seed in before]
    after, earlier = (np.array([runs[seed][name] for seed in both]) for runs in (now, before))
    higher = (after - earlier) * np.array([1.0, -1.0])[: after.shape[1]]  # R2, or AUC and log-loss
    error = higher.std(axis=0, ddof=1) / np.sqrt(len(both))
    mean, spread = higher.mean(axis=0), earlier.std(axis=0, ddof=1)
    fell = mean + 2.0 * error < -0.1 * spread
    columns = zip(mean.tolist(), error.tolist(), spread.tolist(), fell.tolist(), strict=True)
    return [
        {"higher": round(m, 5), "error": round(e, 5), "spread": round(s, 5), "fell": f}
        for m, e, s, f in columns
    ]


def main() -> None:
    """Run the table and say where it differs from the reference, or from an earlier version."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--datasets", nargs="*", default=list(REFERENCE))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0], help="of the hidden entries")
    parser.add_argument("--before", type=Path, help="what an earlier version wrote")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--options", type=json.loads, default={}, help="options of SparseGFA as JSON")
    arguments = parser.parse_args()
    table: dict[str, Any] = {}
    before = json.loads(arguments.before.read_text()) if arguments.before else {}
    for dataset in arguments.datasets:
        path = arguments.data / "views" / f"{dataset}.npz"
        for n_factors, values in REFERENCE[dataset].items():
            key = f"{dataset}, K={n_factors}"
            runs = {
                str(seed): run(path, list(values), n_factors, arguments.options, seed)
                for seed in arguments.seeds
            }
            beside: dict[str, Any] = {}
            table[key] = {"hidings": runs, "beside the version before": beside}
            seconds = np.mean([one["seconds"] for one in runs.values()])
            print(f"{key}: {[one['n_factors'] for one in runs.values()]} factors, {seconds:.1f} CPU s")
            for name, expected in values.items():
                limit = TOLERANCE.get(name, 0.01)
                scores = np.array(runs[str(arguments.seeds[0])][name])
                # AUC and R2 may be better; a log-loss may be smaller
                worse = (np.array(expected) - scores) * np.array([1.0, -1.0])[: len(scores)]
                verdict = "ok" if max(worse) <= limit else "WORSE"
                shown = " ".join(f"{f:.3f}" for f in scores)
                print(f"  {name:12s} {shown}  reference {' '.join(f'{e:.3f}' for e in expected)}  {verdict}")
                if before:
                    beside[name] = differences(runs, before[key]["hidings"], name)
                    print("   ", *beside[name], flush=True)
            if arguments.out:
                arguments.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
