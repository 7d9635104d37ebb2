"""Whole runs: recovery, blocks, precision, restoring, predictions, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.special import expit

import factorflow
from factorflow.core.block import Meta, ViewMeta
from factorflow.errors import InputError
from factorflow.kernels.random import Step
from factorflow.models.sparse_gfa import SparseGFA
from factorflow.models.sparse_gfa.state import replace_part


def simulate(likelihoods, n_rows=400, n_factors=4, seed=0, missing=0.1, n_features=60):
    """Return {name: values}, complete values and true scores."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((n_rows, n_factors))
    shown, full = {}, {}
    for number, likelihood in enumerate(likelihoods):
        loadings = rng.normal(0, 1.2, (n_features, n_factors)) * (rng.random((n_features, n_factors)) < 0.4)
        x = scores @ loadings.T + rng.standard_normal(n_features)
        if likelihood == "gaussian":
            values = 10.0 + 3.0 * (x + rng.standard_normal(x.shape))
        elif likelihood == "bernoulli":
            values = (rng.random(x.shape) < expit(1.5 * x)).astype(float)
        else:
            values = rng.poisson(np.exp(0.3 * x + 0.5)).astype(float)
        full[f"v{number}"] = values
        shown[f"v{number}"] = np.where(rng.random(x.shape) < missing, np.nan, values)
    return shown, full, scores


def matched(scores, truth):
    """Return the absolute correlation of each true factor with its match."""
    k = scores.shape[1]
    table = np.abs(np.corrcoef(scores.T, truth.T)[:k, k:])
    return table[linear_sum_assignment(-table)]


def fit(path, shown, likelihoods, block_rows=None, **options):
    names = dict(zip(shown, likelihoods, strict=True))
    store = factorflow.write_dataset(path / "data.zarr", shown, names, block_rows=block_rows, overwrite=True)
    return factorflow.fit(store, SparseGFA(**options))


@pytest.mark.parametrize(
    ("likelihoods", "least"),
    [(("gaussian", "gaussian"), 0.97), (("gaussian", "bernoulli"), 0.95), (("poisson", "bernoulli"), 0.9)],
)
def test_recovers_simulated_factors(tmp_path, likelihoods, least):
    """From twice as many factors, exactly the true ones survive."""
    shown, _, truth = simulate(likelihoods)
    posterior = fit(tmp_path, shown, likelihoods, n_factors=8)
    scores = posterior.tree["variational"]["scores"].to_numpy()
    assert scores.shape[1] == 4
    assert matched(scores, truth).min() > least


@pytest.mark.parametrize("start", ["random", "pca"])
def test_the_end_does_not_depend_on_the_start(tmp_path, start):
    """After a converged warm-up, any start reaches the same factors."""
    shown, _, truth = simulate(("gaussian", "gaussian"), seed=3)
    posterior = fit(
        tmp_path, shown, ("gaussian", "gaussian"), n_factors=8, start=start, warmup_iter=80, tol=1e-7
    )
    assert matched(posterior.tree["variational"]["scores"].to_numpy(), truth).min() > 0.97


