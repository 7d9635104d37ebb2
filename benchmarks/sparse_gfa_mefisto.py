"""Smooth scores of sparse group factor analysis beside mofapy2 (MEFISTO), over time and on a plane.

The data of `sparse_gfa_smooth.py`: three smooth factors and two rough ones; a fifth of the pairs of group and
time, or of the spots, has no entries::

    python -m venv peers && peers/bin/pip install -r benchmarks/requirements-sparse_gfa.txt
    python benchmarks/sparse_gfa_mefisto.py --peer-python peers/bin/python [--sets 3] [--out FILE]

Both begin with eight factors. mofapy2 has its defaults, but groups are not centred (levels are those of all
groups here); courses are those of all groups (with a covariance of groups each of its many optimisations
takes 40 seconds of CPU for 150 samples); and on the plane, 20 x 20 spots, Gaussian processes are sparse,
with a fifth of the spots as inducing points. "correlations" are those of each true factor with the one most
like it, at samples that are seen; "r2" is that of b + sum w f at hidden ones, where mofapy2's scores are
those of its processes, and b the mean of the feature. Seconds are of CPU, one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set
import sparse_gfa_smooth as simulations  # noqa: E402

N_FACTORS, INDUCING = 8, 0.2
Array = Any


def simulate(kind: str, seed: int, side: int) -> tuple[simulations.Simulated, Array]:
    """Return data, and which samples are hidden."""
    data = simulations.simulate_groups(seed) if kind == "time" else simulations.simulate_plane(seed, side)
    hidden = np.random.default_rng(seed + 100).random(len(data.obs)) < simulations.HIDDEN_SHARE
    return data, hidden


def r2(data: simulations.Simulated, hidden: Array, found: list[Array]) -> float:
    """Return the share of the variance of b + sum w f at hidden samples that predictions by view explain."""
    pairs = zip(data.loadings, data.levels, strict=True)
    truth = np.hstack([level + data.curves[hidden] @ w[:, :3].T for w, level in pairs])
    error = np.hstack(found) - truth
    return round(1.0 - float((error**2).sum() / ((truth - truth.mean(axis=0)) ** 2).sum()), 3)


def correlations(data: simulations.Simulated, seen: Array, found: Array) -> list[float]:
    """Return the largest correlation of each true factor with one that was found, at seen samples."""
    n, varying = data.scores.shape[1], found[:, found.std(axis=0) > 1e-12]
    alike = np.abs(np.corrcoef(data.scores[seen].T, varying.T)[:n, n:])
    return [round(float(value), 3) for value in alike.max(axis=1)]


def run_ours(kind: str, seed: int, side: int) -> dict[str, Any]:
    """Fit with smooth scores."""
    data, hidden = simulate(kind, seed, side)
    columns: Any = "time" if kind == "time" else [["x", "y"]]
    with tempfile.TemporaryDirectory() as folder:
        posterior, seconds = simulations.fit(data, ~hidden, Path(folder), smooth_covariates=columns)
        begun = time.process_time()
        curves = posterior.interpolate(data.obs[hidden])["f_mean"].to_numpy()
        seconds += time.process_time() - begun
        found = [
            curves @ posterior.variable(f"loadings_{name}").values.T
            + posterior.variable(f"intercept_{name}").values
            for name in data.views
        ]
        scores = posterior.scores().to_numpy()
    row = {"correlations": correlations(data, ~hidden, scores), "r2": r2(data, hidden, found)}
    return row | {"factors": scores.shape[1], "seconds": round(seconds, 2)}


def run_mofapy2(kind: str, seed: int, side: int) -> dict[str, Any]:
    """Fit with mofapy2; entries of hidden samples are missing."""
    from mofapy2.run.entry_point import entry_point

    data, hidden = simulate(kind, seed, side)
    groups = data.obs["group"].to_numpy() if "group" in data.obs else np.full(len(data.obs), "all")
    names = list(dict.fromkeys(groups))  # rows are group by group
    columns = ["time"] if kind == "time" else ["x", "y"]
    views = {name: np.where(hidden[:, None], np.nan, frame.to_numpy()) for name, frame in data.views.items()}
    means = {name: np.nanmean(values, axis=0) for name, values in views.items()}
    begun = time.process_time()
    model = entry_point()
    model.set_data_options(center_groups=False, use_float32=False)
    model.set_data_matrix(
        [[(views[v] - means[v])[groups == g] for g in names] for v in views],
        views_names=list(views),
        groups_names=names,
    )
    model.set_covariates(
        [data.obs.loc[groups == g, columns].to_numpy() for g in names], covariates_names=columns
    )
    model.set_model_options(factors=N_FACTORS)
    model.set_train_options(seed=42, quiet=True)
    if kind == "time":
        model.set_smooth_options(model_groups=False)
    else:
        model.set_smooth_options(sparseGP=True, frac_inducing=INDUCING)
    model.build()
    model.run()
    seconds = time.process_time() - begun
    scores = np.asarray(model.model.getNodes()["Z"].getExpectation())
    weights = [np.asarray(w["E"] if isinstance(w, dict) else w) for w in model.model.getExpectations()["W"]]
    found = [scores[hidden] @ w.T + means[v] for v, w in zip(views, weights, strict=True)]
    row = {"correlations": correlations(data, ~hidden, scores[~hidden]), "r2": r2(data, hidden, found)}
    return row | {"factors": scores.shape[1], "seconds": round(seconds, 2)}


WORKERS = {"ours": run_ours, "mofapy2": run_mofapy2}


def main() -> None:
    """Run both on several sets of data of each kind, or one worker on one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python")
    parser.add_argument("--only", nargs="*", choices=["time", "plane"], default=["time", "plane"])
    parser.add_argument("--sets", type=int, default=3, help="sets of data of each kind")
    parser.add_argument("--side", type=int, default=20, help="spots of a row of the plane")
    parser.add_argument("--worker", nargs=3, metavar=("WHO", "KIND", "SEED"))
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    if a.worker:
        print(json.dumps(WORKERS[a.worker[0]](a.worker[1], int(a.worker[2]), a.side)))
        return
    results: dict[str, Any] = {}
    for kind in a.only:
        for seed in range(simulations.FIRST_SEED, simulations.FIRST_SEED + a.sets):
            row = results.setdefault(kind, {}).setdefault(str(seed), {"ours": run_ours(kind, seed, a.side)})
            if a.peer_python:
                command = [
                    a.peer_python,
                    __file__,
                    "--side",
                    str(a.side),
                    "--worker",
                    "mofapy2",
                    kind,
                    str(seed),
                ]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                row["mofapy2"] = json.loads(done.stdout.strip().splitlines()[-1])
            print(kind, seed, json.dumps(row), flush=True)
    results["date"], results["load"] = time.strftime("%Y-%m-%d"), round(os.getloadavg()[0], 1)
    if a.out:
        a.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
