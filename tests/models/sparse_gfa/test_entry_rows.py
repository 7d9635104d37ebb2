"""Gaussian views that are mostly zeros: fits by their other entries are those of dense rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import factorflow as ff
from factorflow.core.block import SPARSE_BELOW
from factorflow.core.kinds import KINDS
from factorflow.data.holdout import Holdout
from factorflow.data.sample_tables import model_meta
from factorflow.engine.memory import measure
from factorflow.kernels.sparse_rows import SparseRows, join_rows
from factorflow.models import SparseGFA
from factorflow.models.contract import Step
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.kernels.entry_rows import EntryRows
from factorflow.models.sparse_gfa.start import signs

N, D, K = 300, 60, 3


def counts(n: int = N, seed: int = 0) -> sp.csr_array:
    """Return counts of cells, three programs, of which one in eight is not 0."""
    rng = np.random.default_rng(5)
    loadings = 0.1 + rng.gamma(0.2, 1.0, (K, D))
    rng = np.random.default_rng(seed)
    rate = rng.gamma(0.4, 1.0, (n, K)) @ loadings
    return sp.csr_array(rng.poisson(rate * 0.3 / rate.mean()).astype(np.float32))


def metadata(n: int = N) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame({"batch": rng.choice(["a", "b"], n), "age": rng.standard_normal(n)})


def write_log_normalised(path: Path, values: Any, other: Any) -> Any:
    """Write counts beside a dense view, and their logarithms as a view without entries where they are 0."""
    made = ff.write_dataset(
        path,
        {"counts": values, "other": other},
        likelihoods={"counts": "poisson", "other": "gaussian"},
        layout={"counts": "sparse"},
        obs=metadata(),
        groups=metadata()["batch"].tolist(),
        block_rows=64,
    )
    return ff.add_view(made.path, "rna", of="counts", transform="log1p", target_sum=20, max_value=3)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Log-normalised counts beside a dense view that lacks entries, some cells absent from both."""
    rng = np.random.default_rng(2)
    other = rng.standard_normal((N, 8))
    other[rng.random(other.shape) < 0.2] = np.nan
    return write_log_normalised(tmp_path_factory.mktemp("entries") / "d", counts(), other)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Log-normalised counts of three files that lack features, beside a view without some cells of each."""
    values = counts().toarray()
    values[:130, :11] = values[130:220, 5:30] = values[[4, 131, 250]] = np.nan
    other = np.random.default_rng(2).standard_normal((N, 8))
    other[::7] = np.nan
    return write_log_normalised(tmp_path_factory.mktemp("files") / "d", values, other)


OPTIONS: dict[str, dict[str, Any]] = {
    "one view": {"views": ("rna",), "scores": "normal"},
    "beside a dense one": {"views": ("rna", "other"), "scores": "normal"},
    "groups": {"views": ("rna",), "scores": "ard", "grouped_noise": True},
    "covariates": {"views": ("rna",), "covariates": "~ age + batch", "scores": "normal"},
    "scaled features": {"views": ("rna",), "scale_features": True, "loadings": "ard", "scores": "normal"},
    "no centre": {"views": ("rna",), "intercepts": False, "center": False, "scores": "normal"},
    "spikes of scores": {"views": ("rna",), "scores": "spike"},
    "smooth": {"views": ("rna",), "smooth_covariates": ["age"], "smooth_groups": False},
    "starts": {"views": ("rna",), "n_starts": 2, "scores": "normal"},
}


@pytest.mark.thorough
@pytest.mark.parametrize("options", OPTIONS)
def test_fits_are_those_of_dense_rows(dataset: Any, options: str) -> None:
    """Sums are in another order: equal to rounding."""
    check_fit(dataset, SparseGFA(n_factors=4, max_iter=12, warmup_iter=4, **OPTIONS[options]))


@pytest.mark.parametrize("options", ["beside a dense one", "groups", "covariates", "scaled features"])
def test_fits_of_files_that_lack_features(files: Any, options: str) -> None:
    check_fit(files, SparseGFA(n_factors=4, max_iter=8, warmup_iter=3, **OPTIONS[options]))


@pytest.mark.thorough
def test_fits_without_rows_that_are_held_out(files: Any) -> None:
    model = SparseGFA(views=("rna", "other"), n_factors=3, max_iter=6, warmup_iter=2, scores="normal")
    check_fit(files, model, holdout=0.2, holdout_unit="row")


def check_fit(dataset: Any, model: SparseGFA, **options: Any) -> None:
    """Fit by entries, and dense."""
    assert model_meta(dataset, model).sparse_views == ("rna",)
    by_entries = ff.fit(dataset, model, seed=1, **options)
    with patch.object(SparseGFA, "sparse_views", lambda self, meta: ()):
        dense = ff.fit(dataset, model, seed=1, **options)
    assert by_entries.scores().shape == dense.scores().shape
    np.testing.assert_allclose(by_entries.scores(), dense.scores(), atol=1e-8)
    np.testing.assert_allclose(by_entries.loadings("rna"), dense.loadings("rna"), atol=1e-8)
    np.testing.assert_allclose(by_entries.variance_explained(), dense.variance_explained(), atol=1e-9)
    np.testing.assert_allclose(*(fit.summary()["objective"] for fit in (by_entries, dense)), rtol=1e-10)


@pytest.mark.thorough
def test_single_precision(dataset: Any) -> None:
    """As large data are fitted: equal to what single precision has."""
    model = SparseGFA(n_factors=4, max_iter=12, warmup_iter=4, views=("rna",), scores="normal", precision=32)
    by_entries = ff.fit(dataset, model, seed=1)
    with patch.object(SparseGFA, "sparse_views", lambda self, meta: ()):
        dense = ff.fit(dataset, model, seed=1)
    np.testing.assert_allclose(by_entries.scores(), dense.scores(), atol=2e-4)


@pytest.mark.parametrize("name", ["dataset", "files"])
def test_blocks_hold_entries(name: str, request: pytest.FixtureRequest) -> None:
    """The fit is not a dense one in disguise."""
    dataset = request.getfixturevalue(name)
    with patch.object(SparseRows, "dense", side_effect=AssertionError("dense")):
        ff.fit(dataset, SparseGFA(views=("rna",), n_factors=3, max_iter=2, scores="normal"))


def test_what_needs_dense_rows_gets_them(dataset: Any) -> None:
    def views(holdout: Any = None, **options: Any) -> tuple[str, ...]:
        return model_meta(dataset, SparseGFA(views=("rna",), n_factors=3, **options), holdout).sparse_views

    assert views() == ("rna",)
    assert views(Holdout(0.1, 1)) == ()
    assert views(n_draws=3) == ()
    assert views(noise="sample") == ()
    assert views(likelihoods="student_t") == ()


@pytest.mark.thorough
def test_new_samples(dataset: Any, tmp_path: Path) -> None:
    """New samples by their entries, dense ones, and ones that lack features of the fit."""
    fitted = ff.fit(dataset, SparseGFA(views=("rna",), n_factors=3, max_iter=20, scores="normal"), seed=1)
    new = counts(80, seed=9)
    projected = []
    for layout, columns in (("sparse", slice(None)), ("dense", slice(None)), ("sparse", slice(0, 50))):
        made = ff.write_dataset(
            tmp_path / f"{layout}{columns.stop}",
            {"counts": new[:, columns]},
            likelihoods={"counts": "poisson"},
            layout={"counts": layout},
        )
        made = ff.add_view(made.path, "rna", of="counts", transform="log1p", target_sum=20)
        projected.append(fitted.project(made).scores().to_numpy())
    np.testing.assert_allclose(projected[0], projected[1], atol=1e-8)
    assert 0.9 < np.corrcoef(projected[0].ravel(), projected[2].ravel())[0, 1] < 1 - 1e-6


@pytest.mark.thorough
def test_absent_cells(tmp_path: Path) -> None:
    """A cell that the view lacks adds nothing to its features, and has the scores of its other view."""
    values = np.where(np.arange(N)[:, None] % 7 == 3, np.nan, counts().toarray())
    other = np.random.default_rng(3).standard_normal((N, 6))
    fits = []
    for layout in ("sparse", "dense"):
        made = ff.write_dataset(
            tmp_path / layout,
            {"rna": values, "other": other},
            likelihoods={"rna": "gaussian", "other": "gaussian"},
            layout={"rna": layout},
            block_rows=64,
        )
        model = SparseGFA(n_factors=3, max_iter=10, warmup_iter=3)
        assert model_meta(made, model).sparse_views == (("rna",) if layout == "sparse" else ())
        fits.append(ff.fit(made, model, seed=1))
    np.testing.assert_allclose(fits[0].scores(), fits[1].scores(), atol=1e-8)
    np.testing.assert_allclose(fits[0].loadings("rna"), fits[1].loadings("rna"), atol=1e-8)


def test_measurements_that_are_mostly_zeros_are_stored_sparse(tmp_path: Path) -> None:
    """Log-normalised counts as scanpy leaves them in X, with a likelihood named or not."""
    values = counts()
    values.data = np.log1p(values.data * 0.7)
    for name, likelihoods in (("named", {"x": "gaussian"}), ("guessed", None)):
        made = ff.write_dataset(tmp_path / name, {"x": values}, likelihoods=likelihoods)
        assert made.manifest.views[0].layout == "sparse"
        np.testing.assert_array_equal(made.block(0).data["x"], values.toarray()[:256])
    dense = ff.write_dataset(
        tmp_path / "dense", {"x": values + 1.0 * (values.toarray() == 0)}, likelihoods={"x": "gaussian"}
    )
    assert dense.manifest.views[0].layout == "dense"


def test_rows_of_few_zeros_are_multiplied_dense(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((64, 20))
    values[np.random.default_rng(1).random(values.shape) < 0.9 - SPARSE_BELOW] = 0.0
    made = ff.write_dataset(
        tmp_path / "d", {"x": values}, likelihoods={"x": "gaussian"}, layout={"x": "sparse"}
    )
    assert model_meta(made, SparseGFA(n_factors=3)).sparse_views == ()


def test_memory_is_that_of_entries(dataset: Any) -> None:
    """The fullest block takes what rows are told to take; a run is told less than of dense rows."""
    meta = model_meta(dataset, SparseGFA(views=("rna",), n_factors=3))
    blocks = [dataset.read(i, ["rna"], sparse=["rna"])[0].data["rna"] for i in range(dataset.n_blocks)]
    of_counts = meta.row_bytes - 4  # the code of its group travels with a row
    assert max(b.nbytes for b in blocks) <= 64 * of_counts <= 1.1 * max(b.nbytes for b in blocks)
    dense = replace(meta, sparse_views=())
    assert of_counts < 0.5 * (dense.row_bytes - 4)
    footprints = [measure(SparseGFA(n_factors=3).build(m)) for m in (meta, dense)]
    assert footprints[0].kept_per_row < 0.6 * footprints[1].kept_per_row


def test_memory_of_files_is_that_of_entries(files: Any) -> None:
    meta = model_meta(files, SparseGFA(views=("rna",), n_factors=3))
    footprints = [measure(SparseGFA(n_factors=3).build(m)) for m in (meta, replace(meta, sparse_views=()))]
    assert footprints[0].kept_per_row < 0.7 * footprints[1].kept_per_row


def random_rows(missing: str) -> tuple[SparseRows, np.ndarray]:
    rng = np.random.default_rng(4)
    values = np.where(rng.random((20, 9)) < 0.3, rng.standard_normal((20, 9)), 0.0)
    if missing != "none":
        values[[3, 11]] = np.nan
    whole = SparseRows.from_dense(np.nan_to_num(values), np.isnan(values))
    if missing != "features":
        return whole, values
    parts = [(slice(0, 6), np.arange(2, 9)), (slice(6, 15), np.arange(9)), (slice(15, 20), np.arange(6))]
    for part, features in parts:
        values[part, np.setdiff1d(np.arange(9), features)] = np.nan
    cut = [whole[part].select(f).reindex(f, np.arange(f.size), 9) for part, f in parts]
    return join_rows(cut), values


@pytest.mark.parametrize("missing", ["none", "rows", "features"])
def test_products(missing: str) -> None:
    rows, values = random_rows(missing)
    rng = np.random.default_rng(6)
    reference, inverse = rng.standard_normal(9), rng.uniform(0.5, 2, 9)
    centred, expected = (
        gfa.centred(rows, reference, inverse, np.float64),
        gfa.centred(values, reference, inverse, np.float64),
    )
    assert isinstance(centred, EntryRows)
    left, right = rng.standard_normal((9, 4)), rng.standard_normal((20, 4))
    np.testing.assert_allclose(centred @ left, expected @ left)
    np.testing.assert_allclose(centred.T @ right, expected.T @ right)
    np.testing.assert_allclose(centred.dense(), expected)
    wide = rng.standard_normal((9, 40))  # more columns than are multiplied at once
    np.testing.assert_allclose(centred @ wide, expected @ wide)
    single = gfa.centred(rows, reference, inverse, np.float32)
    np.testing.assert_allclose(single @ left, expected @ left, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gfa.take_columns(centred, np.array([7, 2])), expected[:, [7, 2]])
    np.testing.assert_allclose(centred.subtract(right, left).dense(), expected - right @ left.T)
    np.testing.assert_allclose(
        centred.subtract_observed(right, left).dense(), expected - right @ left.T * ~np.isnan(values)
    )
    np.testing.assert_allclose(
        centred.subtract(right, left).squares(), ((expected - right @ left.T) ** 2).sum()
    )
    np.testing.assert_allclose(gfa.observed(rows).T @ right, gfa.observed(values).T @ right)
    for mine, other in zip(gfa.column_moments(rows), gfa.column_moments(values), strict=True):
        np.testing.assert_allclose(mine, other)
    gaps, dense_gaps = gfa.gaps(rows, False), gfa.gaps(values, False)
    pairs = rng.standard_normal((9, 5))
    of_rows = (gfa.pairs_by_row(pairs, one, pairs.sum(axis=0)) for one in (gaps, dense_gaps))
    np.testing.assert_allclose(*of_rows, atol=1e-12)
    np.testing.assert_array_equal(gaps.missing, dense_gaps.missing)
    np.testing.assert_array_equal(gaps.present, dense_gaps.present)
    assert gaps.complete is (missing == "none")
    picked = np.array([5, 3, 19, 0])
    np.testing.assert_array_equal(rows[picked].dense(KINDS["gaussian"]), values[picked])
    np.testing.assert_array_equal(rows[values[:, 0] == 0].dense(KINDS["gaussian"]), values[values[:, 0] == 0])


@pytest.mark.thorough
def test_some_zeros_stand_for_all() -> None:
    """Of zeros one in a group is listed, larger by the root of its size; a part of the rows is the same."""
    rng = np.random.default_rng(8)
    values = np.where(rng.random((90, 70)) < 0.1, rng.gamma(1.0, size=(90, 70)), 0.0)
    sparse = SparseRows.from_dense(values, None)
    centred = gfa.centred(sparse, values.mean(axis=0), np.ones(70), np.float64)
    centred = centred.subtract(rng.standard_normal((90, 3)), rng.standard_normal((70, 3)))
    numbers, words = np.arange(90) + 5, (1, 2, 3, 4)
    listed = centred.with_some_zeros(numbers, words, 8)
    dense, whole, zero = listed.dense(), centred.dense(), values == 0.0
    np.testing.assert_allclose(dense[~zero], whole[~zero])
    some = zero & (dense != 0.0)
    np.testing.assert_allclose(dense[some], np.sqrt(8.0) * whole[some])
    assert abs(some.sum() / zero.sum() - 1 / 8) < 3 * np.sqrt(1 / 8 / zero.sum())
    groups = np.add.reduceat(some, np.arange(0, 70, 8), axis=1)
    assert groups.max() == 1
    drawn = listed.with_signs(numbers, words).dense() / np.where(dense == 0.0, 1.0, dense)
    assert set(np.unique(drawn)) == {-1.0, 0.0, 1.0}
    bits = np.unpackbits(Step(1, chain=4, iteration=2).bits(3, numbers, 128), axis=1)
    n_entries = np.diff(listed.start)
    expected = np.concatenate([mine[:n] for mine, n in zip(bits, n_entries, strict=True)])
    np.testing.assert_array_equal(
        listed.with_signs(numbers, words).entries < 0, (listed.entries < 0) ^ expected
    )
    part = gfa.centred(sparse[40:], values.mean(axis=0), np.ones(70), np.float64)
    part = part.subtract(centred.left[40:, 1:], centred.right[:, 1:]).with_some_zeros(numbers[40:], words, 8)
    np.testing.assert_array_equal(part.dense(), dense[40:])
    np.testing.assert_array_equal(
        part.with_signs(numbers[40:], words).dense(), listed.with_signs(numbers, words).dense()[40:]
    )


def test_signs_of_some_zeros_show_the_same_edge() -> None:
    """Largest singular values are those of all entries with random signs, to a hundredth."""
    rng = np.random.default_rng(9)
    values = (rng.random((1500, 400)) < rng.uniform(0.02, 0.2, 400)) * rng.gamma(2.0, size=(1500, 400))
    scale = 1.0 / values.std(axis=0)
    centred = gfa.centred(SparseRows.from_dense(values, None), values.mean(axis=0), scale, np.float64)
    listed = centred.with_some_zeros(np.arange(1500), (0, 9, 1, 0), 16)
    edge: dict[str, list[Any]] = {"some": [], "all": []}
    for draw in range(3):
        flipped = listed.with_signs(np.arange(1500), (0, draw, 1, 0)).dense()
        edge["some"].append(np.linalg.norm(flipped, 2))
        edge["all"].append(np.linalg.norm(centred.dense() * rng.choice([-1.0, 1.0], values.shape), 2))
    assert abs(np.mean(edge["some"]) / np.mean(edge["all"]) - 1.0) < 0.01


def test_components_of_some_zeros_are_counted_as_of_all(dataset: Any) -> None:
    model = SparseGFA(n_factors=4, max_iter=3, warmup_iter=2, views=("rna",), scores="normal")
    with patch.object(signs, "LISTED_ZEROS", N * D // 8):
        some = ff.fit(dataset, model, seed=1)
    with patch.object(SparseGFA, "sparse_views", lambda self, meta: ()):
        dense = ff.fit(dataset, model, seed=1)
    np.testing.assert_allclose(some.scores(), dense.scores(), atol=1e-8)
