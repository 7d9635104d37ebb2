"""What a probit run leaves behind, against its stored draws: densities, probabilities, means, diagnostics.

A sweep's density and probabilities are those of the state it starts from: of the draw before it (with
``collapsed``: of its own factors with the globals before it). Factors are stored in single precision and used
so, hence equalities hold to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import arviz_stats
import numpy as np
import pytest
import xarray as xr
from scipy import special, stats

import factorflow
from factorflow.api import Posterior
from factorflow.data import Holdout
from factorflow.engine.convergence import split_rhat
from factorflow.errors import InputError
from factorflow.models import ProbitFactors
from factorflow.models.probit.results import compute_averages

PRIORS = {"activity_prior": (1.5, 2.0), "density_prior": (2.0, 1.5), "variance_prior": (3.0, 2.0)}
PAIRS = [
    ("binary", "collapsed"), ("binary", "gibbs"), ("spike_slab", "gibbs"), ("nonnegative", "gibbs"),
    ("spike_slab", "hmc"), ("binary", "hmc"),
]  # fmt: skip
N_DRAWS, N_CHAINS, HIDDEN = 6, 2, 0.15


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """70 samples, some entries missing."""
    path = tmp_path_factory.mktemp("probit") / "data.zarr"
    return factorflow.simulate(
        "binary", path, 70, n_features=9, n_factors=2, scale=3.0, missing=0.1, seed=3, block_rows=32
    )


@pytest.fixture(scope="module")
def fitted(dataset: Any) -> Callable[..., Posterior]:
    """Return what fits a sampler, once for the same arguments."""
    made: dict[Any, Posterior] = {}

    def fit(factors: str, sampler: str, **options: Any) -> Posterior:
        key = factors, sampler, *sorted(options.items())
        if key not in made:
            settings = {"n_factors": 2, "n_burn_in": 20, "n_draws": N_DRAWS, "chains": N_CHAINS}
            settings |= {"store_factors": True}
            config = ProbitFactors(factors=factors, sampler=sampler, **(settings | PRIORS | options))
            made[key] = factorflow.fit(dataset, config, seed=5, holdout=HIDDEN)
        return made[key]

    return fit


def stored(posterior: Posterior, name: str) -> Any:
    return posterior.array(name).values


def entries(dataset: Any) -> Any:
    """Return the entries, NaN where missing."""
    x = dataset.values("binary").astype(float)
    return np.where(x < 0, np.nan, x)


def hidden(dataset: Any) -> Any:
    """Return which entries were held out."""
    return Holdout(HIDDEN, 5).mask(0, 0, 70, 9) & np.isfinite(entries(dataset))


def log_joint(factors: str, x: Any, f: Any, z: Any, o: Any, a: Any, b: float, variance: float) -> float:
    """Return log p(x, f, z, o, a, b, tau^2), one entry after the other."""
    total = 0.0
    for t, n in np.argwhere(~np.isnan(x)):
        total += special.log_ndtr((2 * x[t, n] - 1) * (f[t] @ z[n] + o[n]))
    for t in range(len(f)):
        for k in range(len(a)):
            total += np.log(a[k] if f[t, k] != 0 else 1 - a[k])
            if f[t, k] != 0 and factors != "binary":
                total += stats.norm.logpdf(f[t, k]) + (np.log(2) if factors == "nonnegative" else 0.0)
    for loading in np.column_stack([z, o]).ravel():
        total += np.log1p(-b) if loading == 0 else np.log(b) + stats.norm.logpdf(loading, 0, variance**0.5)
    total += stats.beta.logpdf(a, *PRIORS["activity_prior"]).sum()
    total += stats.beta.logpdf(b, *PRIORS["density_prior"])
    shape, rate = PRIORS["variance_prior"]
    return float(total + stats.invgamma.logpdf(variance, shape, scale=rate))


def state(posterior: Posterior, chain: int, draw: int) -> tuple[Any, ...]:
    """Return the globals of a draw as `log_joint` takes them."""
    names = ("loadings_binary", "intercept_binary", "activity", "loading_density", "loading_variance")
    return tuple(stored(posterior, name)[chain, draw] for name in names)


@pytest.mark.parametrize(("factors", "sampler"), PAIRS)
def test_the_log_density_is_that_of_the_stored_draws(
    fitted: Any, dataset: Any, factors: str, sampler: str
) -> None:
    """In ``lp`` of the sample statistics, and in the trace, of every chain."""
    posterior = fitted(factors, sampler)
    x, f = (
        np.where(hidden(dataset), np.nan, entries(dataset)),
        stored(posterior, "scores_draws").astype(float),
    )
    lp = posterior.tree["sample_stats"]["lp"].values
    assert lp.shape == (N_CHAINS, N_DRAWS)
    for chain in range(N_CHAINS):
        for draw in range(1, N_DRAWS):
            with_factors = f[chain, draw if sampler == "collapsed" else draw - 1]
            expected = log_joint(factors, x, with_factors, *state(posterior, chain, draw - 1))
            assert lp[chain, draw] == pytest.approx(expected, rel=1e-9)
    trace = posterior.trace
    np.testing.assert_array_equal(trace["objective"].values[:, trace["kept"].values], lp)
    assert (trace["observed"].values == np.isfinite(x).sum()).all()


def test_what_a_sweep_reports_is_what_it_drew(fitted: Any) -> None:
    for factors, sampler in PAIRS[:3]:
        posterior = fitted(factors, sampler)
        report = posterior.tree["sample_stats"]
        on = (stored(posterior, "scores_draws") != 0).mean((2, 3))
        np.testing.assert_allclose(report["monitor_active"].values, on, rtol=1e-12)
        z, o = stored(posterior, "loadings_binary"), stored(posterior, "intercept_binary")
        both = np.concatenate([z.reshape(*z.shape[:2], -1), o], axis=2)
        np.testing.assert_allclose(report["monitor_included"].values, (both != 0).mean(2), rtol=1e-12)
        np.testing.assert_array_equal(report["variance"].values, stored(posterior, "loading_variance"))
        np.testing.assert_array_equal(report["density"].values, stored(posterior, "loading_density"))
        np.testing.assert_array_equal(stored(posterior, "inclusion_binary"), z != 0)


# Predictions


def chances(posterior: Posterior, chain: int, draw: int) -> Any:
    """Return Phi(z f + o) of every entry at one draw."""
    z, o, *_ = state(posterior, chain, draw)
    return special.ndtr(stored(posterior, "scores_draws")[chain, draw].astype(float) @ z.T + o)


@pytest.mark.parametrize(("factors", "sampler"), [PAIRS[0], PAIRS[2], PAIRS[4]])
def test_averaged_probabilities_are_those_of_the_draws(fitted: Any, factors: str, sampler: str) -> None:
    """One sweep more adds Phi at the draw before it, and nothing else."""
    longer, shorter = fitted(factors, sampler), fitted(factors, sampler, n_draws=N_DRAWS - 1)
    one, two = (p.tree["averages"]["probability_binary"].values.astype(float) for p in (longer, shorter))
    added = N_DRAWS * one - (N_DRAWS - 1) * two
    for chain in range(N_CHAINS):
        if sampler == "collapsed":
            z, o, *_ = state(longer, chain, N_DRAWS - 2)
            f = stored(longer, "scores_draws")[chain, -1].astype(float)
            expected = special.ndtr(f @ z.T + o)
        else:
            expected = chances(longer, chain, N_DRAWS - 2)
        np.testing.assert_allclose(added[chain], expected, atol=1e-5)


def test_predictions_average_over_chains(fitted: Any) -> None:
    """Of summed probabilities, of stored factors; the standard deviation is that of a coin."""
    kept = fitted("spike_slab", "gibbs")
    p = kept.tree["averages"]["probability_binary"].values.astype(float)
    assert p.shape == (N_CHAINS, 70, 9)
    predicted = kept.predict("binary")
    np.testing.assert_allclose(predicted["mean"], p.mean(0), rtol=1e-12)
    np.testing.assert_allclose(predicted["sd"], np.sqrt(p.mean(0) * (1 - p.mean(0))), rtol=1e-12)
    alone = fitted("spike_slab", "gibbs", predictive="none")
    every = [chances(alone, c, d) for c in range(N_CHAINS) for d in range(N_DRAWS)]
    predicted = alone.predict("binary", 3, 40)
    np.testing.assert_allclose(predicted["mean"], np.mean(every, 0)[3:40], rtol=1e-9)
    np.testing.assert_allclose(predicted["sd"] ** 2 + predicted["mean"] ** 2, predicted["mean"], rtol=1e-9)


def test_held_out_probabilities_are_those_of_all_entries(fitted: Any, dataset: Any) -> None:
    """Where only they are averaged; their scores come from them."""
    where = hidden(dataset)
    every = fitted("spike_slab", "gibbs")
    few = fitted("spike_slab", "gibbs", predictive="heldout", store_factors=False)
    one, two = (p.tree["averages"]["probability_binary"].values for p in (every, few))
    assert (np.isfinite(two) == where).all()
    np.testing.assert_array_equal(one[:, where], two[:, where])
    p = np.clip(one.astype(float).mean(0)[where], 1e-4, 1 - 1e-4)
    y = entries(dataset)[where]
    loss = -np.where(y == 1, np.log(p), np.log1p(-p)).mean()
    assert few.holdout_scores().loc["binary", "log_loss"] == pytest.approx(loss, rel=1e-5)
    assert every.holdout_scores().loc["binary", "log_loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.thorough
def test_factors_are_averaged_over_draws(fitted: Any) -> None:
    for factors, sampler in PAIRS[:4]:
        posterior = fitted(factors, sampler)
        drawn = stored(posterior, "scores_draws").astype(float)
        np.testing.assert_allclose(stored(posterior, "scores"), drawn.mean(1), atol=1e-6)
        if factors != "binary":
            np.testing.assert_allclose(stored(posterior, "scores_inclusion"), (drawn != 0).mean(1), atol=1e-6)
    last = fitted("nonnegative", "gibbs", average_scores=False, predictive="none")
    drawn = stored(last, "scores_draws")
    np.testing.assert_array_equal(stored(last, "scores"), drawn[:, -1])
    np.testing.assert_array_equal(stored(last, "scores_inclusion"), drawn[:, -1] != 0)
    assert stored(last, "scores").mean() != pytest.approx(drawn.mean(), rel=1e-6)
    says = {name: array.attrs["long_name"] for name, array in last.tree["averages"].data_vars.items()}
    assert says["scores"] == "f_kt = s_kt v_kt, last draw"
    assert says["scores_inclusion"] == "s_kt, last draw"
    binary = fitted("binary", "gibbs").tree
    assert binary["averages"]["scores"].attrs["long_name"] == "s_kt, mean over draws"
    assert "all entries" in binary["averages"]["probability_binary"].attrs["long_name"]


def test_a_sampler_has_no_shares_of_variance(fitted: Any) -> None:
    with pytest.raises(InputError, match="variance_explained"):
        fitted("spike_slab", "gibbs").variance_explained()


# Aligned means, diagnostics, projection


@pytest.mark.parametrize(("factors", "sampler"), PAIRS[:4])
def test_alignment_leaves_the_model_as_it_was(fitted: Any, factors: str, sampler: str) -> None:
    """Renamed and turned over, the draws give the same predictors; means are of the aligned draws."""
    posterior = fitted(factors, sampler)
    before = [stored(posterior, name) for name in ("scores_draws", "loadings_binary", "intercept_binary")]
    after = [posterior.draws(name).values for name in ("scores_draws", "loadings_binary", "intercept_binary")]
    one, two = (
        np.einsum("cmtk,cmnk->cmtn", f.astype(float), z) + o[:, :, None] for f, z, o in (before, after)
    )
    np.testing.assert_allclose(two, one, atol=1e-9)
    np.testing.assert_allclose(posterior.loadings("binary").values, after[1].mean((0, 1)), atol=1e-12)
    np.testing.assert_allclose(posterior.intercept("binary").values, after[2].mean((0, 1)), atol=1e-12)
    if factors == "nonnegative":
        assert (after[0] >= 0).all()
        np.testing.assert_allclose(np.sort(after[1], -1), np.sort(before[1], -1))
    activity = posterior.draws("activity").values
    folded = (lambda a: np.sort(np.minimum(a, 1 - a))) if factors == "binary" else np.sort
    np.testing.assert_allclose(folded(activity), folded(stored(posterior, "activity")), atol=1e-12)


def changed(posterior: Posterior, **arrays: Any) -> Posterior:
    """Return the posterior with some variables put in the place of its own."""
    tree = {n.path: n.to_dataset(inherit=False).load().copy(deep=True) for n in posterior.tree.subtree}
    for name, values in arrays.items():
        next(group for group in tree.values() if name in group)[name].values[...] = values
    return Posterior(xr.DataTree.from_dict(tree))


@pytest.mark.thorough
def test_diagnostics_are_those_of_arviz(fitted: Any) -> None:
    """By name and label, over chains, of draws with their factors aligned; a shifted chain shows."""
    posterior = fitted("nonnegative", "gibbs", n_draws=100, store_factors=False)
    table = posterior.diagnostics()
    aligned = {name: posterior.draws(name).values for name in ("loadings_binary", "activity")}
    columns = {
        "loading_variance": stored(posterior, "loading_variance"),
        "activity[Factor2]": aligned["activity"][:, :, 1],
        f"loadings_binary[{posterior.features('binary')[4]}, Factor1]": aligned["loadings_binary"][
            :, :, 4, 0
        ],
    }
    for name, values in columns.items():
        array = xr.DataArray(values, dims=("chain", "draw")).to_dataset(name="x")
        expected = {
            "r_hat": arviz_stats.rhat(array, sample_dims=["chain", "draw"]),
            "ess_bulk": arviz_stats.ess(array, sample_dims=["chain", "draw"], method="bulk"),
            "ess_tail": arviz_stats.ess(array, sample_dims=["chain", "draw"], method="tail"),
        }
        for column, value in expected.items():
            assert table.loc[name, column] == pytest.approx(float(value["x"])), (name, column)
    assert not any(name.startswith("scores") for name in table.index)
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((2, 100))
    same, apart = (
        changed(posterior, loading_variance=values).diagnostics()
        for values in (noise, noise + np.array([[0.0], [3.0]]))
    )
    assert same.loc["loading_variance", "r_hat"] < 1.05
    assert apart.loc["loading_variance", "r_hat"] > 1.5
    assert same.loc["loading_variance", "ess_bulk"] > 5 * apart.loc["loading_variance", "ess_bulk"]


@pytest.mark.thorough
def test_diagnostics_do_not_mind_the_names_of_factors(fitted: Any) -> None:
    """A chain whose factors bear each other's names has the same R-hat."""
    posterior = fitted("nonnegative", "gibbs", n_draws=100, store_factors=False)
    turned = {}
    for name in ("loadings_binary", "inclusion_binary", "activity"):
        values = stored(posterior, name).copy()
        values[1] = values[1][..., ::-1]
        turned[name] = values
    before, after = posterior.diagnostics(), changed(posterior, **turned).diagnostics()
    names = [name for name in before.index if name.startswith(("loadings", "activity"))]
    np.testing.assert_allclose(
        np.sort(after.loc[names, "r_hat"]), np.sort(before.loc[names, "r_hat"]), rtol=1e-6
    )


