"""Passes of a fit with smooth scores: sums over the functions, then courses in every second pass.

The first pass of these sums functions, their products, and products of them with the scores of the fit so far
and with these under random signs. Whether factors get courses at all (`shows_courses`) is a test of all of
them: rotated among each other, some white direction is always the smoothest. Then, in turn, a pass that
updates the courses at the loadings as they are, and one that updates loadings at the courses as they are:
both from the same sums would not be the maximum of either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.kernels import device
from factorflow.kernels.linalg import pack, unpack, whitening
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Array, Block, Info, Step, Sweep
from factorflow.models.sparse_gfa.change_of_basis import change_basis
from factorflow.models.sparse_gfa.e_step import update_rows
from factorflow.models.sparse_gfa.pseudo_data import PreparedGlobals, expected_scores, strip_for_workers
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.smooth.basis import Basis
from factorflow.models.sparse_gfa.smooth.courses import (
    LEAST_NOISE,
    Courses,
    close_rough,
    open_courses,
    without_courses,
)
from factorflow.models.sparse_gfa.smooth.evidence import (
    STARTS,
    Forms,
    multiply_transposed_root,
    root_of,
    update_courses,
)
from factorflow.models.sparse_gfa.smooth.points import Points
from factorflow.models.sparse_gfa.smooth.rows import place_functions, place_values
from factorflow.models.sparse_gfa.smooth.shears import SHEAR_ROUNDS, can_shear, shear_factors
from factorflow.models.sparse_gfa.smooth.site_sums import SiteSums, forms_of, member_rows, site_sums
from factorflow.models.sparse_gfa.smooth.warping import KNOTS, WARP_ROUNDS, learn_warp, moved_basis
from factorflow.models.sparse_gfa.smooth.weak import WeakSums, add_weak_factors, weak_sums
from factorflow.models.sparse_gfa.start.added_factor import with_fresh_pairs
from factorflow.models.sparse_gfa.start.signs import as_signs
from factorflow.models.sparse_gfa.state import Change, Globals, Local, Snapshot, replace_part
from factorflow.models.sparse_gfa.stored_scores import rotated_scores, scores_before, scores_or_blank
from factorflow.models.sparse_gfa.weights import expected_weights

SITE_SIGNS = MODELS[30]
"""Random signs of rows."""
SIGNS = 39
"""Draws of signs that the data have to be above: 1 set in 40 without courses is."""
SHARES = (0.15, 0.4, 0.7)
"""Shares of the prior variance that courses are tried with before there are any."""
N_LENGTHS = 6
"""Length scales that they are tried with."""


@dataclass(frozen=True)
class PlacesSums:
    """Sums over rows whose place is known.

    Parameters
    ----------
    number : float
        Number of them.
    functions, products : array
        Of functions, and of their products (`Basis.product_sums`); of `Points` the rows of each place, and
        nothing.
    scores, totals : array
        sum phi z', and sum z', under each draw of signs, the first without.
    second : array
        sum E z E z' packed.
    weak : WeakSums
        Of residuals.
    """

    number: float
    functions: Float64[np.ndarray, " M"]
    products: Float64[np.ndarray, " P"]
    scores: Float64[np.ndarray, "M SK"]
    totals: Float64[np.ndarray, " SK"]
    second: Float64[np.ndarray, " V"]
    weak: WeakSums


@dataclass(frozen=True)
class PlacesSweep(Sweep[Globals, Local, PlacesSums]):
    """One pass: averages of the functions, and whether scores are smooth in them."""

    settings: Settings
    name: ClassVar[str] = "places"

    def prepare(self, globals_: Globals) -> PreparedGlobals:
        """Return the globals with tables that all blocks read."""
        return PreparedGlobals(self.settings, globals_)

    def map(
        self, block: Block, local: Local | None, prepared: PreparedGlobals, step: Step
    ) -> tuple[Local | None, PlacesSums]:
        """Return the sums of a block; scores are those of the fit so far."""
        settings, smooth = self.settings, self.settings.smooth
        assert smooth is not None
        local = scores_or_blank(settings, block, rotated_scores(local, prepared.globals_), prepared.globals_)
        rows = update_rows(settings, block, settings.group_codes(block), local, prepared, 0)
        mean = expected_scores(rows.local)[0]
        functions, has_place = place_functions(smooth, block)
        mean = mean * has_place[:, None]
        packed = step.bits(SITE_SIGNS, block.rows, SIGNS)
        signs = np.concatenate([np.ones((len(mean), 1)), as_signs(packed, SIGNS, np.float64)], axis=1)
        signed = (signs[:, :, None] * mean[:, None, :]).reshape(len(mean), -1)
        if isinstance(smooth.basis, Points):
            members = member_rows(functions, has_place, smooth.basis.size)
            total, products, scores = members @ np.ones(len(mean)), np.zeros(0), members @ signed
        else:
            total = functions.sum(axis=0)
            scores = device.product(functions.T.astype(settings.dtype), signed.astype(settings.dtype))
            places, codes = place_values(block)[0], smooth.codes(block)
            products = smooth.basis.product_sums(places[has_place], codes[has_place])
        extended = np.concatenate([expected_scores(rows.local)[0], rows.design], axis=1)
        weak = weak_sums(settings, block, prepared.globals_, extended, signs)
        number = float(has_place.sum())
        sums = PlacesSums(number, total, products, scores, signed.sum(axis=0), pack(mean.T @ mean), weak)
        return (rows.local if settings.stateful else None), sums

    def update(self, globals_: Globals, stats: PlacesSums, step: Step) -> tuple[Globals, Info]:
        """Return the globals with a course for every factor, if scores are smooth."""
        smooth = self.settings.smooth
        assert smooth is not None
        basis, n_known, k = smooth.basis, stats.number, globals_.n_factors
        centre = stats.functions / n_known
        if isinstance(basis, Points):
            second = np.diag(centre) - np.outer(centre, centre)
        else:
            second = basis.products_from(stats.products) / n_known - np.outer(centre, centre)
        scores = (stats.scores - np.outer(centre, stats.totals)).reshape(basis.size, 1 + SIGNS, k)
        has_courses = k > 0 and shows_courses(basis, second, n_known, unpack(stats.second, k), scores)
        new = add_weak_factors(self.settings, _in_new_basis(globals_), stats.weak, n_known)
        if not has_courses and new.n_factors == k:
            return new, {}
        new = _with_mean_in_intercepts(self.settings, new, stats.totals[:k] / n_known)
        opened = open_courses(basis, centre, second, n_known, new.n_factors)
        if smooth.warping is not None:
            opened = replace(opened, warp=np.zeros((basis.n_groups, KNOTS)))
        if not has_courses:
            opened = without_courses(opened, np.arange(new.n_factors) < k)
        return replace_part(replace(new, courses=opened), "progress", objective=float("nan")), {}


def _with_mean_in_intercepts(settings: Settings, globals_: Globals, mean: Float64[Array, " k"]) -> Globals:
    """Return the globals with the average of the scores in the intercepts, where courses are centred, too.

    Passes alone take it there slowly. Stored scores stay where they are, and so do the intercepts then.
    """
    if settings.stateful or not settings.intercepts:
        return globals_
    weights = {}
    for name, mine in globals_.weights.items():
        coefficients = mine.coefficients.copy()
        coefficients[:, 0] += expected_weights(mine)[0][:, : len(mean)] @ mean
        weights[name] = replace(mine, coefficients=coefficients)
    return with_fresh_pairs(settings, replace(globals_, weights=weights))


def _in_new_basis(globals_: Globals) -> Globals:
    """Return the globals when all blocks have changed their scores to their basis."""
    return replace(globals_, change=Change())


def shows_courses(
    basis: Basis,
    second: Float64[Array, "M M"],
    n_known: float,
    scores: Float64[Array, "K K"],
    products: Float64[Array, "M S K"],
) -> bool:
    """Return whether scores are smooth: more than under any draw of random signs.

    For several length scales l, shares s and, of groups, one course of all or one of each, z ~ N(0, zeta I +
    s Phi T Phi'), zeta = 1 - s, of white scores z explains::

        e(v) = v' z' [I - (zeta I + s Phi T Phi')^-1] z v / 2 - log |zeta I + s Phi T Phi'| / 2

    by the direction v. Compared are its largest value over all directions, and over the factors themselves.

    Parameters
    ----------
    basis, second, n_known : Basis, array, float
        The functions; the average product of the centred ones; samples.
    scores, products : array
        sum z z'; sum phi z' of the data, then of each draw of signs.
    """
    white = whitening(scores / n_known)
    single = 1.0 / np.sqrt(np.maximum(np.diag(scores) / n_known, 1e-300))
    turned, scaled = products @ white.T, products * single
    best = np.full((2, products.shape[1]), -np.inf)
    for lengths in _lengths(basis):
        for shared in (0.999, 0.0) if basis.n_groups > 1 else (0.0,):
            sharing = np.full(basis.n_groups, shared)
            root = root_of(basis.scaled_covariance(lengths, sharing, second)[0])
            values, vectors = np.linalg.eigh(
                n_known * multiply_transposed_root(root, multiply_transposed_root(root, second).T)
            )
            values, axes = np.maximum(values, 0.0), multiply_transposed_root(root, np.eye(basis.size))
            axes = vectors.T @ axes
            along = [np.tensordot(axes, each, 1).swapaxes(0, 1) for each in (turned, scaled)]
            for share in SHARES:
                noise = 1.0 - share
                of_noise = n_known * np.log(noise) + np.log1p(share / noise * values).sum()
                base = n_known * (1.0 - 1.0 / noise) - of_noise
                weights = 1.0 / (noise / share + values) / noise
                for which, candidate in enumerate(along):
                    own = (candidate * weights[:, None]).swapaxes(1, 2) @ candidate
                    diagonal = np.einsum("skk->sk", own)
                    largest = diagonal.max(axis=1) if which else np.linalg.eigvalsh(own)[:, -1]
                    best[which] = np.maximum(best[which], 0.5 * (base + largest))
    return bool((best[:, 0] > best[:, 1:].max(axis=1)).any())


def _lengths(basis: Basis) -> list[Float64[Array, " R"]]:
    low, high = np.log(basis.shortest), np.log(basis.longest)
    if (low == high).all():
        return [basis.shortest]
    return [np.exp(low + part * (high - low)) for part in np.linspace(0.0, 1.0, N_LENGTHS)]


@dataclass(frozen=True)
class CourseSweep(Sweep[Globals, Local, SiteSums]):
    """A pass that updates scores, and at the root the courses, loadings as they are."""

    settings: Settings
    opening: bool
    name: ClassVar[str] = "courses"

    def send(self, globals_: Globals) -> Globals:
        """Return the globals without what the blocks do not read."""
        return strip_for_workers(self.settings, globals_)

    def prepare(self, globals_: Globals) -> PreparedGlobals:
        """Return the globals with tables that all blocks read."""
        return PreparedGlobals(self.settings, globals_)

    def map(
        self, block: Block, local: Local | None, prepared: PreparedGlobals, step: Step
    ) -> tuple[Local | None, SiteSums]:
        """Update the scores of a block; return their messages about the courses."""
        settings, before = self.settings, scores_before(local, prepared.globals_)
        local = scores_or_blank(settings, block, rotated_scores(local, prepared.globals_), prepared.globals_)
        rows = update_rows(settings, block, settings.group_codes(block), local, prepared, 0)
        stored = replace(rows.local, before=before) if settings.stateful else None
        if rows.conditional is None:
            return stored, SiteSums(np.zeros((0, 0)))
        assert settings.smooth is not None
        return stored, site_sums(settings.smooth, block, rows.conditional, rows.local.mean)

    def update(self, globals_: Globals, stats: SiteSums, step: Step) -> tuple[Globals, Info]:
        """Return the globals with the courses updated."""
        new, smooth = _in_new_basis(globals_), self.settings.smooth
        if new.courses is None:
            return new, {}
        assert smooth is not None
        starts = STARTS if self.opening and not step.count else 1
        forms, courses = forms_of(smooth, new.courses, stats), new.courses
        if smooth.warping is not None and self.opening and step.count in WARP_ROUNDS:
            assert isinstance(smooth.basis, Points)
            courses = learn_warp(smooth.basis, courses, forms, smooth.warping)
        basis = moved_basis(smooth.basis, courses.warp)
        updated = replace(new, courses=update_courses(basis, courses, forms, starts))
        if not self.opening and new.progress.snapshot is None:
            updated = close_courses(self.settings, updated)
        if (
            updated.courses is None
            or self.opening
            or step.count not in SHEAR_ROUNDS
            or not can_shear(self.settings)
        ):
            return updated, {}
        return self._shear_factors(updated, new.courses, forms), {}

    def _shear_factors(self, globals_: Globals, before: Courses, forms: Forms) -> Globals:
        """Return the globals with factors sheared, to be judged by the next pass; see `shears`."""
        progress = globals_.progress
        if progress.snapshot is not None or not np.isfinite(progress.objective):
            return globals_
        products = forms.slope * before.noise[:, None] + before.n_known * before.mean @ before.second
        sums = before.n_known * globals_.scores.second
        size = before.n_known * np.trace(before.second)
        curvature = np.array([np.trace(forms.form(k, k)) / size for k in range(len(products))])
        sheared = shear_factors(self.settings, globals_, products, sums, curvature)
        if sheared is None:
            return globals_
        back = replace_part(globals_, "progress", iterates=())
        return replace_part(sheared, "progress", iterates=(), snapshot=Snapshot(back, progress.objective))


def close_courses(settings: Settings, globals_: Globals) -> Globals:
    """Return the globals without courses that are worth less than they cost; see `close_rough`.

    Factors that become rough are scaled to variance 1, which passes do slowly: while they had a course the
    share of noise was their scale.
    """
    before = globals_.courses
    if before is None:
        return globals_
    assert settings.smooth is not None
    courses = close_rough(settings.smooth.basis, before)
    closed = before.is_smooth & ~courses.is_smooth
    if not closed.any():
        return globals_
    second = globals_.scores.second
    scale = np.where(closed, 1.0 / np.sqrt(np.maximum(np.diag(second), LEAST_NOISE)), 1.0)
    new = replace(globals_, courses=courses if courses.is_smooth.any() else None)
    new = change_basis(new, np.diag(scale), np.diag(1.0 / scale))
    new = replace_part(new, "scores", second=second * np.outer(scale, scale))
    views = {
        view.name: replace(
            new.views[view.name],
            alpha_rate=new.views[view.name].alpha_rate / scale**view.prior.power,
        )
        for view in settings.views
    }
    return replace_part(replace(new, views=views), "progress", objective=float("nan"), iterates=())
