"""Pieces of a table: some rows that follow each other, as labels and numbers, and what hands them out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.levels import text_of
from factorflow.data.ingest.missing import is_number
from factorflow.errors import InputError

PIECE_ROWS = 2**18
"""Rows of a piece at most, where they can be counted beforehand."""


@dataclass(frozen=True)
class Piece:
    """Some rows that follow each other.

    Parameters
    ----------
    where : str
        The file they are in, or "the table".
    first : int
        Number of the first of them in it, from 0.
    n_rows : int
        How many there are (B).
    labels : callable
        Column -> the code of each row (B,), -1 where it is missing, and the labels that codes stand for.
    numbers : callable
        Column -> (B,) float64, NaN where missing.
    """

    where: str
    first: int
    n_rows: int
    labels: Callable[[str], tuple[NDArray[Any], list[Any]]]
    numbers: Callable[[str], NDArray[np.float64]]


@dataclass(frozen=True)
class TableSource:
    """A table wherever it lies.

    Parameters
    ----------
    read : callable
        (columns of labels, columns of numbers) -> pieces, in order.
    ordered : callable
        Column -> whether its labels bring an order of their own.
    """

    columns: tuple[str, ...]
    read: Callable[[Sequence[str], Sequence[str]], Iterator[Piece]]
    ordered: Callable[[str], bool]

    def check(self, columns: Sequence[str]) -> None:
        """Refuse columns that are not there, or there twice."""
        absent = [name for name in columns if name not in self.columns]
        if absent:
            raise InputError(
                "formula",
                ", ".join(absent),
                f"columns among {', '.join(self.columns[:20])}{', ...' if len(self.columns) > 20 else ''}",
                "Check the spelling; names with spaces or signs stand in backticks.",
            )
        twice = [name for name in columns if self.columns.count(name) > 1]
        if twice:
            raise InputError("columns", ", ".join(twice), "every name once", "Rename one of them.")


def without_codes(piece: Piece, texts: Sequence[str]) -> Piece:
    """Return a piece in which codes of missing entries, as a text table may write them, are missing."""
    codes = [float(text) for text in texts if is_number(text)]

    def labels(name: str) -> tuple[NDArray[Any], list[Any]]:
        row_codes, names = piece.labels(name)
        return row_codes, [None if label is None or text_of(label) in texts else label for label in names]

    def numbers(name: str) -> NDArray[np.float64]:
        values = piece.numbers(name)
        return np.where(np.isin(values, codes), np.nan, values)

    return replace(piece, labels=labels, numbers=numbers)


def has_declared_order(schema: Any) -> Callable[[str], bool]:
    """Return a predicate: whether the labels of a column of an Arrow schema have a declared order."""
    import pyarrow as pa

    return lambda name: pa.types.is_dictionary(schema.field(name).type)


def arrow_pieces(batches: Any, where: str) -> Iterator[Piece]:
    """Yield the rows of Arrow batches that come from somewhere, some at a time."""
    first = 0
    for batch in batches:
        parts = (batch.slice(start, PIECE_ROWS) for start in range(0, batch.num_rows, PIECE_ROWS))
        for part in parts if batch.num_rows > PIECE_ROWS else chain([batch]):
            if part.num_rows:
                yield _arrow_piece(part, where, first)
            first += part.num_rows


def _arrow_piece(batch: Any, where: str, first: int) -> Piece:
    import pyarrow as pa
    import pyarrow.compute as pc

    def labels(name: str) -> tuple[NDArray[Any], list[Any]]:
        column = batch.column(name)
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        codes = pc.fill_null(column.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
        return codes, column.dictionary.to_pylist()

    def numbers(name: str) -> NDArray[np.float64]:
        column = batch.column(name)
        kind = column.type
        try:
            if pa.types.is_boolean(kind):
                column = column.cast(pa.uint8())
            if not (pa.types.is_boolean(kind) or pa.types.is_decimal(kind) or _is_number(kind)):
                raise ValueError(f"it holds {kind}")
            column = column.cast(pa.float64(), safe=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise not_numeric_error(name, where, error) from error
        return np.asarray(pc.fill_null(column, np.nan).to_numpy(zero_copy_only=False), np.float64)

    return Piece(where, first, batch.num_rows, labels, numbers)


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind))


def not_numeric_error(name: str, where: str, error: Exception) -> InputError:
    """Return the error of a column that holds no numbers."""
    return InputError(
        f"column {name!r} of {where}", str(error), "numbers, missing ones left out", "Convert the column."
    )