def test_starts_from_given_scores(tmp_path):
    """An .npy file of scores."""
    shown, _, truth = simulate(("gaussian", "gaussian"))
    np.save(tmp_path / "scores.npy", truth + 0.1)
    posterior = fit(
        tmp_path, shown, ("gaussian", "gaussian"), n_factors=4, start=str(tmp_path / "scores.npy")
    )
    assert matched(posterior.tree["variational"]["scores"].to_numpy(), truth).min() > 0.97


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.zeros((99, 3)), "99 rows and 3 columns"),
        (np.zeros((300, 3)), "300 rows and 3 columns"),
        (np.zeros((100, 2)), "100 rows and 2 columns"),
        (np.zeros(300), r"float64 of shape \(300,\)"),
        (np.zeros((100, 3), complex), "complex128"),
        (np.full((100, 3), np.nan), "NaN"),
        (None, "No such file"),
    ],
)
def test_given_scores_that_do_not_fit_are_refused(tmp_path, given, said):
    """Before anything runs; without the file a fitted model still takes new samples."""
    shown, _, _ = simulate(["gaussian"], n_rows=100, n_features=9)
    path, likelihoods = tmp_path / "start.npy", ["gaussian"]
    if given is not None:
        np.save(path, given)
    options = {"n_factors": 3, "start": str(path), "warmup_iter": 2, "max_iter": 2}
    with pytest.raises(InputError, match=said) as caught:
        fit(tmp_path / "d.zarr", shown, likelihoods, block_rows=32, **options)
    assert str(path) in str(caught.value)
    np.save(path, np.random.default_rng(0).normal(size=(100, 4)))
    posterior = fit(tmp_path / "e.zarr", shown, likelihoods, block_rows=32, **options)
    path.unlink()
    projected = posterior.project(factorflow.open_dataset(tmp_path / "e.zarr" / "data.zarr"))
    assert np.isfinite(projected.scores().to_numpy()).all()


def test_many_blocks_equal_one(tools):
    """Statistics of 1 and of 7 blocks agree to 1e-12 in double precision."""
    likelihoods = ("gaussian", "bernoulli", "poisson")
    problem = tools.Problem(likelihoods, "scattered")
    for _ in range(3):
        problem.iterate()
    sweep = problem.stages["warm-up"].sweeps[0]
    given, step = sweep.prepare(problem.globals_), problem.step
    _, whole = sweep.map(problem.block, problem.local, given, step)
    total = None
    for block in tools.make_blocks(problem.views, block_rows=4):
        rows = slice(block.start, block.start + block.n_rows)
        local = replace(problem.local, mean=problem.local.mean[rows], variance=problem.local.variance[rows])
        total = tools.add(total, sweep.map(block, local, given, step)[1])
    for view in problem.settings.views:
        for name in ("cross", "pairs"):
            one, many = (getattr(s.features[view.name], name) for s in (whole, total))
            np.testing.assert_allclose(many, one, rtol=1e-11, atol=1e-11 * np.abs(one).max())
    assert total.free == pytest.approx(whole.free, rel=1e-12)
    assert total.entropy == pytest.approx(whole.entropy, rel=1e-12)


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("missing", ["none", "scattered"])
def test_single_precision_follows_double(tools, missing, counts):
    """The objective of one iteration differs by less than 2e-5; a bound never falls by more than 1e-7."""
    likelihoods = ("gaussian", "bernoulli", *["poisson"] * counts)
    double = tools.Problem(likelihoods, missing, dtype=np.float64)
    single = tools.Problem(likelihoods, missing, dtype=np.float32)
    last = np.nan
    for iteration in range(8):
        expected, value = double.iterate(), single.iterate()
        assert value == pytest.approx(expected, rel=2e-5, nan_ok=True)
        if np.isfinite(last) and not counts:
            assert value > last - 1e-7 * abs(last)
        last = value
        if iteration == 3:
            double.initialize_sparse()
            single.initialize_sparse()
            last = np.nan


def test_large_offsets_do_not_hurt(tmp_path):
    """The reference mean is subtracted before anything is multiplied: 1000 sd change nothing."""
    shown, _, _ = simulate(("gaussian",))
    shifted = {"v0": shown["v0"] + 4096.0}
    plain, moved = (
        fit(tmp_path, data, ("gaussian",), n_factors=4, max_iter=10).tree["variational"]
        for data in (shown, shifted)
    )
    np.testing.assert_allclose(moved["loadings_v0"], plain["loadings_v0"], atol=0.01)
    np.testing.assert_allclose(moved["intercept_v0"] - 4096.0, plain["intercept_v0"], atol=0.01)


