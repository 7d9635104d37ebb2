"""Metropolis steps of views whose likelihood has no augmentation (`Likelihood.augment`).

Every entry has a stand-in exp(r x - u x^2 / 2): the tangent of its log density at the fit's predictor, of
half its weight, so that tails are wide. It depends on the data and the fit alone. With stand-ins in place of
likelihoods scores and loadings have a pseudo-posterior that is drawn from like any other; R, the product of
p(y | x) / exp(r x - u x^2 / 2) over the entries, is what makes steps exact:

* scores of a row: elliptical slice sampling [1]_ about the pseudo-posterior, R in the part of the likelihood;
* (s, w, b) or phi of a feature: from where they are a step of a kernel that runs backwards leads to a place
  that is not kept, and `N_TRIES` steps of the kernel itself from there to tries. Where the kernel leaves the
  pseudo-posterior as it is, each try could have been where the feature is, and the feature where any of them
  is: one is drawn with probabilities in proportion to R, and to the prior of phi [2]_.

Three kernels, one of them for each feature and sweep: s, factor after factor, with (w, b) integrated out,
then (w, b); (w, b) given s, a part of the way to a fresh draw, small or large; a random walk of phi. R of the
tries takes a second pass over the data.

References
----------
.. [1] I. Murray, R. P. Adams, D. J. C. MacKay, "Elliptical slice sampling", AISTATS 2010.
.. [2] H. Tjelmeland, "Using all Metropolis-Hastings proposals to estimate mean values", NTNU 2004.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64, Integer, Shaped
from scipy import special

from factorflow.kernels import device
from factorflow.kernels.sites import MODELS
from factorflow.likelihoods import Likelihood
from factorflow.models.contract import Array, Step
from factorflow.models.sparse_gfa.kernels import draws
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.m_step import System
from factorflow.models.sparse_gfa.messages import TILE
from factorflow.models.sparse_gfa.sampler.feature_prior import FeaturePrior, GaussianPart
from factorflow.models.sparse_gfa.settings import Settings, ViewSettings

SLICE_SITE, KIND_SITE, SPIKE_SITE, STEP_SITE, PICK_SITE = (MODELS[i] for i in (42, 25, 26, 27, 28))
PART_SITE = MODELS[39]
"""Noise: slices of each row; kernel and width, uniforms of s, normals of steps, and the pick, by feature; of
what component each loading is."""

WEIGHT = 0.5
"""Of a tangent in its stand-in."""
N_TRIES = 4
"""Each costs an evaluation of all densities."""
MOST_SHRINKS = 40
"""Of a slice: by then what is left of it is below rounding, and a row stays where it is."""
LEAST_WAY = 0.05
"""Smallest part of the way to a fresh draw."""


def corrected_views(settings: Settings) -> tuple[ViewSettings, ...]:
    """Return the views that take Metropolis steps."""
    return tuple(v for v in settings.views if not v.is_gaussian and not v.density.has_augmentation)


def predictor(
    rows: Float64[Array, "B L"], weights: Float64[Array, "D L"], beside: Array
) -> Float64[Array, "B D"]:
    """Return x of every entry, where ``beside`` lies; rows are (z, a), weights (w, b)."""
    return device.move_beside(rows, beside) @ device.move_beside(weights, beside).T


def stand_ins(
    settings: Settings,
    density: Likelihood,
    y: Float64[Array, "B D"],
    x: Float64[Array, "B D"],
    phi: Float64[Array, "D P"],
    aux: Float64[Array, "B D"] | None = None,
    level: Float64[Array, "B 1"] | float = 0.0,
) -> tuple[Float[Array, "B D"], Float[Array, "B D"]]:
    """Return u and r of the stand-in of every entry in x + level, its tangent taken there; see `Entries`."""
    at = x + level
    _, slope, curvature = density.message(y, at, 0.0 * x, device.move_beside(phi.T, y), aux)
    u = WEIGHT * curvature
    r = u * at + WEIGHT * slope
    return u.astype(settings.dtype), r.astype(settings.dtype)


@dataclass(frozen=True)
class Entries:
    """Entries y of a view in a block, u and r of their stand-ins, and what belongs to the features.

    ``level`` is added to x: logarithms of size factors that are computed. Those that are learned are scores
    with a loading of 1, among the ``weights``.
    """

    density: Likelihood
    y: Float64[Array, "B D"]
    precision: Float[Array, "B D"]
    linear: Float[Array, "B D"]
    weights: Float64[Array, "D L"]
    phi: Float64[Array, "D P"]
    aux: Float64[Array, "B D"] | None = None
    level: Float64[Array, "B 1"] | None = None

    def log_ratio(self, x: Float64[Array, "P D"], rows: Integer[Array, " P"]) -> Float64[Array, " P"]:
        """Return log R of some rows at the predictors x."""
        xp = device.namespace(x)
        y, u, r = self.y[rows], self.precision[rows], self.linear[rows]
        aux = None if self.aux is None else self.aux[rows]
        at = x if self.level is None else x + self.level[rows]
        log_density = self.density.log_kernel(y, at, device.move_beside(self.phi.T, x), aux)
        ratios = xp.where(y == y, log_density - at * (r - 0.5 * u * at), 0.0)
        return device.on_host(ratios.sum(axis=1))


def log_ratios(
    entries: Sequence[Entries], scores: Float64[Array, "B K"], design: Float64[Array, "B C"]
) -> Float64[Array, " B"]:
    """Return log R of all rows at these scores."""
    total, rows = np.zeros(len(scores)), np.concatenate([scores, design], axis=1)
    for of_view in entries:
        for part in tiles(len(rows), of_view.y):
            x = predictor(rows[part], of_view.weights, of_view.y)
            total[part] += of_view.log_ratio(x, np.arange(part.start, min(part.stop, len(rows))))
    return total


def slice_scores(
    entries: Sequence[Entries],
    design: Float64[Array, "B C"],
    centre: Float64[Array, "B K"],
    before: Float64[Array, "B K"],
    fresh: Float64[Array, "B K"],
    rows: Integer[Array, " B"],
    step: Step,
    log_extra: Callable[[Float64[Array, "P K"], Integer[Array, " P"]], Float64[Array, " P"]] | None = None,
    site: int = SLICE_SITE,
) -> tuple[Float64[Array, "B K"], float]:
    """Return scores after a step of elliptical slice sampling, and how many places were tried in all.

    The ellipse is about the mean of the pseudo-posterior, through the scores before and a fresh draw.
    ``log_extra``: logarithm of the factor of the density of some rows' scores that is in neither the
    pseudo-posterior nor R.
    """
    n, k = before.shape
    uniform = draws.uniform(step, site, rows, 2 + MOST_SHRINKS)
    ways = []
    for of_view in entries:
        slopes = of_view.weights[:, :k].T
        parts = ((part - centre) @ slopes for part in (before, fresh))
        x = predictor(np.concatenate([centre, design], axis=1), of_view.weights, of_view.y)
        ways.append((of_view, x, *(device.move_beside(part, x) for part in parts)))

    def log_ratio(index: Integer[Array, " P"], angle: Float64[Array, " P"]) -> Float64[Array, " P"]:
        total = np.zeros(len(index))
        if log_extra is not None:
            cosine, sine = np.cos(angle)[:, None], np.sin(angle)[:, None]
            parts = (before - centre)[index], (fresh - centre)[index]
            total += log_extra(centre[index] + cosine * parts[0] + sine * parts[1], index)
        for of_view, x, first, second in ways:
            for part in tiles(len(index), x):
                rows = device.move_beside(index[part], x)
                cosine, sine = (device.move_beside(f(angle[part])[:, None], x) for f in (np.cos, np.sin))
                total[part] += of_view.log_ratio(x[rows] + cosine * first[rows] + sine * second[rows], rows)
        return total

    level = log_ratio(np.arange(n), np.zeros(n)) + np.log(uniform[:, 0])
    angle = 2.0 * np.pi * uniform[:, 1]
    low, high, accepted, left, tried = angle - 2.0 * np.pi, angle.copy(), np.zeros(n), np.arange(n), 0
    for i in range(MOST_SHRINKS):
        tried += len(left)
        inside = log_ratio(left, angle[left]) > level[left]
        accepted[left[inside]] = angle[left[inside]]
        left = left[~inside]
        if not len(left):
            break
        below = angle[left] < 0.0
        low[left], high[left] = (
            np.where(below, angle[left], low[left]),
            np.where(below, high[left], angle[left]),
        )
        angle[left] = low[left] + uniform[left, 2 + i] * (high[left] - low[left])
    cosine, sine = np.cos(accepted)[:, None], np.sin(accepted)[:, None]
    return centre + cosine * (before - centre) + sine * (fresh - centre), float(tried)


def propose(
    system: System,
    prior: FeaturePrior,
    density: Likelihood,
    start: tuple[Float64[Array, "D K"], Float64[Array, "D C"], Float64[Array, "D P"]],
    count: Float64[Array, " D"],
    numbers: Integer[Array, " D"],
    step: Step,
) -> Float64[Array, "D J S"]:
    """Return where each feature is, and its tries: (w, b), phi and the log stand-ins of its entries.

    ``count``: entries of each.
    """
    (n, k), n_phi = start[0].shape, density.n_phi
    size = k + start[1].shape[1]
    kind, width = draws.uniform(step, KIND_SITE, numbers, 2).T
    normal_part = prior.gaussian_part(start[0], lambda: draws.uniform(step, PART_SITE, numbers, k))
    own = np.floor((2 + (n_phi > 0)) * kind), width, count, density.phi_sd
    kernel = _Kernel(system, prior, normal_part, *own)
    uniform = draws.uniform(step, SPIKE_SITE, numbers, (1 + N_TRIES) * k).reshape(n, 1 + N_TRIES, k)
    normal = draws.uniform(step, STEP_SITE, numbers, (1 + N_TRIES) * (size + n_phi))
    normal = special.ndtri(normal).reshape(n, 1 + N_TRIES, size + n_phi)
    here = np.concatenate(start, axis=1)
    between = kernel.move(here, uniform[:, 0], normal[:, 0], backwards=True)
    moved = (kernel.move(between, uniform[:, i], normal[:, i]) for i in range(1, 1 + N_TRIES))
    proposals, zeros = [], np.zeros((n, k))
    for state in (here, *moved):
        fit = gfa.quadratic(system.cross, system.pairs, state[:, :k], zeros, state[:, k:size], None)
        stand_in = -0.5 * fit
        if (
            normal_part.log_extra is not None
        ):  # R has what the kernel leaves out, for steps of the second kind
            stand_in = stand_in - np.where(kernel.kind == 1, normal_part.log_extra(state[:, :k]), 0.0)
        proposals.append(np.concatenate([state, stand_in[:, None]], axis=1))
    return np.stack(proposals, axis=1)


@dataclass(frozen=True)
class _Kernel:
    """Steps that leave the pseudo-posterior as it is, walks of phi; ``kind``: which of them, by feature."""

    system: System
    prior: FeaturePrior
    normal_part: GaussianPart
    kind: Float64[Array, " D"]
    width: Float64[Array, " D"]
    count: Float64[Array, " D"]
    phi_sd: float

    def move(
        self,
        state: Float64[Array, "D S"],
        uniform: Float64[Array, "D K"],
        normal: Float64[Array, "D S"],
        *,
        backwards: bool = False,
    ) -> Float64[Array, "D S"]:
        """Return (w, b) and phi after a step, from uniforms of s and normals of all."""
        new, k, size = state.copy(), uniform.shape[1], self.system.cross.shape[1]
        rows = np.flatnonzero(self.kind == 0)
        here, noise = state[rows, :size], (uniform[rows], normal[rows, :size])
        new[rows, :size] = self.prior.select(rows).draw(self._of(rows), noise, here, backwards=backwards)

        rows = np.flatnonzero(self.kind == 1)
        here, way = state[rows, :size], LEAST_WAY ** self.width[rows, None]
        own, z = self._of(rows), normal[rows, :size]
        fresh, centre = (self.normal_part.draw(own, rows, x * z, here, k) for x in (1.0, 0.0))
        new[rows, :size] = centre + np.sqrt(1.0 - way**2) * (here - centre) + way * (fresh - centre)

        rows = np.flatnonzero(self.kind == 2)
        least = (self.phi_sd**-2 + self.count[rows]) ** -0.5  # what many entries leave open, about
        width = least * (self.phi_sd / least) ** self.width[rows]
        new[rows, size:] += width[:, None] * normal[rows, size:]
        return new

    def _of(self, rows: Integer[Array, " R"]) -> System:
        """Return the equations of some features."""
        pairs = self.system.pairs if len(self.system.pairs) == 1 else self.system.pairs[rows]
        return System(pairs, self.system.cross[rows], self.system.scale[rows])


def try_sums(
    density: Likelihood,
    y: Float64[Array, "B D"],
    rows: Float64[Array, "B L"],
    tries: Float64[Array, "D J S"],
    aux: Float64[Array, "B D"] | None = None,
    level: Float64[Array, "B 1"] | None = None,
) -> Float64[Array, "D J"]:
    """Return the log-likelihood of a block's entries of each feature at each of its tries.

    ``rows``: (z, a); ``level``: see `Entries`.
    """
    size = rows.shape[1]
    phi = np.moveaxis(tries[:, :, size:-1], 0, -1)  # (J, P, D)
    moving = np.flatnonzero((phi != phi[0]).any(axis=(0, 1)))  # of others the factor without x is the same
    phis = [device.move_beside(np.ascontiguousarray(of_try), y) for of_try in phi]
    of_moving = [device.move_beside(np.ascontiguousarray(of_try[:, moving]), y) for of_try in phi]
    columns, out = device.move_beside(moving, y), np.zeros(tries.shape[:2])
    for run in tiles(len(y), y):
        part, beside = y[run], None if aux is None else aux[run]
        out += _sum_observed(density.log_factor(part, phis[0], beside), part)[:, None]
        some, beside_some = part[:, columns], None if beside is None else beside[:, columns]
        of_first = _sum_observed(density.log_factor(some, of_moving[0], beside_some), some)
        for j, of_try in enumerate(phis):
            if j and len(moving):
                out[moving, j] += (
                    _sum_observed(density.log_factor(some, of_moving[j], beside_some), some) - of_first
                )
            x = predictor(rows[run], tries[:, j, :size], y)
            x = x if level is None else x + level[run]
            out[:, j] += _sum_observed(density.log_kernel(part, x, of_try, beside), part)
    return out


def _sum_observed(values: Float[Array, "B D"], y: Float64[Array, "B D"]) -> Float64[Array, " D"]:
    """Return the sum over rows where y is not missing."""
    xp = device.namespace(y)
    return device.on_host(xp.where(y == y, values, 0.0).sum(axis=0))


def tiles(n_rows: int, like: Shaped[Array, "_ D"]) -> Iterator[slice]:
    """Yield runs of rows of which a core's cache holds what is computed at once; on a device all of them."""
    at_once = n_rows if device.on_device(like) else TILE // like.shape[1]
    for begin in range(0, n_rows, max(1, at_once)):
        yield slice(begin, begin + max(1, at_once))


def choose(
    density: Likelihood,
    tries: Float64[Array, "D J S"],
    sums: Float64[Array, "D J"],
    numbers: Integer[Array, " D"],
    step: Step,
) -> Integer[Array, " D"]:
    """Draw which try each feature takes, 0: it stays."""
    phi = tries[:, :, tries.shape[2] - 1 - density.n_phi : -1]
    prior = (((phi - np.asarray(density.phi_mean)) / density.phi_sd) ** 2).sum(axis=2)
    log_weight = sums - tries[:, :, -1] - 0.5 * prior
    steps = np.cumsum(np.exp(log_weight - log_weight.max(axis=1, keepdims=True)), axis=1)
    uniform = draws.uniform(step, PICK_SITE, numbers)
    return (steps < uniform * steps[:, -1:]).sum(axis=1)
