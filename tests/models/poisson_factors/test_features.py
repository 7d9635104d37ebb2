"""Programs that are found by some of the features; the others get their loadings at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow
from factorflow.data.chosen_features import choose_features
from factorflow.engine import source
from factorflow.errors import InputError
from factorflow.models import PoissonFactors

pytestmark = pytest.mark.filterwarnings("ignore::factorflow.data.DataWarning")

SHORT: dict[str, Any] = {"n_factors": 4, "batch": "batch", "settling_iter": 30, "max_iter": 30}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("cells") / "d.zarr"
    return factorflow.simulate(
        "poisson_factors",
        path,
        900,
        seed=6,
        views={"rna": 200, "protein": 30},
        n_factors=4,
        depth=0.7,
        batches=2,
        dispersion=0.0,
        missing_samples={"rna": 0.1},
        block_rows=256,
    )


def chosen(dataset: Any) -> tuple[str, ...]:
    """Return every second gene, in no order."""
    names = dataset.features("rna")[::2]
    return tuple(np.random.default_rng(0).permutation(names))


def test_chosen_features_are_fitted_as_if_they_were_alone(dataset: Any, tmp_path: Path) -> None:
    """A fit to a dataset of them has the same bound, given the same size factors; dims are those of all."""
    names = np.array(dataset.features("rna"))[::2]
    alone = factorflow.write_dataset(
        tmp_path / "alone.zarr",
        {"rna": pd.DataFrame(dataset.values("rna")[:, ::2], dataset.obs_names, names)},
        likelihoods={"rna": "poisson"},
        obs=pd.DataFrame({"batch": dataset.obs_columns(["batch"])["batch"]}, dataset.obs_names),
        block_rows=256,
    )
    options = {**SHORT, "size_factors": "none", "views": ("rna",)}
    model = PoissonFactors(features={"rna": chosen(dataset)}, **options)
    found = factorflow.fit(dataset, model, progress=False)
    reference = factorflow.fit(alone, PoissonFactors(**options), progress=False)
    assert found.loadings("rna").shape == (200, 4)
    bounds = [fit.tree["optimization/objective"].values for fit in (found, reference)]
    # starts differ: noise goes by the number of a feature
    np.testing.assert_allclose(bounds[0][-1], bounds[1][-1], rtol=0.01)
    np.testing.assert_allclose(found.loadings("rna").values[::2].sum(axis=0), 1.0, rtol=1e-6)
    assert (np.diff(bounds[0]) > -1e-7 * abs(bounds[0][-1])).all()


def test_a_fit_owes_nothing_to_one_before_it_in_the_process(tmp_path: Path) -> None:
    """Blocks stay in memory with what followed from them: features and size factors may be others now."""
    views = {"a": 30, "b": 20}
    data = factorflow.simulate("poisson_factors", tmp_path / "d.zarr", 200, views=views, seed=1, batches=2)
    names = data.features("a").tolist()
    first, second = ({"a": (names[0], *names[i : i + 5])} for i in (1, 10))
    depth = pd.DataFrame({"depth": np.linspace(0.5, 2.0, 200)}, data.obs_names)
    values = {view: pd.DataFrame(data.values(view), data.obs_names) for view in views}
    sized = factorflow.write_dataset(
        tmp_path / "s.zarr", values, likelihoods=dict.fromkeys(views, "poisson"), obs=depth
    )
    of_a, of_b = {"a": "depth", "b": "none"}, {"a": "none", "b": "depth"}
    for dataset, options in ((data, ({"features": first}, {"features": second})),
                             (sized, ({"size_factors": of_a}, {"size_factors": of_b}))):  # fmt: skip
        models = [PoissonFactors(n_factors=2, settling_iter=5, max_iter=5, **one) for one in options]
        factorflow.fit(dataset, models[0], progress=False)
        after = factorflow.fit(dataset, models[1], progress=False)
        source._CACHES.clear()
        alone = factorflow.fit(dataset, models[1], progress=False)
        np.testing.assert_array_equal(after.scores().values, alone.scores().values)


def test_the_others_get_their_loadings_at_the_end(dataset: Any, tmp_path: Path) -> None:
    """About those of a fit to all: of expected counts, and of factors of batches."""
    model = PoissonFactors(features={"rna": chosen(dataset)}, **SHORT)
    out = tmp_path / "p.zarr"
    found = factorflow.fit(dataset, model, progress=False, out=out)
    rows = np.isfinite(dataset.values("rna")).all(axis=1)
    counts = dataset.values("rna")[rows]
    mean = found.predict("rna")["mean"].values[rows]
    others = np.arange(200) % 2 == 1
    np.testing.assert_allclose(mean[:, others].sum(), counts[:, others].sum(), rtol=0.02)
    expected = np.asarray(found.size_factors("rna"))[rows]
    np.testing.assert_allclose(
        expected, counts.sum(axis=1) / np.nanmean(dataset.values("rna"), 0).sum(), rtol=1e-5
    )

    def correlation(which: np.ndarray, prediction: np.ndarray) -> float:
        big = which & (counts.mean(axis=0) > 0.3)
        return float(np.corrcoef(prediction[:, big].ravel(), counts[:, big].ravel())[0, 1])

    plain = np.outer(expected, counts.sum(axis=0) / expected.sum())
    assert correlation(others, mean) > correlation(others, plain) + 0.02
    log = np.log(found.variable("batch_rna").values)
    truth = np.log(dataset.truth["batch_rna"].values)
    big = others & (counts.sum(axis=0) > 50)
    assert np.corrcoef((log[0] - log[1])[big], (truth[0] - truth[1])[big])[0, 1] > 0.9
    again = factorflow.open_posterior(out)
    assert again.meta.chosen == {"rna": tuple(range(0, 200, 2))}
    new = again.project(dataset)
    between = np.corrcoef(new.scores().values[rows].ravel(), found.scores().values[rows].ravel())[0, 1]
    assert between > 0.98


def test_held_out_entries_of_the_others_are_hidden(dataset: Any) -> None:
    model = PoissonFactors(features={"rna": chosen(dataset)}, **SHORT)
    found = factorflow.fit(dataset, model, holdout=0.2, progress=False)
    scores = found.holdout_scores()
    assert scores.loc["rna", "log_likelihood"] > scores.loc["rna", "baseline_log_likelihood"]
    mean = found.predict("rna")["mean"].values
    from factorflow.data import Holdout

    held = predicted = 0.0
    for number in range(dataset.n_blocks):
        block, truth = dataset.read(number, ["rna"], Holdout(0.2, 0))
        rows, columns = block.hidden["rna"]
        others = columns % 2 == 1
        held += truth["rna"][others].sum()
        predicted += mean[block.start + rows[others], columns[others]].sum()
    assert predicted / held == pytest.approx(1.0, abs=0.05)


def test_which_features(tmp_path: Path) -> None:
    """Those that the metadata of features mark; else those that vary most; names are checked."""
    rng = np.random.default_rng(0)
    counts = pd.DataFrame(rng.poisson(1.0, (40, 6)), columns=[f"g{i}" for i in range(6)])
    counts["g3"] = rng.poisson(rng.gamma(0.2, 10.0, 40))
    dataset = factorflow.write_dataset(tmp_path / "d.zarr", {"x": counts}, likelihoods={"x": "poisson"})
    assert choose_features(dataset, {"x": ["g4", "g1"]}) == {"x": (1, 4)}
    assert choose_features(dataset, {"x": "highly_variable"}) == {}  # all of so few
    with pytest.raises(InputError, match="features = g9: expected features of view x, such as g0"):
        choose_features(dataset, {"x": ["g9"]})
    with pytest.raises(InputError, match="features = marked of view x: expected names of features"):
        choose_features(dataset, {"x": "marked"})
    with pytest.raises(InputError, match="features = none of view x"):
        choose_features(dataset, {"x": []})
    anndata = pytest.importorskip("anndata")
    for number, marks in enumerate([[False, True] * 3, [None, True] * 3, ["False", "True"] * 3]):
        var = pd.DataFrame({"highly_variable": marks, "symbol": list("ABCDEE")}, counts.columns)
        made = anndata.AnnData(counts.to_numpy(float), var=var)
        marked = factorflow.write_dataset(
            tmp_path / f"a{number}.zarr", {"x": made}, likelihoods={"x": "poisson"}
        )
        assert choose_features(marked, {"x": "highly_variable"}) == {"x": (1, 3, 5)}
    assert choose_features(marked, {"x": ["E", "B"]}) == {"x": (1, 4, 5)}
    with pytest.raises(InputError, match="features = E: expected features of view x, such as g0"):
        choose_features(marked, {"x": ["g0", "E"]})
