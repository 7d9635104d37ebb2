"""What a fit records, against direct formulas: shares of variance, shared parameters, units, scores.

Fits run until they stand still, since a recorded parameter is that of the last update before the scores were
found once more; the formulas then hold to 1e-3 and mostly far better.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import factorflow
from factorflow.data import Holdout
from factorflow.models import SparseGFA

LIKELIHOODS = {"rna": "gaussian", "protein": "gaussian", "mutation": "bernoulli", "count": "poisson"}
WIDTHS = {"rna": 9, "protein": 6, "mutation": 8, "count": 7}
LINKS: dict[str, Callable[..., Any]] = {
    "gaussian": lambda x: x,
    "bernoulli": expit,
    "poisson": np.exp,
}
N_ROWS = 60
GROUPS = np.array(["a"] * 25 + ["b"] * 35)
GAUSSIAN = ("rna", "protein")

CASES: dict[str, dict[str, Any]] = {
    "gaussian": {"views": GAUSSIAN},
    "gaussian, grouped": {"views": GAUSSIAN, "grouped_noise": True},
    "factorised": {"views": GAUSSIAN, "scores_posterior": "factorised", "noise": "both"},
    "all kinds": {},
    "all kinds, grouped": {"scores": "ard"},
    "spike scores": {"views": GAUSSIAN, "scores": "spike"},
    "ungrouped prior": {"views": ("rna", "mutation"), "scores": "normal"},
    "not centred": {"views": GAUSSIAN, "intercepts": False, "center": False, "scale_views": False},
    "scaled features": {"views": GAUSSIAN, "scale_features": True},
}
GROUPED = {"gaussian, grouped", "all kinds, grouped", "spike scores", "ungrouped prior"}


def data(seed: int = 0) -> dict[str, Any]:
    """Return four views of one set of factors, a tenth missing, protein of some samples altogether."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((N_ROWS, 3)) * np.where(GROUPS == "a", 1.0, [[0.3], [1.0], [1.5]]).T
    out = {}
    for name, width in WIDTHS.items():
        w = rng.normal(0, 1.5, (width, 3)) * (rng.random((width, 3)) < 0.6)
        x = z @ w.T + rng.standard_normal(width)
        if LIKELIHOODS[name] == "gaussian":
            noise = rng.uniform(0.3, 1.2, width) * np.where(GROUPS == "a", 1.0, 2.0)[:, None]
            values = 3.0 + 4.0 * (x + noise * rng.standard_normal(x.shape))
        elif LIKELIHOODS[name] == "bernoulli":
            values = (rng.random(x.shape) < expit(x)).astype(float)
        else:
            values = rng.poisson(np.exp(0.5 * x + 0.5)).astype(float)
        values[rng.random(x.shape) < 0.1] = np.nan
        if name == "protein":
            values[10:14] = np.nan
        out[name] = values.astype(np.float32).astype(float)
    return out


DATA = data()


def write(path: Path, views: Any = WIDTHS, rows: Any = slice(None), **options: Any) -> Any:
    shown = {name: DATA[name][rows] for name in views}
    kinds = {name: LIKELIHOODS[name] for name in views}
    return factorflow.write_dataset(path, shown, kinds, block_rows=32, **options)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Any]:
    """The dataset without groups, and with them."""
    folder = tmp_path_factory.mktemp("data")
    return {g: write(folder / f"{g}.zarr", groups=list(GROUPS) if g else None) for g in (False, True)}


@pytest.fixture(scope="module")
def fitted(stores: dict[bool, Any]) -> Callable[..., Any]:
    """Return what fits a case, once, to where nothing moves any more."""
    made: dict[Any, Any] = {}

    def fit(case: str, holdout: float = 0.0) -> Any:
        if (case, holdout) not in made:
            options = {"n_factors": 3, "warmup_iter": 30, "max_iter": 250, "tol": 1e-8, "drop": 0.0}
            model = SparseGFA(**(options | CASES[case]))
            made[case, holdout] = factorflow.fit(stores[case in GROUPED], model, seed=1, holdout=holdout)
        return made[case, holdout]

    return fit


def values_of(posterior: Any, name: str) -> Any:
    return posterior.tree["variational"][name].values


def residuals(posterior: Any, view: str, factors: Any, shown: Any) -> Any:
    """Return squared errors of the plug-in predictions by some of the factors, 0 where missing."""
    z, w = values_of(posterior, "scores"), values_of(posterior, f"loadings_{view}")
    x = values_of(posterior, f"intercept_{view}") + z[:, factors] @ w[:, factors].T
    return np.nan_to_num((shown - LINKS[LIKELIHOODS[view]](x)) ** 2)


