"""What smooth scores add to sparse group factor analysis: factors, hidden times and places, time of a pass.

Three smooth factors and two rough ones, loadings Bern(.3) N(0, 1), intercepts and noise of variance 4,
squared exponential curves whose rest has variance .1, .2, .1::

    python benchmarks/sparse_gfa_smooth.py [--only time hidden plane passes spots million twenty]
    [--sets 3] [--out FILE]

``time``: 5 groups at 30 times, two views of 200; curves of length .15 (one in all groups), .25 (half
shared) and .2 (one each). ``hidden``: the same without a fifth of the pairs of group and time, at which
b + sum w f is predicted. ``plane``: 40 x 40 spots, 300 features, lengths .08, .2 and .4; hidden are a fifth
of the spots and a square hole of 15 % of the side. ``passes``: seconds of a pass over 100 000 x 300 on a
plane; ``spots``: CPU seconds of the same over 100 000 x 3000 with twenty factors, 400 cosines; ``million``:
of the fit with smooth scores over 1 000 000 x 1000 with ten factors, in 14 GB of memory: the entries,
these centred, and the functions of all rows are kept; ``twenty``: the same with twenty.

Beside the fit with smooth scores: the plain fit, and "two steps", a Gaussian process (Matern 5/2, one course
of all groups and one of each) through each factor's scores of the plain fit. One thread.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set
import pandas as pd  # noqa: E402
from scipy.linalg import cho_solve  # noqa: E402
from scipy.optimize import minimize  # noqa: E402
from scipy.special import ndtri  # noqa: E402

FIRST_SEED = 7000
REST = np.array([0.1, 0.2, 0.1])
"""Share of each smooth factor that is none of its curve."""
NOISE_SD = 2.0
LEVEL_SD = 2.0
"""Of intercepts. Where these are all 0, levels of curves stay in the scores, and count as their rest."""
MOST_FITTED = 500
"""Samples from which the hyperparameters of a process through scores are taken."""
HIDDEN_SHARE = 0.2
HOLE = 0.15


@dataclass(frozen=True)
class Simulated:
    """Data with what they were made of: curves are those of the smooth factors, scaled."""

    obs: pd.DataFrame
    scores: Any
    curves: Any
    loadings: list[Any]
    levels: list[Any]
    views: dict[str, pd.DataFrame]


def draw_curves(rng: np.random.Generator, places: Any, length: float, n: int) -> Any:
    """Return smooth functions of variance 1 at some places, (n places, n)."""
    squares = ((places[:, None] - places[None]) ** 2).sum(axis=-1)
    covariance = np.exp(-0.5 * squares / length**2) + 1e-6 * np.eye(len(places))
    return np.linalg.cholesky(covariance) @ rng.standard_normal((len(places), n))


def add_views(rng: np.random.Generator, obs: pd.DataFrame, curves: Any, widths: list[int]) -> Simulated:
    """Return data of three curves, their rests and two rough factors."""
    n = len(obs)
    smooth = np.sqrt(1.0 - REST) * curves
    scores = np.column_stack(
        [smooth + np.sqrt(REST) * rng.standard_normal((n, 3)), rng.standard_normal((n, 2))]
    )
    loadings = [(rng.random((d, 5)) < 0.3) * rng.standard_normal((d, 5)) for d in widths]
    levels = [LEVEL_SD * rng.standard_normal(d) for d in widths]
    views = {}
    for i, (w, b) in enumerate(zip(loadings, levels, strict=True)):
        values = b + scores @ w.T + NOISE_SD * rng.standard_normal((n, len(w)))
        views[f"v{i}"] = pd.DataFrame(values, index=obs.index)
    return Simulated(obs, scores, smooth, loadings, levels, views)


def simulate_groups(seed: int) -> Simulated:
    """Return 5 groups at 30 times."""
    rng, n_groups, n_times = np.random.default_rng(seed), 5, 30
    times = np.linspace(0.0, 1.0, n_times)[:, None]
    one = np.repeat(draw_curves(rng, times, 0.15, 1), n_groups, axis=1)
    half = 0.7 * draw_curves(rng, times, 0.25, 1) + np.sqrt(0.51) * draw_curves(rng, times, 0.25, n_groups)
    own = draw_curves(rng, times, 0.2, n_groups)
    curves = np.column_stack([each.T.ravel() for each in (one, half, own)])
    obs = pd.DataFrame(
        {
            "time": np.tile(times[:, 0], n_groups),
            "group": np.repeat([f"g{g}" for g in range(n_groups)], n_times),
        },
        index=[f"s{i}" for i in range(n_groups * n_times)],
    )
    return add_views(rng, obs, curves, [200, 200])


def simulate_plane(seed: int, n_side: int = 40) -> Simulated:
    """Return 40 x 40 spots."""
    rng, side = np.random.default_rng(seed), np.linspace(0.0, 1.0, n_side)
    places = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    curves = np.column_stack([draw_curves(rng, places, length, 1) for length in (0.08, 0.2, 0.4)])
    obs = pd.DataFrame(places, columns=["x", "y"], index=[f"s{i}" for i in range(len(places))])
    return add_views(rng, obs, curves, [300])


def fit(data: Simulated, seen: Any, folder: Path, **options: Any) -> tuple[Any, float]:
    """Fit the samples that are seen; return the posterior and seconds of processor time."""
    import factorflow

    views = {name: frame[seen] for name, frame in data.views.items()}
    groups = "group" if "group" in data.obs else None
    dataset = factorflow.write_dataset(
        folder / "data.zarr", views, obs=data.obs[seen], groups=groups, overwrite=True
    )
    begun = time.process_time()
    model = factorflow.models.SparseGFA(n_factors=8, **options)
    return factorflow.fit(dataset, model, progress=False), time.process_time() - begun


def correlations(data: Simulated, seen: Any, posterior: Any) -> list[float]:
    """Return the largest correlation of each true factor with one that was found."""
    found, n = posterior.scores().to_numpy(), data.scores.shape[1]
    alike = np.abs(np.corrcoef(data.scores[seen].T, found.T)[:n, n:])
    return [round(float(value), 3) for value in alike.max(axis=1)]


def matern(squares: Any, length: float) -> Any:
    """Return the Matern 5/2 correlation at squared distances."""
    scaled = np.sqrt(5.0 * squares) / length
    return (1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled)


def process_through(score: Any, places: Any, groups: Any, at: Any, groups_at: Any) -> tuple[Any, Any]:
    """Return mean and variance of a Gaussian process through one factor's scores, at other places."""

    def covariance(x: Any, g: Any, y: Any, h: Any, theta: Any) -> Any:
        squares = ((x[:, None] - y[None]) ** 2).sum(axis=-1)
        return matern(squares, theta[0]) * (theta[1] + theta[2] * (g[:, None] == h[None]))

    def loss(logs: Any) -> float:
        theta = np.exp(logs)
        whole = covariance(x, g, x, g, theta) + (theta[3] + 1e-6) * np.eye(len(x))
        root = np.linalg.cholesky(whole)
        return float(0.5 * z @ cho_solve((root, True), z) + np.log(np.diag(root)).sum())

    level = float(score.mean())
    some = np.random.default_rng(0).permutation(len(score))[:MOST_FITTED]
    x, g, z = places[some], groups[some], score[some] - level
    bounds = [(np.log(0.02), np.log(2.0)), *[(np.log(1e-4), np.log(10.0))] * 3]
    starts = [np.log([length, 0.3, 0.3, 0.3]) for length in (0.1, 0.3)]
    best = min(
        (minimize(loss, s, bounds=bounds, options={"maxiter": 30}) for s in starts), key=lambda r: r.fun
    )
    theta = np.exp(best.x)
    whole = covariance(places, groups, places, groups, theta) + (theta[3] + 1e-6) * np.eye(len(score))
    root = np.linalg.cholesky(whole)
    cross = covariance(at, groups_at, places, groups, theta)
    mean = level + cross @ cho_solve((root, True), score - level)
    variance = theta[1] + theta[2] - (cross * cho_solve((root, True), cross.T).T).sum(axis=1)
    return mean, np.maximum(variance, 0.0)


