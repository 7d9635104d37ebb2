"""Numba's compiler for CUDA devices, told not to warn at every launch that a block has few rows."""

from __future__ import annotations

import os

os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")  # read when numba.cuda is imported

from numba import cuda  # noqa: E402

__all__ = ["cuda"]
