"""At the root of sparse group factor analysis: shared parameters, the bound, rotation, scale, pruning."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64, Integer

from factorflow.kernels.linalg import congruence, n_pairs, unpack
from factorflow.models.contract import Array, Step
from factorflow.models.sparse_gfa.enough import weighed
from factorflow.models.sparse_gfa.features import whole
from factorflow.models.sparse_gfa.haste import hastened, unfinished
from factorflow.models.sparse_gfa.kernels.rotation import best_rotation, best_scale
from factorflow.models.sparse_gfa.level import levelled
from factorflow.models.sparse_gfa.progress import reported, with_pace
from factorflow.models.sparse_gfa.search.surplus import with_constant
from factorflow.models.sparse_gfa.search.trials import checked, tried
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.shared import Moves, bound_of, update_shared
from factorflow.models.sparse_gfa.state import Globals, Weights, expected_weights, transformed_weights
from factorflow.models.sparse_gfa.sums import FeatureSums, Stats
from factorflow.trees import replace

__all__ = ["change_basis", "finish_iteration", "select_factors", "shares"]

_SETTLED = 10
"""Sparse passes before a factor may be dropped: at first one can be weak for a while and come back."""


def finish_iteration(
    settings: Settings,
    globals_: Globals,
    stats: Stats,
    parts: Mapping[str, Weights],
    sums: Mapping[str, FeatureSums],
    step: Step,
    *,
    sparse: bool,
    strength: Float64[Array, "M K"] | None = None,
) -> tuple[Globals, dict[str, float]]:
    """Update what all features share, given updated features; return the new globals and the bound.

    ``strength`` (see `Globals`) is computed here unless the weights are elsewhere.
    """
    stats = whole(settings, stats)
    parts, sums = levelled(settings, globals_, parts, sums)
    k = globals_.n_factors
    new = replace(
        globals_,
        weights=dict(parts),
        views={name: replace(view, pairs=sums[name].pairs) for name, view in globals_.views.items()},
        second=unpack(stats.moments[: n_pairs(k)], k) / settings.n_rows,
        basis={},
        transform=None,
        earlier=None,
        bar=None,
        attempt=None,
        restored=False,
        regained=False,
    )
    moves = Moves(
        squares={name: s.squares for name, s in sums.items()},
        included={name: s.included for name, s in sums.items()},
        second=stats.second,
        entropy=stats.entropy + sum(s.entropy for s in sums.values()),
    )
    if settings.changes_basis(step.count, sparse=sparse):
        if not sparse and settings.full_scores:
            new, moves = _rotate(settings, new, moves, sums)
        elif settings.spike != "hat":
            new, moves = _rescale(settings, new, moves)
    new = update_shared(settings, new, moves, sums, stats, sparse=sparse)
    bound = bound_of(settings, new, moves, sums, stats, sparse=sparse)
    objective, rest = reported(settings, globals_, new, bound, sums, stats)
    strength = shares(settings, new) if strength is None else strength
    new = with_pace(settings, globals_, replace(new, strength=strength), objective, rest)
    if globals_.bar is None:
        new = tried(settings, globals_, (new, bound, objective), sums, stats, step.count, sparse=sparse)
    else:
        new, objective = checked(settings, globals_, new, objective, sums, stats)
    owed = new.owed and settings.finds_surplus(sparse=sparse)
    waits = new.trial is not None or new.bar is not None or owed
    info = {
        "objective": objective,
        "observed": _observed(new),
        "parameters": float(sum((v.n_features * (new.n_factors + 1)) for v in settings.views)),
        "rounding": 1e-7 * abs(objective) if settings.precision_bits == 32 else 0.0,
        "aside": float(globals_.attempt is not None and (new.bar is not None or new.restored)),
        "pending": float(waits or unfinished(settings, globals_, step.count)),
    }
    if sparse:
        likelihood = stats.free + sum(s.likelihood for s in sums.values())
        new, gained = weighed(settings, globals_, new, objective, likelihood, step.count)
        info |= {} if gained is None else {"gained": gained}
    if sparse and step.count >= _SETTLED and new.bar is None and not new.restored:
        new = select_factors(new, np.flatnonzero(new.strength.max(axis=0) >= settings.drop))
    info["n_factors"] = float(new.n_factors)
    if new.bar is None and not new.restored:
        new = hastened(settings, new, objective, step.count)
    return replace(new, objective=objective), info


def _observed(globals_: Globals) -> float:
    return globals_.observed if globals_.held is None else globals_.held.observed


def _rotate(
    settings: Settings, globals_: Globals, moves: Moves, sums: Mapping[str, FeatureSums]
) -> tuple[Globals, Moves]:
    """Rotate scores and weights to where the bound is highest; nothing else changes."""
    k, n_rows = globals_.n_factors, settings.n_rows
    grams = {name: unpack(s.gram[: n_pairs(k)], k) for name, s in sums.items() if s.gram is not None}
    sizes = {view.name: float(view.n_features) for view in settings.views}
    rotation = best_rotation(
        globals_.second * n_rows,
        [grams[view.name] for view in settings.views],
        n_rows,
        [sizes[view.name] for view in settings.views],
        [view.alpha_prior for view in settings.views],
    )
    inverse = np.linalg.inv(rotation).T
    logdet = float(np.linalg.slogdet(rotation)[1])
    second = rotation @ globals_.second @ rotation.T
    moved = Moves(
        squares={name: np.diag(inverse @ gram @ inverse.T).copy() for name, gram in grams.items()},
        included=moves.included,
        second=(np.diag(second) * n_rows)[None].copy(),
        entropy=moves.entropy + (n_rows - sum(sizes.values())) * logdet,
    )
    return replace(change_basis(settings, globals_, rotation, inverse), second=second), moved


def _rescale(settings: Settings, globals_: Globals, moves: Moves) -> tuple[Globals, Moves]:
    """Rescale each factor to where the bound is highest."""
    r = best_scale(
        moves.second.sum(axis=0),
        [moves.squares[v.name] for v in settings.views],
        settings.n_rows,
        [moves.included[v.name] for v in settings.views],
        [v.alpha_prior for v in settings.views],
    )
    lost = np.sum(list(moves.included.values()), axis=0) @ np.log(r)
    moved = Moves(
        squares={name: s / r**2 for name, s in moves.squares.items()},
        included=moves.included,
        second=moves.second * r**2,
        entropy=moves.entropy + settings.n_rows * float(np.log(r).sum()) - float(lost),
    )
    changed = change_basis(settings, globals_, np.diag(r), np.diag(1.0 / r))
    return replace(changed, second=globals_.second * np.outer(r, r)), moved


def change_basis(
    settings: Settings,
    globals_: Globals,
    transform: Float64[Array, "K before"],
    inverse: Float64[Array, "K before"],
) -> Globals:
    """Apply z -> T z, w -> T'^-1 w, given T and T'^-1."""
    turned, extended = _turned(globals_, inverse), with_constant(inverse)
    views = {name: replace(v, pairs=congruence(v.pairs, extended)) for name, v in globals_.views.items()}
    before = globals_.transform
    return replace(turned, views=views, transform=transform if before is None else transform @ before)


def _turned(globals_: Globals, inverse: Float64[Array, "K before"]) -> Globals:
    """Return the globals with w -> T'^-1 w, here or where the weights are."""
    held = globals_.held
    if held is None:
        weights = {name: transformed_weights(w, inverse) for name, w in globals_.weights.items()}
        return replace(globals_, weights=weights)
    return replace(globals_, held=replace(held, turn=inverse if held.turn is None else inverse @ held.turn))


