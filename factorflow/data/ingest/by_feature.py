"""Views whose features have likelihoods of their own: one view for each likelihood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from factorflow.data.ingest import checks
from factorflow.data.ingest.align import number_names
from factorflow.data.ingest.sources import Columns, Source, labels
from factorflow.errors import InputError


class FittedLikelihoods(dict[str, str]):
    """Likelihoods of the features of a fit: new samples may lack some of them."""


def split_by_likelihood(
    sources: Mapping[str, Source], likelihoods: Mapping[str, Any], features: Mapping[str, Any]
) -> tuple[dict[str, Source], dict[str, str], dict[str, str]]:
    """Cut views by the likelihoods of their features; the others stay in the view.

    A part of the view ``lab`` is called ``lab_gamma``.

    Parameters
    ----------
    likelihoods : mapping of str to str, or to mapping of str to str
        By view; or by view and feature, "" for all others.
    features : mapping of str to names
        Names of the columns of views that bring none.

    Returns
    -------
    tuple of dict
        Sources and likelihoods of the views that there are then, and the view that each part is of.

    Raises
    ------
    InputError
        For a feature that there is not, or a part with the name of another view.
    """
    split_sources: dict[str, Source] = {}
    chosen: dict[str, str] = {view: name for view, name in likelihoods.items() if isinstance(name, str)}
    parts: dict[str, str] = {}
    for view, source in sources.items():
        by_feature = likelihoods.get(view)
        if not isinstance(by_feature, Mapping):
            split_sources[view] = source
            continue
        names = _names(view, source, features)
        requested = {str(feature): str(name) for feature, name in by_feature.items()}
        if others := requested.pop("", ""):
            chosen[view] = others
        unknown = [feature for feature in requested if feature not in set(names.tolist())]
        if unknown and not isinstance(by_feature, FittedLikelihoods):
            what = f"likelihoods of view {view!r}"
            raise InputError(what, checks.join_names(unknown), "names of its features", "Check the names.")
        of_columns = np.array([requested.get(feature, "") for feature in names.tolist()], dtype=object)
        for name in dict.fromkeys(sorted(of_columns)):
            part = f"{view}_{name.partition('(')[0].strip()}" if name else view
            if part in split_sources or (name and part in sources):
                raise InputError(
                    "likelihoods", name, f"no view called {part!r} beside {view!r}", "Rename it."
                )
            columns_of_part = np.flatnonzero(of_columns == name)
            rows = Columns(_Rows(source), columns_of_part)
            about = None if source.about is None else source.about.iloc[columns_of_part]
            split_sources[part] = Source(
                rows,
                source.samples,
                names[columns_of_part],
                dtype=source.dtype,
                read_as=source.read_as,
                about=about,
            )
            parts[part] = view
            if name:
                chosen[part] = name
    return split_sources, chosen, parts


def of_parts(values: Any, parts: Mapping[str, str]) -> Any:
    """Return an option by view, with the value of a view for each of its parts; others unchanged."""
    if not isinstance(values, Mapping):
        return values
    unsplit = {name: value for name, value in values.items() if name not in set(parts.values())}
    return unsplit | {part: values[view] for part, view in parts.items() if view in values}


def of_likelihood(values: Mapping[str, Any], parts: Mapping[str, str], likelihood: str) -> dict[str, Any]:
    """Return an option that belongs to a likelihood, such as limits, with that part's name for its view's.

    Parameters
    ----------
    values : mapping of str to object
        By view, or by part of one.
    parts : mapping of str to str
        The view that each part is of.
    likelihood : str
        Name of the likelihood. Where no part has it, the value is that of the features without one.
    """
    renamed = {}
    for view, value in values.items():
        part = f"{view}_{likelihood}"
        renamed[part if parts.get(part) == view and part not in values else view] = value
    return renamed


@dataclass(frozen=True)
class _Rows:
    """The rows of a source, sliced."""

    source: Source

    @property
    def shape(self) -> tuple[int, int]:
        return self.source.shape

    def __getitem__(self, rows: slice) -> Any:
        return self.source.read(rows.start, rows.stop)


def _names(view: str, source: Source, features: Mapping[str, Any]) -> Any:
    if view in features:
        return labels(features[view])
    return number_names("feature", source.shape[1]) if source.features is None else source.features
