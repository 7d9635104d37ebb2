"""Trees as bytes: their structure as JSON, their arrays as NumPy writes them, and a checksum.

Nothing in them is ever run: reading makes dataclasses of packages that are loaded already, and arrays of
numbers. So a checkpoint that somebody else made can be wrong, but does nothing besides.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from io import BytesIO
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.trees import flatten, unflatten

__all__ = ["packed", "unpacked"]

MARK = b"factorflow tree 1\n"


def packed(tree: Any) -> bytes:
    """Return a tree as bytes, from which `unpacked` makes one of the same bits.

    Raises
    ------
    TypeError
        If there is something in it that the contract does not allow in globals and local state.
    """
    structure, leaves = flatten(tree)
    text = json.dumps(structure).encode()
    parts: list[Any] = [len(text).to_bytes(8, "little"), text]
    for leaf in leaves:
        if leaf.dtype.hasobject:
            raise TypeError(f"a {type(leaf[()] if leaf.ndim == 0 else leaf).__name__} is no array of numbers")
        parts += _as_npy(leaf)
    return b"".join([MARK, _checksum(*parts), *parts])


def unpacked(data: bytes, classes: Mapping[str, type] = MappingProxyType({})) -> Any:
    """Return the tree that became these bytes.

    Parameters
    ----------
    data : bytes
        What `packed` returned.
    classes : mapping of str to type
        As for `factorflow.trees.unflatten`.

    Raises
    ------
    ValueError
        If they are something else, or were changed since.
    """
    start = len(MARK)
    body = data[start + 4 :]
    if not data.startswith(MARK) or _checksum(body) != data[start : start + 4]:
        raise ValueError("its checksum is another one")
    content = BytesIO(body)
    structure = json.loads(content.read(int.from_bytes(content.read(8), "little")))
    leaves = []
    while content.tell() < len(body):
        np.lib.format.read_magic(content)
        shape, _, dtype = np.lib.format.read_array_header_1_0(content)
        count, leaf = math.prod(shape), np.empty(0, dtype)
        if count:
            leaf = np.frombuffer(body, dtype, count, content.tell())
        leaves.append(leaf.reshape(shape).copy())  # a copy: arrays lie where NumPy would put them
        content.seek(leaf.nbytes, 1)
    return unflatten(structure, leaves, classes)


def _as_npy(array: NDArray[Any]) -> list[Any]:
    """Return an array as the parts of an .npy file: it is copied once, where the parts are joined."""
    array = array if array.flags.c_contiguous else array.copy(order="C")
    head = BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(array))
    content = array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
    content.flags.writeable = False  # as the checksum wants it
    return [head.getvalue(), content]


def _checksum(*parts: Any) -> bytes:
    import google_crc32c

    total = 0
    for part in parts:
        total = google_crc32c.extend(total, part)
    return total.to_bytes(4, "little")
