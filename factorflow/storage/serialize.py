"""Trees of arrays as bytes: their structure as JSON, their arrays, and a checksum.

Loading runs nothing: it makes dataclasses of packages that are loaded already, and arrays of numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from factorflow.core.flatten import flatten, unflatten
from factorflow.storage.checksums import CRC_BYTES, crc32c_bytes

MAGIC = b"factorflow tree 2\n"


def dumps(tree: Any) -> bytes:
    """Return a tree as bytes, from which `loads` makes one with the same bits.

    What the contract does not allow in globals and local state is a TypeError.
    """
    structure, leaves = flatten(tree)
    for leaf in leaves:
        if leaf.dtype.hasobject or leaf.dtype.names:
            kind = type(leaf[()] if leaf.ndim == 0 else leaf).__name__
            raise TypeError(f"a {kind} is not an array of numbers")
    arrays = [(leaf.dtype.str, leaf.shape) for leaf in leaves]
    header = json.dumps({"tree": structure, "arrays": arrays}).encode()
    contents = (np.ascontiguousarray(leaf).reshape(-1).view(np.uint8) for leaf in leaves if leaf.size)
    parts: list[Any] = [len(header).to_bytes(8, "little"), header, *contents]
    return b"".join([MAGIC, crc32c_bytes(*parts), *parts])


def loads(data: bytes, classes: Mapping[str, type] = MappingProxyType({})) -> Any:
    """Return the tree that `dumps` made these bytes of; ValueError: they were changed, or are something else.

    ``classes`` are those of `factorflow.core.flatten.unflatten`.
    """
    start = len(MAGIC) + CRC_BYTES
    body = data[start:]
    if not data.startswith(MAGIC) or crc32c_bytes(body) != data[len(MAGIC) : start]:
        raise ValueError("checksum mismatch")
    end = 8 + int.from_bytes(body[:8], "little")
    header = json.loads(body[8:end])
    leaves = []
    for dtype, shape in header["arrays"]:
        count = math.prod(shape)
        leaf = np.frombuffer(body, dtype, count, end) if count else np.empty(0, dtype)
        leaves.append(leaf.reshape(shape).copy())  # a copy: aligned as NumPy aligns it
        end += leaf.nbytes
    return unflatten(header["tree"], leaves, classes)
