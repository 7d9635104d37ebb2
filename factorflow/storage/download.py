"""Sources in an object store, downloaded while they are read: their readers need files."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from factorflow.errors import InputError
from factorflow.storage.local import check_space
from factorflow.storage.location import as_location, is_remote, source_not_found
from factorflow.storage.remote import RemotePath, map_concurrently


@contextmanager
def as_local_source(source: Any, near: Path | None = None, parameter: str = "source") -> Iterator[Any]:
    """Yield a user's source with downloaded files in place of its URLs; errors that name a file name its URL.

    Parameters
    ----------
    source : object
        A URL, or a mapping or list with some among its values; everything else is yielded as it is.
    near : Path, optional
        Directory whose disk takes the files; that of temporary files if left out.
    """
    is_list = isinstance(source, list | tuple) and bool(source)
    items = source if isinstance(source, Mapping) else dict(enumerate(source if is_list else [source]))
    urls = {key: url for key, url in items.items() if isinstance(url, RemotePath) or _is_url(url)}
    if not urls:
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="factorflow-source-", dir=near) as scratch:
        files = {}
        for number, (key, url) in enumerate(urls.items()):
            folder = Path(scratch, str(number))
            folder.mkdir()
            files[key] = str(_download(as_location(url, parameter), folder, parameter))  # type: ignore[arg-type]
        local = {**items, **files}
        try:
            yield local if isinstance(source, Mapping) else list(local.values()) if is_list else local[0]
        except InputError as error:
            texts = [error.parameter, error.value, error.expected, error.remedy]
            for key, url in urls.items():
                texts = [t.replace(files[key], str(url)) if isinstance(t, str) else t for t in texts]
            raise InputError(*texts) from error  # type: ignore[arg-type]


def remote_fingerprint(source: RemotePath) -> str:
    """Return the SHA-256 (hex) of the names, sizes and ETags of an object, or of all below a name."""
    digest = hashlib.sha256()
    for name, (tag, _, _, size) in _objects(source, "source").items():
        digest.update(f"{name}\0{size}\0{tag}\0".encode())
    return digest.hexdigest()


def _is_url(source: Any) -> bool:
    return isinstance(source, str | os.PathLike) and is_remote(os.fsdecode(source))


def _objects(source: RemotePath, parameter: str) -> dict[str, tuple[Any, ...]]:
    """Return the versions of the objects of a source by relative name; of a single one the name is empty."""
    if version := source.version():
        return {"": version}
    names = sorted(source.list_names())
    if not names:
        raise source_not_found(str(source), parameter)
    versions = map_concurrently(True, lambda name: (source / name).version(), names)
    return {name: version or ("", None, None, 0) for name, version in zip(names, versions, strict=True)}


def _download(source: RemotePath, folder: Path, parameter: str) -> Path:
    """Download a source into a directory, under its own name; return where it is."""
    target, objects = folder / source.name, _objects(source, parameter)
    check_space(folder, sum(size for *_, size in objects.values()))
    for name in objects:
        file, location = (target / name, source / name) if name else (target, source)
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            location.download(file)
        except FileNotFoundError as error:
            expected = "an object that stays there while it is read"
            raise InputError(parameter, str(location), expected, "Then try again.") from error
    return target
