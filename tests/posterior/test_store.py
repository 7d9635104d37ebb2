"""What is written is what is read: labels, values, attributes; regions from blocks; damage is named."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import bayesian_pca
import numpy as np
import pytest
import xarray as xr
import zarr
from contract_tools import assert_same_bits
from zarr.errors import ZarrUserWarning

import factorflow
from factorflow import Posterior, open_posterior
from factorflow.core.block import Meta, ViewMeta
from factorflow.errors import InputError
from factorflow.kernels.random import Step
from factorflow.models.contract import Variable
from factorflow.posterior.assembly import assemble, labels_of
from factorflow.posterior.chunks import new_array
from factorflow.posterior.draw_store import make_room
from factorflow.posterior.store import (
    create_draws,
    create_rows,
    read_run,
    read_variable,
    save,
    write_draws,
    write_rows,
)


def test_saved_equals_in_memory(given: Any, tmp_path: Path) -> None:
    given.posterior.save(tmp_path / "p.zarr")
    opened = open_posterior(tmp_path / "p.zarr")
    assert_same_bits(opened, given.posterior)
    assert opened.tree.attrs == given.posterior.tree.attrs
    assert opened.config == given.posterior.config
    assert opened.meta == given.dataset.meta()
    assert read_run(tmp_path / "p.zarr") == given.run == opened.record


def test_what_users_add_to_the_root_is_no_damage(given: Any, tmp_path: Path) -> None:
    """Consolidated metadata, an attribute, a group; what was written, changed, is."""
    path = tmp_path / "p.zarr"
    given.posterior.save(path)
    root = zarr.open_group(path, mode="r+")
    root.attrs["note"] = "used in figure 2"
    root.create_group("mine").attrs["a"] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZarrUserWarning)
        zarr.consolidate_metadata(path)
    opened = open_posterior(path)
    assert_same_bits(opened, given.posterior)
    assert opened.tree.attrs == given.posterior.tree.attrs | {"note": "used in figure 2"}
    text = (path / "zarr.json").read_text()
    (path / "zarr.json").write_text(text.replace('"dimension_names"', '"dimension_name5"'))
    with pytest.raises(InputError, match="another checksum of .* in consolidated_.*consolidate_metadata"):
        open_posterior(path)  # which other readers would take for those of the arrays
    (path / "zarr.json").write_text(text)
    root.attrs["seed"] = 12
    with pytest.raises(InputError, match="another checksum"):
        open_posterior(path)


def test_a_lost_chunk_is_nan_to_other_readers(given: Any, tmp_path: Path) -> None:
    given.posterior.save(tmp_path / "p.zarr")
    for name in ("variational/scores", "optimization/iteration"):
        shutil.rmtree(tmp_path / "p.zarr" / name / "c")
    stored = xr.open_zarr(tmp_path / "p.zarr", group="variational")
    assert np.isnan(stored["scores"].values).all()
    assert not np.isnan(stored["loadings_rna"].values).any()
    iterations = xr.open_zarr(tmp_path / "p.zarr", group="optimization")["iteration"].values
    assert (iterations == np.iinfo(np.int64).min).all()  # and not 0, which may be one


def test_a_lost_chunk_of_text_or_truth_values_is_an_error(tmp_path: Path) -> None:
    """Which other readers take for empty texts, and False; also where the store was opened before."""
    rng, path = np.random.default_rng(0), tmp_path / "p.zarr"
    obs = {"sex": ["f", "m"] * 20, "treated": [True, False] * 20}
    data = factorflow.write_dataset(tmp_path / "d", {"y": rng.standard_normal((40, 6))}, obs=obs)
    factorflow.fit(data, {"model": "sparse_gfa", "n_factors": 1}, out=path, max_iter=2, progress=False)
    kept = {name: zarr.open_array(path / "constant_data" / name, mode="r")[:].tolist() for name in obs}
    assert kept == obs
    for name in ("constant_data/treated", "constant_data/sex", "variational/feature_y", "optimization/stage"):
        opened = open_posterior(path)
        (path / name / "c").rename(tmp_path / "away")
        with pytest.raises(InputError, match=f"{name}/c/0 = is missing"):
            open_posterior(path)
        if name.endswith("treated"):
            with pytest.raises(InputError, match=f"{name}/c/0 = is missing"):
                opened.tree[name].load()
        (tmp_path / "away").rename(path / name / "c")


@pytest.mark.parametrize(("dtype", "fill"), [("u1", 255), ("i4", -(2**31)), ("u8", 2**64 - 1), ("?", False)])
def test_a_lost_chunk_of_integers_is_no_value(tmp_path: Path, dtype: str, fill: int) -> None:
    array = new_array(zarr.open_group(tmp_path, mode="w"), "x", ("a",), (5,), (5,), np.dtype(dtype))
    array[:] = np.array([1, 0, 1, 1, 0], dtype)
    assert zarr.open_array(tmp_path / "x", mode="r")[:].tolist() == [1, 0, 1, 1, 0]
    shutil.rmtree(tmp_path / "x" / "c")
    assert zarr.open_array(tmp_path / "x", mode="r")[:].tolist() == [fill] * 5


def test_attributes_are_those_that_netcdf_knows(given: Any, tmp_path: Path) -> None:
    """No None and no truth values; what was None is again when it is read."""
    for tree in (given.posterior.tree, given.posterior.sample(3).to_arviz()):
        for node in tree.subtree:
            for variable in (node, *node.variables.values()):
                kinds = {type(value) for value in variable.attrs.values()}
                assert kinds <= {str, int, float}
        tree.to_dataset().to_netcdf(tmp_path / "root.nc", engine="scipy")
    assert given.posterior.record.options.workers is None


def test_labels_are_the_datasets(given: Any) -> None:
    scores = given.posterior.scores()
    assert scores.dims == ("obs", "factor")
    assert list(scores.obs.values) == list(given.dataset.obs_names)
    assert list(given.posterior.loadings("rna")["feature_rna"].values) == list(given.dataset.features("rna"))
    np.testing.assert_array_equal(given.posterior.loadings("rna"), given.record["loadings_rna"])
    np.testing.assert_array_equal(scores.sel(obs="sample 5"), given.rows["scores"][5])


def test_rows_written_by_blocks_equal_rows_in_memory(given: Any, tmp_path: Path) -> None:
    path = tmp_path / "p.zarr"
    model = given.model
    create_rows(path, model, model.coords(None))
    for number in (2, 0, 1):  # in any order
        block = given.dataset.block(number)
        for variable in model.table:
            if variable.rows:
                part = given.rows[variable.name][block.start : block.start + block.n_rows]
                write_rows(path, variable, block.start, part)
    labels = labels_of(given.dataset, model.meta, model.coords(None))
    scores = {"rna": {"n_entries": 80.0, "r2": 0.5}, "mutation": {"n_entries": 40.0, "r2": 0.2, "auc": 0.8}}
    filled = {(variable.group, variable.name) for variable in model.table if variable.rows}
    tree = assemble(model, labels, given.record, {}, given.trace, given.run, scores)
    for _ in range(2):  # what another attempt has left is written again, rows stay
        save(tree, path, filled)
        assert_same_bits(open_posterior(path), given.posterior)


def test_draws_are_cut_to_those_that_were_kept(tmp_path: Path) -> None:
    meta = Meta(40, 2, 32, (ViewMeta("a", "gaussian", 7, "none"), ViewMeta("b", "gaussian", 5, "none")))
    model = bayesian_pca.BayesianPCA(n_draws=10).build(meta)
    path = tmp_path / "p.zarr"
    create_draws(path, model, 10)
    rng = np.random.default_rng(0)
    tau = next(v for v in model.table if v.name == "tau")
    z = next(v for v in model.table if v.name == "scores_draws")
    values = rng.normal(size=(2, 6))
    draws = rng.normal(size=(2, 6, 40, 2))
    write_draws(path, tau, 0, values[:, :4])
    write_draws(path, tau, 4, values[:, 4:])
    for chain in range(2):
        for draw in range(6):
            for start in (0, 32):
                write_rows(path, z, start, draws[chain, draw, start : start + 32], (chain, draw))
    np.testing.assert_array_equal(read_variable(path, tau, slice(None), slice(6)), values)
    np.testing.assert_array_equal(
        read_variable(path, z, slice(None), slice(6), slice(10, 20)), draws[:, :, 10:20]
    )
    for variable in model.table:
        if not variable.rows and variable.name != "tau":
            shape = read_shape(path, variable)
            write_draws(path, variable, 0, np.zeros((2, 6, *shape[2:])))
    empty = xr.DataTree.from_dict({"posterior": xr.Dataset(coords={"draw": np.arange(6)})})
    save(empty, path, n_draws=6)
    stored = xr.open_datatree(path, engine="zarr", consolidated=False)["posterior"]
    assert dict(stored.sizes)["draw"] == 6
    np.testing.assert_array_equal(stored["tau"], values)
    for left_by_a_kill in (path / "iterations", path / "posterior" / "scores"):
        left_by_a_kill.mkdir()
    make_room(path, 10, 5)
    write_draws(path, tau, 6, values[:, :4])
    found = read_variable(path, tau)
    np.testing.assert_array_equal(found, np.concatenate([values, values[:, :4]], axis=1))


@pytest.mark.parametrize("name", ["scores_draws", "scores"])
def test_rows_are_the_files_that_zarr_writes(tmp_path: Path, name: str) -> None:
    """Of a last block with fewer rows, too: files of both are the same, byte for byte."""
    meta = Meta(40, 2, 32, (ViewMeta("a", "gaussian", 7, "none"), ViewMeta("b", "gaussian", 5, "none")))
    model = bayesian_pca.BayesianPCA(n_draws=4).build(meta)
    variable = next(v for v in model.table if v.name == name)
    lead = (1, 2)[: len(model.lead(variable))]
    values = np.random.default_rng(0).normal(size=(40, 2)).astype(variable.dtype)
    files = []
    for path in (tmp_path / "ours.zarr", tmp_path / "zarrs.zarr"):
        create_draws(path, model, 4)
        create_rows(path, model, model.coords(model.init(Step(0))))
        if path.stem == "ours":
            for start in (32, 0):
                write_rows(path, variable, start, values[start : start + 32], lead)
            write_rows(path, variable, 0, values[:32, :0], lead)  # of no factor: there is nothing to write
        else:
            array = zarr.open_array(path / variable.group / variable.name)
            array.with_config({"write_empty_chunks": True})[lead] = values
        files.append({str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()})
    assert files[0] == files[1]
    assert len(files[0]) >= 2


def read_shape(path: Path, variable: Variable) -> tuple[int, ...]:
    metadata = json.loads((path / variable.group / variable.name / "zarr.json").read_text())
    return tuple(metadata["shape"])


def test_every_variable_says_what_it_is(given: Any) -> None:
    for name, variable in given.posterior.tree["variational"].data_vars.items():
        assert variable.attrs["long_name"], name


def test_trace(given: Any) -> None:
    trace = given.posterior.trace
    assert list(trace["iteration"].values) == [1, 2, 3, 4, 5]
    assert float(trace["objective"][-1]) == -96.0
    assert str(trace["stage"].values[0]) == "warm-up"


def test_assemble_is_cheap(given: Any) -> None:
    labels = labels_of(given.dataset, given.model.meta, given.model.coords(None))
    chains = {name: values[None] for name, values in given.rows.items()}
    best = min(
        _timed(lambda: assemble(given.model, labels, given.record, chains, given.trace, given.run))
        for _ in range(5)
    )
    assert best < 0.05, f"{best:.3f} s"


def _timed(function: Any) -> float:
    before = time.process_time()
    function()
    return time.process_time() - before


@pytest.fixture
def stored(given: Any, tmp_path: Path) -> Path:
    given.posterior.save(tmp_path / "p.zarr")
    return tmp_path / "p.zarr"


def test_no_posterior(tmp_path: Path, given: Any) -> None:
    with pytest.raises(InputError, match="does not exist"):
        open_posterior(tmp_path / "nothing.zarr")
    with pytest.raises(InputError, match=r"factorflow\.dataset"):
        open_posterior(given.dataset.path)
    (tmp_path / "zarr.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        open_posterior(tmp_path)


def test_another_schema_version(stored: Path) -> None:
    file = stored / "zarr.json"
    text = json.loads(file.read_text())
    text["attributes"]["schema_version"] = 99
    file.write_text(json.dumps(text))
    with pytest.raises(InputError, match="schema version"):
        open_posterior(stored)


def test_a_missing_chunk_is_named(stored: Path) -> None:
    """Whatever lies in its place, as a file that a kill left half written."""
    chunk = stored / "variational" / "loadings_rna" / "c" / "0" / "0"
    chunk.rename(chunk.with_suffix(".partial"))
    with pytest.raises(InputError, match="variational/loadings_rna") as caught:
        open_posterior(stored)
    assert str(chunk) in str(caught.value)


def test_a_damaged_chunk_is_named(stored: Path) -> None:
    chunk = stored / "variational" / "loadings_rna" / "c" / "0" / "0"
    content = bytearray(chunk.read_bytes())
    content[10] ^= 1
    chunk.write_bytes(bytes(content))
    posterior = open_posterior(stored)
    posterior.scores()
    with pytest.raises(InputError, match="variational/loadings_rna"):
        posterior.loadings("rna")
    with pytest.raises(InputError, match="variational/loadings_rna"):
        open_posterior(stored).load()


def test_save_refuses_to_overwrite(given: Any, stored: Path) -> None:
    with pytest.raises(InputError, match="nothing is yet"):
        given.posterior.save(stored)


def test_unknown_names(given: Any) -> None:
    for call, name in (
        (lambda: given.posterior.loadings("dna"), "view"),
        (lambda: given.posterior.variable("dna"), "variable"),
        (lambda: given.posterior.top_features("rna", "Factor9"), "factor"),
        (lambda: given.posterior.predict("rna", obs=["nobody"]), "obs"),
        (lambda: given.posterior.predict("rna", start=1, obs=["sample 9"]), "start = 1: expected left out"),
        (lambda: given.posterior.predict("rna", size_factor=2.0), "size_factor = 2.0: expected left out"),
    ):
        with pytest.raises(InputError, match=name):
            call()


def test_unicode_and_empty_names_survive(given: Any, tmp_path: Path) -> None:
    tree = given.posterior.tree
    odd = ["é中", "", *[f"s{i}" for i in range(68)]]
    groups = {
        n.path: n.to_dataset(inherit=False).assign_coords(obs=np.array(odd, dtype=object))
        if "obs" in n.coords
        else n.to_dataset(inherit=False)
        for n in tree.subtree
    }
    posterior = Posterior(xr.DataTree.from_dict(groups))
    posterior.save(tmp_path / "p.zarr")
    assert list(factorflow.open_posterior(tmp_path / "p.zarr").obs_names) == odd


def test_variables_without_a_dimension(tmp_path: Path, given: Any) -> None:
    tree = given.posterior.tree
    tree["variational"]["alpha"] = xr.DataArray(2.0)
    Posterior(tree).save(tmp_path / "p.zarr")
    assert float(open_posterior(tmp_path / "p.zarr").variable("alpha")) == 2.0
    assert isinstance(Variable("alpha", (), "", float).dims, tuple)


def test_names_of_very_many_samples_are_read_when_they_are_used(
    given: Any, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("factorflow.posterior.open.LAZY_LABELS", 20)
    monkeypatch.setattr("factorflow.posterior.prediction.LAZY_LABELS", 20)
    posterior = open_posterior(stored)
    group = posterior.tree["variational"]
    assert "obs" not in group.indexes
    assert "feature_rna" in group.indexes
    scores = posterior.scores()
    np.testing.assert_array_equal(scores, given.rows["scores"])
    assert list(posterior.predict("rna", obs=["sample 9"])["obs"].values) == ["sample 9"]
    predicted = posterior.predict("rna")
    assert "obs" not in predicted.indexes
    expected = given.posterior.predict("rna")["mean"].values
    np.testing.assert_allclose(predicted["mean"].isel(obs=slice(3, 6)).values, expected[3:6])
    assert list(posterior.obs_names) == list(given.dataset.obs_names)
    assert list(posterior.sample_metadata()["sex"][:2]) == ["m", "f"]
    loaded = posterior.load()
    assert list(loaded.obs_names) == list(given.dataset.obs_names)
    np.testing.assert_array_equal(loaded.scores(), given.rows["scores"])
