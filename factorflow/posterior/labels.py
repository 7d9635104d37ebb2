"""Labels of a posterior: names, selection of rows, and metadata of samples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.block import sample_numbers
from factorflow.data.covariates import labels_of
from factorflow.data.store.column_types import decode, text_columns
from factorflow.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from factorflow.posterior.stored_posterior import StoredPosterior

CODE = "code"
"""Attribute of a column of the sample metadata: which code of the dataset it is (group, sequence, time)."""

COLUMN_TYPE = "column_type"
"""Attribute of a column of the sample metadata: the JSON of its type (`column_types`), if it has one."""

POSITION = "position"
"""Attribute of a column of the sample metadata: its number among them, which a store does not keep."""


def names_of_rows(posterior: StoredPosterior, rows: Any) -> NDArray[Any]:
    """Return the names of some samples; no others are read."""
    return np.asarray(posterior.coordinate("obs")[as_slice(rows)].values, dtype=object)


def rows_of(
    posterior: StoredPosterior, start: int | None, stop: int | None, obs: Sequence[str] | None
) -> NDArray[np.intp]:
    """Return the numbers of rows given by position or by name.

    Raises
    ------
    InputError
        For a name that no sample has, a negative number, and names beside numbers.
    """
    import pandas as pd

    for what, row in (("start", start), ("stop", stop)):
        if row is not None and obs is not None:
            raise InputError(what, row, "left out beside obs", "Leave one of the two out.")
    if obs is None:
        for what, row in (("start", start), ("stop", stop)):
            if row is not None and row < 0:
                raise InputError(what, row, "an integer >= 0", f"There are {posterior.meta.n_rows} of them.")
        return np.arange(*slice(start, stop).indices(posterior.meta.n_rows))
    names: Any = [obs] if isinstance(obs, str) else list(obs)
    if posterior.is_numbered:
        index = sample_numbers(names, posterior.meta.n_rows)
    else:
        index = pd.Index(posterior.obs_names).get_indexer(names)
    if (index < 0).any():
        missing = names[int(np.argmax(index < 0))]
        raise InputError("obs", missing, "names among posterior.obs_names", "Check the spelling.")
    return np.asarray(index)


def sample_metadata(posterior: StoredPosterior, rows: Any = None, *, typed: bool = True) -> pd.DataFrame:
    """Return the metadata of samples by name.

    Columns have the types that they were given with; if not ``typed``, they are as they are stored: numbers,
    truth values or text ("": missing).
    """
    import pandas as pd

    chosen = slice(None) if rows is None else as_slice(rows)
    names = posterior.obs_names if rows is None else names_of_rows(posterior, rows)
    columns, types = dict[str, Any](), dict[str, Any]()
    if "constant_data" in posterior.tree.children:
        stored = posterior.tree["constant_data"].to_dataset().data_vars
        for key, column in sorted(stored.items(), key=lambda item: item[1].attrs.get(POSITION, 0)):
            name = str(column.attrs.get("long_name", key))
            columns[name] = column.variable[chosen].values
            if typed and COLUMN_TYPE in column.attrs:
                types[name] = json.loads(column.attrs[COLUMN_TYPE])
    text = {name: values.astype(object) for name, values in columns.items() if values.dtype.kind in "TU"}
    text |= {name: decode(text.get(name, columns[name]), record) for name, record in types.items()}
    return pd.DataFrame(columns | text, index=pd.Index(names, name="obs"))


def other_names(posterior: StoredPosterior, view: str) -> dict[str, NDArray[Any]]:
    """Return the text columns of the metadata of a view's features, (D,) each: symbols of genes, say.

    None without the dataset.
    """
    try:
        table = posterior.dataset.feature_metadata(view).reindex(posterior.features(view))
    except InputError:  # the dataset has moved, or is one of other views
        return {}
    return text_columns(table)


def group_labels(posterior: StoredPosterior) -> NDArray[Any] | None:
    """Return the sample group of each sample, (N,), whatever its column is called; None: there are none."""
    dataset: Any = None
    if "constant_data" in posterior.tree.children:
        stored = posterior.tree["constant_data"].to_dataset().data_vars
        for column in stored.values():
            if column.attrs.get(CODE) == "group":
                return np.array([str(value) for value in column.values.tolist()], dtype=object)
        dataset = posterior.dataset if posterior.meta.groups and "group" in stored else None
    if dataset is None or not dataset.groups:
        return None
    labels = np.array(dataset.groups, dtype=object)  # of a posterior written before columns said it
    return np.asarray(labels[dataset.codes("group")])


def group_column(posterior: StoredPosterior) -> str | None:
    """Return the name of the column of the sample metadata that has the groups; None: there is none."""
    if "constant_data" in posterior.tree.children:
        for key, column in posterior.tree["constant_data"].to_dataset().data_vars.items():
            if column.attrs.get(CODE) == "group":
                return str(column.attrs.get("long_name", key))
    return None


def repeated_group_column(posterior: StoredPosterior, table: pd.DataFrame) -> str | None:
    """Return the column of the groups where another one, which they were named by, has the same labels."""
    import pandas as pd

    if "constant_data" not in posterior.tree.children:
        return None
    for key, column in posterior.tree["constant_data"].to_dataset().data_vars.items():
        name = str(column.attrs.get("long_name", key))
        if column.attrs.get(CODE) != "group" or name not in table:
            continue
        codes = pd.factorize(table[name])[0]
        for other in table.columns.drop(name):
            is_alike = np.array_equal(pd.factorize(table[other])[0], codes)
            if is_alike and (labels_of(table[other]) == labels_of(table[name])).all():
                return name
    return None


def as_slice(rows: Any) -> Any:
    """Return rows as a slice where they are evenly spaced: read much faster."""
    if len(rows) < 2:
        return slice(int(rows[0]), int(rows[0]) + 1) if len(rows) else slice(0, 0)
    step = int(rows[1]) - int(rows[0])
    if step > 0 and (np.diff(rows) == step).all():
        return slice(int(rows[0]), int(rows[-1]) + 1, step)
    return rows
