"""Views of a dataset before they are written: kinds and names, from options and sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.kinds import INPUTS, KINDS, Kind, kind_of
from factorflow.data.ingest import checks
from factorflow.data.ingest.align import Names, check_by_view, check_own_names, number_names
from factorflow.data.ingest.entry_arrays import Limits, Trials, limits_of, trials_of
from factorflow.data.ingest.levels import find_levels, reader
from factorflow.data.ingest.missing import MissingCodes
from factorflow.data.ingest.reading import Reading
from factorflow.data.ingest.sources import KindOf, Source, labels
from factorflow.data.store.rows import RowNames
from factorflow.data.store.view_source import EntryReader, ViewSource
from factorflow.errors import InputError
from factorflow.kernels.sparse_rows import SparseRows
from factorflow.likelihoods import get_likelihood, likelihood_names

StrArray = NDArray[np.str_]


def kind_name(name: str) -> str:
    """Return the name of the kind of view whose entries a likelihood explains; that of a kind is its own."""
    return name if name in KINDS else get_likelihood(name).kinds[0]


def named_kinds(likelihoods: Mapping[str, Any] | None, inputs: Mapping[str, str] | None) -> dict[str, Kind]:
    """Return the kinds of the views that `likelihoods` and `inputs` of `write_dataset` name."""
    return _requested_kinds(likelihoods) | _input_kinds(inputs)


def _requested_kinds(likelihoods: Mapping[str, Any] | None) -> dict[str, Kind]:
    """Return the kinds of views given by `likelihoods` and `inputs`."""
    if likelihoods is not None and not isinstance(likelihoods, Mapping):
        raise InputError("likelihoods", likelihoods, "a mapping by view", "For example {'rna': 'gaussian'}.")
    kinds = {}
    for view, name in (likelihoods or {}).items():
        if isinstance(name, Mapping):  # by feature: the view is cut first
            _requested_kinds({f"{view}:{feature}": of_one for feature, of_one in name.items()})
            continue
        if name == "covariate":
            remedy = f"Name it as an input: inputs={{{str(view)!r}: 'covariate'}}."
            raise InputError("likelihoods", name, "a likelihood of values", remedy)
        if name not in KINDS and str(name).partition("(")[0].strip() not in likelihood_names():
            expected = f"one of {', '.join(dict.fromkeys([*KINDS, *likelihood_names()]))}"
            raise InputError(
                f"likelihood of view {view!r}", name, expected, "Leave it out to have it guessed."
            )
        kinds[str(view)] = kind_of(view, kind_name(name))
    return kinds


def _input_kinds(inputs: Mapping[str, str] | None) -> dict[str, Kind]:
    """Return the kinds of views that are inputs."""
    for view, name in (inputs or {}).items():
        if name not in INPUTS:
            expected = f"one of {', '.join(INPUTS)}"
            raise InputError(f"inputs of view {view!r}", name, expected, "Name values in likelihoods.")
    return {str(view): KINDS[name] for view, name in (inputs or {}).items()}


def view_sources(
    sources: Mapping[str, Source],
    positions: Mapping[str, NDArray[np.int64] | None],
    requested_kinds: Mapping[str, Kind],
    features: Mapping[str, Names],
    codes: MissingCodes,
    layouts: Mapping[str, str],
    *,
    drop_empty: bool,
) -> list[ViewSource]:
    """Return the views with their kinds, where these are given, and the names of their features.

    Parameters
    ----------
    requested_kinds, features, layouts : mappings by view
        Kinds, names of features and layouts that were given.
    drop_empty : bool
        Whether levels without a sample are left out.
    """
    for what, by_view in (("likelihoods", requested_kinds), ("features", features), ("layout", layouts)):
        check_by_view(what, by_view, sources)
    prepared = []
    for view, source in sources.items():
        kind, origin = requested_kinds.get(view), "given"
        if kind is None and source.likelihood is not None:
            kind, origin = kind_of(view, source.likelihood), "file"
        names = labels(features[view]) if view in features else None
        read = codes.reader(view, _reader(view, source, positions[view]))
        if kind is not None and kind.coded:
            of_source = source.shape[0], source.levels
            read_labels = codes.reader(view, source.read)
            names = find_levels(view, *of_source, names, read_labels, drop_empty=drop_empty)
            read = reader(read, names)
        else:
            names = _feature_names(view, source, names)
        what = "levels" if kind is not None and kind.coded else "feature names"
        checks.check_unique(f"feature names of view {view!r}", names)
        checks.warn_of_spelling(f"{what} of view {view!r}", names.tolist())
        layout = layouts.get(view, "auto")
        about = None if kind is not None and kind.coded else source.about
        prepared.append(
            ViewSource(view, names, read, kind, origin, source.read_as, layout=layout, about=about)
        )
    if all(view.kind is not None and not view.kind.is_values for view in prepared):
        raise InputError(
            "views",
            ", ".join(sources),
            "at least one view of values beside categorical variables and covariates",
            "Add the view that is to be modelled.",
        )
    return prepared


def entry_arrays(
    described: Sequence[ViewSource],
    limits: Mapping[str, Any],
    trials: Mapping[str, Any],
    sides: Mapping[str, Any],
    views: Any,
    names: RowNames,
    positions: Mapping[str, NDArray[np.int64] | None],
    reading: Reading,
) -> dict[str, Limits | Trials]:
    """Return the limits or numbers of trials of the views that have some."""
    arrays: dict[str, Limits | Trials] = {}
    features = {view.name: set(map(str, view.features)) for view in described}
    sides = {
        name: side
        for name, side in sides.items()
        if side.loc[:, [str(column) in features.get(name, ()) for column in side.columns]].to_numpy().any()
    }
    for view in described:
        common = names, view.features, reading
        if view.split is not None and view.name in {*limits, *trials, *sides}:
            expected = "columns time and event, and neither limits nor trials"
            raise InputError(
                f"view {view.name!r}", "survival with limits or trials", expected, "Leave them out."
            )
        if view.name in limits or view.name in sides:
            limits_of_view, side = limits.get(view.name, (None, None)), sides.get(view.name)
            arrays[view.name] = limits_of(limits_of_view, view.name, *common, side, positions[view.name])
        if view.name in trials:
            if view.name in arrays:
                raise InputError("trials", view.name, "a view without limits", "Leave one of the two out.")
            value = views.get(view.name) if isinstance(views, Mapping) else views
            position = positions[view.name]
            arrays[view.name] = trials_of(trials[view.name], view.name, value, *common, position)
    return arrays


def with_defaults(
    described: Sequence[ViewSource], likelihoods: Mapping[str, str], arrays: Mapping[str, Limits | Trials]
) -> list[ViewSource]:
    """Return the views with the likelihoods that fits of them have by default."""
    completed = []
    for view in described:
        name, split = str(likelihoods.get(view.name, "")), arrays.get(view.name, view.split)
        default = "" if name in KINDS else name
        if split is not None:
            default, kind = default or split.likelihood, KINDS[kind_name(split.likelihood)]
            if view.kind not in (None, kind):
                raise InputError(
                    f"likelihood of view {view.name!r}",
                    name or view.kind.name,
                    f"{split.likelihood}, for a view with {split.aux}",
                    "Leave it out.",
                )
            if default.partition("(")[0] != split.likelihood:
                actual = f"{default}, with features that have {split.what}"
                raise InputError(
                    f"likelihood of view {view.name!r}", actual, split.likelihood, "Leave it out, or those."
                )
            view = replace(view, kind=kind, split=split)
        completed.append(replace(view, default_likelihood=default))
    return completed


def _feature_names(view: str, source: Source, own_names: StrArray | None) -> StrArray:
    names = source.features if own_names is None else own_names
    if names is None:
        names = number_names("feature", source.shape[1])
    check_own_names("features", view, source.features, names)
    if names.size != source.shape[1]:
        raise InputError(
            f"features of view {view!r}",
            f"{names.size} names",
            f"{source.shape[1]}, one for every column",
            "Check their number.",
        )
    return names


def lookup(requested_kinds: Mapping[str, Kind]) -> KindOf:
    """Return a function from the name of a view, in its file or in the dataset, to its kind."""
    return lambda view: requested_kinds.get(view) or requested_kinds.get(checks.usable_name(view))


def _reader(view: str, source: Source, positions: NDArray[np.int64] | None) -> Any:
    """Return a function that reads rows of a view."""

    def read(start: int, stop: int) -> NDArray[Any]:
        with checks.readable(f"values of view {view!r}, samples {start} to {stop - 1}", source.remedy):
            return source.read(start, stop) if positions is None else source.take(positions[start:stop])

    def entries(start: int, stop: int) -> SparseRows | None:
        with checks.readable(f"values of view {view!r}, samples {start} to {stop - 1}", source.remedy):
            if positions is None:
                return source.read_entries(start, stop)
            return source.take_entries(positions[start:stop])

    return EntryReader(read, entries)
