"""Shears of smooth factors at the root: z_k + t z_j instead of z_k, w_j - t w_k instead of w_j.

Scores of a plain fit are uncorrelated, and courses need not be: when these open, sparse loadings and courses
ask for other factors, and passes go there slowly, since the entries hardly see a shear. Scores z taken as
known, the bound is, with courses integrated out and Q_k the form of the prior precision of factor k::

    J(A) = sum_k -a_k' Q_k a_k / 2 + N log |A| + sum_dj log p(c_dj),   a_k row k of z -> A z

with Q_k = z' (zeta_k I + s_k Phi T_k Phi')^-1 z, and of each loading the evidence of its spike and its slab,
given the value c that the entries favour, of precision tau_d z_j'z_j: a shear moves it by -t w_dk. Pairs take
turns; then each factor is scaled, r_k^2 = N / (Q_k)_kk, and its share s_k is put where that is best: passes
hardly move either. The next pass has the last word (`squarem`).

References
----------
Rockova and George (2016), Journal of the American Statistical Association 111, 1608-1622 (the same idea for
loadings alone).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy.linalg import solve
from scipy.optimize import minimize_scalar
from scipy.special import expit, logit

from factorflow.core.trees import replace
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.loadings.spike_slab import SpikeSlab
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.smooth.basis import Basis
from factorflow.models.sparse_gfa.smooth.courses import LEAST_NOISE, Courses
from factorflow.models.sparse_gfa.smooth.evidence import multiply_transposed_root, root_of
from factorflow.models.sparse_gfa.smooth.warping import moved_basis
from factorflow.models.sparse_gfa.state import Globals
from factorflow.models.sparse_gfa.weights import sum_pairs

SHEAR_ROUNDS = (1, 2, 4, 7)
"""Rounds of a stage in which factors are sheared."""
AMOUNTS = np.append(0.0, np.outer([1.0, -1.0], 0.4 * 2.0 ** (-0.5 * np.arange(16))))
"""Values of t that are tried."""
N_CYCLES = 3
"""Times that each pair is tried in a round."""
LEAST_GAIN = 1.0
"""Nats that a shear gains at least."""


@dataclass
class _Loadings:
    """Loadings of all views: what the entries favour, with which precision, and the prior of each."""

    centre: Float64[np.ndarray, "D K"]
    precision: Float64[np.ndarray, "D _"]
    alpha: Float64[np.ndarray, "D _"]
    odds: Float64[np.ndarray, "D _"]

    def logit(self) -> Float64[Array, "D K"]:
        """Return the log odds of the slabs."""
        p, alpha = self.precision, self.alpha
        return np.asarray(
            self.odds + 0.5 * np.log(alpha / (alpha + p)) + 0.5 * (p * self.centre) ** 2 / (alpha + p)
        )

    def slab_mean(self) -> Float64[Array, "D K"]:
        """Return the means of the slabs."""
        return np.asarray(self.centre * self.precision / (self.alpha + self.precision))

    def evidence(self) -> Float64[Array, " K"]:
        """Return sum_d log p(c_dk), but for constants."""
        each = np.logaddexp(0.0, self.logit()) - 0.5 * self.precision * self.centre**2
        return np.asarray(each.sum(axis=0))

    def column(self, k: int, features: Any = slice(None)) -> _Loadings:
        """Return the loadings of a factor, or some of them."""
        parts = (self.centre, self.precision, self.alpha, self.odds)
        return _Loadings(*(part[features, k][:, None] for part in parts))


def can_shear(settings: Settings) -> bool:
    """Return whether all that shears are judged by is known: of complete views with spikes and slabs."""
    complete = settings.smooth is not None and settings.smooth.complete
    return complete and all(type(view.prior) is SpikeSlab for view in settings.views)


def shear_factors(
    settings: Settings,
    globals_: Globals,
    products: Float64[Array, "K M"],
    second: Float64[Array, "K K"],
    curvature: Float64[Array, " K"],
) -> Globals | None:
    """Return the globals with smooth factors sheared and scaled; None: there is nothing to gain.

    Parameters
    ----------
    settings, globals_ : Settings, Globals
        Of the run; with the courses updated.
    products, second : array
        sum z phi', phi centred; sum E z z'.
    curvature : array
        J_kk of a row (`rows`): what it says of each course.
    """
    courses, names = globals_.courses, [view.name for view in settings.views]
    assert courses is not None
    assert settings.smooth is not None
    basis = moved_basis(settings.smooth.basis, courses.warp)
    smooth = [int(k) for k in np.flatnonzero(courses.is_smooth)]
    loadings = _loadings(settings, globals_, second)
    forms = {k: _form(basis, courses, k, products, second) for k in smooth}
    transform, gain = _best_shears(loadings, forms)
    if gain < LEAST_GAIN:
        return None
    cuts = np.cumsum([view.n_features for view in settings.views])[:-1]
    weights, views, scale = dict(globals_.weights), {}, np.ones(len(transform))
    for k in smooth:
        a = transform[k]
        sums = a @ products, float(a @ second @ a)
        courses, scale[k] = _scaled_course(basis, courses, k, sums, float(curvature[k]))
    inclusion, mean = (np.split(part, cuts) for part in (expit(loadings.logit()), loadings.slab_mean()))
    changes = (transform != np.eye(len(transform))).any(axis=0)
    for name, p, w in zip(names, inclusion, mean, strict=True):
        old, view = weights[name], globals_.views[name]
        assert old.inclusion is not None
        weights[name] = replace(
            old,
            mean=np.where(changes, w, old.mean) / scale,
            variance=old.variance / scale**2,
            inclusion=np.where(changes, p, old.inclusion),
        )
        pairs = sum_pairs(weights[name], settings.precision(name, weights[name]))
        views[name] = replace(view, alpha_rate=view.alpha_rate / scale**2, pairs=pairs)
    return replace(globals_, weights=weights, views=views, courses=courses)


def _form(
    basis: Basis, courses: Courses, k: int, products: Float64[Array, "K M"], second: Float64[Array, "K K"]
) -> Float64[Array, "K K"]:
    """Return Q_k."""
    noise = float(courses.noise[k])
    scaled = basis.scaled_covariance(courses.lengths[k], courses.sharing[k], courses.second)[0]
    root = root_of((1.0 - noise) * scaled)
    inner = courses.n_known * multiply_transposed_root(root, multiply_transposed_root(root, courses.second).T)
    turned = multiply_transposed_root(root, products.T)
    white = solve(inner + noise * np.eye(len(inner)), turned, assume_a="pos")
    return np.asarray((second - turned.T @ white) / noise)


def _scaled_course(
    basis: Basis, courses: Courses, k: int, sums: tuple[Float64[Array, " M"], float], curvature: float
) -> tuple[Courses, float]:
    """Return the courses with one as it follows from a factor, and the scale of the factor.

    Parameters
    ----------
    basis, courses, k : Basis, Courses, int
        The functions; the courses, and the number of the one.
    sums : array, float
        sum z phi and sum E z^2 of the factor.
    curvature : float
        J of a row; of the scaled factor J / scale^2.
    """
    n, (products, second) = courses.n_known, sums
    root = root_of(basis.scaled_covariance(courses.lengths[k], courses.sharing[k], courses.second)[0])
    values, vectors = np.linalg.eigh(
        n * multiply_transposed_root(root, multiply_transposed_root(root, courses.second).T)
    )
    values = np.maximum(values, 0.0)
    along = vectors.T @ multiply_transposed_root(root, products[:, None])[:, 0]

    def form(noise: float) -> float:
        return float((second - along**2 @ (1.0 / (values + noise / (1.0 - noise)))) / noise)

    def negative(log_odds: float) -> float:
        noise = float(expit(log_odds))
        ratio, left = (1.0 - noise) / noise, noise * form(noise)
        if left <= 0.0:  # sums of z phi are of a pass before those of z^2, which they may exceed by a little
            return float("inf")
        return 0.5 * float(n * np.log(left) + np.log1p(values * ratio).sum())

    ends = float(logit(LEAST_NOISE)), -float(logit(LEAST_NOISE))
    noise = float(expit(minimize_scalar(negative, bounds=ends, method="bounded").x))
    scale = float(np.sqrt(n / form(noise)))
    white = vectors @ (along / (values + noise / (1.0 - noise))) * scale / np.sqrt(1.0 - noise)
    variances = 1.0 / (1.0 + (1.0 - noise) * curvature / scale**2 * values)
    axes = np.sqrt(1.0 - noise) * (root[:, None] * vectors if root.ndim == 1 else root @ vectors)
    half = axes * np.sqrt(variances)
    covariance = half @ half.T
    of_course = {
        "mean": axes @ (vectors.T @ white),
        "covariance": covariance,
        "energy": variances.sum() + float(white @ white),
        "logdet": np.log(variances).sum(),
        "noise": noise,
        "average": float((covariance * courses.second).sum()),
    }
    columns = {name: getattr(courses, name).copy() for name in of_course}
    for name, value in of_course.items():
        columns[name][k] = value
    return replace(courses, **columns), scale


def _loadings(settings: Settings, globals_: Globals, second: Float64[Array, "K K"]) -> _Loadings:
    parts = []
    for view in settings.views:
        weights, mine = globals_.weights[view.name], globals_.views[view.name]
        precision = settings.precision(view.name, weights)[:, :1] * np.diag(second)
        odds = SpikeSlab().log_odds(weights, mine)
        alpha, odds = (np.broadcast_to(part, precision.shape) for part in (mine.alpha, odds))
        parts.append((weights.mean * (alpha + precision) / precision, precision, alpha, odds))
    return _Loadings(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _best_shears(
    loadings: _Loadings, forms: Mapping[int, Float64[Array, "K K"]]
) -> tuple[Float64[Array, "K K"], float]:
    """Return A and what it gains; the values that the entries favour are moved along in ``loadings``."""
    transform, total = np.eye(loadings.centre.shape[1]), 0.0
    for _ in range(N_CYCLES):
        before = total
        for k, j in permutations(forms, 2):
            own, other = forms[k] @ transform[k], transform[j]
            gains = -AMOUNTS * (other @ own) - 0.5 * AMOUNTS**2 * (other @ forms[k] @ other)
            included = loadings.column(k).logit()[:, 0] > 0.0
            moves = -AMOUNTS * loadings.column(k, included).slab_mean()
            target = loadings.column(j, included)
            evidence = replace(target, centre=target.centre + moves).evidence()
            gains += evidence - evidence[0]
            best = int(gains.argmax())
            if gains[best] > LEAST_GAIN:
                total += float(gains[best])
                transform[k] += AMOUNTS[best] * other
                loadings.centre[included, j] += moves[:, best]
        if total - before < LEAST_GAIN:
            break
    return transform, total
