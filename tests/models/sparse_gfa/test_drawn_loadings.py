"""Draws of loadings: one against sums over a grid, several with their intercept, refusals, and fits."""

from __future__ import annotations

from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest

import factorflow
from factorflow.errors import InputError
from factorflow.kernels.linalg import triangle
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa.loadings import LoadingsPrior, get_prior
from factorflow.models.sparse_gfa.loadings.ard import ARD
from factorflow.models.sparse_gfa.loadings.base import _REGISTRY
from factorflow.models.sparse_gfa.loadings.drawn import Equations, LoadingParameters

N, ALPHA, THETA = 20_000, np.array([1.3, 0.7]), np.array([0.4, 0.6])
SHARES = np.random.default_rng(1).dirichlet(np.ones(10), 2).T
NAMES = (
    "nonnegative",
    "nonnegative(slab=half_normal)",
    "horseshoe",
    "adaptive_shrinkage",
    "informed",
    "guided",
)
CLASSES = np.tile(np.array([[1, 0]], np.int8), (N, 1))


def parameters(name: str) -> LoadingParameters:
    """Return parameters, as a prior has them."""
    shares = {"adaptive_shrinkage": SHARES, "informed": np.array([[0.8, 0.5]])}
    return LoadingParameters(ALPHA, THETA, shares.get(name))


def mixture(name: str, k: int) -> list[tuple[float, Any]]:
    """Return the components of the prior of a loading: share, and density; None: 0."""

    def normal(c: float) -> Any:
        return lambda w: np.sqrt(ALPHA[k] / 2.0 / np.pi) / c * np.exp(-0.5 * ALPHA[k] * (w / c) ** 2)

    if name == "horseshoe":
        c = 2.0 ** np.arange(-8.0, 9.0)
        return [
            (share, normal(one))
            for share, one in zip(c / (1 + c**2) / (c / (1 + c**2)).sum(), c, strict=True)
        ]
    if name == "adaptive_shrinkage":
        slabs = zip(SHARES[1:, k], 2.0 ** np.arange(-5.0, 4.0), strict=True)
        return [(SHARES[0, k], None), *((share, normal(c)) for share, c in slabs)]
    on = THETA[k]
    if name in ("informed", "guided"):
        on = {"informed": (0.8, THETA[1]), "guided": (1.0, 0.0)}[name][k]
        return [(1.0 - on, None), (on, normal(1.0))]
    if "half" in name:
        return [(1.0 - on, None), (on, lambda w: 2.0 * normal(1.0)(w) * (w > 0))]
    return [(1.0 - on, None), (on, lambda w: ALPHA[k] * np.exp(-ALPHA[k] * w) * (w > 0))]


def expected(name: str, square: Any, linear: Any) -> list[float]:
    """Return P(w not 0), E w, E w^2 of two loadings with this message, by sums over a grid."""
    grid = np.sinh(np.linspace(-11.0, 11.0, 2501)) / 3000.0
    grid = np.insert(grid[grid != 0.0], 1250, 0.0)
    width = np.gradient(grid)
    at_zero = np.flatnonzero(grid == 0.0)[0]
    mass = []
    for k in range(2):
        of_slab, of_zero = np.zeros(len(grid)), np.zeros(len(grid))
        for share, density in mixture(name, k):
            if density is None:
                of_zero[at_zero] += share
            else:
                of_slab += share * density(np.where(grid == 0.0, 1e-9, grid)) * width
        mass.append((of_zero, of_slab))
    x, y = np.meshgrid(grid, grid, indexing="ij")
    log = linear[0] * x + linear[1] * y
    log -= 0.5 * (square[0, 0] * x**2 + 2.0 * square[0, 1] * x * y + square[1, 1] * y**2)
    likelihood, total = np.exp(log - log.max()), np.zeros(7)
    for (i, first), (j, second) in product(enumerate(mass[0]), enumerate(mass[1])):
        joint = likelihood * np.outer(first, second)
        sums = [joint.sum(), i * joint.sum(), j * joint.sum()]
        total += [*sums, *((joint * part).sum() for part in (x, y, x**2, y**2))]
    return list(total[1:] / total[0])


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_loadings_have_their_conditional(name: str, backwards: bool) -> None:
    """Two loadings, the intercept integrated out: independent chains of N features of the same entries."""
    rng = np.random.default_rng(5)
    design = np.column_stack([rng.normal(size=(7, 2)), np.ones(7)])
    y, tau, lam, shift = design @ [0.9, -0.4, 0.5] + 0.8 * rng.normal(size=7), 1.4, 0.6, 0.3
    gram, cross = design.T @ design, design.T @ y
    rows, columns = triangle(3)
    equations = Equations(
        gram[rows, columns][None], np.tile(cross, (N, 1)), np.full(N, tau), np.array([lam]), np.full(N, shift)
    )
    prior, w = get_prior(name), np.zeros((N, 3))
    w[:, 0] = 0.1
    for _ in range(25 if name == "horseshoe" else 12):
        noise = rng.random((N, 2)), rng.normal(size=(N, 3))
        w = prior.draw_features(equations, parameters(name), CLASSES, noise, w, backwards=backwards)
    of_b = 1.0 / (tau * gram[2, 2] + lam)
    square = tau * gram[:2, :2] - tau**2 * of_b * np.outer(gram[2, :2], gram[2, :2])
    linear = tau * cross[:2] - tau * of_b * gram[2, :2] * (tau * cross[2] + lam * shift)
    moments = expected(name, square, linear)
    drawn = np.concatenate([w[:, :2] != 0.0, w[:, :2], w[:, :2] ** 2], axis=1)
    off = (drawn.mean(axis=0) - moments) / np.maximum(drawn.std(axis=0) / np.sqrt(N), 1e-6)
    assert np.abs(off).max() < 4.5, off
    left = w[:, 2] - of_b * (tau * (cross[2] - w[:, :2] @ gram[2, :2]) + lam * shift)
    assert abs(left.mean()) < 4.5 * np.sqrt(of_b / N)
    assert abs(left.var() / of_b - 1.0) < 4.5 * np.sqrt(2.0 / N)


