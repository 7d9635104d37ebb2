"""Checksums: CRC32C of chunks, SHA-256 of metadata, and the manifest of a store that holds them.

A Zarr group does not say what belongs to it: a missing array, an unwritten chunk or a damaged ``zarr.json``
goes unnoticed, or fill values are taken for data. So the root of a complete dataset or posterior has an
attribute with the checksums of all that it holds, and one with a checksum of the root itself.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from factorflow.errors import InputError, OptionText
from factorflow.storage.local import atomic_write
from factorflow.storage.location import Location, list_names, read_if_present
from factorflow.storage.remote import RemotePath, map_concurrently

CONTENTS, SIGNATURE = CHECKSUM_ATTRIBUTES = "contents", "signature"
"""Attributes of the root with the checksums: not part of what was stored."""
ROOT = ""
"""Among the contents: the names of the root's attributes. What users add to the root is none of them."""
METADATA = "zarr.json"
CONSOLIDATED = "consolidated_metadata"
"""Key of the root's metadata under which Zarr keeps those of all groups and arrays."""
CRC_BYTES = 4
"""Every chunk ends with the CRC32C of what comes before: the last codec of all arrays."""
LOST = OptionText("The file was deleted or lost: run again with {overwrite}.", overwrite=True)

_verified: dict[str, bytes] = {}
"""Verified metadata by checksum: object stores are not asked for them again."""
MAX_VERIFIED = 10_000

Chunks = tuple[list[str], int | None]
"""Names of the chunks of an array in its store, and the bytes of each where they are known."""


def crc32c(*parts: Any) -> int:
    """Return the CRC32C of the bytes of buffers, or C-contiguous arrays, one after the other."""
    import google_crc32c

    total = 0
    for part in parts:
        total = google_crc32c.extend(total, part)
    return total


def crc32c_bytes(*parts: Any) -> bytes:
    """Return the CRC32C as it is stored: four bytes, little endian."""
    return crc32c(*parts).to_bytes(CRC_BYTES, "little")


def chunk_damage(chunk: Any, size: int | None = None) -> str:
    """Describe the damage of a chunk of ``size`` bytes; "" if it is intact."""
    if size not in (None, len(chunk)):
        return f"{len(chunk)} bytes instead of {size}"
    whole = len(chunk) > CRC_BYTES and crc32c_bytes(chunk[:-CRC_BYTES]) == bytes(chunk[-CRC_BYTES:])
    return "" if whole else "checksum mismatch"