def direct_shares(posterior: Any, shown: Any, rows: Any) -> tuple[Any, Any]:
    """Return shares by view and factor, and by view in total, of some of the rows."""
    k = posterior.scores().shape[1]
    alone, together = [], []
    for view in posterior.views:
        y = shown[view]
        total = np.nansum(((y - np.nanmean(y, axis=0)) ** 2)[rows])
        none, everything = (
            residuals(posterior, view, factors, y)[rows].sum() for factors in ([], list(range(k)))
        )
        alone.append([(none - residuals(posterior, view, [j], y)[rows].sum()) / total for j in range(k)])
        together.append(1 - everything / total)
    return np.array(alone), np.array(together)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("case", "holdout"),
    [
        *(pytest.param(case, 0.0, marks=() if case == "all kinds" else pytest.mark.slow) for case in CASES),
        ("gaussian, grouped", 0.2),
        pytest.param("all kinds", 0.2, marks=pytest.mark.slow),
    ],
)
def test_shares_of_variance_are_those_of_the_residuals(fitted: Any, case: str, holdout: float) -> None:
    """By factor, in total, by group; of entries that the fit saw."""
    posterior = fitted(case, holdout)
    shown = {name: DATA[name].copy() for name in posterior.views}
    if holdout:
        for i, name in enumerate(WIDTHS):
            if name in shown:
                shown[name][Holdout(holdout, 1).mask(i, 0, *shown[name].shape)] = np.nan
    recorded, total = (
        values_of(posterior, "variance_explained"),
        values_of(posterior, "variance_explained_total"),
    )
    exact = set(posterior.views) <= set(GAUSSIAN) and "scores_posterior" not in CASES[case]
    tolerance = 1e-6 if exact and case != "spike scores" else 2e-3
    if recorded.ndim == 2:
        recorded, total = recorded[None], total[None]
        parts: list[Any] = [slice(None)]
    else:
        parts = [g == GROUPS for g in ("a", "b")]
    for i, rows in enumerate(parts):
        alone, together = direct_shares(posterior, shown, rows)
        np.testing.assert_allclose(recorded[i], alone, atol=tolerance)
        np.testing.assert_allclose(total[i], together, atol=tolerance)
    alone, together = direct_shares(posterior, shown, slice(None))
    assert (np.diff(alone.sum(axis=0)) < 1e-3).all()  # factors in order
    assert (together > 0.1).all()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["gaussian", "bernoulli"])
