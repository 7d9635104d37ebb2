"""The sweeps of a Gaussian response: one for each variable, in turn, and the bound after each of them.

The levels of a variable never meet in a row, so that all a sweep needs are sums over the rows of each level.
With e = y - offset - mean response, beta the intercept less the mean response, w the rows a row stands for::

    h_dl = sum w e F_l,  f_dl = sum w F_l,  Q_dl = sum w S_l,  C_dlk = sum w F_l F_k      (F, S without g)
    E sum w r^2 = sum w e^2 + within - 2 beta sum w e + (beta^2 + v_0) sum w
                  - 2 sum_dl m_dl (h_dl - beta f_dl) + sum_d m_d' C_d m_d
                  + sum_dl (m_dl^2 + v_dl) Q_dl - m_dl^2 C_dll

so that intercept, noise, precisions and the bound follow every variable without a pass of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float64

from factorflow.kernels.special import digamma, gamma_term
from factorflow.models.contract import Block, Info, Step, wide
from factorflow.models.molten import passes
from factorflow.models.molten.coupled import GroupSums, group_sums, squares_of_group, update_group
from factorflow.models.molten.groups import append_group_factors
from factorflow.models.molten.rows import Rows, prepare_rows, stack_tables
from factorflow.models.molten.scales import (
    apply_scale_step,
    precision,
    prior_bound,
    select_observed,
    update_scale,
)
from factorflow.models.molten.settings import Settings
from factorflow.models.molten.state import Globals, Levels, Totals, VariableSweep


def squares(levels: Levels) -> Float64[np.ndarray, "D S K"]:
    """Return E mu^2."""
    return np.asarray(levels.one**2 + levels.two)


@dataclass(frozen=True)
class LevelSums:
    """h, f, Q and C, sums over the rows of each level."""

    linear: Float64[np.ndarray, "D S K"]
    plain: Float64[np.ndarray, "D S K"]
    square: Float64[np.ndarray, "D S K"]
    cross: Float64[np.ndarray, "D S K K"]


@dataclass(frozen=True)
class Stats:
    """Sums over rows: of the level, or of a linear group as a whole; of w, w e, w e^2 + within."""

    levels: Mapping[str, LevelSums] = field(metadata=wide())
    group: GroupSums | None
    n: float
    total: float
    squares: float


@dataclass(frozen=True)
class FeatureSums:
    """Sums over levels: m'h, m'f, the quadratic terms of E sum w r^2, sum m_l^2 C_ll, totals."""

    linear: Float64[np.ndarray, " S"]
    plain: Float64[np.ndarray, " S"]
    quadratic: Float64[np.ndarray, " S"]
    strength: Float64[np.ndarray, "S K"]
    totals: Totals


@dataclass(frozen=True)
class Tables:
    """E mu and E mu^2 of all levels (of linear groups the variance), and the mean response."""

    means: Float64[np.ndarray, "S D W"]
    squares: Float64[np.ndarray, "S D W"]
    reference: float
    n_columns: int


@dataclass(frozen=True)
class GaussianSweep(VariableSweep[Stats]):
    """The factors of one variable, then intercept, noise and precisions; at last the scale step."""

    def axes(self) -> Mapping[str, int]:
        """Return the variable."""
        return {self.variable_name: self.settings.size(self.variable_name)}

    def prepare(self, globals_: Globals) -> Tables:
        """Return the tables."""
        s, levels = self.settings, globals_.levels
        second = {n: levels[n].two if n in s.roles.linear else squares(levels[n]) for n in s.names}
        return Tables(
            stack_tables(s, {name: levels[name].one for name in s.names}),
            stack_tables(s, second),
            globals_.reference,
            globals_.scale.shape[2],
        )

    def map(self, block: Block, local: None, globals_: Tables, step: Step) -> tuple[None, Stats]:
        """Return the sums of a block."""
        rows, tables, k = prepare_rows(self.settings, block), globals_, globals_.n_columns
        e = np.where(rows.weight > 0, rows.y - tables.reference, 0.0)
        means, seconds = tables.means, tables.squares
        if rows.groups:
            statistics = [
                _append_group_moments(self.settings, rows, m, s, k)
                for m, s in zip(means, seconds, strict=True)
            ]
            means, seconds = (np.stack(each) for each in zip(*statistics, strict=True))
        x = rows.groups.get(self.variable_name)
        levels = {self.variable_name: self._level_sums(rows, e, means, seconds, k)} if x is None else {}
        group = None if x is None else group_sums(rows, self.variable, x, e, means, seconds, k)
        weighted = rows.weight * e
        total, own_squares = float(weighted.sum()), float(weighted @ e) + rows.within
        return None, Stats(levels, group, rows.n, total, own_squares)

    def _level_sums(
        self,
        rows: Rows,
        e: Float64[np.ndarray, " B"],
        means: Float64[np.ndarray, "S A W"],
        seconds: Float64[np.ndarray, "S A W"],
        k: int,
    ) -> LevelSums:
        """Return the sums of a block for a categorical variable."""
        levels = range(*self.settings.starts[self.variable : self.variable + 2])
        sums = [
            passes.moments(rows, e, m, square, self.variable, levels)
            for m, square in zip(means, seconds, strict=True)
        ]
        vectors, cross = (np.stack(each, axis=-2) for each in zip(*sums, strict=True))
        of_levels, pairs = vectors[..., :k], np.moveaxis(cross, -2, 1)[..., :k, :k]
        return LevelSums(*(np.ascontiguousarray(x) for x in (*of_levels, pairs)))

    def features(
        self, axis: str, index: range, globals_: Globals, stats: Stats, step: Step
    ) -> tuple[Levels, FeatureSums]:
        """Return q(mu) of a run of levels, one component after the other, and sums over them."""
        s, run, levels, sums = (
            self.settings,
            slice(index.start, index.stop),
            globals_.levels[axis],
            stats.group,
        )
        whole = range(len(levels.seen))
        free, learned = (s.free(axis, rows, levels.one.shape[2]) for rows in (index, whole))
        assert globals_.noise is not None
        noise = globals_.noise[0] / globals_.noise[1]
        beta = 0.0 if globals_.intercept is None else globals_.intercept[0]
        tau, beta = precision(s, globals_.scale)[0], np.reshape(beta, (-1, 1))
        if sums is not None:  # each run finds all levels: they depend on each other
            m, v = update_group(levels.one, sums.linear - beta * sums.plain, sums, learned, tau, noise)
            v = np.where(learned[:, None, :], v, levels.two)
            quadratic, strength = squares_of_group(m, v, sums, run)
            own, m, v = (sums.linear[run], sums.plain[run]), m[run], v[run]
        else:
            level_sums = stats.levels[axis]
            own, h = (level_sums.linear, level_sums.plain), level_sums.linear - beta * level_sums.plain
            m, v = _update_levels(levels.one[run], h, level_sums, free, tau, noise)
            v = np.where(free[:, None, :], v, levels.two[run])
            quadratic, strength = _sum_of_squares(m, v, level_sums)
        after = Levels(m, v, None, levels.seen[run])
        linear, plain = ((m * each).sum(axis=(0, 2)) for each in own)
        return after, FeatureSums(linear, plain, quadratic, strength, gaussian_totals(after, free))

    def assemble(
        self,
        globals_: Globals,
        stats: Stats,
        parts: Mapping[str, Levels],
        sums: Mapping[str, FeatureSums],
        step: Step,
    ) -> tuple[Globals, Info]:
        """Return the globals with what the levels share, and the bound."""
        s, own = self.settings, sums[self.variable_name]
        a, b = s.hyper.noise_prior
        b *= globals_.moments.unit
        strength = own.strength / np.maximum(stats.squares, 1e-300)
        updated = replace(
            globals_,
            levels={**globals_.levels, **parts},
            totals={**globals_.totals, self.variable_name: own.totals},
            strength=strength,
        )
        noise = globals_.noise
        assert noise is not None
        if globals_.intercept is not None:
            updated = replace(updated, intercept=self._intercept(globals_, stats, own, noise[0] / noise[1]))
        residual = self._residual(updated, stats, own)
        noise = np.stack([np.full_like(residual, a + 0.5 * stats.n), b + 0.5 * residual])
        updated = update_scale(s, replace(updated, noise=noise))
        if self.variable == s.n_variables - 1:
            missing = [level.seen[-1] for level in updated.levels.values()]
            updated = update_scale(
                s, apply_scale_step(s, updated, not s.hyper.missing_level and max(missing) > 0)
            )
        log_noise = digamma(noise[0]) - np.log(noise[1])
        bound = 0.5 * stats.n * (log_noise - np.log(2.0 * np.pi)) - 0.5 * noise[0] / noise[1] * residual
        bound = bound + gamma_term(noise[0], noise[1], a, b) + prior_bound(s, updated)
        bound = bound + _intercept_bound(s, updated)
        updated = replace(updated, objective=np.asarray(bound))
        return updated, {"objective": float(updated.objective.max()), "observed": stats.n}

    def _intercept(
        self, globals_: Globals, stats: Stats, own: FeatureSums, noise: Float64[np.ndarray, " S"]
    ) -> Float64[np.ndarray, "2 S"]:
        """Return q(beta_0), its mean less the mean response."""
        assert self.settings.hyper.intercept_precision is not None
        kappa = self.settings.hyper.intercept_precision / globals_.moments.unit
        variance = 1.0 / (kappa + noise * stats.n)
        mean = variance * (noise * (stats.total - own.plain) - kappa * globals_.reference)
        return np.stack([mean, variance])

    def _residual(self, after: Globals, stats: Stats, own: FeatureSums) -> Float64[np.ndarray, " S"]:
        """Return E sum w r^2."""
        residual = stats.squares - 2.0 * own.linear + own.quadratic
        if after.intercept is not None:
            beta, variance = after.intercept
            residual = residual - 2.0 * beta * (stats.total - own.plain) + (beta**2 + variance) * stats.n
        return np.asarray(np.maximum(residual, 0.0))


def _append_group_moments(
    settings: Settings,
    rows: Rows,
    means: Float64[np.ndarray, "D W"],
    seconds: Float64[np.ndarray, "D W"],
    n_columns: int,
) -> tuple[Float64[np.ndarray, "A W"], Float64[np.ndarray, "A W"]]:
    """Return E mu and E mu^2 of all levels, and of the rows in linear groups behind them."""
    first = append_group_factors(settings, rows.groups, means, n_columns)
    second = append_group_factors(
        settings, {name: x**2 for name, x in rows.groups.items()}, seconds, n_columns
    )
    second = np.array(second)
    second[len(means) :] += first[len(means) :] ** 2
    second.flags.writeable = means.flags.writeable
    return first, second


def _update_levels(
    m: Float64[np.ndarray, "D S K"],
    h: Float64[np.ndarray, "D S K"],
    sums: LevelSums,
    free: Bool[np.ndarray, "D K"],
    tau: Float64[np.ndarray, "S K"],
    noise: Float64[np.ndarray, " S"],
) -> tuple[Float64[np.ndarray, "D S K"], Float64[np.ndarray, "D S K"]]:
    """Return means and variances of q(mu), one component after the other; ``h`` is h less beta f."""
    m, v = np.array(m), 1.0 / (tau + noise[:, None] * sums.square)
    for l in range(m.shape[2]):  # noqa: E741
        apart = (sums.cross[:, :, l] * m).sum(axis=2) - sums.cross[:, :, l, l] * m[:, :, l]
        new = noise * v[:, :, l] * (h[:, :, l] - apart)
        m[:, :, l] = np.where(free[:, None, l], new, m[:, :, l])
    return m, v


def _sum_of_squares(
    m: Float64[np.ndarray, "D S K"], v: Float64[np.ndarray, "D S K"], sums: LevelSums
) -> tuple[Float64[np.ndarray, " S"], Float64[np.ndarray, "S K"]]:
    """Return the sum over rows of E (sum_l mu F)^2, and by component that of (m F)^2."""
    own = np.einsum("dskk->dsk", sums.cross)
    quadratic = np.einsum("dsk,dskj,dsj->s", m, sums.cross, m)
    quadratic = quadratic + ((m**2 + v) * sums.square - m**2 * own).sum(axis=(0, 2))
    return quadratic, (m**2 * own).sum(axis=0)


def _intercept_bound(settings: Settings, after: Globals) -> Float64[np.ndarray, " S"] | float:
    """Return E[log p - log q] of the intercept."""
    if settings.hyper.intercept_precision is None or after.intercept is None:
        return 0.0
    kappa = settings.hyper.intercept_precision / after.moments.unit
    mean, variance = after.intercept
    square = (mean + after.reference) ** 2 + variance
    return np.asarray(0.5 * (np.log(kappa * variance) - kappa * square + 1.0))


def gaussian_totals(levels: Levels, free: np.ndarray) -> Totals:
    """Return the sums over some levels."""
    there, second = select_observed(levels.seen, free), squares(levels)
    learned = np.where(free[:, None, :], second, 0.0)
    entropy = 0.5 * (np.log(np.where(free[:, None, :], levels.two, 1.0)) + free[:, None, :])
    return Totals(
        free.sum(axis=0).astype(float),
        there.sum(axis=0).astype(float),
        np.stack(
            [
                learned.sum(axis=0),
                np.where(there[:, None, :], second, 0.0).sum(axis=0),
                np.zeros(second.shape[1:]),
                entropy.sum(axis=0),
            ]
        ),
    )
