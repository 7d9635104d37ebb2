"""Sparse group factor analysis of binary data of which 50 to 90 % are missing, beside MOFA-FLEX.

Every binary view of a folder, and simulated ones whose features few samples carry, are fitted with most of
their entries hidden; the hidden ones are scored. Usage::

    python -m venv peers && peers/bin/pip install mofaflex
    python benchmarks/sparse_gfa_binary.py --data FOLDER --peer-python peers/bin/python \\
        --out benchmarks/results/sparse_gfa_binary.json [--cases NAME ...] [--no-simulated]

FOLDER holds ``views/*.npz`` and ``binary/*.npz`` with ``view_names``, ``Y_<view>``. Reported: whether all
numbers are finite and the bound never fell within a stage (relative 1e-7; in single precision its terms are
sums rounded at 1e-7), log-loss with p clipped to [1e-4, 1 - 1e-4] of our prediction, of sigma(E x), and of
each feature's frequency among the shown entries (the best of three: as it is, half and one added to both
counts); the same pooled over the features that less than 5 % carry; pooled AUC. MOFA-FLEX is fitted with its
defaults (normal weights), and at a learning rate of 0.05 with its preset for MOFA (horseshoe) and with normal
weights; the best AUC of these counts.

With ``--choose`` the options of `GRID` are chosen first by `factorflow select`, from three times a
tenth of the shown entries; the hidden ones have no part in it. One hiding says little where few entries
are left: ``--seeds 1 2 3`` hides others (the table has seed 0); ``--label before``, with an earlier version
on PYTHONPATH, fits the same by that.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set
from numpy.typing import NDArray  # noqa: E402

Array = NDArray[Any]
FRACTIONS = (0.5, 0.8, 0.9)
FACTORS = (5, 15)
SIMULATED = ((200, 100), (200, 1000), (1000, 300), (1000, 2000), (3000, 500))
GRID = {"loadings": ("spike_slab", "horseshoe", "ard"), "bound": (False, True)}
PEERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults": ({}, {}),
    "defaults, seed 1": ({}, {"seed": 1}),
    "defaults, seed 2": ({}, {"seed": 2}),
    "Horseshoe": ({"weight_prior": "Horseshoe"}, {"lr": 0.05}),
    "Normal": ({"weight_prior": "Normal"}, {"lr": 0.05}),
}
"""Ways to fit MOFA-FLEX: options of the model, and of the training."""
RARE, FLOOR, FELL = 0.05, 1e-4, 1e-7


def stored_views(folder: Path) -> Iterator[tuple[str, Array]]:
    """Yield every binary view of the files of a folder."""
    for path in sorted([*folder.glob("binary/*.npz"), *folder.glob("views/*.npz")]):
        with np.load(path) as file:
            names = [str(n) for n in file["view_names"]] if "view_names" in file else []
            tables = {n: file[f"Y_{n}"] for n in names} or {"Y": file[file.files[0]]}
        for name, values in tables.items():
            y = np.asarray(values, np.float32)
            if y.ndim == 2 and np.isin(y[~np.isnan(y)], (0.0, 1.0)).all():
                yield f"{path.stem}/{name}", y


def simulated(n_rows: int, n_features: int, seed: int = 0) -> Array:
    """Return a logistic factor model whose features 1 to 2 % carry; a tenth of the samples are absent."""
    rng = np.random.default_rng([seed, n_rows, n_features])
    scores = rng.standard_normal((n_rows, 3))
    loadings = 1.5 * rng.standard_normal((n_features, 3)) * (rng.random((n_features, 3)) < 0.3)
    level = np.log(rng.uniform(0.008, 0.016, n_features)) - 0.3 * (loadings**2).sum(axis=1)
    x = scores @ loadings.T + level
    y = (rng.random(x.shape) < 1.0 / (1.0 + np.exp(-x))).astype(np.float32)
    y[rng.random(n_rows) < 0.1] = np.nan
    return y


def auc(y: Array, p: Array) -> float:
    """Return the area under the ROC curve."""
    from scipy.stats import rankdata

    ranks, positive = rankdata(p), y > 0
    n = int(positive.sum())
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * (len(y) - n)))


def log_loss(y: Array, p: Array) -> float:
    """Return nats an entry."""
    p = np.clip(p, FLOOR, 1 - FLOOR)
    return float(-np.mean(np.where(y > 0, np.log(p), np.log1p(-p))))


def scores_of(values: Array, hidden: Array, p: Array) -> dict[str, float]:
    """Return AUC and log-loss of hidden entries, all and of rare features."""
    shown = np.where(hidden, np.nan, values)
    n, total = (~np.isnan(shown)).sum(axis=0), np.nansum(shown, axis=0)
    rare = hidden & (total / np.maximum(n, 1) < RARE)
    out = {
        "auc": auc(values[hidden], p[hidden]),
        "log_loss": log_loss(values[hidden], p[hidden]),
    }
    if rare.any():
        out["rare_log_loss"] = log_loss(values[rare], p[rare])
    return out


def frequencies(values: Array, hidden: Array) -> dict[str, float]:
    """Return the scores of each feature's shown frequency, the best of three ways to smooth it."""
    shown = np.where(hidden, np.nan, values)
    n, total = (~np.isnan(shown)).sum(axis=0), np.nansum(shown, axis=0)
    ways = [(total + a) / np.maximum(n + 2 * a, 1e-9) for a in (0.0, 0.5, 1.0)]
    found = [scores_of(values, hidden, np.broadcast_to(p, values.shape)) for p in ways]
    best = {key: min(f[key] for f in found) for key in found[0]}
    return best | {"auc": max(f["auc"] for f in found)}


