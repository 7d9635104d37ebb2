"""Values in long form: a line for every entry, with columns sample, feature, view and value, as in MOFA."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.checks import join_names
from factorflow.data.ingest.reading import Contents, Reading
from factorflow.data.ingest.sources import Source, labels, read_type
from factorflow.data.ingest.tables import ArrowTable
from factorflow.data.ingest.text import TextTable
from factorflow.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

REQUIRED = ("sample", "feature", "view", "value")
GROUP = "group"
"""Optional: the group of the sample."""

ALMOST = {"sample", "feature", "value"}
"""A table with these columns is none of samples x features where ``feature`` is text."""

PIECE_ROWS = 2**20
"""Lines of a frame looked at together."""

Pieces = Callable[[], Iterable["pd.DataFrame"]]


def _lower(columns: Iterable[Any]) -> list[str]:
    """Return headers in lower case, without blanks around them."""
    return [str(name).strip().lower() for name in columns]


def is_long(columns: Iterable[Any]) -> bool:
    """Whether columns are those of a long table of values, each once, in any case."""
    return sorted(_lower(columns)) in (sorted(REQUIRED), sorted((*REQUIRED, GROUP)))


def _not_long(what: str, headers: Iterable[Any]) -> InputError:
    """Return the error for a table with missing or unknown columns of the long form."""
    names = [str(name) for name in headers]
    columns = _lower(names)
    absent = [name for name in REQUIRED if name not in columns]
    others = [
        name
        for place, name in enumerate(names)
        if columns[place] not in (*REQUIRED, GROUP) or columns[place] in columns[:place]
    ]
    return InputError(
        "views",
        f"{what} {f'without {join_names(absent)}' if absent else f'with {join_names(others)} as well'}",
        "one in long form: columns sample, feature, view, value (and group)",
        "Give one of samples x features by name: views={'rna': frame}; sample metadata as {obs}."
        if absent
        else "Drop the other columns; give sample metadata as {obs}.",
        obs=...,
    )


def from_long_frame(frame: pd.DataFrame, reading: Reading) -> Contents:
    """Return the views of a DataFrame in long form."""
    import pandas as pd

    columns = _lower(frame.columns)
    if not is_long(columns):
        raise _not_long("a DataFrame", frame.columns)
    frame = frame.set_axis(columns, axis=1)
    if not pd.api.types.is_numeric_dtype(frame["value"]) or pd.api.types.is_complex_dtype(frame["value"]):
        dtype = str(frame["value"].dtype)
        raise InputError("column 'value'", dtype, "real numbers", "Convert it; NaN where one is missing.")

    def pieces() -> Iterator[pd.DataFrame]:
        for start in range(0, len(frame), PIECE_ROWS):
            yield frame.iloc[start : start + PIECE_ROWS]

    return from_long(pieces, "the long table", reading)


def is_long_table(table: TextTable | ArrowTable) -> bool:
    """Whether a table in a file is one of values in long form; row numbers in front of it do not count.

    Raises
    ------
    InputError
        When it names features in a column, but is not of that form.
    """
    places = _places(table)
    columns = _lower(table.columns[place] for place in places)
    if is_long(columns):
        return True
    if ALMOST.issubset(columns) and table.is_text(places[columns.index("feature")]):
        raise _not_long(f"the table {table.path}", (table.columns[place] for place in places))
    return False


def from_long_table(table: TextTable | ArrowTable, reading: Reading) -> Contents:
    """Return the views of a table in long form."""
    columns = _lower(table.columns)
    numbers = [place for place in _places(table) if columns[place] == "value"]
    texts = [place for place in _places(table) if place not in numbers]
    order = [columns[place] for place in (*texts, *numbers)]

    def pieces() -> Iterator[pd.DataFrame]:
        for batch in table.batches(texts, numbers):
            yield batch.to_pandas().set_axis(order, axis=1)

    return from_long(pieces, str(table.path), reading)


def _places(table: TextTable | ArrowTable) -> list[int]:
    """Return the columns without row names."""
    header = table.columns[0]
    first = 1 if not header.strip() or header.startswith("Unnamed") else 0
    return [place for place in range(first, len(table.columns)) if place != table.stored_index]


def from_long(pieces: Pieces, where: str, reading: Reading) -> Contents:
    """Return the views of lines in long form; entries without a line are missing.

    The lines are gone through twice: for the names, and for the values, which go to files beside the store.

    Parameters
    ----------
    pieces : callable
        Returns the lines, some at a time, from the first on.
    reading : Reading
        Where the values go, and what the views are said to be.

    Raises
    ------
    InputError
        When a name is missing, an entry occurs twice, or a sample is in two groups.
    """
    import pandas as pd

    names, groups = _collect_names(pieces, where)
    if not names:
        raise InputError(where, "no line", "one for every entry", "Check where it comes from.")
    reading.spool.mkdir(parents=True, exist_ok=True)
    tables = {view: _Table(view, samples, features, reading) for view, (samples, features) in names.items()}
    first = 0
    for piece in pieces():
        values = piece["value"].to_numpy(dtype=np.float64, na_value=np.nan)
        views = labels(piece["view"])
        for view in dict.fromkeys(views.tolist()):
            here = np.flatnonzero(views == view)
            samples, features = names[view]
            rows = _codes(piece["sample"].iloc[here], samples)
            columns = _codes(piece["feature"].iloc[here], features)
            tables[view].fill(rows, columns, values[here], first + here, where)
        first += len(piece)
    if groups:
        reading.groups.append(pd.Series(groups, name=GROUP))
    return {view: table.source() for view, table in tables.items()}, None


def _collect_names(
    pieces: Pieces, where: str
) -> tuple[dict[str, tuple[dict[str, int], dict[str, int]]], dict[str, str]]:
    """Return the numbers of the samples and the features of every view, and the group of each sample."""
    positions: dict[str, tuple[dict[str, int], dict[str, int]]] = {}
    groups: dict[str, str] = {}
    first = 0
    for piece in pieces():
        for name in [column for column in (*REQUIRED[:3], GROUP) if column in piece]:
            blank = np.flatnonzero(np.char.strip(labels(piece[name].unique())) == "")
            if blank.size:
                row = first + int(np.argmax(np.char.strip(labels(piece[name])) == ""))
                remedy = "Fill it in, or leave out the line."
                raise InputError(f"row {row} of {where}", f"no {name}", "a name in every line", remedy)
        for place, column in enumerate(("sample", "feature")):
            pairs = piece[["view", column]].drop_duplicates()
            for view, name in zip(labels(pairs["view"]), labels(pairs[column]), strict=True):
                of_view = positions.setdefault(str(view), ({}, {}))[place]
                of_view.setdefault(str(name), len(of_view))
        if GROUP in piece:
            pairs = piece[["sample", GROUP]].drop_duplicates()
            for sample, group in zip(labels(pairs["sample"]), labels(pairs[GROUP]), strict=True):
                if groups.setdefault(str(sample), str(group)) != group:
                    raise InputError(
                        f"group of sample {str(sample)!r}",
                        f"{groups[str(sample)]!r} and {str(group)!r}",
                        "one group for every sample",
                        "Give the samples of the groups names of their own if these are two.",
                    )
        first += len(piece)
    return positions, groups


def _codes(names: pd.Series[Any], numbers: dict[str, int]) -> NDArray[np.int64]:
    """Return the numbers of names."""
    import pandas as pd

    codes, distinct = pd.factorize(names)
    return np.array([numbers[name] for name in labels(distinct).tolist()], np.int64)[codes]


class _Table:
    """The values of a view in a file, samples x features, missing where nothing was filled in.

    Parameters
    ----------
    reading : Reading
        Where the file goes, and what the view is said to be.
    """

    def __init__(
        self, view: str, samples: dict[str, int], features: dict[str, int], reading: Reading
    ) -> None:
        kind = reading.kinds(view)
        if kind is not None and kind.coded:
            remedy = "Give the variable as a column: views={'site': series, ...}, or as {obs}."
            raise InputError(f"view {view!r}", kind.name, "numbers, in long form", remedy, obs=...)
        shape = (len(samples), len(features))
        number = len(list(reading.spool.iterdir()))
        self.view, self.samples, self.features = view, list(samples), list(features)
        self.values = np.memmap(reading.spool / f"{number}.values", read_type(kind), "w+", shape=shape)
        self.filled = np.memmap(reading.spool / f"{number}.filled", np.bool_, "w+", shape=shape)
        step = max(1, PIECE_ROWS // len(features))
        for start in range(0, len(samples), step):
            self.values[start : start + step] = np.nan

    def source(self) -> Source:
        """Return the filled table."""
        samples, features = (np.asarray(names, dtype=str) for names in (self.samples, self.features))
        return Source(self.values, samples, features, dtype=str(self.values.dtype))

    def fill(
        self,
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        values: NDArray[np.float64],
        lines: NDArray[np.intp],
        where: str,
    ) -> None:
        """Fill in entries; one that was filled in before is refused."""
        places = rows * len(self.features) + columns
        again = np.ones(places.size, bool)
        again[np.unique(places, return_index=True)[1]] = False
        again |= self.filled[rows, columns]
        if again.any():
            at = int(np.argmax(again))
            raise InputError(
                f"row {int(lines[at])} of {where}",
                f"sample {self.samples[rows[at]]!r}, feature {self.features[columns[at]]!r} again",
                "one line for every entry",
                "Leave out one of the two, or take their mean.",
            )
        self.filled[rows, columns] = True
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is refused by name
            self.values[rows, columns] = values
