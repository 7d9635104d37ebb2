"""A categorical response as binary features: sticks that are broken one after the other.

Of levels l_0, l_1, ..., l_(L-1) feature j = 1 ... L - 1 asks whether the level is l_j, of samples whose level
is none of l_1 ... l_(j-1): 1 if it is, 0 if it comes later or is l_0, missing if it was one of these. The
product of the probabilities of the features is that of the level: nothing is lost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.kinds import KINDS
from factorflow.data.store.view_source import ReadBlock, ViewSource
from factorflow.errors import InputError


def as_sticks(view: ViewSource) -> ViewSource:
    """Return a view of codes as one of L - 1 binary features, named ``stage[II]`` by view and level."""
    levels = view.features
    if levels.size < 2:
        raise InputError(f"levels of view {view.name!r}", levels.size, "at least 2", "Leave the view out.")
    names = np.array([f"{view.name}[{level}]" for level in levels[1:].tolist()])
    return replace(view, features=names, read=_reader(view.read, levels.size), kind=KINDS["bernoulli"])


def levels_of_sticks(view: str, features: NDArray[Any]) -> list[str] | None:
    """Return the levels but the first of a view of sticks, by its features' names; None of other views."""
    names, before = [str(name) for name in features.tolist()], f"{view}["
    if not names or not all(name.startswith(before) and name.endswith("]") for name in names):
        return None
    return [name[len(before) : -1] for name in names]


def _reader(read: ReadBlock, n_levels: int) -> ReadBlock:
    def rows(start: int, stop: int) -> NDArray[Any]:
        return break_sticks(read(start, stop), n_levels)

    return rows


def break_sticks(codes: NDArray[Any], n_levels: int) -> NDArray[np.float64]:
    """Return the binary features (B, L - 1) of codes (B,); those of a missing code, -1, are missing."""
    code, stick = codes[:, None], np.arange(1, n_levels)
    earlier = (code > 0) & (code < stick)
    return np.where(earlier | (code < 0), np.nan, code == stick)
