"""The sweeps of counts: one for each variable, in turn, and the bound after each of them.

The first sweep of an iteration finds the shares p_nl of the components in every row, and adds y_n p_nl by
level of all variables; each sweep adds t_n xi_n F_nl by level of its own variable, and replaces shape and
rate of its factors alone: until then the others keep their means. With p of the first sweep the bound is
known after each of them from these sums::

    sum y log R of the first sweep, + sum_dl A_dl (E log lambda_dl now - then), - sum_dl <lambda_dl> B_dl
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Float64

from factorflow.kernels.special import digamma, gammaln
from factorflow.models.contract import Block, Info, Step, wide
from factorflow.models.molten import passes
from factorflow.models.molten.factors import (
    lowest_log,
    mean_factors,
    rows_of_levels,
    shift_logs,
    sum_weighted_counts,
    table_of_logs,
    table_of_means,
    update_levels,
)
from factorflow.models.molten.groups import (
    append_group_factors,
    append_group_logs,
    distribute_over_levels,
    sum_by_level,
)
from factorflow.models.molten.rows import Rows, prepare_rows
from factorflow.models.molten.scales import (
    apply_scale_step,
    precision,
    prior_bound,
    prior_shapes,
    update_scale,
    update_shape,
)
from factorflow.models.molten.settings import Settings
from factorflow.models.molten.state import Globals, Levels, Totals, VariableSweep


@dataclass(frozen=True)
class LevelSums:
    """Sums by level: of y p, in the first sweep of an iteration; of t xi F, of the variable in hand."""

    counts: Float64[np.ndarray, "D S K"] | None
    rates: Float64[np.ndarray, "D S K"] | None


@dataclass(frozen=True)
class Stats:
    """Sums over rows; ``data``: sum y log R (tables less their largest entries) + y log t - log y!.

    Parameters
    ----------
    mixed : array or None
        Sums of (c + y) log(c + t M), <xi>, log(c + t M), and of log Gamma(c + y), psi(c + y), c + y.
    """

    levels: Mapping[str, LevelSums] = field(metadata=wide())
    data: Float64[np.ndarray, " S"] | None
    mixed: Float64[np.ndarray, "6 S"] | None
    n: float


@dataclass(frozen=True)
class FeatureSums:
    """Sums over the levels of a variable.

    Parameters
    ----------
    gain, mass : array or None
        Of A (E log lambda now - then), and of <lambda> B.
    shift : array or None
        Of A, each times what was taken off the logarithms of its level in the tables.
    strength : array or None
        Of A, by column.
    totals : Totals or None
        As of `Globals`.
    """

    gain: Float64[np.ndarray, " S"] | None
    mass: Float64[np.ndarray, " S"] | None
    shift: Float64[np.ndarray, " S"] | None
    strength: Float64[np.ndarray, "S K"] | None
    totals: Totals | None


@dataclass(frozen=True)
class Tables:
    """Tables that all blocks read: exp(E log lambda) over its largest (`shift_logs`), E lambda, and c.

    ``sources`` are the shapes and rates that the means are of, by place of the variable.
    """

    logs: Float[np.ndarray, "S D W"] | None
    means: Float[np.ndarray, "S D W"]
    sources: tuple[tuple[Float64[np.ndarray, "_ S K"], Float64[np.ndarray, "_ S K"]], ...]
    dispersion: Float64[np.ndarray, " S"] | None
    n_columns: int


@dataclass(frozen=True)
class CountSweep(VariableSweep[Stats]):
    """The factors of one variable; the last one of an iteration ends with the scale step."""

    def axes(self) -> Mapping[str, int]:
        """Return the variables that take something: all from the first sweep."""
        names = self.settings.names if self.variable == 0 else (self.variable_name,)
        return {name: self.settings.size(name) for name in names}

    def prepare(self, globals_: Globals) -> Tables:
        """Return the tables."""
        s, k = self.settings, globals_.scale.shape[2]
        logs, bits = None, s.hyper.table_bits
        if self.variable == 0:
            logs = table_of_logs(s, globals_, bits)
        sources = tuple((globals_.levels[name].one, globals_.levels[name].two) for name in s.names)
        return Tables(logs, table_of_means(s, globals_, bits), sources, globals_.dispersion, k)

    def map(self, block: Block, local: None, globals_: Tables, step: Step) -> tuple[None, Stats]:
        """Return the sums of a block."""
        s, rows, tables = self.settings, prepare_rows(self.settings, block), globals_
        n_starts, k = len(tables.means), tables.n_columns
        counts, data, rates, mixed = [], np.full(n_starts, rows.constant), [], []
        for i in range(n_starts):
            if tables.logs is not None:
                shared_counts, fit = _share_counts(s, rows, tables.logs[i], k)
                data[i] += fit
                counts.append(shared_counts)
            weight, averages = rows.weight, append_group_factors(s, rows.groups, tables.means[i], k)
            if tables.dispersion is not None:
                totals = passes.totals(rows, averages)
                weight, sums_of_mixing = _mix(block, rows, totals, float(tables.dispersion[i]))
                mixed.append(sums_of_mixing)
            if s.roles.level_exposures is None:
                source = (i, tables.sources)
                rates.append(_rates(s, block, rows, weight, averages, source, self.variable, k))
        levels = {
            name: LevelSums(
                _stack_starts([shared_counts[s.place(name)] for shared_counts in counts], k),
                _stack_starts(rates if name == self.variable_name else [], k),
            )
            for name in self.axes()
        }
        return None, Stats(
            levels, data if counts else None, np.stack(mixed, axis=1) if mixed else None, rows.n
        )

    def features(
        self, axis: str, index: range, globals_: Globals, stats: Stats, step: Step
    ) -> tuple[Levels, FeatureSums]:
        """Return q(lambda) of a run of levels, and sums over them."""
        s, old = self.settings, rows_of_levels(globals_.levels[axis], index)
        sums, before = stats.levels[axis], old.log
        counts = sums.counts if self.variable == 0 else old.counts
        assert counts is not None and before is not None  # noqa: PT018
        shift = strength = None
        if self.variable == 0:
            before, largest = shift_logs(s, globals_, axis, index)
            shift, strength = sum_weighted_counts(counts, largest)
        if axis != self.variable_name:
            return replace(old, counts=counts), FeatureSums(None, None, shift, strength, None)
        rates = sums.rates if sums.rates is not None else _grid_rates(s, globals_, axis, index)
        prior = prior_shapes(s, globals_), precision(s, globals_.scale)[0]
        free = s.free(axis, index, old.one.shape[2])
        new, totals, gain, mass = update_levels(old, counts, rates, prior, before, free)
        return new, FeatureSums(gain if shift is None else gain - shift, mass, shift, strength, totals)

    def assemble(
        self,
        globals_: Globals,
        stats: Stats,
        parts: Mapping[str, Levels],
        sums: Mapping[str, FeatureSums],
        step: Step,
    ) -> tuple[Globals, Info]:
        """Return the globals with what the levels share, and the bound."""
        s, part_sums = self.settings, sums[self.variable_name]
        assert part_sums.gain is not None and part_sums.mass is not None and part_sums.totals is not None  # noqa: PT018
        data, strength = globals_.data, globals_.strength
        if self.variable == 0:
            assert stats.data is not None and part_sums.strength is not None  # noqa: PT018
            shifts = np.sum([np.asarray(part.shift) for part in sums.values()], axis=0)
            data = stats.data + s.roles.constant + shifts
            strength = part_sums.strength / np.maximum(part_sums.strength.sum(axis=1, keepdims=True), 1e-300)
        data = data + part_sums.gain
        updated = replace(
            globals_,
            levels={**globals_.levels, **parts},
            totals={**globals_.totals, self.variable_name: part_sums.totals},
            data=data,
            strength=strength,
        )
        fit = data - part_sums.mass
        if stats.mixed is not None:
            assert globals_.dispersion is not None
            c = best_dispersion(stats.mixed, stats.n)
            updated = replace(updated, dispersion=c)
            fit = fit + _mixing_bound(stats.mixed, stats.n, globals_.dispersion, c)
        if self.variable == s.n_variables - 1:
            missing = [level.seen[-1] for level in updated.levels.values()]
            updated = apply_scale_step(s, updated, not s.hyper.missing_level and max(missing) > 0)
            updated = update_shape(s, updated)
        updated = update_scale(s, updated)
        updated = replace(updated, objective=np.asarray(fit + prior_bound(s, updated)))
        return updated, {"objective": float(updated.objective.max()), "observed": stats.n}


def best_dispersion(mixed: Float64[np.ndarray, "6 S"], n: float) -> Float64[np.ndarray, " S"]:
    """Return the root c of log c + 1 - psi(c) + mean(<log xi> - <xi>), between 1e-6 and 1e8."""
    average = (mixed[4] - mixed[2] - mixed[1]) / max(n, 1.0)
    low, high = np.full(average.shape, np.log(1e-6)), np.full(average.shape, np.log(1e8))
    for _ in range(64):
        middle = 0.5 * (low + high)
        c = np.exp(middle)
        above = middle + 1.0 - digamma(c) + average > 0.0  # falls in c
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.asarray(np.exp(0.5 * (low + high)))


def _mix(
    block: Block, rows: Rows, totals: Float64[np.ndarray, " B"], c: float
) -> tuple[Float64[np.ndarray, " B"], Float64[np.ndarray, " 6"]]:
    """Return t <xi> of every row given the products M, and the sums that the bound and c need."""
    used = rows.weight > 0
    shape, rate = c + rows.y[used], c + rows.weight[used] * totals[used]
    xi, log_rate = shape / rate, np.log(rate)
    weight = np.zeros_like(rows.weight)
    weight[used] = rows.weight[used] * xi
    size, number = block.once("molten counts", (rows.y,), lambda: np.unique(rows.y[used], return_counts=True))
    sums = [shape @ log_rate, xi.sum(), log_rate.sum()]
    sums += [number @ gammaln(c + size), number @ digamma(c + size), shape.sum()]
    return weight, np.array(sums)


def _mixing_bound(
    mixed: Float64[np.ndarray, "6 S"],
    n: float,
    before: Float64[np.ndarray, " S"],
    c: Float64[np.ndarray, " S"],
) -> Float64[np.ndarray, " S"]:
    """Return sum y <log xi> - KL(q(xi) || Gamma(c, c)), q(xi) found with c as it was ``before``."""

    def prior(c: Float64[np.ndarray, " S"]) -> Float64[np.ndarray, " S"]:
        log = mixed[4] - mixed[2]
        return np.asarray(n * (c * np.log(c) - gammaln(c)) + (c - 1.0) * log - c * mixed[1])

    total = (
        mixed[3] + n * (before * np.log(before) - gammaln(before)) - mixed[0] - before * mixed[1] + mixed[5]
    )
    return np.asarray(total + prior(c) - prior(before))


def _share_counts(
    settings: Settings, rows: Rows, table: Float[np.ndarray, "D W"], n_columns: int
) -> tuple[Float64[np.ndarray, "A W"], float]:
    """Return sums of y p by level of all variables, and sum y log R."""
    logs, shift = append_group_logs(settings, rows.groups, table, n_columns, lowest_log(settings))
    counts, fit = passes.shares(rows, logs)
    if not rows.groups:
        return counts, fit
    distribute_over_levels(settings, rows.groups, table, counts, n_columns)
    return counts, fit + float(rows.y @ shift)


def _rates(
    settings: Settings,
    block: Block,
    rows: Rows,
    weight: Float64[np.ndarray, " B"],
    averages: Float[np.ndarray, "A W"],
    source: passes.TableSource,
    variable: int,
    n_columns: int,
) -> Float64[np.ndarray, "D W"]:
    """Return sums of weight F by level of a variable."""
    name = settings.names[variable]
    group = rows.groups.get(name)
    if group is None:
        levels = range(*settings.starts[variable : variable + 2])
        return passes.products(block, rows, weight, averages, source, variable, levels)
    first = int(rows.codes[0, variable])
    each = passes.products(block, rows, weight, averages, source, variable, range(first, first + len(group)))
    return sum_by_level(settings, name, group, each, n_columns)


def _stack_starts(sums: list[np.ndarray], n_columns: int) -> Float64[np.ndarray, "D S K"] | None:
    """Return sums of all starts side by side, without what the tables are padded with."""
    if not sums:
        return None
    stacked = sums[0][:, None] if len(sums) == 1 else np.stack(sums, axis=1)
    return np.ascontiguousarray(stacked[:, :, :n_columns])


def _grid_rates(settings: Settings, globals_: Globals, axis: str, index: range) -> np.ndarray:
    """Return the sums of t F over all cells of a complete grid: products of sums over levels."""
    product = np.ones(globals_.scale.shape[1:])
    for name in settings.names:
        if name != axis:
            product = product * np.tensordot(
                settings.grid_exposure(name), mean_factors(globals_.levels[name]), axes=1
            )
    exposure = settings.grid_exposure(axis)[index.start : index.stop]
    return np.asarray(exposure[:, None, None] * product)