def test_a_view_that_a_group_lacks_has_no_share(tmp_path: Path, kind: str) -> None:
    """Not all of it is explained: nothing is known; where it is constant, there is nothing to explain."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(60, 2))
    x, y = (z @ rng.normal(size=(2, d)) + 0.5 * rng.normal(size=(60, d)) for d in (10, 8))
    in_a = np.arange(60)[:, None] < 30
    y = np.where(in_a, y > 0 if kind == "bernoulli" else y - y[:30].mean(axis=0), np.nan)
    views, kinds = {"x": x, "y": y}, {"y": kind}
    if kind == "gaussian":
        views["flat"], kinds["flat"] = np.where(in_a, y, 0.0), "gaussian"
    groups = ["A"] * 30 + ["B"] * 30
    data = factorflow.write_dataset(tmp_path / "d.zarr", views, kinds, groups=groups)
    for prior in ("ard", "normal"):  # shares by group are recorded, or computed
        model = SparseGFA(n_factors=2, scores=prior, max_iter=30)
        posterior = factorflow.fit(data, model)
        share = posterior.variance_explained(by="group")
        total = posterior.variance_explained_total(by="group")
        assert np.isnan(share.sel(view="y", group="B").values).all()
        assert np.isnan(float(total.sel(view="y", group="B")))
        known = total.sel(view=["x"]).values.ravel().tolist() + [float(total.sel(view="y", group="A"))]
        assert min(known) > 0.0
        assert max(known) < 1.0
        if kind == "gaussian":
            assert float(total.sel(view="flat", group="B")) == 0.0
            assert (share.sel(view="flat", group="B").values == 0.0).all()
    assert "nan" not in repr(posterior)


@pytest.mark.thorough
def test_shares_that_were_not_recorded_are_computed_from_predictions(fitted: Any) -> None:
    """By group after a fit without parameters of groups, and the other way round."""
    for case, by_group in (("ungrouped prior", True), ("all kinds, grouped", False)):
        posterior = fitted(case)
        alone = posterior.variance_explained(by="group" if by_group else None)
        together = posterior.variance_explained_total(by="group" if by_group else None)
        for view in posterior.views:
            y = DATA[view]
            mean = np.nanmean(y, axis=0)
            predicted = posterior.predict(view)["mean"].values
            for group in ("a", "b") if by_group else ("",):
                rows = GROUPS == group if by_group else np.ones(N_ROWS, bool)
                where = {"view": view} | ({"group": group} if by_group else {})
                total = np.nansum((y - mean)[rows] ** 2)
                error = np.nansum((y - predicted)[rows] ** 2)
                assert float(together.sel(where)) == pytest.approx(1 - error / total, rel=1e-9)
                if LIKELIHOODS[view] == "gaussian":
                    none = residuals(posterior, view, [], y)[rows].sum()
                    for k, factor in enumerate(posterior.factors):
                        one = residuals(posterior, view, [k], y)[rows].sum()
                        found = float(alone.sel(factor=factor, **where))
                        assert found == pytest.approx((none - one) / total, rel=1e-9)


def test_shares_by_group_of_recorded_ones_are_the_recorded_ones(fitted: Any) -> None:
    posterior = fitted("gaussian, grouped")
    by_group = posterior.variance_explained(by="group")
    np.testing.assert_array_equal(by_group.values, values_of(posterior, "variance_explained"))
    assert list(by_group["group"].values) == ["a", "b"]


# Parameters that features, samples and groups share


def second_moments(posterior: Any, view: str) -> tuple[Any, Any]:
    """Return sum_d gamma and sum_d E[w^2] on the model's scale, (K,) each."""
    scale = values_of(posterior, f"scale_{view}")[:, None]
    w, v = values_of(posterior, f"loadings_{view}"), values_of(posterior, f"loadings_variance_{view}")
    return values_of(posterior, f"inclusion_{view}").sum(0), ((w**2 + v) / scale**2).sum(0)


@pytest.mark.parametrize("case", ["gaussian", "all kinds, grouped", "scaled features"])
def test_parameters_of_loadings_follow_from_the_loadings(fitted: Any, case: str) -> None:
    """E[alpha] = (1 + n_k) / (size^2 + sum E[w^2]), E[theta] = (1 + n_k) / (2 + D); intercepts alike."""
    posterior = fitted(case)
    for m, view in enumerate(posterior.views):
        included, squares = second_moments(posterior, view)
        size = {"mutation": 1.0, "count": 0.01}.get(view, 0.1)  # scale of the Cauchy prior of a loading
        alpha = (0.5 + included / 2) / (0.5 * size**2 + squares / 2)
        np.testing.assert_allclose(values_of(posterior, "alpha")[m], alpha, rtol=1e-6)
        theta = (1 + included) / (2 + WIDTHS[view])
        np.testing.assert_allclose(values_of(posterior, "theta")[m], theta, rtol=1e-6)
        scale = values_of(posterior, f"scale_{view}")
        b = values_of(posterior, f"intercept_{view}") / scale
        v = values_of(posterior, f"intercept_variance_{view}") / scale**2
        mean, precision = (values_of(posterior, f"intercept_{x}")[m] for x in ("mean", "precision"))
        of_mean = 1e-6 + len(b) * precision
        assert mean == pytest.approx(precision * b.sum() / of_mean, rel=1e-4)
        spread = ((b - mean) ** 2 + v).sum() + len(b) / of_mean
        assert precision == pytest.approx((1e-3 + len(b) / 2) / (1e-3 + spread / 2), rel=1e-4)


def test_binary_data_alone_have_an_informative_prior_of_alpha(stores: Any) -> None:
    model = SparseGFA(n_factors=2, views=("mutation",), warmup_iter=5, max_iter=5, drop=0.0)
    posterior = factorflow.fit(stores[False], model)
    included, squares = second_moments(posterior, "mutation")
    expected = (10 + included / 2) / (10 + squares / 2)
    np.testing.assert_allclose(values_of(posterior, "alpha")[0], expected, rtol=1e-6)