def run_ours(
    values: Array, fraction: float, n_factors: int, options: dict[str, Any], seed: int
) -> dict[str, Any]:
    """Fit with factorflow, which hides the entries itself."""
    import factorflow
    from factorflow.models.sparse_gfa import SparseGFA

    with tempfile.TemporaryDirectory() as folder:
        store = factorflow.write_dataset(Path(folder) / "data.zarr", {"v": values}, {"v": "bernoulli"})
        begun = time.process_time()
        config = SparseGFA(n_factors=n_factors, **options)
        posterior = factorflow.fit(store, config, seed=seed, holdout=fraction)
        seconds = time.process_time() - begun
        p = posterior.predict("v")["mean"].to_numpy()
    tree = posterior.tree["variational"]
    x = tree["scores"].to_numpy() @ tree["loadings_v"].to_numpy().T + tree["intercept_v"].to_numpy()
    hidden = hidden_entries(values, fraction, seed)
    trace = posterior.trace
    stage, bound = trace["stage"].to_numpy(), trace["objective"].to_numpy()
    factors = trace["n_factors"].to_numpy()
    same = (stage[1:] == stage[:-1]) & (factors[1:] == factors[:-1])
    same &= np.isfinite(bound[1:]) & np.isfinite(bound[:-1])
    fall = float(np.max((bound[:-1] - bound[1:])[same] / np.abs(bound[1:][same]), initial=0.0))
    plain = scores_of(values, hidden, 1.0 / (1.0 + np.exp(-x)))
    return {
        **scores_of(values, hidden, p),
        "plug_in_log_loss": plain["log_loss"],
        "plug_in_rare_log_loss": plain.get("rare_log_loss"),
        "finite": all(bool(np.isfinite(a).all()) for a in (p, x, bound[-3:])),
        "monotone": fall <= FELL,
        "largest_relative_fall": fall,
        "passes": len(bound),
        "n_factors": int(tree.sizes["factor"]),
        "seconds": seconds,
    }


def chosen_options(values: Array, fraction: float, n_factors: int, folder: Path, seed: int) -> dict[str, Any]:
    """Return the options of `GRID` that are best on three times a tenth of the shown entries."""
    import factorflow
    from factorflow.workflow.select import select

    shown = np.where(hidden_entries(values, fraction, seed), np.nan, values)
    shown = shown[(~np.isnan(shown)).any(axis=1)]
    store = factorflow.write_dataset(folder / "shown.zarr", {"v": shown}, {"v": "bernoulli"})
    model = {"model": "sparse_gfa", "n_factors": n_factors}
    seeds = (seed + 1, seed + 2, seed + 3)  # not that by which what is shown was chosen
    best = select(store, model, GRID, out=folder / "trials", seeds=seeds).best
    return {name: best[name] for name in GRID}


def hidden_entries(values: Array, fraction: float, seed: int) -> Array:
    """Return the observed entries that factorflow holds out with this seed."""
    from factorflow.data import Holdout

    return Holdout(fraction, seed).mask(0, 0, *values.shape) & ~np.isnan(values)


def run_peer(shown: Array, n_factors: int, peer: str) -> Array:
    """Fit with MOFA-FLEX and return E x; features it drops stay at their log-odds."""
    import anndata
    import mofaflex

    model_options, training_options = PEERS[peer]
    names = [f"f{d}" for d in range(shown.shape[1])]
    data = anndata.AnnData(shown.astype(np.float32))
    data.obs_names, data.var_names = [f"s{n}" for n in range(len(shown))], names
    model = mofaflex.MOFAFLEX(
        {"group": {"v": data}},
        mofaflex.DataOptions(plot_data_overview=False),
        mofaflex.ModelOptions(n_factors=n_factors, likelihoods="Bernoulli", **model_options),
        mofaflex.TrainingOptions(**({"device": "cpu", "seed": 0} | training_options)),
    )
    n, total = (~np.isnan(shown)).sum(axis=0), np.nansum(shown, axis=0)
    x = np.tile(np.log((total + 0.5) / (n - total + 0.5)), (len(shown), 1))
    scores, weights = model.get_factors()["group"], model.get_weights()["v"]
    samples = [int(str(s)[1:]) for s in scores.index]
    features = [int(str(f)[1:]) for f in weights.columns]
    x[np.ix_(samples, features)] = scores.to_numpy() @ weights.to_numpy()
    return x


