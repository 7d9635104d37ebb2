"""MATLAB's files (.mat): of any version; from 7.3 on they are HDF5, and arrays stay on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.extras import require
from factorflow.data.ingest.checks import join_names, warn
from factorflow.data.ingest.npz import sort_arrays
from factorflow.data.ingest.reading import Contents, Reading
from factorflow.data.ingest.sparse import from_parts
from factorflow.errors import InputError

HDF5 = b"\x89HDF\r\n\x1a\n"

_TEXTS = ("view_names", "likelihoods", "samples")
_NUMBERS = {"double", "single", "logical", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))}


def open_mat(path: Path, view: str, reading: Reading) -> Contents:
    """Return the matrices of a .mat file as views; see `sort_arrays` for their names.

    Vectors and scalars are no views; cell arrays of text are names.
    """
    arrays = {key: _as_vector(key, value) for key, value in _read(path, reading).items()}
    left = [key for key, array in arrays.items() if _is_vector(array) and not _is_named(key)]
    requested = [key for key in left if (kind := reading.kinds(key)) is not None and not kind.is_values]
    left = [key for key in left if key not in requested]
    arrays = {key: np.ravel(v) if key in requested else v for key, v in arrays.items() if key not in left}
    if left:
        warn(
            f"{path}: {join_names(left)} left out: vectors and scalars are no views; as metadata: obs_<name>"
        )
    return sort_arrays(path, arrays, reading.kinds)


def _is_hdf5(path: Path) -> bool:
    """Return whether HDF5's signature is where it may be; MATLAB's own header is 512 bytes."""
    with path.open("rb") as file:
        start = file.read(2048 + len(HDF5))
    return any(start[at : at + len(HDF5)] == HDF5 for at in (0, 512, 1024, 2048))


def _read(path: Path, reading: Reading) -> dict[str, Any]:
    """Return the contents of a file."""
    from scipy.io import loadmat

    if _is_hdf5(path):
        file = require("h5py", "reads files of MATLAB 7.3").File(path, "r")
        return _from_hdf5(reading.opened.enter_context(file), path)
    return {key: value for key, value in loadmat(path).items() if not key.startswith("__")}


def _is_named(key: str) -> bool:
    return key in _TEXTS or key.startswith(("obs_", "features_", "Y_"))


def _is_vector(array: Any) -> bool:
    """Whether an array of numbers has one row or one column: in MATLAB all arrays are matrices."""
    numbers = np.dtype(getattr(array, "dtype", object)).kind in "biufc"
    return numbers and (len(array.shape) < 2 or 1 in array.shape)


def _as_vector(key: str, value: Any) -> Any:
    """Return text and cell arrays of text as names, and metadata as one-dimensional."""
    dtype = np.dtype(getattr(value, "dtype", object))
    if dtype.kind == "U":
        return np.char.strip(np.ravel(value))
    if dtype.kind == "O":
        cells = [np.ravel(cell) for cell in np.ravel(value)]
        return np.array([str(cell[0]) if cell.size else "" for cell in cells], dtype=str)
    return np.ravel(value) if key.startswith("obs_") else value


@dataclass(frozen=True)
class _ColumnMajorMatrix:
    """A matrix as MATLAB stores it in HDF5: its columns one after the other."""

    array: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(reversed(self.array.shape))

    @property
    def ndim(self) -> int:
        return len(self.array.shape)

    @property
    def dtype(self) -> Any:
        """Type of the numbers; complex ones are stored as pairs."""
        dtype = self.array.dtype
        return np.dtype(complex) if dtype.names == ("real", "imag") else dtype

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return np.asarray(self.array[..., rows]).T

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return np.asarray(self.array[...].T, dtype)


def _from_hdf5(file: Any, path: Path) -> dict[str, Any]:
    variables = {}
    for key, node in file.items():
        kind = node.attrs.get("MATLAB_class", b"")
        kind = kind.decode("ascii") if isinstance(kind, bytes) else str(kind)
        if "MATLAB_sparse" in node.attrs:
            variables[key] = _sparse(node, path)
        elif kind in _NUMBERS:
            variables[key] = _ColumnMajorMatrix(node)
        elif kind in ("cell", "char"):
            variables[key] = _names(file, node, kind)
    return variables


def _sparse(node: Any, path: Path) -> Any:
    where = f"array {node.name.strip('/')!r} of {path}"
    pointers = node["jc"]
    shape = int(node.attrs["MATLAB_sparse"]), int(pointers.shape[0]) - 1
    if "data" not in node:
        raise InputError(where, "no value that is not 0", "a matrix with some", "Leave it out.")
    return from_parts(node["data"], node["ir"], pointers, shape, "csc", where)


def _names(file: Any, node: Any, kind: str) -> NDArray[Any]:
    """Return text or a cell array of text; cells of anything else are empty."""
    if kind == "char":
        return np.array(["".join(map(chr, line)) for line in np.atleast_2d(node[...].T)], dtype=str)
    cells = [file[reference][...] for reference in np.ravel(node[...].T)]
    return np.array(["".join(map(chr, np.ravel(c))) if c.dtype.kind == "u" else "" for c in cells], dtype=str)
