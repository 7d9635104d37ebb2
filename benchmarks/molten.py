"""Molten components of a large simulated table: seconds an iteration, and held-out log likelihood.

One thread, everything measured in one run::

    python benchmarks/molten.py [--rows 1000000] [--components 8 10] [--out benchmarks/results/molten.json]

A table of distinct cells of variables with 1000, 200 and 50 levels; 10 components with factors Gamma(0.7),
mean rate 3.

- ``iteration``: least CPU seconds of an iteration of a whole fit (engine included; beside it the median), the
  same with a fiftieth of the rows (what does not depend on rows), of a NumPy version of the same sums by
  ``take`` and ``bincount``, and the times in which the memory of this machine moves 40 bytes a row (the
  limit), and the bytes that the loops do read: a code of 2 bytes of each row in two passes, code and count of
  those with a count in a third.
- ``heldout``: 1e5 rows kept back; log likelihood a row of the predictive mean, and of the true rates.
- ``large``: a table of ``--large`` rows, all of different cells of 10000 x 1000 x 100 levels, in one Parquet
  file; seconds of `factorflow.write_table`, seconds an iteration from disk, and the largest memory of each.
- ``tables``: real tables of counts (``--data``, a folder of CSV files with a column ``count``, perhaps
  ``exposure``, and variables); of each, a random fifth of the rows kept back, ``--splits`` times. Poisson and
  negative binomial components, of each 1, 2, ... while the bound rises; scored are one component and the
  model with the highest bound: log likelihood a row of its predictive distribution, of Poisson counts with
  its mean alone, and deviance of that mean; beside GLMs with main effects, of Poisson counts (scikit-learn,
  ``alpha`` 1e-6) and of negative binomial ones (statsmodels, the overdispersion that is most likely).

The GLMs need ``pip install -r benchmarks/requirements-molten.txt``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set

Array = Any
LEVELS = {"site": 1000, "species": 200, "year": 50}
SHAPE, RATE, TRUE_COMPONENTS = 0.7, 3.0, 10
LIMIT_BYTES = 40
"""A row: the target that was set, about what a plain layout reads in an iteration; see ``read_bytes``."""
MOST_ITERATIONS = 100
"""Of fits to real tables, after the starts."""


def simulated(n_rows: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Return codes of distinct cells (N, 3), counts and true rates."""
    rng = np.random.default_rng(seed)
    sizes = list(LEVELS.values())
    factors = [rng.gamma(SHAPE, 1.0, (n, TRUE_COMPONENTS)) for n in sizes]
    cells = rng.choice(int(np.prod(sizes)), size=n_rows, replace=False)
    codes = np.stack(np.unravel_index(cells, sizes), axis=1)
    rate = np.zeros(n_rows)
    for k in range(TRUE_COMPONENTS):
        rate += np.prod([f[codes[:, g], k] for g, f in enumerate(factors)], axis=0)
    rate *= RATE / rate.mean()
    return codes, rng.poisson(rate).astype(np.float64), rate


def write(path: Path, codes: Array, y: Array) -> Any:
    """Write a table as a dataset."""
    import factorflow

    labels = {name: np.arange(n).astype(str) for name, n in LEVELS.items()}
    views = {"count": y[:, None]} | {name: labels[name][codes[:, g]] for g, name in enumerate(LEVELS)}
    inputs = dict.fromkeys(LEVELS, "categorical")
    return factorflow.write_dataset(path, views, {"count": "poisson"}, inputs=inputs)


def write_sorted(path: Path, codes: Array, y: Array) -> Any:
    """Write it by a formula: rows are sorted by their levels, the variable with the fewest counting most."""
    import pandas as pd

    import factorflow

    frame = pd.DataFrame({name: codes[:, g] for g, name in enumerate(LEVELS)})
    formula = "count ~ " + " + ".join(sorted(LEVELS, key=LEVELS.__getitem__))
    return factorflow.write_table(path, frame.assign(count=y.astype(int)), formula)


def numpy_iteration(codes: Array, y: Array, t: Array, tables: list[Array]) -> None:
    """Do what an iteration does: shares once, rates for each variable in turn."""
    n_components, sizes = tables[0].shape[1], [len(table) for table in tables]
    rho = np.take(tables[0], codes[:, 0], 0)
    for g in range(1, len(tables)):
        rho *= np.take(tables[g], codes[:, g], 0)
    total = rho.sum(axis=1)
    rho *= (y / total)[:, None]
    _ = y @ np.log(total)
    for g, size in enumerate(sizes):
        for k in range(n_components):
            np.bincount(codes[:, g], rho[:, k], size)
    for g, size in enumerate(sizes):
        product = np.repeat(t[:, None], n_components, axis=1)
        for other in range(len(tables)):
            if other != g:
                product *= np.take(tables[other], codes[:, other], 0)
        for k in range(n_components):
            np.bincount(codes[:, g], product[:, k], size)