@pytest.mark.thorough
def test_projection_uses_all_chains(fitted: Any, dataset: Any) -> None:
    """Every draw of every chain, and what comes of it is predicted for the new samples."""
    posterior = fitted("spike_slab", "gibbs")
    projected = posterior.project(dataset)
    fitted_draws = stored(posterior, "loading_variance").ravel()
    used = stored(projected, "loading_variance").ravel()
    assert sorted(used) == sorted(fitted_draws)
    one, two = (p.predict("binary")["mean"].values for p in (posterior, projected))
    assert np.corrcoef(one.ravel(), two.ravel())[0, 1] > 0.9
    assert np.abs(one.mean(0) - two.mean(0)).max() < 0.05


@pytest.mark.thorough
def test_many_draws_are_thinned_evenly_for_a_projection(fitted: Any, dataset: Any) -> None:
    """At most a hundred, as many of each chain."""
    posterior = fitted("nonnegative", "gibbs", n_draws=100, store_factors=False)
    used = set(stored(posterior.project(dataset, iterations=1), "loading_variance").ravel())
    assert len(used) <= 100
    for chain in stored(posterior, "loading_variance"):
        where = np.flatnonzero([value in used for value in chain])
        assert len(where) == 50
        assert (np.diff(where) <= 3).all()