@pytest.mark.thorough
def test_scaling_is_undone(tmp_path):
    """Predictions are in original units whatever the scaling; R2 close to that of the truth."""
    shown, full, _ = simulate(("gaussian", "gaussian"))
    for options in ({}, {"scale_features": True}, {"scale_views": False}, {"intercepts": False}):
        posterior = fit(tmp_path, shown, ("gaussian", "gaussian"), n_factors=6, **options)
        prediction = posterior.predict("v0")
        mean, sd = prediction["mean"].to_numpy(), prediction["sd"].to_numpy()
        hidden = np.isnan(shown["v0"])
        error = (full["v0"] - mean)[hidden]
        assert error.std() < 3.4
        # the stated standard deviation is that of the errors
        assert np.mean((error / sd[hidden]) ** 2) == pytest.approx(1.0, abs=0.15)


@pytest.mark.thorough
def test_variance_explained_on_the_data_scale(tmp_path):
    """All factors together: the share computed from predictions; factors in order; signs fixed."""
    shown, _, _ = simulate(("gaussian", "bernoulli"))
    tree = fit(tmp_path, shown, ("gaussian", "bernoulli"), n_factors=6).tree["variational"]
    scores, total = tree["scores"].to_numpy(), tree["variance_explained_total"].to_numpy()
    fitted = scores @ tree["loadings_v0"].to_numpy().T + tree["intercept_v0"].to_numpy()
    y = shown["v0"]
    centred = y - np.nanmean(y, axis=0)
    assert total[0] == pytest.approx(1 - np.nansum((y - fitted) ** 2) / np.nansum(centred**2), abs=1e-3)
    share = tree["variance_explained"].to_numpy().sum(axis=0)
    empty = (tree["loadings_v0"].to_numpy() == 0).all(axis=0)
    assert (tree["variance_explained"].to_numpy()[0, empty] == 0).all()
    assert (np.diff(share) <= 1e-12).all()
    stacked = np.concatenate(
        [tree[f"loadings_{v}"].to_numpy() / tree[f"scale_{v}"].to_numpy()[:, None] for v in shown]
    )
    assert (stacked[np.abs(stacked).argmax(axis=0), np.arange(stacked.shape[1])] > 0).all()


@pytest.mark.thorough
@pytest.mark.parametrize("likelihoods", [("gaussian",), ("gaussian", "bernoulli", "poisson")])
def test_samples_seen_anew_get_their_scores(tools, likelihoods):
    """The globals alone are enough to score the samples again."""
    problem = tools.Problem(likelihoods, "scattered")
    for _ in range(20):
        problem.iterate()
    problem.initialize_sparse()
    for _ in range(60):
        problem.iterate()
    model = problem.model
    for _ in range(200):  # scores at their optimum given the weights
        problem.local = problem.map()[1]
    given = model.prepare(replace_part(problem.globals_, "change", transform=None))
    rows = model.rows(problem.block, problem.local, given, Step(0))
    again = model.rows(problem.block, None, given, Step(0))
    np.testing.assert_allclose(again["scores"], rows["scores"], atol=2e-3)
    np.testing.assert_allclose(again["scores_variance"], rows["scores_variance"], atol=2e-3)


def objectives(posterior, stage="sparse"):
    trace = posterior.tree["optimization"]
    return trace["objective"].to_numpy()[trace["stage"].to_numpy().astype(str) == stage]


@pytest.mark.thorough
def test_groups_have_their_own_scales(tmp_path):
    """A factor that is silent in one group gets a large precision there; variance explained tells as well."""
    rng = np.random.default_rng(0)
    groups = np.repeat(["a", "b"], 200)
    scores = rng.standard_normal((400, 3)) * np.where(groups == "b", [[1], [1], [0]], 1.0).T
    values = scores @ (rng.standard_normal((80, 3)) * (rng.random((80, 3)) < 0.5)).T + rng.standard_normal(
        (400, 80)
    )
    store = factorflow.write_dataset(
        tmp_path / "g.zarr", {"v": values}, {"v": "gaussian"}, groups=list(groups)
    )
    for options in ({}, {"grouped_noise": True}, {"scores": "spike"}):
        tree = factorflow.fit(store, SparseGFA(n_factors=5, **options)).tree["variational"]
        share = tree["variance_explained"].to_numpy()[:, 0]
        silent = share[1].argmin() if share.shape[1] == 3 else int((share[0] - share[1]).argmax())
        assert share[0, silent] > 0.05
        assert share[1, silent] < 0.01


