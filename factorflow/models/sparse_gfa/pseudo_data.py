"""Gaussian pseudo-data of a block, and what each view says about the scores.

Arrays with a row for each sample and a column for each feature lie where the block does, on the host or on a
device, and so do the tables of the weights and the packed precisions of rows; all else is on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64, Integer, Shaped

from factorflow.core.trees import replace
from factorflow.kernels import device
from factorflow.kernels.linalg import diagonal, n_pairs, pad_columns, triangle
from factorflow.models.contract import Array, Block
from factorflow.models.sparse_gfa.entries import aux_of, centred, values_of
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.messages import Pseudo, message_data
from factorflow.models.sparse_gfa.settings import Settings, ViewSettings
from factorflow.models.sparse_gfa.size_factors import log_size_factors
from factorflow.models.sparse_gfa.smooth.courses import Courses
from factorflow.models.sparse_gfa.smooth.rows import for_blocks, with_tables
from factorflow.models.sparse_gfa.state import Globals, Local, replace_part
from factorflow.models.sparse_gfa.weights import Weights, expected_slab, expected_weights

LOW_NOISE = 5.0
"""Variance in units of the noise variance above which a feature's products are summed in double precision."""
NO_NOISE = 1e3
"""The same above which its squares are summed of the entries that its products are of."""


@dataclass(frozen=True)
class Table:
    """What the rows need to know of the weights of a view.

    Parameters
    ----------
    loadings : array
        f_d E[(w, b)], padded with columns of zeros.
    pairs : array or None
        f_d E[(w, b)(w, b)'], where single entries are missing or have their own weight.
    total : array
        Their sum.
    low_noise : array
        Features of so little noise that single precision would show in the bound.
    spread : array or None
        What `pseudo_data.variance_of_predictor` needs, where there is a likelihood to evaluate.
    """

    loadings: Float[Array, "D padded"]
    pairs: Float[Array, "D Q"] | None
    total: Float64[Array, " Q"]
    low_noise: Integer[Array, " J"]
    spread: Float[Array, "D S"] | None = None


def expected_scores(local: Local) -> tuple[Float64[Array, "B K"], Float64[Array, "#B V"]]:
    """Return E[z], and Var z (B, K) or Cov z packed."""
    return expected_slab(local.mean, local.variance, local.inclusion)


def strip_for_workers(settings: Settings, globals_: Globals) -> Globals:
    """Return what the rows need of the globals: of weights E[w] and, where it is read entry by entry, Var w.

    With many features the rest is most of what would travel to the blocks in every pass.
    """
    weights = {}
    for view in settings.views:
        mine = globals_.weights[view.name]
        mean, spread = expected_weights(mine)
        if not view.scattered:
            spread = np.zeros((1, mean.shape[1]))
        weights[view.name] = replace(
            mine,
            mean=mean,
            variance=spread,
            inclusion=None,
            scaled_square=None,
            entropies=None,
            classes=None,
            shares=None,
        )
    courses = globals_.courses
    if courses is not None and settings.smooth is not None:
        courses = for_blocks(settings.smooth, courses)
    snapshot = globals_.progress.snapshot
    # Whether there is one says which scores are kept: those of before a longer step.
    snapshot = None if snapshot is None else replace(snapshot, globals_=None)
    slim = replace(globals_, weights=weights, starts=(), courses=courses)
    return replace_part(slim, "progress", iterates=(), snapshot=snapshot)


class PreparedGlobals:
    """The globals as the blocks of one pass read them.

    Parameters
    ----------
    settings : Settings
        Of the run.
    globals_ : Globals
        Before the pass.
    """

    def __init__(self, settings: Settings, globals_: Globals) -> None:
        self.settings, self.globals_ = settings, globals_
        self._tables: dict[tuple[int, bool], dict[str, Table]] = {}
        self._courses: dict[bool, Courses] = {}

    def courses(self, *, each: bool) -> Courses | None:
        """Return the courses with the tables that rows of the fit need; ``each``: see `with_tables`."""
        courses, smooth = self.globals_.courses, self.settings.smooth
        if courses is None or smooth is None:
            return None
        if each not in self._courses:
            self._courses[each] = with_tables(smooth, courses, each=each)
        return self._courses[each]

    def tables(self, noise_group: int, values: Shaped[Array, "B D"]) -> dict[str, Table]:
        """Return what the rows of a noise group need to know of each view, where ``values`` of them lie."""
        key = noise_group, device.on_device(values)
        if key not in self._tables:
            self._tables[key] = {
                view.name: table_of(self.settings, view, self.globals_, noise_group, values)
                for view in self.settings.views
            }
        return self._tables[key]