def select_factors(globals_: Globals, kept: Integer[Array, " kept"]) -> Globals:
    """Return globals with some factors only, in the order given (if none, the strongest there is)."""
    k = globals_.n_factors
    if k and not len(kept):
        kept = np.array([int(globals_.strength.max(axis=0).argmax())])
    if np.array_equal(kept, np.arange(k)):
        return globals_
    pick = np.eye(k)[kept]
    extended = with_constant(pick)
    views = {
        name: replace(
            v,
            **{
                f: getattr(v, f)[kept]
                for f in ("alpha_shape", "alpha_rate", "theta_on", "theta_off", "off_variance")
            },
            pairs=congruence(v.pairs, extended),
        )
        for name, v in globals_.views.items()
    }
    scores = {
        f: getattr(globals_, f)[:, kept] for f in ("beta_shape", "beta_rate", "psi_on", "psi_off", "strength")
    }
    before = globals_.transform
    return replace(
        _turned(globals_, pick),
        views=views,
        second=globals_.second[np.ix_(kept, kept)],
        trial=None,
        rest=None,
        reached=None,
        past=(),
        transform=pick if before is None else pick @ before,
        numbers=None if globals_.numbers is None else globals_.numbers[kept],
        **scores,
    )


def shares(settings: Settings, globals_: Globals) -> Float64[Array, "M K"]:
    """Return the share of each view's sum of squares that each factor carries alone; of counts, information.

    A few counts far above all others would be the whole sum of squares.
    """
    scale = np.diag(globals_.second)
    rows = []
    for view in settings.views:
        weights, fixed = globals_.weights[view.name], globals_.fixed[view.name]
        count, squares = fixed.count.sum(axis=1), expected_weights(weights)[0] ** 2
        if view.bound == "local":
            known = settings.information(view.name, weights)[:, None]
            signal = count @ np.log1p(known * squares * scale)
            total = float(signal.sum()) + float(count.sum())
        else:
            signal = (count @ squares) * scale
            # On the scale of x, where an entry of a binary view is as good as one of variance 4.
            on_x = float(signal.sum()) + 4.0 * float(count.sum())
            total = float(fixed.squares.sum()) if view.likelihood == "gaussian" else on_x
        rows.append(signal / max(total, 1e-300))
    return np.stack(rows)
