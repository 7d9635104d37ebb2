"""Turns and strains of two factors in their plane, z -> z A, along which sweeps hardly move by themselves.

w and b of the two are integrated out, their s summed out, and the volume of the scores does not change: how
likely z A is is a sum over features (`kernels.plane_moves`), beside the prior of z, which strains change.
Without turns loadings that are 0 keep factors where they are: chains that began with two factors mixed half
and half stayed there. Where views take Metropolis steps, loadings that are never 0 follow, w -> w A'^-1, and
their prior with alpha integrated out decides. Strains z_j -> z_j cosh c + z_k sinh c let the scores of two
factors be correlated, as those of few samples are; what lies between the two, shears among them, leads from
one way to have loadings of 0 to another.

A sweep draws along several lines A exp(x G) one after the other, from evenly spaced values x among which 0,
for no move, has a random place, so that each of them would have given the same ones. The first is a turn
right round: two groups of features that differ in angle make two ways to have loadings of 0, with next to no
way between. Then comes a turn close by, and lines of random directions G. A turn by 90 degrees leads to the
same factors in another order, which is as likely: after every turn they get their names and signs back, by
the loadings that the chain began with, so that means over a chain are of one factor each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy import special

from factorflow.core.trees import replace
from factorflow.kernels.linalg import n_pairs, unpack
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Array, Step
from factorflow.models.sparse_gfa.kernels import draws
from factorflow.models.sparse_gfa.sampler.drawn_sums import DrawnStats
from factorflow.models.sparse_gfa.sampler.gibbs_state import DrawnWeights, Names, Plane, Shared
from factorflow.models.sparse_gfa.sampler.metropolis import corrected_views
from factorflow.models.sparse_gfa.sampler.pooled import pick
from factorflow.models.sparse_gfa.settings import Settings

PLANE_SITE, PAIR_SITE = MODELS[12], MODELS[17]
"""Noise: plane and lines; s and w of the two factors of each feature."""


class Line(NamedTuple):
    """Least and largest span, log-uniform between, for the more features, the less is left open; places."""

    least: float
    most: float
    places: int


ROUND, TURN, OTHER = Line(0.9 * np.pi, np.pi, 64), Line(0.03, 0.5 * np.pi, 16), Line(0.03, 1.0, 16)
"""Half a turn is all there is: after it come the same factors with other signs."""
LOOKS, FEWEST, MOST = 600, 3, 15
"""Other lines: `LOOKS` over the number of features, since each feature is looked at for each place.

