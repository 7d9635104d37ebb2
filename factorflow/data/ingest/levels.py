"""Categorical variables: from labels of any type to levels in order, and codes of them.

Labels become text, the same whether they come typed (a frame, Parquet) or as text of a file: whole numbers
without a decimal point (so that 3 and 3.0 are one level), dates at midnight without a time, True and False so
written, all else as it prints. None, NaN, NaT and empty text are missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.errors import InputError

StrArray = NDArray[np.str_]

PIECE_ROWS = 65536
"""Rows of a variable looked at together while its levels are collected."""


class EncodedLabels:
    """Labels kept as codes, which a source slices like an array of labels.

    Parameters
    ----------
    codes : (N,) int array
        -1 where a label is missing.
    """

    def __init__(self, codes: NDArray[Any], labels: Sequence[str]) -> None:
        self.codes = codes
        self._labels = np.array([*labels, None], dtype=object)  # the last one is at -1

    @property
    def shape(self) -> tuple[int, int]:
        """(N, 1)."""
        return self.codes.size, 1

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return np.asarray(self._labels[self.codes[rows]])


def text_of(label: Any) -> str:
    """Return a label as text; "" where it is missing."""
    if isinstance(label, bytes):
        return label.decode("utf-8", "backslashreplace")
    if isinstance(label, float | np.floating):
        if math.isnan(label):
            return ""
        return str(int(label)) if float(label).is_integer() else str(label)
    if hasattr(label, "isoformat") or isinstance(label, np.datetime64):
        return _MIDNIGHT.sub(r"\1", str(label)) if label == label else ""
    return str(label)


def typed_labels(texts: list[str]) -> list[str]:
    """Return the labels of a column of a text file as they would come from a frame.

    Where all are numbers, dates or truth values as programs write them, they are taken for such; identifiers
    like 001 and 1.10 stay.
    """
    if all(text.lower() in ("true", "false") for text in texts):
        return [text.capitalize() for text in texts]
    if all(DATE.fullmatch(text) for text in texts):
        return [_MIDNIGHT.sub(r"\1", text) for text in texts]
    try:
        printed = all(text in (str(float(text)), str(int(float(text)))) for text in texts)
    except (ValueError, OverflowError):
        return texts
    return [text_of(float(text)) if "." in text else text for text in texts] if printed else texts


DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?)?([-+]\d\d:\d\d)?")
DURATION = re.compile(r"-?\d+ days?( [-+]?\d\d:\d\d:\d\d(\.\d+)?)?")
"""Durations as pandas writes them."""
_MIDNIGHT = re.compile(r"(\d{4}-\d\d-\d\d)[ T]00:00(:00(\.0+)?)?(?![:.\d])")


def split(labels: NDArray[Any]) -> tuple[NDArray[np.intp], list[str]]:
    """Return the code of every label (B,) among those that occur, and these as text; -1: missing."""
    import pandas as pd

    try:
        codes, levels = pd.factorize(labels)
    except TypeError as error:  # mappings, lists
        raise InputError("labels", str(error), "texts or numbers", "Give each sample one label.") from error
    texts = [text_of(label) for label in levels]
    names = list(dict.fromkeys(text for text in texts if text))
    where = {"": -1} | {name: code for code, name in enumerate(names)}
    codes = np.array([*(where[text] for text in texts), -1])[codes]
    return codes, names


def find_levels(
    view: str,
    n_rows: int,
    own_levels: NDArray[Any] | None,
    labels: StrArray | None,
    read: Callable[[int, int], NDArray[Any]],
    *,
    drop_empty: bool,
) -> StrArray:
    """Return the levels of a categorical variable, in one pass over its labels.

    Parameters
    ----------
    own_levels, labels : (L,) array or None
        Levels in the order that the source has them, and in that which the user wants, which goes before.
        Without either: sorted (by value, where every level is a number).
    read : callable
        (start, stop) -> its labels (B, 1).

    Raises
    ------
    InputError
        When there is no label at all, or one that is not among the given levels.
    """
    present: dict[str, None] = {}
    for start in range(0, n_rows, PIECE_ROWS):
        piece = read(start, min(start + PIECE_ROWS, n_rows))
        present |= dict.fromkeys(split(piece[:, 0])[1])
    if not present:
        raise InputError(
            f"labels of view {view!r}", "all of them missing", "at least one label", "Leave the view out."
        )
    levels = None if own_levels is None else [text_of(label) for label in own_levels]
    if labels is not None:
        levels = labels.tolist()
    if levels is None:
        return np.asarray(sort_levels(list(present)), dtype=str)
    level_set = set(levels)
    unknown = [label for label in present if label not in level_set]
    if unknown:
        raise InputError(
            f"labels of view {view!r}",
            ", ".join(map(repr, unknown[:5])),
            f"levels among {', '.join(map(repr, levels[:5]))}{', ...' if len(levels) > 5 else ''}",
            "Add them to features, or correct the labels.",
        )
    return np.asarray([level for level in levels if level in present or not drop_empty], dtype=str)


def reader(
    read: Callable[[int, int], NDArray[Any]], levels: StrArray
) -> Callable[[int, int], NDArray[np.int32]]:
    """Return a function that reads rows of a variable as codes of its levels, (B,)."""
    where = {level: code for code, level in enumerate(levels.tolist())}

    def codes(start: int, stop: int) -> NDArray[np.int32]:
        codes, names = split(read(start, stop)[:, 0])
        return np.array([*(where[name] for name in names), -1], np.int32)[codes]

    return codes


def sort_levels(levels: list[str]) -> list[str]:
    """Return levels sorted by value where all are numbers, else by text."""
    try:
        numbers = {level: float(level) for level in levels}
    except ValueError:
        return sorted(levels)
    if not all(math.isfinite(number) for number in numbers.values()):
        return sorted(levels)
    return sorted(levels, key=lambda level: (numbers[level], level))
