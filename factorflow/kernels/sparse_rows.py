"""Rows of a view by the entries that are not zero: `SparseRows`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.kernels.device import HostRows
from factorflow.kernels.sparse import scatter_rows

if TYPE_CHECKING:
    from factorflow.core.kinds import Kind

ABSENT = np.iinfo(np.uint32).max
"""Number of entries of a row that the view lacks."""


def column_type(n_features: int) -> np.dtype[Any]:
    """Return the smallest type of the numbers of features."""
    return np.dtype(np.uint16 if n_features <= 1 << 16 else np.uint32)


def _no_entries() -> NDArray[np.int32]:
    return np.zeros(0, np.int32)


@dataclass(frozen=True)
class SparseRows(HostRows):
    """Rows of a view by their entries that are not zero (compressed sparse rows).

    What is not listed is 0, unless it is missing: whole rows (`ABSENT`), sets of features that rows lack
    together (``row_pattern``), and entries one by one (``missing_rows``), which held-out ones are among.

    Parameters
    ----------
    row_nnz : (B,) uint32 array
        Entries of each row; `ABSENT`: the row is missing.
    columns : (M,) uint16 or uint32 array
        Features of the entries, ascending within a row.
    entries : (M,) array
        Their values, of the type on disk.
    n_features : int
        Columns of the view (D).
    row_pattern : (B,) unsigned integer array or None
        Of the rows that lack some features, which set of them, from 1 on; None: there is no such row.
    patterns : (P, D) bool array or None
        Those sets: where features are missing.
    missing_rows, missing_columns : (H,) int32 array
        Rows and features of other missing entries, row by row.
    """

    row_nnz: NDArray[np.uint32]
    columns: NDArray[Any]
    entries: NDArray[Any]
    n_features: int
    row_pattern: NDArray[np.unsignedinteger[Any]] | None = None
    patterns: NDArray[np.bool_] | None = None
    missing_rows: NDArray[np.int32] = field(default_factory=_no_entries)
    missing_columns: NDArray[np.int32] = field(default_factory=_no_entries)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features (B, D)."""
        return self.row_nnz.size, self.n_features

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the entries."""
        return self.entries.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        arrays = (self.row_nnz, self.columns, self.entries, self.row_pattern, self.patterns)
        own = sum(array.nbytes for array in arrays if array is not None)
        return int(own + self.missing_rows.nbytes + self.missing_columns.nbytes)

    @cached_property
    def absent(self) -> NDArray[np.bool_]:
        """Which rows the view lacks, (B,)."""
        return np.asarray(self.row_nnz == ABSENT)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Entries of each row, (B,); 0 of absent ones."""
        return np.where(self.absent, 0, self.row_nnz).astype(np.int64)

    @cached_property
    def totals(self) -> NDArray[np.float64]:
        """Sums of the entries of the rows, (B,)."""
        return self.sums(self.entries)

    def sums(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return the sum over the entries of each row, (B,), of one number (M,) for each."""
        counts = self.counts
        out, some = np.zeros(len(self)), counts > 0
        if some.any():
            out[some] = np.add.reduceat(values, (np.cumsum(counts) - counts)[some], dtype=np.float64)
        return out

    def observed(self) -> NDArray[np.bool_]:
        """Return which entries are not missing, (B, D)."""
        out = np.ones(self.shape, bool)
        self._fill_missing(out, False)
        return out

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not (self.absent.any() or self.missing_rows.size or self.lacking())

    def n_observed(self) -> NDArray[np.float64]:
        """Return how many rows each feature is not missing in, (D,)."""
        out = np.full(self.n_features, float((~self.absent).sum()))
        for rows, features in self.lacking():
            out[features] -= rows.size
        return out - np.bincount(self.missing_columns, minlength=self.n_features)

    def lacking(self) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Return the rows of each pattern that there is, and the features that they lack."""
        if self.row_pattern is None or self.patterns is None:
            return []
        there = np.unique(self.row_pattern[(self.row_pattern > 0) & ~self.absent])
        return [
            (np.flatnonzero((self.row_pattern == p) & ~self.absent), np.flatnonzero(self.patterns[p - 1]))
            for p in there
        ]

    def dense(self, kind: Kind) -> NDArray[Any]:
        """Return the rows as a block of the kind holds them, (B, D)."""
        out = np.zeros((self.row_nnz.size, self.n_features), kind.in_block(self.entries.dtype))
        scatter_rows(self.counts, self.columns, self.entries, out)
        self._fill_missing(out, kind.missing)
        return out

    def to_array(self, missing: float = 0) -> NDArray[Any]:
        """Return the entries as they are in a dense array (B, D), with a number where they are missing."""
        out = np.zeros(self.shape, self.dtype)
        out[self.row_numbers, self.columns] = self.entries  # SciPy makes 0 of -0.0
        if missing:
            self._fill_missing(out, missing)
        return out

    def _fill_missing(self, out: NDArray[Any], value: Any) -> None:
        out[self.absent] = value
        for rows, features in self.lacking():
            out[np.ix_(rows, features)] = value
        out[self.missing_rows, self.missing_columns] = value

    def to_csr(self) -> Any:
        """Return the entries as a SciPy matrix (B, D); what is missing is 0 there."""
        from scipy.sparse import csr_array

        pointers = np.concatenate([[0], np.cumsum(self.counts)])
        return csr_array((self.entries, self.columns.astype(np.int32), pointers), shape=self.shape)

    def __len__(self) -> int:
        return int(self.row_nnz.size)

    def __getitem__(self, rows: NDArray[Any] | slice) -> SparseRows:
        """Return some of the rows, of a view without single missing entries."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            return self.part(start, stop)
        index = np.arange(len(self))[rows]
        starts = np.cumsum(self.counts) - self.counts
        counts = self.counts[index]
        before = np.cumsum(counts) - counts
        place = np.repeat(starts[index] - before, counts) + np.arange(counts.sum())
        codes = None if self.row_pattern is None else self.row_pattern[index]
        return replace(
            self,
            row_nnz=self.row_nnz[index],
            columns=self.columns[place],
            entries=self.entries[place],
            row_pattern=codes,
        )

    def part(self, start: int, stop: int) -> SparseRows:
        """Return some of the rows."""
        first, last = (int(self.counts[:row].sum()) for row in (start, stop))
        mine = (self.missing_rows >= start) & (self.missing_rows < stop)
        return SparseRows(
            self.row_nnz[start:stop],
            self.columns[first:last],
            self.entries[first:last],
            self.n_features,
            None if self.row_pattern is None else self.row_pattern[start:stop],
            self.patterns,
            self.missing_rows[mine] - np.int32(start),
            self.missing_columns[mine],
        )

    def hide(self, rows: NDArray[np.int32], columns: NDArray[np.int32]) -> tuple[SparseRows, NDArray[Any]]:
        """Return the rows with more entries missing, and the values that those had.

        Rows that have no other entries are absent then.

        Parameters
        ----------
        rows, columns : (H,) int32 arrays
            Of entries that are not missing, row by row.
        """
        place, listed = self._find(rows, columns)
        is_visible = np.ones(self.entries.size, bool)
        is_visible[place[listed]] = False
        hidden = self._without(is_visible)._with_missing(rows, columns)
        return hidden._with_absent_rows(rows), self.at(rows, columns)

    def _with_absent_rows(self, rows: NDArray[np.int32]) -> SparseRows:
        """Return the rows with those absent of which all is missing; only some are looked at."""
        some = np.unique(rows)
        n_missing = np.bincount(self.missing_rows, minlength=len(self))
        for lacking, features in self.lacking():
            n_missing[lacking] += features.size
        absent = some[n_missing[some] == self.n_features]
        row_nnz = self.row_nnz.copy()
        row_nnz[absent] = ABSENT
        single = ~np.isin(self.missing_rows, absent)
        missing = self.missing_rows[single], self.missing_columns[single]
        return replace(self, row_nnz=row_nnz, missing_rows=missing[0], missing_columns=missing[1])

    def at(self, rows: NDArray[np.int32], columns: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the values of entries (H,), 0 where none is listed."""
        place, listed = self._find(rows, columns)
        values = np.zeros(place.size, np.float32)
        values[listed] = self.entries[place[listed]]
        return values

    def is_observed(self, rows: NDArray[np.int32], columns: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which of some entries are not missing, (H,)."""
        there = ~self.absent[rows]
        if self.row_pattern is not None and self.patterns is not None:
            lacking = np.concatenate([np.zeros((1, self.n_features), bool), self.patterns])
            there &= ~lacking[self.row_pattern[rows], columns]
        if self.missing_rows.size:
            missing = self._keys(self.missing_rows, self.missing_columns)
            there &= ~np.isin(self._keys(rows, columns), missing)
        return there

    def _find(self, rows: NDArray[Any], columns: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return where some entries are listed, and whether they are."""
        keys, wanted = self._keys(self.row_numbers, self.columns), self._keys(rows, columns)
        place = np.searchsorted(keys, wanted)
        listed = np.zeros(wanted.size, bool)
        listed[place < keys.size] = keys[place[place < keys.size]] == wanted[place < keys.size]
        return place, listed

    def select(self, features: NDArray[Any]) -> SparseRows:
        """Return the rows with some of the features, ascending; none are missing one by one."""
        place = np.full(self.n_features, -1, np.int64)
        place[features] = np.arange(len(features))
        kept = self._without(place[self.columns] >= 0)
        return replace(
            kept,
            columns=place[kept.columns].astype(column_type(len(features))),
            n_features=len(features),
            patterns=None if self.patterns is None else self.patterns[:, features],
        )

    def reindex(self, ours: NDArray[Any], theirs: NDArray[Any], n_features: int) -> SparseRows:
        """Return the rows with the features in another order; what they lack is missing.

        Parameters
        ----------
        ours, theirs : (J,) int arrays
            Of the features that are on both sides, the positions wanted and those here.
        n_features : int
            Features wanted (D).
        """
        place = np.full(self.n_features, -1, np.int64)
        place[theirs] = ours
        kept_rows = self._without(place[self.columns] >= 0)
        columns, rows = place[kept_rows.columns], kept_rows.row_numbers
        order = np.argsort(rows * n_features + columns, kind="stable")
        is_there = place[self.missing_columns] >= 0
        patterns, codes = self._reindexed_patterns(ours, theirs, n_features)
        return SparseRows(
            kept_rows.row_nnz,
            columns[order].astype(column_type(n_features)),
            kept_rows.entries[order],
            n_features,
            codes,
            patterns,
        )._with_missing(self.missing_rows[is_there], place[self.missing_columns[is_there]].astype(np.int32))

    def _reindexed_patterns(self, ours: Any, theirs: Any, n_features: int) -> tuple[Any, Any]:
        lacks = np.ones(n_features, bool)
        lacks[ours] = False
        before = _sets(self)
        moved = np.repeat(lacks[None], len(before) + 1, axis=0)
        moved[1:, ours] = before[:, theirs]
        codes = np.zeros(self.row_nnz.size, np.uint8) if self.row_pattern is None else self.row_pattern
        if lacks.any():
            return moved, codes + np.uint8(1)
        return (moved[1:], codes) if len(before) else (None, None)

    @property
    def row_numbers(self) -> NDArray[np.int64]:
        """Rows of the entries, (M,)."""
        return np.repeat(np.arange(self.counts.size), self.counts)

    def _keys(self, rows: Any, columns: Any) -> NDArray[np.int64]:
        return np.asarray(rows.astype(np.int64) * self.n_features + columns)

    def without_zeros(self) -> SparseRows:
        """Return the rows without entries that are 0, or -0.0."""
        return self._without(self.entries != 0)

    def stored(self) -> SparseRows:
        """Return the rows without entries whose bits are all zero: -0.0 stays."""
        is_stored = self.entries.view(f"u{self.entries.dtype.itemsize}") != 0
        return self if is_stored.all() else self._without(is_stored)

    def _without(self, is_visible: NDArray[np.bool_]) -> SparseRows:
        """Return the rows with some of the entries no longer listed."""
        left = np.bincount(self.row_numbers[is_visible], minlength=self.counts.size).astype(np.uint32)
        nnz = np.where(self.absent, ABSENT, left).astype(np.uint32)
        return replace(self, row_nnz=nnz, columns=self.columns[is_visible], entries=self.entries[is_visible])

    def _with_missing(self, rows: NDArray[np.int32], columns: NDArray[np.int32]) -> SparseRows:
        """Return the rows with more entries marked as missing, which are not listed."""
        rows, columns = (
            np.concatenate(pair) for pair in ((self.missing_rows, rows), (self.missing_columns, columns))
        )
        order = np.argsort(self._keys(rows, columns), kind="stable")
        return replace(self, missing_rows=rows[order], missing_columns=columns[order])

    @classmethod
    def blank(cls, n_rows: int, n_features: int) -> SparseRows:
        """Return rows that the view lacks."""
        nnz = np.full(n_rows, ABSENT, np.uint32)
        return cls(nnz, np.zeros(0, column_type(n_features)), np.zeros(0, np.uint8), n_features)

    @classmethod
    def from_dense(
        cls, values: NDArray[Any], missing: NDArray[np.bool_] | None, *, listed: bool = False
    ) -> SparseRows:
        """Return the entries of dense rows; rows of which all is missing are absent.

        Parameters
        ----------
        values : (B, D) array
            As `Kind.encode` returns them.
        missing : (B, D) bool array or None
            Where entries are missing.
        listed : bool
            Whether entries that are missing one by one are listed; else they are not in it.
        """
        present = values.view(f"u{values.dtype.itemsize}") != 0  # -0.0 is stored
        if missing is not None:
            present &= ~missing
        row_nnz = present.sum(axis=1, dtype=np.uint32)
        where = np.flatnonzero(present)
        columns = (where % values.shape[1]).astype(column_type(values.shape[1]))
        if missing is not None:
            row_nnz[missing.all(axis=1)] = ABSENT
        listing = cls(row_nnz, columns, values.reshape(-1)[where], values.shape[1])
        if missing is None or not listed:
            return listing
        rows, features = np.nonzero(missing & ~listing.absent[:, None])
        return listing._with_missing(rows.astype(np.int32), features.astype(np.int32))


def _sets(rows: SparseRows) -> NDArray[np.bool_]:
    """Return the sets of features that rows lack together, (P, D)."""
    return np.zeros((0, rows.n_features), bool) if rows.patterns is None else rows.patterns


def join_rows(parts: Sequence[SparseRows]) -> SparseRows:
    """Return rows below each other, none of them with entries that are missing one by one."""
    if len(parts) == 1:
        return parts[0]
    arrays = ([getattr(part, name) for part in parts] for name in ("row_nnz", "columns", "entries"))
    row_nnz, columns, entries = map(np.concatenate, arrays)
    numbers: dict[bytes, int] = {}
    codes = []
    for part in parts:
        own = [numbers.setdefault(row.tobytes(), len(numbers) + 1) for row in _sets(part)]
        mine = np.zeros(len(part), np.uint8) if part.row_pattern is None else part.row_pattern
        codes.append(np.array([0, *own], np.uint32)[mine])
    joined = SparseRows(row_nnz, columns, entries, parts[0].n_features)
    if not numbers:
        return joined
    patterns = np.frombuffer(b"".join(numbers), bool).reshape(len(numbers), -1)
    return replace(joined, row_pattern=np.concatenate(codes), patterns=patterns)
