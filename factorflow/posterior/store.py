"""A posterior as a tree of labelled arrays, and its files: a Zarr v3 store that xarray and ArviZ open.

Small variables are written once, by `save`. Sample-sized ones are created empty (`create_rows`,
`create_draws`) and filled block by block from any process with plain Zarr region writes: a chunk holds the
rows of one block, so every chunk has one writer. ``docs/posterior.md`` describes the layout.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.block import Meta
from factorflow.kernels.random import Step
from factorflow.models.base import Model, Variable
from factorflow.posterior.schema import attributes, group_attributes, read_attributes

if TYPE_CHECKING:
    import xarray as xr

    from factorflow.data import Dataset

__all__ = [
    "Labels",
    "assemble",
    "create_draws",
    "create_rows",
    "labels_of",
    "read_run",
    "read_variable",
    "save",
    "write_draws",
    "write_rows",
]

CHUNK_BYTES = 16 << 20
"""Largest chunk of the arrays that one writer writes whole."""

DRAW_CHUNK_BYTES = 4 << 20
"""Largest chunk of the draws of a global variable: a trace reads few of them."""


@dataclass(frozen=True)
class Labels:
    """Names of everything a posterior has axes for.

    Parameters
    ----------
    dims : mapping of str to sequence of str
        Labels per dimension: ``obs``, ``view``, ``group``, ``feature_<view>``, ``factor``.
    samples : mapping of str to (N,) array
        Columns of sample metadata, kept in the group ``constant_data``.
    """

    dims: Mapping[str, Any]
    samples: Mapping[str, Any] = field(default_factory=dict)


def labels_of(dataset: Dataset, meta: Meta, coords: Mapping[str, Sequence[str]]) -> Labels:
    """Return the labels of a model's posterior, in the dataset's order.

    Parameters
    ----------
    dataset : Dataset
        What the model was fitted to.
    meta : Meta
        What the model sees of it.
    coords : mapping of str to sequence of str
        Labels of the model's own dimensions (`Model.coords`).
    """
    dims: dict[str, Any] = {"obs": dataset.obs_names, "view": [v.name for v in meta.views]}
    if meta.groups:
        dims["group"] = meta.groups
    dims |= {f"feature_{v.name}": dataset.features(v.name) for v in meta.views}
    return Labels(dims | dict(coords), {str(name): column.to_numpy() for name, column in dataset.obs.items()})


def assemble(
    model: Model[Any],
    labels: Labels,
    record: Mapping[str, Any],
    rows: Mapping[str, Any],
    trace: Mapping[str, Sequence[Any]],
    run: Mapping[str, Any],
    scores: Mapping[str, Mapping[str, float]] | None = None,
) -> xr.DataTree:
    """Join what a run found into a tree, in memory.

    Parameters
    ----------
    model : Model
        Its table of variables says which group and which dimensions an array has.
    labels : Labels
        See `labels_of`.
    record : mapping of str to array
        Variables with ``rows=False``; of a sampler with leading (chain, draw), or nothing when its draws
        are in the store already.
    rows : mapping of str to array
        Variables with ``rows=True``, whole (leading chain, or chain and draw, for a sampler), or nothing
        when they are written separately.
    trace : mapping
        One entry an iteration: ``stage``, ``iteration``, ``kept``, ``seconds`` and ``infos`` (one mapping of
        scalars a chain).
    run : mapping
        The run record; becomes attributes.
    scores : mapping of str to mapping, optional
        Held-out scores per view.

    Returns
    -------
    xarray.DataTree
        Groups ``variational`` and ``optimization``, or ``posterior``, ``sample_stats`` and ``iterations``;
        ``holdout`` and ``constant_data`` where there are any.
    """
    import xarray as xr

    n_kept = int(sum(trace["kept"]))
    axes = dict(labels.dims)
    if model.kind == "monte carlo":
        axes |= {"chain": range(len(trace["infos"][0]) if trace["infos"] else 1), "draw": range(n_kept)}
    content: dict[str, dict[str, Any]] = {}
    used: dict[str, dict[str, None]] = {}
    for variable in model.variables():
        dims = stored_dims(model, variable)
        group = content.setdefault(variable.group, {})
        used.setdefault(variable.group, {}).update(dict.fromkeys(dims))
        value = (rows if variable.rows else record).get(variable.name)
        if value is not None:
            array = np.asarray(value, dtype=variable.dtype)
            group[variable.name] = xr.Variable(dims, array, {"long_name": variable.doc})
    groups = {
        name: xr.Dataset(
            variables, coords={dim: _label_array(axes[dim]) for dim in used[name] if dim in axes}
        )
        for name, variables in content.items()
    }
    groups |= _traces(model, trace)
    if scores:
        groups["holdout"] = _score_table(scores)
    if labels.samples:
        columns = {name: ("obs", _plain(values)) for name, values in labels.samples.items()}
        groups["constant_data"] = xr.Dataset(columns, coords={"obs": _label_array(labels.dims["obs"])})
    root = attributes(model, run)
    for dataset in groups.values():
        dataset.attrs.update(group_attributes(root))
    tree = xr.DataTree.from_dict(groups)
    tree.attrs.update(root)
    return tree


def stored_dims(model: Model[Any], variable: Variable) -> tuple[str, ...]:
    """Return the dimensions of a variable as stored: a sampler's lead with ``chain`` and ``draw``."""
    if model.kind != "monte carlo":
        return variable.dims
    lead = ("chain",) if variable.rows and not variable.draws else ("chain", "draw")
    return (*lead, *variable.dims)


