"""Other bases of the factors: rotation, scale, shift and selection, with all that follows from them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64, Integer

from factorflow.core.trees import replace
from factorflow.kernels.linalg import congruence, n_pairs, unpack
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.elbo import Moves
from factorflow.models.sparse_gfa.kernels.rotation import best_rotation, best_scale
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.smooth.courses import change_signs, select_courses
from factorflow.models.sparse_gfa.state import Change, Globals, Scores, replace_part
from factorflow.models.sparse_gfa.statistics import FeatureSums
from factorflow.models.sparse_gfa.weights import expected_weights, sum_pairs, transformed_weights


def rotate(
    settings: Settings, globals_: Globals, moves: Moves, sums: Mapping[str, FeatureSums]
) -> tuple[Globals, Moves]:
    """Rotate scores and weights to where the bound is highest; nothing else changes."""
    k, n_rows = globals_.n_factors, settings.n_rows
    grams = {name: unpack(s.gram[: n_pairs(k)], k) for name, s in sums.items() if s.gram is not None}
    sizes = {view.name: float(view.n_features) for view in settings.views}
    rotation = best_rotation(
        globals_.scores.second * n_rows,
        [grams[view.name] for view in settings.views],
        n_rows,
        [sizes[view.name] for view in settings.views],
        [view.alpha_prior for view in settings.views],
    )
    inverse = np.linalg.inv(rotation).T
    logdet = float(np.linalg.slogdet(rotation)[1])
    second = rotation @ globals_.scores.second @ rotation.T
    moved = Moves(
        loadings={
            name: replace(moves.loadings[name], squares=np.diag(inverse @ gram @ inverse.T).copy())
            for name, gram in grams.items()
        },
        second=(np.diag(second) * n_rows)[None].copy(),
        entropy=moves.entropy + (n_rows - sum(sizes.values())) * logdet,
    )
    return replace_part(change_basis(globals_, rotation, inverse), "scores", second=second), moved


def rescale(
    settings: Settings, globals_: Globals, moves: Moves, number: Float64[Array, "G K"]
) -> tuple[Globals, Moves]:
    """Rescale each factor to where the bound is highest."""
    grouped = settings.scores_prior != "normal"
    powers = {view.name: view.prior.power for view in settings.views}
    r = best_scale(
        moves.second,
        number if grouped else number.sum(axis=0, keepdims=True),
        [moves.loadings[v.name].squares for v in settings.views],
        [moves.loadings[v.name].included for v in settings.views],
        [v.alpha_prior for v in settings.views],
        settings.priors.beta if grouped else None,
        [powers[v.name] for v in settings.views],
    )
    lost = np.sum([s.included for s in moves.loadings.values()], axis=0) @ np.log(r)
    moved = Moves(
        loadings={
            name: replace(s, squares=s.squares / r ** powers[name]) for name, s in moves.loadings.items()
        },
        second=moves.second * r**2,
        entropy=moves.entropy + float((number.sum(axis=0) * np.log(r)).sum()) - float(lost),
    )
    changed = change_basis(globals_, np.diag(r), np.diag(1.0 / r))
    return replace_part(changed, "scores", second=globals_.scores.second * np.outer(r, r)), moved


def shift_scores(settings: Settings, globals_: Globals) -> Globals:
    """Move scores to where their prior and that of the intercepts are highest; predictors stay as they are.

    z -> z + c, b -> b - W c, with E[w] for w. Where entries say far more of z and b than their priors do, as
    large counts do, alternating updates would take more passes for that than any fit has. Gaussian entries
    are about their means where a fit begins, and need none of it.
    """
    mean, intercepts = globals_.scores.mean, all(settings.has_intercepts(view) for view in settings.views)
    if mean is None or settings.scores_prior != "normal" or globals_.courses is not None or not intercepts:
        return globals_
    loadings = {name: expected_weights(mine)[0] for name, mine in globals_.weights.items()}
    system, linear = settings.n_rows * np.eye(len(mean)), -settings.n_rows * mean
    for name, w in loadings.items():
        view, fixed = globals_.views[name], globals_.fixed[name]
        excess = globals_.weights[name].intercept + fixed.reference / fixed.scale - view.intercept_mean
        precision = view.intercept_shape / view.intercept_rate
        system, linear = system + precision * w.T @ w, linear + precision * w.T @ excess
    shift = np.linalg.solve(system, linear)
    views, weights = dict(globals_.views), dict(globals_.weights)
    for name, w in loadings.items():
        coefficients = weights[name].coefficients.copy()
        coefficients[:, 0] -= w @ shift
        weights[name] = replace(weights[name], coefficients=coefficients)
        pairs = sum_pairs(weights[name], settings.precision(name, weights[name]))
        views[name] = replace(views[name], pairs=pairs)
    cross = np.outer(mean, shift)
    second = globals_.scores.second + cross + cross.T + np.outer(shift, shift)
    change = globals_.change if globals_.change.transform is not None else Change(np.eye(len(mean)))
    return replace(
        globals_,
        weights=weights,
        views=views,
        scores=replace(globals_.scores, second=second, mean=mean + shift),
        change=replace(change, shift=shift),
    )


def change_basis(
    globals_: Globals,
    transform: Float64[Array, "K before"],
    inverse: Float64[Array, "K before"],
) -> Globals:
    """Apply z -> T z, w -> T'^-1 w, given T and T'^-1."""
    rotated, extended = _transform_loadings(globals_, inverse), extend_transform(inverse, globals_.n_given)
    rotated = replace(rotated, courses=change_signs(globals_.courses, transform))
    views = {name: replace(v, pairs=congruence(v.pairs, extended)) for name, v in globals_.views.items()}
    mean = globals_.scores.mean
    return replace(
        rotated,
        views=views,
        scores=replace(globals_.scores, mean=None if mean is None else transform @ mean),
        change=globals_.change.followed_by(transform),
    )


def extend_transform(transform: Float64[Array, "K before"], n_given: int) -> Float64[Array, "L before_L"]:
    """Return a transform of w as one of (w, b)."""
    after, before = transform.shape
    extended = np.zeros((after + n_given, before + n_given))
    extended[:after, :before], extended[after:, before:] = transform, np.eye(n_given)
    return extended


def _transform_loadings(globals_: Globals, inverse: Float64[Array, "K before"]) -> Globals:
    """Return the globals with w -> T'^-1 w."""
    weights = {name: transformed_weights(w, inverse) for name, w in globals_.weights.items()}
    return replace(globals_, weights=weights)


