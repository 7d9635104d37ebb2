"""One pass over the source of a table: its columns on disk as codes and numbers, its labels in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from factorflow.core.kinds import KINDS, LARGEST_COUNT, Kind
from factorflow.data.holdout import Holdout
from factorflow.data.tables.columns import FileColumn, append
from factorflow.data.tables.formula import Terms
from factorflow.data.tables.labels import Labels
from factorflow.data.tables.pieces import Piece, TableSource
from factorflow.errors import InputError

Part = Literal["both", "kept", "held out"]


@dataclass(frozen=True)
class Rules:
    """Rules for rows with missing or unknown values.

    Parameters
    ----------
    kind : Kind or None
        Of the response; None: to be guessed.
    missing_response : {"drop", "refuse"}
        Rows without a response, an offset or another number.
    missing_levels : {"level", "drop", "refuse"}
        Rows without a label.
    holdout : Holdout or None
        Which rows are of the part that is held out.
    """

    kind: Kind | None
    missing_response: str
    missing_levels: str
    holdout: Holdout | None
    part: Part


@dataclass
class SpooledTable:
    """The rows of a table that are used, on disk.

    Parameters
    ----------
    n_table_rows, n_dropped, n_held_out, n_rows : int
        Rows of the table; left out since something is missing; held out, or of the other part; and those
        used (N).
    codes : dict of str to (N,) FileColumn of int32
        Provisional codes by column; -1 where a label is missing.
    numbers : dict of str to (N,) FileColumn of float64
        By column.
    gaps : set of str
        Columns in which a label is missing somewhere.
    counts : bool
        Whether every response is a whole number from 0 on.
    held_out : Spooled or None
        Where both parts are wanted, the rows that are held out: ``n_rows``, ``codes`` and ``numbers``.
    """

    n_table_rows: int = 0
    n_dropped: int = 0
    n_held_out: int = 0
    n_rows: int = 0
    codes: dict[str, FileColumn] = field(default_factory=dict)
    numbers: dict[str, FileColumn] = field(default_factory=dict)
    labels: dict[str, Labels] = field(default_factory=dict)
    gaps: set[str] = field(default_factory=set)
    counts: bool = True
    held_out: SpooledTable | None = None


def spool(source: TableSource, terms: Terms, rules: Rules, folder: Path) -> SpooledTable:
    """Read a table once and write the columns of a formula to files in a folder.

    Raises
    ------
    InputError
        For a column that is missing, a value that does not fit its role, something missing that is to be
        refused, and where no row is left.
    """
    numbers = [terms.response, *terms.numbers]
    source.check([*terms.variables, *numbers])
    out = SpooledTable(labels={name: Labels() for name in terms.variables})
    both = rules.holdout is not None and rules.part == "both"
    parts = [_Part(terms, folder / "used"), *([_Part(terms, folder / "held")] if both else [])]
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(part)
        for piece in source.read(terms.variables, numbers):
            _add(piece, terms, rules, out, parts)
    if not parts[0].n_rows:
        raise InputError(
            "source",
            f"{out.n_table_rows} rows, {out.n_dropped} of them with something missing",
            "rows with a response",
            "Check the table and the options that leave rows out.",
        )
    if both:
        out.held_out = parts[1].spooled(SpooledTable())
    return parts[0].spooled(out)


class _Part(ExitStack):
    """Columns that are being written, a file each."""

    def __init__(self, terms: Terms, folder: Path) -> None:
        super().__init__()
        self.terms, self.folder, self.n_rows = terms, folder, 0
        self.types = dict.fromkeys(terms.variables, np.dtype(np.int32))
        numbers: dict[str, np.dtype[Any]] = dict.fromkeys(
            (terms.response, *terms.numbers), np.dtype(np.float64)
        )
        self.types |= numbers
        self.paths = {name: folder / f"{position}.column" for position, name in enumerate(self.types)}
        folder.mkdir(parents=True)
        self.files = {name: self.enter_context(path.open("wb")) for name, path in self.paths.items()}

    def add(self, columns: Mapping[str, NDArray[Any]], selected: NDArray[np.bool_]) -> None:
        for name, array in columns.items():
            append(self.files[name], array[selected])
        self.n_rows += int(selected.sum())

    def spooled(self, out: SpooledTable) -> SpooledTable:
        columns = {name: FileColumn.whole(path, self.types[name]) for name, path in self.paths.items()}
        out.n_rows = self.n_rows
        out.codes = {name: columns.pop(name) for name in self.terms.variables}
        out.numbers = columns
        return out


def _add(piece: Piece, terms: Terms, rules: Rules, out: SpooledTable, parts: Sequence[_Part]) -> None:
    numbers = {name: piece.numbers(name) for name in (terms.response, *terms.numbers)}
    raw = {name: piece.labels(name) for name in terms.variables}
    codes = {name: out.labels[name].codes(*raw[name]) for name in terms.variables}
    complete = np.full(piece.n_rows, True)
    for name, values in numbers.items():
        complete &= _check_missing(piece, name, ~np.isnan(values), "missing_response", rules.missing_response)
    if rules.missing_levels != "level":
        for name, code in codes.items():
            complete &= _check_missing(piece, name, code >= 0, "missing_levels", rules.missing_levels)
    _check_numbers(piece, terms, rules.kind, numbers, complete)
    selected = complete
    if rules.holdout is not None:
        hidden = rules.holdout.rows(out.n_table_rows, piece.n_rows)
        selected = complete & (hidden == (rules.part == "held out"))
    for part, rows in zip(parts, (selected, complete & ~selected), strict=False):
        part.add(codes | numbers, rows)
    out.gaps |= {name for name, code in codes.items() if (code[selected] < 0).any()}
    out.n_table_rows += piece.n_rows
    out.n_dropped += int(piece.n_rows - complete.sum())
    out.n_held_out += int(complete.sum() - selected.sum())
    out.counts &= bool(KINDS["poisson"].invalid(numbers[terms.response][complete]) is None)


def _check_missing(
    piece: Piece, name: str, complete: NDArray[np.bool_], option: str, policy: str
) -> NDArray[np.bool_]:
    if policy == "refuse" and not complete.all():
        row = int(np.argmin(complete))
        raise InputError(
            f"column {name!r} of {piece.where}, row {piece.first + row + 1}",
            "missing",
            f"an entry in every row, as {option}='refuse' asks for",
            f"Fill it in, or leave such rows out: {option}='drop'.",
        )
    return complete


def _check_numbers(
    piece: Piece,
    terms: Terms,
    kind: Kind | None,
    numbers: dict[str, NDArray[np.float64]],
    complete: NDArray[np.bool_],
) -> None:
    """Refuse values that do not fit their role, in rows that are used."""

    def refuse(name: str, bad: NDArray[np.bool_], expected: str, remedy: str) -> None:
        bad = bad & complete
        if bad.any():
            row = int(np.argmax(bad))
            where = f"column {name!r} of {piece.where}, row {piece.first + row + 1}"
            raise InputError(where, float(numbers[name][row]), expected, remedy)

    for name, values in numbers.items():
        refuse(name, np.isinf(values), "a finite number, or nothing where it is missing", "Correct it.")
    if kind is not None and kind.name == "poisson":
        misfits = kind.invalid(numbers[terms.response])
        if misfits is not None:
            refuse(
                terms.response,
                misfits,
                f"counts: whole numbers from 0 to {LARGEST_COUNT}",
                "Correct it, or choose the likelihood 'normal'.",
            )
    for offset in terms.offsets:
        if offset.log:
            remedy = "A row without any exposure tells nothing: remove it, or correct it."
            refuse(
                offset.column, numbers[offset.column] <= 0, "a number above 0, whose logarithm it is", remedy
            )
    for column in (c for group in terms.linear for c in group.columns if c is not None):
        refuse(column, numbers[column] < 0, "a number >= 0, as in linear(...)", "Shift or rescale it.")
