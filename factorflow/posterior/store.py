"""The files of a posterior: a Zarr v3 store that xarray and ArviZ open.

Small variables are written once, by `save`. Sample-sized ones are created empty (`create_rows`,
`create_draws`) and filled block by block from any process: a chunk holds the rows of one block, so every
chunk has one writer. ``docs/posterior.md`` describes the layout.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.block import Meta
from factorflow.errors import InputError, RunError
from factorflow.kernels.random import Step
from factorflow.models.contract import Model, Variable
from factorflow.posterior.assembly import stored_dims
from factorflow.posterior.chunks import new_array, open_array, write_part
from factorflow.posterior.draw_store import resize
from factorflow.posterior.record import RunRecord
from factorflow.posterior.schema import read_attributes
from factorflow.storage.checksums import write_manifest
from factorflow.storage.local import describe
from factorflow.storage.remote import RemotePath

if TYPE_CHECKING:
    import xarray as xr


CHUNK_BYTES = 16 << 20
"""Largest chunk of the arrays that one writer writes whole."""

TEXT_BYTES = 64
"""What a name is taken to cost."""

DRAW_CHUNK_BYTES = 4 << 20
"""Largest chunk of the draws of a global variable: a trace reads few of them."""


def save(
    tree: xr.DataTree,
    path: str | os.PathLike[str],
    filled: Set[tuple[str, str]] = frozenset(),
    n_draws: int | None = None,
    n_sets: int = 0,
) -> None:
    """Write a tree as a Zarr v3 group, but for what was filled by others, and the checksums of all.

    Parameters
    ----------
    path : path
        The store; made when it is not there.
    filled : set of (str, str)
        Group and name of the variables that stay: rows and draws that this run has written.
    n_draws : int, optional
        Draws that were really kept: arrays made for more are cut.
    n_sets : int
        Of a sampler, sets of globals that were.
    """
    import zarr

    from factorflow.storage.verified_store import DurableStore

    with _disk(path, int(tree.nbytes)):
        root = zarr.open_group(DurableStore(path), mode="a", zarr_format=3, use_consolidated=False)
        for node in tree.subtree:
            group = root if node.path == "/" else root.require_group(node.path.strip("/"))
            group.attrs.update({str(key): value for key, value in node.attrs.items()})
            dataset = node.to_dataset(inherit=False)
            for name, variable in dataset.variables.items():
                if (node.path.strip("/"), str(name)) not in filled:
                    _write_variable(group, str(name), variable)
        if n_draws is not None:
            resize(path, n_draws, n_sets, grow=False)
        # verified: draws were written by other processes, or before a resume
        write_manifest(path, verify=True, consolidate=True)


def create_rows(
    path: str | os.PathLike[str], model: Model[Any, Any], coords: Mapping[str, Sequence[str]]
) -> None:
    """Create the sample-sized variables that the end of a run fills, empty.

    Parameters
    ----------
    path : path
        The store; made when it is not there.
    coords : mapping of str to sequence of str
        `Model.coords` of the final globals: factors may have been dropped.
    """
    sizes = _sizes(model.meta, coords) | {"chain": model.n_chains}
    for variable in model.table:
        if variable.rows and not variable.draws:
            _create(path, model, variable, sizes)


def create_draws(
    path: str | os.PathLike[str], model: Model[Any, Any], n_draws: int, globals_: Any = None
) -> None:
    """Create the variables that are stored as draws, empty: for as many of each chain as are kept at most.

    Their sizes are those of ``globals_``, of the start of a run where there are none.
    """
    coords = model.coords(model.init(Step(0)) if globals_ is None else globals_)
    sizes = _sizes(model.meta, coords) | {"chain": model.n_chains, "draw": n_draws}
    for variable in model.table:
        if variable.draws or not variable.rows:
            _create(path, model, variable, sizes)


def fit_draws(path: str | os.PathLike[str], model: Model[Any, Any], n_draws: int, globals_: Any) -> None:
    """Make the variables that are stored as draws anew where they are of another size than these globals.

    For samplers that begin with an optimisation that may drop factors. Called between stages, before the
    first draw; doing it again changes nothing.
    """
    sizes = _sizes(model.meta, model.coords(globals_)) | {"chain": model.n_chains, "draw": n_draws}
    with _disk(path):
        for variable in model.table:
            if variable.draws or not variable.rows:
                dims = stored_dims(model, variable)
                now = dict(zip(dims, open_array(_folder(path, variable)).shape, strict=True))
                if any(now[dim] != sizes[dim] for dim in dims if dim != "draw"):
                    _create(path, model, variable, sizes)


def write_rows(
    path: str | os.PathLike[str], variable: Variable, start: int, values: Any, lead: tuple[int, ...] = ()
) -> None:
    """Write one block's rows of a variable, the file of a chunk: safe from any process.

    Parameters
    ----------
    variable : Variable
        One with ``rows=True``, created before.
    lead : tuple of int
        Of a sampler, the chain; for variables stored at every kept iteration, the chain and the draw.
    """
    values = np.asarray(values)
    with _disk(path, values.nbytes):
        write_part(_folder(path, variable), (*lead, start), values[(None,) * len(lead)])


def write_draws(path: str | os.PathLike[str], variable: Variable, first: int, values: Any) -> None:
    """Write consecutive draws (C, S, ...) of a global variable of all chains; one writer at a time.

    The chunks may hold draws before those, which a checkpoint relies on: they are brought to the disk.
    """
    values = np.asarray(values)
    with _disk(path, values.nbytes):
        write_part(_folder(path, variable), (0, first), values, durable=True)


def read_variable(path: str | os.PathLike[str], variable: Variable, *where: slice) -> NDArray[Any]:
    """Return a stored variable, or the part of it that leading slices select."""
    from factorflow.storage.verified_store import open_array

    return np.asarray(open_array(path, f"{variable.group}/{variable.name}")[where or ...])


def read_run(path: str | os.PathLike[str] | RemotePath) -> RunRecord | None:
    """Return the run record of a stored posterior; None when there is none at ``path``."""
    try:
        return RunRecord.of_attributes(read_attributes(path))
    except InputError:
        return None


@contextmanager
def _disk(path: str | os.PathLike[str], needed: int = 0) -> Iterator[None]:
    """Convert disk errors while a run writes its results into a RunError that names the store."""
    try:
        yield
    except OSError as error:
        raise RunError(f"the posterior {path} cannot be written: {describe(error, path, needed)}") from error


def _sizes(meta: Meta, coords: Mapping[str, Sequence[str]]) -> dict[str, int]:
    sizes = {"obs": meta.n_rows, "view": len(meta.value_views), "group": len(meta.groups)}
    sizes |= {f"feature_{view.name}": view.n_features for view in meta.views}
    return sizes | {dim: len(labels) for dim, labels in coords.items()}


def _create(
    path: str | os.PathLike[str], model: Model[Any, Any], variable: Variable, sizes: Mapping[str, int]
) -> None:
    """Create an empty array; its chunks hold one block's rows, or several draws of one chain."""
    import zarr

    from factorflow.storage.verified_store import DurableStore

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
        most = max(1, DRAW_CHUNK_BYTES // max(1, one))
        chunks["draw"] = min(chunks["draw"], 1 << (most.bit_length() - 1))  # as draws come: `draw_chunk`
    about = {"long_name": variable.doc}
    with _disk(path):
        group = zarr.open_group(
            DurableStore(path), mode="a", zarr_format=3, use_consolidated=False
        ).require_group(variable.group)
        new_array(group, variable.name, dims, shape, tuple(chunks.values()), np.dtype(variable.dtype), about)


def _folder(path: str | os.PathLike[str], variable: Variable) -> Path:
    """Return where the array of a variable is."""
    return Path(path, variable.group, variable.name)


def _write_variable(group: Any, name: str, variable: xr.Variable) -> None:
    """Write a variable in pieces, so that lazy variables are never in memory as a whole."""
    text = variable.dtype.kind in "OUT"
    itemsize = TEXT_BYTES if text else variable.dtype.itemsize
    chunks = tuple(max(1, size) for size in variable.shape)
    if chunks:
        rows = CHUNK_BYTES // max(1, itemsize * int(np.prod(chunks[1:])))
        chunks = (max(1, min(chunks[0], rows)), *chunks[1:])
    dims = [str(dim) for dim in variable.dims]
    dtype = "string" if text else variable.dtype
    array = new_array(group, name, dims, variable.shape, chunks, dtype, variable.attrs)
    if not chunks:
        array[...] = variable.values
        return
    for start in range(0, variable.shape[0], chunks[0]):
        part = np.asarray(variable[start : start + chunks[0]].values)
        array[start : start + chunks[0]] = part.astype(object) if text else part
