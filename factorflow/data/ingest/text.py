"""Text tables, parsed by Arrow in pieces: matrices, sample metadata and long tables alike.

Every row must have the number of fields that the dialect found; what does not is refused with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from factorflow.data.ingest.checks import warn
from factorflow.data.ingest.dialect import DEFAULT_FORMAT, NAME_HEADERS, TableFormat, find_dialect, read_rows
from factorflow.data.ingest.missing import MISSING_NUMBERS
from factorflow.data.ingest.text_files import COMPRESSED, open_binary
from factorflow.errors import InputError, pluralize

BLOCK_BYTES = 2**20
"""Bytes of text parsed at a time; more where lines are long, since a block holds whole ones. Arrow reads up
to 32 blocks ahead."""

FEW_ROWS = 20
"""Rows in which blanks around the fields are looked for."""

TRUE, FALSE = ("TRUE", "True", "true"), ("FALSE", "False", "false")

_NUMBER = re.compile(r"[-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d+)?|[-+]?(inf(inity)?|nan)", re.IGNORECASE)
_COMMA = re.compile(r"[-+]?\d*([.,]\d{3})*,\d+([.]\d+)?([eE][-+]?\d+)?")
_IDENTIFIER = re.compile(r"0\d+|\d{16,}")


class TextTable:
    """A text table.

    Raises
    ------
    InputError
        When it has no header.
    """

    stored_index: int | None
    """Position of the row names, where the file says that there are some."""
    index_is_known: bool
    """Whether the file says if there are row names."""

    def __init__(
        self, path: Path, table_format: TableFormat = DEFAULT_FORMAT, *, one_column: bool = False
    ) -> None:
        self.path = path
        with damaged_files(path):
            if not _ends_with_a_line(path):
                warn(
                    f"{path}: the last line has no line break at its end: if the file was cut off there, "
                    "the last number is wrong"
                )
            self.dialect = find_dialect(path, table_format, one_column=one_column)
        self.columns = list(self.dialect.columns)
        self.stored_index = 0 if self.dialect.row_names else None
        self.index_is_known = self.dialect.row_names
        self.na_values = table_format.na_values
        if self._header_is_data():
            raise InputError(
                f"header of {path}",
                ", ".join(self.columns[:4]),
                "names of the features",
                "Put a line with names on top; where numbers name the features, call the first column 'id'.",
            )

    @property
    def has_header_of_names(self) -> bool:
        """Whether the header of the first column marks it as row names."""
        return not self.columns[0] or self.columns[0].lower() in NAME_HEADERS

    def _header_is_data(self) -> bool:
        """Whether the header consists of numbers with decimals, or that repeat: then it is none."""
        first, *others = self.columns
        if others and self.has_header_of_names:
            return False
        return _are_data(others or [first]) or _are_data(self.columns)

    def first_cells(self, position: int) -> list[str]:
        """Return the first cells of a column."""
        return [row[position] for row in self.dialect.head if position < len(row)]

    def is_text(self, position: int) -> bool:
        """Whether one of the first cells of a column is not a number, or an identifier such as 001."""
        missing = {*MISSING_NUMBERS, *self.na_values}
        cells = [cell.strip() for cell in self.first_cells(position)]
        numbers = (_NUMBER.fullmatch(cell) and not _IDENTIFIER.fullmatch(cell) for cell in cells)
        return any(not number and cell not in missing for cell, number in zip(cells, numbers, strict=True))

    def describe(self) -> list[str]:
        """Describe what differs from the usual dialect."""
        return self.dialect.describe()

    def batches(self, texts: Sequence[int], numbers: Sequence[int], *, labels: bool = False) -> Iterator[Any]:
        """Yield Arrow record batches of some columns, named by position.

        Parameters
        ----------
        texts : sequence of int
            Columns handed out as they are written (missing ones too).
        numbers : sequence of int
            Columns handed out as float64; null where missing.

        Raises
        ------
        InputError
            For a row of another number of fields, or a cell that is no number.
        """
        import pyarrow as pa
        from pyarrow import csv

        dialect, words = self.dialect, [*MISSING_NUMBERS, *self.na_values]
        if any(cell != cell.strip() for row in dialect.head[:FEW_ROWS] for cell in row):
            words += [form for word in words for form in (f" {word}", f"{word} ")]
        logical = {i for i in numbers if self._is_logical(i)}
        text = pa.dictionary(pa.int32(), pa.string()) if labels else pa.string()
        types = {i: text for i in texts} | {i: pa.bool_() if i in logical else pa.float64() for i in numbers}
        read = csv.ReadOptions(
            use_threads=labels,  # of a matrix every thread would hold blocks of all columns
            column_names=[str(i) for i in range(dialect.n_fields)],
            skip_rows=dialect.skipped,
            block_size=max(BLOCK_BYTES, 16 * dialect.longest),
            encoding="utf8" if dialect.encoding == "utf-8-sig" else dialect.encoding,
        )
        convert = csv.ConvertOptions(
            include_columns=[str(i) for i in types],
            column_types={str(i): kind for i, kind in types.items()},
            null_values=words,
            true_values=TRUE,
            false_values=FALSE,
            strings_can_be_null=False,
            decimal_point=dialect.decimal,
        )
        parse = csv.ParseOptions(
            delimiter=dialect.separator, quote_char=dialect.quote, newlines_in_values=True
        )
        with damaged_files(self.path), open_binary(self.path) as stream:
            try:
                with csv.open_csv(
                    stream, read_options=read, parse_options=parse, convert_options=convert
                ) as reader:
                    yield from reader
            except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
                if "Empty CSV" not in str(error):
                    raise self._locate_error(numbers, error) from error

    def _is_logical(self, position: int) -> bool:
        """Whether the first cells of a column are TRUE and FALSE."""
        has_logical = False
        for row in self.dialect.head:
            cell = row[position] if position < len(row) else ""
            if cell in TRUE or cell in FALSE:
                has_logical = True
            elif cell not in MISSING_NUMBERS:
                return False
        return has_logical

    def _locate_error(self, numbers: Sequence[int], error: Exception) -> InputError:
        """Return the error of the first line with a wrong number of fields, or a cell that is not numeric."""
        missing = {*MISSING_NUMBERS, *self.na_values}
        match = re.search(r"In CSV column #(\d+): ", str(error))
        places = [int(match[1])] if match and int(match[1]) in numbers else [] if match else list(numbers)
        logical = {place for place in places if self._is_logical(place)}
        try:
            for line, row in read_rows(self.path, self.dialect):
                self._check_length(line, row)
                for place in places:
                    cell = row[place].strip(" \t")
                    wrong_mark = "," if self.dialect.decimal == "." else "."
                    if cell in missing or (place in logical and cell in (*TRUE, *FALSE)):
                        continue
                    if not _NUMBER.fullmatch(cell) or wrong_mark in cell:
                        return self._not_numeric_error(line, place, row[place])
        except InputError as located:
            return located
        remedy = (
            "Correct the line."
            if "invalid UTF8" not in str(error)
            else "Name its encoding, for example {encoding}."
        )
        return InputError(f"file {self.path}", str(error), "a table of numbers", remedy, encoding="cp1252")

    def _check_length(self, line: int, row: list[str]) -> None:
        dialect = self.dialect
        if len(row) == dialect.n_fields:
            return
        n_header = len(self.columns) - dialect.row_names
        expected = f"{n_header}, as in the header, or {n_header + 1} in every row, the first a row name"
        if dialect.n_fields != n_header:
            expected = f"{dialect.n_fields}, as in the rows above it"
        raise InputError(
            f"line {line} of {self.path}",
            pluralize(len(row), "field"),
            f"{expected} (separator {dialect.separator!r})",
            "Correct the line, or name another separator, {sep}; the file may have been cut off there.",
            sep=...,
        )

    def _not_numeric_error(self, line: int, place: int, cell: str) -> InputError:
        remedy = (
            "Correct it, say that it stands for a missing entry ({na_values}), remove the column, or give it "
            "as sample metadata ({obs})."
        )
        if place == 0:
            remedy = f"If it names the samples: {{index_col}}. {remedy}"
        if cell.strip()[:1] in ("<", ">"):
            remedy = (
                "Values beyond a limit are read from a table that is given by its path, uncompressed: "
                "not of a folder or of one of several files of a view."
            )
        elif _COMMA.fullmatch(cell.strip()):
            remedy = "Say {decimal}, or write decimals with a point; nothing between thousands."
        elif self.dialect.decimal == "," and _NUMBER.fullmatch(cell.strip()):
            remedy = "Write all numbers with the same decimal mark: others have a comma."
        return InputError(
            f"column {self.columns[place]!r} of {self.path}, line {line}",
            cell,
            "a number, or nothing where it is missing",
            remedy,
            na_values=...,
            obs=...,
            index_col=self.columns[0],
            decimal=",",
        )


def _are_data(names: Sequence[str]) -> bool:
    """Whether all names are numbers, with decimals or some of them twice."""
    if not all(_NUMBER.fullmatch(name) or name in MISSING_NUMBERS for name in names):
        return False
    return any(sign in name for name in names for sign in ".eE") or len(set(names)) < len(names)


@contextmanager
def damaged_files(path: Path) -> Iterator[None]:
    """Convert errors of decompression and decoding into an InputError (a context manager)."""
    import lzma
    import zipfile
    import zlib

    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise _damage_error(path, error) from error
    except UnicodeError as error:
        raise InputError(
            f"file {path}",
            str(error),
            "a text table encoded as UTF-8",
            "Name its encoding, for example {encoding}, or save it again as CSV in UTF-8.",
            encoding="cp1252",
        ) from error
    except OSError as error:
        if error.errno is None and path.suffix.lower() in COMPRESSED:  # of what decompresses it
            raise _damage_error(path, error) from error
        raise


def _damage_error(path: Path, error: Exception) -> InputError:
    expected, remedy = "a whole compressed table, as its name says", "Compress it again, or rename it."
    return InputError(f"file {path}", str(error), expected, remedy)


def _ends_with_a_line(path: Path) -> bool:
    """Whether the last line of a file has an end; of a compressed one its reader says whether it is whole."""
    if path.suffix.lower() in COMPRESSED or not path.stat().st_size:
        return True
    with path.open("rb") as stream:
        stream.seek(-min(4, path.stat().st_size), 2)
        return bool(set(stream.read().replace(b"\0", b"")[-1:]) & set(b"\r\n"))
