"""The views of a table once its columns lie on disk: as they are, merged, or those of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.design import EXPOSURE, OFFSET, WEIGHT, WITHIN, TableDesign
from factorflow.core.kinds import KINDS, Kind
from factorflow.data.ingest.checks import join_names
from factorflow.data.store.view_source import ReadBlock, ViewSource
from factorflow.data.tables.columns import FileColumn, append
from factorflow.data.tables.formula import Linear, Offset, Terms
from factorflow.data.tables.labels import Levels
from factorflow.data.tables.merge import Cells, ReadCodes, ReadNumbers, merge
from factorflow.data.tables.names import Names
from factorflow.data.tables.spool import SpooledTable
from factorflow.errors import InputError

PIECE_ROWS = 2**20
"""Rows looked at together."""

ONES = "1"
"""Name of the column of ones in a group."""


@dataclass(frozen=True)
class TableViews:
    """The views of a table, their number of rows, and their roles."""

    views: list[ViewSource]
    n_rows: int
    design: TableDesign


@dataclass(frozen=True)
class Table:
    """The columns of a formula on disk."""

    terms: Terms
    names: Names
    spooled: SpooledTable
    levels: dict[str, Levels]
    kind: Kind
    guessed: bool

    def build_rows(self) -> TableViews:
        """Return every row of the table as a row of the dataset, in its order."""
        n_rows, read_offsets = self.spooled.n_rows, self._read_offsets(self.terms.offsets)
        views = [self._response(self._numbers(self.terms.response))]
        views += [self._categorical(column, self._codes(column)) for column in self.terms.variables]
        views += [self._group(group) for group in self.terms.linear]
        role = EXPOSURE if self._counts else OFFSET
        views += [] if read_offsets is None else [_covariate(role, read_offsets)]
        return TableViews(views, n_rows, self._design(views))

    def build_cells(self, folder: Path) -> TableViews:
        """Return the distinct cells of the table, sorted."""
        cells = self._merge(
            self._read_offsets(self.terms.offsets) or (_ones if self._counts else _zeros), folder
        )
        views = self._cell_views(cells)
        has_merged = cells.n_merged > 0
        if self._counts and (self.terms.offsets or has_merged):
            views.append(_covariate(EXPOSURE, _field(cells, "given")))
        elif not self._counts:
            views += [_covariate(OFFSET, _field(cells, "given"))] if self.terms.offsets else []
            views += [_covariate(WEIGHT, _field(cells, "n"))] if has_merged else []
            views += [_covariate(WITHIN, _field(cells, "within"))] if has_merged else []
        design = self._design(
            views,
            aggregated=has_merged,
            n_merged=cells.n_merged,
            constant=cells.constant if has_merged else 0.0,
        )
        return TableViews(views, cells.n_rows, design)

    def build_grid(self, folder: Path) -> TableViews:
        """Return the cells of a complete grid with a count above 0, sorted."""
        exposures = self._level_exposures()
        cells = self._select_positive(folder)._merge(_ones, folder)
        views = self._cell_views(cells)
        by_view = {self.names.variables[column]: values for column, values in exposures.items()}
        design = self._design(
            views,
            aggregated=cells.n_merged > 0,
            n_merged=cells.n_merged,
            grid=True,
            level_exposures=tuple((view, tuple(values.tolist())) for view, values in by_view.items()),
        )
        return TableViews(views, cells.n_rows, design)

    def append_held_out(self, built: TableViews) -> TableViews:
        """Return the same rows, and behind them those that are held out, one by one."""
        if self.spooled.held_out is None or not self.spooled.held_out.n_rows:
            return built
        held_out = replace(self, spooled=self.spooled.held_out).build_rows()
        readers = {view.name: view.read for view in held_out.views}
        views = [
            replace(
                view,
                read=_read_consecutively(
                    view.read, readers.get(view.name, _read_default(view.name)), built.n_rows
                ),
            )
            for view in built.views
        ]
        design = replace(built.design, first_held_out=built.n_rows)
        return TableViews(views, built.n_rows + held_out.n_rows, design)

    # Columns

    @property
    def _counts(self) -> bool:
        return self.kind.name == "poisson"

    def _numbers(self, column: str) -> ReadNumbers:
        values = self.spooled.numbers[column]
        return lambda start, stop: values[start:stop]

    def _codes(self, column: str) -> ReadCodes:
        provisional, final = self.spooled.codes[column], self.levels[column].final
        return lambda start, stop: np.asarray(final[provisional[start:stop]])

    def _read_offsets(self, offsets: Sequence[Offset]) -> ReadNumbers | None:
        """Return a function that reads the exposure or offset; None if there is none."""
        if not offsets:
            return None
        if not self._counts:
            return lambda start, stop: np.sum([self._offset(o, start, stop) for o in offsets], axis=0)
        return lambda start, stop: np.prod([self._exposure(o, start, stop) for o in offsets], axis=0)

    def _offset(self, offset: Offset, start: int, stop: int) -> NDArray[np.float64]:
        values = self.spooled.numbers[offset.column][start:stop]
        return np.asarray(np.log(values) if offset.log else values)

    def _exposure(self, offset: Offset, start: int, stop: int) -> NDArray[np.float64]:
        values = self.spooled.numbers[offset.column][start:stop]
        if offset.log:
            return values
        with np.errstate(over="ignore"):
            exposures = np.exp(values)
        bad = ~(np.isfinite(exposures) & (exposures > 0))
        if bad.any():
            raise InputError(
                f"offset({offset.column})",
                float(values[np.argmax(bad)]),
                "the logarithm of an exposure",
                f"An exposure itself is given as offset(log({offset.column})).",
            )
        return np.asarray(exposures)

    # Cells

    def _merge(self, numbers: ReadNumbers, folder: Path) -> Cells:
        return merge(
            [self._codes(column) for column in self.terms.variables],
            [len(self.levels[column].names) for column in self.terms.variables],
            self._numbers(self.terms.response),
            numbers,
            self.spooled.n_rows,
            folder,
            counts=self._counts,
        )

    def _cell_views(self, cells: Cells) -> list[ViewSource]:
        def read(variable: int) -> ReadCodes:
            return lambda start, stop: cells.codes(variable, start, stop)

        categorical = [self._categorical(column, read(i)) for i, column in enumerate(self.terms.variables)]
        return [self._response(_field(cells, "y")), *categorical]

    def _select_positive(self, folder: Path) -> Table:
        """Return the rows with a response above 0."""
        spooled, response = self.spooled, self.terms.response
        columns = {**spooled.codes, response: spooled.numbers[response]}
        paths = {name: folder / f"{position}.above" for position, name in enumerate(columns)}
        n_rows = 0
        with ExitStack() as stack:
            files = {name: stack.enter_context(path.open("wb")) for name, path in paths.items()}
            for start in range(0, spooled.n_rows, PIECE_ROWS):
                rows = slice(start, start + PIECE_ROWS)
                above = columns[response][rows] > 0
                n_rows += int(above.sum())
                for name, column in columns.items():
                    append(files[name], column[rows][above])
        if not n_rows:
            raise InputError(f"column {response!r}", "only 0", "counts", "Leave the view out.")
        positive = {name: FileColumn.whole(path, columns[name].dtype) for name, path in paths.items()}
        numbers = {response: positive.pop(response)}
        return replace(self, spooled=replace(spooled, n_rows=n_rows, codes=positive, numbers=numbers))

    def _level_exposures(self) -> dict[str, NDArray[np.float64]]:
        """Return the exposures of the levels by column, of variables that have any; refuse others."""
        exposures: dict[str, NDArray[np.float64]] = {}
        for offset in self.terms.offsets:
            column, values = self._carrier(offset)
            exposures[column] = exposures[column] * values if column in exposures else values
        return exposures

    def _carrier(self, offset: Offset) -> tuple[str, NDArray[np.float64]]:
        """Return the variable that an exposure depends on, and the exposure of each of its levels."""
        for column in self.terms.variables:
            low = np.full(len(self.levels[column].names), np.inf)
            high, read = np.zeros(low.size), self._codes(column)
            for start in range(0, self.spooled.n_rows, PIECE_ROWS):
                stop = min(start + PIECE_ROWS, self.spooled.n_rows)
                codes, values = read(start, stop), self._exposure(offset, start, stop)
                np.minimum.at(low, codes, values)
                np.maximum.at(high, codes, values)
            if (low == high).all():
                return column, low
        raise InputError(
            f"exposure {offset.column!r}",
            "one that differs within the levels of every variable, or is not known of a level",
            "with {grid} an exposure that follows from the level of one variable: cells that are not in "
            "the table have one as well",
            "Write a product as several offsets, or write the table with all its rows and without {grid}.",
            grid=True,
        )

    # Views

    def _response(self, read: ReadNumbers) -> ViewSource:
        origin = "guessed" if self.guessed else "given"

        def column(start: int, stop: int) -> NDArray[np.float64]:
            return np.asarray(read(start, stop), np.float64)[:, None]

        return ViewSource(self.names.response, np.array([self.terms.response]), column, self.kind, origin)

    def _categorical(self, column: str, read: ReadCodes) -> ViewSource:
        names = np.asarray(self.levels[column].names, dtype=str)
        return ViewSource(self.names.variables[column], names, read, KINDS["categorical"])

    def _group(self, group: Linear) -> ViewSource:
        reads = [_ones if column is None else self._numbers(column) for column in group.columns]
        names = np.array([ONES if column is None else column for column in group.columns])

        def columns(start: int, stop: int) -> NDArray[np.float64]:
            return np.stack([read(start, stop) for read in reads], axis=1)

        return ViewSource(self.names.linear[group], names, columns, KINDS["covariate"])

    def _design(self, views: Sequence[ViewSource], **facts: Any) -> TableDesign:
        view_names, spooled = {view.name for view in views}, self.spooled
        facts |= {role: role for role in (EXPOSURE, OFFSET, WEIGHT, WITHIN) if role in view_names}
        return TableDesign(
            formula=self.terms.formula,
            response=self.names.response,
            variables=tuple(self.names.variables.values()),
            linear=tuple(self.names.linear.values()),
            n_table_rows=spooled.n_table_rows,
            n_dropped=spooled.n_dropped,
            n_held_out=spooled.n_held_out,
            **facts,
        )

    def check(self) -> None:
        """Refuse variables with one level, or a level for every row."""
        n_rows = self.spooled.n_rows
        for column, levels in self.levels.items():
            used = len(levels.names)
            if used == 1:
                raise InputError(
                    f"variable {column!r}",
                    f"a single level ({levels.names[0]})",
                    "two levels or more",
                    "It has one level: leave it out.",
                )
            if used >= n_rows:
                raise InputError(
                    f"variable {column!r}",
                    f"{used} levels in {n_rows} rows ({join_names(levels.names, 3)})",
                    "levels that several rows share",
                    "It is used as row names: leave it out.",
                )


def _field(cells: Cells, name: str) -> ReadNumbers:
    return lambda start, stop: np.asarray(cells.columns[name][start:stop], np.float64)


def _covariate(name: str, read: ReadNumbers) -> ViewSource:
    return ViewSource(
        name, np.array([name]), lambda start, stop: read(start, stop)[:, None], KINDS["covariate"]
    )


def _read_consecutively(first: ReadBlock, second: ReadBlock, n_first: int) -> ReadBlock:
    """Return a function that reads the rows of one source followed by those of another."""

    def read(start: int, stop: int) -> NDArray[Any]:
        parts = [first(start, min(stop, n_first))] if start < n_first else []
        parts += [second(max(start, n_first) - n_first, stop - n_first)] if stop > n_first else []
        return np.concatenate(parts)

    return read


def _read_default(role: str) -> ReadBlock:
    """Return the covariate of rows that were not merged."""
    value = 1.0 if role in (EXPOSURE, WEIGHT) else 0.0
    return lambda start, stop: np.full((stop - start, 1), value)


def _ones(start: int, stop: int) -> NDArray[np.float64]:
    return np.ones(stop - start)


def _zeros(start: int, stop: int) -> NDArray[np.float64]:
    return np.zeros(stop - start)
