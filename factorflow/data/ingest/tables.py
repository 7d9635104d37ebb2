"""Tables of samples x features in files: text (parsed by `factorflow.data.ingest.text`) and Parquet.

A table is parsed once, in pieces, into a file of numbers beside the store that is being written (labels of a
categorical variable as codes); from there its rows are read in any order. So a table larger than memory goes
through, and files whose samples come in different orders are matched.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.kinds import Kind
from factorflow.data.ingest.checks import warn
from factorflow.data.ingest.dialect import DEFAULT_FORMAT, NAME_HEADERS, TEXT, TableFormat, is_feature_header
from factorflow.data.ingest.feather import FEATHER, FeatherFile
from factorflow.data.ingest.levels import EncodedLabels, split, typed_labels
from factorflow.data.ingest.missing import MISSING_TEXTS
from factorflow.data.ingest.objects import check_columns
from factorflow.data.ingest.sources import Source, labels, read_type
from factorflow.data.ingest.text import TextTable
from factorflow.data.ingest.text_files import table_ending
from factorflow.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

PARQUET = frozenset({".parquet", ".pq"})

PIECE_VALUES = 4 * 2**20
"""Values of a Parquet table parsed at a time."""


def is_table(path: Path) -> bool:
    """Whether the name is that of a text, Parquet or Feather table."""
    return table_ending(path) in TEXT or is_arrow(path)


def is_arrow(path: Path) -> bool:
    """Whether the name is that of a table that Arrow reads: Parquet or Feather."""
    return path.suffix.lower() in PARQUET | FEATHER


def table_stem(path: Path) -> str:
    """Return the name of the file without its endings."""
    return path.with_suffix("").stem if table_ending(path) != path.suffix.lower() else path.stem


def read_table(
    table: TextTable | ArrowTable,
    spool: Path,
    index_col: str | int | bool | None,
    kind: Kind | None,
    *,
    transpose: bool,
) -> Source:
    """Parse a table into a file under ``spool``.

    Parameters
    ----------
    spool : Path
        Directory for the parsed values; made when it does not exist.
    kind : Kind, optional
        What the view is said to be; a categorical one is a column of labels.
    transpose : bool
        Features are in rows, and the source is to be transposed.

    Raises
    ------
    InputError
        When the file is no table of numbers (or labels).
    """
    spool.mkdir(parents=True, exist_ok=True)
    target = spool / f"{len(list(spool.iterdir()))}.values"
    names, origin = find_names(table, index_col, transpose=transpose)
    columns = [i for i in range(len(table.columns)) if i != names]
    header = np.asarray([table.columns[i] for i in columns], dtype=str)
    if not transpose:
        check_columns(table_stem(table.path), header.size, kind)
        _suggest_transposed(table, names)
    rows, array = _parse(table, names, columns, target, read_type(kind))
    if array is None:
        expected = "a table of samples x features"
        raise InputError(f"file {table.path}", "no values", expected, "Check the separator and the header.")
    names_known = (
        transpose or not header.size or not isinstance(table, TextTable) or table.has_header_of_names
    )
    if not names_known and (_looks_like_values(header) or _is_number(table.columns[0])):
        warn(
            f"{table.path}: there are numbers in the header ({', '.join(header[:3])}, ...): if that "
            "line is a sample, put a line with the names of the features above it"
        )
    names_of_rows = None if names is None else np.asarray(rows, dtype=str)
    if names is None and index_col is None:
        numbers = table.row_numbers if isinstance(table, ArrowTable) else None
        if numbers is not None and numbers.size == array.shape[0]:
            names_of_rows, origin = numbers, "names: row names"
    description = "; ".join([*table.describe(), origin])
    return Source(array, names_of_rows, header, dtype=read_type(kind), read_as=description)


def open_table(
    path: Path, table_format: TableFormat = DEFAULT_FORMAT, kind: Kind | None = None
) -> TextTable | ArrowTable:
    """Open the table of a view whose kind is given."""
    one_column = table_format.index_col in (False, "false") or (kind is not None and not kind.is_values)
    return ArrowTable(path) if is_arrow(path) else TextTable(path, table_format, one_column=one_column)


def find_names(
    table: TextTable | ArrowTable, chosen: str | int | bool | None, *, transpose: bool = False
) -> tuple[int | None, str]:
    """Return the position of the column with the sample names, or None, and how it was found, in words.

    Without a choice it is the one that the file declares, else a first column of text, without a header, or
    called as in `NAME_HEADERS` (`FEATURE_HEADERS`, where it names features, ``transpose``). Numbers are never
    taken for names.
    """
    n_columns = len(table.columns)
    if isinstance(chosen, str) and chosen not in table.columns:  # as a shell writes them
        chosen = int(chosen) if chosen.isdecimal() else False if chosen == "false" else chosen
    if chosen is False:
        return None, "samples are numbered (index_col=False)"
    if isinstance(chosen, str):
        if chosen not in table.columns:
            text = ", ".join(table.columns[:10]) + (", ..." if n_columns > 10 else "")
            raise InputError("index_col", chosen, f"a column of {table.path}: {text}", "Check its header.")
        return table.columns.index(chosen), f"names: column {chosen!r}"
    if chosen is not None:
        if not 0 <= chosen < n_columns:
            expected = f"a column of {table.path}, 0 to {n_columns - 1}"
            raise InputError("index_col", chosen, expected, "Positions count from 0.")
        return chosen, f"names: column {chosen}, {table.columns[chosen]!r}"
    if table.stored_index is not None:
        return table.stored_index, "names: row names"
    header = table.columns[0].strip()
    if n_columns > 1:
        if not header or header.startswith("Unnamed"):
            return 0, "names: first column, without a header"
        names_features = transpose and is_feature_header(header)
        if header.lower() in NAME_HEADERS or names_features or table.is_text(0):
            return 0, f"names: column {header!r}"
        if not table.index_is_known and not header.isdecimal() and _are_distinct(table.first_cells(0)):
            warn(
                f"{table.path}: the first column, {header!r}, holds whole numbers, each once; it is taken as "
                "a feature, and the samples are numbered. If it names the samples: {index_col}; with False "
                "in place of its name there are no names",
                index_col=header,
            )
    return None, "samples are numbered"


def _are_distinct(cells: list[str]) -> bool:
    """Whether cells are whole numbers, each once."""
    whole = all(cell.strip().lstrip("+-").isdigit() for cell in cells)
    return whole and len(set(cells)) == len(cells) > 1


def _suggest_transposed(table: TextTable | ArrowTable, names: int | None) -> None:
    header = "" if names is None else table.columns[names]
    if is_feature_header(header):
        warn(
            f"{table.path}: the column of the row names is called {header!r}: if features are in rows, say "
            "{transpose}; rows are taken as samples",
            transpose=True,
        )


def _parse(
    table: TextTable | ArrowTable, names: int | None, columns: list[int], target: Path, dtype: str
) -> tuple[list[str], Any]:
    """Parse a table into a file; return the row names, and a reader of its rows (None: no rows)."""
    rows: list[str] = []
    codes: dict[str, int] = {}
    coded = dtype == "object"
    with target.open("wb") as out:
        for batch in table.batches([*([] if names is None else [names]), *(columns if coded else [])],
                                   [] if coded else columns):  # fmt: skip
            if names is not None:
                rows += _row_names(table.path, batch.column(0))
            first = 0 if names is None else 1
            if coded:
                out.write(_encode(batch.column(first), codes, table).tobytes())
            else:
                out.write(_matrix(batch, first, dtype).data)
    stored = np.dtype(np.int32 if coded else dtype)
    n_rows = target.stat().st_size // (stored.itemsize * max(1, len(columns)))
    if not columns or not n_rows:
        return rows, None
    values = np.memmap(target, stored, "r", shape=(n_rows, len(columns)))
    if not coded:
        return rows, values
    texts = list(codes)
    return rows, EncodedLabels(values[:, 0], typed_labels(texts) if isinstance(table, TextTable) else texts)


def _matrix(batch: pa.RecordBatch, first: int, dtype: str) -> NDArray[Any]:
    """Return the columns of a batch from one on as rows of numbers; missing ones are NaN."""
    values = np.empty((batch.num_rows, batch.num_columns - first), dtype)
    # What becomes infinite in float32 is refused by name when the blocks are checked.
    with np.errstate(over="ignore"):
        for place in range(first, batch.num_columns):
            column = batch.column(place)
            if column.type != "double":
                column = column.cast("double", safe=False)
            values[:, place - first] = column.to_numpy(zero_copy_only=False)
    return values


def _encode(column: Any, codes: dict[str, int], table: TextTable | ArrowTable) -> NDArray[np.int32]:
    """Return the codes of the labels of a batch; new labels get the next ones."""
    own_codes, texts = split(column.to_pandas().to_numpy(dtype=object))
    missing = set[str]()
    if isinstance(table, TextTable):
        missing, texts = {*MISSING_TEXTS, *table.na_values}, [text.strip() for text in texts]
    own = [-1 if text in missing else codes.setdefault(text, len(codes)) for text in texts]
    return np.array([*own, -1], np.int32)[own_codes]


def _row_names(path: Path, column: Any) -> list[str]:
    if column.null_count:
        raise _missing_name_error(path)
    names: list[str] = labels(column.to_pandas()).tolist()
    if not all(names):
        raise _missing_name_error(path)
    return names


def _missing_name_error(path: Path) -> InputError:
    remedy = "Fill it in, name another column, or say that there are no names ({index_col})."
    value, expected = "an empty one", "a name in every row"
    return InputError(f"sample names of {path}", value, expected, remedy, index_col=False)


def _is_number(name: str) -> bool:
    try:
        return float(name) not in (0.0, 1.0)
    except ValueError:
        return False


def _looks_like_values(names: NDArray[np.str_]) -> bool:
    """Whether the names of a header are numbers, and not just numbered from 0 or 1."""
    try:
        numbers = names.astype(float)
    except ValueError:
        return False
    return not any(np.array_equal(numbers, np.arange(names.size) + first) for first in (0, 1))


def _row_numbers(level: dict[str, Any] | None) -> NDArray[np.str_] | None:
    """Return the names of the rows from a RangeIndex in pandas' metadata; None: it only counts them."""
    if level is None or level["name"] is None and (level["start"], level["step"]) == (0, 1):
        return None
    return np.arange(level["start"], level["stop"], level["step"]).astype(str)


