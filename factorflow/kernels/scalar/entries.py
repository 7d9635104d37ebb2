"""Marks on the entries of a matrix: `factorflow.kernels.random.entry_uniform` inside a compiled loop."""

from __future__ import annotations

import numpy as np

from factorflow.kernels.scalar.philox import philox_pair


def mark_entries(seed, place, start, fraction, out):  # type: ignore[no-untyped-def]
    """Set out[i, j] to whether the uniform of entry (start + i, j) is below ``fraction``."""
    for i in range(out.shape[0]):
        row = np.uint64(start + i)
        for j in range(out.shape[1]):
            column = np.uint64(j)
            uniform, _ = philox_pair(seed, row, np.uint64(0), column, place)  # type: ignore[no-untyped-call]
            out[i, j] = uniform < fraction
