"""Likelihoods that users choose: what they find that the default does not, scores, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import factorflow
from factorflow.api import Posterior
from factorflow.errors import InputError
from factorflow.likelihoods import get_likelihood
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa.start.warm_start import _in_units
from factorflow.models.sparse_gfa.weights import Weights
from factorflow.posterior.prediction import Predictor

TRIALS = 12


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    """Return scores, measurements with heavy tails, and successes of some trials."""
    rng = np.random.default_rng(4)
    z, w = rng.standard_normal((240, 3)), rng.standard_normal((40, 3)) * (rng.random((40, 3)) < 0.5)
    x = z @ w.T
    y = 1.0 + 3.0 * (x + 0.5 * rng.standard_t(4, x.shape))
    wild = rng.random(x.shape) < 0.02
    y = np.where(wild, y + 200.0 * rng.standard_normal(x.shape), y)
    return {"z": z, "x": x, "y": y, "n": rng.binomial(TRIALS, 1 / (1 + np.exp(-x))).astype(float)}


@pytest.fixture(scope="module")
def dataset(truth: dict[str, Any], tmp_path_factory: Any) -> Any:
    views = {"y": truth["y"], "n": truth["n"], "two": (truth["n"] > 6).astype(float)}
    kinds = {"y": "gaussian", "n": "poisson", "two": "bernoulli"}
    return factorflow.write_dataset(tmp_path_factory.mktemp("d") / "d", views, kinds, block_rows=64)


def fitted(dataset: Any, view: str, **options: Any) -> Posterior:
    options = {"n_factors": 6, "views": (view,), **options}
    return factorflow.fit(dataset, SparseGFA(**options), holdout=0.1, progress=False)


def worst(posterior: Posterior, z: Any) -> float:
    """Return the lowest correlation of a true factor with the nearest one found."""
    found = posterior.scores().to_numpy()
    if not found.shape[1]:
        return 0.0
    return float(np.abs(np.corrcoef(found.T, z.T)[: found.shape[1], found.shape[1] :]).max(axis=0).min())


def test_heavy_tails_hide_no_factors(dataset: Any, truth: dict[str, Any]) -> None:
    posterior, normal = fitted(dataset, "y", likelihoods={"y": "student_t"}), fitted(dataset, "y")
    assert len(posterior.factors) == 3
    assert worst(posterior, truth["z"]) > 0.9 > worst(normal, truth["z"])
    scores, other = (p.holdout_scores()["log_likelihood"]["y"] for p in (posterior, normal))
    assert scores > other + 0.5
    assert not {"outlier", "baseline"} & {f.kind for f in posterior.findings}
    # The scale of the noise in data units, inflated by what lies far out
    assert posterior.tree["variational"]["noise_scale_y"].values == pytest.approx(1.6, rel=0.4)


def test_entries_far_out_do_not_hide_the_start(truth: dict[str, Any], tmp_path: Path) -> None:
    """One in twenty, 400 times as wide as the noise: the first spread of a feature is theirs alone."""
    rng = np.random.default_rng(0)
    y = truth["x"] + 0.5 * rng.standard_normal(truth["x"].shape)
    y += 200.0 * rng.standard_normal(y.shape) * (rng.random(y.shape) < 0.05)
    data = factorflow.write_dataset(tmp_path / "d", {"y": y}, {"y": "gaussian"})
    posterior = factorflow.fit(data, SparseGFA(n_factors=6, likelihoods="student_t"), progress=False)
    assert len(posterior.factors) == 3
    assert worst(posterior, truth["z"]) > 0.9


def test_heavy_tails_take_the_bound(dataset: Any) -> None:
    """Log p is not concave: no tangent."""
    model = SparseGFA(n_factors=2, likelihoods="student_t", views=("y",)).build(dataset.meta(("y",)))
    assert model.settings.views[0].bounded
    assert not model.settings.tangent


def test_draws_have_the_density_of_the_likelihood(dataset: Any, truth: dict[str, Any]) -> None:
    posterior = fitted(dataset, "y", likelihoods="student_t")
    drawn = posterior.sample(2, seed=1)
    found = drawn.to_arviz("y", start=0, stop=5)["log_likelihood"]["y"].to_numpy().reshape(2, -1)
    group = drawn.tree["posterior"]
    x = np.einsum("mik,mdk->mid", group["scores"].values[0, :, :5], group["loadings_y"].values[0])
    x = x + group["intercept_y"].values[0][:, None]
    scale = posterior.tree["variational"]["noise_scale_y"].values
    hidden = factorflow.data.Holdout.of(posterior.run, None)
    seen = ~np.isnan(dataset.block(0, ["y"], hidden).data["y"][:5])
    expected = stats.t.logpdf(np.asarray(truth["y"][:5], np.float32), 4, x, scale)
    np.testing.assert_allclose(np.sort(found, axis=1), np.sort(expected[:, seen], axis=1), rtol=1e-4)


def test_tails_are_on_their_sides(dataset: Any) -> None:
    predictor_ = Predictor(fitted(dataset, "y", likelihoods="student_t"), "y")
    rows = np.arange(4)
    mean, sd = predictor_(rows)
    low, high, at = predictor_.tails(rows, mean - 2.0 * sd)
    assert (low < 0.1).all()
    assert (high > 0.9).all()
    assert not at.any()


@pytest.mark.parametrize("name", ["student_t", "negative_binomial"])
def test_a_warm_start_keeps_nuisance_parameters_in_data_units(name: str) -> None:
    rng = np.random.default_rng(0)
    density = get_likelihood(name)
    ratio = np.full(5, 2.5) if name == "student_t" else np.ones(5)
    old = Weights(
        rng.normal(size=(5, 2)), np.ones((5, 2)), None, np.zeros((5, 1)), np.ones((5, 1)), None, None,
        rng.normal(size=(5, 1)), scaled_square=rng.random((5, 2)), entropies=np.zeros((5, 2)),
    )  # fmt: skip
    before, now = 3.0 * ratio, np.full(5, 3.0)
    new = _in_units(density, old, before, now, np.zeros(5))
    for key in density.phi_variables:
        np.testing.assert_allclose(
            density.report_phi(new.phi.T, now)[key], density.report_phi(old.phi.T, before)[key]
        )
    assert old.scaled_square is not None
    np.testing.assert_allclose(new.scaled_square, old.scaled_square * ratio[:, None] ** 2)


def test_trials_are_taken_into_account(dataset: Any, truth: dict[str, Any]) -> None:
    posterior, poisson = fitted(dataset, "n", likelihoods=f"binomial(trials={TRIALS})"), fitted(dataset, "n")
    assert len(posterior.factors) == 3
    assert worst(posterior, truth["z"]) > 0.95
    scores, other = (p.holdout_scores().loc["n"] for p in (posterior, poisson))
    assert scores["log_likelihood"] > other["log_likelihood"] + 0.1
    assert scores["deviance_explained"] > 0.5
    slope = np.polyfit(truth["x"].ravel(), predictor(posterior).ravel(), 1)[0]
    assert slope == pytest.approx(1.0, abs=0.1)
    mean = posterior.predict("n")["mean"].to_numpy()
    assert 0.0 < mean.min() < mean.max() < TRIALS
    assert posterior.summary()["views"]["n"]["likelihood"] == f"binomial(trials={TRIALS})"


def test_one_trial_is_a_binary_entry(tmp_path: Path) -> None:
    """Genotypes have two, and no made-up rows of a plan have more."""
    y = np.random.default_rng(0).binomial(1, 0.3, (40, 12)).astype(float)
    fits = {}
    for kind, likelihood in (
        ("bernoulli", None),
        ("poisson", "binomial(trials=1)"),
        ("poisson", "binomial(trials=2)"),
    ):
        data = factorflow.write_dataset(tmp_path / kind, {"y": y}, {"y": kind}, overwrite=True)
        fits[likelihood] = factorflow.fit(
            data, SparseGFA(n_factors=2, drop=0, likelihoods=likelihood), progress=False
        )
    binary, one, two = (fit.predict("y")["mean"].to_numpy() for fit in fits.values())
    np.testing.assert_allclose(one.mean(axis=0), binary.mean(axis=0), atol=0.02)
    assert two.max() < 1.2


def test_new_samples_with_more_successes_than_trials(dataset: Any, tmp_path: Path) -> None:
    posterior = fitted(dataset, "n", likelihoods=f"binomial(trials={TRIALS})", max_iter=3)
    y = np.random.default_rng(0).integers(0, TRIALS + 1, (9, 40)).astype(float)
    y[3, 2] = TRIALS + 1
    new = factorflow.write_dataset(tmp_path / "n", {"n": y}, {"n": "poisson"})
    with pytest.raises(
        InputError, match="view n, feature feature2, with an entry of 13: expected entries of at most 12"
    ):
        posterior.project(new)


def predictor(posterior: Posterior) -> Any:
    return posterior.scores().to_numpy() @ posterior.loadings("n").to_numpy().T


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("view", "likelihood"),
    [("y", "student_t"), ("n", "poisson"), ("n", "negative_binomial"), ("n", f"binomial(trials={TRIALS})")],
)
def test_scores_and_intervals_are_of_the_likelihood(dataset: Any, view: str, likelihood: str) -> None:
    """Hidden entries: their log density by a fine grid in x; the shares inside intervals."""
    posterior = fitted(dataset, view, likelihoods={view: likelihood})
    group = posterior.tree["variational"]
    z, v = group["scores"].values, group["scores_variance"].values
    w, spread = group[f"loadings_{view}"].values, group[f"loadings_variance_{view}"].values
    m = z @ w.T + group[f"intercept_{view}"].values
    variance = (z**2 + v) @ spread.T + v @ (w**2).T + group[f"intercept_variance_{view}"].values
    holdout = factorflow.data.Holdout.of(posterior.run, None)
    total, n, inside = 0.0, 0, 0
    found = posterior.predict(view, interval=0.9)
    low, high = found["lower"].to_numpy(), found["upper"].to_numpy()
    grid = np.linspace(-6.0, 6.0, 301)
    for number in range(dataset.n_blocks):
        block = dataset.block(number, [view], holdout)
        whole = dataset.block(number, [view]).data[view]
        for row, feature in zip(*block.hidden[view], strict=True):
            at = (block.start + row, feature)
            x, y = m[at] + np.sqrt(variance[at]) * grid, float(whole[row, feature])
            density = {
                "student_t": lambda x, y, d: stats.t.pdf(y, 4, x, group["noise_scale_y"].values[d]),
                "poisson": lambda x, y, d: stats.poisson.pmf(y, np.exp(x)),
                "negative_binomial": lambda x, y, d: stats.nbinom.pmf(
                    y,
                    1 / group["dispersion_n"].values[d],
                    1 / (1 + np.exp(x) * group["dispersion_n"].values[d]),
                ),
            }.get(likelihood, lambda x, y, d: stats.binom.pmf(y, TRIALS, 1 / (1 + np.exp(-x))))
            share = stats.norm.pdf(grid) / stats.norm.pdf(grid).sum()
            total += np.log(share @ density(x, y, feature))
            inside += low[at] <= y <= high[at]
            n += 1
    assert n > 500
    assert posterior.holdout_scores()["log_likelihood"][view] == pytest.approx(total / n, rel=1e-3)
    assert 0.86 < inside / n < 0.99  # ends of discrete intervals are inclusive


def test_student_t_projects(dataset: Any, truth: dict[str, Any], tmp_path: Path) -> None:
    posterior = fitted(dataset, "y", likelihoods="student_t")
    assert worst(posterior, truth["z"]) > 0.9
    new = factorflow.write_dataset(tmp_path / "n", {"y": truth["y"][:50]}, {"y": "gaussian"})
    found = posterior.project(new).scores().to_numpy()
    np.testing.assert_allclose(found, posterior.scores().to_numpy()[:50], atol=0.2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"z": "poisson"}, "likelihoods = z: expected views among y, n, two"),
        (
            {"y": "poisson"},
            "poisson for view y, which was written as gaussian: expected one of beta, censored, gamma, "
            "gaussian, logit_normal, lognormal, student_t. Choose",
        ),
        ({"n": "binomial(n=3)"}, r"binomial\(n=3\): expected binomial\(trials=1\)"),
        ({"n": "binomial(trials=0)"}, "trials = 0 for view n: expected an integer >= 1"),
        ({"y": "student_t(nu=-1)"}, "nu = -1.0: expected degrees of freedom above 0"),
        ("posson", "posson: expected one of bernoulli, beta, binomial"),
        (
            {"n": "binomial(trials=3)"},
            "view n, feature .*, with an entry of .*: expected entries of at most 3",
        ),
    ],
)
def test_likelihoods_that_do_not_suit(dataset: Any, given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        factorflow.fit(dataset, SparseGFA(n_factors=2, likelihoods=given), progress=False)


def test_one_likelihood_is_for_all_views_that_it_suits(dataset: Any) -> None:
    model = SparseGFA(n_factors=2, likelihoods="student_t").build(dataset.meta())
    assert [view.likelihood for view in model.settings.views] == ["student_t", "poisson", "bernoulli"]
    with pytest.raises(InputError, match=r"expected one that explains entries of a view: y \(gaussian\)"):
        SparseGFA(n_factors=2, likelihoods="poisson", views=("y",)).build(dataset.meta(("y",)))
