"""q(theta) of the rows of a block given the programs, and the statistics that it sends."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float32, Float64, Int64

from factorflow.kernels.compile import read_only_view
from factorflow.kernels.sites import MODELS
from factorflow.kernels.sparse_rows import SparseRows
from factorflow.models.contract import Block, Step
from factorflow.models.poisson_factors.settings import Settings, ViewSettings
from factorflow.models.poisson_factors.state import Data, Gamma, Globals, Local, Programs, ProgramStats, Stats
from factorflow.models.size_factors import METHODS, log_size_factors

START = MODELS[1]

SPREAD = 20.0
"""Shape of theta at the start, which lies near 1."""


@dataclass(frozen=True)
class ViewTables:
    """What all rows read of one start in one view.

    Parameters
    ----------
    table : array
        exp E log beta, relative to the largest of its feature, (D, W).
    loadings : array
        E beta, (D, K).
    batches : array
        E gamma; 1 of rows whose batch is not known, (codes, D).
    rates : array
        sum_d gamma_bd beta_dk: what the zeros of a row add up to, (codes, K).
    """

    table: Float32[np.ndarray, "D W"]
    loadings: Float64[np.ndarray, "D K"]
    batches: Float64[np.ndarray, "C D"]
    rates: Float64[np.ndarray, "C K"]


@dataclass(frozen=True)
class Prepared:
    """Tables of all starts by view, and the globals."""

    tables: dict[str, dict[str, ViewTables]]
    globals_: Globals


@dataclass(frozen=True)
class Cells:
    """Counts of a view in a block, with totals and size factors.

    Parameters
    ----------
    totals : array
        Sums of the rows, (B,).
    log_sizes : array
        log s, (B,).
    """

    rows: SparseRows
    totals: Float64[np.ndarray, " B"]
    log_sizes: Float64[np.ndarray, " B"]

    @property
    def sizes(self) -> Float64[np.ndarray, " B"]:
        """s; 0 of rows that the view lacks."""
        return np.where(self.rows.absent, 0.0, np.exp(self.log_sizes))


def batch_means(programs: Programs, view: ViewSettings) -> Float64[np.ndarray, "C D"]:
    """Return E gamma of a view by batch, and 1 of none."""
    ones = np.ones((1, view.n_features))
    return np.concatenate([programs.batches[view.name].mean, ones]) if programs.batches else ones


def top_logs(
    logs: Float64[np.ndarray, "N K"],
) -> tuple[Float32[np.ndarray, "N W"], Float64[np.ndarray, " N"]]:
    """Return exp of logarithms relative to the largest of their row, in a padded table, and these."""
    from factorflow.kernels.vector_rows import PART
    from factorflow.models.poisson_factors.kernels.entries import LOWEST, write_table

    table = np.zeros((len(logs), -(-logs.shape[1] // PART) * PART), np.float32)
    top = np.empty(len(logs))
    write_table(read_only_view(logs), LOWEST, table, top)
    return table, top


def prepare(settings: Settings, globals_: Globals) -> Prepared:
    """Return the tables that all blocks read."""
    tables: dict[str, dict[str, ViewTables]] = {}
    for name, programs in globals_.programs.items():
        tables[name] = {}
        for view in settings.views:
            batches, mean = batch_means(programs, view), programs.loadings[view.name].mean
            table, _ = top_logs(programs.logs[view.name])
            tables[name][view.name] = ViewTables(table, mean, batches, batches @ mean)
    return Prepared(tables, globals_)


def size_factors(
    settings: Settings, view: ViewSettings, block: Block, data: Data
) -> Float64[np.ndarray, " B"]:
    """Return log s of the rows of a block in a view; 0 of rows that it lacks."""
    rows = block.data[view.name]
    if view.size_factors == "none":
        return np.zeros(block.n_rows)
    if view.size_factors in METHODS:
        return np.asarray(log_size_factors(view.size_factors, data.average[view.name], rows))
    return np.asarray(np.log(settings.sizes(block, view.size_factors)))


def read_cells(settings: Settings, block: Block, data: Data) -> dict[str, Cells]:
    """Return the counts of each view of a block, with totals and size factors."""
    out = {}
    for view in settings.views:
        rows = view.rows(block)
        average = data.average.get(view.name, np.zeros(0))

        def make(view: ViewSettings = view, rows: SparseRows = rows) -> tuple[np.ndarray, np.ndarray]:
            return rows.totals, size_factors(settings, view, block, data)

        key = "totals and size factors", view.name, (view.chosen or (0,))[0]
        settings_of_view = average, np.asarray(view.chosen or ()), view.size_factors
        totals, logs = block.once(key, settings_of_view, make)
        out[view.name] = Cells(rows, totals, logs)
    return out


def start_scores(settings: Settings, name: str, programs: Programs, block: Block, step: Step) -> Gamma:
    """Return the first q(theta) of rows: near 1, or at the prior mean where programs are fixed."""
    shape = np.full((block.n_rows, settings.n_factors), SPREAD)
    if step.projecting:
        mean = programs.score_shape / programs.score_rates.mean
        return Gamma(shape, np.broadcast_to(SPREAD / mean, shape.shape))
    if not name.isdigit():
        return Gamma(shape, shape)
    k = settings.n_factors
    noise = step.normal(START, block.rows, settings.n_starts * k)[:, int(name) * k : (int(name) + 1) * k]
    return Gamma(shape * np.exp(noise / np.sqrt(SPREAD)), shape)


def own_scores(
    settings: Settings, name: str, programs: Programs, block: Block, local: Local | None, step: Step
) -> Gamma:
    """Return theta of the rows of a block, after the scale step of the last update."""
    if local is None or name not in local:
        return start_scores(settings, name, programs, block, step)
    theta = Gamma(*(np.asarray(part, np.float64) for part in (local[name].shape, local[name].rate)))
    return theta if step.projecting else theta.scaled(programs.stretch)


def update_cells(
    settings: Settings, block: Block, local: Local | None, prepared: Prepared, step: Step, *, learn: bool
) -> tuple[Local, Stats]:
    """Return theta of the rows, and the statistics of all starts; for shapes, if these are learned."""
    data = prepared.globals_.data
    assert data is not None
    cells, codes = read_cells(settings, block, data), settings.codes(block)
    theta, stats = {}, {}
    for name, programs in prepared.globals_.programs.items():
        scores = own_scores(settings, name, programs, block, local, step)
        tables = prepared.tables[name]
        theta[name], sums = _update(settings, programs, tables, cells, codes, scores)
        if learn:
            sums = replace(sums, logs=theta[name].logs_and_entropies()[0].sum(axis=0))
        stats[name] = sums
    return theta, Stats(stats)


def _update(
    settings: Settings,
    programs: Programs,
    tables: dict[str, ViewTables],
    cells: dict[str, Cells],
    codes: Int64[np.ndarray, " B"],
    scores: Gamma,
) -> tuple[Gamma, ProgramStats]:
    """Return theta of the rows given the programs of one start, and the statistics that it sends."""
    k = settings.n_factors
    logs, entropies = scores.logs_and_entropies()
    table, top = top_logs(logs)
    share, rates = np.zeros(scores.mean.shape), np.zeros(scores.mean.shape)
    value, counts = 0.0, {}
    for view in settings.views:
        cell, tabled = cells[view.name], tables[view.name]
        fit, own, sums = _visit(cell.rows, table, tabled.table)
        value += float(fit + cell.totals @ (top + cell.log_sizes))
        counts[view.name] = sums[:, :k].astype(np.float64)
        share += own[:, :k]
        rates += _rates(cell, tabled, codes)
    a, b, log_b = (
        programs.score_shape,
        programs.score_rates.mean,
        programs.score_rates.logs_and_entropies()[0],
    )
    prior = (a - 1.0) * logs + a * log_b - b * scores.mean
    value += float((entropies + prior).sum() - (scores.mean * rates).sum())
    value -= float(scores.mean.shape[0] * _log_gamma(a).sum())
    shape, rate = (part.astype(np.float32) for part in (a + table[:, :k] * share, b + rates))
    after = Gamma(shape, rate)
    exposure, missing = _exposure(settings, cells, codes, after.mean)
    return after, ProgramStats(counts, exposure, missing, after.mean.sum(axis=0), np.zeros(k), value)


def _visit(
    rows: SparseRows, scores: Float32[np.ndarray, "B W"], loadings: Float32[np.ndarray, "D W"]
) -> tuple[float, Float32[np.ndarray, "B W"], Float32[np.ndarray, "D W"]]:
    """Return sum y log R over the entries of a block, sum_d y / R loadings, and sum_n y / R scores."""
    from factorflow.models.poisson_factors.kernels.entries import visit_entries

    own, sums = np.zeros_like(scores), np.zeros_like(loadings)
    entries = map(read_only_view, (rows.counts, rows.columns, rows.entries, scores, loadings))
    return float(visit_entries((0,) * scores.shape[1], *entries, own, sums)), own, sums


def _log_gamma(x: Float64[np.ndarray, " K"]) -> Float64[np.ndarray, " K"]:
    from scipy.special import gammaln

    return np.asarray(gammaln(x))


def _rates(cell: Cells, tabled: ViewTables, codes: Int64[np.ndarray, " B"]) -> Float64[np.ndarray, "B K"]:
    """Return s sum_d gamma_bd beta_dk over the observed entries of each row."""
    from factorflow.models.poisson_factors.kernels.entries import subtract_missing

    sizes, rows = cell.sizes, cell.rows
    rates = sizes[:, None] * tabled.rates[codes]
    for some, features in rows.lacking():
        lost = tabled.batches[:, features] @ tabled.loadings[features]
        rates[some] -= sizes[some, None] * lost[codes[some]]
    if rows.missing_rows.size:
        places = map(read_only_view, (rows.missing_rows, rows.missing_columns, codes, sizes))
        subtract_missing(*places, read_only_view(tabled.batches), read_only_view(tabled.loadings), rates)
    return np.asarray(np.maximum(rates, 0.0))


def _exposure(
    settings: Settings,
    cells: dict[str, Cells],
    codes: Int64[np.ndarray, " B"],
    mean: Float64[np.ndarray, "B K"],
) -> tuple[dict[str, Float64[np.ndarray, "C K"]], dict[str, Float64[np.ndarray, "C _D K"]]]:
    """Return sum s theta by batch, over the rows that a view has, and over those that lack a feature."""
    from factorflow.models.poisson_factors.kernels.entries import add_missing

    exposure, missing = {}, {}
    of_batch = (codes[:, None] == np.arange(settings.n_codes)).astype(np.float64)
    for view in settings.views:
        cell = cells[view.name]
        sizes, rows = cell.sizes, cell.rows
        each = sizes[:, None] * mean
        exposure[view.name] = of_batch.T @ each
        if not view.gaps:
            continue
        lost = np.zeros((settings.n_codes, view.n_features, settings.n_factors))
        for some, features in rows.lacking():
            lost[:, features] += (of_batch[some].T @ each[some])[:, None]
        if rows.missing_rows.size:
            places = rows.missing_rows, rows.missing_columns, codes, sizes, mean
            add_missing(*map(read_only_view, places), lost)
        missing[view.name] = lost
    return exposure, missing


def visit_others(
    settings: Settings, block: Block, local: Local | None, globals_: Globals, step: Step
) -> ProgramStats:
    """Return what the features that the model was not fitted to add up to, theta as it is.

    Parameters
    ----------
    local : Local or None
        Their theta.
    globals_ : Globals
        With programs of those features.
    """
    data, others, of_others = globals_.other_data, globals_.others, settings.others()
    assert data is not None
    assert others is not None
    name, programs = next(iter(globals_.programs.items()))
    scores = own_scores(settings, name, programs, block, local, step)
    cells, codes = read_cells(of_others, block, data), settings.codes(block)
    table, _ = top_logs(scores.logs_and_entropies()[0])
    counts = {}
    for view in of_others.views:
        _, _, sums = _visit(cells[view.name].rows, table, top_logs(others.logs[view.name])[0])
        counts[view.name] = sums[:, : settings.n_factors].astype(np.float64)
    exposure, missing = _exposure(of_others, cells, codes, scores.mean)
    nothing = np.zeros(settings.n_factors)
    return ProgramStats(counts, exposure, missing, nothing, nothing, 0.0)
