"""Feature sets: names by evidence, two shares, sets that are refined, and how members are matched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from contract_tools import Cut, assert_same_found, plan_of, run_plan
from scipy.special import betaln

import factorflow
from factorflow.data.ingest.checks import DataWarning
from factorflow.errors import InputError, UnusedWarning
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa.loadings import LoadingSums, PriorConstants, get_prior
from factorflow.models.sparse_gfa.loadings.informed import INSIDE, OUTSIDE
from factorflow.models.sparse_gfa.start import set_components
from factorflow.models.sparse_gfa.state import View
from factorflow.report import write_report
from factorflow.settings import RunOptions

N, D, SIZE, N_SETS, SEED = 200, 150, 15, 12, 11


def simulate(seed: int = SEED, size: float = 0.6) -> dict[str, Any]:
    """Five factors, four of which have a set, a fifth of whose members are wrong; eight more sets."""
    rng = np.random.default_rng(seed)
    loadings, sets, true = np.zeros((D, 5)), {}, []
    for t in range(N_SETS):
        members = rng.permutation(D)[: SIZE + 3]
        true.append(members[:SIZE])
        sets[f"set{t}"] = [f"g{i}" for i in members[3:]]  # three are missing, three are wrong
    true[4] = rng.permutation(D)[:SIZE]
    for k in range(5):
        loadings[true[k], k] = size * (0.5 + rng.random(SIZE)) * np.where(rng.random(SIZE) < 0.2, -1, 1)
    values = rng.normal(size=(N, 5)) @ loadings.T + rng.normal(size=(N, D))
    frame = pd.DataFrame(values, columns=[f"g{i}" for i in range(D)])
    return {"sets": sets, "loadings": loadings, "frame": frame}


@pytest.fixture(scope="module")
def world() -> dict[str, Any]:
    return simulate()


@pytest.fixture(scope="module")
def dataset(world: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    views = {"rna": world["frame"], "other": pd.DataFrame(world["frame"].to_numpy()[:, :9] ** 2)}
    return factorflow.write_dataset(tmp_path_factory.mktemp("sets") / "d", views)


def model(sets: Any, **options: Any) -> SparseGFA:
    chosen = {"n_factors": 8, "loadings": "informed", "views": ["rna"], "scale_views": False, **options}
    return SparseGFA(feature_sets=sets, **chosen)


@pytest.fixture(scope="module")
def posterior(dataset: Any, world: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("fit") / "p"
    return factorflow.fit(dataset, model(world["sets"]), progress=False, out=out)


@pytest.mark.thorough
def test_factors_are_named_by_their_sets(posterior: Any, world: dict[str, Any]) -> None:
    assert {name for name in posterior.factors if name.startswith("set")} == {f"set{t}" for t in range(4)}
    assert len(posterior.factors) == 5
    for k in range(4):
        found = posterior.loadings("rna").sel(factor=f"set{k}").values
        assert abs(np.corrcoef(found, world["loadings"][:, k])[0, 1]) > 0.95
    table = posterior.feature_sets()
    assert table[table["holds"]]["set"].tolist() == [f for f in posterior.factors if f.startswith("set")]
    assert (table[table["holds"]]["evidence"] > 3.0 + np.log(N_SETS)).all()
    assert (table["n_members"] == SIZE).all()
    inside = posterior.variable("set_theta").sel(view="rna", factor="set0")
    outside = posterior.variable("theta").sel(view="rna", factor="set0")
    assert inside > 0.6 > 0.1 > outside


def test_sets_are_refined(posterior: Any, world: dict[str, Any]) -> None:
    found = posterior.refined_sets()
    right = {"added": [], "removed": []}
    for row in found[found["factor"] == found["set"]].itertuples():
        is_true = world["loadings"][int(row.feature[1:]), int(row.set[3:])] != 0.0
        is_member = row.feature in world["sets"][row.set]
        assert is_member == (row.change == "removed")
        right[row.change].append(is_true == (row.change == "added"))
    assert np.mean(right["added"]) > 0.8
    assert sum(right["added"]) >= 10  # of 12
    assert all(right["removed"])
    few = posterior.refined_sets(error=0.01)
    assert 0 < len(few) < len(found)
    for _, listed in found.groupby(["factor", "change"]):
        assert 1.0 - listed["probability"].mean() <= 0.1
    with pytest.raises(InputError, match="error = 1.5: expected a number"):
        posterior.refined_sets(error=1.5)


def test_small_loadings_are_what_quadrature_says(posterior: Any) -> None:
    from scipy.stats import norm

    rows = posterior.refined_sets(error=0.99)
    row = rows[rows["change"] == "removed"].iloc[-1]
    at = {"factor": row["factor"], "feature_rna": row["feature"]}
    gamma, mean, variance = (
        float(posterior.variable(f"{name}_rna").sel(at))
        for name in ("inclusion", "loadings", "loadings_variance")
    )
    slab = mean / gamma
    sd = ((variance - gamma * (1 - gamma) * slab**2) / gamma) ** 0.5
    edge = 0.25 / float(posterior.variable("alpha").sel(view="rna", factor=row["factor"])) ** 0.5
    grid = np.linspace(-edge, edge, 20_001)
    expected = 1 - gamma + gamma * np.trapezoid(norm.pdf(grid, slab, sd), grid)
    assert row["probability"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.thorough
def test_without_sets_the_same_factors_have_a_lower_bound(dataset: Any, world: dict[str, Any]) -> None:
    informed = factorflow.fit(dataset, model(world["sets"]), progress=False)
    plain = factorflow.fit(dataset, model(None, loadings="spike_slab"), progress=False)
    gain = informed.trace["objective"].to_numpy()[-1] - plain.trace["objective"].to_numpy()[-1]
    assert gain > 100.0
    with pytest.raises(InputError, match="expected one with feature sets"):
        plain.feature_sets()


def test_sets_that_are_looked_at_fit_into_memory(
    dataset: Any, world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = world["sets"] | {"small": ["g1", "g2", "g3"], "tiny": ["g1", "g2"]}
    settings = plan_of(dataset, model(sets)).model.settings
    names = settings.sets.names
    assert len(set_components._members(settings, "rna")) == N_SETS + 1  # two features are no set
    monkeypatch.setattr(set_components, "MOST_PRODUCTS", 2 * SIZE**2 + 9)
    assert [names[t] for t, _ in set_components._members(settings, "rna")] == ["set0", "set1", "small"]


def test_a_set_finds_a_factor_that_is_too_weak_by_itself(tmp_path: Path) -> None:
    weak = simulate(seed=4, size=0.33)
    data = factorflow.write_dataset(tmp_path / "d", {"rna": weak["frame"]})
    plain = factorflow.fit(data, model(None, loadings="spike_slab"), progress=False)
    informed = factorflow.fit(data, model(weak["sets"]), progress=False)
    found = [name for name in informed.factors if name.startswith("set")]
    assert len(plain.factors) < len(found) == 4
    for name in found:
        loadings = informed.loadings("rna").sel(factor=name).values
        assert abs(np.corrcoef(loadings, weak["loadings"][:, int(name[3:])])[0, 1]) > 0.7


@pytest.fixture(scope="module")
def weak(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return a dataset of weak factors in blocks of 64 rows, beside a binary view of noise."""
    found = simulate(seed=3, size=0.3)
    rng = np.random.default_rng(0)
    bits = pd.DataFrame((rng.random((N, 8)) < 0.4).astype(float))
    path = tmp_path_factory.mktemp("weak") / "d"
    views = {"rna": found["frame"], "bits": bits}
    data = factorflow.write_dataset(path, views, {"bits": "bernoulli"}, block_rows=64)
    return found | {"data": data}


