"""Entries held out of a fit: chosen by a counter-based generator, so no copy of the data is ever made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from factorflow.core.block import HoldoutUnit
from factorflow.core.design import TableDesign
from factorflow.core.kinds import Kind
from factorflow.data.thinning import Where, split_counts
from factorflow.errors import InputError
from factorflow.kernels.random import entry_uniform
from factorflow.kernels.sites import HOLDOUT_ENTRIES, HOLDOUT_UNITS
from factorflow.kernels.sparse_rows import SparseRows

UNITS: tuple[HoldoutUnit, ...] = get_args(HoldoutUnit)

ROW_SITE, SEQUENCE_SITE = HOLDOUT_UNITS[0], HOLDOUT_UNITS[1]

PIECE = 65536
"""Rows or sequences looked at together."""


@dataclass(frozen=True)
class Holdout:
    """A random part of the observed entries of the views of values; inputs always stay visible.

    Entry (row, column) of a view is held out when the uniform number of (seed, view, row, column) is below
    ``fraction``; all values of a row, when that of (seed, row) is; of the rows of a sequence, when that of
    (seed, sequence) is. So they are the same under any block size, sharding and selection of views. With
    "count" a part of each count is held out (`factorflow.data.thinning`), and other views stay visible.

    Parameters
    ----------
    fraction : float
        Share of the entries, rows or sequences, in (0, 1).
    seed : int
        Key of the generator, 0 ... 2^64 - 1.
    unit : {"entry", "row", "sequence", "count"}
        What is held out together, or of what a part is.
    from_row : int, optional
        Rows from this one on are held out in any case; the fraction may be 0 then.

    Raises
    ------
    InputError
        When ``fraction`` does not lie between 0 and 1, the seed is out of range, or there is no such unit.
    """

    fraction: float
    seed: int = 0
    unit: HoldoutUnit = "entry"
    from_row: int | None = None

    def __post_init__(self) -> None:
        stored = self.from_row is not None and self.fraction == 0.0
        if not (stored or 0.0 < self.fraction < 1.0):
            raise InputError(
                "holdout",
                self.fraction,
                "a share between 0 and 1",
                "0.1 hides a tenth of the observed entries.",
            )

        if not 0 <= self.seed < 2**64:
            raise InputError("holdout seed", self.seed, "an integer from 0 to 2^64 - 1", "For example 0.")
        if self.unit not in UNITS:
            raise InputError("holdout_unit", self.unit, f"one of {', '.join(UNITS)}", "Choose one of them.")

    @classmethod
    def of(cls, settings: Mapping[str, Any], design: TableDesign | None = None) -> Holdout | None:
        """Return the hold-out that settings or a run record ask for.

        Parameters
        ----------
        settings : mapping
            With ``holdout``, ``holdout_unit`` and ``seed``.
        design : TableDesign, optional
            Of a table: the rows that it holds out of every fit are hidden too.

        Returns
        -------
        Holdout or None
            None: nothing is held out.

        Raises
        ------
        InputError
            For a grid, of which the cells that count 0 are not there to be hidden.
        """
        fraction = float(settings.get("holdout") or 0.0)
        if fraction and design is not None and design.grid:
            raise InputError(
                "holdout",
                fraction,
                "no hold-out for a grid: its cells with count 0 cannot be held out",
                "Write the table with all its rows, 0 included, and without {grid}.",
                grid=True,
            )
        first = None if design is None else design.first_held_out
        unit: HoldoutUnit = settings.get("holdout_unit") or "entry"
        if fraction and unit == "count" and first is not None:
            expected = "another unit for a table that holds rows out of every fit"
            raise InputError("holdout_unit", unit, expected, "Write the table with all its rows.")
        if fraction:
            return cls(fraction, int(settings["seed"]), unit, first)
        return None if first is None else cls(0.0, unit="row", from_row=first)

    def check(self, n_rows: int, n_sequences: int) -> None:
        """Refuse data that have no such units, or so few that none or all of them would be hidden.

        Parameters
        ----------
        n_rows, n_sequences : int
            Of the dataset; 0 sequences: the rows are exchangeable.
        """
        if self.unit in ("entry", "count") or not self.fraction:
            return
        if self.unit == "sequence" and not n_sequences:
            raise self._no_sequences_error()
        size = n_sequences if self.unit == "sequence" else n_rows
        outcomes: set[bool] = set()
        for start in range(0, size, PIECE):
            outcomes |= set(np.unique(self._hides(np.arange(start, min(start + PIECE, size)))).tolist())
            if len(outcomes) == 2:
                return
        raise InputError(
            "holdout",
            self.fraction,
            f"a share that hides some of {size} {self.unit}s and leaves some",
            f"With seed {self.seed} it {'hides all' if True in outcomes else 'hides none'} of them: change "
            "the share or the seed.",
        )

    def concerns(self, kind: Kind) -> bool:
        """Return whether anything of a kind of view is held out: no inputs, and of parts of counts no others.

        Parameters
        ----------
        kind : Kind
            Of the view.

        Returns
        -------
        bool
        """
        return kind.is_values and (self.unit != "count" or kind.name == "poisson")

    def take(
        self, values: Any, kind: Kind, view_index: int, start: int, n_rows: int, sequence: NDArray[Any] | None
    ) -> tuple[Any, Where, NDArray[Any]]:
        """Return a view of a block as a fit sees it, and what is scored of it.

        Parameters
        ----------
        values : (B, D) array or SparseRows
            Of the block; an array is changed in place.
        kind : Kind
            Of the view.
        view_index : int
            Position of the view in the dataset.
        start, n_rows : int
            Global index of the first row, and rows of the dataset.
        sequence : (B,) int array or None
            Numbers of the sequences of the rows, where there are any.

        Returns
        -------
        (B, D) array or SparseRows, ((H,) int32 array, (H,) int32 array), (H,) array
            Rows and features, and values, of what is held out.
        """
        if self.unit == "count":
            return split_counts(self.seed, self.fraction, view_index, start, n_rows, values, kind)
        by_entries = isinstance(values, SparseRows)
        observed = values.observed() if by_entries else kind.observed(values)
        where = self.hidden(view_index, start, observed, sequence)
        if by_entries:
            values, truth = values.hide(*where)
            return values, where, truth
        truth = values[where]
        values[where] = kind.missing
        return values, where, truth

    def hidden(
        self, view_index: int, start: int, observed: NDArray[np.bool_], sequence: NDArray[Any] | None
    ) -> Where:
        """Return rows and columns of the held-out observed entries of a block of a view, row by row.

        Parameters
        ----------
        view_index : int
            Position of the view in the dataset.
        start : int
            Global index of the first row.
        observed : (B, D) bool array
            Which entries are not missing.
        sequence : (B,) int array or None
            Numbers of the sequences of the rows, where there are any.

        Returns
        -------
        (H,) int32 array, (H,) int32 array
        """
        n_rows, n_features = observed.shape
        stored = slice(n_rows if self.from_row is None else max(0, self.from_row - start), None)
        if self.unit == "entry":
            mask = self.mask(view_index, start, n_rows, n_features)
            mask[stored] = True
            rows, columns = np.nonzero(mask & observed)
        else:
            chosen = self.rows(start, n_rows, sequence)
            chosen[stored] = True
            whole = np.flatnonzero(chosen)
            row, columns = np.nonzero(observed[whole])
            rows = whole[row]
        return rows.astype(np.int32), columns.astype(np.int32)

    def mask(self, view_index: int, start: int, n_rows: int, n_features: int) -> NDArray[np.bool_]:
        """Return which entries are held out one by one, observed or not.

        Parameters
        ----------
        view_index : int
            Position of the view in the dataset.
        start : int
            Global index of the first row.
        n_rows, n_features : int
            Shape of the result (B, D).

        Returns
        -------
        (B, D) bool array
        """
        from factorflow.kernels.compile import compile_scalar
        from factorflow.kernels.scalar.entries import mark_entries

        out = np.empty((n_rows, n_features), np.bool_)
        place = np.uint64(HOLDOUT_ENTRIES[view_index])
        compile_scalar(mark_entries)(np.uint64(self.seed), place, start, self.fraction, out)
        return out

    def rows(self, start: int, n_rows: int, sequence: NDArray[Any] | None = None) -> NDArray[np.bool_]:
        """Return which rows are held out whole.

        Parameters
        ----------
        start, n_rows : int
            The rows (B of them), by their global index.
        sequence : (B,) int array, optional
            Numbers of their sequences, for that unit.

        Returns
        -------
        (B,) bool array
        """
        if self.unit == "entry":
            return np.zeros(n_rows, bool)
        if self.unit == "row":
            return self._hides(np.arange(start, start + n_rows))
        if sequence is None:
            raise self._no_sequences_error()
        return self._hides(sequence)

    def _no_sequences_error(self) -> InputError:
        return InputError(
            "holdout_unit",
            self.unit,
            "a dataset with sequences",
            "Write it with {sequences}, or hold out entries or rows.",
            sequences=...,
        )

    def _hides(self, numbers: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which rows, or sequences, are held out by their numbers."""
        site = SEQUENCE_SITE if self.unit == "sequence" else ROW_SITE
        return np.asarray(entry_uniform(self.seed, site, numbers, 0) < self.fraction)
