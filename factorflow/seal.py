"""The seal of a store: checksums of all it holds, in the attributes of its root, and one over those.

A Zarr group says nothing of what belongs to it: of an array whose folder is gone, a chunk that was never
written or a damaged ``zarr.json`` a reader learns nothing, or takes fill values for data. A dataset and a
posterior are sealed when they are complete; what is read of them is compared (`factorflow.checked`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from factorflow.errors import InputError
from factorflow.files import write_scratch

__all__ = ["CRC_BYTES", "SEAL_ATTRIBUTES", "Seal", "has_checksum", "seal", "signature"]

CONTENTS, SIGNATURE = "contents", "signature"

SEAL_ATTRIBUTES = (CONTENTS, SIGNATURE)
"""Attributes of the root that hold the seal: no part of what was stored."""

METADATA = "zarr.json"
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
    root = Path(store)
    contents = {node: _described(root, node, tidy=True) for node in _nodes(root)}
    file = root / METADATA
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
    def of(cls, path: str | os.PathLike[str], document: Mapping[str, Any], remedy: str) -> Seal:
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
            raise _changed(Path(path, METADATA), value, "the metadata as they were written", remedy)
        return cls(str(path), json.loads(attributes[CONTENTS]), remedy)

    def check_metadata(self, node: str, data: bytes | None) -> None:
        """Refuse the ``zarr.json`` of a group or array unless it is as it was written; None: not there.

        Raises
        ------
        InputError
            Naming the file.
        """
        if data is None or _digest(data) != self.contents[node][0]:
            value = "is missing" if data is None else "another checksum"
            file = Path(self.path, node, METADATA)
            raise _changed(file, value, "the metadata as they were written", self.remedy)

    def check_complete(self) -> None:
        """Compare all metadata, and look whether every chunk is there; none is read.

        Raises
        ------
        InputError
            Naming the first file that is changed or missing.
        """
        for node in self.contents:
            self._check_node(node)
            missing, total = _missing(Path(self.path), node)
            if missing:
                what = f"is missing, one of {len(missing)} chunks of {total}"
                raise _changed(missing[0], what, "every chunk to be there", self.remedy)

    def verify(self) -> None:
        """Read everything and compare it.

        Raises
        ------
        InputError
            Naming the first file that is changed or missing.
        """
        self.check_complete()
        root = Path(self.path)
        for node, found in self.contents.items():
            for chunk in _chunks(root, node):
                if not has_checksum(chunk.read_bytes()):
                    raise _changed(chunk, "a wrong checksum", "a whole chunk", self.remedy)
            if found != _described(root, node):
                expected = "the chunks that were written with it"
                raise _changed(root / node / "c", "a chunk of another array", expected, self.remedy)

    def _check_node(self, node: str) -> None:
        try:
            data = Path(self.path, node, METADATA).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            data = None
        self.check_metadata(node, data)


def _changed(file: Path, value: str, expected: str, remedy: str) -> InputError:
    return InputError(f"file {file}", value, expected, remedy)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _nodes(root: Path) -> list[str]:
    """Return the paths of all groups and arrays below the root."""
    found = []
    for folder, directories, files in os.walk(root):
        if METADATA in files:
            if folder != str(root):
                found.append(os.path.relpath(folder, root))
            if _metadata(Path(folder))["node_type"] == "array":
                directories.clear()
    return sorted(found)


def _described(root: Path, node: str, *, tidy: bool = False) -> list[str]:
    """Return the checksums of a group or array; ``tidy``: remove from it what is no part of it."""
    found = [_digest((root / node / METADATA).read_bytes())]
    if _metadata(root / node)["node_type"] != "array":
        return found
    missing, total = _missing(root, node, tidy=tidy)
    if missing:
        remedy = "It was deleted, or the disk lost it: run anew with overwrite=True."
        what = f"is missing, one of {len(missing)} chunks of {total}"
        raise _changed(missing[0], what, "every chunk to be written", remedy)
    chunks = hashlib.sha256()
    for chunk in _chunks(root, node):
        chunks.update(_last_bytes(chunk))
    return [*found, chunks.hexdigest()]


def _last_bytes(chunk: Path) -> bytes:
    descriptor = os.open(chunk, os.O_RDONLY)
    try:
        return os.pread(descriptor, CRC_BYTES, max(0, os.fstat(descriptor).st_size - CRC_BYTES))
    finally:
        os.close(descriptor)


def _metadata(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / METADATA).read_text(encoding="utf-8"))
    return found


def _chunks(root: Path, node: str) -> Iterator[Path]:
    """Yield the files that the chunks of an array are to be in; a group has none."""
    metadata = _metadata(root / node)
    if metadata["node_type"] != "array":
        return
    sizes = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    grid = [-(-size // chunk) for size, chunk in zip(metadata["shape"], sizes, strict=True)]
    for place in product(*map(range, grid)):
        yield Path(root, node, "c", *map(str, place))


def _missing(root: Path, node: str, *, tidy: bool = False) -> tuple[list[Path], int]:
    """Return the chunks that an array lacks, and how many there should be; ``tidy``: remove other files."""
    wanted = list(_chunks(root, node))
    there = {Path(inner, file) for inner, _, files in os.walk(root / node / "c") for file in files}
    if (root / node / "c").is_file():  # of an array without dimensions
        there.add(root / node / "c")
    if tidy:
        for stray in there.difference(wanted):
            stray.unlink()
    return [chunk for chunk in wanted if chunk not in there], len(wanted)
