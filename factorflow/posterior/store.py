"""The posterior on disk and in memory: an xarray DataTree on Zarr v3.

| group | variational | Monte Carlo |
|---|---|---|
| ``variational`` / ``posterior`` | means, variances, inclusion probabilities | draws, (chain, draw, ...) |
| ``posterior_predictive`` | | predictive means |
| ``optimization`` / ``sample_stats`` | bound and progress per iteration | log density and statistics per kept draw |
| ``trace`` | | the same per iteration, burn-in included |
| ``holdout`` | scores of held-out entries | the same |

Sample-sized arrays are created empty and written in place by the workers, block by block: a chunk holds the
rows of one block, so it has one writer. The run's record is in the attributes of the root.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.data.block import Meta
from factorflow.errors import InputError
from factorflow.models.base import Model, Variable

if TYPE_CHECKING:
    import xarray as xr

    from factorflow.data import Dataset

__all__ = [
    "SCHEMA_VERSION",
    "assemble",
    "create_draws",
    "create_rows",
    "labels_of",
    "read_run",
    "save",
    "write_draws",
    "write_rows",
]

SCHEMA_VERSION = 1
DRAW_CHUNK = 50
Labels = Mapping[str, Sequence[str]]


# Writing in place ----------------------------------------------------------------------------------


def create_rows(path: str, model: Model[Any], n_chains: int) -> None:
    """Create the sample-sized variables that are written once, empty, with a chunk for each block."""
    for variable in model.variables():
        if variable.rows and not variable.draws:
            _create(path, model, variable, (n_chains,) if model.kind == "monte carlo" else ())


def create_draws(path: str, model: Model[Any], n_chains: int) -> None:
    """Create the arrays of draws, empty, for all that are planned."""
    planned = sum(stage.max_iter // stage.thin for stage in model.stages() if stage.keep)
    for variable in model.variables():
        if variable.draws or not variable.rows:
            _create(path, model, variable, (n_chains, planned))


def write_rows(
    path: str, variable: Variable, start: int, values: Any, chain: int | None = None, draw: int | None = None
) -> None:
    """Write the rows of one block; safe from any process, since no other block shares its chunks."""
    array = _array(path, variable)
    index = tuple(i for i in (chain, draw) if i is not None)
    array[(*index, slice(start, start + len(values)))] = np.asarray(values)


def write_draws(path: str, variable: Variable, first: int, values: Any, chain: int) -> None:
    """Write consecutive draws of a variable, (draws, ...)."""
    _array(path, variable)[chain, first : first + len(values)] = np.asarray(values)


def _create(path: str, model: Model[Any], variable: Variable, leading: tuple[int, ...]) -> None:
    import zarr

    sizes = {"obs": model.meta.n_rows, "view": len(model.meta.views), "group": max(1, len(model.meta.groups))}
    sizes |= {f"feature_{view.name}": view.n_features for view in model.meta.views}
    sizes |= {dim: len(names) for dim, names in model.coords(None).items()}
    shape = tuple(sizes[dim] for dim in variable.dims)
    chunk = tuple(model.meta.block_rows if dim == "obs" else sizes[dim] for dim in variable.dims)
    per_draw = 1 if variable.rows else DRAW_CHUNK
    dims = ("chain", "draw")[: len(leading)]
    zarr.open_group(path, mode="a").require_group(variable.group).create_array(
        variable.name,
        shape=(*leading, *shape),
        chunks=tuple(max(1, c) for c in (*((1, per_draw)[: len(leading)]), *chunk)),
        dtype=variable.dtype,
        dimension_names=(*dims, *variable.dims),
        fill_value=float("nan") if np.dtype(variable.dtype).kind == "f" else 0,
        overwrite=True,
    )


def _array(path: str, variable: Variable) -> Any:
    import zarr

    return zarr.open_array(os.path.join(path, variable.group, variable.name), mode="r+")


# The tree ------------------------------------------------------------------------------------------


def labels_of(dataset: Dataset, meta: Meta, coords: Labels) -> dict[str, Sequence[str]]:
    """Return the labels of every dim a posterior of this dataset can have."""
    features = {f"feature_{view.name}": dataset.features(view.name) for view in meta.views}
    views = {"view": [view.name for view in meta.views]}
    groups = {"group": list(meta.groups) or ["all"]}
    return {"obs": dataset.obs_names, **features, **views, **groups, **coords}


def assemble(
    model: Model[Any],
    labels: Labels,
    record: Mapping[str, Any],
    rows: Mapping[str, Any],
    trace: Mapping[str, Sequence[Any]],
    run: Mapping[str, Any],
    scores: Mapping[str, Mapping[str, float]] | None = None,
) -> xr.DataTree:
    """Join variables, trace and run record into one labelled tree.

    Parameters
    ----------
    model : Model
        Its table of variables says where everything goes.
    labels : mapping of str to sequence of str
        Names along each dim.
    record : mapping of str to array
        Global variables of a variational model; draws are in the store already.
    rows : mapping of str to array
        Sample-sized variables; empty where they are in the store already.
    trace : mapping
        Columns ``stage``, ``iteration``, ``kept``, ``seconds``, ``infos``, one entry an iteration.
    run : mapping
        What goes into the attributes.
    scores : mapping of str to mapping, optional
        Held-out scores per view.
    """
    import xarray as xr

    monte_carlo = model.kind == "monte carlo"
    groups: dict[str, dict[str, Any]] = {}
    used: dict[str, set[str]] = {}
    for variable in model.variables():
        dims = _leading(variable, monte_carlo) + variable.dims
        used.setdefault(variable.group, set()).update(dims)
        values = {**record, **rows}.get(variable.name)
        if values is not None:
            array = np.asarray(values, dtype=variable.dtype)
            groups.setdefault(variable.group, {})[variable.name] = (dims, array, {"description": variable.doc})
    nodes = {
        name: xr.Dataset(groups.get(name, {}), coords=_coords(labels, used[name])) for name in sorted(used)
    }
    nodes |= _traces(trace, monte_carlo)
    if scores is not None:
        nodes["holdout"] = _score_table(scores)
    tree = xr.DataTree.from_dict({f"/{name}": dataset for name, dataset in nodes.items()})
    tree.attrs = _attributes(model, run)
    return tree


def save(tree: xr.DataTree, path: str, n_draws: int | None = None) -> None:
    """Add a tree to the store at ``path``, which may hold arrays already; cut the draws to those made."""
    import zarr

    for node in tree.subtree:
        if node.path != "/":
            node.to_dataset(inherit=False).to_zarr(path, group=node.path, mode="a", consolidated=False)
    root = zarr.open_group(path, mode="a")
    root.attrs.update(tree.attrs)
    if n_draws is not None:
        for _, group in root.groups():
            for _, array in group.arrays():
                names = array.metadata.dimension_names or ()
                if names[:2] == ("chain", "draw") and array.shape[1] > n_draws:
                    array.resize((array.shape[0], n_draws, *array.shape[2:]))


def read_run(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the record of the run that made a posterior.

    Raises
    ------
    InputError
        If there is no posterior at ``path``, or one of another schema version.
    """
    try:
        with open(os.path.join(path, "zarr.json")) as file:
            attributes = json.load(file)["attributes"]
    except (OSError, ValueError, KeyError):
        attributes = {}
    if "schema_version" not in attributes or attributes.get("inference_library") != "factorflow":
        raise InputError("path", str(path), "a posterior that factorflow.fit wrote", "Check the path.")
    if attributes["schema_version"] != SCHEMA_VERSION:
        raise InputError(
            "path",
            f"{path} (schema version {attributes['schema_version']})",
            f"schema version {SCHEMA_VERSION}",
            "Open it with the version of factorflow that wrote it, named in its attributes.",
        )
    return {key: json.loads(value) if key in _AS_JSON else value for key, value in attributes.items()}