def spread_of_x(posterior: Any, view: str) -> tuple[Any, Any]:
    """Return E[x] and Var x of every entry in data units, for scores independent in q."""
    z, zz = values_of(posterior, "scores"), values_of(posterior, "scores_variance")
    w, ww = values_of(posterior, f"loadings_{view}"), values_of(posterior, f"loadings_variance_{view}")
    variance = zz @ (w**2 + ww).T + z**2 @ ww.T + values_of(posterior, f"intercept_variance_{view}")
    return z @ w.T + values_of(posterior, f"intercept_{view}"), variance


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["factorised", "spike scores"])
def test_noise_precisions_follow_from_the_residuals(fitted: Any, case: str) -> None:
    """Of samples rho = (1e-3 + n / 2) / (1e-3 + sum of E[residual^2] / 2).

    Of features tau has a prior that is learned: one shape, and one rate, or rates that go with the variances.
    """
    posterior = fitted(case)
    both = case == "factorised"
    for m, view in enumerate(GAUSSIAN):
        x, v = spread_of_x(posterior, view)
        scale, seen = values_of(posterior, f"scale_{view}"), ~np.isnan(DATA[view])
        squares = np.where(seen, np.nan_to_num(DATA[view] - x) ** 2 + v, 0.0) / scale**2
        rho = values_of(posterior, "sample_precision")[:, m, None] if both else np.ones((N_ROWS, 1))
        found = values_of(posterior, f"noise_precision_{view}")
        shape = values_of(posterior, f"noise_degrees_{view}") / 2
        np.testing.assert_allclose(shape - seen.sum(0) / 2, (shape - seen.sum(0) / 2)[0], rtol=1e-6)
        rate = shape / (found * scale**2) - (rho * squares).sum(0) / 2
        spread = rate / np.nanvar(DATA[view], axis=0)
        noise = 2e-3 * shape / (found * scale**2)
        assert (rate > -noise).all()
        assert min(np.ptp(rate) / noise.mean(), np.ptp(spread) / spread.mean() / 2e-3) < 8.0
        if both:
            residual = (squares * found * scale**2).sum(1)
            expected = (1e-3 + seen.sum(1) / 2) / (1e-3 + residual / 2)
            np.testing.assert_allclose(rho[:, 0], expected, rtol=2e-3)


def test_noise_of_groups_is_that_of_their_samples(fitted: Any) -> None:
    """Group b has twice the standard deviation."""
    posterior = fitted("gaussian, grouped")
    for view in GAUSSIAN:
        tau, x = values_of(posterior, f"noise_precision_{view}"), spread_of_x(posterior, view)[0]
        for g, group in enumerate(("a", "b")):
            error = (DATA[view] - x)[group == GROUPS]
            ratio = tau[g] * np.nanmean(error**2, axis=0)  # below 1: the fit has followed the noise
            assert (ratio < 1.5).all()
            assert np.median(ratio) > 0.5
        assert np.median(tau[0] / tau[1]) == pytest.approx(4.0, rel=0.5)


def test_precisions_of_scores_follow_from_the_scores(fitted: Any) -> None:
    """E[beta] = (1e-3 + n / 2) / (1e-3 + sum E[z^2] / 2) of each group; n and psi by inclusion of spikes."""
    for case in ("all kinds, grouped", "spike scores"):
        posterior = fitted(case)
        second = values_of(posterior, "scores") ** 2 + values_of(posterior, "scores_variance")
        included = np.ones(second.shape)
        if case == "spike scores":
            included = values_of(posterior, "scores_inclusion")
        for g, group in enumerate(("a", "b")):
            rows = group == GROUPS
            n = included[rows].sum(0)
            beta = (1e-3 + n / 2) / (1e-3 + second[rows].sum(0) / 2)
            np.testing.assert_allclose(values_of(posterior, "score_precision")[g], beta, rtol=1e-2)
            if case == "spike scores":
                psi = (1 + n) / (2 + rows.sum())
                np.testing.assert_allclose(values_of(posterior, "score_theta")[g], psi, rtol=2e-3)


# Units


def test_scales_are_standard_deviations(fitted: Any) -> None:
    """Of a view's entries about the means of their features, of each feature, or 1."""
    for view in GAUSSIAN:
        y = DATA[view]
        overall = np.sqrt(np.nansum((y - np.nanmean(y, axis=0)) ** 2) / np.isfinite(y).sum())
        np.testing.assert_allclose(values_of(fitted("gaussian"), f"scale_{view}"), overall, rtol=1e-5)
        scaled = values_of(fitted("scaled features"), f"scale_{view}")
        np.testing.assert_allclose(scaled, np.nanstd(y, axis=0), rtol=1e-5)
        assert (values_of(fitted("not centred"), f"scale_{view}") == 1.0).all()
        assert (values_of(fitted("not centred"), f"intercept_{view}") == 0.0).all()
    for view in ("mutation", "count"):
        assert (values_of(fitted("all kinds"), f"scale_{view}") == 1.0).all()