def test_a_rare_mutation_does_not_score_worse_than_its_frequency(tmp_path):
    """Learned mean and precision of the intercepts keep rare binary features at their level."""
    rng = np.random.default_rng(0)
    rates = np.full(150, 0.03)
    values = (rng.random((300, 150)) < rates).astype(float)
    shown = np.where(rng.random(values.shape) < 0.2, np.nan, values)
    keep = np.nansum(shown, axis=0) > 0
    values, shown = values[:, keep], shown[:, keep]
    posterior = fit(tmp_path, {"v0": shown}, ("bernoulli",), n_factors=3)
    hidden = np.isnan(shown)
    p = np.clip(posterior.predict("v0")["mean"].to_numpy()[hidden], 1e-4, 1 - 1e-4)
    q = np.clip(np.broadcast_to(np.nanmean(shown, axis=0), shown.shape)[hidden], 1e-4, 1 - 1e-4)
    y = values[hidden]
    ours, frequency = (-np.mean(np.where(y > 0, np.log(x), np.log1p(-x))) for x in (p, q))
    assert ours <= frequency


def test_tiny_weights_do_not_become_subnormal():
    """Products of subnormal single-precision numbers are tens of times slower."""
    from factorflow.models.sparse_gfa.weights import expected_slab

    gamma = np.array([[1.0, 1e-10, 1e-30, 1e-200]])
    mean, variance = expected_slab(np.ones((1, 4)), np.ones((1, 4)), gamma)
    for values in (mean, variance, mean**2):
        small = np.abs(values.astype(np.float32))
        assert ((small == 0) | (small > np.finfo(np.float32).tiny)).all()


def meta_of(*likelihoods, n_rows=100, n_features=7):
    views = tuple(
        ViewMeta(f"v{m}", likelihood, n_features, "none") for m, likelihood in enumerate(likelihoods)
    )
    return Meta(n_rows, 1, n_rows, views)


def test_the_prior_of_ard_is_informative_where_all_views_are_binary():
    def priors(config, *likelihoods):
        return {view.alpha_prior for view in config.build(meta_of(*likelihoods)).settings.views}

    assert priors(SparseGFA(n_factors=2), "bernoulli", "bernoulli") == {(10.0, 10.0)}
    assert priors(SparseGFA(n_factors=2), "bernoulli", "gaussian") == {(0.5, 0.5), (0.5, 0.5 * 0.1**2)}
    assert priors(SparseGFA(n_factors=2, ard_prior=(2, 3)), "bernoulli", "gaussian") == {(2.0, 3.0)}


def test_small_data_are_worked_on_in_double_precision():
    def bits(n_features, **options):
        return SparseGFA(**options).build(meta_of("gaussian", n_features=n_features)).settings.precision_bits

    assert [bits(9_999), bits(10_000), bits(9_999, precision=32), bits(10_000, precision=64)] == [
        64, 32, 32, 64,
    ]  # fmt: skip


def test_refusals():
    """More factors than the data can have; unknown options; K = 0."""
    meta = Meta(20, 1, 32, (ViewMeta("v", "gaussian", 5, "none"),))
    with pytest.raises(InputError, match="n_factors"):
        SparseGFA(n_factors=6).build(meta)
    with pytest.raises(InputError, match="loadings = lasso: expected one of spike_slab, adaptive_shrinkage"):
        SparseGFA(n_factors=2, loadings="lasso").build(meta)
    with pytest.raises(InputError, match="loadings = w: expected views among v"):
        SparseGFA(n_factors=2, loadings={"w": "ard"}).build(meta)
    with pytest.raises(ValueError, match="n_factors"):
        SparseGFA(n_factors=0)
    with pytest.raises(ValueError, match="spikes"):
        SparseGFA(spikes=True)


