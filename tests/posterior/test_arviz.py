"""The first commands of ArviZ's own documentation, on posteriors as they are and as `to_arviz` gives them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy import special, stats

import factorflow
from factorflow import Posterior
from factorflow.errors import InputError
from factorflow.posterior import log_likelihood
from factorflow.posterior.predictive import log_density, tails

N_CHAINS, N_DRAWS = 2, 20
GAMMA = {"activity", "loading_density", "loading_variance", "loadings_binary", "intercept_binary"}


@pytest.fixture(scope="module")
def probit(tmp_path_factory: pytest.TempPathFactory) -> Posterior:
    """Return the posterior of a small sampler with stored factors, entries missing and held out."""
    folder = tmp_path_factory.mktemp("probit")
    data = factorflow.simulate(
        "binary", folder / "bits.zarr", 40, seed=3, block_rows=32, n_features=8, n_factors=2, missing=0.05
    )
    config = {"model": "probit", "n_factors": 2, "n_burn_in": 10, "n_draws": N_DRAWS, "chains": N_CHAINS}
    return factorflow.fit(data, config | {"store_factors": True}, holdout=0.1, out=folder / "p.zarr")


@pytest.fixture
def plots(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return arviz_plots, drawing into memory."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    return pytest.importorskip("arviz_plots")  # type: ignore[no-any-return]


@pytest.mark.thorough
def test_averages_are_not_among_the_draws(probit: Posterior) -> None:
    assert all(array.dims[:2] == ("chain", "draw") for array in probit.tree["posterior"].data_vars.values())
    averages = probit.tree["averages"]
    assert set(averages.data_vars) == {"scores", "scores_inclusion", "probability_binary"}
    assert all("draw" not in array.dims for array in averages.data_vars.values())
    np.testing.assert_allclose(
        averages["scores"], probit.tree["posterior"]["scores_draws"].mean("draw"), atol=1e-6
    )
    assert probit.has("scores")
    assert probit.scores().dims == ("obs", "factor")


def first_commands(tree: Any, some: list[str], plots: ModuleType) -> None:
    """Try what ArviZ's documentation shows first, on a whole tree."""
    import arviz_stats
    import matplotlib.pyplot as plt

    table = arviz_stats.summary(tree)
    draws = tree["posterior"].to_dataset()
    entries = sum(
        int(np.prod([n for d, n in v.sizes.items() if d not in {"chain", "draw"}])) for v in draws.values()
    )
    assert len(table) == entries
    for function in (arviz_stats.rhat, arviz_stats.ess):
        found = function(tree)
        found = found["posterior"] if "posterior" in getattr(found, "children", {}) else found
        assert set(map(str, found.data_vars)) == set(map(str, draws.data_vars))
    several = (
        tree["posterior"].sizes["chain"] > 1
    )  # plot_rank compares chains; from ArviZ 1.3 on it wants two
    for name in ("plot_trace", "plot_forest", *["plot_rank"] * several):
        assert getattr(plots, name)(tree, var_names=some) is not None
        plt.close("all")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # those of ArviZ: so few draws, entries that never change
def test_a_sampler_in_arviz(probit: Posterior, plots: ModuleType) -> None:
    import arviz_stats

    first_commands(probit.tree, ["activity", "loading_density"], plots)
    same = probit.tree["posterior"].to_dataset()[["inclusion_binary"]].load().copy(deep=True)
    same["inclusion_binary"].values[:, :, 0] = 1  # of signed integers that never change ArviZ finds no ranks
    assert plots.plot_rank(xr.DataTree.from_dict({"posterior": same})) is not None
    tree = probit.to_arviz(log_likelihood=True)
    assert len(arviz_stats.summary(tree, var_names=["activity"])) == 2
    found = arviz_stats.loo(tree, var_name="binary")
    assert found.n_data_points == tree["log_likelihood"].sizes["entry_binary"]
    likelihood = tree["log_likelihood"]["binary"].values
    mean = special.logsumexp(likelihood, axis=(0, 1)) - np.log(N_CHAINS * N_DRAWS)
    assert -np.inf < float(found.elpd) < mean.sum()  # less than of the entries that were fitted


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_a_variational_posterior_in_arviz(given: Any, plots: ModuleType) -> None:
    """Some of its entries are the same in every draw: no loading of their feature differs from 0."""
    import arviz_stats

    drawn = given.posterior.sample(40, seed=1)
    some = drawn.tree["posterior"].to_dataset()[["loadings_rna", "scores"]]
    drawn.tree["posterior"] = some.isel(obs=[0, 1])
    first_commands(drawn.tree, ["loadings_rna"], plots)
    tree = given.posterior.sample(40, seed=1).to_arviz("rna", stop=20)
    assert set(tree["log_likelihood"].data_vars) == {"rna"}
    found = arviz_stats.loo(tree, var_name="rna")
    assert found.n_data_points == tree["log_likelihood"].sizes["entry_rna"]
    assert np.isfinite(float(found.elpd))


@pytest.mark.filterwarnings("ignore")
def test_draws_without_factors_in_arviz(given: Any) -> None:
    """ArviZ can tell nothing of an empty variable, and fails on it."""
    import arviz_stats

    drawn = given.posterior.sample(10, seed=1)
    whole = drawn.tree["posterior"].to_dataset()
    level = whole["scores"].mean(["obs", "factor"])
    drawn.tree["posterior"] = whole.isel(factor=slice(0, 0)).assign(level=level)
    tree = drawn.to_arviz()
    assert set(tree["posterior"].data_vars) == {"level"}
    assert len(arviz_stats.summary(tree)) == 1


