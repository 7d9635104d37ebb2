"""Cut by features, a run goes the way it goes cut by samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import factorflow
from factorflow import InputError
from factorflow.engine.executors.local import cut_evenly
from factorflow.engine.plan import Plan
from factorflow.engine.source import Source
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa import model as by_samples
from factorflow.models.sparse_gfa import strips
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.shape import Meta, ViewMeta

VIEWS = {"a": ("gaussian", 70), "b": ("gaussian", 33)}


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no pass be taken further: those of strips are not, as no place has all weights."""
    monkeypatch.setattr(Settings, "hastens", False)


def both(tmp_path: Path, missing: float, **options: Any) -> tuple[Any, Any]:
    """Return the posteriors of the two cuts of one dataset, a tenth held out."""
    data = factorflow.simulate(
        "sparse_gfa", tmp_path / "d.zarr", 60, views=VIEWS, n_factors=3, missing=missing, seed=1
    )
    settings = {"n_factors": 5, "warmup_iter": 8, "max_iter": 16, "tol": 1e-9, "precision": 64, **options}
    given: dict[str, Any] = {"seed": 3, "holdout": 0.1}
    return (
        factorflow.fit(data, SparseGFA(cut="samples", **settings), **given),
        factorflow.fit(data, SparseGFA(cut="features", strip=16, **settings), **given),
    )


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("missing", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
@pytest.mark.parametrize("options", [{}, {"spike": "hat"}, {"spike": "none"}, {"intercepts": False}], ids=str)
def test_both_cuts_find_the_same(tmp_path: Path, missing: float, options: dict[str, Any]) -> None:
    samples, features = both(tmp_path, missing, **options)
    assert list(samples.trace["stage"]) == list(features.trace["stage"])
    np.testing.assert_allclose(features.trace["objective"], samples.trace["objective"], rtol=1e-8)
    assert list(samples.trace["n_factors"]) == list(features.trace["n_factors"])
    for group in ("variational", "holdout"):
        left, right = samples.tree[group].ds, features.tree[group].ds
        assert set(left) == set(right)
        for name in left.data_vars:
            if left[name].dtype.kind == "f":
                np.testing.assert_allclose(right[name], left[name], rtol=1e-6, atol=1e-7, err_msg=str(name))


@pytest.mark.parametrize("options", [{}, {"spike": "none"}, {"drop": 0.0}], ids=str)
def test_both_cuts_end_at_the_same_bound_one_of_them_sooner(tmp_path: Path, options: dict[str, Any]) -> None:
    """Passes cut by samples are taken further, those of strips are not: other ways to the same end."""
    rng = np.random.default_rng(3)
    scores, views = rng.standard_normal((80, 3)), {}
    for name, (_, size) in VIEWS.items():
        loadings = rng.standard_normal((3, size)) * (rng.random((3, size)) < 0.4)
        views[name] = (scores @ loadings + rng.standard_normal((80, size))).astype(np.float32)
    data = factorflow.write_dataset(tmp_path / "d.zarr", views, dict.fromkeys(views, "gaussian"))
    settings = {"n_factors": 5, "tol": 1e-6, "precision": 64, **options}
    samples, features = (
        factorflow.fit(data, SparseGFA(cut=cut, strip=strip, **settings), seed=3)
        for cut, strip in (("samples", 4096), ("features", 16))
    )
    assert samples.tree["variational"].sizes == features.tree["variational"].sizes
    left, right = (np.asarray(found.trace["objective"]) for found in (samples, features))
    assert left[-1] == pytest.approx(right[-1], abs=10 * 1e-6 * 80 * 103)  # ten times what ends a stage
    assert len(left) < 0.9 * len(right)


def test_a_view_of_few_features_beside_a_wide_one_searches_when_that_does(tmp_path: Path) -> None:
    """Taken alone its samples would be many, and it would be asked in other passes than the rest."""
    rng = np.random.default_rng(3)
    scores, views = rng.standard_normal((80, 3)), {}
    for name, size in (("a", 170), ("b", 3)):
        loadings = rng.standard_normal((3, size)) * (rng.random((3, size)) < 0.4)
        views[name] = (scores @ loadings + rng.standard_normal((80, size))).astype(np.float32)
    data = factorflow.write_dataset(tmp_path / "d.zarr", views, dict.fromkeys(views, "gaussian"))
    settings: dict[str, Any] = {"n_factors": 5, "warmup_iter": 20, "max_iter": 30, "tol": 1e-9}
    samples, features = (
        factorflow.fit(data, SparseGFA(cut=cut, strip=64, precision=64, **settings), seed=3)
        for cut in ("samples", "features")
    )
    assert features.scores().shape == samples.scores().shape == (80, 3)


@pytest.mark.usefixtures("plain")
def test_what_drops_factors_and_stops_a_run_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither changes the result unless it passes a limit: shares of a factor, entries that gains are of."""
    found: dict[str, list[Any]] = {}

    def watched(cut: str, finish: Any) -> Any:
        def watch(*args: Any, sparse: bool, **named: Any) -> Any:
            new, info = finish(*args, sparse=sparse, **named)
            if sparse:
                found.setdefault(cut, []).append((new.strength, info["observed"]))
            return new, info

        return watch

    for cut, module in (("samples", by_samples), ("features", strips)):
        monkeypatch.setattr(module, "finish_iteration", watched(cut, module.finish_iteration))
    both(tmp_path, 0.1)
    samples, features = found["samples"][-16:], found["features"][-16:]  # before them, trials of the memory
    assert len(samples) == len(features) == 16
    for (left, n), (right, m) in zip(samples, features, strict=True):
        np.testing.assert_allclose(right, left, rtol=1e-7)
        assert n == m > 1


@pytest.mark.usefixtures("plain")
@pytest.mark.thorough
def test_factors_are_dropped_where_their_weights_are(tmp_path: Path) -> None:
    samples, features = both(tmp_path, 0.0, n_factors=12, drop=0.005, max_iter=30)
    numbers = samples.trace["n_factors"]
    assert len(set(np.asarray(numbers))) > 1  # else this tests nothing
    assert list(features.trace["n_factors"]) == list(numbers)


@pytest.mark.usefixtures("plain")
@pytest.mark.thorough
def test_a_run_that_ends_in_the_warm_up_has_its_loadings(tmp_path: Path) -> None:
    data = factorflow.simulate("sparse_gfa", tmp_path / "d.zarr", 60, views=VIEWS, n_factors=3, seed=1)
    found = [
        factorflow.fit(data, SparseGFA(n_factors=3, cut=cut, strip=16), seed=3, max_iter=4)
        for cut in ("samples", "features")
    ]
    for left, right in zip(*(p.tree["variational"].ds.data_vars.items() for p in found), strict=True):
        np.testing.assert_allclose(right[1], left[1], rtol=1e-6, atol=1e-9, err_msg=str(left[0]))


@pytest.mark.usefixtures("plain")
@pytest.mark.thorough
def test_other_starts(tmp_path: Path) -> None:
    data = factorflow.simulate("sparse_gfa", tmp_path / "d.zarr", 60, views=VIEWS, n_factors=3, seed=1)
    start = tmp_path / "start.npy"
    np.save(start, np.random.default_rng(0).normal(size=(60, 3)))
    for given in (str(start), "random"):
        config = SparseGFA(n_factors=3, cut="features", strip=16, start=given, warmup_iter=8, max_iter=8)
        found = factorflow.fit(data, config, seed=3)
        assert np.isfinite(found.trace["objective"]).all()
        if given != "random":  # the noise of a start is keyed by the iteration
            other = factorflow.fit(data, config.model_copy(update={"cut": "samples"}), seed=3)
            np.testing.assert_allclose(found.trace["objective"], other.trace["objective"], rtol=1e-9)


def meta(n_rows: int, n_features: int, likelihood: Any = "gaussian") -> Meta:
    """Return the shape of one complete view."""
    return Meta(n_rows, 4, 64, (ViewMeta("x", likelihood, n_features, "none"),))


def test_many_features_and_few_samples_are_cut_by_features() -> None:
    def cut_by_features(config: SparseGFA, shape: Meta) -> bool:
        cuts = {stage.strips for stage in config.build(shape).stages() if stage.counts}
        assert len(cuts) == 1
        return cuts != {None}

    wide = meta(320, 60_000)
    assert cut_by_features(SparseGFA(), wide)
    assert not cut_by_features(SparseGFA(), meta(320, 10_000))
    assert not cut_by_features(SparseGFA(), meta(320, 16_000))  # 50 times as many, but few
    assert not cut_by_features(SparseGFA(), meta(2000, 60_000))  # many, but only 30 times as many
    assert not cut_by_features(SparseGFA(), meta(320, 60_000, "bernoulli"))
    assert not cut_by_features(SparseGFA(cut="samples"), wide)
    for other in ({"noise": "sample"}, {"scores_prior": "spike"}, {"inference": "svi"}):
        assert not cut_by_features(SparseGFA(**other), wide)


@pytest.mark.parametrize(
    "other", [{"noise": "both"}, {"scores_posterior": "factorised"}, {"inference": "incremental"}], ids=str
)
def test_what_strips_cannot_do_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="cut='samples'"):
        SparseGFA(cut="features", **other).build(meta(64, 100))


@pytest.mark.thorough
def test_strips_are_shared_where_blocks_are_few(tmp_path: Path) -> None:
    """One block, and three strips in as many threads; a run that goes on in another number of them."""
    data = factorflow.simulate("sparse_gfa", tmp_path / "d.zarr", 20, views=VIEWS, n_factors=3, seed=1)
    assert data.n_blocks == 1
    model = SparseGFA(cut="features", strip=40, n_factors=4, warmup_iter=4, max_iter=8, tol=1e-9)
    alone = factorflow.fit(data, model, holdout=0.1)
    seen: list[Any] = []

    def until_the_sixth(event: Any) -> None:
        seen.append(event)
        if len(seen) == 8:
            raise KeyboardInterrupt

    given: dict[str, Any] = {"holdout": 0.1, "executor": "threads", "out": tmp_path / "p.zarr"}
    with pytest.raises(KeyboardInterrupt):
        factorflow.fit(data, model, workers=3, on_event=until_the_sixth, **given)
    assert seen[0].n_groups == 3
    on = factorflow.fit(data, model, workers=2, resume=True, **given)
    for group in ("variational", "holdout"):
        xr.testing.assert_equal(on.tree[group].to_dataset(), alone.tree[group].to_dataset())


def test_the_group_beside_the_root_has_the_longer_run() -> None:
    """The others wait for what travels; three strips and four blocks, shared by two."""
    views = tuple(ViewMeta(name, "gaussian", 20_000, "none") for name in "xyz")
    model = SparseGFA(strip=25_000).build(Meta(320, 4, 64, views))
    plan = Plan(model, Source(None, ("x", "y", "z"), None, 0), seed=0)  # type: ignore[arg-type]
    cut = plan.portions(lambda n: cut_evenly(n, 2))
    assert [(len(portion.blocks), list(portion.strips)) for portion in cut] == [(2, [0, 1]), (2, [2])]
