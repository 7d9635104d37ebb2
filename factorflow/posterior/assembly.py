"""Assembly of a posterior as a tree of labelled arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.block import Meta
from factorflow.data.store.names import node_names
from factorflow.models.contract import Model, Variable
from factorflow.posterior.labels import CODE, COLUMN_TYPE, POSITION
from factorflow.posterior.lazy import lazy_array
from factorflow.posterior.open import LAZY_LABELS
from factorflow.posterior.record import RunRecord
from factorflow.posterior.schema import NAMED, attributes, group_attributes

if TYPE_CHECKING:
    import xarray as xr

    from factorflow.data import Dataset


@dataclass(frozen=True)
class Labels:
    """Names of everything a posterior has axes for.

    Parameters
    ----------
    dims : mapping of str to sequence of str
        Labels per dimension: ``view``, ``group``, ``feature_<view>``, ``factor``.
    dataset : Dataset
        Where the names of the samples (``obs``) and their metadata are.
    """

    dims: Mapping[str, Any]
    dataset: Dataset


def labels_of(dataset: Dataset, meta: Meta, coords: Mapping[str, Sequence[str]]) -> Labels:
    """Return the labels of a model's posterior, in the dataset's order.

    Parameters
    ----------
    coords : mapping of str to sequence of str
        Labels of the model's own dimensions (`Model.coords`), and of features that are not the dataset's.
    """
    dims: dict[str, Any] = {"view": [v.name for v in meta.value_views]}
    if meta.groups:
        dims["group"] = meta.groups
    features = {f"feature_{v.name}": v.name for v in meta.views}
    dims |= {dim: dataset.features(view) for dim, view in features.items() if dim not in coords}
    return Labels(dims | dict(coords), dataset)


def assemble(
    model: Model[Any, Any],
    labels: Labels,
    record: Mapping[str, Any],
    rows: Mapping[str, Any],
    trace: Mapping[str, Sequence[Any]],
    run: RunRecord,
    scores: Mapping[str, Mapping[str, float]] | None = None,
) -> xr.DataTree:
    """Join the results of a run into a tree.

    Parameters
    ----------
    model : Model
        Its table of variables says which group and which dimensions an array has.
    record : mapping of str to array
        Variables with ``rows=False``; of a sampler with leading (chain, draw), or nothing when its draws
        are in the store already.
    rows : mapping of str to array
        Variables with ``rows=True``, whole, with leading (chain, ...) or (chain, draw, ...), or nothing when
        they are written separately: then names and metadata of samples are not read either, but copied
        piece by piece when the tree is saved.
    trace : mapping
        One entry an iteration: ``stage``, ``iteration``, ``kept``, ``seconds`` and ``infos`` (one mapping of
        scalars a chain).

    Returns
    -------
    xarray.DataTree
        Groups ``variational`` and ``optimization``, or ``posterior``, ``sample_stats`` and ``iterations``;
        ``holdout`` and ``constant_data`` where there are any.
    """
    import xarray as xr

    lazy = not rows and any(variable.rows for variable in model.table)
    samples = _stored_samples(labels.dataset) if lazy else _samples(labels.dataset)
    axes = {dim: label_array(names) for dim, names in labels.dims.items()}
    if model.kind == "monte carlo":
        n_chains = len(trace["infos"][0]) if trace["infos"] else 1
        axes |= {"chain": np.arange(n_chains), "draw": np.arange(int(sum(trace["kept"])))}
    content: dict[str, dict[str, Any]] = {}
    used: dict[str, dict[str, None]] = {}
    for variable in model.table:
        dims, place = stored_dims(model, variable), variable.group
        group = content.setdefault(place, {})
        used.setdefault(place, {}).update(dict.fromkeys(dims))
        value = (rows if variable.rows else record).get(variable.name)
        if value is not None:
            array = np.asarray(value, dtype=variable.dtype)
            array = array[0] if variable.rows and not model.lead(variable) else array
            group[variable.name] = xr.Variable(dims, array, {"long_name": variable.doc})
    groups = {}
    for name, variables in content.items():
        dataset = xr.Dataset(variables, coords={dim: axes[dim] for dim in used[name] if dim in axes})
        groups[name] = _with_samples(dataset, samples, lazy) if "obs" in used[name] else dataset
    groups |= _traces(model, trace)
    if scores:
        groups["holdout"] = _score_table(scores)
    columns = {name: column for name, column in samples.items() if name != "obs"}
    if columns:
        groups["constant_data"] = _with_samples(xr.Dataset(columns), samples, lazy)
    root = attributes(model, run)
    for dataset in groups.values():
        dataset.attrs.update(group_attributes(root))
    tree = xr.DataTree.from_dict(groups)
    tree.attrs.update(root | {NAMED: int(labels.dataset.named)})  # netCDF knows no truth values
    return tree


def stored_dims(model: Model[Any, Any], variable: Variable) -> tuple[str, ...]:
    """Return the dimensions of a variable as stored: a sampler's lead with ``chain`` and ``draw``."""
    return (*model.lead(variable), *variable.dims)


