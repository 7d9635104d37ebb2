"""Simulated data: the same under any block size, and made from the truth that lies beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from factorflow.data import DataWarning, simulate
from factorflow.data.store.writer import RowTruth, Truth, _write_truth
from factorflow.errors import InputError

VIEWS = {"rna": ("gaussian", 60), "mutation": ("bernoulli", 40), "counts": ("poisson", 30)}


@pytest.mark.thorough
def test_same_data_under_any_block_size(tmp_path: Path) -> None:
    made = [
        simulate(
            "sparse_gfa",
            tmp_path / f"{rows}",
            300,
            views=VIEWS,
            n_factors=3,
            missing={"rna": 0.1},
            groups=2,
            missing_samples=0.2,
            seed=3,
            block_rows=rows,
        )
        for rows in (8, 64, 512)
    ]
    for view in VIEWS:
        for other in made[1:]:
            np.testing.assert_array_equal(made[0].values(view), other.values(view))
    np.testing.assert_array_equal(made[0].truth["scores"], made[2].truth["scores"])
    other = simulate("sparse_gfa", tmp_path / "other", 300, views=VIEWS, n_factors=3, seed=4)
    assert not np.array_equal(other.values("rna"), made[0].values("rna"))


def test_data_follow_the_truth(tmp_path: Path) -> None:
    dataset = simulate("sparse_gfa", tmp_path / "s", 4000, views=VIEWS, n_factors=4, r2=0.4, seed=1)
    truth = dataset.truth.load()
    scores = truth["scores"].values
    assert abs(scores.mean()) < 0.05
    predictor = {v: scores @ truth[f"loadings_{v}"].values.T + truth[f"intercept_{v}"].values for v in VIEWS}
    residual = (dataset.values("rna") - predictor["rna"]) / truth["noise_deviation_rna"].values
    assert abs(residual.mean()) < 5 / np.sqrt(residual.size)
    assert abs(residual.var() - 1) < 5 * np.sqrt(2 / residual.size)
    variance = predictor["rna"].var(axis=0)
    explained = variance / (variance + truth["noise_deviation_rna"].values ** 2)
    assert 0.2 < np.median(explained[variance > 0.01]) < 0.6
    probability = 1 / (1 + np.exp(-predictor["mutation"]))
    error = (dataset.values("mutation") - probability).mean() / np.sqrt(
        (probability * (1 - probability)).mean()
    )
    assert abs(error) < 5 / np.sqrt(probability.size)
    rate = np.logaddexp(0, predictor["counts"])
    assert abs((dataset.values("counts") - rate).mean()) < 5 * np.sqrt(rate.mean() / rate.size)
    active = truth["active"].values
    assert active.any(axis=0).all()
    assert active.any(axis=1).all()
    assert not truth["loadings_rna"].values[:, ~active[0]].any()


def test_missing_and_groups(tmp_path: Path) -> None:
    dataset = simulate(
        "sparse_gfa",
        tmp_path / "s",
        2000,
        views=VIEWS,
        n_factors=6,
        missing=0.1,
        missing_samples={"mutation": 0.5, "rna": 0.5},
        groups=3,
        seed=5,
    )
    absent = np.isnan(dataset.values("rna")).all(axis=1)
    assert abs(absent.mean() - 0.5) < 0.06
    assert abs(np.isnan(dataset.values("rna")[~absent]).mean() - 0.1) < 0.01
    assert dataset.groups == ("group0", "group1", "group2")
    codes = dataset.codes("group")
    assert (np.diff(codes) >= 0).all()
    truth = dataset.truth.load()
    for group in range(3):
        on = truth["scores"].values[codes == group].any(axis=0)
        np.testing.assert_array_equal(on, truth["active_groups"].values[group])


@pytest.mark.parametrize("factors", ["binary", "spike_slab", "nonnegative"])
def test_binary(tmp_path: Path, factors: str) -> None:
    made = [
        simulate(
            "binary",
            tmp_path / f"{rows}",
            3000,
            n_features=20,
            n_factors=3,
            factors=factors,
            on=0.3,
            missing=0.1,
            seed=2,
            block_rows=rows,
        )
        for rows in (64, 1024)
    ]
    np.testing.assert_array_equal(made[0].values("binary"), made[1].values("binary"))
    truth = made[0].truth.load()
    scores = truth["scores"].values
    assert abs((scores != 0).mean() - 0.3) < 0.03
    assert (scores.min() < 0) is np.True_ if factors == "spike_slab" else scores.min() == 0
    from scipy.special import ndtr

    probability = ndtr(scores @ truth["loadings_binary"].values.T + truth["intercept_binary"].values)
    values = made[0].values("binary")
    seen = values >= 0
    assert abs((~seen).mean() - 0.1) < 0.01
    variance = (probability * (1 - probability))[seen]
    assert abs((values[seen] - probability[seen]).sum()) < 5 * np.sqrt(variance.sum())


@pytest.mark.thorough
@pytest.mark.parametrize("response", ["poisson", "gaussian"])
def test_table(tmp_path: Path, response: str) -> None:
    n, variables = 5000, {"site": 6, "species": 5, "year": 4}
    settings = {"response": response, "variables": variables, "exposure": True, "noise": 0.3, "missing": 0.1}
    made = [
        simulate(
            "table", tmp_path / f"{rows}", n, missing_codes={"site": 0.2}, seed=3, block_rows=rows, **settings
        )
        for rows in (32, 512, 4096)
    ]
    first, views = made[0], made[0].views
    assert {name: (view.likelihood, view.n_features) for name, view in views.items()} == {
        "y": (response, 1),
        "site": ("categorical", 6),
        "species": ("categorical", 5),
        "year": ("categorical", 4),
        "exposure": ("covariate", 1),
    }
    for view in views:
        for other in made[1:]:
            np.testing.assert_array_equal(first.values(view), other.values(view))
    assert first.features("year").tolist() == ["year0", "year1", "year2", "year3"]
    truth = first.truth.load()
    codes = truth["codes"].values.astype(int)
    np.testing.assert_array_equal(first.values("year"), codes[:, 2])
    lost = first.values("site") < 0
    assert abs(lost.mean() - 0.2) < 0.03
    np.testing.assert_array_equal(first.values("site")[~lost], codes[~lost, 0])
    weights = [truth[f"loadings_{name}"].values for name in variables]
    assert [w.shape for w in weights] == [(6, 3), (5, 3), (4, 3)]
    products = weights[0][codes[:, 0]] * weights[1][codes[:, 1]] * weights[2][codes[:, 2]]
    mean = products.sum(axis=1) * first.values("exposure")[:, 0]
    np.testing.assert_allclose(truth["mean"].values[:, 0], mean, rtol=1e-6)
    y = first.values("y")[:, 0]
    seen = ~np.isnan(y)
    assert abs(seen.mean() - 0.9) < 0.02
    variance = mean if response == "poisson" else np.full(n, 0.3**2)
    error = (y - mean)[seen] / np.sqrt(variance[seen])
    assert abs(error.mean()) < 5 / np.sqrt(error.size)
    fourth = 2 + 1 / mean[seen].mean() if response == "poisson" else 2  # variance of a squared error, about
    assert abs((error**2).mean() - 1) < 10 * np.sqrt(fourth / error.size)
    assert np.bincount(codes[:, 0], minlength=6).min() > 700


def test_plain_tables(tmp_path: Path) -> None:
    gaussian = simulate("table", tmp_path / "g", 200, response="gaussian")
    assert list(gaussian.views) == ["y", "site", "species", "year"]
    few = simulate("table", tmp_path / "f", 7, missing_codes=0.5, exposure=False)  # every level has a row
    assert few.moments("site")["n_observed"].min() >= 1
    assert list(few.views) == ["y", "site", "species", "year"]


@pytest.mark.thorough
def test_sequence(tmp_path: Path) -> None:
    n = 6000
    made = [
        simulate("sequence", tmp_path / f"{rows}", n, n_sequences=40, missing=0.05, seed=2, block_rows=rows)
        for rows in (32, 256, 4096)
    ]
    first, truth = made[0], made[0].truth.load()
    for other in made[1:]:
        np.testing.assert_array_equal(first.values("y"), other.values("y"))
        np.testing.assert_array_equal(first.codes("sequence"), other.codes("sequence"))
        np.testing.assert_array_equal(first.codes("time"), other.codes("time"))
    number, time = first.codes("sequence"), first.codes("time")
    lengths = np.bincount(number)
    np.testing.assert_array_equal(truth["lengths"].values, lengths)
    assert first.n_sequences == 40 == lengths.size
    assert lengths.min() >= 1
    assert lengths.max() > 4 * np.median(lengths)
    assert (np.diff(number) >= 0).all()
    np.testing.assert_array_equal(time, np.concatenate([np.arange(length) for length in lengths]))
    blocks = [made[1].block(i) for i in range(made[1].n_blocks)]
    assert 0 < sum(block.from_before for block in blocks) < len(blocks)
    scores, decay = truth["scores"].values.astype(float), truth["autocorrelation"].values
    y, seen = first.values("y").astype(float), ~np.isnan(first.values("y"))
    assert abs(seen.mean() - 0.95) < 0.01
    error = (y - scores @ truth["loadings_y"].values.T - truth["intercept_y"].values)[seen] / 0.5
    assert abs(error.mean()) < 5 / np.sqrt(error.size)
    assert abs(error.var() - 1) < 5 * np.sqrt(2 / error.size)
    inside = time > 0  # the innovations are standard normal, also where windows of the simulator meet
    shock = (scores[1:] - decay * scores[:-1])[inside[1:]] / np.sqrt(1 - decay**2)
    assert abs(shock.mean()) < 5 / np.sqrt(shock.size)
    assert abs(shock.var() - 1) < 5 * np.sqrt(2 / shock.size)
    assert np.abs(shock).max() < 6
    starts = scores[~inside]
    assert abs((starts**2).mean() - 1) < 5 * np.sqrt(2 / starts.size)
    across = (scores[1:] * scores[:-1])[~inside[1:]]  # sequences know nothing of each other
    assert abs(across.mean()) < 5 / np.sqrt(across.size)


def test_one_long_sequence(tmp_path: Path) -> None:
    """A recursion over all rows gives the factors that are made window by window."""
    from factorflow.data.simulation.noise import Noise
    from factorflow.data.simulation.sequence import SCORES, WINDOW

    settings = {"n_sequences": 1, "n_factors": 2, "autocorrelation": (0.9, 0.98)}
    dataset = simulate("sequence", tmp_path / "s", 3 * WINDOW + 100, seed=1, **settings)
    shock = Noise(1, WINDOW).rows(SCORES, 0, dataset.n_rows, 2).astype(float)
    decay = dataset.truth["autocorrelation"].values
    z = shock[0]
    found = dataset.truth["scores"].values
    for t in range(dataset.n_rows):
        z = shock[t] if t == 0 else decay * z + np.sqrt(1 - decay**2) * shock[t]
        np.testing.assert_allclose(found[t], z, rtol=1e-5, atol=1e-6)


def test_refusals(tmp_path: Path) -> None:
    cases: list[tuple[str, str, dict]] = [
        ("sparsegfa", "kind = sparsegfa", {}),
        ("sparse_gfa", "n_factor", {"views": VIEWS, "n_factor": 3}),
        ("sparse_gfa", "r2 = 1.5", {"views": VIEWS, "r2": 1.5}),
        ("sparse_gfa", "missing = 1.0", {"views": VIEWS, "missing": 1.0}),
        ("sparse_gfa", "normal", {"views": {"a": ("normal", 3)}}),
        ("sparse_gfa", "view name", {"views": {"a b": ("gaussian", 3)}}),
        ("sparse_gfa", "seed = -1", {"views": VIEWS, "seed": -1}),
        ("sparse_gfa", "view 'a' = gaussian", {"views": {"a": "gaussian"}}),
        ("sparse_gfa", "views = ", {"views": "gaussian"}),
        ("sparse_gfa", "n_factors = 0", {"n_factors": 0}),
        ("sparse_gfa", "features of view 'a' = 2.5", {"views": {"a": ("gaussian", 2.5)}}),
        ("binary", "factors = ternary", {"factors": "ternary"}),
        ("table", "response = binary", {"response": "binary"}),
        ("table", "levels of 'site' = 1", {"variables": {"site": 1}}),
        ("table", "variables = ", {"variables": {}}),
        ("table", "view names = 'y'", {"variables": {"y": 3}}),
        ("table", "rate = 0", {"rate": 0}),
        ("table", "draws", {"draws": 3}),
        ("sequence", "n_sequences = 101", {"n_sequences": 101}),
        ("sequence", "autocorrelation = ", {"autocorrelation": (0.5, 0.99)}),
        ("sequence", "noise = 0", {"noise": 0}),
    ]
    for kind, message, settings in cases:
        with pytest.raises(InputError, match=message):
            simulate(kind, tmp_path / "s", 100, **settings)
    with pytest.raises(InputError, match="n_samples = 1"):
        simulate("binary", tmp_path / "s", 1)
    with pytest.raises(InputError, match="room for"):
        simulate("sparse_gfa", tmp_path / "s", 10**7, views={"a": ("gaussian", 10**5)})
    assert list(tmp_path.iterdir()) == []


def test_one_view_may_lack_samples(tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match="without a value in any view"):
        simulate("sparse_gfa", tmp_path / "s", 100, views={"a": ("gaussian", 5)}, missing_samples=0.3)


@pytest.mark.thorough
def test_gplvm(tmp_path: Path) -> None:
    """Latent variables are smooth in the inputs, the views a decoder of them, under any block size."""
    views = {"a": ("gaussian", 6), "b": ("bernoulli", 5)}
    settings = {"views": views, "missing": {"a": 0.1}, "inputs": "place", "deviation": 0.4, "seed": 3}
    first, other = (simulate("gplvm", tmp_path / f"{n}", 2000, block_rows=n, **settings) for n in (32, 512))
    for view in (*views, "place"):
        np.testing.assert_array_equal(first.values(view), other.values(view))
    truth = first.truth.load()
    z, x = truth["scores"].values, truth["inputs"].values
    np.testing.assert_array_equal(first.values("place"), x.astype(np.float64))
    near = ((x[:, None] - x[None, :300]) ** 2).sum(2).argsort(axis=0)[1]  # who is next to each of 300
    assert (((z[:300] - z[near]) ** 2).mean(0) < 0.4 * 2 * z.var(0)).all()

    def decoded(view: str) -> np.ndarray:
        part = {
            p: truth[f"decoder_{p}_{view}"].values for p in ("hidden", "hidden_bias", "mean", "mean_bias")
        }
        return np.tanh(z @ part["hidden"] + part["hidden_bias"]) @ part["mean"] + part["mean_bias"]

    residual = first.values("a") - decoded("a")
    assert abs(np.nanstd(residual) - 0.4) < 5 * 0.4 / np.sqrt(2 * residual.size)
    assert abs(np.isnan(residual).mean() - 0.1) < 5 * np.sqrt(0.09 / residual.size)
    p = 1 / (1 + np.exp(-decoded("b")))
    error = (first.values("b") - p).mean() / np.sqrt((p * (1 - p)).mean() / p.size)
    assert abs(error) < 5
    with pytest.raises(InputError, match="gaussian or bernoulli"):
        simulate("gplvm", tmp_path / "p", 100, views={"c": ("poisson", 3)})
    with pytest.raises(InputError, match="scatter, length"):
        simulate("gplvm", tmp_path / "q", 100, scatter=1.0)


def test_truth_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row once, whatever the number of rows of a piece."""
    monkeypatch.setattr("factorflow.data.store.writer.LABEL_CHUNK", 16)
    read: list[tuple[int, int]] = []

    def rows(start: int, stop: int) -> Any:
        read.append((start, stop))
        return np.arange(start, stop, dtype=np.float32)[:, None] * [1, 2]

    group = zarr.create_group(zarr.storage.MemoryStore())
    _write_truth(group, Truth({}, {"z": RowTruth("factor", 2, rows)}), 50)
    assert read == [(0, 16), (16, 32), (32, 48), (48, 50)]
    np.testing.assert_array_equal(group["z"][:], np.arange(50)[:, None] * [1, 2])