def select_factors(globals_: Globals, factors: Integer[Array, " kept"]) -> Globals:
    """Return globals with some factors only, in the order given; without some, others are worth more."""
    k = globals_.n_factors
    if np.array_equal(factors, np.arange(k)):
        return globals_
    pick = np.eye(k)[factors]
    extended = extend_transform(pick, globals_.n_given)
    views = {
        name: replace(
            v,
            **{f: getattr(v, f)[factors] for f in ("alpha_shape", "alpha_rate", "theta_on", "theta_off")},
            counts=None if v.counts is None else v.counts[:, factors],
            pairs=congruence(v.pairs, extended),
        )
        for name, v in globals_.views.items()
    }
    mean, of_factors = globals_.scores.mean, globals_.factors
    same = len(factors) == k
    scores = {
        f: getattr(globals_.scores, f)[:, factors] for f in ("beta_shape", "beta_rate", "psi_on", "psi_off")
    }
    return replace(
        _transform_loadings(globals_, pick),
        views=views,
        scores=Scores(
            **scores,
            second=globals_.scores.second[np.ix_(factors, factors)],
            mean=None if mean is None else mean[factors],
        ),
        factors=replace(
            of_factors,
            strength=of_factors.strength[:, factors],
            worth=of_factors.worth[factors] if of_factors.worth is not None and same else None,
            numbers=None if of_factors.numbers is None else of_factors.numbers[factors],
            sets=None if of_factors.sets is None else of_factors.sets[factors],
        ),
        courses=select_courses(globals_.courses, factors),
        change=globals_.change.followed_by(pick),
        progress=replace(
            globals_.progress,
            score=float("nan"),
            trial_failed=globals_.progress.trial_failed and same,
            iterates=(),
        ),
    )
