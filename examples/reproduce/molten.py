"""Molten components of published tables: bounds by number of components, held-out rows beside a Poisson GLM.

For each table and number of components L: the bound of all rows; and over random splits, a fifth of the rows
held out, the log likelihood a row of what is predicted (Poisson at the predictive mean) beside that of a
Poisson GLM with main effects, which is one component fitted by maximum likelihood [1]_.

References
----------
.. [1] W. E. Deming, F. F. Stephan (1940), "On a least squares adjustment of a sampled frequency table when
   the expected marginal totals are known", Annals of Mathematical Statistics 11, 427-444: the iteration that
   fits main effects.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64, Int

from examples.reproduce import fit, scratch_folder
from factorflow.errors import InputError
from factorflow.storage.publish import write_file

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["main_effects", "reproduce"]

RESPONSE, EXPOSURE = "count", "exposure"
"""Columns of a table; all others are variables."""

Report = Callable[[str], None]


def reproduce(
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    n_components: Sequence[int] | int | str = (1, 2, 3, 4),
    n_starts: int = 4,
    splits: int = 5,
    max_iter: int = 500,
    report: Report | None = None,
) -> dict[str, Any]:
    """Fit a simulated table and, where they are given, tables of counts.

    Parameters
    ----------
    out : path
        Folder for ``molten.json`` and the posteriors of all fits; made when it is not there.
    data : path, optional
        A CSV file with a column ``count``, perhaps ``exposure``, and variables; or a folder with
        ``tables/*.csv`` or ``*.csv*``, of which those with such a column take part.
    n_components : sequence of int
        Numbers of components; one, or text such as "1,2,3", as well.
    n_starts : int
        Starts of each fit.
    splits : int
        Random splits; 0: none.
    max_iter : int
        Iterations at most.
    report : callable, optional
        Told what is being run.

    Returns
    -------
    dict
        By table: by number of components ``bound``, ``start_bounds``, ``n_left`` (components that were not
        removed), ``held_out``; and ``glm``, the held-out log likelihood of main effects.

    Raises
    ------
    InputError
        When there is no such table, or no such numbers of components.
    """
    tell, numbers = report or (lambda line: None), _whole_numbers(n_components)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for name, table in _tables(data).items():
        tell(f"{name}: {len(table.y)} rows")
        rows: dict[str, Any] = {}
        for k in numbers:
            tell(f"{name}: {k} components")
            rows[str(k)] = _fit_all(table, k, n_starts, max_iter, folder / f"{name}_{k}")
            rows[str(k)]["held_out"] = _held_out(table, k, n_starts, max_iter, splits)
        best = max(numbers, key=lambda k: rows[str(k)]["bound"])
        found[name] = {"components": rows, "best_by_bound": best, "glm": _glm(table, splits)}
        write_file(folder / "molten.json", json.dumps(found, indent=2) + "\n")
    return found


def _whole_numbers(given: Sequence[int] | int | str) -> tuple[int, ...]:
    """Return numbers of components."""
    each = given.split(",") if isinstance(given, str) else [given] if isinstance(given, int) else given
    try:
        found = tuple(int(number) for number in each)
    except (TypeError, ValueError):
        found = ()
    if not found or min(found) < 1:
        raise InputError("n_components", given, "whole numbers from 1 on, such as 1,2,3", "Correct them.")
    return found


@dataclass(frozen=True)
class Table:
    """Counts of N rows with their variables and exposures."""

    names: tuple[str, ...]
    labels: tuple[Any, ...]
    codes: Int[np.ndarray, "N G"]
    y: Float64[np.ndarray, " N"]
    t: Float64[np.ndarray, " N"]

    def write(self, path: Path, rows: Any) -> Any:
        """Write some rows as a dataset; levels keep their order."""
        from factorflow.data import write_dataset

        views: dict[str, Any] = {RESPONSE: self.y[rows, None], EXPOSURE: self.t[rows, None]}
        inputs = {EXPOSURE: "covariate"}
        for g, name in enumerate(self.names):
            views[name] = np.asarray(self.labels[g])[self.codes[rows, g]].astype(str)
            inputs[name] = "categorical"
        return write_dataset(path, views, {RESPONSE: "poisson"}, inputs=inputs)


def main_effects(
    codes: Int[np.ndarray, "N G"],
    y: Float64[np.ndarray, " N"],
    t: Float64[np.ndarray, " N"],
    n_iter: int = 200,
) -> list[Float64[np.ndarray, " D"]]:
    """Return the factors of the levels that maximise the likelihood of y_n ~ Poisson(t_n prod_g factor).

    Each variable in turn has its expected totals made equal to the observed ones. Levels of which every count
    is 0 get half a count, so that held-out rows keep a likelihood.
    """
    sizes = codes.max(axis=0) + 1
    factors = [np.ones(size) for size in sizes]
    for _ in range(n_iter):
        for g, size in enumerate(sizes):
            product = t.copy()
            for other, factor in enumerate(factors):
                if other != g:
                    product *= factor[codes[:, other]]
            observed = np.bincount(codes[:, g], y, size)
            expected = np.bincount(codes[:, g], product, size)
            seen = expected > 0
            factors[g] = np.where(seen, np.maximum(observed, 0.5) / np.where(seen, expected, 1.0), 1.0)
    return factors


def _glm(table: Table, splits: int) -> float | None:
    """Return the held-out log likelihood of a row under main effects."""
    scores = []
    for shown, hidden in _splits(table, splits):
        factors = main_effects(table.codes[shown], table.y[shown], table.t[shown])
        rate = table.t[hidden].copy()
        for g, factor in enumerate(factors):
            known = np.append(factor, np.ones(1 + table.codes[:, g].max() - len(factor)))
            rate *= known[table.codes[hidden, g]]
        scores.append(_log_likelihood(table.y[hidden], rate))
    return float(np.mean(scores)) if scores else None


def _held_out(table: Table, k: int, n_starts: int, max_iter: int, splits: int) -> float | None:
    """Return the held-out log likelihood of a row under k components."""
    from factorflow import models

    config = models.configure(
        {"model": "molten_poisson", "n_components": k, "n_starts": n_starts, "max_iter": max_iter}
    )
    scores = []
    for shown, hidden in _splits(table, splits):
        with scratch_folder() as folder:
            posterior = fit(table.write(Path(folder) / "shown.zarr", shown), config)
            new = posterior.project(table.write(Path(folder) / "hidden.zarr", hidden))
            mean = new.predict(RESPONSE)["mean"].values[:, 0]
        scores.append(_log_likelihood(table.y[hidden], mean))
    return float(np.mean(scores)) if scores else None


def _fit_all(table: Table, k: int, n_starts: int, max_iter: int, path: Path) -> dict[str, Any]:
    """Fit k components to all rows, and leave posterior and report beside the numbers."""
    from factorflow import models

    config = models.configure(
        {"model": "molten_poisson", "n_components": k, "n_starts": n_starts, "max_iter": max_iter}
    )
    data = table.write(path.with_suffix(".data.zarr"), np.arange(len(table.y)))
    posterior = fit(data, config, out=path.with_suffix(".zarr"), overwrite=True)
    return {
        "bound": float(posterior.trace["objective"][-1]),
        "start_bounds": posterior.variable("start_objective").values.tolist(),
        "n_left": len(posterior.factors),
    }


def _log_likelihood(y: Float64[np.ndarray, " N"], rate: Float64[np.ndarray, " N"]) -> float:
    from scipy.stats import poisson

    return float(poisson.logpmf(y, np.maximum(rate, 1e-4)).mean())


def _splits(table: Table, splits: int) -> list[tuple[Any, Any]]:
    """Return rows that are shown and hidden, a fifth of them, of every split."""
    out = []
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(table.y))
        cut = max(1, len(order) // 5)
        out.append((np.sort(order[cut:]), np.sort(order[:cut])))
    return out


def _tables(data: str | os.PathLike[str] | None) -> dict[str, Table]:
    """Return a simulated table and those of files."""
    import pandas as pd

    found = {"simulated": _simulated()}
    if data is None:
        return found
    path = Path(data)
    files = [path] if path.is_file() else sorted([*path.glob("tables/*.csv*"), *path.glob("*.csv*")])
    for file in files:
        frame = pd.read_csv(file, dtype={RESPONSE: float})
        if RESPONSE in frame:
            found[file.name.split(".")[0]] = _table(frame)
    if len(found) == 1:
        raise InputError("data", str(path), f"a CSV file with a column {RESPONSE!r}", "Or leave it out.")
    return found


def _table(frame: pd.DataFrame) -> Table:
    """Return a table of a frame; rows without a count are left out."""
    frame = frame[frame[RESPONSE].notna()]
    names = tuple(str(name) for name in frame if name not in (RESPONSE, EXPOSURE))
    coded = [np.unique(frame[name].astype(str), return_inverse=True) for name in names]
    labels, codes = zip(*coded, strict=True)
    t = frame[EXPOSURE].to_numpy(float) if EXPOSURE in frame else np.ones(len(frame))
    return Table(names, tuple(labels), np.stack(codes, axis=1), frame[RESPONSE].to_numpy(float), t)


def _simulated(sizes: tuple[int, ...] = (30, 15, 8), k: int = 3, n: int = 1500) -> Table:
    """Return a table of which the truth has three components."""
    rng = np.random.default_rng(0)
    factors = [rng.gamma(0.7, 1.5, (size, k)) for size in sizes]
    cells = rng.choice(int(np.prod(sizes)), n, replace=False)
    codes = np.stack(np.unravel_index(cells, sizes), axis=1)
    rate = np.prod([f[codes[:, g]] for g, f in enumerate(factors)], axis=0).sum(axis=1)
    labels = tuple(np.arange(size).astype(str) for size in sizes)
    return Table(("site", "species", "year"), labels, codes, rng.poisson(rate).astype(float), np.ones(n))