def bandwidth() -> float:
    """Return bytes a CPU second that one thread reads and writes in a copy of 400 MB."""
    a = np.ones(25_000_000)
    b = np.empty_like(a)
    times = []
    for _ in range(5):
        begun = time.process_time()
        np.copyto(b, a)
        times.append(time.process_time() - begun)
    return 2 * a.nbytes / min(times)


def iteration_seconds(
    store: Any, n_components: int, n: int = 60, clock: Callable[[], float] = time.process_time
) -> tuple[float, float]:
    """Return the least and the median CPU (or other) seconds of an iteration of a fit."""
    import factorflow
    from factorflow.engine.events import IterationDone
    from factorflow.models import MoltenPoisson

    ticks: list[float] = []

    def on_event(event: Any) -> None:
        if isinstance(event, IterationDone):
            ticks.append(clock())

    model = MoltenPoisson(n_components=n_components, n_starts=1, max_iter=n, tol=1e-300)
    factorflow.fit(store, model, max_iter=n, on_event=on_event)
    spent = np.diff(ticks)[min(2, n // 2) :]
    return float(spent.min()), float(np.median(spent))


def heldout(folder: Path, codes: Array, y: Array, rate: Array, n_out: int, max_iter: int) -> dict[str, Any]:
    """Return the scores of rows that were kept back."""
    import factorflow
    from factorflow.models import MoltenPoisson

    shown, out = slice(0, len(y) - n_out), slice(len(y) - n_out, None)
    store = write(folder / "shown.zarr", codes[shown], y[shown])
    begun = time.perf_counter()
    posterior = factorflow.fit(store, MoltenPoisson(n_components=TRUE_COMPONENTS, max_iter=max_iter))
    seconds = time.perf_counter() - begun
    new = write(folder / "out.zarr", codes[out], y[out])
    mean = posterior.project(new).predict("count")["mean"].values[:, 0]

    def score(rate: Array) -> float:
        from scipy.stats import poisson

        return float(poisson.logpmf(y[out], rate).mean())

    return {
        "n_out": n_out,
        "log_likelihood": score(mean),
        "true_log_likelihood": score(rate[out]),
        "constant_log_likelihood": score(np.full(n_out, y[shown].mean())),
        "seconds": seconds,
        "iterations": int(posterior.trace["iteration"][-1]),
        "start_objective": posterior.variable("start_objective").values.tolist(),
    }


def large(folder: Path, n_rows: int, n_components: int = 10, n_iter: int = 4) -> dict[str, Any]:
    """Ingest and fit a table that is larger than what is held of it; each step in a process of its own."""
    source = folder / "large.parquet"
    write_parquet(source, n_rows)
    found: dict[str, Any] = {"rows": n_rows, "parquet_bytes": source.stat().st_size}
    for step in (ingest_large, fit_large):
        with get_context("spawn").Pool(1) as pool:
            found |= pool.apply(step, (folder, n_components, n_iter))
    found["ingest_rows_per_second"] = n_rows / found["ingest_seconds"]
    found["fit_rows_per_second"] = n_rows / found["iteration_seconds"]
    return found


def write_parquet(path: Path, n_rows: int, piece: int = 2**22) -> None:
    """Write distinct cells in random order: n -> (a n + b) mod m is one to one for a prime to m."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sizes = (10_000, 1000, 100)
    n_cells, rng = int(np.prod(sizes)), np.random.default_rng(0)
    factors = [rng.gamma(SHAPE, 1.0, size) for size in sizes]
    schema = pa.schema(
        [("site", pa.int32()), ("species", pa.int32()), ("year", pa.int32()), ("count", pa.int64())]
    )
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, n_rows, piece):
            n = np.arange(start, min(start + piece, n_rows), dtype=np.int64)
            codes = np.unravel_index((n * 612_345_671 + 5) % n_cells, sizes)
            y = rng.poisson(
                RATE / SHAPE**3 * np.prod([f[c] for f, c in zip(factors, codes, strict=True)], axis=0)
            )
            columns = [*(c.astype(np.int32) for c in codes), y.astype(np.int64)]
            writer.write_table(pa.table(columns, schema=schema))


def ingest_large(folder: Path, n_components: int, n_iter: int) -> dict[str, Any]:
    """Return seconds and memory of `factorflow.write_table`."""
    import factorflow

    begun = time.perf_counter()
    factorflow.write_table(folder / "large.zarr", folder / "large.parquet", "count ~ site + species + year")
    return {"ingest_seconds": time.perf_counter() - begun, "ingest_bytes": largest_memory()}


def fit_large(folder: Path, n_components: int, n_iter: int) -> dict[str, Any]:
    """Return seconds of an iteration from disk, and memory."""
    least, median = iteration_seconds(folder / "large.zarr", n_components, n_iter, time.perf_counter)
    return {"iteration_seconds": least, "median_iteration_seconds": median, "fit_bytes": largest_memory()}


def largest_memory() -> int:
    """Return the largest resident memory of this process so far (bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def real_tables(folder: Path, data: Path, splits: int) -> dict[str, Any]:
    """Return held-out scores of tables beside those of main effects."""
    import pandas as pd

    found = {}
    for file in sorted(data.glob("*.csv*")):
        frame = pd.read_csv(file)
        if "count" in frame and len(frame) > 1:
            found[file.name.split(".")[0]] = real_table(folder, frame, splits)
    return found


def real_table(folder: Path, frame: Any, splits: int) -> dict[str, Any]:
    """Return the scores of one table, means over random splits."""
    variables = [name for name in frame if name not in ("count", "exposure")]
    offset = " + offset(log(exposure))" if "exposure" in frame else ""
    formula = "count ~ " + " + ".join(f"C({name})" for name in variables) + offset
    t = frame["exposure"].to_numpy(float) if offset else np.ones(len(frame))
    y = frame["count"].to_numpy(float)
    scores: dict[str, list[Any]] = {}
    chosen = []
    for seed in range(splits):
        hidden = np.zeros(len(y), bool)
        hidden[np.random.default_rng(seed).permutation(len(y))[: max(1, len(y) // 5)]] = True
        glm, rate = main_effects(frame[variables].astype(str), y, t, hidden), y[~hidden].sum()
        one, best = selected(folder, frame, formula, hidden)
        chosen.append({name: best[name] for name in ("n_components", "overdispersed", "bound")})
        found = {"glm": score(y[hidden], glm), "rate": score(y[hidden], t[hidden] * rate / t[~hidden].sum())}
        found["negative binomial glm"] = score(
            y[hidden], *overdispersed_main_effects(frame[variables].astype(str), y, t, hidden)
        )
        for name, fit in (("one component", one), ("highest bound", best)):
            found[name] = score(y[hidden], fit["mean"], fit["sd"])
        for name, each in found.items():
            scores.setdefault(name, []).append(each)
    names = ("log_likelihood", "log_likelihood_of_mean", "deviance")
    best_of_all = scores["highest bound"]
    means = {name: np.mean(each, axis=0).tolist() for name, each in scores.items()}
    return {
        "rows": len(y),
        "chosen": chosen,
        "better_splits": {
            name: sum(bool(a[0] > b[0]) for a, b in zip(best_of_all, scores[name], strict=True))
            for name in ("glm", "negative binomial glm")
        },
        **{name: dict(zip(names, each, strict=True)) for name, each in means.items()},
    }


def selected(folder: Path, frame: Any, formula: str, hidden: Array, most: int = 6) -> tuple[Any, Any]:
    """Return one Poisson component, and the fit with the highest bound, Poisson or negative binomial."""
    import factorflow
    from factorflow.models import MoltenPoisson

    new, fits, given = frame[hidden].drop(columns="count"), [], (frame[~hidden], formula, "poisson")
    for overdispersed in (False, True):
        bound, merge = -np.inf, not overdispersed  # each row varies by itself
        store = factorflow.write_table(folder / "real.zarr", *given, merge=merge, overwrite=True)
        for k in range(1, most + 1):
            model = MoltenPoisson(n_components=k, overdispersed=overdispersed, max_iter=MOST_ITERATIONS)
            posterior = factorflow.fit(store, model)
            last, bound = bound, float(posterior.trace["objective"][-1])
            if bound < last:
                break
            predicted = posterior.predict(new)
            fit = {"n_components": k, "overdispersed": overdispersed, "bound": bound}
            fits.append(fit | {name: predicted[name].values for name in ("mean", "sd")})
    return fits[0], max(fits, key=lambda fit: fit["bound"])


def score(y: Array, mean: Array, sd: Array | None = None) -> tuple[float, float, float]:
    """Return log likelihood, that of Poisson counts with the mean, and deviance a row.

    Means are not below 1e-4; without a standard deviation counts are Poisson.
    """
    from scipy.stats import poisson

    from factorflow.posterior.predictive import log_density

    mean = np.maximum(mean, 1e-4)
    fit = poisson.logpmf(y, mean)
    own = fit if sd is None else log_density("poisson", y, mean, np.maximum(sd, np.sqrt(mean)), {})
    deviance = 2 * (poisson.logpmf(y, np.maximum(y, 1e-300)) - fit).mean()
    return float(np.mean(own)), float(fit.mean()), float(deviance)


def main_effects(levels: Any, y: Array, t: Array, hidden: Array) -> Array:
    """Return the rates of hidden rows under a Poisson GLM with main effects fitted to the others."""
    from sklearn.linear_model import PoissonRegressor
    from sklearn.preprocessing import OneHotEncoder

    x = OneHotEncoder(handle_unknown="ignore").fit(levels[~hidden])
    model = PoissonRegressor(alpha=1e-6, solver="newton-cholesky", max_iter=1000)
    model.fit(x.transform(levels[~hidden]).toarray(), (y / t)[~hidden], sample_weight=t[~hidden])
    return t[hidden] * model.predict(x.transform(levels[hidden]).toarray())


def overdispersed_main_effects(levels: Any, y: Array, t: Array, hidden: Array) -> tuple[Array, Array]:
    """Return means and standard deviations of hidden rows under a negative binomial GLM with main effects.

    Variance m + a m^2; a is the one of the highest likelihood, coefficients given it are those of iterated
    least squares.
    """
    import warnings

    import statsmodels.api as sm
    from scipy.optimize import minimize_scalar
    from sklearn.preprocessing import OneHotEncoder

    x = OneHotEncoder(handle_unknown="ignore", drop="first").fit(levels[~hidden])

    def design(rows: Array) -> Array:
        return np.column_stack([np.ones(rows.sum()), x.transform(levels[rows]).toarray()])

    def fit(log_a: float) -> Any:
        family = sm.families.NegativeBinomial(alpha=float(np.exp(log_a)))
        return sm.GLM(y[~hidden], shown, family=family, exposure=t[~hidden]).fit(maxiter=50)

    shown, within = design(~hidden), (-12.0, 6.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # levels with zeros alone: their coefficients go on for ever
        best = minimize_scalar(lambda log_a: -fit(log_a).llf, bounds=within, options={"xatol": 1e-3})
        mean = fit(best.x).predict(design(hidden), exposure=t[hidden])
    return mean, np.sqrt(mean + np.exp(best.x) * mean**2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--components", type=int, nargs="+", default=[8, 10])
    parser.add_argument("--heldout", type=int, default=100_000)
    parser.add_argument("--max-iter", type=int, default=200)
    parser.add_argument("--parts", nargs="+", default=["iteration", "heldout", "tables"])
    parser.add_argument("--large", type=int, default=0, help="rows of a table that is read from disk")
    parser.add_argument("--data", type=Path, help="folder of real tables")
    parser.add_argument("--splits", type=int, default=4, help="of each real table")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    codes, y, rate = simulated(args.rows if {"iteration", "heldout"} & {*args.parts} else 2)
    found: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "rows": args.rows}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "iteration" in args.parts:
            store, t = write_sorted(folder / "all.zarr", codes, y), np.ones(len(y))
            some = slice(len(y) // 50)
            few = write_sorted(folder / "few.zarr", codes[some], y[some])
            found["bytes_per_second"] = bandwidth()
            found["read_bytes"] = 2 * 2 * len(y) + (2 + 4) * int((y > 0).sum())
            found["read_seconds"] = found["read_bytes"] / found["bytes_per_second"]
            for k in args.components:
                tables = [np.random.default_rng(1).gamma(SHAPE, 1.0, (n, k)) for n in LEVELS.values()]
                numpy_seconds = []
                for _ in range(5):
                    begun = time.process_time()
                    numpy_iteration(codes, y, t, tables)
                    numpy_seconds.append(time.process_time() - begun)
                spent, (ours, median) = min(numpy_seconds), iteration_seconds(store, k)
                limit = LIMIT_BYTES * len(y) / found["bytes_per_second"]
                found[f"components {k}"] = {
                    "seconds": ours,
                    "median_seconds": median,
                    "seconds_of_few_rows": iteration_seconds(few, k)[0],
                    "numpy_seconds": spent,
                    "times_numpy": spent / ours,
                    "limit_seconds": limit,
                    "times_limit": ours / limit,
                }
        if "heldout" in args.parts:
            found["heldout"] = heldout(folder, codes, y, rate, args.heldout, args.max_iter)
        if args.large:
            found["large"] = large(folder, args.large)
        if "tables" in args.parts and args.data:
            found["tables"] = real_tables(folder, args.data, args.splits)
    text = json.dumps(found, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
