"""The number of factors to begin with, counted by random signs."""

from __future__ import annotations

import numpy as np
import pytest

import factorflow
from factorflow.core.block import Meta, ViewMeta
from factorflow.core.trees import add, freeze
from factorflow.errors import InputError
from factorflow.models.contract import Block, Step
from factorflow.models.sparse_gfa import SparseGFA
from factorflow.models.sparse_gfa.start.count import SPARE, CountSweep, most_passes


def counted(views, n_factors=8, seed=0, rows=None, counts=True, **options):
    """Return settings, and the globals after a count over blocks of some rows."""
    kinds = {name: "bernoulli" if y.dtype == np.int8 else "gaussian" for name, y in views.items()}
    n_rows = len(next(iter(views.values())))
    missing = {name: "scattered" if np.isnan(y).any() else "none" for name, y in views.items()}
    meta = Meta(n_rows, 1, 32, tuple(ViewMeta(n, kinds[n], y.shape[1], missing[n]) for n, y in views.items()))
    model = SparseGFA(n_factors=n_factors, precision=64, **options).build(meta)
    rows = rows or n_rows
    starts = range(0, n_rows, rows)
    blocks = [
        Block(
            i,
            a,
            min(rows, n_rows - a),
            len(starts),
            freeze({n: y[a : a + rows] for n, y in views.items()}),
            {},
        )
        for i, a in enumerate(starts)
    ]
    globals_ = model.init(Step(seed))
    sweep = model.stages()[0].sweeps[0]

    def go(sweep, globals_, step):
        stats = [sweep.map(block, None, sweep.prepare(globals_), step)[1] for block in blocks]
        total = stats[0]
        for more in stats[1:]:
            total = add(total, more)
        return sweep.update(globals_, total, step)[0]

    globals_ = go(sweep, globals_, Step(seed))
    sweep = CountSweep(model.settings, counts=counts)
    for i in range(most_passes(n_factors)):
        globals_ = go(sweep, globals_, Step(seed, 0, i, "components", i))
        if globals_.basis:
            return model.settings, globals_
    raise AssertionError("a count takes more passes than most_passes says")


def factors(rng, n_rows, sizes, k, share=0.4):
    """Return views of a sparse factor model, and the scores."""
    scores = rng.standard_normal((n_rows, k))
    views = {}
    for m, size in enumerate(sizes):
        loadings = rng.standard_normal((size, k)) * (rng.random((size, k)) < share)
        views[f"v{m}"] = scores @ loadings.T + rng.standard_normal((n_rows, size))
    return views, scores


@pytest.mark.parametrize("k", [0, 1, 5])
def test_factors_are_counted(k):
    """In even noise, where features differ in theirs and entries are missing, in binary views.

    One in seven sets of noise alone has a component too many: deletes take it. These have none.
    """
    rng = np.random.default_rng(k + 20)
    views, scores = factors(rng, 400, (80,), k)
    settings, found = counted(views)
    assert (found.factors.n_counted, found.n_factors) == (k, k + SPARE)
    y = views["v0"] * np.exp(0.7 * rng.standard_normal(80))
    y[rng.random(y.shape) < 0.2] = np.nan
    assert counted({"v0": y})[1].factors.n_counted == k
    binary = (rng.random((400, 80)) < 1.0 / (1.0 + np.exp(-2.0 * (views["v0"] if k else 0.0)))).astype(
        np.int8
    )
    assert counted({"v0": binary})[1].factors.n_counted == k
    basis = found.basis["v0"]
    start = (views["v0"] - views["v0"].mean(axis=0)) / found.fixed["v0"].scale @ basis[:, :k]
    np.testing.assert_allclose(start.T @ start / 400, np.eye(k), atol=1e-9)  # scores white
    left = scores - scores.mean(axis=0)
    left = left - start @ np.linalg.lstsq(start, left, rcond=None)[0]
    assert (left**2).sum() <= 0.1 * (scores**2).sum()  # they span the true ones