# When sampling ends


@pytest.mark.thorough
def test_thinned_draws_are_the_kept_iterations(fitted: Any) -> None:
    posterior = fitted("nonnegative", "gibbs", thin=3, n_draws=4)
    kept = posterior.trace["kept"].values
    assert np.flatnonzero(kept).tolist() == [22, 25, 28, 31]  # after 20 of burn-in
    assert len(kept) == 32
    whole = fitted("nonnegative", "gibbs", n_draws=12)
    np.testing.assert_array_equal(stored(posterior, "scores_draws"), stored(whole, "scores_draws")[:, 2::3])


@pytest.mark.thorough
def test_sampling_ends_once_r_hat_is_low(dataset: Any) -> None:
    """At the first look, every 50 draws, at which split R-hat of all monitored scalars is below the limit."""
    config = ProbitFactors(
        factors="nonnegative", n_factors=1, n_burn_in=5, n_draws=400, chains=3, max_rhat=1.4, **PRIORS
    )
    posterior = factorflow.fit(dataset, config, seed=5)
    report = posterior.tree["sample_stats"]
    monitors = [report[name].values for name in ("lp", "monitor_active", "monitor_included")]

    def worst(n: int) -> float:
        return max(split_rhat(values[:, :n]) for values in monitors)

    n_draws = posterior.n_draws
    assert n_draws % 50 == 0
    assert 50 < n_draws < 400  # else choose another limit (or seed): the test would say nothing
    assert posterior.run["reason"] == "converged"
    assert worst(n_draws) < 1.4
    assert all(worst(n) >= 1.4 for n in range(50, n_draws, 50))


