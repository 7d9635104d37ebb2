"""Arrays that are computed or read piece by piece when values are asked for, as xarray knows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from factorflow.shape import sample_names

__all__ = ["lazy_array", "numbered_names"]


def lazy_array(get: Callable[[tuple[Any, ...]], Any], shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array for an `xarray.Variable` whose values are got when they are used.

    Parameters
    ----------
    get : callable
        Called with an index for each axis (an int, a slice, or an int array: outer indexing); returns values.
    shape, dtype
        Of the array.
    """
    from xarray.backends import BackendArray
    from xarray.core import indexing

    class Lazy(BackendArray):
        def __init__(self) -> None:
            self.shape, self.dtype = shape, np.dtype(dtype)

        def __getitem__(self, key: Any) -> Any:
            return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, get)

    return indexing.LazilyIndexedArray(Lazy())


def numbered_names(n_rows: int) -> Any:
    """Return the names of samples that have numbers only, for an `xarray.Variable`."""

    def get(key: tuple[Any, ...]) -> Any:
        rows = np.arange(*key[0].indices(n_rows)) if isinstance(key[0], slice) else key[0]
        return sample_names(rows).astype(object)[()]

    return lazy_array(get, (n_rows,), object)