_AS_JSON = {"config", "meta", "identity", "environment"}


def _leading(variable: Variable, monte_carlo: bool) -> tuple[str, ...]:
    """Return the dims that a sampler puts in front: no draws of what is written once."""
    if not monte_carlo:
        return ()
    return ("chain",) if variable.rows and not variable.draws else ("chain", "draw")


def _coords(labels: Labels, dims: set[str]) -> dict[str, Any]:
    names = {dim: np.asarray(labels[dim], dtype=object) for dim in sorted(dims) if dim in labels}
    return {dim: (dim, values) for dim, values in names.items()}


def _traces(trace: Mapping[str, Sequence[Any]], monte_carlo: bool) -> dict[str, xr.Dataset]:
    """Return the groups of what the iterations reported."""
    import xarray as xr

    if not trace or not trace["iteration"]:
        return {}
    infos = trace["infos"]
    names = sorted({name for info in infos for chain in info for name in chain})
    table = np.array([[[chain.get(name, np.nan) for name in names] for chain in info] for info in infos])
    shared = {
        "stage": ("iteration", np.asarray(trace["stage"], dtype=object)),
        "seconds": ("iteration", np.asarray(trace["seconds"], float)),
    }
    iteration = {"iteration": np.asarray(trace["iteration"], np.int64)}
    if not monte_carlo:
        columns = {name: ("iteration", table[:, 0, i]) for i, name in enumerate(names)}
        return {"optimization": xr.Dataset({**shared, **columns}, coords=iteration)}
    kept = np.asarray(trace["kept"], bool)
    columns = {name: (("chain", "iteration"), table[:, :, i].T) for i, name in enumerate(names)}
    draws = {("lp" if n == "objective" else n): (("chain", "draw"), table[kept][:, :, i].T) for i, n in enumerate(names)}
    chains = {"chain": np.arange(table.shape[1])}
    return {
        "trace": xr.Dataset({**shared, **columns}, coords={**iteration, **chains}),
        "sample_stats": xr.Dataset(draws, coords={**chains, "draw": np.arange(kept.sum())}),
    }


def _score_table(scores: Mapping[str, Mapping[str, float]]) -> xr.Dataset:
    import xarray as xr

    names = list(dict.fromkeys(name for view in scores.values() for name in view))
    columns = {name: ("view", np.array([view.get(name, np.nan) for view in scores.values()], float)) for name in names}
    return xr.Dataset(columns, coords={"view": np.asarray(list(scores), dtype=object)})


def _attributes(model: Model[Any], run: Mapping[str, Any]) -> dict[str, Any]:
    from dataclasses import asdict

    plain = {key: value for key, value in run.items() if value is not None}
    plain |= {"config": run["identity"]["config"], "meta": asdict(model.meta), "kind": model.kind}
    plain |= {
        "schema_version": SCHEMA_VERSION,
        "inference_library": "factorflow",
        "inference_library_version": run["environment"]["factorflow"],
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return {key: json.dumps(value) if key in _AS_JSON else value for key, value in plain.items()}