@pytest.mark.parametrize("name", ["horseshoe", "adaptive_shrinkage"])
def test_components_of_loadings_have_their_probabilities(name: str) -> None:
    """Given a loading: by how much each component is likely to be where it came from."""
    prior: Any = get_prior(name)
    for value in (0.02, -1.5):
        w = np.full((N, 2), value)
        uniform = np.random.default_rng(3).random((N, 2))
        own = prior.components_of_draw(w, parameters(name), lambda u=uniform: u)
        for k in range(2):
            weight = [0.0 if f is None else share * f(np.array(value)) for share, f in mixture(name, k)]
            weight = np.array(weight) / np.sum(weight)
            found = np.bincount(own[:, k], minlength=len(weight)) / N
            assert (np.abs(found - weight) < 4.5 * np.sqrt(weight / N) + 1e-4).all()
        sums = prior.sums_of_draw(w, parameters(name), None, lambda u=uniform: u)
        scales = np.array([one.scale for one in prior.components])
        np.testing.assert_allclose(sums.squares, ((value / scales[own]) ** 2).sum(axis=0))
        assert (sums.included == N).all()
    if name == "adaptive_shrinkage":
        sums = prior.sums_of_draw(0.0 * w, parameters(name), None, lambda: uniform)
        assert not sums.included.any()


def test_a_prior_that_says_nothing_of_draws_is_refused(tmp_path: Any) -> None:
    class Fitted(ARD):
        name: ClassVar[str] = "fitted_only"
        odds = LoadingsPrior.odds

    data = factorflow.simulate("sparse_gfa", tmp_path / "d", 20, views={"a": ("gaussian", 6)}, n_factors=2)
    try:
        options: dict[str, Any] = {"n_factors": 2, "loadings": "fitted_only", "max_iter": 2}
        with pytest.raises(InputError, match="n_draws.*the prior of some loadings does not say how"):
            factorflow.fit(data, SparseGFA(**options, n_draws=2), progress=False)
        factorflow.fit(data, SparseGFA(**options), progress=False)
    finally:
        del _REGISTRY["fitted_only"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["nonnegative", "horseshoe", "adaptive_shrinkage"])
def test_intervals_of_loadings_hold(name: str, tmp_path: Any) -> None:
    """Draws of a fit: loadings that are not 0 lie in their intervals, up to the scale of a factor."""
    rng = np.random.default_rng(7)
    z, w = rng.exponential(size=(150, 2)), rng.exponential(size=(40, 2)) * (rng.random((40, 2)) < 0.5)
    data = factorflow.write_dataset(tmp_path / "d", {"y": z @ w.T + 0.5 * rng.normal(size=(150, 40))})
    scores = {"scores": "nonnegative"} if name == "nonnegative" else {}
    config = SparseGFA(n_factors=3, loadings=name, n_draws=80, n_burn_in=60, chains=1, **scores)
    posterior = factorflow.fit(data, config, progress=False)
    drawn = posterior.draws("loadings_y").values[0]
    assert drawn.shape[2] == 2
    assert (drawn.min() >= 0.0) == (name == "nonnegative")
    assert posterior.has("inclusion_y") == (name != "horseshoe")
    order = np.abs(np.corrcoef(drawn.mean(axis=0).T, w.T)[:2, 2:]).argmax(axis=0)
    assert sorted(order) == [0, 1]
    drawn = drawn[:, :, order]
    ratio = (drawn.mean(axis=0) * w).sum(axis=0) / (w**2).sum(axis=0)
    low, high = np.quantile(drawn / ratio, [0.025, 0.975], axis=0)
    assert ((low <= w) & (w <= high))[w > 0.2].mean() > 0.8