def two_steps(
    posterior: Any, data: Simulated, seen: Any, columns: list[str], at: pd.DataFrame
) -> tuple[Any, Any]:
    """Return mean and variance of processes through the scores of a plain fit, (places, factors)."""
    none = np.zeros(len(data.obs))
    groups = data.obs["group"].to_numpy() if "group" in data.obs else none
    groups_at = at["group"].to_numpy() if "group" in at else np.zeros(len(at))
    places, places_at = data.obs.loc[seen, columns].to_numpy(), at[columns].to_numpy()
    each = [
        process_through(score, places, groups[seen], places_at, groups_at)
        for score in posterior.scores().to_numpy().T
    ]
    return np.column_stack([mean for mean, _ in each]), np.column_stack([variance for _, variance in each])


def judge(posterior: Any, mean: Any, variance: Any, data: Simulated, hidden: Any) -> dict[str, float]:
    """Return R2 of b + sum w f at hidden samples, and how much of it intervals of 90 % cover."""
    errors, truths, inside = [], [], []
    reach = float(ndtri(0.95))
    for name, true_loadings, level in zip(data.views, data.loadings, data.levels, strict=True):
        w, w_variance, b, b_variance = (
            posterior.variable(f"{key}_{name}").values
            for key in ("loadings", "loadings_variance", "intercept", "intercept_variance")
        )
        truth = level + data.curves[hidden] @ true_loadings[:, :3].T
        spread = (mean**2 + variance) @ w_variance.T + variance @ (w**2).T + b_variance
        errors.append(mean @ w.T + b - truth)
        truths.append(truth)
        inside.append(np.abs(errors[-1]) < reach * np.sqrt(spread))
    error, truth = np.hstack(errors), np.hstack(truths)
    return {
        "r2": round(1.0 - float((error**2).sum() / ((truth - truth.mean(axis=0)) ** 2).sum()), 3),
        "coverage": round(float(np.hstack(inside).mean()), 3),
    }


