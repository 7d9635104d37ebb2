"""Labels of a table: provisional codes while they pass by, then levels in order.

Levels keep the order of a pandas Categorical or an Arrow dictionary; others are sorted, by value where all
are numbers. They do not depend on the order of the rows, nor on where the table was cut.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.checks import join_names, warn, warn_of_spelling
from factorflow.data.ingest.levels import sort_levels, text_of, typed_labels
from factorflow.errors import InputError, pluralize

MISSING_LEVEL = "missing"
"""The level of rows whose label is missing."""

_WHOLE = re.compile(r"([+-]?\d+)\.0*")


class Labels:
    """The labels of a variable in order of appearance, with the code of each."""

    def __init__(self) -> None:
        self.where: dict[str, int] = {}

    def codes(self, codes: NDArray[Any], labels: Sequence[Any]) -> NDArray[np.int32]:
        """Return the codes of some rows, (B,), given those in a piece and the labels of the piece."""
        label_codes = [self._code(as_text(label)) for label in labels]
        return np.asarray(np.array([*label_codes, -1], np.int32)[codes])

    def _code(self, text: str) -> int:
        return self.where.setdefault(text, len(self.where)) if text else -1


@dataclass(frozen=True)
class Levels:
    """The levels of a variable.

    Parameters
    ----------
    names : tuple of str
        In order (D).
    final : (P + 1,) int32 array
        The code of each provisional code; the last one is of missing labels.
    unknown : tuple of str
        Labels that are none of the levels; their code is -1.
    """

    names: tuple[str, ...]
    final: NDArray[np.int32]
    unknown: tuple[str, ...] = ()


def as_text(label: Any) -> str:
    """Return a label as text; "" where it is missing."""
    if label is None or type(label).__name__ in ("NAType", "NaTType"):
        return ""
    return text_of(label)


def tidy(text: str) -> str:
    """Return the text of a whole number without decimals, of a truth value or a date as a frame has it."""
    match = _WHOLE.fullmatch(text)
    return match.group(1) if match else typed_labels([text])[0]


def resolve_levels(
    column: str,
    labels: Sequence[str],
    used: NDArray[np.bool_],
    *,
    ordered: bool,
    forced: bool,
    gaps: bool,
    chosen_levels: Sequence[str] | None,
    template_levels: Sequence[str] | None,
) -> Levels:
    """Return the levels of a variable, given all its labels.

    Parameters
    ----------
    labels : sequence of str
        By provisional code (P).
    used : (P,) bool array
        Which of them some row has.
    ordered : bool
        They came in an order of their own.
    forced : bool
        Numbers of any kind are to be levels (``C(column)``).
    gaps : bool
        Some rows have no label, and are to have a level of their own.
    chosen_levels : sequence of str, optional
        Levels in the order that the user chose.
    template_levels : sequence of str, optional
        Levels of another dataset: other labels have none.

    Raises
    ------
    InputError
        When there is no label, or one that is not among those chosen, or when they are numbers with decimals.
    """
    texts = list(labels) if ordered else _normalise(labels)
    present = [text for text, some in zip(texts, used, strict=True) if some]
    if not ordered and not forced and template_levels is None and chosen_levels is None:
        _refuse_measurements(column, present)
    names = list(dict.fromkeys(texts)) if ordered else sort_levels(list(dict.fromkeys(present)))
    unknown: tuple[str, ...] = ()
    if template_levels is not None or chosen_levels is not None:
        names = list(template_levels if template_levels is not None else chosen_levels or ())
        level_set = set(names)
        unknown = tuple(text for text in dict.fromkeys(present) if text not in level_set)
    if template_levels is None and unknown:
        raise InputError(
            f"labels of {column!r}",
            join_names(unknown),
            f"levels among {join_names(names)}",
            "Add them to levels.",
        )
    if gaps and template_levels is None:
        if MISSING_LEVEL in names and chosen_levels is None:
            raise InputError(
                f"labels of {column!r}",
                MISSING_LEVEL,
                "another label, since rows without one get this level",
                "Rename it, or leave those rows out: {missing_levels}.",
                missing_levels="drop",
            )
        names = list(dict.fromkeys([*names, MISSING_LEVEL]))
    if not names:
        raise InputError(
            f"labels of {column!r}", "all of them missing", "at least one label", "Leave the variable out."
        )
    warn_of_spelling(f"levels of variable {column!r}", names)
    where = {name: code for code, name in enumerate(names)} | {"": -1}
    codes = [where.get(text, -1) for text in [*texts, MISSING_LEVEL if gaps else ""]]
    return Levels(tuple(names), np.array(codes, np.int32), unknown)


def _normalise(texts: Sequence[str]) -> list[str]:
    """Return labels that are all numbers with whole ones freed of decimals: 3 and 3.0 are one level.

    Truth values and dates of text tables become those of a frame.
    """
    return typed_labels(list(texts)) if _numbers(texts) is None else [tidy(text) for text in texts]


def _numbers(texts: Sequence[str]) -> list[float] | None:
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


def _refuse_measurements(column: str, texts: Sequence[str]) -> None:
    numbers = _numbers(texts)
    decimals = [text for text in texts if numbers and not float(text).is_integer()]
    if decimals:
        raise InputError(
            f"variable {column!r}",
            join_names(decimals, 3),
            "labels or whole numbers: x is 1 where a row has a level and 0 where not, and m^x of other x is "
            "no part of these models",
            f"Cut it into classes, use linear(1, {column}) (x >= 0) or an offset, or C({column}) to make a "
            "level of every value.",
        )


def warn_unknown(column: str, unknown: Sequence[str]) -> None:
    """Warn of labels that the levels of a dataset do not have."""
    levels = pluralize(len(unknown), "level")
    warn(f"variable {column!r}: {levels} that the dataset did not have ({join_names(unknown)})")