Of more features than `LOOKS` the first turn would hit nothing: ways there are narrow beside its steps.
"""
WIDE = 1500
"""Features from which on two lines of half the places are as good as `FEWEST`: so much holds the factors."""


def plane_of(settings: Settings, n_factors: int, step: Step) -> tuple[int, int] | None:
    """Return the two factors that a sweep turns.

    None where the prior of scores or of loadings tells factors apart, or loadings of a view that may be 0
    cannot be integrated out.
    """
    told_apart = settings.scores_prior != "normal" or settings.smooth is not None
    told_apart = told_apart or not all(view.prior.allows_plane_moves for view in settings.views)
    if n_factors < 2 or told_apart or any(view.spikes for view in corrected_views(settings)):
        return None
    u = draws.uniform(step, PLANE_SITE, np.zeros(1, np.int64), 2)[0]
    j, k = int(u[0] * n_factors), int(u[1] * (n_factors - 1))
    k += k >= j
    return min(j, k), max(j, k)


def draw_plane_move(
    settings: Settings,
    stats: DrawnStats,
    weights: Mapping[str, DrawnWeights],
    now: Shared,
    names: Names,
    plane: tuple[int, int],
    step: Step,
) -> tuple[dict[str, DrawnWeights], Float64[Array, "K K"], Shared]:
    """Draw A line by line, then loadings and intercepts of all features given the scores after it.

    Return the loadings, A, and what is shared, the two factors under their names again.
    """
    planes = {
        name: mine.residual_sums.plane for name, mine in weights.items() if mine.residual_sums is not None
    }
    following = [view for view in settings.views if view.name not in planes]
    priors = {name: _prior(settings, now, name, plane) for name in planes}
    gram = _gram(stats, now.beta.shape[1])[np.ix_(plane, plane)]
    a = np.eye(2)
    n_features = sum(view.n_features for view in settings.views)
    lines = _lines(n_features)
    uniform = draws.uniform(step, PLANE_SITE, np.arange(1, 1 + len(lines)), 4)
    for line, u in zip(lines, uniform, strict=True):
        after = a @ _line_transforms(line, u, np.pi * u[3] if line is OTHER else 0.0)  # z -> (z a) exp(x G)
        gains = -0.5 * (after * (gram @ after)).sum(axis=(1, 2))
        for name, mine in planes.items():
            assert mine is not None
            gains = gains + draws.plane_gains(mine.square, mine.linear, priors[name], after.reshape(-1, 4))
        for view in following:
            shape_and_rate = view.alpha_prior if now.slab is None else now.slab.parameters
            gains = gains + _prior_gains(weights[view.name].loadings[:, plane], shape_and_rate, after)
        a = after[pick(gains, u[2])]
    out, uniform = {}, draws.uniform(step, PAIR_SITE, np.arange(n_features), 3)
    for name, mine in planes.items():
        assert mine is not None
        u = uniform[settings.first_column(name) :][: len(mine.linear)]
        noise = np.ascontiguousarray(u[:, 0]), special.ndtri(u[:, 1:])
        pair_draws = draws.plane_pairs(mine.square, mine.linear, priors[name], a.ravel(), noise)
        out[name] = _replace_loadings(weights[name], mine, plane, pair_draws, a)
    for view in following:
        loadings = weights[view.name].loadings.copy()
        loadings[:, plane] = loadings[:, plane] @ np.linalg.inv(a).T
        out[view.name] = replace(weights[view.name], loadings=loadings)
    back = _match_names(names, [out[view.name] for view in settings.views], plane)
    for drawn_anew in out.values():
        drawn_anew.loadings[:, plane] = drawn_anew.loadings[:, plane] @ back
    turn = np.eye(now.beta.shape[1])
    turn[np.ix_(plane, plane)] = a @ back
    return out, turn, now if back[0, 0] else _swap_factors(now, plane)


def _prior_gains(
    loadings: Float64[Array, "D two"],
    alpha_prior: tuple[float, float],
    after: Float64[Array, "J two two"],
) -> Float64[Array, " J"]:
    """Return log p(w A'^-1), up to a constant, of each A, alpha integrated out; none of w is 0."""
    shape, rate = alpha_prior
    inverse = np.linalg.inv(after)
    squares = (inverse @ (loadings.T @ loadings) * inverse).sum(axis=2)
    return -(shape + 0.5 * len(loadings)) * np.asarray(np.log(rate + 0.5 * squares).sum(axis=1))


def _match_names(
    names: Names, weights: Sequence[DrawnWeights], plane: tuple[int, int]
) -> Float64[Array, "two two"]:
    """Return the order and the signs, as a matrix, by which two factors are most like their names."""
    loadings = np.concatenate([mine.loadings[:, plane] for mine in weights])
    alike = names.loadings[:, plane].T @ loadings[names.features]
    swap = abs(alike[0, 1]) + abs(alike[1, 0]) > abs(alike[0, 0]) + abs(alike[1, 1])
    order = np.eye(2)[::-1] if swap else np.eye(2)
    return order * np.where((alike @ order).diagonal() < 0.0, -1.0, 1.0)


def _swap_factors(now: Shared, plane: tuple[int, int]) -> Shared:
    """Return what is shared with two factors in each other's place."""
    order = np.arange(now.beta.shape[1])
    order[list(plane)] = plane[::-1]
    views = {
        name: replace(view, alpha=view.alpha[order], theta=view.theta[order])
        for name, view in now.views.items()
    }
    return replace(now, views=views, beta=now.beta[:, order])


def _lines(n_features: int) -> tuple[Line, ...]:
    """Return the lines of a sweep."""
    if n_features >= WIDE:
        return tuple(line._replace(places=line.places // 2) for line in (TURN, OTHER))
    number = LOOKS // n_features
    return *(ROUND,) * (number > 0), TURN, *(OTHER,) * min(MOST, max(FEWEST, number))


def _line_transforms(line: Line, u: Float64[Array, " W"], phi: float) -> Float64[Array, "J two two"]:
    """Return what is looked at along a line: exp(x G), G = (0, sin phi - cos phi; sin phi + cos phi, 0).

    No move is among it. Turns at phi = 0, strains at pi / 2, shears halfway; G G = -cos(2 phi).
    """
    least, most = np.log(line.least), np.log(line.most)
    spacing = np.exp(least + (most - least) * u[0]) / line.places
    x = spacing * (np.arange(line.places) - int(line.places * u[1]))
    square = -np.cos(2.0 * phi)
    root = np.sqrt(abs(square) + 1e-30)
    x = root * x
    same, other = (np.cosh(x), np.sinh(x) / root) if square > 0.0 else (np.cos(x), np.sin(x) / root)
    out = np.empty((line.places, 2, 2))
    out[:, 0, 0] = out[:, 1, 1] = same
    out[:, 0, 1], out[:, 1, 0] = (other * (np.sin(phi) + sign * np.cos(phi)) for sign in (-1.0, 1.0))
    return out


def _prior(
    settings: Settings, now: Shared, name: str, plane: tuple[int, int]
) -> tuple[Float64[Array, " two"], Float64[Array, " two"], bool]:
    """Return alpha and the odds of s = 1 of two factors, and whether there are spikes."""
    shared, both = now.views[name], list(plane)
    if not settings.view(name).spikes:
        return shared.alpha[both], np.ones(2), False
    theta = shared.theta[both]
    return shared.alpha[both], theta / (1.0 - theta), True


def _replace_loadings(
    weights: DrawnWeights,
    equations: Plane,
    plane: tuple[int, int],
    values: Float64[Array, "D two"],
    a: Float64[Array, "two two"],
) -> DrawnWeights:
    """Return weights with new loadings of two factors of scores z A; the others go with them."""
    message, both = weights.residual_sums, list(plane)
    assert message is not None
    apart = values @ a.T - weights.loadings[:, both]  # of loadings of z itself
    whole, k = weights.whole - np.einsum("dkp,dp->dk", equations.follow, apart), weights.loadings.shape[1]
    whole[:, both] = values
    x, y, change = apart[:, 0], apart[:, 1], equations.change.T
    squares = message.squares - 2.0 * (x * change[0] + y * change[1])
    squares = squares + x * x * change[2] + 2.0 * x * y * change[3] + y * y * change[4]
    slope = message.slope - x * change[5] - y * change[6]
    message = replace(message, squares=np.maximum(squares, 0.0), slope=slope, plane=None)
    loadings = np.ascontiguousarray(whole[:, :k])
    return replace(weights, loadings=loadings, coefficients=whole[:, k:].copy(), residual_sums=message)


def _gram(stats: DrawnStats, k: int) -> Float64[Array, "K K"]:
    return unpack(stats.moments[: n_pairs(k)], k)


def transform_scores(stats: DrawnStats, turn: Float64[Array, "K K"]) -> DrawnStats:
    """Return the sums over samples of the scores z A that draws of what they share need."""
    assert stats.first is not None
    k = len(turn)
    first, second = stats.first.copy(), stats.second.copy()  # learned size factors stay
    first[:, :, :k] = first[:, :, :k] @ turn
    second[0, :k] = np.diag(turn.T @ _gram(stats, k) @ turn)
    return replace(stats, first=first, second=second)