def save(tree: xr.DataTree, path: str | os.PathLike[str], n_draws: int | None = None) -> None:
    """Write a tree as a Zarr v3 group; arrays that are there already (rows, draws) stay.

    Parameters
    ----------
    tree : DataTree
        What `assemble` returned.
    path : path
        The store; made when it is not there.
    n_draws : int, optional
        Draws that were really kept: arrays made for more are cut.
    """
    import zarr

    root = zarr.open_group(str(path), mode="a", zarr_format=3)
    for node in tree.subtree:
        group = root if node.path == "/" else root.require_group(node.path.strip("/"))
        group.attrs.update({str(key): value for key, value in node.attrs.items()})
        dataset = node.to_dataset(inherit=False)
        existing = dict(group.arrays())
        if n_draws is not None:
            for array in existing.values():
                _cut_draws(array, n_draws)
        for name, variable in dataset.variables.items():
            if name not in existing:
                _write_whole(group, str(name), variable)


def create_rows(
    path: str | os.PathLike[str], model: Model[Any], coords: Mapping[str, Sequence[str]], n_chains: int = 1
) -> None:
    """Create the sample-sized variables that the end of a run fills, empty.

    Parameters
    ----------
    path : path
        The store; made when it is not there.
    model : Model
        Its table of variables.
    coords : mapping of str to sequence of str
        `Model.coords` of the final globals: factors may have been dropped.
    n_chains : int
        Chains of a sampler.
    """
    sizes = _sizes(model.meta, coords) | {"chain": n_chains}
    for variable in model.variables():
        if variable.rows and not variable.draws:
            _create(path, model, variable, sizes)