def test_split_r_hat_is_the_textbooks() -> None:
    """Sequences 1 2 3 4 | 3 5 7 9 of four, halves 1 2 | 3 4 | 3 5 | 7 9: B and W by hand."""
    draws = np.array([[1.0, 2.0, 3.0, 4.0], [3.0, 5.0, 7.0, 9.0]])
    means = np.array([1.5, 3.5, 4.0, 8.0])
    between = 2 * ((means - 4.25) ** 2).sum() / 3  # n / (m - 1) sum (mean - grand mean)^2
    within = (0.5 + 0.5 + 2.0 + 2.0) / 4
    pooled = within / 2 + between / 2  # (n - 1) / n W + B / n
    assert split_rhat(draws) == pytest.approx(np.sqrt(pooled / within), rel=1e-12)
    # an odd number: the middle one is left out
    odd = np.insert(draws, 2, 100.0, axis=1)
    assert split_rhat(odd) == pytest.approx(split_rhat(draws), rel=1e-12)
    assert split_rhat(draws[:, :3]) == np.inf
    assert split_rhat(np.ones((2, 8))) == 1.0
    assert split_rhat(np.array([[1.0] * 8, [2.0] * 8])) == np.inf
    rng = np.random.default_rng(0)
    alike = rng.standard_normal((4, 500))
    assert 0.99 < split_rhat(alike) < 1.01
    assert split_rhat(alike + np.arange(4)[:, None]) > 1.4  # chains apart
    assert split_rhat(alike + np.linspace(-2, 2, 500)) > 1.3  # chains that drift alike
    drawn = xr.DataArray(alike, dims=("chain", "draw")).to_dataset(name="x")
    assert split_rhat(alike) == pytest.approx(
        float(arviz_stats.rhat(drawn, sample_dims=["chain", "draw"], method="split")["x"]), rel=1e-9
    )