def chunks_of(name: str, metadata: Mapping[str, Any], sizes: Mapping[str, int] | None = None) -> Chunks:
    """Return the chunks of an array with these metadata; with ``sizes`` by dimension those up to there."""
    if metadata["node_type"] != "array":
        return [], None
    chunk = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    dims = metadata.get("dimension_names") or [None] * len(chunk)
    shape = [(sizes or {}).get(dim, size) for dim, size in zip(dims, metadata["shape"], strict=True)]
    grid = product(*(range(-(-size // step)) for size, step in zip(shape, chunk, strict=True)))
    plain = [codec["name"] for codec in metadata["codecs"]] == ["bytes", "crc32c"]
    size = np.dtype(metadata["data_type"]).itemsize * math.prod(chunk) + CRC_BYTES if plain else None
    return ["/".join((name, "c", *map(str, index))) for index in grid], size


def signature(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of a JSON document, however it is laid out."""
    return _sha256(json.dumps(document, sort_keys=True).encode())


def write_manifest(
    store: str | os.PathLike[str],
    *,
    verify: bool = False,
    consolidate: bool = False,
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """Write the checksums of a complete store into its root; files that do not belong to it are deleted.

    A chunk that was never written is an InputError, and with ``verify``, which reads all, a damaged one. With
    ``consolidate`` the root repeats all metadata (Zarr's consolidated metadata): others need not be read.
    ``attributes`` take the place of those that the root has by these names, in the same moment.
    """
    root, present = Path(store), list_names(Path(store))
    contents, arrays, metadata_by_node = {}, dict[str, set[str]](), dict[str, Any]()
    for node in sorted(n.removesuffix(f"/{METADATA}") for n in present if n.endswith(f"/{METADATA}")):
        metadata = (root / node / METADATA).read_bytes()
        contents[node], document = [_sha256(metadata)], json.loads(metadata)
        metadata_by_node[node] = document
        if document["node_type"] == "array":
            chunks = chunks_of(node, document)
            _check_present(root, chunks[0], present, LOST)
            unread = map(_last_bytes, map(root.joinpath, chunks[0]))
            contents[node].append(_sha256(b"".join(_ends(root, chunks, LOST) if verify else unread)))
            arrays[node] = set(chunks[0])
    for name in present:
        if name not in arrays.get(f"{name}/".rpartition("/c/")[0], {name}):
            (root / name).unlink()
    document = json.loads((root / METADATA).read_text(encoding="utf-8"))
    document["attributes"] |= attributes or {}
    document["attributes"].pop(SIGNATURE, None)
    document.pop(CONSOLIDATED, None)
    contents[ROOT] = sorted({*document["attributes"], CONTENTS})
    document["attributes"][CONTENTS] = json.dumps(contents)
    document["attributes"][SIGNATURE] = signature(document)
    if consolidate:
        document[CONSOLIDATED] = {"kind": "inline", "must_understand": False, "metadata": metadata_by_node}
    atomic_write(root / METADATA, json.dumps(document, indent=2).encode(), durable=True)


@dataclass(frozen=True)
class ChecksumManifest:
    """The checksums of a complete store.

    Parameters
    ----------
    contents : mapping of str to list of str
        By name of a group or array: the checksum of its ``zarr.json`` and, of an array, one over those of its
        chunks.
    consolidated : mapping of str to dict, or None
        Metadata by group or array that the root repeats, whoever wrote them.
    """

    location: Location
    contents: Mapping[str, list[str]]
    remedy: str
    consolidated: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_root(cls, location: Location, document: Mapping[str, Any], remedy: str) -> ChecksumManifest:
        """Return the manifest in the ``zarr.json`` of a root; an InputError if that was changed since.

        Attributes and consolidated metadata that were added are left alone.
        """
        attributes = dict(document["attributes"])
        stored = attributes.pop(SIGNATURE, None)
        try:
            contents = json.loads(attributes[CONTENTS])
            names = contents.pop(ROOT, list(attributes))
            signed = {name: attributes[name] for name in names if name in attributes}
        except (KeyError, ValueError, TypeError, AttributeError):
            contents, signed = {}, attributes
        own_attributes = {name: value for name, value in document.items() if name != CONSOLIDATED}
        if stored is None or signature({**own_attributes, "attributes": signed}) != stored:
            value = "no checksum of its own" if stored is None else "another checksum"
            expected = "the metadata as they were written"
            raise InputError(f"file {location / METADATA}", value, expected, remedy)
        consolidated = document.get(CONSOLIDATED)
        metadata = consolidated.get("metadata") if isinstance(consolidated, dict) else None
        manifest = cls(location, contents, remedy, metadata if isinstance(metadata, dict) else None)
        if isinstance(location, RemotePath):
            manifest._take()
        return manifest

    def _take(self) -> None:
        """Mark consolidated metadata as verified if they equal the written bytes."""
        for node in {*self.contents} & {*(self.consolidated or ())}:
            data = json.dumps((self.consolidated or {})[node], indent=2).encode()  # as Zarr writes them
            if _sha256(data) == self.contents[node][0]:
                self.check_metadata(node, data)

    def _check_consolidated(self, node: str, metadata: Mapping[str, Any]) -> None:
        """Refuse consolidated metadata that differ: other readers use only those."""
        if self.consolidated is None:
            return
        stored = self.consolidated.get(node)
        if not isinstance(stored, dict) or _without_consolidated(stored) != _without_consolidated(metadata):
            value, expected = f"another checksum of {node} in {CONSOLIDATED}", "those of the group or array"
            remedy = f"{self.remedy} Or write them anew: zarr.consolidate_metadata({str(self.location)!r})."
            raise InputError(f"file {self.location / METADATA}", value, expected, remedy)

    def check_metadata(self, node: str, data: bytes | None) -> None:
        """Refuse the ``zarr.json`` of a group or array that is not as it was written; None: it is missing."""
        if data is None or _sha256(data) != self.contents[node][0]:
            value = "is missing" if data is None else "another checksum"
            file, expected = self.location / node / METADATA, "the metadata as they were written"
            raise InputError(f"file {file}", value, expected, self.remedy)
        if len(_verified) >= MAX_VERIFIED:
            _verified.clear()
        _verified[self.contents[node][0]] = data

    def verified_metadata(self, node: str) -> bytes | None:
        """Return the ``zarr.json`` of a group or array if this process has verified it, in whatever store."""
        return _verified.get(self.contents[node][0])

    def check_complete(self, *, reread: bool = False) -> dict[str, Chunks]:
        """Return the chunks by group or array; an InputError names a file that is changed or missing.

        Of an object store, metadata that this process has verified are read with ``reread`` alone.
        """
        present, chunks = list_names(self.location), dict[str, Chunks]()
        remote = isinstance(self.location, RemotePath)

        def metadata(node: str) -> bytes | None:
            verified = self.verified_metadata(node) if remote and not reread else None
            is_verified = verified and f"{node}/{METADATA}" in present
            return verified if is_verified else read_if_present(self.location / node / METADATA)

        for node, data in zip(self.contents, map_concurrently(remote, metadata, self.contents), strict=True):
            self.check_metadata(node, data)
            assert data is not None
            document = json.loads(data)
            self._check_consolidated(node, document)
            chunks[node] = chunks_of(node, document)
            _check_present(self.location, chunks[node][0], present, self.remedy)
        return chunks

    def verify(self) -> None:
        """Read everything and compare it with the checksums; raises as `check_complete`."""
        for node, chunks in self.check_complete(reread=True).items():
            ends = _sha256(b"".join(_ends(self.location, chunks, self.remedy)))
            if self.contents[node][1:] not in ([], [ends]):
                folder, expected = self.location / node / "c", "the chunks that were written with it"
                raise InputError(f"file {folder}", "a chunk of another array", expected, self.remedy)


def verify_new_store(folder: Path) -> None:
    """Verify a store that is about to replace another, if it has checksums: nothing good is replaced else."""
    if (folder / METADATA).exists():
        document = json.loads((folder / METADATA).read_bytes())
        if SIGNATURE in document.get("attributes", {}):
            ChecksumManifest.from_root(folder, document, "Nothing was replaced: write it again.").verify()


def _without_consolidated(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata without the consolidated metadata that Zarr adds to groups."""
    return {name: value for name, value in metadata.items() if name != CONSOLIDATED}


def _check_present(root: Location, chunks: list[str], present: set[str], remedy: str) -> None:
    missing = [chunk for chunk in chunks if chunk not in present]
    if missing:
        value = f"is missing, one of {len(missing)} chunks of {len(chunks)}"
        raise InputError(f"file {root / missing[0]}", value, "every chunk to be there", remedy)


def _ends(root: Location, chunks: Chunks, remedy: str) -> Iterator[bytes]:
    """Read chunks, verify them, and yield their checksums."""

    def read(name: str) -> bytes:
        content = (root / name).read_bytes()
        if damage := chunk_damage(content, chunks[1]):
            raise InputError(f"file {root / name}", damage, "an intact chunk", remedy)
        return content[-CRC_BYTES:]

    return map_concurrently(isinstance(root, RemotePath), read, chunks[0])


def _last_bytes(file: Path) -> bytes:
    with file.open("rb", buffering=0) as opened:
        opened.seek(-min(CRC_BYTES, os.fstat(opened.fileno()).st_size), os.SEEK_END)
        return opened.read()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
