"""Objects of other libraries as NumPy, SciPy or pandas objects; none of those libraries is imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from factorflow.errors import InputError


def is_of(library: str, value: Any) -> bool:
    """Whether the class of an object, or one that it is derived from, is of a library."""
    return any(kind.__module__.partition(".")[0] == library for kind in type(value).__mro__)


def convert(view: str, value: Any) -> Any:
    """Return a tensor of torch or CuPy as an array, a frame of polars or Arrow as one of pandas.

    All else is returned as it is; objects of pandas and xarray are not for this, their types are none of
    NumPy's.

    Raises
    ------
    InputError
        When it has to be computed first.
    """
    if is_of("torch", value) and hasattr(value, "detach"):
        return _from_torch(value.detach().cpu())
    if (is_of("cupy", value) or is_of("cupyx", value)) and hasattr(value, "get"):
        return value.get()
    if hasattr(value, "to_pandas"):
        return value.to_pandas()
    lazy = {"collect": is_of("polars", value), "compute": is_of("dask", value) and hasattr(value, "columns")}
    for method, is_lazy in lazy.items():
        if is_lazy and hasattr(value, method):
            raise InputError(
                f"view {view!r}",
                f"a {type(value).__name__} that is not computed yet",
                "a table in memory",
                f"Call {method}() on it first.",
            )
    try:
        np.dtype(getattr(value, "dtype", float))
    except TypeError:  # a type of a library that we do not know; its objects may know NumPy
        if hasattr(value, "__array__"):
            return _as_numpy(view, value)
    return value


def _from_torch(tensor: Any) -> Any:
    if str(tensor.layout) != "torch.strided":
        from scipy.sparse import csr_array

        rows = tensor.to_sparse_csr()
        parts = [part.numpy() for part in (rows.values(), rows.col_indices(), rows.crow_indices())]
        return csr_array(tuple(parts), shape=tuple(tensor.shape))
    tensor = tensor.resolve_conj().resolve_neg()
    return tensor.float().numpy() if str(tensor.dtype) == "torch.bfloat16" else tensor.numpy()


def _as_numpy(view: str, value: Any) -> Any:
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"view {view!r}",
            f"an object of type {type(value).__name__} ({error})",
            "an array that NumPy can read",
            "Convert it to a NumPy array of samples x features.",
        ) from error