def compare(data: Simulated, hidden: dict[str, Any], smooth: Any, folder: Path) -> dict[str, Any]:
    """Return factors found and hidden samples predicted, by each way; ``hidden`` are sets of samples."""
    seen = ~np.any(list(hidden.values()), axis=0) if hidden else np.ones(len(data.obs), bool)
    columns = [smooth] if isinstance(smooth, str) else smooth[0]
    plain, seconds_plain = fit(data, seen, folder, scores="normal")
    joint, seconds = fit(data, seen, folder, smooth_covariates=smooth)
    row: dict[str, Any] = {
        "plain": {"correlations": correlations(data, seen, plain), "seconds": round(seconds_plain, 2)},
        "smooth": {"correlations": correlations(data, seen, joint), "seconds": round(seconds, 2)},
    }
    table = joint.smoothness()
    row["smooth"]["shares"] = [round(float(share), 2) for share in table["smooth"]]
    row["smooth"]["lengths"] = [round(float(x), 2) for x in table.filter(like="length").iloc[:, 0].dropna()]
    if hidden:
        row["two steps"] = {}
    for name, mask in hidden.items():
        at = data.obs[mask]
        begun = time.process_time()
        stepped = two_steps(plain, data, seen, columns, at)
        row["two steps"]["seconds"] = round(seconds_plain + time.process_time() - begun, 2)
        row["two steps"][name] = judge(plain, *stepped, data, mask)
        curve = joint.interpolate(at)
        row["smooth"][name] = judge(
            joint, curve["f_mean"].to_numpy(), curve["f_sd"].to_numpy() ** 2, data, mask
        )
    return row


def run_time(seed: int, folder: Path) -> dict[str, Any]:
    """Compare fits of all samples over time."""
    return compare(simulate_groups(seed), {}, "time", folder)


def run_hidden(seed: int, folder: Path) -> dict[str, Any]:
    """Compare predictions at hidden pairs of group and time."""
    data = simulate_groups(seed)
    hidden = np.random.default_rng(seed + 100).random(len(data.obs)) < HIDDEN_SHARE
    return compare(data, {"hidden": hidden}, "time", folder)


def run_plane(seed: int, folder: Path) -> dict[str, Any]:
    """Compare predictions at hidden spots and in a hole."""
    data = simulate_plane(seed)
    hole = (np.abs(data.obs.to_numpy() - 0.5) < 0.5 * HOLE).all(axis=1)
    spots = (np.random.default_rng(seed + 100).random(len(data.obs)) < HIDDEN_SHARE) & ~hole
    return compare(data, {"spots": spots, "hole": hole}, [["x", "y"]], folder)