@pytest.mark.thorough
def test_factors_start_from_sets(weak: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """One is found by a set's own features alone."""
    given = {"scores": "normal"}
    found = factorflow.fit(weak["data"], model(weak["sets"], **given), progress=False)
    assert {f"set{t}" for t in range(4)} <= set(found.factors)
    monkeypatch.setattr("factorflow.models.sparse_gfa.model.looks_at_sets", lambda settings: False)
    without = factorflow.fit(weak["data"], model(weak["sets"], **given), progress=False)
    assert not {f"set{t}" for t in range(4)} <= set(without.factors)
    assert found.trace["objective"].to_numpy()[-1] > without.trace["objective"].to_numpy()[-1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options", [{}, {"views": None, "loadings": {"rna": "informed", "bits": "horseshoe"}}]
)
def test_starts_from_sets_have_equal_bits(weak: dict[str, Any], options: dict[str, Any]) -> None:
    plan = plan_of(weak["data"], model(weak["sets"], max_iter=20, **options))
    assert_same_found(run_plan(plan, Cut(1, 3, look_ahead=2, feature_tasks=3)), run_plan(plan))


@pytest.mark.parametrize(
    "options",
    [{"n_starts": 2}, {"intercepts": False}, {"scores": "spike"}],
)
def test_starts_from_sets_go_with_other_options(weak: dict[str, Any], options: dict[str, Any]) -> None:
    loadings = {"rna": "informed", "bits": "adaptive_shrinkage"}
    asked = model(
        weak["sets"], views=None, loadings=loadings, **{"max_iter": 60, "scores": "normal", **options}
    )
    found = factorflow.fit(weak["data"], asked, progress=False)
    assert len({f"set{t}" for t in range(4)} & set(found.factors)) >= 2
    for stage in ("naming", "sparse"):
        objective = found.trace["objective"].to_numpy()[(found.trace["stage"] == stage).to_numpy()]
        assert (np.diff(objective) > -1e-9 * np.abs(objective[1:])).all()


def test_noise_has_no_factors_whatever_sets_there_are(world: dict[str, Any], tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(size=world["frame"].shape)
    data = factorflow.write_dataset(
        tmp_path / "d", {"rna": pd.DataFrame(noise, columns=world["frame"].columns)}
    )
    found = factorflow.fit(data, model(world["sets"]), progress=False)
    assert found.factors == []
    assert found.feature_sets().empty
    assert found.refined_sets().empty


def test_no_pass_lowers_the_bound_and_names_raise_it(posterior: Any) -> None:
    trace = posterior.trace
    objective = trace["objective"].to_numpy()[(trace["stage"] == "sparse").to_numpy()]
    assert (np.diff(objective) > -1e-9 * np.abs(objective[1:])).all()


def test_evidence_is_a_difference_of_beta_functions(posterior: Any, world: dict[str, Any]) -> None:
    gamma = posterior.inclusion("rna").sel(factor="set2").values
    inside = np.isin(posterior.features("rna"), world["sets"]["set2"])

    def term(on: float, off: float, prior: tuple[float, float]) -> float:
        return float(betaln(prior[0] + on, prior[1] + off) - betaln(*prior))

    two = term(gamma[inside].sum(), (1 - gamma[inside]).sum(), INSIDE)
    two += term(gamma[~inside].sum(), (1 - gamma[~inside]).sum(), OUTSIDE)
    one = term(gamma.sum(), (1 - gamma).sum(), (1.0, 1.0))
    found = posterior.variable("set_evidence").sel(view="rna", factor="set2")
    assert float(found) == pytest.approx(two - one, abs=1e-8)


def test_the_bound_has_the_shares_integrated_out() -> None:
    """With its best q(theta) a class contributes log B(prior + n) - log B(prior)."""
    ones, prior = np.ones(2), get_prior("informed")
    view = View(ones, ones, ones, ones, 0.0, 1.0, 1.0, 1.0, np.zeros((1, 6)))
    constants = PriorConstants(30, (1.0, 1.0), (1.0, 1.0))
    sums = LoadingSums(np.array([7.5, 6.0]), np.zeros(2), np.array([[10.0, 0.0], [6.5, 0.0]]))
    learned = prior.learn(constants, view, sums)
    found = prior.terms(constants, learned, sums) - get_prior("ard").terms(constants, learned, sums)
    named = betaln(4 + 6.5, 1 + 3.5) - betaln(4, 1) + betaln(1 + 1.0, 20 + 19.0) - betaln(1, 20)
    free = betaln(1 + 6.0, 1 + 24.0) - betaln(1, 1)
    np.testing.assert_allclose(found, [named, free], rtol=1e-10)


def test_a_projection_and_a_warm_start_keep_names(
    posterior: Any, dataset: Any, world: dict[str, Any], tmp_path: Path
) -> None:
    fresh = factorflow.write_dataset(tmp_path / "new", {"rna": world["frame"].iloc[:50]})
    assert posterior.project(fresh).factors == posterior.factors
    again = factorflow.fit(dataset, model(world["sets"]), progress=False, warm_start=posterior)
    assert again.factors == posterior.factors
    opened = factorflow.open_posterior(posterior.path)
    assert opened.refined_sets().equals(posterior.refined_sets())


@pytest.mark.thorough
@pytest.mark.usefixtures("blank_figures")
def test_a_report_lists_sets(posterior: Any, tmp_path: Path) -> None:
    text = write_report(posterior, tmp_path / "r.html").read_text()
    table = text.split('id="sets"')[1].split("</table>")[0]
    added = posterior.refined_sets().query("factor == 'set1' and change == 'added'")["feature"]
    assert "<td>holds</td>" in table
    assert f"<td>{', '.join(added)}</td>" in table
    assert "12 entries: posterior.config.feature_sets" in text
    assert "sets = posterior.config.feature_sets" in text
    assert "&#39;feature_sets&#39;: sets" in text


@pytest.mark.thorough
def test_files_and_views(dataset: Any, world: dict[str, Any], posterior: Any, tmp_path: Path) -> None:
    path = tmp_path / "sets.gmt"
    lines = ["\t".join([name, "-", *members]) for name, members in world["sets"].items()]
    path.write_text("\n".join(lines))
    found = factorflow.fit(dataset, model(path), progress=False)
    assert found.factors == posterior.factors
    both = model({"rna": str(path)}, views=None, loadings={"rna": "informed"})
    found = factorflow.fit(dataset, both, progress=False)
    assert set(found.feature_sets()["view"]) == {"rna"}
    assert "set1" in found.factors
    out = tmp_path / "p"
    factorflow.fit(dataset, model(path, max_iter=2), progress=False, out=out)
    factorflow.fit(dataset, model(path, max_iter=2), progress=False, out=out, resume="auto")  # it is there
    path.write_text("\n".join(lines[:3]))
    with pytest.raises(InputError, match="expected a path that does not exist"):  # of another run
        factorflow.fit(dataset, model(path, max_iter=2), progress=False, out=out, resume="auto")


def test_members_are_matched_with_features(dataset: Any, world: dict[str, Any], tmp_path: Path) -> None:
    unknown = {name: [m.upper() for m in members] for name, members in world["sets"].items()}
    with pytest.raises(
        InputError,
        match="12 sets without a feature of rna, such as 'G1': expected members that are named as the "
        "features: 'g0' of view rna",
    ):
        factorflow.fit(dataset, model(unknown), progress=False)
    few = {"a": ["g1", "g2"], "b": [f"x{i}" for i in range(30)]}
    with pytest.warns(DataWarning, match="2 of the 32 members of the feature sets are features of view rna"):
        found = factorflow.fit(dataset, model(few, max_iter=3), progress=False)
    assert found.meta.feature_sets.names == ("a",)
    by_view = {"rna": {"a": ["g1", "g2"]}, "other": {"a": ["P1"], "b": ["P2"]}}  # sets for it, none matched
    with pytest.raises(InputError, match="2 sets without a feature of other, such as 'P1'"):
        factorflow.fit(dataset, model(by_view, views=None), progress=False)
    with pytest.raises(InputError, match="feature_sets = Factor2: expected names of sets that no factor"):
        factorflow.fit(dataset, model({"Factor2": ["g1", "g2"]}), progress=False)
    (tmp_path / "empty.gmt").touch()
    with pytest.raises(InputError, match=r"empty\.gmt: expected members by set, of one or more"):
        factorflow.fit(dataset, model(str(tmp_path / "empty.gmt")), progress=False)
    with pytest.raises(InputError, match="expected views among rna"):
        factorflow.fit(dataset, model({"proteins": {"a": ["g1"]}}), progress=False)
    with pytest.raises(InputError, match="members by set, of one or more"):
        factorflow.fit(dataset, model({"a": []}), progress=False)
    with pytest.raises(InputError, match="feature sets where loadings are informed"):
        factorflow.fit(dataset, model(None), progress=False)
    with pytest.warns(UnusedWarning, match="the loadings of no view are 'informed'"):
        factorflow.fit(dataset, model(few, loadings="ard", max_iter=2), progress=False)


@pytest.mark.thorough
def test_draws_keep_names_and_refine_sets(dataset: Any, world: dict[str, Any], posterior: Any) -> None:
    """The fit assigns sets; which features belong to them is drawn."""
    config = model(world["sets"], n_draws=60, n_burn_in=30, chains=1)
    found = factorflow.fit(dataset, config, progress=False)
    assert found.factors == posterior.factors
    columns = ["factor", "set", "view", "evidence", "holds", "n_members"]
    pd.testing.assert_frame_equal(found.feature_sets()[columns], posterior.feature_sets()[columns])
    shares = found.variable("set_theta").sel(view="rna", factor="set2").values
    inside = np.isin(found.features("rna"), world["sets"]["set2"])
    on = found.inclusion("rna").sel(factor="set2").values
    assert abs(float(shares) - (4.0 + on[inside].sum()) / (5.0 + inside.sum())) < 0.05
    by_fit, drawn = (
        {(r.factor, r.feature, r.change) for r in one.refined_sets().itertuples()}
        for one in (posterior, found)
    )
    assert len(by_fit & drawn) > 0.6 * len(by_fit)


def test_a_refresh_knows_whether_sets_changed(posterior: Any, dataset: Any, world: dict[str, Any]) -> None:
    due = pytest.importorskip("factorflow.workflow.due")
    asked = due.run_asked_for(dataset, model(world["sets"]), RunOptions()).identity
    assert not asked.differences(posterior.record.identity)
    changed = model({name: members[1:] for name, members in world["sets"].items()})
    asked = due.run_asked_for(dataset, changed, RunOptions()).identity
    assert "feature_sets" in asked.differences(posterior.record.identity)


def test_a_file_that_is_not_there_is_named_by_its_option(tmp_path: Path) -> None:
    dataset = factorflow.simulate(
        "sparse_gfa", tmp_path / "d.zarr", 40, views={"a": ("gaussian", 8)}, n_factors=2
    )
    model = SparseGFA(loadings="informed", feature_sets=str(tmp_path / "none.gmt"))
    with pytest.raises(InputError, match=r"^feature_sets = .*none\.gmt: expected a GMT file"):
        factorflow.fit(dataset, model, progress=False)