def test_presence_is_the_same_where_windows_meet(tmp_path: Path) -> None:
    """Identities are made window by window, and read in blocks that end within them."""
    from factorflow.data.simulation.sequence import WINDOW

    made = [
        simulate("identity_attribute", tmp_path / f"{rows}", 3 * WINDOW + 100, seed=2, block_rows=rows)
        for rows in (256, 4 * WINDOW)
    ]
    for view in made[0].views:
        np.testing.assert_array_equal(made[0].values(view), made[1].values(view))


@pytest.mark.filterwarnings("ignore::factorflow.data.DataWarning")
def test_poisson_factors(tmp_path: Path) -> None:
    """Counts have the means of the truth and the variance of a negative binomial, whatever the blocks."""
    settings: dict[str, Any] = {
        "views": {"rna": 80, "protein": 20},
        "n_factors": 3,
        "batches": 2,
        "depth": 1.5,
    }
    dataset = simulate("poisson_factors", tmp_path / "a", 3000, seed=2, dispersion=0.2, **settings)
    truth = dataset.truth.load()
    for view in ("rna", "protein"):
        np.testing.assert_allclose(truth[f"loadings_{view}"].sum(f"feature_{view}"), 1.0)
        assert (truth[f"loadings_{view}"] >= 0).all()
    scores = truth["scores"].values
    np.testing.assert_allclose(scores[:, 0], 0.65, rtol=1e-6)
    assert np.median(scores[:, 1:].sum(axis=1)) == pytest.approx(0.35, abs=0.01)
    batch = np.asarray(dataset.obs_columns(["batch"])["batch"])
    assert set(batch) == {"batch0", "batch1"}
    level = (
        scores @ truth["loadings_rna"].values.T * truth["batch_rna"].values[(batch == "batch1").astype(int)]
    )
    level *= 1.5 * 80 * np.exp(0.45**2 / 2)  # mean over sizes
    y = dataset.values("rna")
    assert y.sum() == pytest.approx(level.sum(), rel=0.05)
    by_feature = np.corrcoef(np.log1p(y.mean(axis=0)), np.log1p(level.mean(axis=0)))[0, 1]
    assert by_feature > 0.999
    # E y^2 of a negative binomial with a log-normal size
    square = (level + 1.2 * level**2 * np.exp(0.45**2)).mean(axis=0)
    big = level.mean(axis=0) > 0.5
    assert np.median((y**2).mean(axis=0)[big] / square[big]) == pytest.approx(1.0, abs=0.1)
    other = simulate(
        "poisson_factors", tmp_path / "b", 3000, seed=2, dispersion=0.2, block_rows=64, **settings
    )
    np.testing.assert_array_equal(other.values("rna"), y)
    gaps = simulate(
        "poisson_factors", tmp_path / "c", 900, missing=0.2, missing_samples={"rna": 0.3}, **settings
    )
    lacks = np.isnan(gaps.values("rna"))
    assert lacks.all(axis=1).mean() == pytest.approx(0.3, abs=0.06)
    assert lacks[~lacks.all(axis=1)].mean() == pytest.approx(0.2, abs=0.02)
    for setting, value in (("usage", 1.0), ("depth", 0), ("dispersion", -1), ("n_factors", 0)):
        with pytest.raises(InputError, match=f"{setting} = {value}: expected"):
            simulate("poisson_factors", tmp_path / "x", 30, **{setting: value})
