"""What is said of a posterior: found where it is, not where it is not, and said where people look."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.stats import norm, rankdata

import factorflow
from factorflow.api import Posterior
from factorflow.errors import InputError
from factorflow.posterior.active_views import active_views
from factorflow.posterior.data_findings import dispersion
from factorflow.posterior.findings import Finding, _largest_shares
from factorflow.posterior.mixing import effective_sizes, rank_rhat
from factorflow.posterior.mixing_findings import _sample_entries
from factorflow.report import write_report


def kinds(posterior: Posterior) -> list[str]:
    posterior.__dict__.pop("findings", None)
    return [finding.kind for finding in posterior.findings]


def chains(rho: float, apart: float = 0.0, shape: tuple[int, int, int] = (4, 200, 3)) -> Any:
    """Return autocorrelated draws of chains whose means differ."""
    rng = np.random.default_rng(1)
    noise = rng.normal(size=shape)
    out = noise.copy()
    for i in range(1, shape[1]):
        out[:, i] = rho * out[:, i - 1] + np.sqrt(1 - rho**2) * noise[:, i]
    return out + apart * np.arange(shape[0])[:, None, None]


@pytest.mark.parametrize(("rho", "apart"), [(0.0, 0.0), (0.8, 0.0), (0.5, 1.0), (-0.4, 0.0)])
def test_mixing_is_that_of_arviz(rho: float, apart: float) -> None:
    import arviz_stats

    draws = chains(rho, apart)
    given = xr.Dataset({"x": (("chain", "draw", "entry"), draws)})
    np.testing.assert_allclose(rank_rhat(draws), arviz_stats.rhat(given)["x"], rtol=1e-6)
    sizes = np.asarray(arviz_stats.ess(given, method="bulk")["x"])
    np.testing.assert_allclose(effective_sizes(draws), sizes, rtol=0.06)


@pytest.mark.parametrize(("n_draws", "n_chains"), [(101, 3), (51, 2), (10, 2)])
def test_mixing_of_odd_numbers_of_draws(n_draws: int, n_chains: int) -> None:
    import arviz_stats

    draws = chains(0.6, 0.3, (n_chains, n_draws, 4))
    given = xr.Dataset({"x": (("chain", "draw", "entry"), draws)})
    np.testing.assert_allclose(rank_rhat(draws), arviz_stats.rhat(given)["x"], rtol=1e-6)


@pytest.mark.parametrize("rho", [0.7, -0.6])
def test_effective_sizes_are_the_formula(rho: float) -> None:
    """Lag by lag (Vehtari et al. 2021, section 3.2): pairs while they are positive, never rising."""
    draws = chains(rho, 0.2, (2, 62, 3))
    halves = np.concatenate([draws[:, :31], draws[:, 31:]])
    ranks = rankdata(halves.reshape(-1, 3), axis=0)
    z = norm.ppf((ranks - 3 / 8) / (len(ranks) + 1 / 4)).reshape(halves.shape)
    n_chains, n, _ = z.shape
    for e, found in enumerate(effective_sizes(draws)):
        x = z[:, :, e]
        within = x.var(axis=1, ddof=1).mean()
        above = (n - 1) / n * within + x.mean(axis=1).var(ddof=1)
        c = x - x.mean(axis=1, keepdims=True)
        covariance = [(c[:, : n - t] * c[:, t:]).sum(axis=1).mean() / (n - 1) for t in range(n)]
        rho_hat = [1.0, *(1 - (within - covariance[t]) / above for t in range(1, n))]
        total, least = 0.0, np.inf
        for t in range(0, n - n % 2, 2):
            pair = rho_hat[t] + rho_hat[t + 1]
            if pair <= 0:
                break
            least = min(least, pair)
            total += least
        time = max(2 * total - 1, 1 / np.log10(n_chains * n))
        assert found == pytest.approx(n_chains * n / time)


def test_what_never_changes_has_no_rhat() -> None:
    draws = np.ones((2, 8, 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        assert np.isnan(rank_rhat(draws)).all()
        assert np.isnan(effective_sizes(draws)).all()


def test_nothing_is_said_of_a_good_posterior(given: Any) -> None:
    assert given.posterior.findings == []
    assert "!" not in repr(given.posterior)


def test_a_budget(given: Any) -> None:
    run = given.posterior.run
    run["reason"] = "max_iter"
    assert kinds(given.posterior) == ["budget"]
    assert "max_iter of the model (5), after 5 iterations of all stages, before" in repr(given.posterior)
    assert given.posterior.findings[0].remedy == "Fit again with max_iter=10 or more."
    run["max_iter"] = 5
    assert kinds(given.posterior) == ["budget"]
    remedy = given.posterior.findings[0].remedy
    assert remedy.worded(lambda name, value: f"--{name} {value}") == "Fit again with --max_iter 10 or more."
    run |= {"status": "partial", "reason": "max_minutes"}
    assert kinds(given.posterior) == ["budget"]
    given.posterior.path = "there.zarr"
    assert kinds(given.posterior) == ["budget"]
    assert "factorflow resume there.zarr" in given.posterior.findings[0].remedy
    run["status"] = "projected"
    assert kinds(given.posterior) == []


@pytest.mark.parametrize(("score", "view"), [("rmse", "rna"), ("log_loss", "mutation")])
def test_a_view_that_is_predicted_worse_than_by_means(given: Any, score: str, view: str) -> None:
    table = given.posterior.tree["holdout"].to_dataset().copy(deep=True)
    where = {"view": view}
    table = table.assign({name: table["r2"] * np.nan for name in (score, f"baseline_{score}")})
    table[f"baseline_{score}"].loc[where] = 1.0
    table[score].loc[where] = 0.99
    given.posterior.tree["holdout"] = table
    assert kinds(given.posterior) == []
    table[score].loc[where] = 1.01
    given.posterior.tree["holdout"] = table
    assert kinds(given.posterior) == ["baseline"]
    assert view in given.posterior.findings[0].message


def test_a_factor_that_is_one_sample(given: Any) -> None:
    node = given.posterior.tree["variational"].to_dataset().copy(deep=True)
    node["scores"].values[41, 1] = 1000.0
    given.posterior.tree["variational"] = node
    found = given.posterior.findings
    assert [finding.kind for finding in found] == ["one sample"]
    assert "Factor2" in found[0].message
    assert str(given.posterior.obs_names[41]) in found[0].message


@pytest.mark.parametrize("kind", ["variational", "monte carlo"])
def test_the_largest_share_is_found_wherever_it_is(kind: str) -> None:
    """Of more rows than are read at once; negative scores count like positive ones."""
    n = 2 * (1 << 16) + 3
    scores = np.ones((n, 4))
    scores[0, 0], scores[(1 << 16) + 7, 1], scores[-1, 2] = 300.0, -1000.0, 2000.0
    array = xr.DataArray(scores, dims=("obs", "factor"))
    known = SimpleNamespace(
        kind=kind, meta=SimpleNamespace(n_rows=n), array=lambda name: array, scores=lambda: array
    )
    shares, rows = _largest_shares(known)  # type: ignore[arg-type]
    squares = [300.0**2, 1000.0**2, 2000.0**2, 1.0]
    np.testing.assert_allclose(shares, [s / (s + n - 1) for s in squares])
    assert rows.tolist() == [0, (1 << 16) + 7, n - 1, 0]


def test_few_samples_make_no_finding(make_given: Any, given_family: None) -> None:
    """Of seven samples one may well be a factor, of eight no more."""
    for n, found in ((7, []), (8, ["one sample"])):
        posterior = make_given(n=n).posterior
        node = posterior.tree["variational"].to_dataset().copy(deep=True)
        node["scores"].values[:, 1] = [1000.0] + [1.0] * (n - 1)
        node["scores"].values[:, [0, 2]] = 1.0
        posterior.tree["variational"] = node
        assert kinds(posterior) == found
        node["scores"].values[0, 1] = 2.0 * np.sqrt(n - 1) - 0.01  # just below four fifths of the squares
        posterior.tree["variational"] = node
        assert kinds(posterior) == []


def test_a_factor_that_is_one_feature(given: Any) -> None:
    node = given.posterior.tree["variational"].to_dataset().copy(deep=True)
    for view in ("rna", "mutation"):
        node[f"inclusion_{view}"].values[:, 2] = 0.0
        node[f"loadings_{view}"].values[:, 2] = 0.0
    node["inclusion_rna"].values[4, 2] = 1.0
    node["loadings_rna"].values[4, 2] = 1.0
    given.posterior.tree["variational"] = node
    assert active_views(given.posterior, "Factor3") == ["rna"]
    found = given.posterior.findings
    assert [finding.kind for finding in found] == ["one feature"]
    assert f"Factor3 is one feature: {given.posterior.features('rna')[4]} of rna" in found[0].message
    node["loadings_rna"].values[5:9, 2] = 0.6
    given.posterior.tree["variational"] = node
    assert kinds(given.posterior) == []


def test_counts_of_some_features_vary_too_much(tmp_path: Path) -> None:
    """They are named, also where the view as a whole does not; the option is that for counts."""
    rng = np.random.default_rng(0)
    rate = np.exp(1.5 + rng.normal(size=(250, 1)) @ rng.normal(size=(1, 20)) * 0.3)
    for feature in (3, 7, 12):
        rate[:, feature] *= rng.gamma(1.5, 1 / 1.5, 250)
    data = factorflow.write_dataset(tmp_path / "d", {"n": rng.poisson(rate)})
    assert "counts guessed: n; see docs/ingest.md" in repr(data)
    assert "counts guessed" in data._repr_html_()
    given = factorflow.write_dataset(tmp_path / "g", {"n": rng.poisson(rate)}, {"n": "poisson"})
    assert "counts guessed" not in repr(given)
    model = factorflow.models.SparseGFA(n_factors=1, max_iter=20, warmup_iter=5)
    posterior = factorflow.fit(data, model, progress=False)
    found = {finding.kind: str(finding) for finding in posterior.findings}
    named = found["overdispersion"].partition("(")[2]
    assert {w for w in named.split() if w.startswith("feature")} == {"feature3", "feature7", "feature12"}
    assert "likelihoods='negative_binomial'" in found["overdispersion"]
    node = posterior.tree["variational"].to_dataset().copy(deep=True)
    node["loadings_n"].values[:] = np.where(np.arange(20)[:, None] == 7, 1.0, 0.01)
    node["inclusion_n"].values[:] = 1.0
    posterior.tree["variational"] = node
    found = {finding.kind: str(finding) for finding in Posterior(posterior.tree).findings}
    assert found["one feature"].endswith("fit with likelihoods='negative_binomial'.")


def test_a_wide_feature_is_not_a_factor_by_its_unit(given: Any) -> None:
    """Loadings are in units of the data; they are compared in those of the model."""
    node = given.posterior.tree["variational"].to_dataset().copy(deep=True)
    for view in ("rna", "mutation"):
        node[f"inclusion_{view}"].values[:, 2] = 0.0
        node[f"loadings_{view}"].values[:, 2] = 0.0
    node["inclusion_rna"].values[:, 2] = node["loadings_rna"].values[:, 2] = 1.0
    node["loadings_rna"].values[4, 2] = 100.0
    given.posterior.tree["variational"] = node
    assert kinds(given.posterior) == ["one feature"]
    scale = np.where(np.arange(12) == 4, 100.0, 1.0)
    given.posterior.tree["variational"] = node.assign(scale_rna=("feature_rna", scale))
    assert kinds(given.posterior) == []


@pytest.fixture(scope="module")
def bits(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("bits")
    return factorflow.simulate("binary", folder / "d.zarr", 60, seed=2, n_features=6, n_factors=1)


@pytest.mark.thorough
def test_chains_that_have_not_mixed(bits: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Said by `fit`, in the summary, the representations and the report."""
    few = {"model": "probit", "n_factors": 2, "n_burn_in": 2, "n_draws": 12, "chains": 2}
    posterior = factorflow.fit(bits, few)
    found = posterior.findings[0]
    assert found.kind == "mixing"
    assert "The chains have not mixed: R-hat is above 1.01, beyond chance, in" in found.message
    assert "effective sample size is below 200" in found.message
    assert str(found) in [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert {"kind": "mixing", "message": found.message, "remedy": found.remedy} in posterior.summary()[
        "findings"
    ]
    json.dumps(posterior.summary())
    assert found.message in " ".join(repr(posterior).split())
    assert found.message in posterior._repr_html_()
    assert found.message in write_report(posterior, tmp_path / "r.html").read_text()
    worst = posterior.diagnostics()["r_hat"].max()
    assert f"{worst:.2f}" in found.message


def test_of_wide_variables_entries_are_looked_at_all_over(bits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evenly spaced, the last among them, each under its name."""
    config = {"model": "probit", "n_factors": 2, "n_burn_in": 1, "n_draws": 6, "chains": 2}
    posterior = factorflow.fit(bits, config | {"store_factors": True})
    names, _ = _sample_entries(posterior)
    assert "scores_draws" in posterior.tree["posterior"]  # of samples nothing is looked at, nor of switches
    assert not any(name.startswith(("scores", "inclusion")) for name in names)
    monkeypatch.setattr("factorflow.posterior.mixing_findings.MOST_DRAWN", 2 * 6 * 3 * 5)
    fewer, draws = _sample_entries(posterior)
    assert len(fewer) < len(names)
    loadings = posterior.draws("loadings_binary")
    mine = [name for name in fewer if name.startswith("loadings_binary")]
    assert mine[0] == f"loadings_binary[{posterior.features('binary')[0]}, Factor1]"
    assert mine[-1] == f"loadings_binary[{posterior.features('binary')[-1]}, Factor2]"
    np.testing.assert_allclose(draws[:, :, fewer.index(mine[-1])], loadings[:, :, -1, -1])


@pytest.mark.thorough
def test_chains_that_have_mixed(bits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws of independent chains, put in the place of those of a run."""
    config = {"model": "probit", "n_factors": 1, "n_burn_in": 1, "n_draws": 300, "chains": 2}
    posterior = factorflow.fit(bits, config)
    rng = np.random.default_rng(0)
    monkeypatch.setattr(
        type(posterior),
        "draws",
        lambda self, name: self.array(name).copy(data=rng.normal(size=self.array(name).shape)),
    )
    posterior.__dict__.pop("findings", None)
    assert "mixing" not in kinds(posterior)


@pytest.mark.thorough
def test_counts_that_vary_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against what the model expects of them; the remedy is an option of the model where it has one."""
    import pandas as pd

    rng = np.random.default_rng(0)
    site = np.repeat(np.arange(10), 30)
    rate = 5.0 + site

    def fitted(name: str, counts: Any, **options: Any) -> Posterior:
        table = pd.DataFrame(
            {"count": counts, "site": [f"s{i}" for i in site], "row": np.tile(np.arange(30), 10)}
        )
        path = tmp_path / f"{name}.zarr"
        data = factorflow.write_table(path, table.astype({"row": str}), formula="count ~ site + row")
        return factorflow.fit(data, {"model": "molten_poisson", "n_components": 1, "max_iter": 30, **options})

    wild = rng.poisson(rate * rng.gamma(0.5, 2.0, 300))
    assert "overdispersion" not in kinds(fitted("tame", rng.poisson(rate)))
    posterior = fitted("wild", wild)
    found = next(f for f in posterior.findings if f.kind == "overdispersion")
    assert found.remedy == "Fit with overdispersed=True."
    first = posterior.predict("count", 0, posterior.dataset.block_rows)
    y = np.asarray(posterior.dataset.values("count", 0, posterior.dataset.block_rows), float).ravel()
    mean, sd = (first[name].values.ravel() for name in ("mean", "sd"))
    assert f"{np.mean((y - mean) ** 2 / sd**2):.1f} times" in found.message
    assert "overdispersion" not in kinds(fitted("known", wild, overdispersed=True))
    posterior.tree.attrs["dataset"] = str(tmp_path / "gone.zarr")
    assert "overdispersion" not in kinds(type(posterior)(posterior.tree))


def test_rates_without_intercepts(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    views = {"counts": rng.poisson(5.0, (40, 6)), "numbers": rng.normal(size=(40, 6))}
    data = factorflow.write_dataset(tmp_path / "d.zarr", views)
    for intercepts, said in ((False, True), (True, False)):
        model = factorflow.models.SparseGFA(n_factors=2, intercepts=intercepts, max_iter=3, warmup_iter=2)
        posterior = factorflow.fit(data, model, progress=False)
        messages = [f.message for f in posterior.findings if f.kind == "intercepts"]
        assert [message.split(" hold ")[0] for message in messages] == ["Factors of counts"] * said


@pytest.mark.thorough
def test_no_factors_in_noise(tmp_path: Path) -> None:
    """It is said, the report can be written, and no factor has anything to do with anything."""
    import pandas as pd

    from factorflow.analysis import factor_correlation
    from factorflow.report import write_report

    values = np.random.default_rng(0).normal(size=(60, 8))
    data = factorflow.write_dataset(tmp_path / "data.zarr", {"a": values, "b": values[:, ::-1] ** 2})
    posterior = factorflow.fit(
        data, {"model": "sparse_gfa", "n_factors": 2, "views": ("a",)}, out=tmp_path / "p.zarr"
    )
    assert posterior.factors == []
    assert kinds(posterior) == ["no factors"]
    write_report(posterior, tmp_path / "report.html")
    assert "No factor was kept" in (tmp_path / "report.html").read_text()
    ages = pd.DataFrame({"age": np.arange(60.0)}, index=posterior.obs_names)
    found = posterior.associate(metadata=ages)
    assert found.empty
    assert "q_value" in found
    found = posterior.enrich("a", {"some": posterior.features("a")[:5]})
    assert found.empty
    assert "q_value" in found
    assert factor_correlation(posterior).shape == (0, 0)


@pytest.mark.thorough
@pytest.mark.parametrize(("factor", "said"), [(30.0, False), (100.0, True)])
def test_a_feature_of_another_unit(tmp_path: Path, factor: float, said: bool) -> None:
    """Beside one of a hundred times the scale two factors of three are not found (of 30 times, all are)."""
    rng = np.random.default_rng(0)
    loadings = rng.normal(size=(3, 30)) * (rng.random((3, 30)) < 0.5)
    values = rng.normal(size=(200, 3)) @ loadings + rng.normal(size=(200, 30))
    values[:, 7] *= factor
    data = factorflow.write_dataset(tmp_path / "data.zarr", {"other": values[:, :9] / 9.0, "mixed": values})
    views = ("mixed",)
    posterior = factorflow.fit(data, {"model": "sparse_gfa", "n_factors": 6, "views": views})
    found = [finding for finding in posterior.findings if finding.kind == "scale"]
    assert len(found) == said
    if said:
        assert len(posterior.factors) < 3
        share = 100 * values[:, 7].var() / values.var(axis=0).sum()
        assert "Features of mixed differ much in scale: feature7 has" in found[0].message
        assert f"{share:.3g} % of the variance" in found[0].message
        assert "scale_features=True" in found[0].remedy
        again = factorflow.fit(
            data, {"model": "sparse_gfa", "n_factors": 6, "views": views, "scale_features": True}
        )
        assert len(again.factors) >= 3
        assert "scale" not in kinds(again)


def test_a_run_stopped_in_its_burn_in(bits: Any) -> None:
    config = {"model": "probit", "n_factors": 1, "n_burn_in": 20, "n_draws": 5, "chains": 1}
    posterior = factorflow.fit(bits, config, max_iter=3)
    assert kinds(posterior) == ["burn-in"]
    assert posterior.findings[0].remedy == "Fit again with a larger max_iter."
    with pytest.raises(InputError, match="draws = 0"):  # and says so, before it asks for globals
        factorflow.project(posterior, bits)


@pytest.mark.thorough
def test_a_share_that_hides_nothing(bits: Any) -> None:
    config = {"model": "probit", "n_factors": 1, "n_burn_in": 2, "n_draws": 5, "chains": 1}
    assert "holdout" in kinds(factorflow.fit(bits, config, holdout=1e-9))
    assert "holdout" not in kinds(factorflow.fit(bits, config, holdout=0.02))


def test_a_finding_reads_as_a_sentence() -> None:
    assert str(Finding("kind", "It is so.", "Change it.")) == "It is so. Change it."


@pytest.mark.parametrize(("share", "inclusion", "there"), [(0.001, 0.5, 1), (0.0009, 1.0, 0), (1.0, 0.49, 0)])
def test_a_view_is_touched_from_a_thousandth_of_its_variance_on(
    share: float, inclusion: float, there: int
) -> None:
    """And where a loading is there as likely as not."""
    known = {
        "variance_explained": xr.DataArray(
            [[share, 0.0]], dims=("view", "factor"), coords={"view": ["a"], "factor": ["f", "g"]}
        ),
        "inclusion_a": xr.DataArray(
            [[0.1, 1.0], [inclusion, 1.0]], dims=("feature_a", "factor"), coords={"factor": ["f", "g"]}
        ),
    }
    posterior: Any = SimpleNamespace(
        factors=["f", "g"],
        loaded_views=["a"],
        has=known.__contains__,
        array=known.__getitem__,
        variable=known.__getitem__,
    )
    assert active_views(posterior, "f") == ["a"] * there
    assert active_views(posterior, "g") == []


@pytest.mark.parametrize(("ratio", "said"), [(1.5, 0), (1.51, 1)])
def test_counts_vary_too_much_from_half_as_much_again_on(
    ratio: float, said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    squares = np.full((20, 1), ratio)
    monkeypatch.setattr("factorflow.posterior.data_findings._residuals", lambda *_: squares)
    views = [SimpleNamespace(name=name, likelihood=name, n_features=1) for name in ("gaussian", "poisson")]
    meta, config = SimpleNamespace(value_views=views), SimpleNamespace(wider=lambda kind: None)
    posterior: Any = SimpleNamespace(meta=meta, config=config)
    assert len(list(dispersion(posterior))) == said


def test_an_outlier_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 30)) + 0.5 * rng.normal(size=(60, 30))
    values[3, 2] = 1e4
    with pytest.warns(factorflow.data.DataWarning, match="sample3"):
        dataset = factorflow.write_dataset(tmp_path / "d", {"y": values, "z": values[:, 5:]})
    posterior, other = (
        factorflow.fit(
            dataset, factorflow.models.SparseGFA(n_factors=2, views=views), max_iter=2, progress=False
        )
        for views in (("y", "z"), ("z",))
    )
    (found,) = [finding for finding in posterior.findings if finding.kind == "outlier"]
    assert "10000 of sample 'sample3', feature 'feature2'" in found.message
    assert "outlier" not in kinds(other)


@pytest.mark.filterwarnings("ignore:the memory of this model could not be measured")
def test_numbers_too_large_are_refused_with_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = np.random.default_rng(1).poisson(3, (60, 10))
    counts[3, 4] = 4_000_000_000
    with pytest.warns(factorflow.data.DataWarning, match="sample3"):
        dataset = factorflow.write_dataset(tmp_path / "d", {"x": counts}, likelihoods={"x": "poisson"})
    monkeypatch.setattr("factorflow.models.sparse_gfa.global_step.bound_of", lambda *_, **__: float("nan"))
    with pytest.raises(InputError, match=r"view 'x' = 4000000000 of sample 'sample3', feature 'feature4'"):
        factorflow.fit(dataset, factorflow.models.SparseGFA(n_factors=3), progress=False)
