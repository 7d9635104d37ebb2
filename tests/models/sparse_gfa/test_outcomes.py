"""Outcomes: views of one feature that are predicted, by all factors or by one that they guide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow
from factorflow.errors import InputError
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa.start.guided import rotation_with_guides

N, SHOWN = 300, 200


def simulate(seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return views of which the outcome hangs on a weak factor and a strong one, and its expectation."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((N, 4))
    views: dict[str, np.ndarray] = {}
    for name, d in (("rna", 80), ("protein", 40)):
        w = rng.standard_normal((d, 4)) * (rng.random((d, 4)) < 0.3) * np.array([0.8, 0.8, 0.8, 0.5])
        views[name] = z @ w.T + rng.standard_normal((N, d))
    x = 0.5 * z[:, 0] + 1.0 * z[:, 3]
    return views, x


def written(path: Path, views: dict[str, Any], **options: Any) -> Any:
    return factorflow.write_dataset(path, views, block_rows=64, overwrite=True, **options)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, np.ndarray, np.ndarray]:
    """A binary outcome and a measured one, a third of both not known."""
    views, x = simulate(0)
    rng = np.random.default_rng(1)
    score = x + 0.6 * rng.standard_normal(N)
    response = (rng.random(N) < 1.0 / (1.0 + np.exp(-2.0 * x))).astype(float)
    score[SHOWN:], response[SHOWN:] = np.nan, np.nan
    outcomes = {"score": score[:, None], "response": response[:, None]}
    data = written(tmp_path_factory.mktemp("outcomes") / "d", views | outcomes)
    return data, x, response


def fitted(data: Any, **options: Any) -> Any:
    return factorflow.fit(data, SparseGFA(n_factors=8, **options), progress=False)


@pytest.mark.thorough
def test_outcomes_are_open_unless_their_loadings_are_named(study: tuple[Any, ...]) -> None:
    data, x, _ = study
    posterior = fitted(data)
    assert posterior.has("inclusion_rna")
    assert not posterior.has("inclusion_score")
    assert (posterior.loadings("score").to_numpy() != 0.0).all()
    for name in ("score", "response"):
        predicted = posterior.predict(name)["mean"].to_numpy()[:, 0]
        assert np.corrcoef(predicted[SHOWN:], x[SHOWN:])[0, 1] > 0.8
    noise = posterior.tree["variational"]["noise_precision_score"].values
    assert 0.5 < float(noise[0]) ** -0.5 < 0.8  # of 0.6: no factor became the outcome
    assert fitted(data, loadings={"score": "spike_slab"}).has("inclusion_score")
    assert fitted(data, outcomes={"response": "open"}).has("inclusion_score")
    assert not fitted(data, n_draws=2, n_burn_in=2, chains=1).has("inclusion_score")


@pytest.mark.thorough
def test_a_guided_factor_gathers_what_goes_with_its_outcome(study: tuple[Any, ...]) -> None:
    data, x, response = study
    posterior = fitted(data, outcomes={"score": "guided", "response": "open"})
    assert posterior.factors.count("score") == 1
    loadings = posterior.loadings("score").to_numpy()[0]
    assert (loadings != 0.0).sum() == 1
    assert loadings[posterior.factors.index("score")] > 0.0
    scores = posterior.scores().sel(factor="score").to_numpy()
    assert np.corrcoef(scores[SHOWN:], x[SHOWN:])[0, 1] > 0.75
    plain = fitted(data).scores().to_numpy()
    best = np.abs(np.corrcoef(plain.T, x)[-1, :-1]).max()
    assert np.corrcoef(scores, x)[0, 1] > best
    both = fitted(data, outcomes={"score": "guided", "response": "guided"})
    assert {"score", "response"} <= set(both.factors)  # what the first left of the second is little: it stays
    for name in ("score", "response"):
        other = both.loadings(name).sel(factor=[f for f in both.factors if f != name])
        assert not other.to_numpy().any()
    projected = posterior.project(data)
    np.testing.assert_allclose(projected.scores().sel(factor="score"), scores, atol=0.02)


@pytest.mark.thorough
def test_a_guided_factor_stays_in_a_warm_start_and_after_loading(
    study: tuple[Any, ...], tmp_path: Path
) -> None:
    data, _, _ = study
    model = SparseGFA(n_factors=8, outcomes={"score": "guided", "response": "open"})
    first = factorflow.fit(data, model, progress=False, out=tmp_path / "p")
    again = factorflow.fit(data, model, progress=False, warm_start=first)
    assert again.factors.count("score") == 1
    loadings = again.loadings("score").to_numpy()[0]
    assert (loadings != 0.0).sum() == 1
    assert factorflow.load(tmp_path / "p").factors == first.factors


def test_an_axis_of_each_guide_and_simple_structure_across_them() -> None:
    rng = np.random.default_rng(2)
    loadings = {"y": rng.standard_normal((1, 5)), "rna": rng.standard_normal((30, 5)),
                "t": rng.standard_normal((1, 5))}  # fmt: skip
    rotation = rotation_with_guides(loadings, ["y", "t"])
    np.testing.assert_allclose(rotation.T @ rotation, np.eye(5), atol=1e-12)
    y, t = (loadings[name] @ rotation for name in ("y", "t"))
    np.testing.assert_allclose(y[0], [np.linalg.norm(loadings["y"]), 0, 0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(t[0, 2:], 0.0, atol=1e-12)
    assert t[0, 1] > 0.0
    near = {name: one * (1.0 + 1e-13 * rng.standard_normal(one.shape)) for name, one in loadings.items()}
    np.testing.assert_allclose(rotation_with_guides(near, ["y", "t"]), rotation, atol=1e-9)
    alone = rotation_with_guides({"y": np.array([[-2.0]])}, ["y"])
    np.testing.assert_allclose(alone, [[-1.0]])


def test_outcomes_that_are_none_are_refused(study: tuple[Any, ...]) -> None:
    data, _, _ = study
    with pytest.raises(InputError, match="view rna of 80 features: expected views of one feature"):
        fitted(data, outcomes={"rna": "guided"})
    with pytest.raises(InputError, match="outcomes = age: expected views among"):
        fitted(data, outcomes={"age": "open"})
    with pytest.raises(InputError, match="views that loadings do not name"):
        fitted(data, outcomes={"score": "guided"}, loadings={"score": "ard"})


@pytest.mark.thorough
def test_names_of_guided_factors_are_those_of_no_other(tmp_path: Path) -> None:
    """Names of factors are labels of arrays: two of one name would be one. Its set holds by its evidence."""
    rng = np.random.default_rng(1)
    z, w = rng.standard_normal((100, 2)), np.zeros((40, 2))
    w[:20, 0], w[20:, 1] = rng.standard_normal((2, 20))
    rna = pd.DataFrame(z @ w.T + 0.7 * rng.standard_normal((100, 40)))
    rna.columns = pd.Index([f"gene{i}" for i in range(40)])
    outcome = 2.0 * z[:, :1] + 0.5 * rng.standard_normal((100, 1))
    sets = {"early": rna.columns[:20].tolist(), "late": rna.columns[20:].tolist()}
    given = {"loadings": {"rna": "informed"}, "outcomes": {"score": "guided"}}
    data = written(tmp_path / "d", {"rna": rna, "score": outcome})
    with pytest.raises(InputError, match="outcomes = score: expected names that no feature set"):
        fitted(data, feature_sets={"rna": sets | {"score": sets["early"]}}, **given)
    other = written(tmp_path / "e", {"rna": rna, "Factor2": outcome})
    with pytest.raises(InputError, match="outcomes = Factor2: expected names"):
        fitted(other, outcomes={"Factor2": "guided"})
    table = fitted(data, feature_sets={"rna": sets}, **given).feature_sets().set_index("factor")
    assert table.loc["score", "set"] == "early"
    assert table.loc["score", "holds"]
    assert table.loc["score", "evidence"] > 3.0 + np.log(2)


@pytest.mark.thorough
def test_held_out_outcomes_have_scores_by_order(tmp_path: Path) -> None:
    """AUC of a binary one, Spearman's correlation of levels and measurements, of counts too."""
    views, x = simulate(3)
    rng = np.random.default_rng(4)
    noisy = x + 0.5 * rng.standard_normal(N)
    outcomes = {
        "score": noisy[:, None],
        "grade": np.digitize(noisy, [-1.0, 0.3, 1.2])[:, None].astype(float),
        "alive": (noisy > 0.0)[:, None].astype(float),
        "visits": rng.poisson(np.exp(x))[:, None].astype(float),
        "death": pd.DataFrame({"time": rng.exponential(np.exp(-x)), "event": 1.0}),
    }
    likelihoods = {"grade": "ordinal", "death": "survival", "alive": "bernoulli", "visits": "poisson"}
    data = written(tmp_path / "d", views | outcomes, likelihoods=likelihoods)
    posterior = factorflow.fit(data, SparseGFA(n_factors=8), holdout=0.2, progress=False)
    scores = posterior.holdout_scores()
    assert (scores.loc[["score", "grade", "visits"], "spearman"] > 0.5).all()
    assert scores.loc["alive", "auc"] > 0.75
    assert scores.loc["death", "concordance"] > 0.65
    assert scores.loc[["rna", "alive", "death"], "spearman"].isna().all()
    entries = posterior.holdout_entries("score")
    predicted = posterior.predict("score")["mean"].to_series().droplevel(1)[entries["obs"]]
    expected = pd.Series(entries["value"].to_numpy()).corr(pd.Series(predicted.to_numpy()), method="spearman")
    assert scores.loc["score", "spearman"] == pytest.approx(expected, abs=1e-6)
