"""Text and Parquet tables: one file a view, samples in rows, their names in the first column.

A table is parsed once, in pieces, into a file of numbers beside the store that is being written (labels of a
categorical variable as codes); from there its rows are read in any order. So a table larger than memory goes
through, and files whose samples come in different orders are matched.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.checks import warn
from factorflow.data.ingest.levels import Encoded, split
from factorflow.data.ingest.sources import Source, check_columns, read_type
from factorflow.errors import InputError
from factorflow.kinds import Kind

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TextTable", "is_table", "read_metadata", "read_table"]

StrArray = NDArray[np.str_]

PIECE_VALUES = 4 * 2**20
"""Values parsed at a time."""

PROBE_ROWS = 1000
"""Rows looked at to tell sample names from data."""

_TEXT = {".csv": ",", ".tsv": "\t", ".txt": "\t", ".tab": "\t"}
_ZIPPED = {".gz", ".bz2"}


def is_table(path: Path) -> bool:
    """Whether the name is that of a text or Parquet table."""
    return _kind(path) is not None


def table_stem(path: Path) -> str:
    """Return the name of the file without its endings."""
    name = path.with_suffix("") if path.suffix in _ZIPPED else path
    return name.stem if _kind(path) else path.stem


def _kind(path: Path) -> str | None:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _ZIPPED:
        suffixes.pop()
    last = suffixes[-1] if suffixes else ""
    return last if last in _TEXT or last in {".parquet", ".pq"} else None


def read_metadata(path: Path, parameter: str = "obs") -> pd.DataFrame:
    """Return a table of sample metadata, indexed by its first column; errors call it ``parameter``."""
    import pandas as pd

    try:
        if _kind(path) in {".parquet", ".pq"}:
            frame = pd.read_parquet(path)
            return frame.set_index(frame.columns[0]) if isinstance(frame.index, pd.RangeIndex) else frame
        with _open_text(path) as stream:
            separator = _separator(path, stream.readline())
        frame = pd.read_csv(path, sep=separator, index_col=0)
    except (OSError, ValueError, EOFError) as error:
        expected = f"a readable table with sample names first ({error})"
        raise InputError(parameter, str(path), expected, "Check path and contents.") from error
    return frame.set_axis(frame.index.map(str).rename("obs"))


def read_table(
    path: Path, spool: Path, sample_column: str | bool | None = None, kind: Kind | None = None
) -> Source:
    """Parse a table into a file under ``spool``.

    Parameters
    ----------
    path : Path
        .csv, .tsv, .txt, .tab (also .gz, .bz2) or .parquet.
    spool : Path
        Directory for the parsed values; made when it does not exist.
    sample_column : str or bool, optional
        Name of the column with the sample names; False: none; None: the first, unless it holds data.
    kind : Kind, optional
        What the view is said to be; a categorical one is a column of labels.

    Raises
    ------
    InputError
        When the file is no table of numbers (or labels).
    """
    spool.mkdir(parents=True, exist_ok=True)
    target = spool / f"{len(list(spool.iterdir()))}.values"
    one_column = sample_column is False or (kind is not None and not kind.is_values)
    try:
        table = (
            _Parquet(path) if _kind(path) in {".parquet", ".pq"} else TextTable(path, one_column=one_column)
        )
        names = _name_column(table, sample_column)
        features = np.asarray([c for i, c in enumerate(table.columns) if i != names], dtype=str)
        check_columns(table_stem(path), features.size, kind)
        samples, array = _parsed(table, names, target, features.size, read_type(kind))
    except (EOFError, gzip.BadGzipFile) as error:
        expected, remedy = "a whole compressed table, as its name says", "Compress it again, or rename it."
        raise InputError(f"file {path}", str(error), expected, remedy) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"file {path}", str(error), "a text table in UTF-8", "Save it again as CSV in UTF-8."
        ) from error
    if array is None:
        raise InputError(
            f"file {path}",
            "no values",
            "a table of samples x features",
            "Check the separator and the header.",
        )
    if _looks_like_values(features):
        warn(
            f"{path}: the names in the header are all numbers ({', '.join(features[:3])}, ...): if that line "
            "is a sample, put a line with the names of the features above it"
        )
    named = None if names is None else np.asarray(samples, dtype=str)
    return Source(array, named, features, dtype=read_type(kind))


def _parsed(
    table: TextTable | _Parquet, names: int | None, target: Path, n_features: int, dtype: str
) -> tuple[list[str], Any]:
    """Parse a table into a file; return the sample names, and what reads its rows (None: there are none)."""
    samples: list[str] = []
    where: dict[str, int] = {}
    coded = dtype == "object"
    # What becomes infinite in float32 is refused by name when the blocks are checked.
    with target.open("wb") as out, np.errstate(over="ignore"):
        for labels, values in table.pieces(names, dtype):
            samples += labels
            if coded:
                found, texts = split(values[:, 0])
                codes = [where.setdefault(text, len(where)) for text in texts]
                np.array([*codes, -1], np.int32)[found].tofile(out)
            else:
                np.ascontiguousarray(values, dtype=dtype).tofile(out)
    stored = np.dtype(np.int32 if coded else dtype)
    n_rows = target.stat().st_size // (stored.itemsize * max(1, n_features))
    if not n_features or not n_rows:
        return samples, None
    values = np.memmap(target, stored, "r", shape=(n_rows, n_features))
    return samples, Encoded(values[:, 0], list(where)) if coded else values


def _looks_like_values(names: NDArray[np.str_]) -> bool:
    """Whether the names of a header are numbers, and not just numbered from 0 or 1."""
    try:
        numbers = names.astype(float)
    except ValueError:
        return False
    return not any(np.array_equal(numbers, np.arange(names.size) + first) for first in (0, 1))


def _name_column(table: TextTable | _Parquet, chosen: str | bool | None) -> int | None:
    """Return the position of the column with the sample names, or None."""
    if chosen is False:
        return None
    if chosen is None and len(table.columns) == 1:
        return None
    if isinstance(chosen, str):
        if chosen not in table.columns:
            raise InputError("sample_column", chosen, f"a column of {table.path}", "Check its header.")
        return table.columns.index(chosen)
    if chosen is True or table.index is not None:
        return table.index or 0
    first = table.probe()
    if _are_names(table.columns[0], first):
        return 0
    warn(
        f"{table.path}: the first column ({table.columns[0]!r}) holds numbers that cannot be sample names, "
        "so it is taken as a feature and the samples are numbered; sample_column names another column"
    )
    return None


def _are_names(header: str, values: list[str]) -> bool:
    """Whether a first column holds names: text, whole numbers that never repeat, or no header above it."""
    if not values or not header.strip() or header.startswith("Unnamed"):
        return True
    try:
        numbers = [float(value) for value in values if value]
    except ValueError:
        return True
    whole = all(number.is_integer() for number in numbers)
    return whole and len(set(values)) == len(values) > 1


class TextTable:
    """A text table, read by pandas in pieces."""

    def __init__(self, path: Path, *, one_column: bool) -> None:
        self.path = path
        if not _ends_with_a_line(path):
            warn(
                f"{path}: the last line has no line break at its end: if the file was cut off there, "
                "the last number is wrong"
            )
        with _open_text(path) as stream:
            first = stream.readline()
        self.separator = _separator(path, first)
        self.columns: list[str]
        with _open_text(path) as stream:  # a name may hold a line break
            rows = csv.reader(stream, delimiter=self.separator)
            self.columns, second = next(rows, []), next(rows, [])
        if len(self.columns) < 2 and len(second) < 2 and not (one_column and self.columns):
            raise InputError(
                f"header of {path}",
                self.columns[0][:60] if self.columns else "nothing",
                "columns separated by commas, tabs or semicolons",
                "Save it again as CSV, with a line of feature names on top, or take it out of the folder.",
            )
        self.index: int | None = None
        if len(second) == len(self.columns) + 1:  # as R writes it: no header above the row names
            self.columns, self.index = ["", *self.columns], 0
        if _is_data(self.columns[1:]):
            raise InputError(
                f"header of {path}",
                ", ".join(self.columns[:4]),
                "names of the features",
                "Put a line with names on top.",
            )

    def probe(self) -> list[str]:
        """Return the first column of the first rows."""
        with _open_text(self.path) as stream:
            rows = csv.reader(stream, delimiter=self.separator)
            next(rows)
            return [row[0] for row, _ in zip(rows, range(PROBE_ROWS), strict=False) if row]

    def pieces(self, names: int | None, dtype: str) -> Iterator[tuple[list[str], Any]]:
        """Yield sample names and values, some rows at a time."""
        other: Any = str if dtype == "object" else dtype
        dtypes: dict[Any, Any] = {i: str if i == names else other for i in range(len(self.columns))}
        gaps = False
        try:
            for piece in self._frames(dtypes):
                gaps |= bool(piece.iloc[:, -1].isna().any())
                labels = [] if names is None else _labels(self.path, piece[names])
                yield labels, piece.drop(columns=[] if names is None else [names]).to_numpy()
        except InputError:
            raise
        except (ValueError, OverflowError) as error:
            raise self._located(names, error) from error
        if gaps:
            self._check_lengths()

    def _check_lengths(self) -> None:
        """Refuse rows that end too early: pandas takes what they lack for missing."""
        with _open_text(self.path) as stream:
            rows = csv.reader(stream, delimiter=self.separator)
            next(rows)
            for row in rows:
                if row and len(row) < len(self.columns):
                    raise InputError(
                        f"line {rows.line_num} of {self.path}",
                        f"{len(row)} cells",
                        f"{len(self.columns)}, as in the line with the names",
                        "The file was cut off there, or the line is damaged: correct it.",
                    )

    def _frames(self, dtypes: Any) -> Iterator[pd.DataFrame]:
        import pandas as pd

        width = len(self.columns)
        yield from pd.read_csv(
            self.path,
            sep=self.separator,
            header=0,
            names=range(width),  # integers keep duplicates apart
            index_col=False,
            dtype=dtypes,
            chunksize=max(1, PIECE_VALUES // width),
        )

    def _located(self, names: int | None, error: Exception) -> InputError:
        """Find the first cell that is not a number."""
        import pandas as pd

        try:
            for piece in self._frames(str):
                for column in piece.columns.drop([] if names is None else [names]):
                    bad = piece[column].notna() & pd.to_numeric(piece[column], errors="coerce").isna()
                    if bad.any():
                        row = piece.index[bad][0]
                        comma = re.fullmatch(
                            r"[-+]?\d*,\d+(e[-+]?\d+)?", str(piece.at[row, column]), re.IGNORECASE
                        )
                        return InputError(
                            f"column {self.columns[int(column)]!r} of {self.path}, row {row + 2}",
                            str(piece.at[row, column]),
                            "a number, or nothing where it is missing",
                            "Write decimals with a point, and nothing between thousands."
                            if comma
                            else "Correct it, remove the column, or give it as sample metadata (obs=).",
                        )
        except (ValueError, OSError):
            pass
        return InputError(f"file {self.path}", str(error), "a table of numbers", "Correct the line.")


class _Parquet:
    """A Parquet table, read by pyarrow in batches."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        try:
            self.file = pq.ParquetFile(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise InputError(f"file {path}", str(error), "a Parquet file", "Write it again.") from error
        schema = self.file.schema_arrow
        self.columns: list[str] = list(schema.names)
        stored = [
            name for name in (schema.pandas_metadata or {}).get("index_columns", []) if isinstance(name, str)
        ]
        self.index = self.columns.index(stored[0]) if stored else None

    def probe(self) -> list[str]:
        batch = next(self.file.iter_batches(PROBE_ROWS, columns=self.columns[:1]), None)
        return [] if batch is None else [str(value) for value in batch.column(0).to_pylist()]

    def pieces(self, names: int | None, dtype: str) -> Iterator[tuple[list[str], Any]]:
        for batch in self.file.iter_batches(max(1, PIECE_VALUES // len(self.columns))):
            frame = batch.to_pandas(ignore_metadata=True)
            labels = [] if names is None else _labels(self.path, frame.iloc[:, names])
            numbers = frame if names is None else frame.drop(columns=self.columns[names])
            if dtype == "object":
                yield labels, numbers.to_numpy(dtype=object)
                continue
            text = [column for column in numbers if numbers[column].dtype.kind not in "biuf"]
            if text:
                raise InputError(
                    f"columns of {self.path}",
                    ", ".join(map(str, text[:5])),
                    "numbers",
                    "Remove them, or give them as sample metadata (obs=).",
                )
            yield labels, numbers.to_numpy(dtype=dtype, na_value=np.nan)


def _labels(path: Path, column: pd.Series[Any]) -> list[str]:
    if column.isna().any():
        raise InputError(f"sample names of {path}", "an empty one", "a name in every row", "Fill it in.")
    return column.astype(str).tolist()


def _is_data(header: list[str]) -> bool:
    """Whether a header consists of numbers with decimals: then it is none."""
    try:
        numbers = [float(cell) for cell in header]
    except ValueError:
        return False
    return bool(numbers) and not all(number.is_integer() for number in numbers)


def _separator(path: Path, header: str) -> str:
    """Return what separates the columns: what is usual for the name of the file, if it is in the header."""
    usual = _TEXT.get(_kind(path) or "", ",")
    return min({usual, ",", "\t", ";"}, key=lambda sign: (sign not in header, sign != usual, sign))


def _open_text(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    if path.suffix == ".bz2":
        return bz2.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _ends_with_a_line(path: Path) -> bool:
    """Whether the last line of a file has an end; of a compressed one its reader says whether it is whole."""
    if path.suffix in _ZIPPED or not path.stat().st_size:
        return True
    with path.open("rb") as stream:
        stream.seek(-1, 2)
        return stream.read() in b"\r\n"