def create_draws(path: str | os.PathLike[str], model: Model[Any], n_chains: int) -> None:
    """Create the variables that are stored as draws, empty: for as many as the stages keep at most."""
    n_draws = sum(stage.max_iter // stage.thin for stage in model.stages() if stage.keep)
    coords = model.coords(model.init(Step(0)))
    sizes = _sizes(model.meta, coords) | {"chain": n_chains, "draw": n_draws}
    for variable in model.variables():
        if variable.draws or not variable.rows:
            _create(path, model, variable, sizes)


def write_rows(
    path: str | os.PathLike[str],
    variable: Variable,
    start: int,
    values: Any,
    chain: int | None = None,
    draw: int | None = None,
) -> None:
    """Write one block's rows of a variable: safe from any process, one writer per chunk.

    Parameters
    ----------
    path : path
        The store.
    variable : Variable
        One with ``rows=True``, created before.
    start : int
        Global index of the first row.
    values : (B, ...) array
        The rows.
    chain, draw : int, optional
        Of a sampler; ``draw`` for variables stored at every kept iteration.
    """
    values = np.asarray(values, dtype=variable.dtype)
    lead = tuple(index for index in (chain, draw) if index is not None)
    _open(path, variable)[(*lead, slice(start, start + len(values)))] = values


def write_draws(
    path: str | os.PathLike[str], variable: Variable, first: int, values: Any, chain: int
) -> None:
    """Write consecutive draws (S, ...) of a global variable of one chain; one writer at a time."""
    values = np.asarray(values, dtype=variable.dtype)
    _open(path, variable)[chain, first : first + len(values)] = values


def read_variable(path: str | os.PathLike[str], variable: Variable, *where: slice) -> NDArray[Any]:
    """Return a stored variable, or the part of it that leading slices select."""
    return np.asarray(_open(path, variable)[where or ...])


def read_run(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the run record of a stored posterior; empty when there is none at ``path``."""
    from factorflow.errors import InputError

    try:
        return read_attributes(path)
    except InputError:
        return {}


def _sizes(meta: Meta, coords: Mapping[str, Sequence[str]]) -> dict[str, int]:
    sizes = {"obs": meta.n_rows, "view": len(meta.views), "group": len(meta.groups)}
    sizes |= {f"feature_{view.name}": view.n_features for view in meta.views}
    return sizes | {dim: len(labels) for dim, labels in coords.items()}


def _create(
    path: str | os.PathLike[str], model: Model[Any], variable: Variable, sizes: Mapping[str, int]
) -> None:
    """Create an empty array; its chunks hold one block's rows, or several draws of one chain."""
    import zarr

    dims = stored_dims(model, variable)
    shape = tuple(sizes[dim] for dim in dims)
    chunks = dict(zip(dims, (max(1, size) for size in shape), strict=True))
    if "chain" in dims:
        chunks["chain"] = 1
    if variable.rows:
        chunks["obs"] = min(model.meta.block_rows, max(1, sizes["obs"]))
        if variable.draws:
            chunks["draw"] = 1
    elif "draw" in dims:
        one = np.dtype(variable.dtype).itemsize * int(np.prod([sizes[dim] for dim in variable.dims]))
        chunks["draw"] = max(1, min(chunks["draw"], DRAW_CHUNK_BYTES // max(1, one)))
    group = zarr.open_group(str(path), mode="a", zarr_format=3).require_group(variable.group)
    array = _new_array(group, variable.name, dims, shape, tuple(chunks.values()), np.dtype(variable.dtype))
    array.attrs.update({"long_name": variable.doc})


def _new_array(
    group: Any, name: str, dims: Sequence[str], shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any
) -> Any:
    """Create an array whose chunks are all written and carry a checksum: lost or damaged ones are noticed."""
    from zarr.codecs import Crc32cCodec

    return group.create_array(
        name,
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        compressors=[Crc32cCodec()],
        dimension_names=dims,
        config={"write_empty_chunks": True},
        overwrite=True,
    )


def _open(path: str | os.PathLike[str], variable: Variable) -> Any:
    import zarr

    array = zarr.open_array(os.path.join(path, variable.group, variable.name), mode="r+", zarr_format=3)
    return array.with_config({"write_empty_chunks": True})


def _write_whole(group: Any, name: str, variable: xr.Variable) -> None:
    """Write a variable that is in memory; text becomes Zarr strings."""
    values = np.asarray(variable.values)
    text = values.dtype.kind in "OUT"
    itemsize = 16 if text else values.dtype.itemsize
    chunks = tuple(max(1, size) for size in values.shape)
    if chunks:
        rows = CHUNK_BYTES // max(1, itemsize * int(np.prod(chunks[1:])))
        chunks = (max(1, min(chunks[0], rows)), *chunks[1:])
    dims = [str(dim) for dim in variable.dims]
    array = _new_array(group, name, dims, values.shape, chunks, "string" if text else values.dtype)
    if variable.attrs:
        array.attrs.update(variable.attrs)
    if not chunks:
        array[...] = values
        return
    for start in range(0, len(values), chunks[0]):
        part = values[start : start + chunks[0]]
        array[start : start + chunks[0]] = part.astype(object) if text else part


def _cut_draws(array: Any, n_draws: int) -> None:
    names = array.metadata.dimension_names or ()
    if "draw" in names and array.shape[names.index("draw")] > n_draws:
        sizes = zip(names, array.shape, strict=True)
        array.resize(tuple(n_draws if name == "draw" else size for name, size in sizes))


def _label_array(labels: Any) -> NDArray[Any]:
    """Return labels as an array: text as objects, as it comes back from a store."""
    array = np.asarray(labels)
    return array.astype(object) if array.dtype.kind in "UT" else array


def _plain(values: Any) -> NDArray[Any]:
    """Return a column of sample metadata as numbers, truth values or text."""
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return array
    return np.array(["" if value is None or value != value else str(value) for value in array], dtype=object)


def _score_table(scores: Mapping[str, Mapping[str, float]]) -> xr.Dataset:
    import xarray as xr

    metrics = list(dict.fromkeys(name for view in scores.values() for name in view))
    table = {
        name: ("view", np.array([float(view.get(name, np.nan)) for view in scores.values()]))
        for name in metrics
    }
    return xr.Dataset(table, coords={"view": _label_array(list(scores))})


def _traces(model: Model[Any], trace: Mapping[str, Sequence[Any]]) -> dict[str, xr.Dataset]:
    """Return the groups that say how the run went, iteration by iteration."""
    import xarray as xr

    infos: Sequence[Sequence[Mapping[str, float]]] = trace["infos"]
    names = list(dict.fromkeys(name for chains in infos for info in chains for name in info))
    n_chains = len(infos[0]) if infos else 1
    scalars = {name: np.empty((n_chains, len(infos))) for name in names}
    for i, chains in enumerate(infos):
        for chain, info in enumerate(chains):
            for name in names:
                scalars[name][chain, i] = info.get(name, np.nan)
    shared: dict[str, tuple[Any, ...]] = {
        "stage": ("iteration", np.array(trace["stage"], dtype=object)),
        "seconds": ("iteration", np.array(trace["seconds"], float)),
    }
    iteration = {"iteration": np.array(trace["iteration"], np.int64)}
    if model.kind != "monte carlo":
        values = {name: ("iteration", value[0]) for name, value in scalars.items()}
        return {"optimization": xr.Dataset(shared | values, coords=iteration)}
    kept = np.array(trace["kept"], bool)
    chain_labels = {"chain": np.arange(n_chains)}
    every = shared | {"kept": ("iteration", kept)}
    every |= {name: (("chain", "iteration"), value) for name, value in scalars.items()}
    stats = {_stat_name(name): (("chain", "draw"), value[:, kept]) for name, value in scalars.items()}
    return {
        "iterations": xr.Dataset(every, coords=iteration | chain_labels),
        "sample_stats": xr.Dataset(stats, coords=chain_labels | {"draw": np.arange(int(kept.sum()))}),
    }


def _stat_name(name: str) -> str:
    """Return ArviZ's name of a statistic."""
    return "lp" if name == "objective" else name