def table_of(
    settings: Settings,
    view: ViewSettings,
    globals_: Globals,
    noise_group: int,
    values: Shaped[Array, "B _"],
) -> Table:
    """Return what the rows of a noise group need to know of a view."""
    weights = globals_.weights[view.name]
    mean, spread = expected_weights(weights)
    f = settings.precision(view.name, weights)[:, noise_group]
    extended = np.concatenate([mean, weights.coefficients], axis=1) * f[:, None]
    pairs = None
    if view.scattered:
        others = weights.coefficients, weights.coefficients_spread
        pairs = gfa.expected_pairs(mean, spread, *others, f, settings.dtype)
        pairs = device.move_beside(pairs, values)
    total = globals_.views[view.name].pairs[noise_group]
    loadings = device.move_beside(pad_columns(extended, settings.dtype), values)
    wide = None
    if not view.is_gaussian:
        full = settings.full_scores
        parts = [spread, squares_of(mean, packed=full), weights.coefficients_spread]
        wide = device.move_beside(np.concatenate(parts, axis=1).astype(settings.dtype), values)
    return Table(
        loadings, pairs, device.move_beside(total, values), low_noise(settings, view, globals_), wide
    )


def squares_of(mean: Float64[Array, "N K"], *, packed: bool) -> Float64[Array, "N V"]:
    """Return the squares of each vector's elements, or all their products, packed."""
    if not packed:
        return mean**2
    rows, columns = triangle(mean.shape[1])
    return np.asarray(mean[:, rows] * mean[:, columns])


def variance_of_predictor(
    mean: Float64[Array, "B K"],
    spread: Float64[Array, "#B V"],
    design: Float64[Array, "B C"],
    table: Float[Array, "D S"],
    *,
    full: bool,
) -> Float[Array, "B D"]:
    """Return Var x of every entry, tr(Cov w E[z z']) + E[w]' Cov z E[w] + a' Cov b a, all of them positive.

    ``table`` has Var w (D, K) or Cov w packed, then the squares of E[w] or, where q(z) has ``full``
    covariances, the products, then Cov b packed. E x^2 - (E x)^2 would lose all digits where counts are high,
    in single precision.
    """
    n_rows, n_factors = mean.shape
    rows, columns = triangle(n_factors)
    twice = np.where(rows == columns, 1.0, 2.0)
    of_scores = np.broadcast_to(spread, (n_rows, spread.shape[1]))
    packed = _pack_covariances(of_scores, n_factors)
    if full:
        of_scores = packed * twice
    first, second_column = triangle(design.shape[1])
    products = design[:, first] * design[:, second_column] * np.where(first == second_column, 1.0, 2.0)
    if table.shape[1] - products.shape[1] - of_scores.shape[1] == n_factors:  # independent weights
        second = mean**2 + diagonal(packed, n_factors)
    else:
        second = (squares_of(mean, packed=True) + packed) * twice
    left = np.concatenate([second, of_scores, products], axis=1)
    return device.move_beside(left.astype(table.dtype), table) @ table.T


def _pack_covariances(spread: Float64[Array, "B V"], n_factors: int) -> Float64[Array, "B P"]:
    """Return covariances packed, given packed ones or variances."""
    if spread.shape[1] == n_pairs(n_factors):
        return spread
    out = np.zeros((len(spread), n_pairs(n_factors)))
    rows, columns = triangle(n_factors)
    out[:, np.flatnonzero(rows == columns)] = spread
    return out


def low_noise(
    settings: Settings, view: ViewSettings, globals_: Globals, least: float = LOW_NOISE
) -> Integer[Array, " J"]:
    """Return the Gaussian features whose noise is so small that single precision would show in the bound.

    Their residual sum of squares is a small difference of large sums: an error of 1e-6 of those is divided by
    the share of the variance that is noise. Their variance is ``least`` times that of the noise.
    """
    weights, fixed = globals_.weights[view.name], globals_.fixed[view.name]
    if settings.dtype != np.float32 or weights.noise_rate is None or weights.noise_shape is None:
        return np.empty(0, np.intp)
    variance = fixed.squares.sum(axis=1) / np.maximum(fixed.count.sum(axis=1), 1.0)
    precision = (weights.noise_shape / weights.noise_rate).max(axis=1)
    return np.flatnonzero(precision * variance > least)


