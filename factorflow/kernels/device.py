"""Array namespaces and transfers between the memory of the host and of a device.

The entries of a block are the only arrays that a model finds on a device. What is computed entry by entry
stays there (the CUDA kernels of the families); sums over entries come back to the host in double precision.
For arrays of the host all functions here are the identity, or plain NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from jaxtyping import Float64, Num, Shaped

from factorflow.core.block import Array, Block
from factorflow.errors import InputError


class HostRows:
    """Base of what holds the rows of a view in the host's memory by their entries, not as an array."""


def on_device(array: Shaped[Array, "*_"]) -> bool:
    """Return whether an array lies on a device (CuPy's), not in the host's memory (NumPy's)."""
    return not isinstance(array, (np.ndarray, HostRows))


def namespace(array: Shaped[Array, "*_"]) -> Any:
    """Return the array-API namespace of an array; NumPy itself for its own, found at once."""
    return np if isinstance(array, np.ndarray) else array_namespace(array)


def move_beside(array: Shaped[Array, "*shape"], other: Shaped[Array, "*_"]) -> Shaped[Array, "*shape"]:
    """Return an array where ``other`` lies: itself, or a copy on the device."""
    return namespace(other).asarray(array) if on_device(other) else array


def on_host(array: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
    """Return an array in the host's memory: itself, or a copy."""
    return array.get() if on_device(array) else array


def block_on_host(block: Block) -> Block:
    """Return a block in the host's memory."""
    return replace(block, data={name: on_host(values) for name, values in block.data.items()})


def product(
    left: Num[Array, "*n inner"], right: Num[Array, " inner *m"], columns: int | None = None
) -> Float64[Array, "*_"]:
    """Return left @ right (of it the first ``columns``) on the host, in double precision.

    It is computed on the device where one of the two lies there; ``left`` may be rows by their entries.
    """
    if isinstance(left, HostRows):  # every column counts
        return left @ (right if columns is None else right[:, :columns])
    where = left if on_device(left) else right
    whole = _product(move_beside(left, where), move_beside(right, where))
    cut = whole if columns is None else whole[:, :columns]
    return on_host(cut.astype(np.float64, order="C"))


def _product(left: Num[Array, "*n inner"], right: Num[Array, " inner *m"]) -> Num[Array, "*_"]:
    """Return left @ right; of a transpose in single precision by the transpose of that.

    BLAS takes a quarter less time for it, and the same bits come out (not in double precision).
    """
    is_transpose = isinstance(left, np.ndarray) and left.ndim == 2 and left.T.flags.c_contiguous
    if is_transpose and right.ndim == 2 and left.dtype == right.dtype == np.float32:
        return (right.T @ left.T).T
    return left @ right


def check_device(device: str, able: Sequence[str]) -> None:
    """Refuse a device that a model cannot work on, or that is not there."""
    if device not in able:
        raise InputError("device", device, f"one of {', '.join(able)} for this model", "Leave it out.")
    if device == "cpu":
        return
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # ImportError, or whatever the driver raises
        raise InputError(
            "device",
            device,
            f"a machine with CuPy and a CUDA device ({type(error).__name__}: {error})",
            "Install factorflow[gpu-cu12] or factorflow[gpu-cu13], or use {device}.",
            device="cpu",
        ) from error
