"""Arrays as loops take them: in runs of rows that stay in a core's cache, of one type, without NaN."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy.typing import DTypeLike

RUN_ENTRIES = 1 << 15
"""Entries that are worked on together: temporaries of 256 kB in double precision."""


def runs(table: Shaped[np.ndarray, "N D"]) -> Iterator[slice]:
    """Yield runs of rows that have `RUN_ENTRIES` together."""
    size = max(1, RUN_ENTRIES // max(1, table.shape[1]))
    return (slice(first, first + size) for first in range(0, len(table), size))


def contiguous(
    array: Shaped[np.ndarray, "*shape"], dtype: DTypeLike = np.float64
) -> Shaped[np.ndarray, "*shape"]:
    """Return an array as compiled loops read it: contiguous and read-only.

    A loop is compiled for each type of its arguments, and whether they can be written is part of a type.
    """
    out = np.ascontiguousarray(array, dtype).view()
    out.flags.writeable = False
    return out


def clear(table: Float[np.ndarray, "N D"], missing: Bool[np.ndarray, "N D"]) -> None:
    """Write 0 where entries are missing: by their bits, since `numpy.copyto` takes ten times as long."""
    bits = table.view(f"i{table.itemsize}")
    bits &= missing.astype(bits.dtype) - 1
