"""A store gives back what was written, under any shape, likelihood, missingness and block size."""

from __future__ import annotations

import inspect
import json
import pickle
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import factorflow.data
from factorflow.data import DataWarning, Holdout, open_dataset, write_dataset
from factorflow.data.ingest.append import append_rows
from factorflow.errors import InputError


def as_held(values: np.ndarray, likelihood: str) -> np.ndarray:
    """What a block must hold of these values."""
    if likelihood == "bernoulli":
        return np.where(np.isnan(values), -1, values > 0).astype(np.int8)
    return values.astype(np.float32)


def assert_equal(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@st.composite
def random_views(draw: st.DrawFn) -> tuple[dict[str, np.ndarray], dict[str, str], int]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_rows = draw(st.integers(2, 70))
    views, likelihoods = {}, {}
    for i in range(draw(st.integers(1, 3))):
        n_features = draw(st.integers(1, 9))
        kind = draw(st.sampled_from(["gaussian", "bernoulli", "poisson"]))
        if kind == "gaussian":
            values = rng.standard_normal((n_rows, n_features)) * draw(st.sampled_from([1e-20, 1.0, 1e20]))
        elif kind == "bernoulli":
            values = (rng.random((n_rows, n_features)) < 0.5).astype(float)
            values = draw(st.sampled_from([values, 2 * values - 1]))
        else:
            values = rng.poisson(draw(st.sampled_from([0.05, 3.0, 300.0, 1e5])), (n_rows, n_features)).astype(
                float
            )
        values = values.astype(np.float32)
        missing = draw(st.sampled_from(["none", "samples", "scattered"]))
        if missing == "samples":
            values[rng.random(n_rows) < 0.3] = np.nan
        elif missing == "scattered":
            values[rng.random(values.shape) < 0.3] = np.nan
        values[rng.integers(n_rows)] = values[0] = 1.0  # no feature is empty
        views[f"v{i}"], likelihoods[f"v{i}"] = values, kind
    return views, likelihoods, 2 ** draw(st.integers(0, 7))


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(random_views())
def test_round_trip(made: tuple[dict[str, np.ndarray], dict[str, str], int]) -> None:
    views, likelihoods, block_rows = made
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        dataset = write_dataset(f"{folder}/store", views, likelihoods, block_rows=block_rows)
        assert list(dataset.views) == list(views)
        for name, values in views.items():
            held = as_held(values, likelihoods[name])
            assert_equal(dataset.values(name), held)
            blocks = [dataset.block(i).data[name] for i in range(dataset.n_blocks)]
            assert_equal(np.concatenate(blocks), held)
            assert all(block.flags.c_contiguous and not block.flags.writeable for block in blocks)
            assert dataset.views[name].missing == kind_of_missing(values)
            check_moments(dataset.moments(name), held, likelihoods[name])
        dataset.verify()


def kind_of_missing(values: np.ndarray) -> str:
    missing = np.isnan(values)
    if not missing.any():
        return "none"
    return "samples" if (missing.all(axis=1) == missing.any(axis=1)).all() else "scattered"


def check_moments(moments: dict[str, np.ndarray], held: np.ndarray, likelihood: str) -> None:
    x = held.astype(np.float64)
    x[x == -1 if likelihood == "bernoulli" else np.isnan(x)] = np.nan
    np.testing.assert_array_equal(moments["n_observed"], (~np.isnan(x)).sum(axis=0))
    scale = np.abs(x[~np.isnan(x)]).max() + 1e-300
    np.testing.assert_allclose(moments["mean"], np.nanmean(x, axis=0), rtol=1e-12, atol=1e-14 * scale)
    np.testing.assert_allclose(moments["variance"], np.nanvar(x, axis=0), rtol=1e-10, atol=1e-13 * scale**2)
    np.testing.assert_array_equal(moments["min"], np.nanmin(x, axis=0))
    np.testing.assert_array_equal(moments["max"], np.nanmax(x, axis=0))


def test_manifest_and_grid(tmp_path: Path, views: dict[str, np.ndarray]) -> None:
    dataset = write_dataset(tmp_path / "s", views, block_rows=64, samples=[f"p{i}" for i in range(300)])
    assert (dataset.n_rows, dataset.n_blocks, dataset.block_rows) == (300, 5, 64)
    last = dataset.block(4)
    assert (last.start, last.n_rows, last.n_blocks) == (256, 44, 5)
    meta = dataset.meta(["counts", "rna"])
    assert [view.name for view in meta.views] == ["rna", "counts"]  # always the dataset's order
    assert [view.missing for view in dataset.meta().views] == ["scattered", "samples", "none"]
    assert [view.missing for view in dataset.meta(holdout=Holdout(0.1)).views] == ["scattered"] * 3
    assert dataset.obs_names[299] == "p299"
    assert dataset.features("counts").tolist() == [f"feature{i}" for i in range(5)]
    assert_equal(dataset.values("rna", 60, 130), views["rna"][60:130])
    assert dataset.values("rna", 5, 5).shape == (0, 12)


def test_types_on_disk(tmp_path: Path, views: dict[str, np.ndarray]) -> None:
    views["large"] = views["counts"] * 70000
    write_dataset(tmp_path / "s", views)
    group = zarr.open_group(str(tmp_path / "s"), mode="r")
    found = {name: group[f"{name}/values"].dtype.name for name in views}
    assert found == {"rna": "float32", "mutation": "int8", "counts": "uint8", "large": "uint32"}
    assert "observed" in group["mutation"]
    assert "observed" not in group["counts"]
    assert "observed" not in group["rna"]


def test_xarray_reads_it(tmp_path: Path, views: dict[str, np.ndarray]) -> None:
    dataset = write_dataset(tmp_path / "s", views, groups=["a", "b", "c"] * 100, obs={"age": np.arange(300)})
    tree = dataset.tree
    assert set(tree.children) == {*views, "metadata"}
    assert tree["rna/values"].dims == ("obs", "feature")
    np.testing.assert_array_equal(tree["rna/values"].values, views["rna"])
    np.testing.assert_array_equal(tree["mutation/observed"].values, ~np.isnan(views["mutation"]))
    assert tree["group"].values[:4].tolist() == [0, 1, 2, 0]
    assert tree["counts"].attrs["likelihood"] == "poisson"
    assert tree["metadata/age"].values[5] == 5


def test_sparse_views_are_compressed(tmp_path: Path, rng: np.random.Generator) -> None:
    sparse = rng.poisson(0.05, (500, 40)).astype(np.float32)
    dense = rng.standard_normal((500, 40)).astype(np.float32)
    zeros = np.where(rng.random((500, 40)) < 0.05, dense, 0).astype(np.float32)
    views = {"sparse": sparse, "dense": dense, "zeros": zeros}
    dataset = write_dataset(tmp_path / "s", views, layout={"sparse": "dense", "zeros": "dense"})
    assert [view.compressed for view in dataset.manifest.views] == [True, False, True]
    assert_equal(dataset.values("sparse"), sparse)
    assert_equal(dataset.values("zeros"), zeros)
    assert_equal(dataset.tree["zeros/values"].values, zeros)
    dataset.verify()


@pytest.mark.thorough
def test_wide_blocks_are_tiled(tmp_path: Path, rng: np.random.Generator) -> None:
    wide = rng.standard_normal((40, 70001)).astype(np.float32)
    wide[3, 69999] = np.nan
    dataset = write_dataset(tmp_path / "s", {"wide": wide})
    assert dataset.block_rows == 64
    assert dataset.manifest.views[0].tile < 70001
    assert_equal(dataset.values("wide"), wide)
    dataset.verify()


def test_groups_sequences_and_metadata_travel(tmp_path: Path, views: dict[str, np.ndarray]) -> None:
    import pandas as pd

    obs = pd.DataFrame(
        {
            "run": np.repeat(["x", "y", "z"], 100),
            "age": np.linspace(0, 1, 300),
            "rna": ["odd / name"] * 300,  # the name of a view
            "a/b": pd.Categorical(["u", None] * 150),
        }
    )
    dataset = write_dataset(tmp_path / "s", views, obs=obs, groups="run", sequences="run", block_rows=128)
    assert dataset.groups == ("x", "y", "z")
    assert dataset.n_sequences == dataset.meta().n_sequences == 3
    block = dataset.block(1)
    assert block.columns["group"].tolist() == [1] * 72 + [2] * 56
    assert block.columns["sequence"].tolist() == [1] * 72 + [2] * 56
    assert block.columns["time"].tolist() == [*range(28, 100), *range(56)]
    frame = dataset.obs
    assert frame.index[0] == "sample0"
    assert frame["rna"].iloc[3] == "odd / name"
    pd.testing.assert_series_equal(frame["a/b"], obs["a/b"], check_index=False)
    np.testing.assert_array_equal(frame["age"], obs["age"])
    assert frame["group"].iloc[150] == "y"


@pytest.mark.thorough
def test_fingerprint_sees_every_change(tmp_path: Path, views: dict[str, np.ndarray]) -> None:
    def fingerprint(**changes: object) -> str:
        arguments: dict = {
            "views": views,
            "samples": [f"p{i}" for i in range(300)],
            "block_rows": 64,
        } | changes
        return write_dataset(tmp_path / "s", overwrite=True, **arguments).fingerprint

    first = fingerprint()
    assert fingerprint() == first
    value = {**views, "rna": views["rna"].copy()}
    value["rna"][299, 11] = np.nextafter(value["rna"][299, 11], np.float32(9))
    missing = {**views, "mutation": views["mutation"].copy()}
    missing["mutation"][299, 6] = np.nan
    seen = [
        first,
        fingerprint(views=value),
        fingerprint(views=missing),
        fingerprint(views={"rna2" if name == "rna" else name: array for name, array in views.items()}),
        fingerprint(views=dict(reversed(views.items()))),
        fingerprint(likelihoods={"counts": "gaussian"}),
        fingerprint(samples=[f"q{i}" for i in range(300)]),
        fingerprint(features={"counts": list("abcde")}),
        fingerprint(groups=["a"] * 300),
        fingerprint(block_rows=32),
    ]
    assert len(set(seen)) == len(seen)


def test_pickles_by_path(tmp_path: Path, views: dict[str, np.ndarray]) -> None:
    dataset = write_dataset(tmp_path / "s", views)
    dataset.block(0)
    data = pickle.dumps(dataset)
    assert len(data) < 400
    assert_equal(pickle.loads(data).block(0).data["rna"], dataset.block(0).data["rna"])
    write_dataset(tmp_path / "s", {"counts": views["counts"]}, overwrite=True)
    with pytest.raises(InputError, match="was replaced while it was in use"):
        pickle.loads(data).block(0)


def test_many_threads(tmp_path: Path, views: dict[str, np.ndarray]) -> None:
    dataset = pickle.loads(
        pickle.dumps(write_dataset(tmp_path / "s", views, block_rows=16, groups=["a"] * 300))
    )
    whole = {name: dataset.values(name) for name in views}
    errors = []

    def read(number: int) -> None:
        try:
            for i in range(dataset.n_blocks):
                block = dataset.block((i + number) % dataset.n_blocks)
                for name, values in block.data.items():
                    assert_equal(values, whole[name][block.start : block.start + block.n_rows])
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "absent", "empty"])
def test_damaged_chunk(tmp_path: Path, rng: np.random.Generator, compressed: bool, damage: str) -> None:
    values = rng.poisson(0.05 if compressed else 5.0, (128, 20))
    dataset = write_dataset(tmp_path / "s", {"counts": values}, block_rows=32, layout={"counts": "dense"})
    assert dataset.manifest.views[0].compressed is compressed
    file = tmp_path / "s" / "counts" / "values" / "c" / "2" / "0"
    content = bytearray(file.read_bytes())
    if damage == "truncated":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif damage == "empty":
        file.write_bytes(b"")
    else:
        file.unlink()
    dataset.block(1)
    with pytest.raises(InputError, match=r"values/c/2/0.*view 'counts'"):
        dataset.block(2)
    with pytest.raises(InputError, match=r"values/c/2/0"):
        dataset.verify()


