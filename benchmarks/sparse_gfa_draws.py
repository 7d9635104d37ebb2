"""What intervals of sparse group factor analysis cover, variational and sampled, and what a sweep costs.

Two Gaussian views, 40 features in all, three factors, z ~ N(0, 1), w = s N(0, 1), s ~ Bern(0.4), noise of
variance 1, 15 % of the entries hidden. Usage::

    python benchmarks/sparse_gfa_draws.py --out benchmarks/results/sparse_gfa_draws.json \\
        [--sets 10] [--draws 500] [--seconds 600]

Factors are matched to the true ones by the correlation of scores. Counted, in sets that find all three:
90 % intervals of the hidden entries and of scores, 95 % intervals of loadings of inclusion above .95, and the
share of those that are truly 0. ``sweep`` is the CPU time of a sweep of one chain over that of a variational
pass. ``--seconds``: no set is begun after so many (CPU).
"""

from __future__ import annotations

import argparse
import json
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

FACTORS, SHARE, FEATURES, HIDDEN = 3, 0.4, (20, 20), 0.15
SIZES, CHAINS = (50, 100), 2


def simulate(n_rows: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Return scores, loadings, entries and which of them are hidden; features of all views side by side."""
    rng = np.random.default_rng([n_rows, seed])
    z = rng.normal(size=(n_rows, FACTORS))
    w = (rng.random((sum(FEATURES), FACTORS)) < SHARE) * rng.normal(size=(sum(FEATURES), FACTORS))
    y = z @ w.T + rng.normal(size=(n_rows, sum(FEATURES)))
    return z, w, y, rng.random(y.shape) < HIDDEN


def by_view(values: Any) -> dict[str, Any]:
    """Return the columns of each view."""
    parts = np.split(values, np.cumsum(FEATURES)[:-1], axis=1)
    return {f"view{m}": part for m, part in enumerate(parts)}


def summarise(posterior: Any, names: list[str]) -> dict[str, Any]:
    """Return mean and ends of intervals of scores and loadings of some views, and inclusion probabilities."""
    inclusion = np.concatenate([posterior.inclusion(name).values for name in names])
    if posterior.kind == "monte carlo":
        z = posterior.draws("scores_draws").values
        w = np.concatenate([posterior.draws(f"loadings_{name}").values for name in names], axis=2)
        z, w = z.reshape(-1, *z.shape[2:]), w.reshape(-1, *w.shape[2:])
        ends = [np.quantile(z, (0.05, 0.95), axis=0), np.quantile(w, (0.025, 0.975), axis=0)]
        return {"scores": (z.mean(0), *ends[0]), "loadings": (w.mean(0), *ends[1]), "inclusion": inclusion}
    found = {"inclusion": inclusion}
    z, v = posterior.variable("scores").values, posterior.variable("scores_variance").values
    w = np.concatenate([posterior.variable(f"loadings_{name}").values for name in names])
    u = np.concatenate([posterior.variable(f"loadings_variance_{name}").values for name in names])
    for name, mean, variance, level in (("scores", z, v, 0.95), ("loadings", w, u, 0.975)):
        half = norm.ppf(level) * np.sqrt(variance)
        found[name] = mean, mean - half, mean + half
    return found


def judge(posterior: Any, z: Any, w: Any, y: Any, hidden: Any) -> dict[str, tuple[float, float]] | None:
    """Return hits and tries of each kind of interval; None where another number of factors was found."""
    found = summarise(posterior, [f"view{m}" for m in range(len(FEATURES))])
    if found["inclusion"].shape[1] != FACTORS:
        return None
    r = np.corrcoef(z.T, found["scores"][0].T)[:FACTORS, FACTORS:]
    _, order = linear_sum_assignment(-np.abs(r))
    sign = np.sign(r[np.arange(FACTORS), order])
    inside = {}
    for name, truth in (("scores", z), ("loadings", w)):
        _, low, high = (part[:, order] for part in found[name])
        inside[name] = (truth * sign >= low) & (truth * sign <= high)
    sure = found["inclusion"][:, order] > 0.95
    predicted = [posterior.predict(f"view{m}", interval=0.9).load() for m in range(len(FEATURES))]
    low, high = (np.concatenate([p[end].values for p in predicted], axis=1) for end in ("lower", "upper"))
    within = ((y >= low) & (y <= high))[hidden]
    return {
        "predictions 90 %": (float(within.sum()), float(within.size)),
        "scores 90 %": (float(inside["scores"].sum()), float(z.size)),
        "loadings 95 %": (float(inside["loadings"][sure].sum()), float(sure.sum())),
        "false loadings": (float((w[sure] == 0).sum()), float(sure.sum())),
    }


def run(n_rows: int, seed: int, draws: int) -> dict[str, Any]:
    """Fit one set both ways; return what was covered and CPU seconds of an iteration."""
    import factorflow
    from factorflow.models import SparseGFA

    z, w, y, hidden = simulate(n_rows, seed)
    out: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        shown = by_view(np.where(hidden, np.nan, y))
        dataset = factorflow.write_dataset(Path(folder, "data.zarr"), shown)
        for name, options in (("variational", {}), ("draws", {"n_draws": draws, "chains": CHAINS})):
            begun = time.process_time()
            fit = factorflow.fit(dataset, SparseGFA(n_factors=6, **options), seed=seed, progress=False)
            seconds = time.process_time() - begun
            out[name] = {"seconds": seconds, "iterations": int(fit.trace.sizes["iteration"])}
            out[name]["covered"] = judge(fit, z, w, y, hidden)
    sweeps = CHAINS * (draws + 200)
    pass_ = out["variational"]["seconds"] / out["variational"]["iterations"]
    out["sweep"] = (out["draws"]["seconds"] - out["variational"]["seconds"]) / sweeps / pass_
    return out


def main() -> None:
    """Run all sets, print and write what they gave."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sets", type=int, default=10)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    run(SIZES[0], 0, 5)  # compiles what is compiled
    rows, begun = [], time.process_time()
    for n_rows in SIZES:
        sets = []
        for seed in range(options.sets):
            if time.process_time() - begun > options.seconds * (1 + SIZES.index(n_rows)) / len(SIZES):
                break
            sets.append(run(n_rows, seed, options.draws))
        for name in ("variational", "draws"):
            found = [s[name]["covered"] for s in sets if s[name]["covered"] is not None]
            row: dict[str, Any] = {
                "samples": n_rows,
                "posterior": name,
                "sets": len(sets),
                "used": len(found),
            }
            for key in found[0] if found else ():
                hits, tries = np.sum([f[key] for f in found], axis=0)
                row[key] = [round(float(hits / max(tries, 1.0)), 4), int(tries)]
            if name == "draws" and sets:
                row["sweep"] = round(float(np.median([s["sweep"] for s in sets])), 2)
            rows.append(row)
            print(row, flush=True)
    if options.out is not None:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, loaded"
        found = {"machine": machine, "draws": options.draws, "chains": CHAINS, "rows": rows}
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
