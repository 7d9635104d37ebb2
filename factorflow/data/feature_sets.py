"""Feature sets for a fit: read, and matched with the features of a dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from factorflow.core.factor_labels import is_number_label
from factorflow.core.feature_sets import FeatureSets
from factorflow.data.gmt import read_gmt
from factorflow.data.ingest.checks import warn
from factorflow.data.store.fingerprint import digest_names
from factorflow.errors import InputError, pluralize

if TYPE_CHECKING:
    from factorflow.data.store.dataset import Dataset

FEW = 0.1
"""Share of the members of all sets below which it is said how few of them are features."""


def match_feature_sets(
    dataset: Dataset, views: Sequence[str], source: str | Mapping[str, Any], option: str = "feature_sets"
) -> FeatureSets:
    """Return feature sets by the numbers of their members among the features of some views.

    Parameters
    ----------
    source : path or mapping
        A GMT file, members by set, or either of them by view.

    Returns
    -------
    FeatureSets
        Without sets that have no member in these views.

    Raises
    ------
    InputError
        When a view is not among these, or none of its features is in a set that was given for it; when a set
        has a name of factors without one.
    """
    of_view = _by_view(source, views, option)
    names = list(dict.fromkeys(name for sets in of_view.values() for name in sets))
    for name in names:
        if is_number_label(name):
            expected = "names of sets that no factor without a set has"
            raise InputError(option, name, expected, "Rename it: factors are called by their sets.")
    members, unmatched = {}, []
    for view, sets in of_view.items():
        features = dataset.features(view)
        number = {str(name): i for i, name in enumerate(features)}
        of_names = [sorted({number[m] for m in sets.get(name, ()) if m in number}) for name in names]
        requested = {m for each in sets.values() for m in each}
        n_matched = sum(m in number for m in requested)
        if n_matched < FEW * len(requested):
            unmatched.append(
                (view, n_matched, len(requested), str(next(iter(features))), min(requested - set(number)))
            )
        members[view] = of_names
    shared = len({id(sets) for sets in of_view.values()}) == 1  # not given by view
    lacking = [each for each in unmatched if not each[1]]
    if len(lacking) > (len(of_view) - 1 if shared else 0):
        view, _, _, feature, member = lacking[0]
        views_of_sets = of_view if shared else [view]
        raise InputError(
            option,
            f"{pluralize(len(of_view[view]), 'set')} without a feature of {' or '.join(views_of_sets)}, "
            f"such as {member!r}",
            f"members that are named as the features: {feature!r} of view {view}",
            "Take the same identifiers for both.",
        )
    for view, n_matched, n_asked, feature, member in unmatched:
        if n_matched:
            found_here = (
                f"{n_matched} of the {n_asked} members of the feature sets are features of view {view}"
            )
            text = f"{found_here}, which are named like {feature!r}; other members are like {member!r}."
            warn(text)
    non_empty = [i for i in range(len(names)) if any(of_names[i] for of_names in members.values())]
    return FeatureSets(
        tuple(names[i] for i in non_empty),
        {view: tuple(tuple(of_names[i]) for i in non_empty) for view, of_names in members.items()},
        digest_names(
            part
            for view, sets in of_view.items()
            for name, each in sets.items()
            for part in (view, name, *each)
        ),
    )


def _file(path: Any, option: str) -> dict[str, list[str]]:
    """Return the sets of a file; errors name the option that it was given by."""
    try:
        return read_gmt(path)
    except InputError as error:
        raise InputError(option, str(path), error.expected, error.remedy) from error


def _by_view(source: Any, views: Sequence[str], option: str) -> dict[str, dict[str, list[str]]]:
    """Return the members by set and view."""
    if isinstance(source, str | os.PathLike):
        sets = _file(source, option)
    elif source and all(isinstance(value, str | os.PathLike | Mapping) for value in source.values()):
        unknown = [view for view in source if view not in views]
        if unknown:
            expected, remedy = f"views among {', '.join(views)}", "Correct the name, or give it {loadings}."
            raise InputError(option, unknown[0], expected, remedy, loadings="informed")
        return {view: next(iter(_by_view(value, (view,), option).values())) for view, value in source.items()}
    else:
        sets = {str(name): [str(member) for member in each] for name, each in source.items()}
    if not sets or not all(sets.values()):
        empty = next((name for name, each in sets.items() if not each), source)
        raise InputError(option, empty, "members by set, of one or more", "Leave empty sets out.")
    return {view: sets for view in views}
