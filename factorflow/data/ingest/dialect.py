"""Detect the dialect of a text table: compression, encoding, separator, decimal, comments, header, names.

The separator is the sign that gives the rows the number of fields of the header, or one more. One more are
row names, as R writes them; where the last field is empty in every row, it is a trailing separator.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from factorflow.data.ingest.text_files import open_binary, open_text, table_ending
from factorflow.errors import InputError, pluralize

TEXT = {".csv": ",", ".tsv": "\t", ".txt": "\t", ".tab": "\t"}
"""Endings of text tables, and the separator that is usual for each."""

NAME_HEADERS = frozenset({"obs", "sample", "sample_id", "id", "cell", "barcode"})
"""Headers (in lower case) that say that a first column of numbers holds the names of the samples."""

FEATURE_HEADERS = frozenset(
    "gene genes gene_id geneid gene_name gene_symbol symbol feature features feature_id probe probe_id "
    "entrez entrezid entrez_id id_ref protein protein_id transcript transcript_id otu_id".split()
)
"""Headers (in lower case) of first columns that name features: these are in rows then."""


SEPARATORS = (",", "\t", ";", "|", " ")
"""What may separate columns; a blank only where nothing else does."""

HEAD_LINES = 1000
HEAD_CHARACTERS = 2**20
"""Lines from which a dialect is found: so many, or as many as have so many characters (but `FEW_LINES`)."""
FEW_LINES = 8

_WORKBOOK = ("an archive, or an Excel workbook", "Save the sheet as CSV, in UTF-8.")
_NO_TEXT = {
    b"PK\x03\x04": _WORKBOOK,
    b"\xd0\xcf\x11\xe0": _WORKBOOK,
    b"PAR1": ("a Parquet file", "Give it the ending .parquet."),
    b"\x1f\x8b": ("compressed by gzip", "Give it the ending .gz."),
    b"BZh": ("compressed by bzip2", "Give it the ending .bz2."),
    b"\xfd7zXZ\x00": ("compressed by xz", "Give it the ending .xz."),
    b"\x28\xb5\x2f\xfd": ("compressed by Zstandard", "Give it the ending .zst."),
    b"\x89HDF": ("an HDF5 file", "Give it the ending of its kind: .h5ad, .h5mu, .h5, .nc or .mat."),
}
"""First bytes of files that are no text, what they are, and what to do."""
_EXCEL_HINT = re.compile(r"sep=(.)\r?\n?")
_BLANKS = re.compile(r" +[-+.\d]|[^\"']*  +[^\s]")
_COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")
_POINT = re.compile(r"[-+]?\d*\.\d+([eE][-+]?\d+)?")
_DIGITS = re.compile(r"\s*([-+]?\d+([eE][-+]?\d+)?\s*)?")
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+")


@dataclass(frozen=True)
class TableFormat:
    """Options for reading text tables; None: detected.

    Parameters
    ----------
    index_col : str, int, False or None
        Column with the sample names, by name or position; False: there is none.
    sep, decimal, encoding : str or None
        As for `pandas.read_csv`.
    na_values : tuple of str
        Texts that stand for a missing entry, besides those of `factorflow.data.ingest.missing`.
    """

    index_col: str | int | bool | None = None
    sep: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    na_values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, expectation in (("sep", "one character, such as ';' or '\\t'"), ("decimal", "'.' or ','")):
            value = getattr(self, name)
            wrong = not isinstance(value, str) or len(value) != 1 or (name == "decimal" and value not in ".,")
            if value is not None and wrong:
                raise InputError(name, value, expectation, "Leave it out to have it detected.")
        if self.index_col is True or not isinstance(self.index_col, str | int | None):
            expected = "the name or position of a column, or False"
            remedy = "Leave it out for a first column of text, or one called 'id' or 'sample'."
            raise InputError("index_col", self.index_col, expected, remedy)
        try:
            codecs.lookup(self.encoding or "utf-8")
        except (LookupError, TypeError):
            expected = "an encoding that Python knows"
            raise InputError("encoding", self.encoding, expected, "For example 'cp1252'.") from None

    def set_options(self) -> dict[str, Any]:
        """Return the options that are set."""
        return {name: value for name, value in vars(self).items() if value is not None and value != ()}


DEFAULT_FORMAT = TableFormat()
"""No option is set: the format is inferred."""


@dataclass(frozen=True)
class Dialect:
    """The dialect of a text table.

    Parameters
    ----------
    separator, quote, decimal, encoding : str
        Between columns; around text; in numbers; of the bytes.
    columns : tuple of str
        Names of the columns; "" stands for the column of row names of R's layout.
    n_fields : int
        Fields of every row: one for each column, and those at the end that are empty everywhere.
    skipped : int
        Lines above the rows: comments and the header.
    row_names : bool
        Whether the header has one field fewer than the rows (R's layout).
    longest : int
        Characters of the longest line among the first.
    """

    separator: str
    quote: str
    decimal: str
    encoding: str
    columns: tuple[str, ...]
    n_fields: int
    skipped: int
    row_names: bool = False
    n_comments: int = 0
    head: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    longest: int = 0

    def describe(self) -> list[str]:
        """Describe what differs from the usual dialect."""
        names = {"\t": "tabs", ";": "semicolons", "|": "vertical bars", " ": "blanks"}
        parts = [f"separated by {names.get(self.separator, self.separator)}"] if self.separator != "," else []
        parts += ["decimal comma"] if self.decimal == "," else []
        if self.n_comments:
            parts.append(f"{self.n_comments} comment line{'s' if self.n_comments > 1 else ''} skipped")
        parts += ["separators at the ends of lines left out"] if self.n_fields > len(self.columns) else []
        parts += [f"encoding {self.encoding}"] if self.encoding != "utf-8-sig" else []
        return parts


def is_feature_header(header: str) -> bool:
    """Whether the header of the first column marks it as feature names."""
    return header.strip().lower().replace(" ", "_") in FEATURE_HEADERS


def read_rows(path: Path, dialect: Dialect) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows below the header one by one, each with the number of its last line; slow."""
    with open_text(path, dialect.encoding) as stream:
        for _ in range(dialect.skipped):
            stream.readline()
        rows = csv.reader(stream, delimiter=dialect.separator, quotechar=dialect.quote)
        for row in rows:
            if row:
                yield rows.line_num + dialect.skipped, row


def find_dialect(path: Path, table_format: TableFormat, *, one_column: bool) -> Dialect:
    """Detect the dialect of a text table.

    Raises
    ------
    InputError
        When there is no header, or only one column.
    """
    encoding = table_format.encoding or _encoding(path)
    preamble, lines, complete = _head(path, encoding)
    if lines and (hint := _EXCEL_HINT.fullmatch(lines[0])):  # the first line of Excel's own
        preamble.append(lines.pop(0))
        table_format = replace(table_format, sep=table_format.sep or hint[1])
    if preamble and _is_header(preamble[-1], lines, complete, table_format, path):
        lines.insert(0, preamble.pop().removeprefix("#"))
    dialect = _dialect_of(path, lines, complete, table_format, one_column)
    n_comments = sum(line.startswith("#") for line in preamble)
    skipped = dialect.skipped + len(preamble)
    dialect = replace(dialect, skipped=skipped, encoding=encoding, n_comments=n_comments)
    return _without_empty_columns(path, dialect)


def _encoding(path: Path) -> str:
    """Return the encoding of the byte order mark, else UTF-8."""
    with open_binary(path) as stream:
        start = stream.read(6)
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    for mark, (what, remedy) in _NO_TEXT.items():
        if start.startswith(mark):
            raise InputError(f"file {path}", what, "a text table", remedy)
    if b"\0" in start:
        remedy = "Name its encoding, for example {encoding}, or save it again as CSV in UTF-8."
        value, expected = "bytes that are 0", "a text table encoded as UTF-8"
        raise InputError(f"file {path}", value, expected, remedy, encoding="utf-16-le")
    return "utf-8-sig"


def _head(path: Path, encoding: str) -> tuple[list[str], list[str], bool]:
    """Return the comment and empty lines on top, the first lines below them, and whether these are all."""
    preamble, lines, size = list[str](), list[str](), 0
    with open_text(path, encoding) as stream:
        for line in stream:
            if not lines and (not line.strip() or line.startswith("#")):
                preamble.append(line)
                continue
            lines.append(line)
            size += len(line)
            if len(lines) >= HEAD_LINES or (size >= HEAD_CHARACTERS and len(lines) >= FEW_LINES):
                return preamble, lines, False
    return preamble, lines, True


def _is_header(line: str, lines: list[str], complete: bool, table_format: TableFormat, path: Path) -> bool:
    """Whether a line "#name..." is the header: it has as many fields as the rows (BIOM's "#OTU ID")."""
    if not re.match(r"#[^\s#]", line) or not lines:
        return False
    sign, rows = _separate(path, [line.removeprefix("#"), *lines], complete, table_format)
    return len(rows) > 1 and len(rows[0]) > 1 and all(len(row) == len(rows[0]) for row in rows)


def _dialect_of(
    path: Path, lines: Sequence[str], complete: bool, table_format: TableFormat, one_column: bool
) -> Dialect:
    """Return the dialect of the lines from the header on."""
    separator, rows = _separate(path, lines, complete, table_format)
    header, data = (rows[0], rows[1:]) if rows else ([], [])
    n_fields = _n_fields(header, data)
    if len(header) < 2 and n_fields < 2 and not (one_column and header):
        raise InputError(
            f"header of {path}",
            header[0][:60] if header else "nothing",
            "columns separated by commas, tabs or semicolons",
            "Name the separator ({sep}), put a line of feature names on top, or take it out of the folder; "
            "of a table of one column say {index_col}.",
            sep=...,
            index_col=False,
        )
    if header[-1:] == [""] and n_fields == len(header) - 1:  # a separator at the end of the header alone
        header = header[:-1]
    if separator == " " and table_format.sep is None and any(_BLANKS.match(line) for line in lines):
        raise InputError(
            f"columns of {path}",
            "separated by runs of blanks",
            "one sign between two columns",
            "Write it with commas or tabs: pandas.read_csv(path, sep=r'\\s+') reads such tables.",
        )
    row_names = n_fields == len(header) + 1
    if row_names and separator == "," and table_format.sep is None:
        _check_commas(path, header, data, lines)
    columns = ["", *header] if row_names else header
    first = csv.reader(iter(lines), delimiter=separator, quotechar=_quote(lines))
    next(first, None)
    return Dialect(
        separator=separator,
        quote=_quote(lines),
        decimal=table_format.decimal or _decimal(data),
        encoding="",
        columns=tuple(map(str.strip, columns)),
        n_fields=len(columns),
        skipped=first.line_num,
        row_names=row_names,
        head=tuple(map(tuple, data)),
        longest=max(map(len, lines), default=0),
    )


def _check_commas(path: Path, header: list[str], rows: list[list[str]], lines: Sequence[str]) -> None:
    """Refuse rows with one field more than the header, all whole numbers: one comma may be a decimal mark.

    Row names of R are counted from 1, or in quotes.
    """
    whole = all(_DIGITS.fullmatch(cell) for row in rows for cell in row)
    numbered = all(row[0].strip() == str(number) for number, row in enumerate(rows, 1))
    if whole and not any('"' in line for line in lines[1:]) and (len(header) == 1 or not numbered):
        raise InputError(
            f"line 2 of {path}",
            lines[1].strip()[:60],
            f"{pluralize(len(header), 'field')}, as in the header: one comma may be a decimal mark, or the "
            "first field a row name",
            "Say {sep} if it is a row name; separate columns by semicolons if numbers have decimal commas "
            "(of one column alone: a semicolon as separator, {decimal} and {index_col}).",
            sep=",",
            decimal=",",
            index_col=False,
        )


def _n_fields(header: list[str], rows: list[list[str]]) -> int:
    """Return the number of fields that most rows have, if it fits the header; else that of the header."""
    if not rows:
        return len(header)
    usual = Counter(map(len, rows)).most_common(1)[0][0]
    return usual if _fits(header, usual) else len(header)


def _fits(header: list[str], n_fields: int) -> bool:
    surplus = n_fields - len(header)
    return surplus in (0, 1) or (surplus == -1 and header[-1] == "")


def _separate(
    path: Path, lines: Sequence[str], complete: bool, table_format: TableFormat
) -> tuple[str, list[list[str]]]:
    """Return the separator, and the lines split by it."""
    usual = TEXT.get(table_ending(path), ",")
    if table_format.sep is not None:
        return table_format.sep, _split(lines, table_format.sep, complete)
    best: tuple[Any, str, list[list[str]]] | None = None
    for sign in SEPARATORS:
        rows = _split(lines, sign, complete) if sign == usual or any(sign in line for line in lines) else []
        if not rows:
            continue
        header, counts = rows[0], Counter(map(len, rows[1:]))
        n_fields, n_rows = counts.most_common(1)[0] if counts else (len(header), 0)
        share = n_rows / max(1, len(rows) - 1) if _fits(header, n_fields) else 0.0
        several = max(len(header), n_fields) > 1
        whole = several and (share == 1.0 or not counts)
        rank = whole and sign != " ", whole, several and sign != " ", several * share
        score = *rank, n_fields, n_fields == len(header), -_n_strange(rows), sign == usual
        if best is None or score > best[0]:
            best = score, sign, rows
    return (best[1], best[2]) if best is not None else (usual, [])


def _n_strange(rows: list[list[str]]) -> int:
    """Return how many fields of the first rows contain another separator and are not decimal numbers."""
    fields = (field for row in rows[1:FEW_LINES] for field in row)
    return sum(any(sign in field for sign in ",;\t|") and not _COMMA.fullmatch(field) for field in fields)


def _split(lines: Sequence[str], separator: str, complete: bool) -> list[list[str]]:
    """Return the rows of some lines; of the last ones that are not all there the rest may be missing."""
    reader = csv.reader(iter(lines), delimiter=separator, quotechar=_quote(lines))
    try:
        rows = [row for row in reader if row]
    except csv.Error:  # a quote that never ends
        return []
    return rows if complete or len(rows) < 3 else rows[:-1]


def _quote(lines: Sequence[str]) -> str:
    """Return the quote character: a single quote if the header begins and ends with one."""
    return "'" if lines and re.fullmatch(r"'[^'].*'", lines[0].strip()) else '"'


def _decimal(rows: list[list[str]]) -> str:
    """Return the decimal mark; a comma only if no number has a point, and some cannot be thousands."""
    has_comma = False
    for row in rows:
        for cell in row:
            if _POINT.fullmatch(cell):
                return "."
            if "," in cell and not has_comma:
                has_comma = bool(_COMMA.fullmatch(cell)) and not _THOUSANDS.fullmatch(cell)
    return "," if has_comma else "."


def _without_empty_columns(path: Path, dialect: Dialect) -> Dialect:
    """Return a dialect without columns at the end that have no name and are empty in every row."""
    columns = dialect.columns[1:] + ("",) if dialect.row_names else dialect.columns
    n_named = len(columns)
    while n_named > 1 and not columns[n_named - 1].strip():
        n_named -= 1
    if n_named == len(columns) or any(map(str.strip, _ends(dialect.head, n_named))):
        return dialect
    if any(map(str.strip, _ends((row for _, row in read_rows(path, dialect)), n_named))):
        return dialect
    return replace(dialect, columns=columns[:n_named], row_names=False)


def _ends(rows: Any, start: int) -> Iterator[str]:
    for row in rows:
        yield from row[start:]
