"""Trees as bytes: their structure as JSON, their arrays as NumPy writes them, and a checksum.

Nothing in them is ever run: reading makes dataclasses of packages that are loaded already, and arrays of
numbers. So a checkpoint that somebody else made can be wrong, but does nothing besides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from types import MappingProxyType
from typing import Any

import numpy as np

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
    content, head = BytesIO(), json.dumps(structure).encode()
    content.write(len(head).to_bytes(8, "little") + head)
    for leaf in leaves:
        if leaf.dtype.hasobject:
            raise TypeError(f"a {type(leaf[()] if leaf.ndim == 0 else leaf).__name__} is no array of numbers")
        np.lib.format.write_array(content, leaf, allow_pickle=False)
    body = content.getvalue()
    return MARK + _checksum(body) + body


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
        leaves.append(np.lib.format.read_array(content, allow_pickle=False))
    return unflatten(structure, leaves, classes)


def _checksum(content: bytes) -> bytes:
    import google_crc32c

    return int(google_crc32c.value(content)).to_bytes(4, "little")