class ArrowTable:
    """A Parquet or Feather table, read in batches; pandas' metadata say what its row names are."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        try:
            is_feather = path.suffix.lower() in FEATHER
            self.file: Any = FeatherFile(path) if is_feather else pq.ParquetFile(path)
        except (OSError, pa.ArrowInvalid) as error:
            expected = f"a {'Feather' if is_feather else 'Parquet'} file"
            raise InputError(f"file {path}", str(error), expected, "Write it again.") from error
        schema = self.file.schema_arrow
        self.columns: list[str] = list(schema.names)
        self.types = list(schema.types)
        index = (schema.pandas_metadata or {}).get("index_columns")
        numbered = next((level for level in index or [] if isinstance(level, dict)), None)
        self.row_numbers = _row_numbers(numbered)
        stored = [name for name in index or [] if isinstance(name, str) and name in self.columns]
        if len(stored) > 1:
            raise InputError(
                f"row names of {path}",
                f"a MultiIndex of {', '.join(map(repr, stored))}",
                "one name for every sample",
                "Join its levels to one name, and write the others as columns of the metadata ({obs}).",
                obs=...,
            )
        self.index_is_known = index is not None
        self.stored_index = self.columns.index(stored[0]) if stored else None

    def is_text(self, position: int) -> bool:
        """Whether a column holds text."""
        import pyarrow.types as kinds

        kind = self.types[position]
        kind = kind.value_type if kinds.is_dictionary(kind) else kind
        return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))

    def first_cells(self, position: int) -> list[str]:
        """Return the first cells of a column, as text."""
        batch = next(self.file.iter_batches(1000, columns=[self.columns[position]]), None)
        return [] if batch is None else [str(value) for value in batch.column(0).to_pylist()]

    def describe(self) -> list[str]:
        """Return "": nothing is unusual about these files."""
        return []

    def batches(self, texts: list[int], numbers: list[int]) -> Iterator[Any]:
        """Yield Arrow record batches of some columns, those of ``texts`` first."""
        import pyarrow.types as kinds

        is_plain = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_null, kinds.is_decimal)
        wrong = [self.columns[i] for i in numbers if not any(is_kind(self.types[i]) for is_kind in is_plain)]
        if wrong:
            raise InputError(
                f"columns of {self.path}",
                ", ".join(map(str, wrong[:5])),
                "numbers",
                "Remove them, or give them as sample metadata ({obs}).",
                obs=...,
            )
        for batch in self.file.iter_batches(max(1, PIECE_VALUES // max(1, len(self.columns)))):
            yield batch.select([*texts, *numbers])
