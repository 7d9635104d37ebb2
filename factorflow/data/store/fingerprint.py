"""The fingerprint of a dataset: sha256 over shapes, names, likelihoods and chunk checksums.

Checksums are those of the decoded values, so that the same data have the same fingerprint whatever version
of the compressor wrote them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from factorflow.data.store.chunks import ChunkedArray
from factorflow.data.store.layout import Manifest, ViewEntry

__all__ = ["Digest", "combine", "digest_names", "recompute"]


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


def combine(
    n_rows: int,
    block_rows: int,
    names: str,
    codes: Mapping[str, NDArray[Any]],
    groups: Iterable[str],
    views: Iterable[tuple[ViewEntry, str, str, str]],
) -> str:
    """Return the fingerprint.

    Parameters
    ----------
    n_rows, block_rows : int
        The grid.
    names : str
        Digest of the sample names.
    codes : mapping of str to (N,) array
        group, sequence and time, where there are any.
    groups : iterable of str
        Names of the groups.
    views : iterable of (entry, names, values, mask)
        Every view with the digests of its feature names, values and mask ("" without one).
    """
    record = {
        "n_rows": n_rows,
        "block_rows": block_rows,
        "obs": names,
        "groups": list(groups),
        "codes": {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in codes.items()},
        "views": [
            [entry.name, entry.likelihood, entry.n_features, entry.dtype, features, values, mask]
            for entry, features, values, mask in views
        ],
    }
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def recompute(
    manifest: Manifest,
    arrays: Mapping[str, tuple[ChunkedArray, ChunkedArray | None]],
    names: Iterable[str],
    codes: Mapping[str, NDArray[Any]],
    features: Callable[[str], Iterable[str]],
) -> str:
    """Return the fingerprint of what is on disk, reading every chunk.

    Parameters
    ----------
    manifest : Manifest
        The grid, groups and views.
    arrays : mapping of str to (ChunkedArray, ChunkedArray or None)
        Values and mask of each view.
    names, codes
        As for `combine`; the names themselves.
    features : callable
        Name of a view -> names of its features.
    """
    views = []
    for entry in manifest.views:
        values, mask = Digest(), Digest()
        stored, observed = arrays[entry.name]
        for number in range(manifest.n_blocks):
            values.add(stored.checksums(number))
            if observed is not None:
                mask.add(observed.checksums(number))
        feature_names = digest_names(features(entry.name))
        views.append((entry, feature_names, values.hex(), mask.hex() if entry.masked else ""))
    return combine(manifest.n_rows, manifest.block_rows, digest_names(names), codes, manifest.groups, views)