def test_a_feature_without_noise_is_no_factor():
    """Its variance is noise by the leave-one-out residual, however large."""
    rng = np.random.default_rng(3)
    views, _ = factors(rng, 300, (60,), 2)
    views["v0"][:, 7] = 50.0 * rng.standard_normal(300)
    assert counted(views)[1].factors.n_counted == 2


def test_samples_of_much_noise_are_no_factors():
    """The theory of even noise would have ten and more."""
    rng = np.random.default_rng(4)
    views, _ = factors(rng, 300, (60,), 3)
    views["v0"][:9] += 6.0 * rng.standard_normal((9, 60))
    assert counted(views, 15)[1].factors.n_counted <= 4


def test_the_factor_of_a_small_view_is_counted():
    """It is lost among 1000 features of another view, and seen alone."""
    rng = np.random.default_rng(1)
    views, scores = factors(rng, 200, (1000, 10), 2, 0.5)
    views["v1"] = rng.standard_normal((200, 1)) + 0.7 * rng.standard_normal((200, 10))
    settings, found = counted(views)
    assert found.factors.n_counted == 3
    assert counted({"v0": views["v0"]})[1].factors.n_counted == 2


def test_blocks_add_up(monkeypatch):
    rng = np.random.default_rng(2)
    views, _ = factors(rng, 150, (40, 20), 3)
    _, whole = counted(views)
    _, parts = counted(views, rows=32)
    assert parts.factors.n_counted == whole.factors.n_counted == 3
    for name in views:
        np.testing.assert_allclose(parts.basis[name][:, :3], whole.basis[name][:, :3], atol=1e-8)


def test_all_are_kept_that_are_asked_for():
    """With drop=0; also of data that have fewer components."""
    rng = np.random.default_rng(5)
    views, _ = factors(rng, 100, (30,), 2)
    _, found = counted(views, 6, counts=False)
    assert (found.factors.n_counted, found.n_factors, found.basis["v0"].shape) == (None, 6, (30, 6))
    exact = {"v0": rng.standard_normal((100, 2)) @ rng.standard_normal((2, 30))}
    _, found = counted(exact, 6, counts=False)
    assert found.n_factors == 6
    assert np.isfinite(found.basis["v0"]).all()


def test_a_constant_view_beside_another_has_no_components():
    rng = np.random.default_rng(6)
    views, _ = factors(rng, 100, (30, 5), 2)
    views["v1"] = np.full((100, 5), 3.0)
    assert counted(views)[1].factors.n_counted == 2
    with pytest.raises(InputError, match="the same in all samples"):
        counted({"v1": views["v1"]}, 3)


def test_the_number_is_at_most_what_is_asked_for(tmp_path):
    rng = np.random.default_rng(7)
    views, _ = factors(rng, 200, (50,), 6)
    assert counted(views, 4)[1].n_factors == 4
    data = factorflow.write_dataset(tmp_path / "d.zarr", views, {"v0": "gaussian"})
    found = factorflow.fit(data, SparseGFA(n_factors=4), progress=False)
    assert found.scores().shape[1] == 4
    one = SparseGFA(n_factors=1, drop=0.0)
    assert factorflow.fit(data, one, progress=False).scores().shape[1] == 1


def test_what_was_counted_is_recorded(tmp_path):
    """And shown; not where all are kept, or a start is given."""
    rng = np.random.default_rng(8)
    data = factorflow.write_dataset(tmp_path / "d.zarr", factors(rng, 200, (50,), 3)[0], {"v0": "gaussian"})
    found = factorflow.fit(data, SparseGFA(n_factors=9), progress=False)
    assert found.summary()["n_factors_counted"] == int(found.variable("n_factors_counted")) == 3
    assert "components counted before the fit: 3" in repr(found)
    for options in ({"drop": 0.0}, {"start": "random"}):
        found = factorflow.fit(data, SparseGFA(n_factors=4, **options), max_iter=2, progress=False)
        assert "n_factors_counted" not in found.summary()
