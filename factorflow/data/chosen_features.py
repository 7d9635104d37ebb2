"""Features that a model is fitted to, where that is not all of a view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np

from factorflow.data.store.column_types import marked_rows, text_columns
from factorflow.errors import InputError

if TYPE_CHECKING:
    from factorflow.data.store.dataset import Dataset

HIGHLY_VARIABLE = "highly_variable"
"""Column of the metadata of features that marks them; without it the most variable ones are found."""

N_VARIABLE = 2000
"""Features that are found so."""


def choose_features(
    dataset: Dataset, choice: Mapping[str, str | Sequence[str]], batch: str | None = None
) -> dict[str, tuple[int, ...]]:
    """Return positions of features by view.

    Parameters
    ----------
    choice : mapping of str to sequence of str, or "highly_variable"
        Names of features by view; "highly_variable": those that are marked so, else the 2000 whose counts
        vary most beyond Poisson counts, within batches.

    Raises
    ------
    InputError
        When there is no such view or feature, or none is left.
    """
    positions = {}
    for view, names in choice.items():
        features = dataset.features(view)
        if isinstance(names, str):
            if names != HIGHLY_VARIABLE:
                expected = "names of features, or highly_variable"
                raise InputError("features", f"{names} of view {view}", expected, "Correct it.")
            places = _variable(dataset, view, batch)
        else:
            places = _places(dataset, view, [str(name) for name in names])
        if not places.size:
            raise InputError(
                "features", f"none of view {view}", "some of its features", "Leave it out for all."
            )
        if places.size < len(features):
            positions[view] = tuple(places.tolist())
    return positions


def _places(dataset: Dataset, view: str, names: Sequence[str]) -> np.ndarray:
    """Return the positions of features by their names, or by a text column of their metadata that has all."""
    features = dataset.features(view)
    if unknown := sorted(set(names).difference(features), key=names.index):
        for own in text_columns(dataset.feature_metadata(view)).values():
            if set(names) <= set(own):
                return np.flatnonzero(np.isin(own, names))
        near = get_close_matches(unknown[0], list(features), n=1)
        remedy = f"Did you mean {near[0]}?" if near else "Correct the names."
        expected = f"features of view {view}, such as {features[0]}"
        raise InputError("features", unknown[0], expected, remedy)
    return np.flatnonzero(np.isin(features, names))


def _variable(dataset: Dataset, view: str, batch: str | None) -> np.ndarray:
    metadata = dataset.feature_metadata(view)
    if HIGHLY_VARIABLE in metadata:
        where = f"column {HIGHLY_VARIABLE!r} of the features of view {view}"
        return np.flatnonzero(marked_rows(metadata[HIGHLY_VARIABLE], where))
    table = dataset.highly_variable(view, n=N_VARIABLE, batch=batch)
    return np.flatnonzero(table[HIGHLY_VARIABLE].to_numpy(bool))
