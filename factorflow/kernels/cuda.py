"""Numba's compiler for CUDA devices, without its warning at launches of few threads."""

from __future__ import annotations

import os
import sys

from numba import cuda

__all__ = ["cuda"]

if "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS" not in os.environ:
    for _name in ("numba.core.config", "numba.cuda.core.config"):  # of Numba's own target, and of numba-cuda
        if _name in sys.modules:
            sys.modules[_name].CUDA_LOW_OCCUPANCY_WARNINGS = 0  # type: ignore[attr-defined]
