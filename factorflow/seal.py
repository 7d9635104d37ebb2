"""The seal of a store: checksums of all it holds, in the attributes of its root, and one over those.

A Zarr group says nothing of what belongs to it: of an array whose folder is gone, a chunk that was never
written or a damaged ``zarr.json`` a reader learns nothing, or takes fill values for data. A dataset and a
posterior are sealed when they are complete; what is read of them is compared (`factorflow.checked`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Container, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from factorflow.errors import InputError
from factorflow.files import write_scratch
from factorflow.place import Remote, at_once, is_remote, listed

__all__ = ["CRC_BYTES", "SEAL_ATTRIBUTES", "Seal", "has_checksum", "seal", "signature"]

CONTENTS, SIGNATURE = "contents", "signature"

SEAL_ATTRIBUTES = (CONTENTS, SIGNATURE)
"""Attributes of the root that hold the seal: no part of what was stored."""

METADATA = "zarr.json"
_known: dict[str, bytes] = {}
"""Metadata that were compared, by checksum: where a request takes long they are not asked for again."""
MOST_KNOWN = 10_000

CRC_BYTES = 4
"""Every chunk ends with the crc32c of what comes before: the last codec of all arrays."""


def signature(document: Mapping[str, Any]) -> str:
    """Return a checksum (sha256, hex) of a JSON document, however it is laid out."""
    return _digest(json.dumps(document, sort_keys=True).encode())


def has_checksum(chunk: Any) -> bool:
    """Return whether a chunk, as bytes or an array of bytes, ends with its checksum."""
    import google_crc32c

    if len(chunk) < CRC_BYTES:
        return False
    end = int.from_bytes(bytes(chunk[-CRC_BYTES:]), "little")
    return bool(google_crc32c.value(chunk[:-CRC_BYTES]) == end)


def seal(store: str | os.PathLike[str]) -> None:
    """Write into the root of a complete store what it holds; files that are no part of it are removed.

    Raises
    ------
    InputError
        If a chunk was never written.
    """
    root = os.fspath(store)
    contents = {node: _described(root, node, tidy=True) for node in _nodes(root)}
    file = Path(root, METADATA)
    document = json.loads(file.read_text(encoding="utf-8"))
    kept = {key: value for key, value in document["attributes"].items() if key != SIGNATURE}
    document["attributes"] = kept | {CONTENTS: json.dumps(contents)}
    document["attributes"][SIGNATURE] = signature(document)
    write_scratch(file, json.dumps(document, indent=2).encode(), durable=True)


@dataclass(frozen=True)
class Seal:
    """What a sealed store holds.

    Parameters
    ----------
    path : str
        The store.
    contents : mapping of str to list of str
        By path of a group or array: the checksum of its ``zarr.json`` and, of an array, one over the
        checksums of its chunks.
    remedy : str
        What to do about damage.
    """

    path: str
    contents: Mapping[str, list[str]]
    remedy: str

    @classmethod
    def of(cls, path: str, document: Mapping[str, Any], remedy: str) -> Seal:
        """Return the seal in the ``zarr.json`` of a store's root.

        Raises
        ------
        InputError
            If it is not the one that this document was sealed with.
        """
        attributes = dict(document["attributes"])
        found = attributes.pop(SIGNATURE, None)
        if found is None or signature({**document, "attributes": attributes}) != found:
            value = "no checksum of its own" if found is None else "another checksum"
            raise _changed(f"{path}/{METADATA}", value, "the metadata as they were written", remedy)
        return cls(path, json.loads(attributes[CONTENTS]), remedy)

    def check_metadata(self, node: str, data: bytes | None) -> None:
        """Refuse the ``zarr.json`` of a group or array unless it is as it was written; None: not there.

        Raises
        ------
        InputError
            Naming the file.
        """
        if data is not None and _digest(data) == self.contents[node][0]:
            _known[self.contents[node][0]] = data
            if len(_known) > MOST_KNOWN:
                _known.clear()
        else:
            value = "is missing" if data is None else "another checksum"
            file = os.path.join(self.path, node, METADATA)
            raise _changed(file, value, "the metadata as they were written", self.remedy)

    def known_metadata(self, node: str) -> bytes | None:
        """Return the ``zarr.json`` of a group or array if this process has seen it, in whatever store."""
        return _known.get(self.contents[node][0])

    def check_complete(self) -> None:
        """Compare all metadata, and look whether every chunk is there; none is read.

        Raises
        ------
        InputError
            Naming the first file that is changed or missing.
        """
        self._complete()

    def verify(self) -> None:
        """Read everything and compare it.

        Raises
        ------
        InputError
            Naming the first file that is changed or missing.
        """
        remote = is_remote(self.path)
        for node, chunks in self._complete().items():
            ends = hashlib.sha256()
            for chunk, content in zip(chunks, at_once(remote, _content, chunks), strict=True):
                if not has_checksum(content):
                    raise _changed(chunk, "a wrong checksum", "a whole chunk", self.remedy)
                ends.update(content[-CRC_BYTES:])
            if self.contents[node][1:] not in ([], [ends.hexdigest()]):
                expected, folder = "the chunks that were written with it", os.path.join(self.path, node, "c")
                raise _changed(folder, "a chunk of another array", expected, self.remedy)

    def _complete(self) -> dict[str, list[str]]:
        """Return the chunks of every group and array, which are as they were written and have them all."""
        folders = {node: os.path.join(self.path, node) for node in self.contents}
        there, found = listed(self.path), dict[str, list[str]]()
        read = at_once(is_remote(self.path), _metadata_or_none, folders.values())
        for (node, folder), data in zip(folders.items(), read, strict=True):
            self.check_metadata(node, data)
            assert data is not None
            found[node] = _chunks(folder, data)
            _check_there(found[node], there, "every chunk to be there", self.remedy)
        return found


def _changed(file: str | Path, value: str, expected: str, remedy: str) -> InputError:
    return InputError(f"file {file}", value, expected, remedy)


def _check_there(chunks: list[str], there: Container[str], expected: str, remedy: str) -> None:
    missing = [chunk for chunk in chunks if chunk not in there]
    if missing:
        what = f"is missing, one of {len(missing)} chunks of {len(chunks)}"
        raise _changed(missing[0], what, expected, remedy)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _nodes(root: str) -> list[str]:
    """Return the paths of all groups and arrays below the root."""
    found = []
    for folder, directories, files in os.walk(root):
        if METADATA in files:
            if folder != root:
                found.append(os.path.relpath(folder, root))
            if json.loads(_metadata(folder))["node_type"] == "array":
                directories.clear()
    return sorted(found)


def _described(root: str, node: str, *, tidy: bool = False) -> list[str]:
    """Return the checksums of a group or array; ``tidy``: remove from it what is no part of it."""
    folder = os.path.join(root, node)
    data = _metadata(folder)
    if json.loads(data)["node_type"] != "array":
        return [_digest(data)]
    chunks, there = _chunks(folder, data), _found(folder)
    if tidy:
        for stray in there.difference(chunks):
            os.unlink(stray)
    remedy = "It was deleted, or the disk lost it: run anew with overwrite=True."
    _check_there(chunks, there, "every chunk to be written", remedy)
    ends = hashlib.sha256()
    for chunk in chunks:
        ends.update(_last_bytes(chunk))
    return [_digest(data), ends.hexdigest()]


def _last_bytes(chunk: str) -> bytes:
    descriptor = os.open(chunk, os.O_RDONLY)
    try:
        return os.pread(descriptor, CRC_BYTES, max(0, os.fstat(descriptor).st_size - CRC_BYTES))
    finally:
        os.close(descriptor)


def _metadata(folder: str) -> bytes:
    return _content(os.path.join(folder, METADATA))


def _metadata_or_none(folder: str) -> bytes | None:
    try:
        return _metadata(folder)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def _content(file: str) -> bytes:
    if is_remote(file):
        return Remote(file).read_bytes()
    with open(file, "rb") as opened:
        return opened.read()


def _chunks(folder: str, metadata: bytes) -> list[str]:
    """Return the files that the chunks of an array are to be in; a group has none."""
    document = json.loads(metadata)
    if document["node_type"] != "array":
        return []
    sizes = document["chunk_grid"]["configuration"]["chunk_shape"]
    grid = [-(-size // chunk) for size, chunk in zip(document["shape"], sizes, strict=True)]
    return [os.path.join(folder, "c", *map(str, place)) for place in product(*map(range, grid))]


def _found(folder: str) -> set[str]:
    """Return the files that are where the chunks of an array are to be."""
    chunks = os.path.join(folder, "c")
    there = listed(chunks)
    if os.path.isfile(chunks):  # of an array without dimensions
        there.add(chunks)
    return there
