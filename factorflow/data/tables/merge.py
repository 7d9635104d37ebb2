"""Rows of a table that agree in all variables become one, exactly, whatever the number of rows.

A sort on disk: runs of `RUN_ROWS` rows are sorted by cell and summed up; then the runs are merged, one range
of cells after the other, so that memory holds two million rows at a time. A cell is summed over its rows in
the order of the table, run by run: the result does not depend on where the source was cut.

| response | of a cell | what of the likelihood of its rows is kept |
|---|---|---|
| counts | ``Y = sum y``, ``T = sum t`` | all, up to ``sum (y log t - log y!) - (Y log T - log Y!)`` |
| gaussian | ``n``, the means of y and of the offset o, ``sum (y - o - mean)^2`` | all |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.tables.columns import FileColumn, append, write_columns

RUN_ROWS = 2**21
"""Rows that are sorted in memory."""

MERGE_ROWS = 2**21
"""Rows of all runs that are merged in memory, about."""

LARGEST_WORD = 2**63 - 1

FloatArray = NDArray[np.float64]
ReadCodes = Callable[[int, int], NDArray[np.int32]]
ReadNumbers = Callable[[int, int], FloatArray]
Columns = dict[str, NDArray[Any]]
Run = dict[str, FileColumn]


@dataclass(frozen=True)
class CellCodes:
    """The packing of the codes of all variables into words, the first variable most significant.

    Parameters
    ----------
    sizes : tuple of int
        Levels of each variable, and one for -1.
    words : tuple of (int, int)
        The variables of each word: the first, and the one after the last.
    """

    sizes: tuple[int, ...]
    words: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, n_levels: Sequence[int]) -> CellCodes:
        """Return the packing of variables of so many levels; words are as full as they get."""
        sizes = tuple(n + 1 for n in n_levels)
        words, first, product = [], 0, 1
        for position, size in enumerate(sizes):
            if product * size > LARGEST_WORD:
                words.append((first, position))
                first, product = position, 1
            product *= size
        return cls(sizes, (*words, (first, len(sizes))))

    @property
    def names(self) -> list[str]:
        """Names of the words."""
        return [f"word{i}" for i in range(len(self.words))]

    def pack(self, codes: Sequence[NDArray[np.int32]]) -> list[NDArray[np.int64]]:
        """Return the words of rows, (B,) each."""
        packed = []
        for first, last in self.words:
            word = np.zeros(codes[0].size, np.int64)
            for position in range(first, last):
                word *= self.sizes[position]
                word += codes[position]
                word += 1
            packed.append(word)
        return packed

    def unpack(self, words: Sequence[NDArray[np.int64]], variable: int) -> NDArray[np.int32]:
        """Return the codes of a variable in some rows, (B,), given their words."""
        word, (first, last) = next((i, w) for i, w in enumerate(self.words) if w[0] <= variable < w[1])
        below = int(np.prod([self.sizes[i] for i in range(variable + 1, last)], dtype=np.int64))
        codes = words[word] // below
        if variable > first:
            codes %= self.sizes[variable]
        return np.asarray(codes - 1, np.int32)


@dataclass(frozen=True)
class Cells:
    """The distinct cells of a table, sorted by the codes of the variables in their order.

    Parameters
    ----------
    columns : dict of str to (N,) FileColumn
        ``word0``, ...; ``n`` rows; ``y`` and ``given`` (exposure or offset): sums of counts, means of others;
        ``within``, unless they are counts: sum of squares around the mean.
    constant : float
        Of counts: what the log likelihood of the rows exceeds that of the cells by.
    """

    columns: dict[str, FileColumn]
    packing: CellCodes
    n_merged: int
    constant: float

    @property
    def n_rows(self) -> int:
        """How many there are (N)."""
        return self.columns["n"].size

    def codes(self, variable: int, start: int, stop: int) -> NDArray[np.int32]:
        """Return the codes of a variable in rows ``start`` to ``stop``."""
        return self.packing.unpack([self.columns[name][start:stop] for name in self.packing.names], variable)


def merge(
    codes: Sequence[ReadCodes],
    n_levels: Sequence[int],
    response: ReadNumbers,
    numbers: ReadNumbers,
    n_rows: int,
    folder: Path,
    *,
    counts: bool,
) -> Cells:
    """Merge the rows that agree in all variables.

    Parameters
    ----------
    codes : sequence of callable
        By variable: (start, stop) -> (stop - start,) codes.
    response, numbers : callable
        (start, stop) -> responses, and exposures (counts) or offsets.
    """
    packing = CellCodes.of(n_levels)
    names = [*packing.names, "n", "y", "given", *([] if counts else ["within"])]
    runs: list[Run] = []
    constant = 0.0
    for start in range(0, n_rows, RUN_ROWS):
        stop = min(start + RUN_ROWS, n_rows)
        words = packing.pack([read(start, stop) for read in codes])
        rows: Columns = dict(zip(packing.names, words, strict=True))
        rows["n"] = np.ones(stop - start, np.int64)
        rows |= {"y": response(start, stop), "given": numbers(start, stop)}
        rows |= {} if counts else {"within": np.zeros(stop - start)}
        constant += _log_constant(rows) if counts else 0.0
        runs.append(write_columns(_combine_cells(rows, packing), folder / f"{len(runs)}.run"))
    n_cells, paths = 0, {name: folder / f"{name}.cells" for name in names}
    with ExitStack() as stack:
        files = {name: stack.enter_context(path.open("wb")) for name, path in paths.items()}
        for rows in _ranges(runs):
            cells = _combine_cells(rows, packing) if len(runs) > 1 else rows
            constant -= _log_constant(cells) if counts else 0.0
            n_cells += cells["n"].size
            for name, file in files.items():
                append(file, cells[name])
    columns = {name: FileColumn.whole(path, runs[0][name].dtype) for name, path in paths.items()}
    return Cells(columns, packing, n_rows - n_cells, constant)


def _ranges(runs: list[Run]) -> Iterator[Columns]:
    """Yield the rows of all runs, one range of cells after the other, run by run within a range."""
    step = max(1, MERGE_ROWS // (4 * len(runs)))
    samples = np.sort(np.concatenate([run["word0"][:][::step].copy() for run in runs]))
    splitters = np.unique(samples[:: max(1, MERGE_ROWS // (2 * step))])[1:]
    cuts = [[0, *np.searchsorted(run["word0"][:], splitters).tolist(), run["word0"].size] for run in runs]
    for i in range(splitters.size + 1):
        parts = [slice(cut[i], cut[i + 1]) for cut in cuts]
        yield {
            name: np.concatenate([run[name][part] for run, part in zip(runs, parts, strict=True)])
            for name in runs[0]
        }


def _combine_cells(rows: Columns, packing: CellCodes) -> Columns:
    """Return rows sorted by cell, those of one cell as one."""
    words = [rows[name] for name in packing.names]
    order = np.argsort(words[0], kind="stable") if len(words) == 1 else np.lexsort(words[::-1])
    rows = {name: array[order] for name, array in rows.items()}
    new = np.full(order.size, False)
    new[:1] = True
    for name in packing.names:
        new[1:] |= rows[name][1:] != rows[name][:-1]
    starts = np.flatnonzero(new)
    if starts.size == order.size:
        return rows
    build_cells = _moments(rows, starts) if "within" in rows else _sums(rows, starts)
    return {name: rows[name][starts] for name in packing.names} | build_cells


def _sums(rows: Columns, starts: NDArray[np.intp]) -> Columns:
    return {name: np.add.reduceat(rows[name], starts) for name in ("n", "y", "given")}


def _moments(rows: Columns, starts: NDArray[np.intp]) -> Columns:
    """Merge means and sums of squares (Chan, Golub and LeVeque 1979)."""
    n = np.add.reduceat(rows["n"], starts)
    y, exposure = (np.add.reduceat(rows["n"] * rows[name], starts) / n for name in ("y", "given"))
    mean = np.repeat(y - exposure, np.diff(np.append(starts, rows["n"].size)))
    between = rows["n"] * (rows["y"] - rows["given"] - mean) ** 2
    return {"n": n, "y": y, "given": exposure, "within": np.add.reduceat(rows["within"] + between, starts)}


def _log_constant(rows: Columns) -> float:
    """Return sum of y log t - log y!."""
    from scipy.special import gammaln

    y = rows["y"]
    return float((y * np.log(rows["given"]) - gammaln(y + 1)).sum())