def test_centring_without_intercepts_subtracts_the_means(stores: Any) -> None:
    options = {"views": ("rna",), "intercepts": False, "n_factors": 2, "warmup_iter": 3, "max_iter": 3}
    posterior = factorflow.fit(stores[False], SparseGFA(**options))
    np.testing.assert_allclose(
        values_of(posterior, "intercept_rna"), np.nanmean(DATA["rna"], axis=0), rtol=1e-6
    )
    assert (values_of(posterior, "intercept_variance_rna") == 0.0).all()


@pytest.mark.thorough
@pytest.mark.parametrize("by_feature", [False, True])
def test_results_follow_the_units_of_the_data(tmp_path: Path, by_feature: bool) -> None:
    """Data in other units: the same scores and inclusions; all else in the new units."""
    options = {"n_factors": 3, "warmup_iter": 8, "max_iter": 15, "scale_features": by_feature, "drop": 0.0}
    unit = 2.0 ** np.arange(-4, 5) if by_feature else np.full(9, 32.0)  # powers of two: exact in float32
    plain, other = (
        factorflow.fit(
            factorflow.write_dataset(
                tmp_path / f"{name}.zarr", {"rna": DATA["rna"] * units, "mutation": DATA["mutation"]},
                {"rna": "gaussian", "mutation": "bernoulli"},
            ),
            SparseGFA(**options),
        )
        for name, units in (("plain", 1.0), ("other", unit))
    )  # fmt: skip
    powers = {
        "scores": 0, "inclusion_rna": 0, "loadings_mutation": 0, "alpha": 0, "theta": 0,
        "loadings_rna": 1, "loadings_variance_rna": 2, "scale_rna": 1, "intercept_rna": 1,
        "intercept_variance_rna": 2, "noise_precision_rna": -2, "variance_explained": 0,
    }  # fmt: skip
    by_alpha = [np.argsort(values_of(p, "alpha")[0]) for p in (plain, other)]
    for name, power in powers.items():
        if name == "variance_explained" and by_feature:
            continue  # a share of the sum of squares in data units, by which factors are put in order
        before, after = values_of(plain, name), values_of(other, name)
        if "factor" in (dims := plain.tree["variational"][name].dims):
            axis = dims.index("factor")
            before, after = np.take(before, by_alpha[0], axis), np.take(after, by_alpha[1], axis)
        factor = unit**power if power else 1.0
        expected = before * (factor[:, None] if power and before.ndim == 2 else factor)
        np.testing.assert_allclose(after, expected, rtol=1e-6, atol=1e-9, err_msg=name)


def test_the_largest_loading_of_a_factor_is_positive_on_the_models_scale(fitted: Any) -> None:
    for case in ("all kinds", "gaussian", "scaled features"):
        posterior = fitted(case)
        stacked = np.concatenate(
            [
                values_of(posterior, f"loadings_{v}") / values_of(posterior, f"scale_{v}")[:, None]
                for v in posterior.views
            ]
        )
        largest = stacked[np.abs(stacked).argmax(axis=0), np.arange(stacked.shape[1])]
        assert (largest[:2] > 0).all()
        assert (largest >= 0).all()  # the last may be empty


# Scores, of the samples that were fitted and of others


