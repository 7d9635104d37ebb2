"""An array of xarray whose values are got by a function when they are used; needs xarray to be imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from xarray.backends import BackendArray
from xarray.core import indexing


class FunctionArray(BackendArray):
    """An array whose values are got by a function; it is pickled if the function is.

    Parameters
    ----------
    get : callable
        Called with an index for each axis (an int, a slice, or an int array: outer indexing); returns values.
    """

    def __init__(self, get: Callable[[tuple[Any, ...]], Any], shape: tuple[int, ...], dtype: Any) -> None:
        self.get, self.shape, self.dtype = get, shape, np.dtype(dtype)

    def __getitem__(self, key: Any) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self.get)
