"""Warn of sample names that differ only in spelling."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.checks import warn, without_blanks
from factorflow.data.ingest.sources import Source
from factorflow.errors import pluralize

StrArray = NDArray[np.str_]

_SIGNS = re.compile(r"[-_.]")
_ZEROS = re.compile(r"^0+(?=\d)|\.0$")


def _normalise_name(name: str) -> str:
    """Normalise case, blanks, "-" for "." and leading zeros of a name."""
    return _SIGNS.sub(".", _ZEROS.sub("", without_blanks(name).casefold()))


def spelling_examples(one: StrArray, other: StrArray) -> tuple[int, str]:
    """Return how many names of one only differ in spelling from a name of the other, and examples."""
    ours, theirs = set(one.tolist()), set(other.tolist())
    reduced = {_normalise_name(name): name for name in theirs - ours}
    pairs = [
        (name, reduced[key])
        for name in one.tolist()
        if name not in theirs and (key := _normalise_name(name)) in reduced
    ]
    return len(pairs), ", ".join(f"{a!r} and {b!r}" for a, b in pairs[:3])


def warn_of_names(names: Mapping[str, StrArray], sources: Mapping[str, Source]) -> None:
    """Warn of samples whose names differ in spelling alone between views, and of views that share none."""
    if len(names) < 2:
        return
    sets = {view: set(own.tolist()) for view, own in names.items()}
    spelled = set[str]()
    for one, other in combinations(names, 2):
        number, examples = (
            spelling_examples(names[one], names[other]) if sets[one] != sets[other] else (0, "")
        )
        if number:
            spelled |= {one, other}
            warn(
                f"{pluralize(number, 'sample')} of view {one!r} and of view {other!r} differ in case, blanks "
                f"or signs alone ({examples}): they are taken as different samples; if they are the same, "
                "write them alike"
            )
    for view in sets.keys() - spelled:
        others = [sets[other] for other in sets if other != view]
        if others and sets[view].isdisjoint(set().union(*others)):
            _warn_of_no_overlap(view, sources[view], set().union(*others))


def _warn_of_no_overlap(view: str, source: Source, samples: set[str]) -> None:
    """Warn of a view that shares no sample with the others; where its features do, they are in rows."""
    why = "are its sample names written differently, or its features in rows ({transpose})?"
    if source.features is not None and not samples.isdisjoint(source.features.tolist()):
        why = "its columns are called like samples of others: if features are in rows, {transpose}"
    warn(f"view {view!r} has no sample in common with any other view: {why}", transpose=[view])
