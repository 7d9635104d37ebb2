"""Values in long form: a line for every entry, with columns sample, feature, view and value, as in MOFA."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.checks import listed
from factorflow.data.ingest.reading import Found, Reading
from factorflow.data.ingest.sources import Source, labels, read_type
from factorflow.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["from_long", "from_long_frame", "is_long"]

REQUIRED = ("sample", "feature", "view", "value")
GROUP = "group"
"""Optional: the group of the sample."""

PIECE_ROWS = 2**20
"""Lines of a frame looked at together."""

Pieces = Callable[[], Iterable["pd.DataFrame"]]


def is_long(columns: Iterable[Any]) -> bool:
    """Whether columns are those of a long table of values."""
    names = {str(name) for name in columns}
    return names.issuperset(REQUIRED) and names.issubset({*REQUIRED, GROUP})


def from_long_frame(frame: pd.DataFrame, reading: Reading) -> Found:
    """Return the views of a DataFrame in long form."""
    import pandas as pd

    if not is_long(frame.columns):
        absent = [name for name in REQUIRED if name not in frame]
        others = [str(name) for name in frame.columns if name not in (*REQUIRED, GROUP)]
        raise InputError(
            "views",
            f"a DataFrame {f'without {listed(absent)}' if absent else f'with {listed(others)} as well'}",
            "one in long form: columns sample, feature, view, value (and group)",
            "Give one of samples x features by name: views={'rna': frame}; sample metadata as obs=."
            if absent
            else "Drop the other columns; give sample metadata as obs=.",
        )
    if not pd.api.types.is_numeric_dtype(frame["value"]) or pd.api.types.is_complex_dtype(frame["value"]):
        dtype = str(frame["value"].dtype)
        raise InputError("column 'value'", dtype, "real numbers", "Convert it; NaN where one is missing.")

    def pieces() -> Iterator[pd.DataFrame]:
        for start in range(0, len(frame), PIECE_ROWS):
            yield frame.iloc[start : start + PIECE_ROWS]

    return from_long(pieces, "the long table", reading)


def from_long(pieces: Pieces, where: str, reading: Reading) -> Found:
    """Return the views of lines in long form; entries without a line are missing.

    The lines are gone through twice: for the names, and for the values, which go to files beside the store.

    Parameters
    ----------
    pieces : callable
        Returns the lines, some at a time, from the first on.
    where : str
        What errors call the table.
    reading : Reading
        Where the values go, and what the views are said to be.

    Raises
    ------
    InputError
        When a name is missing, an entry occurs twice, or a sample is in two groups.
    """
    import pandas as pd

    samples, features, groups = _collect_names(pieces, where)
    if not features:
        raise InputError(where, "no line", "one for every entry", "Check where it comes from.")
    reading.spool.mkdir(parents=True, exist_ok=True)
    tables = {view: _Table(view, len(samples), names, reading) for view, names in features.items()}
    first = 0
    for piece in pieces():
        values = piece["value"].to_numpy(dtype=np.float64, na_value=np.nan)
        rows, views = _codes(piece["sample"], samples), labels(piece["view"])
        for view in dict.fromkeys(views.tolist()):
            here = np.flatnonzero(views == view)
            columns = _codes(piece["feature"].iloc[here], features[view])
            tables[view].fill(rows[here], columns, values[here], first + here, where)
        first += len(piece)
    names = np.asarray(list(samples), dtype=str)
    sources = {
        view: Source(
            table.values, names, np.asarray(list(features[view]), dtype=str), dtype=str(table.values.dtype)
        )
        for view, table in tables.items()
    }
    if groups:
        reading.groups.append(pd.Series([groups[row] for row in range(names.size)], names, name=GROUP))
    return sources, None


def _collect_names(
    pieces: Pieces, where: str
) -> tuple[dict[str, int], dict[str, dict[str, int]], dict[int, str]]:
    """Return the number of every sample, of every feature of each view, and the group of each sample."""
    samples: dict[str, int] = {}
    features: dict[str, dict[str, int]] = {}
    groups: dict[int, str] = {}
    first = 0
    for piece in pieces():
        for name in [column for column in (*REQUIRED[:3], GROUP) if column in piece]:
            blank = np.flatnonzero(np.char.strip(labels(piece[name].unique())) == "")
            if blank.size:
                row = first + int(np.argmax(np.char.strip(labels(piece[name])) == ""))
                remedy = "Fill it in, or leave out the line."
                raise InputError(f"row {row} of {where}", f"no {name}", "a name in every line", remedy)
        for sample in labels(piece["sample"].unique()).tolist():
            samples.setdefault(sample, len(samples))
        pairs = piece[["view", "feature"]].drop_duplicates()
        for view, feature in zip(labels(pairs["view"]), labels(pairs["feature"]), strict=True):
            known = features.setdefault(str(view), {})
            known.setdefault(str(feature), len(known))
        if GROUP in piece:
            pairs = piece[["sample", GROUP]].drop_duplicates()
            for sample, group in zip(labels(pairs["sample"]), labels(pairs[GROUP]), strict=True):
                if groups.setdefault(samples[str(sample)], str(group)) != group:
                    other = groups[samples[str(sample)]]
                    raise InputError(
                        f"group of sample {str(sample)!r}",
                        f"{other!r} and {str(group)!r}",
                        "one group for every sample",
                        "Give the samples of the groups names of their own if these are two.",
                    )
        first += len(piece)
    return samples, features, groups


def _codes(names: pd.Series[Any], numbers: dict[str, int]) -> NDArray[np.int64]:
    """Return the numbers of names."""
    import pandas as pd

    codes, found = pd.factorize(names)
    return np.array([numbers[name] for name in labels(found).tolist()], np.int64)[codes]


class _Table:
    """The values of a view in a file, samples x features, missing where nothing was filled in.

    Parameters
    ----------
    view : str
        Its name.
    n_samples : int
        Rows.
    features : dict of str to int
        Columns by name.
    reading : Reading
        Where the file goes, and what the view is said to be.
    """

    def __init__(self, view: str, n_samples: int, features: dict[str, int], reading: Reading) -> None:
        kind = reading.kinds(view)
        if kind is not None and kind.coded:
            remedy = "Give the variable as a column: views={'site': series, ...}, or as obs=."
            raise InputError(f"view {view!r}", kind.name, "numbers, in long form", remedy)
        shape = (n_samples, len(features))
        number = len(list(reading.spool.iterdir()))
        self.view, self.features = view, list(features)
        self.values = np.memmap(reading.spool / f"{number}.values", read_type(kind), "w+", shape=shape)
        self.filled = np.memmap(reading.spool / f"{number}.filled", np.bool_, "w+", shape=shape)
        for start in range(0, n_samples, max(1, PIECE_ROWS // len(features))):
            self.values[start : start + max(1, PIECE_ROWS // len(features))] = np.nan

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
                f"feature {self.features[columns[at]]!r} of view {self.view!r}, which its sample has already",
                "one line for every entry",
                "Leave out one of the two, or take their mean.",
            )
        self.filled[rows, columns] = True
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is refused by name
            self.values[rows, columns] = values
