"""Factors that start from feature sets: the first component of what is left of a set's features.

A factor of few features among many is hard to see among the components of all features, and easy among those
of its own. After the first sparse passes one more pass adds up products of the residuals of the members of
each set, in units of the noise. Without a factor their covariance has no eigenvalue above

    mu + TRACY_WIDOM s,  mu = r^2 / N,  s = r (1 / sqrt(N - 1) + 1 / sqrt(m))^(1/3) / N,
    r = sqrt(N - 1) + sqrt(m)

of N samples and m members (Johnstone 2001). Sets without a factor that have a larger one give a factor each,
the largest first, in place of factors without a set that are worth nothing. Only of Gaussian views.

References
----------
Johnstone (2001), Annals of Statistics 29, 295-327.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.kernels import device
from factorflow.models.contract import Array, Block, Info, Step, Sweep
from factorflow.models.sparse_gfa.change_of_basis import select_factors
from factorflow.models.sparse_gfa.entries import values_of
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.projection import project_scores
from factorflow.models.sparse_gfa.pseudo_data import PreparedGlobals, expected_scores
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.start.added_factor import with_added_factor, with_fresh_pairs
from factorflow.models.sparse_gfa.state import Change, Globals, Local
from factorflow.models.sparse_gfa.stored_scores import rotated_scores
from factorflow.models.sparse_gfa.weights import expected_weights

LARGEST = 300
"""Members of a set at most: larger sets are seen among all features."""
MOST_PRODUCTS = 1 << 22
"""Products of a view at most (32 MB): of more and larger sets only the smallest are looked at."""
TRACY_WIDOM = 3.3
"""Largest eigenvalues of noise are above this, in units of s, once in a thousand sets."""
ALIKE = 0.5
"""Cosine of loadings from which on two sets have the same factor."""


@dataclass(frozen=True)
class SetStats:
    """Products of residuals of the members of each set, one set behind the other, by view."""

    products: Mapping[str, Float64[np.ndarray, " P"]]


@dataclass(frozen=True)
class SetComponentsSweep(Sweep[Globals, Local, SetStats]):
    """One pass over the residuals of the members of each set."""

    settings: Settings
    name: ClassVar[str] = "sets"

    def prepare(self, globals_: Globals) -> PreparedGlobals:
        """Return the globals with tables that all blocks read."""
        return PreparedGlobals(self.settings, globals_)

    def map(
        self, block: Block, local: Local | None, prepared: PreparedGlobals, step: Step
    ) -> tuple[Local | None, SetStats]:
        """Add up products of the residuals of a block."""
        settings, globals_ = self.settings, prepared.globals_
        new = project_scores(settings, block, rotated_scores(local, globals_), prepared)
        extended = np.concatenate([expected_scores(new)[0], settings.design(block)], axis=1)
        products = {}
        for name in _views(settings):
            fixed, weights = globals_.fixed[name], globals_.weights[name]
            view = settings.view(name)
            scaled = gfa.centred(
                values_of(view, block, dense=True), view.level(fixed.reference), 1.0 / fixed.scale, np.float64
            )
            values = device.on_host(scaled)
            observed = values != 0.0
            loadings = np.concatenate([expected_weights(weights)[0], weights.coefficients], axis=1)
            size = np.sqrt(settings.precision(name, weights).mean(axis=1))
            residual = (values - extended @ loadings.T) * observed * size
            parts = [np.zeros(0)]
            parts += [(residual[:, m].T @ residual[:, m]).ravel() for _, m in _members(settings, name)]
            products[name] = np.concatenate(parts)
        return (new if settings.stateful else None), SetStats(products)

    def update(self, globals_: Globals, stats: SetStats, step: Step) -> tuple[Globals, Info]:
        """Give sets a factor whose first component no noise has."""
        return add_set_factors(self.settings, replace(globals_, change=Change()), stats), {}


def looks_at_sets(settings: Settings) -> bool:
    """Return whether sets of measurements may start factors: not where scores are smooth, or given."""
    if settings.sets is None or settings.smooth is not None or settings.start != "pca":
        return False
    return bool(_views(settings))


def _views(settings: Settings) -> list[str]:
    assert settings.sets is not None
    return [v.name for v in settings.views if v.is_gaussian and v.name in settings.sets.members]


def _members(settings: Settings, name: str) -> list[tuple[int, Array]]:
    """Return the sets that are looked at, by number, with their members."""
    assert settings.sets is not None
    candidates = [
        (t, np.array(m)) for t, m in enumerate(settings.sets.members[name]) if 3 <= len(m) <= LARGEST
    ]
    sizes = np.array([len(m) for _, m in candidates], np.int64)
    order = np.argsort(sizes, kind="stable")
    chosen = set(order[np.cumsum(sizes[order] ** 2) <= MOST_PRODUCTS].tolist())
    return [one for i, one in enumerate(candidates) if i in chosen]


def _candidates(settings: Settings, stats: SetStats) -> list[tuple[float, int, str, Array, Array]]:
    """Return excess, set, view, members and component of sets with more than noise, the largest first."""
    candidates, n = [], float(settings.n_rows)
    for name in _views(settings):
        position = 0
        for t, members in _members(settings, name):
            m = len(members)
            covariance = stats.products[name][position : position + m * m].reshape(m, m) / n
            position += m * m
            values, vectors = np.linalg.eigh(covariance)
            root = np.sqrt(max(n - 1.0, 1.0)), np.sqrt(m)
            edge = sum(root) ** 2 / n
            edge += TRACY_WIDOM * sum(root) * (1.0 / root[0] + 1.0 / root[1]) ** (1.0 / 3.0) / n
            if values[-1] > edge:
                component = vectors[:, -1] * np.sqrt(max(values[-1] - 1.0, 1e-12))
                candidates.append((float(values[-1] / edge), t, name, members, component))
    return sorted(candidates, key=lambda one: -one[0])


def add_set_factors(settings: Settings, globals_: Globals, stats: SetStats) -> Globals:
    """Return the globals with a factor more for each set that wants one, as far as there may be more."""
    if globals_.factors.sets is None or globals_.factors.numbers is not None:
        return globals_
    used, chosen = set(globals_.factors.sets.tolist()), list[tuple[int, str, Array, Array]]()
    accepted: list[tuple[str, Array]] = []
    for _, t, name, members, component in _candidates(settings, stats):
        full = np.zeros(settings.view(name).n_features)
        full[members] = component / np.linalg.norm(component)
        if t in used or any(view == name and abs(full @ other) > ALIKE for view, other in accepted):
            continue
        used.add(t)
        accepted.append((name, full))
        chosen.append((t, name, members, component))
    globals_, room = _with_room(settings, globals_, len(chosen))
    for number, name, members, component in chosen[:room]:
        full = np.zeros(settings.view(name).n_features)
        full[members] = component
        globals_ = with_added_factor(settings, globals_, {name: full}, number)
    return with_fresh_pairs(settings, globals_)


def _with_room(settings: Settings, globals_: Globals, n_new: int) -> tuple[Globals, int]:
    """Return the globals without factors worth nothing that have no set, as many as stand in the way."""
    room = settings.n_factors - globals_.n_factors
    if globals_.factors.worth is None or globals_.factors.sets is None or room >= n_new:
        return globals_, max(room, 0)
    free = np.flatnonzero((globals_.factors.sets < 0) & (globals_.factors.worth < 0.0))
    deleted = free[np.argsort(globals_.factors.worth[free], kind="stable")][: n_new - room]
    remaining = np.setdiff1d(np.arange(globals_.n_factors), deleted)
    return select_factors(globals_, remaining), room + len(deleted)