def test_damaged_mask_and_names(tmp_path: Path, views: dict[str, np.ndarray]) -> None:
    dataset = write_dataset(tmp_path / "s", views)
    (tmp_path / "s" / "mutation" / "observed" / "c" / "0" / "0").unlink()
    with pytest.raises(InputError, match="observed/c/0/0"):
        dataset.block(0)
    file = tmp_path / "s" / "rna" / "feature" / "c" / "0"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match="rna/feature"):
        open_dataset(tmp_path / "s").features("rna")


def test_verify_sees_replaced_names(tmp_path: Path, views: dict[str, np.ndarray]) -> None:
    dataset = write_dataset(tmp_path / "s", views)
    zarr.open_group(str(tmp_path / "s"))["rna/feature"][0] = "other"
    with pytest.raises(InputError, match="rna/feature"):
        dataset.verify()


def test_refuses_what_is_no_dataset(tmp_path: Path, views: dict[str, np.ndarray]) -> None:
    with pytest.raises(InputError, match="does not exist"):
        open_dataset(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="not a Zarr v3 group"):
        open_dataset(tmp_path / "folder")
    zarr.create_group(str(tmp_path / "other"))
    with pytest.raises(InputError, match="another program"):
        open_dataset(tmp_path / "other")
    write_dataset(tmp_path / "s", views)
    document = json.loads((tmp_path / "s" / "zarr.json").read_text())
    for change, message in (
        ({"schema_version": 99}, r"schema version.*99.*expected 3 or 4"),
        ({"views": [{"name": "rna"}]}, r"s/zarr\.json = another checksum"),
        ({"signature": "0"}, r"s/zarr\.json = another checksum"),
    ):
        changed = {**document, "attributes": {**document["attributes"], **change}}
        (tmp_path / "s" / "zarr.json").write_text(json.dumps(changed))
        with pytest.raises(InputError, match=message):
            open_dataset(tmp_path / "s")
    (tmp_path / "s" / "zarr.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        open_dataset(tmp_path / "s")


def test_unknown_view_and_block(tmp_path: Path, views: dict[str, np.ndarray]) -> None:
    dataset = write_dataset(tmp_path / "s", views)
    for call in (
        lambda: dataset.meta(["rnaa"]),
        lambda: dataset.block(0, ["rnaa"]),
        lambda: dataset.features("rnaa"),
        lambda: dataset.values("rnaa"),
    ):
        with pytest.raises(InputError, match=r"rnaa.*rna, mutation, counts"):
            call()
    with pytest.raises(InputError, match="at least one view"):
        dataset.meta([])
    with pytest.raises(InputError, match="0 to"):
        dataset.block(99)
    with pytest.raises(InputError, match="simulated"):
        dataset.truth  # noqa: B018


def test_description(tmp_path: Path, views: dict[str, np.ndarray]) -> None:
    dataset = write_dataset(tmp_path / "s", views, likelihoods={"rna": "gaussian"})
    facts = dataset.describe()
    json.dumps(facts)
    assert facts["n_samples"] == 300
    by_name = {view["name"]: view for view in facts["views"]}
    assert by_name["rna"]["likelihood_from"] == "given"
    assert by_name["counts"]["likelihood_from"] == "guessed"
    assert by_name["mutation"]["missing_percent"] == pytest.approx(100 / 30, abs=1e-3)
    assert by_name["mutation"]["n_missing_samples"] == 10
    text = repr(dataset)
    assert "300 samples, 3 views" in text
    assert "poisson (guessed)" in text
    assert dataset.fingerprint[:12] in dataset._repr_html_()


def test_lazy_package() -> None:
    assert factorflow.data.Dataset is inspect.unwrap(open_dataset).__globals__["Dataset"]
    with pytest.raises(AttributeError, match="nothing"):
        factorflow.data.nothing  # noqa: B018


def test_attributes(tmp_path: Path) -> None:
    """What else belongs to a dataset is kept and checked; the fingerprint does not depend on it."""
    values = np.random.default_rng(0).standard_normal((40, 3))
    kept: dict[str, Any] = {"unit": "mV", "gains": np.eye(3)[:2], "names": np.array(["a", "bc"]), "n": 3}
    dataset = write_dataset(tmp_path / "d", {"y": values}, attributes=kept)
    plain = write_dataset(tmp_path / "e", {"y": values})
    assert dataset.fingerprint == plain.fingerprint
    assert plain.attributes == {}
    assert "attributes: " not in repr(plain)
    found = open_dataset(tmp_path / "d").attributes
    assert found.keys() == kept.keys()
    for name, value in kept.items():
        np.testing.assert_array_equal(found[name], value)
    assert "attributes: " in repr(dataset)
    assert "gains" in dataset._repr_html_()
    described = dataset.describe()["attributes"]
    assert described == {"unit": "mV", "n": 3, "gains": "array (2, 3)", "names": "array (2,)"}
    with pytest.raises(InputError, match="with attributes"):
        append_rows(tmp_path / "d", {"y": values})
    chunk = tmp_path / "d" / "attributes" / "gains" / "c" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")
    with pytest.raises(InputError, match="gains"):
        open_dataset(tmp_path / "d").verify()


@pytest.mark.parametrize(
    ("kept", "match"),
    [({"a b": 1}, "a b"), ({"a": {1}}, "a plain value"), ({"a": np.nan}, "a plain value"),
     ({"a": np.array(1.0)}, "a plain value"), ({"a": np.array([None])}, "a plain value")],
)  # fmt: skip
def test_attributes_that_cannot_be_kept(tmp_path: Path, kept: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        write_dataset(tmp_path / "d", {"y": np.eye(4)}, attributes=kept)
    assert not list(tmp_path.iterdir())


def test_a_view_called_attributes_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorflow.data.ingest.checks.RESERVED", frozenset())  # the name was free
    dataset = write_dataset(tmp_path / "d", {"attributes": np.random.default_rng(0).random((9, 3))})
    assert dataset.attributes == {}
    assert dataset.values("attributes").shape == (9, 3)


def test_rows_are_not_appended_to_recoded_values(tmp_path: Path) -> None:
    """-1 and 1 were taken for 0 and 1: new rows of 0 and 1, or of -1 alone, would mean something else."""
    values = np.where(np.random.default_rng(0).random((40, 3)) < 0.5, -1.0, 1.0)
    write_dataset(tmp_path / "d", {"y": values}, {"y": "bernoulli"})
    before = open_dataset(tmp_path / "d").fingerprint
    with pytest.raises(InputError, match="with recoded values"):
        append_rows(tmp_path / "d", {"y": values[:5]})
    assert open_dataset(tmp_path / "d").fingerprint == before