def spawn_peer(python: str, values: Array, hidden: Array, n_factors: int, ways: list[str]) -> dict[str, Any]:
    """Run MOFA-FLEX in its own environment, in some of the ways of `PEERS`."""
    out: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        shown = Path(folder) / "shown.npy"
        np.save(shown, np.where(hidden, np.nan, values))
        for way in ways:
            command = [python, str(Path(__file__).resolve()), "--peer", str(shown), way, str(n_factors)]
            begun = time.monotonic()
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                out[way] = {"failed": done.stderr.strip().splitlines()[-1:]}
                continue
            x = np.load(shown.with_suffix(".x.npy"))
            p = 1.0 / (1.0 + np.exp(-x))
            out[way] = {**scores_of(values, hidden, p), "wall_seconds": time.monotonic() - begun}
    return out


def verdict(ours: dict[str, Any], frequency: dict[str, float], peers: dict[str, Any]) -> list[str]:
    """Return what falls short."""
    short = [name for name in ("finite", "monotone") if not ours[name]]
    short += [k for k in ("log_loss", "rare_log_loss") if k in ours and not ours[k] <= frequency[k]]
    best = max((p["auc"] for p in peers.values() if "auc" in p), default=0.0)
    return [*short, "auc"] if ours["auc"] < best else short


def show(name: str, found: dict[str, Any]) -> None:
    """Print one line."""
    text = "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items())
    print(f"  {name:10s} {text}", flush=True)


def cases(arguments: argparse.Namespace) -> Iterator[tuple[str, Array]]:
    """Yield the datasets asked for."""
    everything = list(stored_views(arguments.data)) if arguments.data else []
    if arguments.simulated:
        everything += [(f"simulated/{n}x{d}", simulated(n, d)) for n, d in SIMULATED]
    for name, values in everything:
        if not arguments.cases or any(name.startswith(c) for c in arguments.cases):
            yield name, values


def main() -> None:
    """Run the table, or one fit of the peer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--peer-python")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=["defaults", "Horseshoe", "Normal"])
    parser.add_argument("--cases", nargs="*", help="names, or how they begin")
    parser.add_argument("--fractions", type=float, nargs="*", default=FRACTIONS)
    parser.add_argument("--factors", type=int, nargs="*", default=FACTORS)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0], help="of hidden entries and fit")
    parser.add_argument("--simulated", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--options", type=json.loads, default={}, help="options of SparseGFA as JSON")
    parser.add_argument("--choose", action="store_true", help="options by held-out entries among the shown")
    parser.add_argument("--label", default="ours", help="of our fits in the results")
    parser.add_argument("--out", type=Path, help="results; those of other cases that it holds are kept")
    parser.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        path, way, n_factors = arguments.peer
        with contextlib.redirect_stdout(sys.stderr):
            x = run_peer(np.load(path), int(n_factors), way)
        np.save(Path(path).with_suffix(".x.npy"), x)
        return
    results: dict[str, Any] = {}
    if arguments.out and arguments.out.exists():
        results = json.loads(arguments.out.read_text())
    for (name, values), fraction, seed in itertools.product(
        cases(arguments), arguments.fractions, arguments.seeds
    ):
        hidden = hidden_entries(values, fraction, seed)
        frequency = frequencies(values, hidden)
        for n_factors in arguments.factors:
            if n_factors > min(values.shape):
                continue
            options = arguments.options
            if arguments.choose:
                with tempfile.TemporaryDirectory() as folder:
                    options = chosen_options(values, fraction, n_factors, Path(folder), seed)
            ours = run_ours(values, fraction, n_factors, options, seed) | {"options": options}
            key = f"{name}, {fraction:.0%} hidden, K={n_factors}" + (f", seed {seed}" if seed else "")
            found = results.setdefault(key, {})
            peers = found.get("mofaflex", {})
            if arguments.peer_python:
                python, ways = arguments.peer_python, arguments.peers
                peers = peers | spawn_peer(python, values, hidden, n_factors, ways)
            ours["short"] = short = verdict(ours, frequency, peers)
            found |= {arguments.label: ours, "frequency": frequency, "mofaflex": peers}
            print(key, "SHORT: " + ", ".join(short) if short else "ok", flush=True)
            show("ours", ours)
            show("frequency", frequency)
            for way, peer in peers.items():
                show(f"mofaflex {way}", peer)
            if arguments.out:
                arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
