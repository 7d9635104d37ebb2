"""Locations: a path on a disk (`pathlib.Path`) or a name in an object store (`RemotePath`)."""

from __future__ import annotations

import errno
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from factorflow.core.extras import install
from factorflow.errors import InputError
from factorflow.storage.remote import SCHEMES, RemotePath

URL = re.compile(r"[A-Za-z][\w+.-]*://|(?:s3|gs|az|https?|ftp):/")
"""Matches what is not a path; also with one slash, which is what `pathlib.Path` makes of a URL."""
EXAMPLE = "s3://bucket/name.zarr"

Location = Path | RemotePath
L = TypeVar("L", bound=Location)


def as_location(path: str | os.PathLike[str] | RemotePath, parameter: str = "path") -> Location:
    """Return the absolute path, or the name in an object store, that a user's path means.

    URLs of other kinds, incomplete ones, and those with a password are InputErrors.
    """
    if isinstance(path, RemotePath):
        return path
    text = os.fsdecode(path) if isinstance(path, str | os.PathLike) else ""
    if not URL.match(text):
        return local_path(path, parameter)
    scheme, _, remainder = text.partition(":")
    bucket, *names = remainder[2:].rstrip("/").split("/")
    expected, remedy = f"a URL like {EXAMPLE}", ""
    if scheme not in SCHEMES:
        expected = f"a path, or {', '.join(f'{name}://bucket/name' for name in SCHEMES)}"
        remedy = "Mount it, or copy it to a disk or one of these stores."
    elif re.search(r"[@?#]", remainder):
        expected += ", without @, ? or #"
        remedy = f"Leave credentials out of it, they are taken from the environment: {SCHEMES[scheme]}."
    elif not remainder.startswith("//"):
        remedy = f"Write {EXAMPLE}, as text: pathlib.Path takes a slash away."
    elif not bucket or not names or any(name in {"", ".", ".."} for name in names):
        remedy = "Name a bucket and what lies in it."
    else:
        try:
            import obstore  # noqa: F401
        except ImportError:
            expected, remedy = "the package obstore to be installed", install("obstore")
    if remedy:
        raise InputError(parameter, _redact(text), expected, remedy) from None
    return RemotePath(f"{scheme}://{bucket}/{'/'.join(names)}")


def output_location(out: str | os.PathLike[str] | RemotePath, parameter: str = "out") -> Location:
    """Return the location of a result for messages: a relative path stays relative."""
    location = as_location(out, parameter)
    return location if isinstance(location, RemotePath) else Path(os.path.expanduser(out))  # type: ignore[arg-type]


def local_path(path: str | os.PathLike[str], parameter: str = "path") -> Path:
    """Return a path made absolute; ``~`` is the home directory. URLs are refused."""
    try:
        text = os.path.expanduser(os.fsdecode(path))
    except TypeError:
        remedy = "Data in memory are written first: dataset = write_dataset(path, data)."
        raise InputError(parameter, type(path).__name__, "a path", remedy) from None
    _refuse_url(text, parameter)
    if "\0" in text:
        expected = "a path without the character 0"
        raise InputError(parameter, repr(text), expected, "Check where it comes from.")
    return Path(absolute(text, parameter))


def absolute(path: str, parameter: str = "path") -> str:
    """Return a path made absolute; one below a working directory that was deleted is refused."""
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        expected = "an absolute path, since the current directory was deleted"
        raise InputError(parameter, path, expected, "Change to a directory that exists.") from None


def resolve_links(location: L) -> L:
    """Return a path with its symbolic links resolved (what is written replaces their target), or the URL."""
    if isinstance(location, RemotePath):
        return location
    _refuse_url(str(location), "path")
    return Path(os.path.realpath(location))  # type: ignore[return-value]


def source_not_found(path: str | os.PathLike[str], parameter: str) -> InputError:
    """Return the error of a source that does not exist."""
    text, remedy = os.fsdecode(path), "Check the path."
    if URL.match(text):
        remedy = "Copy it to a disk; what is ingested may be at an s3://, gs:// or az:// URL, as text."
    return InputError(parameter, _redact(text), "a file or folder that exists", remedy)


def read_if_present(location: Location) -> bytes | None:
    """Return the content of a file or object; None if there is none."""
    try:
        return location.read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None


def is_remote(path: str) -> bool:
    """Return whether a location, as text, is the URL of an object store."""
    return path.partition("://")[0] in SCHEMES


def list_names(location: Location) -> set[str]:
    """Return the relative names of all files, or objects, below a location."""
    if isinstance(location, RemotePath):
        return location.list_names()
    prefix, walk = len(str(location)) + 1, os.walk(location)
    return {os.path.join(folder, name)[prefix:] for folder, _, names in walk for name in names}


def modified_at(location: Location) -> datetime:
    """Return when a file or object, or the ``zarr.json`` of a store, was written."""
    if isinstance(location, Path):
        return datetime.fromtimestamp(os.stat(location).st_mtime, UTC)
    version = location.version() or (location / "zarr.json").version()
    if not version:
        raise FileNotFoundError(errno.ENOENT, "No such object", str(location))
    modified: datetime = version[2]
    return modified


def _redact(text: str) -> str:
    """Return a path or URL as errors may show it: only the scheme of a URL that can hold a password."""
    hidden = URL.match(text) and re.search(r"[@?#]", text)
    return text.partition(":")[0] + "://..." if hidden else text


def _refuse_url(text: str, parameter: str) -> None:
    if URL.match(text):
        remedy = "Mount it, or copy it from and to there."
        raise InputError(parameter, _redact(text), "a path on a disk", remedy)