def test_draws_are_aligned(probit: Posterior) -> None:
    tree = probit.to_arviz()
    for name in ("loadings_binary", "activity"):
        np.testing.assert_array_equal(tree["posterior"][name], probit.draws(name))
    assert "scores_draws" not in tree["posterior"]
    assert "log_likelihood" not in tree.children
    whole = probit.to_arviz(samples=True)
    np.testing.assert_array_equal(whole["posterior"]["scores_draws"], probit.draws("scores_draws"))


def test_log_likelihood_of_a_sampler_is_that_of_its_draws(probit: Posterior) -> None:
    tree = probit.to_arviz("binary")
    found = tree["log_likelihood"]["binary"]
    group = probit.tree["posterior"]
    f, z, o = (group[name].values for name in ("scores_draws", "loadings_binary", "intercept_binary"))
    p = special.ndtr(np.einsum("cmtk,cmnk->cmtn", f.astype(float), z) + o[:, :, None])
    x = probit.dataset.values("binary")
    shown = np.isnan(probit.tree["averages"]["probability_binary"].values[0]) | (x >= 0)
    rows = [list(probit.obs_names).index(name) for name in found["obs_binary"].values]
    columns = [list(probit.features("binary")).index(name) for name in found["feature_binary"].values]
    entries = x[rows, columns]
    assert (entries >= 0).all()  # none that is missing, and a tenth of the others was hidden
    assert 0.8 < len(entries) / (x >= 0).sum() < 0.97
    np.testing.assert_array_equal(tree["observed_data"]["binary"], entries)
    p = p[:, :, rows, columns]
    np.testing.assert_allclose(found, np.where(entries > 0, np.log(p), np.log1p(-p)), atol=2e-8)
    assert shown.any()
    part = probit.to_arviz(True, start=10, stop=12)["log_likelihood"]["binary"]
    mine = np.isin(rows, (10, 11))
    np.testing.assert_array_equal(part, found.values[:, :, mine])


def test_log_likelihood_of_draws_from_q(given: Any) -> None:
    """Variances of what was drawn do not count again: what is left is the noise, sd 0.5."""
    drawn = given.posterior.sample(3, seed=1)
    found = drawn.to_arviz(True)["log_likelihood"]
    group = drawn.tree["posterior"]
    for view in ("rna", "mutation"):
        x = np.einsum("ntk,ndk->ntd", group["scores"].values[0], group[f"loadings_{view}"].values[0])
        x = x + given.record[f"intercept_{view}"]
        rows = [list(drawn.obs_names).index(name) for name in found[f"obs_{view}"].values]
        columns = [list(drawn.features(view)).index(name) for name in found[f"feature_{view}"].values]
        x, y = x[:, rows, columns], np.asarray(given.dataset.values(view), float)[rows, columns]
        of_entries = stats.norm.logpdf(y, x, 0.5) if view == "rna" else -np.log1p(np.exp(-(2 * y - 1) * x))
        np.testing.assert_allclose(found[view].values[0], of_entries, atol=2e-8)


def test_variances_of_what_was_drawn_do_not_count_again(tmp_path: Path) -> None:
    """Of draws from q of a group factor analysis nothing is left but the noise."""
    data = factorflow.simulate("sparse_gfa", tmp_path / "d.zarr", 20, views={"a": ("gaussian", 4)}, seed=1)
    config = {"model": "sparse_gfa", "n_factors": 1, "max_iter": 3, "warmup_iter": 1}
    drawn = factorflow.fit(data, config, progress=False).sample(2, seed=3)
    group = drawn.tree["posterior"]
    w, z, b = (group[name].values[0] for name in ("loadings_a", "scores", "intercept_a"))
    x = np.einsum("mnk,mdk->mnd", z, w) + b[:, None]
    degrees = drawn.variable("noise_degrees_a").values
    sd = (drawn.variable("noise_precision_a").values * (degrees - 2) / degrees) ** -0.5  # E 1 / tau
    found = drawn.to_arviz(True)["log_likelihood"]["a"].values[0]
    expected = stats.norm.logpdf(data.values("a"), x, sd).reshape(2, -1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_what_cannot_be_had_is_refused(
    probit: Posterior, given: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"posterior\.sample"):
        given.posterior.to_arviz()
    with pytest.raises(InputError, match="one of binary"):
        probit.to_arviz("rna")
    monkeypatch.setattr(log_likelihood, "MOST_BYTES", 1000)
    with pytest.raises(InputError, match=r"2 x 20 draws.*start and stop"):
        probit.to_arviz(True)
    few = {"model": "probit", "n_factors": 1, "n_burn_in": 1, "n_draws": 4, "chains": 1}
    with pytest.raises(InputError, match="store_factors=True"):
        factorflow.fit(probit.dataset, few).to_arviz(True)


def test_density_of_predictive_distributions() -> None:
    """That of `tails` for single values; a merged measurement is that of all it stands for."""
    y, mean = np.array([0.0, 3.0, 9.0]), np.array([0.4, 2.0, 5.0])
    for sd in (np.sqrt(mean), np.sqrt(mean + 0.3 * mean**2)):
        found = log_density("poisson", y, mean, sd, {})
        np.testing.assert_allclose(found, np.log(tails("poisson", y, mean, sd)[2]), rtol=1e-10)
    p, x = np.array([0.2, 0.9, 0.0]), np.array([0.0, 1.0, 0.0])
    np.testing.assert_allclose(log_density("bernoulli", x, p, p, {}), np.log([0.8, 0.9, 1.0]), atol=1e-15)
    several = np.array([1.0, 2.5, 4.0])
    merged = {"weight": np.array([3.0]), "within": np.array([several.var() * 3])}
    found = log_density("gaussian", np.array([several.mean()]), np.array([2.0]), np.array([1.5]), merged)
    np.testing.assert_allclose(found, stats.norm.logpdf(several, 2.0, 1.5).sum())
