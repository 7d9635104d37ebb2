"""Arrays that are computed or read piece by piece when values are asked for, as xarray knows them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from factorflow.core.block import sample_names


def lazy_array(get: Callable[[tuple[Any, ...]], Any], shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array for an `xarray.Variable` whose values are got when they are used.

    Parameters
    ----------
    get : callable
        Called with an index for each axis (an int, a slice, or an int array: outer indexing); returns values.
        Picklable, so that the array is.
    """
    from xarray.core import indexing

    from factorflow.posterior.backend import FunctionArray

    return indexing.LazilyIndexedArray(FunctionArray(get, shape, dtype))


def numbered_names(n_rows: int) -> Any:
    """Return the names of samples that have numbers only, for an `xarray.Variable`."""
    return lazy_array(partial(_make_names, n_rows), (n_rows,), object)


def _make_names(n_rows: int, key: tuple[Any, ...]) -> Any:
    rows = np.arange(*key[0].indices(n_rows)) if isinstance(key[0], slice) else key[0]
    return sample_names(rows).astype(object)[()]