@pytest.mark.parametrize("options", [{}, {"scores": "spike"}, {"grouped_noise": True}])
def test_a_group_of_one_sample_is_refused_where_groups_count(tmp_path, options):
    """Before any work starts, and only by models whose groups have parameters of their own."""
    values = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32)
    groups = ["many"] * 29 + ["lonely"]
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"v": values}, groups=groups)
    assert data.meta().group_sizes == (29, 1)
    events = []
    with pytest.raises(InputError, match=r"size of group lonely = 1: expected at least 2 .*scores="):
        factorflow.fit(
            data, SparseGFA(n_factors=2, **options), out=tmp_path / "p.zarr", on_event=events.append
        )
    assert events == []
    assert not list(tmp_path.glob("p.zarr*"))
    plain = {"n_factors": 2, "scores": "normal", "warmup_iter": 2, "max_iter": 2}
    assert factorflow.fit(data, SparseGFA(**plain)).scores().shape[0] == 30


@pytest.mark.thorough
def test_groups_of_new_samples_are_matched_by_name(tmp_path):
    """Not by the order in which they appear; a group that was not fitted is refused."""
    rng = np.random.default_rng(0)
    noise = np.repeat([0.1, 3.0], 40)[:, None]
    values = rng.normal(size=(80, 2)) @ rng.normal(size=(2, 8)) + noise * rng.normal(size=(80, 8))
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"v": values}, groups=["a"] * 40 + ["b"] * 40)
    fitted = factorflow.fit(data, SparseGFA(n_factors=2, grouped_noise=True))

    def scores(rows, groups):
        path = tmp_path / "n.zarr"
        new = factorflow.write_dataset(path, {"v": values[rows]}, groups=groups, overwrite=True)
        return fitted.project(new).scores().to_numpy()

    straight, turned = scores([3, 50, 60], ["a", "b", "b"]), scores([60, 50, 3], ["b", "b", "a"])
    np.testing.assert_allclose(turned[::-1], straight, atol=1e-5)
    assert np.abs(scores([3, 50, 60], ["b", "a", "a"]) - straight).max() > 0.01
    for groups in (["c", "a", "a"], None):
        with pytest.raises(InputError, match="groups = new samples without a group"):
            scores([3, 50, 60], groups)


@pytest.mark.thorough
def test_new_samples_may_be_alone_in_their_group(tmp_path):
    """A projection learns no parameters of groups."""
    values = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32)
    both = ["a"] * 15 + ["b"] * 15
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"v": values}, groups=both)
    posterior = factorflow.fit(data, SparseGFA(n_factors=2, warmup_iter=2, max_iter=2))
    new = factorflow.write_dataset(tmp_path / "n.zarr", {"v": values[13:16]}, groups=both[13:16])
    assert posterior.project(new).scores().shape[0] == 3


@pytest.mark.thorough
def test_bound_rises_in_single_precision_where_features_have_little_noise(tmp_path):
    """Residuals of such features are small differences of large sums: single precision would show."""
    rng = np.random.default_rng(5)
    scores = rng.normal(size=(1200, 4))
    exact = scores @ rng.normal(size=(4, 30)) * np.geomspace(1, 100, 30)
    views = {
        "exact": exact + 1e-3 * rng.normal(size=exact.shape),
        "noisy": scores @ rng.normal(size=(4, 80)) + 2 * rng.normal(size=(1200, 80)),
    }
    views = {name: values.astype(np.float32) for name, values in views.items()}
    dataset = factorflow.write_dataset(
        tmp_path / "d.zarr", views=views, likelihoods=dict.fromkeys(views, "gaussian")
    )
    fits = {bits: factorflow.fit(dataset, SparseGFA(n_factors=8, precision=bits)) for bits in (32, 64)}
    trace = fits[32].trace
    bound = trace["objective"].values[trace["stage"].values == "sparse"]
    assert len(bound) > 3
    assert (np.diff(bound) >= -1e-7 * np.abs(bound[:-1])).all()
    noise = {
        bits: 1.0 / posterior.variable("noise_precision_exact").values for bits, posterior in fits.items()
    }
    np.testing.assert_allclose(noise[32], noise[64], rtol=0.1)
