"""Trees as bytes: their structure as JSON, their arrays one after the other, and a checksum.

Nothing in them is ever run: reading makes dataclasses of packages that are loaded already, and arrays of
numbers. So a checkpoint that somebody else made can be wrong, but does nothing besides.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.trees import flatten, unflatten

__all__ = ["packed", "unpacked"]

MARK = b"factorflow tree 2\n"


def packed(tree: Any) -> bytes:
    """Return a tree as bytes, from which `unpacked` makes one of the same bits.

    Raises
    ------
    TypeError
        If there is something in it that the contract does not allow in globals and local state.
    """
    structure, leaves = flatten(tree)
    for leaf in leaves:
        if leaf.dtype.hasobject or leaf.dtype.names:
            raise TypeError(f"a {type(leaf[()] if leaf.ndim == 0 else leaf).__name__} is no array of numbers")
    heads = [(leaf.dtype.str, leaf.shape) for leaf in leaves]
    text = json.dumps({"tree": structure, "arrays": heads}).encode()
    parts: list[Any] = [len(text).to_bytes(8, "little"), text, *(_content(leaf) for leaf in leaves)]
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
    end = 8 + int.from_bytes(body[:8], "little")
    document = json.loads(body[8:end])
    leaves = []
    for kind, shape in document["arrays"]:
        dtype, count = np.dtype(kind), math.prod(shape)
        leaf = np.frombuffer(body, dtype, count, end) if count else np.empty(0, dtype)
        leaves.append(leaf.reshape(shape).copy())  # a copy: arrays lie where NumPy would put them
        end += leaf.nbytes
    return unflatten(document["tree"], leaves, classes)


def _content(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of an array: they are copied once, where the parts are joined."""
    array = array if array.flags.c_contiguous else array.copy(order="C")
    content = array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
    content.flags.writeable = False  # as the checksum wants it
    return content


def _checksum(*parts: Any) -> bytes:
    import google_crc32c

    total = 0
    for part in parts:
        total = google_crc32c.extend(total, part)
    return total.to_bytes(4, "little")