def direct_scores(posterior: Any, shown: Any, prior: Any) -> tuple[Any, Any]:
    """Return E[z] and Var z given q(w), q(b) and noise, for every row: Gaussian regression on pseudo-data.

    Those of entries that are not Gaussian have the precision -E d2 log p, and with it the slope E d log p, of
    x ~ N(m, v), by many nodes; found by going round until they settle.
    """
    k = posterior.scores().shape[1]
    n_rows = len(next(iter(shown.values())))
    mean, variance = np.zeros((n_rows, k)), np.zeros((n_rows, k))
    nodes, share = np.polynomial.hermite_e.hermegauss(60)
    share = share / share.sum()
    for n in range(n_rows):
        m, c = np.zeros(k), np.eye(k)
        for _ in range(400):
            precision, linear = np.diag(prior[n]), np.zeros(k)
            for view in shown:
                y, kind = shown[view][n], LIKELIHOODS[view]
                seen = ~np.isnan(y)
                w = values_of(posterior, f"loadings_{view}")
                ww = values_of(posterior, f"loadings_variance_{view}")
                b = values_of(posterior, f"intercept_{view}")
                second = np.einsum("di,dj->dij", w, w) + np.einsum("di,ij->dij", ww, np.eye(k))
                if kind == "gaussian":
                    u = values_of(posterior, f"noise_precision_{view}")
                    r = u * y
                else:
                    x, v = b + w @ m, values_of(posterior, f"intercept_variance_{view}")
                    v = v + np.einsum("dij,ij->d", second, c) + ww @ m**2
                    at = x[:, None] + np.sqrt(v)[:, None] * nodes
                    rate = LINKS[kind](at)
                    u = (rate * (1.0 - rate) if kind == "bernoulli" else rate) @ share
                    r = u * x + y - rate @ share
                precision = precision + np.einsum("d,dij->ij", u[seen], second[seen])
                linear = linear + (r - u * b)[seen] @ w[seen]
            c = np.linalg.inv(precision)
            after = 0.5 * (m + c @ linear)
            settled = np.abs(after - m).max() < 1e-9
            m = after
            if settled:
                break
        mean[n], variance[n] = m, np.diag(c)
    return mean, variance


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["gaussian", "all kinds"])
def test_scores_are_the_regression_on_the_loadings(fitted: Any, case: str) -> None:
    """Of the fitted samples, with a view of some missing."""
    posterior, rows = fitted(case), np.array([0, 9, 11, 33, 59])
    shown = {view: DATA[view][rows] for view in posterior.views}
    mean, variance = direct_scores(posterior, shown, np.ones((len(rows), 3)))
    np.testing.assert_allclose(values_of(posterior, "scores")[rows], mean, atol=1e-3)
    np.testing.assert_allclose(values_of(posterior, "scores_variance")[rows], variance, atol=1e-3)


@pytest.mark.parametrize("case", [*CASES])
def test_projected_training_samples_get_their_scores(fitted: Any, stores: Any, case: str) -> None:
    posterior = fitted(case)
    projected = posterior.project(stores[case in GROUPED], iterations=400)
    tolerance = 2e-2 if case in {"spike scores", "all kinds, grouped"} else 1e-3
    for name in ("scores", "scores_variance"):
        found = values_of(projected, name)
        expected = values_of(posterior, name)
        np.testing.assert_allclose(found, expected, rtol=tolerance / 2, atol=tolerance, err_msg=name)
    for view in posterior.views:
        for part in ("mean", "sd"):
            one, two = (p.predict(view)[part].values for p in (posterior, projected))
            np.testing.assert_allclose(two, one, rtol=1e-2, atol=10 * tolerance)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("case", "views"),
    [("gaussian", ("protein",)), ("all kinds", ("rna", "count")), ("all kinds", ("mutation",))],
)
def test_projected_samples_that_lack_views_and_features(
    fitted: Any, tmp_path: Path, case: str, views: Any
) -> None:
    """What they have decides alone; what they lack is predicted from it."""
    posterior, rows = fitted(case), np.r_[0:9, 15]
    few = {view: np.arange(WIDTHS[view])[1:] for view in views}
    new = factorflow.write_dataset(
        tmp_path / "new.zarr",
        {view: DATA[view][rows][:, few[view]] for view in views},
        {view: LIKELIHOODS[view] for view in views},
        features={view: posterior.features(view)[few[view]] for view in views},
    )
    projected = posterior.project(new, iterations=200)
    shown = {view: DATA[view][rows].copy() for view in views}
    for view in views:
        shown[view][:, 0] = np.nan
    mean, variance = direct_scores(posterior, shown, np.ones((len(rows), 3)))
    np.testing.assert_allclose(values_of(projected, "scores"), mean, atol=1e-3)
    np.testing.assert_allclose(values_of(projected, "scores_variance"), variance, atol=1e-3)
    missing = next(view for view in posterior.views if view not in views)
    predicted = projected.predict(missing)["mean"].values
    assert predicted.shape == (len(rows), WIDTHS[missing])
    if LIKELIHOODS[missing] == "gaussian":
        w, b = values_of(posterior, f"loadings_{missing}"), values_of(posterior, f"intercept_{missing}")
        np.testing.assert_allclose(predicted, b + values_of(projected, "scores") @ w.T, rtol=1e-6)