def run_passes(seed: int, folder: Path) -> dict[str, Any]:
    """Return medians of the seconds of a pass of each stage, plain and smooth."""
    import factorflow

    options: dict[str, Any] = {"views": {"a": ("gaussian", 300)}, "n_factors": 8, "smooth": 4, "r2": 0.3}
    data = factorflow.simulate(
        "sparse_gfa", folder / "big.zarr", 100_000, seed=seed, places="plane", length_scale=0.15, **options
    )
    row = {}
    for name, given in (("plain", {"scores": "normal"}), ("smooth", {"smooth_covariates": [["x", "y"]]})):
        model = factorflow.models.SparseGFA(n_factors=10, max_iter=20, **given)
        trace = factorflow.fit(data, model, progress=False).trace.to_dataframe()
        each = trace["seconds"].diff().groupby(trace["stage"], sort=False)
        row[name] = {
            "passes": len(trace),
            "seconds": round(float(trace["seconds"].iloc[-1]), 1),
            "of a pass": {stage: round(float(value), 3) for stage, value in each.median().items()},
        }
    return row


def run_spots(
    seed: int, folder: Path, n: int = 100_000, n_features: int = 3000, n_factors: int = 20, **limits: Any
) -> dict[str, Any]:
    """Return CPU seconds of a pass of each stage, and of the fit: plain, without limits, and smooth."""
    import factorflow
    from factorflow.engine.events import IterationDone

    options: dict[str, Any] = {"n_factors": n_factors, "smooth": n_factors // 2, "r2": 0.3}
    views = {"a": ("gaussian", n_features)}
    data = factorflow.simulate(
        "sparse_gfa",
        folder / f"spots_{n}_{n_factors}.zarr",
        n,
        views=views,
        seed=seed,
        places="plane",
        length_scale=0.15,
        **options,
    )
    row: dict[str, Any] = {}
    smooth = {"smooth_covariates": [["x", "y"]], "n_functions": 20}
    for name, given in (("plain", {"scores": "normal"}), ("smooth", smooth)):
        if limits and name == "plain":
            continue
        model = factorflow.models.SparseGFA(n_factors=n_factors, **given)
        passes: list[tuple[str, float]] = [("", time.process_time())]

        def watch(event: Any, passes: list[tuple[str, float]] = passes) -> None:
            if isinstance(event, IterationDone):
                passes.append((event.stage, time.process_time()))

        posterior = factorflow.fit(data, model, progress=False, on_event=watch, **limits)
        total = time.process_time() - passes[0][1]
        sweeps = {stage.name: len(stage.sweeps) for stage in posterior.model.stages()}
        n_sweeps = [sweeps[stage] for stage, _ in passes[1:]]
        each = pd.Series(np.diff([end for _, end in passes]) / n_sweeps, [stage for stage, _ in passes[1:]])
        stages = each.groupby(level=0, sort=False)
        row[name] = {
            "factors": len(posterior.factors),
            "smooth": int((posterior.smoothness()["smooth"] > 0).sum()) if name == "smooth" else 0,
            "passes": sum(n_sweeps),
            "seconds": round(total, 1),
            "behind the last pass": round(time.process_time() - passes[-1][1], 1),
            "of a pass": {stage: round(float(value), 3) for stage, value in stages.mean().items()},
            "quickest": {stage: round(float(value), 3) for stage, value in stages.min().items()},
        }
    return row


RUNS: dict[str, Callable[[int, Path], dict[str, Any]]] = {
    "time": run_time,
    "hidden": run_hidden,
    "plane": run_plane,
    "passes": run_passes,
    "spots": run_spots,
    "million": partial(run_spots, n=1_000_000, n_features=1000, n_factors=10, memory_limit="14GB"),
    "twenty": partial(run_spots, n=1_000_000, n_features=1000, memory_limit="14GB"),
}

ONCE = {"passes", "spots", "million", "twenty"}
"""Runs of one set."""


def main() -> None:
    """Run what is asked for, set by set; results are added to those of the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--sets", type=int, default=3, help="sets of data of each kind")
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    results = json.loads(a.out.read_text()) if a.out and a.out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in a.only:
            rows = {}
            for seed in range(FIRST_SEED, FIRST_SEED + (1 if name in ONCE else a.sets)):
                rows[str(seed)] = RUNS[name](seed, Path(folder))
                print(name, seed, json.dumps(rows[str(seed)]), flush=True)
            results[name] = rows | {"date": time.strftime("%Y-%m-%d"), "load": round(os.getloadavg()[0], 1)}
    if a.out:
        a.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