def pseudo_data(
    settings: Settings, name: str, block: Block, local: Local | None, globals_: Globals, table: Table
) -> Pseudo:
    """Return the Gaussian pseudo-data of a view, given q(z) before its update."""
    view = settings.view(name)
    values = values_of(view, block)
    if view.is_gaussian:
        return gaussian_data(settings, name, block, globals_, table.low_noise)
    assert local is not None
    assert table.spread is not None
    scores, spread = expected_scores(local)
    weights = globals_.weights[name]
    design = settings.design(block, local)
    mean = _mean(weights, scores, design, values, settings.dtype)
    variance = variance_of_predictor(scores, spread, design, table.spread, full=settings.full_scores)
    fixed = globals_.fixed[name]
    level: Array | None = None
    if view.learned_sizes:
        assert local.log_sizes is not None
        assert local.log_sizes_variance is not None
        m = settings.views.index(view)
        level, uncertain = local.log_sizes[:, m], local.log_sizes_variance[:, m, None]
        variance = variance + device.move_beside(uncertain.astype(variance.dtype), variance)
    else:
        level = log_size_factors(view, fixed, block, values)
    inputs = view, fixed, values, mean, variance, weights.phi.T, table.low_noise
    return message_data(*inputs, aux=aux_of(view, block), level=level)


def _mean(
    weights: Weights,
    scores: Float64[Array, "B K"],
    design: Float64[Array, "B C"],
    values: Shaped[Array, "B D"],
    dtype: np.dtype[np.floating],
) -> Float[Array, "B D"]:
    """Return E[x] of every entry, where ``values`` lie."""
    right = np.concatenate([expected_weights(weights)[0], weights.coefficients], axis=1)
    left = np.concatenate([scores, design], axis=1)
    left, right = (device.move_beside(pad_columns(part, dtype), values) for part in (left, right))
    return left @ right.T


def gaussian_data(
    settings: Settings, name: str, block: Block, globals_: Globals, low_noise: Integer[Array, " J"]
) -> Pseudo:
    """Return the entries of a Gaussian view, centred and scaled: they are their own pseudo-data."""
    fixed, view = globals_.fixed[name], settings.view(name)
    values = values_of(view, block)
    values = values.astype(np.float64) if view.location else values
    filled = centred(settings, block, name, values, view.level(fixed.reference), fixed.scale)
    return Pseudo(filled, None, _gaps(view, block), low_noise)


def _gaps(view: ViewSettings, block: Block) -> gfa.Gaps:
    """Return which entries of a view are missing: kept, since listing them takes a tenth of a pass."""
    values = values_of(view, block)
    return block.once(("gaps", view.name), (), lambda: gfa.gaps(values, view.scattered))


@dataclass(frozen=True)
class Evidence:
    """What one view says about the scores of a block: A_n, packed, and h_n."""

    pairs: Float64[Array, "#B Q"]
    linear: Float64[Array, "B L"]


def linear_term(pseudo: Pseudo, table: Table, size: int) -> Float64[Array, "B L"]:
    """Return the linear terms of (z, a) of each row by a view; ``size``: L."""
    return device.product(pseudo.response, table.loadings, size)


def evidence_of(
    pseudo: Pseudo, table: Table, size: int, linear: Float64[Array, "B L"] | None = None
) -> Evidence:
    """Return packed precisions and linear terms of (z, a) of each row by a view; ``size``: L."""
    linear = linear_term(pseudo, table, size) if linear is None else linear
    if pseudo.weight is not None:
        return Evidence((pseudo.weight @ table.pairs).astype(np.float64), linear)
    assert pseudo.gaps is not None
    if pseudo.gaps.complete:
        return Evidence(table.total[None], linear)
    if table.pairs is None:
        return Evidence(device.move_beside(pseudo.gaps.present[:, None], table.total) * table.total, linear)
    return Evidence(gfa.pairs_by_row(table.pairs, pseudo.gaps, table.total), linear)