def test_a_saved_posterior_has_the_same_draws(fitted: Any, tmp_path: Path) -> None:
    posterior = fitted("spike_slab", "gibbs")
    posterior.save(tmp_path / "p.zarr")
    again = factorflow.open_posterior(tmp_path / "p.zarr")
    for name in ("loadings_binary", "scores_draws", "scores", "activity"):
        np.testing.assert_array_equal(again.draws(name).values, posterior.draws(name).values)


def test_before_any_draw_is_kept_the_averages_are_the_present_state() -> None:
    """Factors, whether they are on, and probabilities with intercepts, or those of held-out entries."""
    rng = np.random.default_rng(3)
    factors = rng.standard_normal((4, 2)) * (rng.random((4, 2)) < 0.6)
    loadings = rng.standard_normal((5, 3))
    chance = stats.norm.cdf(factors @ loadings[:, :2].T + loadings[:, 2])
    local = SimpleNamespace(
        factors=lambda k: factors, n_kept=0, sum_values=None, sum_on=None, sum_chances=None, sum_held_out=None
    )
    where, features = np.array([0, 3, 3]), np.array([4, 0, 2])
    block = SimpleNamespace(n_rows=4, hidden={"y": (where, features)})
    globals_ = SimpleNamespace(loadings={"y": loadings})
    settings = SimpleNamespace(n_factors=2, n_features=5, view="y", keep_all=True, keep_held_out=False)
    found = compute_averages(settings, block, local, globals_)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found.scores, factors)
    np.testing.assert_array_equal(found.inclusion, factors != 0)
    np.testing.assert_allclose(found.chance, chance, rtol=1e-12)
    settings.keep_all, settings.keep_held_out = False, True
    held_out = compute_averages(settings, block, local, globals_).chance  # type: ignore[arg-type]
    assert held_out is not None
    np.testing.assert_allclose(held_out[where, features], chance[where, features], rtol=1e-12)
    assert np.isnan(held_out).sum() == held_out.size - 3