def label_array(labels: Any) -> NDArray[Any]:
    """Return labels as an array: text as objects, as it comes back from a store."""
    array = np.asarray(labels)
    return array.astype(object) if array.dtype.kind in "UT" else array


def _with_samples(dataset: xr.Dataset, samples: Mapping[str, xr.Variable], lazy: bool) -> xr.Dataset:
    """Return the dataset with the coordinate ``obs``, if the samples have names in it.

    If lazy, it gets no index, which would read it.
    """
    import xarray as xr

    if "obs" not in samples:
        return dataset
    names = {"obs": samples["obs"]}
    return dataset.assign_coords(xr.Coordinates(names, indexes={}) if lazy else names)


def _samples(dataset: Dataset) -> dict[str, xr.Variable]:
    """Return names and metadata of the samples, in memory; too many numbered ones get no names."""
    import xarray as xr

    variables = {}
    if dataset.named or dataset.n_rows <= LAZY_LABELS:
        variables["obs"] = xr.Variable("obs", label_array(dataset.obs_names))
    if dataset.code_names or dataset.manifest.obs_columns:
        columns = dataset.stored_columns()
        for name, (variable, about) in _variables(dataset).items():
            variables[variable] = xr.Variable("obs", _plain_column(columns[name]), about)
    return variables


def _variables(dataset: Dataset) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the variable of each column of the sample metadata, and what its attributes say.

    They are the name of the column, its position among all, and of the groups, sequences and times
    (`Dataset.codes`) which of them they are.
    """
    codes = {column: code for code, column in dataset.code_columns.items()}
    columns = list(dict.fromkeys([*codes, *dataset.manifest.obs_columns]))
    names = node_names(columns, reserved=["obs"])
    about = {name: {CODE: codes[name]} if name in codes else {} for name in columns}
    for name, record in dataset.manifest.obs_types.items():
        about[name] |= {COLUMN_TYPE: json.dumps(record)}  # netCDF knows no mappings
    return {
        name: (names[name], {"long_name": name, POSITION: position} | about[name])
        for position, name in enumerate(columns)
    }


def _stored_samples(dataset: Dataset) -> dict[str, xr.Variable]:
    """Return names and metadata of the samples, to be read from the dataset piece by piece.

    Numbered samples have no names here: none are stored.
    """
    import xarray as xr

    groups, shape = np.array(dataset.groups, dtype=object), (dataset.n_rows,)

    def column(stored: str) -> Any:
        dtype = dataset.read_array(stored, slice(0)).dtype
        dtype_of = dtype if dtype.kind in "biuf" else np.dtype(object)
        return lazy_array(partial(_stored_column, dataset, stored), shape, dtype_of)

    variables = {"obs": xr.Variable("obs", column("obs"))} if dataset.named else {}
    arrays = dataset.manifest.obs_columns
    for name, (variable, about) in _variables(dataset).items():
        if name in arrays:
            values = column(arrays[name])
        elif about[CODE] == "group":
            values = lazy_array(partial(_stored_groups, dataset, groups), shape, object)
        else:
            values = column(about[CODE])
        variables[variable] = xr.Variable("obs", values, about)
    return variables


def _stored_column(dataset: Dataset, stored: str, key: tuple[Any, ...]) -> Any:
    return _plain_column(dataset.read_array(stored, key[0]))


def _stored_groups(dataset: Dataset, groups: NDArray[Any], key: tuple[Any, ...]) -> Any:
    return groups[dataset.read_array("group", key[0])]


def _plain_column(values: Any) -> Any:
    """Return a column of sample metadata as numbers, truth values or text."""
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return array
    text = ["" if value is None or value != value else str(value) for value in np.atleast_1d(array)]
    return np.array(text, dtype=object).reshape(array.shape)


def _score_table(scores: Mapping[str, Mapping[str, float]]) -> xr.Dataset:
    import xarray as xr

    metrics = list(dict.fromkeys(name for view in scores.values() for name in view))
    table = {
        name: ("view", np.array([view.get(name, np.nan) for view in scores.values()], float))
        for name in metrics
    }
    return xr.Dataset(table, coords={"view": label_array(list(scores))})


def _traces(model: Model[Any, Any], trace: Mapping[str, Sequence[Any]]) -> dict[str, xr.Dataset]:
    """Return the groups with the trace of the run, iteration by iteration."""
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
    is_kept = np.array(trace["kept"], bool)
    chain_labels = {"chain": np.arange(n_chains)}
    every = shared | {"kept": ("iteration", is_kept)}
    every |= {name: (("chain", "iteration"), value) for name, value in scalars.items()}
    arviz_names = {"objective": "lp"}
    stats = {
        arviz_names.get(name, name): (("chain", "draw"), value[:, is_kept]) for name, value in scalars.items()
    }
    return {
        "iterations": xr.Dataset(every, coords=iteration | chain_labels),
        "sample_stats": xr.Dataset(stats, coords=chain_labels | {"draw": np.arange(int(is_kept.sum()))}),
    }
