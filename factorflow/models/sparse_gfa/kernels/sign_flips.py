"""Rows by their entries for a comparison with random signs: some of the zeros, and signs of what is listed.

Centring makes every zero an entry of its own, whose sign is drawn as well. Of zeros only one in ``group`` is
listed, sqrt(group) times as large: rows and features keep the sums of their squares, which are all that the
largest singular values of a large matrix of independent entries depend on, as long as none of them is large
beside its row and feature. Those of the other entries are larger than these where few are not zero.

References
----------
Largest singular values of matrices with independent entries: Bandeira and van Handel (2016), Annals of
Probability 44, 2479-2506.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int64, Integer
from numba import types
from numba.extending import intrinsic

from factorflow.kernels.compile import compile_scalar, jit, read_only_view
from factorflow.kernels.scalar.philox import philox_words
from factorflow.kernels.vector_rows import COMPILED, dot, for_entries, load, pointers

Array = Any
Words = tuple[int, int, int, int]
"""Seed, iteration, site and chain that random numbers are drawn at."""

_words: Any = compile_scalar(philox_words, inner=True)


def _subtract_row(
    typing: Any, lanes: Any, columns: Any, entries: Any, first: Any, last: Any, left: Any, n: Any, right: Any
) -> Any:
    """Take the scalar products of row n of ``left`` with rows of ``right`` from entries."""
    width = len(lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, columns_, entries_, first_, last_, left_, n_, right_ = args
        row = [load(builder, place) for place in pointers(context, builder, left, left_, n_, width)]
        with for_entries(context, builder, (columns, columns_), (entries, entries_), (first_, last_)) as one:
            other = [
                load(builder, place) for place in pointers(context, builder, right, right_, one.column, width)
            ]
            builder.store(builder.fsub(one.number, dot(builder, row, other)), one.place)
        return context.get_dummy_value()

    kinds = lanes, columns, entries, types.int64, types.int64, left, types.int64, right
    return types.void(*kinds), generate


_subtract: Any = intrinsic(_subtract_row)


def _list(lanes, start, columns, entries, rows, key, group, left, right, out):  # type: ignore[no-untyped-def]
    """Write S - L R' where S is listed, and behind them some others of the row, into ``out``."""
    new_start, new_columns, new_entries = out
    seed, iteration, place = key
    n_features, at, root = right.shape[0], 0, entries.dtype.type(np.sqrt(group))
    seen, word = np.full(n_features, -1, np.int32), np.zeros(4, np.uint64)
    for n in range(start.size - 1):
        one, last, first = start[n], start[n + 1], at
        middle = at = first + last - one
        new_columns[first:middle], new_entries[first:middle] = columns[one:last], entries[one:last]
        for d in columns[one:last]:
            seen[d] = n
        for g in range(-(-n_features // group)):
            if g % 16 == 0:
                word[0], word[1], word[2], word[3] = _words(
                    seed, rows[n], np.uint64(g // 16), iteration, place
                )
            byte = (word[g % 16 // 4] >> np.uint64(g % 4 * 8)) & np.uint64(group - 1)
            zero = g * group + np.int64(byte)
            if zero < n_features and seen[zero] != n:
                new_columns[at], new_entries[at] = zero, 0.0
                at += 1
        _subtract(lanes, new_columns, new_entries, first, at, left, n, right)
        for zero in range(middle, at):
            new_entries[zero] *= root
        new_start[n + 1] = at


def _sign(start, entries, rows, key, out):  # type: ignore[no-untyped-def]
    """Flip the highest bits of entries, which are their signs, at random into ``out``."""
    seed, iteration, place = key
    last = np.uint32(8 * entries.itemsize - 1)
    for n in range(start.size - 1):
        for at in range(start[n], start[n + 1], 128):
            words = _words(seed, rows[n], np.uint64((at - start[n]) // 128), iteration, place)
            for w in range(4):
                first, word = at + 32 * w, np.uint32(words[w])
                end = max(first, min(first + 32, start[n + 1]))
                before, after = entries[first:end], out[first:end]
                for j in range(before.size):
                    bit = entries.dtype.type((word >> np.uint32(j ^ 7)) & np.uint32(1))
                    after[j] = before[j] ^ entries.dtype.type(bit << last)


_listed: Any = jit(_list, cache=True, nogil=True, error_model="numpy")
_signed: Any = jit(_sign, cache=True, nogil=True, error_model="numpy")


def list_some_zeros(
    sparse: tuple[Int64[np.ndarray, " B1"], Integer[np.ndarray, " M"], Float[np.ndarray, " M"]],
    left: Float64[np.ndarray, "B R"],
    right: Float64[np.ndarray, "D R"],
    rows: Int64[np.ndarray, " B"],
    words: Words,
    group: int,
) -> tuple[Int64[np.ndarray, " B1"], Integer[np.ndarray, " J"], Float[np.ndarray, " J"]]:
    """Return S - L R' by the entries of S that are not zero, and one in ``group`` of the others.

    Parameters
    ----------
    sparse : tuple of arrays
        S as compressed sparse rows: where rows begin, columns, and entries.
    left, right : array
        L and R.
    rows : array
        Numbers of the rows among all.
    words : tuple of int
        Where it is drawn which zeros are listed.
    group : int
        A power of 2, at most 128.
    """
    start, columns, entries = sparse
    n_rows, n_features = len(left), len(right)
    room = entries.size + n_rows * -(-n_features // group)
    out = np.zeros(n_rows + 1, np.int64), np.empty(room, columns.dtype), np.empty(room, entries.dtype)
    width = -(-left.shape[1] // COMPILED) * COMPILED
    tables = [np.zeros((len(matrix), width), entries.dtype) for matrix in (left, right)]
    for table, matrix in zip(tables, (left, right), strict=True):
        table[:, : matrix.shape[1]] = matrix
    given = map(read_only_view, (start, columns, entries, rows.astype(np.uint64)))
    _listed((0,) * width, *given, _key(words), group, *map(read_only_view, tables), out)
    size = out[0][-1]
    return out[0], out[1][:size], out[2][:size]


def draw_signs(
    start: Int64[np.ndarray, " B1"],
    entries: Float[np.ndarray, " M"],
    rows: Int64[np.ndarray, " B"],
    words: Words,
) -> Float[np.ndarray, " M"]:
    """Return entries times random signs: of the j-th of a row that of bit j of `Step.bits`."""
    out = np.empty_like(entries)
    bits = f"u{entries.itemsize}"
    given = map(read_only_view, (start, entries.view(bits), rows.astype(np.uint64)))
    _signed(*given, _key(words), out.view(bits))
    return out


def _key(words: Words) -> tuple[np.uint64, np.uint64, np.uint64]:
    seed, iteration, site, chain = words
    return np.uint64(seed), np.uint64(iteration), np.uint64(site | chain << 16)
