"""Text files: their endings, and opening them decompressed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO, cast

from factorflow.errors import InputError

COMPRESSED = frozenset({".gz", ".bz2", ".xz", ".zip", ".zst"})


def table_ending(path: Path) -> str:
    """Return the ending of a file in lower case, without that of its compression."""
    compressed = path.suffix.lower() in COMPRESSED
    return (path.with_suffix("") if compressed else path).suffix.lower()


def open_binary(path: Path) -> IO[bytes]:
    """Open a file, decompressed by its ending in whatever case."""
    ending = path.suffix.lower()
    if ending == ".gz":
        import gzip

        return cast("IO[bytes]", gzip.open(path, "rb"))
    if ending == ".bz2":
        import bz2

        return bz2.open(path, "rb")
    if ending == ".xz":
        import lzma

        return lzma.open(path, "rb")
    if ending == ".zst":
        import pyarrow as pa

        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return _only_member(path) if ending == ".zip" else path.open("rb")


def _only_member(path: Path) -> IO[bytes]:
    """Open the only file in a ZIP archive."""
    import zipfile

    archive = zipfile.ZipFile(path)
    names = [name for name in archive.namelist() if not name.endswith("/") and "__MACOSX" not in name]
    if len(names) != 1:
        archive.close()
        expected = "an archive of one table"
        raise InputError(f"file {path}", ", ".join(names[:5]) or "empty", expected, "Unpack it.")
    return archive.open(names[0])


def open_text(path: Path, encoding: str) -> IO[str]:
    """Open a text table; line ends stay as they are, since a field may hold one."""
    return io.TextIOWrapper(open_binary(path), encoding=encoding, newline="")
