"""Which feature set a factor is named by: assigned by evidence, not imposed.

With q(w, s) as it is, the best q(theta) of a class of loadings contributes log B(prior + n) - log B(prior), n
the expected numbers of loadings that are not 0 and that are. So from the inclusions alone, and without data::

    E_kt = sum over classes log B(prior + n_kt) - log B(prior)  -  the same with one class

is by how much the bound is higher where factor k has set t: two shares, inside and outside. Factors and sets
are matched to where the sum of E is largest; a factor that no set serves has none. The bound never falls.

A name holds where E is above `FeatureSets.evidence_needed`: of many sets one fits by chance. Inside a view
that a set has no members in nothing changes.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float64, Int64

from factorflow.core.trees import replace
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.loadings.informed import INSIDE, OUTSIDE
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Globals, replace_part
from factorflow.models.sparse_gfa.weights import Weights

WARM_UP = 3
"""Passes of the warm-up at most: it gives up factors that a set could still name."""
EARLY = 14
"""Sparse passes in which names are assigned after every third, and no factor is deleted: a weak one may be
worth nothing until it has a name."""
EVERY = 12
"""Passes between assignments afterwards. None follows a step that is still to be judged (`squarem`)."""
LEAST_SHARE = 1e-3
"""Share of a view that a factor explains whose name holds: loadings that explain nothing cost nothing."""


def naming_is_due(settings: Settings, count: int) -> bool:
    """Return whether a sparse pass, of this number, ends with an assignment of names."""
    return settings.sets is not None and count % (3 if count < EARLY else EVERY) == 1


def is_early(settings: Settings, count: int) -> bool:
    """Return whether no factor goes in a sparse pass of this number, since it may still be named."""
    return settings.sets is not None and count < EARLY


def evidence(settings: Settings, globals_: Globals) -> dict[str, Float64[Array, "K sets"]]:
    """Return E of each factor and set, by view with sets."""
    assert settings.sets is not None
    by_view = {}
    for view in settings.views:
        weights = globals_.weights[view.name]
        if view.name not in settings.sets.members or weights.inclusion is None:
            continue
        on, total = settings.sets.sums(view.name, weights.inclusion).T, weights.inclusion.sum(axis=0)[:, None]
        size, n_features = settings.sets.sizes(view.name).astype(np.float64), len(weights.mean)
        two = _term(on, size - on, INSIDE) + _term(total - on, n_features - size - total + on, OUTSIDE)
        by_view[view.name] = np.where(
            size > 0.0, two - _term(total, n_features - total, settings.priors.theta), 0.0
        )
    return by_view


def _term(on: Array, off: Array, prior: tuple[float, float]) -> Array:
    from scipy.special import betaln

    return betaln(prior[0] + on, prior[1] + off) - betaln(*prior)


def assign_names(settings: Settings, globals_: Globals) -> tuple[Globals, bool]:
    """Return the globals with the names of most evidence, and whether any changed."""
    from scipy.optimize import linear_sum_assignment

    evidence_by_view = evidence(settings, globals_)
    if not evidence_by_view or not globals_.n_factors:
        return globals_, False
    k = globals_.n_factors
    score = np.concatenate([sum(evidence_by_view.values()), np.zeros((k, k))], axis=1)
    rows, columns = linear_sum_assignment(score, maximize=True)
    n_sets = score.shape[1] - k
    sets = np.full(k, -1, np.int64)
    in_sets = columns < n_sets
    sets[rows[in_sets]] = columns[in_sets]
    if globals_.factors.sets is not None and np.array_equal(sets, globals_.factors.sets):
        return globals_, False
    weights, views = dict(globals_.weights), dict(globals_.views)
    for view in settings.views:
        if view.name not in evidence_by_view:
            continue
        mine = _with_classes(settings, view.name, weights[view.name], sets)
        weights[view.name], prior = mine, view.prior
        learned = prior.learn(settings.prior_constants(view), views[view.name], prior.sums(mine))
        learned = replace(
            learned, alpha_shape=views[view.name].alpha_shape, alpha_rate=views[view.name].alpha_rate
        )
        views[view.name] = learned
    named = replace_part(replace_part(globals_, "factors", sets=sets), "progress", iterates=())
    return replace(named, weights=weights, views=views), True


def _with_classes(settings: Settings, name: str, weights: Weights, sets: Int64[Array, " K"]) -> Weights:
    assert settings.sets is not None
    classes = np.zeros(weights.mean.shape, np.int8)
    for k, number in enumerate(sets):
        if number >= 0:
            classes[:, k] = settings.sets.inside(name, int(number), len(classes))
    return replace(weights, classes=classes)


def factor_labels(settings: Settings, globals_: Globals, numbered: list[str]) -> list[str]:
    """Return the names of the sets of factors whose names hold, of others their numbers."""
    if settings.sets is None or globals_.factors.sets is None:
        return numbered
    pairs = zip(numbered, globals_.factors.sets, holds(settings, globals_), strict=True)
    return [settings.sets.names[number] if has_set else own for own, number, has_set in pairs]


def own_evidence(settings: Settings, globals_: Globals) -> Float64[Array, "M K"]:
    """Return E of the set that each factor has, by view; 0 where it has none."""
    by_view = (
        evidence(settings, globals_)
        if settings.sets is not None and globals_.factors.sets is not None
        else {}
    )
    total = np.zeros((len(settings.views), globals_.n_factors))
    for m, view in enumerate(settings.views):
        if view.name in by_view and globals_.factors.sets is not None:
            own = by_view[view.name][np.arange(globals_.n_factors), globals_.factors.sets]
            total[m] = np.where(globals_.factors.sets >= 0, own, 0.0)
    return total


def holds(settings: Settings, globals_: Globals) -> Bool[Array, " K"]:
    """Return whether the name of each factor holds."""
    if settings.sets is None or globals_.factors.sets is None:
        return np.zeros(globals_.n_factors, bool)
    own = own_evidence(settings, globals_).sum(axis=0)
    strong = globals_.factors.strength.max(axis=0) >= max(settings.drop, LEAST_SHARE)
    return np.asarray((globals_.factors.sets >= 0) & strong & (own > settings.sets.evidence_needed))
