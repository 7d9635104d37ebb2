"""From the warm-up to the sparse stage: drop weak factors, whiten, rotate to simple structure."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.kernels.linalg import diagonal, varimax, whitening
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.change_of_basis import change_basis, select_factors
from factorflow.models.sparse_gfa.global_step import without_weak_factors
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.squarem import discard_unverified_step
from factorflow.models.sparse_gfa.start.guided import (
    guided_views,
    rotation_with_guides,
    with_guided_classes,
)
from factorflow.models.sparse_gfa.state import Globals, Progress
from factorflow.models.sparse_gfa.weights import expected_weights, sum_pairs


def initialize_sparse(settings: Settings, globals_: Globals) -> Globals:
    """Return the globals that the sparse stage starts from.

    Factors below `Settings.drop` go. One varimax rotation of the loadings of all views together, each row
    scaled by the square root of its noise precision and normalised (Kaiser), of scores made white, ends the
    arbitrary rotation inside groups of similar factors that the warm-up leaves behind. The scores start
    from their rotated means; the noise is kept; all else starts anew. Of more factors than were asked for
    (`restarts.SPARE`) those that explain most are left. Where loadings may not be negative, factors get the
    sign that most of them want. Of guided factors see `guided`.
    """
    globals_ = discard_unverified_step(globals_)
    reduced = without_weak_factors(settings, globals_)
    transform = _to_simple_structure(settings, reduced) if reduced.n_factors else np.zeros((0, 0))
    inverse = np.linalg.inv(transform).T
    rotated = with_guided_classes(settings, change_basis(reduced, transform, inverse))
    rotated = _best(settings, rotated)
    views = {}
    for view in settings.views:
        weights, (shape, rate), power = rotated.weights[view.name], view.alpha_prior, view.prior.power
        squares = weights.mean**2 + diagonal(weights.variance, rotated.n_factors)
        squares = (squares if power == 2.0 else squares ** (0.5 * power)).sum(axis=0)
        views[view.name] = replace(
            rotated.views[view.name],
            alpha_shape=shape + len(weights.mean) / power * np.ones(len(squares)),
            alpha_rate=rate + squares / power,
            theta_on=settings.priors.theta[0] * np.ones(len(squares)),
            theta_off=settings.priors.theta[1] * np.ones(len(squares)),
            pairs=sum_pairs(weights, settings.precision(view.name, weights)),
            counts=None,
        )
    ones = np.ones((settings.n_groups, rotated.n_factors))
    on, off = settings.priors.psi
    return replace(
        rotated,
        views=views,
        scores=replace(
            rotated.scores,
            beta_shape=ones,
            beta_rate=ones,
            psi_on=on * ones,
            psi_off=off * ones,
            second=np.eye(rotated.n_factors),
        ),
        progress=Progress(),
    )


def _best(settings: Settings, globals_: Globals) -> Globals:
    """Return the globals with as many factors as were asked for, those that explain most, in order.

    With scores of variance 1 a factor explains sum_d N / 2 log(1 + f_d w_d^2) nats, of binary views and
    counts N / 2 f_d w_d^2; the scores cost N / 2 log(1 + sum_d f_d w_d^2).
    """
    if globals_.n_factors <= settings.n_factors:
        return globals_
    evidence, net = 0.0, 0.0
    for view in settings.views:
        weights, count = globals_.weights[view.name], globals_.fixed[view.name].count.sum(axis=1)
        mean, precision = expected_weights(weights)[0], settings.information(view.name, weights)
        signal = precision[:, None] * mean**2
        evidence = evidence + signal.sum(axis=0)
        gaussian = view.is_gaussian
        net = net + 0.5 * count @ (np.log1p(signal) if gaussian else signal)
    net = net - 0.5 * settings.n_rows * np.log1p(evidence)
    net[: len(guided_views(settings))] = np.inf
    return select_factors(globals_, np.sort(np.argsort(-net, kind="stable")[: settings.n_factors]))


def _to_simple_structure(settings: Settings, globals_: Globals) -> Float64[Array, "K K"]:
    white = whitening(globals_.scores.second)
    inverse = np.linalg.inv(white)
    guides = guided_views(settings)[: globals_.n_factors]
    if guides:
        loadings = {v.name: _scaled_loadings(settings, globals_, v.name) @ inverse for v in settings.views}
        rotation = rotation_with_guides(loadings, guides)
    else:
        every = np.concatenate([_scaled_loadings(settings, globals_, v.name) for v in settings.views])
        rotation = varimax(every @ inverse)
    transform = rotation.T @ white
    return np.asarray(_upwards(settings, globals_, transform)[:, None] * transform)


def _upwards(settings: Settings, globals_: Globals, transform: Float64[Array, "K K"]) -> Float64[Array, " K"]:
    """Return the signs of factors with which most is positive of loadings that may not be negative."""
    views = [view.name for view in settings.views if not view.prior.signed]
    if not views:
        return np.ones(len(transform))
    loadings = np.concatenate([_scaled_loadings(settings, globals_, name) for name in views])
    cubes = ((loadings @ np.linalg.inv(transform)) ** 3).sum(axis=0)
    return np.where(cubes < 0.0, -1.0, 1.0)


def _scaled_loadings(settings: Settings, globals_: Globals, name: str) -> Float64[Array, "D K"]:
    weights = globals_.weights[name]
    precision = settings.information(name, weights)
    return np.sqrt(precision)[:, None] * expected_weights(weights)[0]
