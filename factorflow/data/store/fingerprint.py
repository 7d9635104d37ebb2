"""The fingerprint of a dataset: sha256 over shapes, names, likelihoods and chunk checksums.

Checksums are those of the decoded values, so that the same data have the same fingerprint whatever version
of the compressor wrote them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.design import TableDesign
from factorflow.data.store.layout import ViewEntry


class Digest:
    """Collects the chunk checksums of one array, in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, checksums: Iterable[int]) -> None:
        """Add the checksums of the tiles of one block."""
        for value in checksums:
            self._hash.update(value.to_bytes(4, "little"))

    def hex(self) -> str:
        """Return the digest so far."""
        return self._hash.hexdigest()


def digest_names(names: Iterable[str]) -> str:
    """Return a digest of names in order."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode("utf-8") + b"\0")
    return digest.hexdigest()


def digest_column(values: NDArray[Any]) -> str:
    """Return a digest of a column of the sample metadata: of its type and its values in order."""
    if values.dtype.kind in "OUT":
        return digest_names(map(str, values.tolist()))
    plain = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return hashlib.sha256(plain.dtype.str.encode() + plain.tobytes()).hexdigest()


def combine(
    n_rows: int,
    block_rows: int,
    names: str | None,
    codes: Mapping[str, str],
    joined: NDArray[np.bool_],
    groups: Iterable[str],
    views: Iterable[tuple[ViewEntry, str, str, str]],
    design: TableDesign | None = None,
) -> str:
    """Return the fingerprint.

    Parameters
    ----------
    names : str or None
        Digest of the sample names; None: they have none.
    codes : mapping of str to str
        Digests of group, sequence and time, where there are any.
    joined : (n_blocks,) bool array
        Where a sequence runs from one block into the next.
    views : iterable of (entry, names, values, mask)
        Every view with the digests of its feature names, values and mask ("" without one).
    """
    record: dict[str, Any] = {
        "n_rows": n_rows,
        "block_rows": block_rows,
        "obs": names,
        "groups": list(groups),
        "codes": dict(codes),
        "joined": hashlib.sha256(joined.tobytes()).hexdigest(),
        "views": [
            [entry.name, entry.likelihood, entry.n_features, entry.dtype, features, values, mask]
            + [entry.default_likelihood] * bool(entry.default_likelihood)
            for entry, features, values, mask in views
        ],
    }
    if design is not None:
        record["design"] = asdict(design)
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
