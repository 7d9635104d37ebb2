"""Sources that lie in an object store, brought to a disk while they are read: their readers need files."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from factorflow.disk import no_source
from factorflow.errors import InputError
from factorflow.files import check_space
from factorflow.place import Remote, as_place, at_once, is_remote

__all__ = ["fetched", "remote_fingerprint"]


@contextmanager
def fetched(source: Any, near: Path | None = None, parameter: str = "source") -> Iterator[Any]:
    """Yield what a user hands over as a source, with files of a disk in place of its URLs.

    Parameters
    ----------
    source : object
        A URL, or a mapping or list with some among its values; all else is yielded as it is.
    near : Path, optional
        Folder whose disk takes the files meanwhile; that for temporary files if left out.
    parameter : str
        What errors call it.

    Raises
    ------
    InputError
        If there is nothing, it cannot be read, or is replaced meanwhile. Errors of the body that name a file
        name its URL.
    """
    several = isinstance(source, Mapping) or (isinstance(source, list | tuple) and source)
    given = _by_key(source) if several else {None: source}
    urls = {key: url for key, url in given.items() if isinstance(url, Remote) or _is_url(url)}
    if not urls:
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="factorflow-source-", dir=near) as scratch:
        files: dict[Any, str] = {}
        for number, (key, url) in enumerate(urls.items()):
            folder = Path(scratch, str(number))
            folder.mkdir()
            files[key] = str(_download(as_place(url, parameter), folder, parameter))  # type: ignore[arg-type]
        try:
            found = {**given, **files}
            yield found if isinstance(source, Mapping) else list(found.values()) if several else found[None]
        except InputError as error:
            raise _renamed(error, {files[key]: str(url) for key, url in urls.items()}) from error


def remote_fingerprint(source: Remote) -> str:
    """Return the sha256 (hex) of the names, sizes and versions (ETags) of an object, or of all within a name.

    Nothing is downloaded.

    Raises
    ------
    InputError
        If there is nothing there.
    """
    digest, found = hashlib.sha256(), _objects(source, "source")
    for name, (tag, _, _, size) in zip(found, _versions(found.values()), strict=True):
        digest.update(f"{name}\0{size}\0{tag}\0".encode())
    return digest.hexdigest()


def _by_key(source: Mapping[Any, Any] | Sequence[Any]) -> dict[Any, Any]:
    return dict(source) if isinstance(source, Mapping) else dict(enumerate(source))


def _versions(places: Iterable[Remote]) -> Iterator[tuple[Any, ...]]:
    """Return what tells objects from others in their places; one that is gone since has a size of 0."""
    found = at_once(True, lambda place: place.version(), places)
    return (version or ("", None, None, 0) for version in found)


def _is_url(source: Any) -> bool:
    return isinstance(source, str | os.PathLike) and is_remote(os.fsdecode(source))


def _objects(source: Remote, parameter: str) -> dict[str, Remote]:
    """Return the objects of a source by their names within it; of a single one the name is empty."""
    if source.version():
        return {"": source}
    found = {url.removeprefix(f"{source}/"): Remote(url) for url in sorted(source.within())}
    if not found:
        raise no_source(str(source), parameter)
    return found


def _download(source: Remote, folder: Path, parameter: str) -> Path:
    """Bring a source into a folder, under its own name; return where it is."""
    target, found = folder / source.name, _objects(source, parameter)
    check_space(folder, sum(size for *_, size in _versions(found.values())))
    for name, place in found.items():
        file = target / name if name else target
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            place.download(file)
        except FileNotFoundError as error:
            expected = "an object that stays there while it is read"
            raise InputError(parameter, str(place), expected, "Then try again.") from error
    return target


def _renamed(error: InputError, names: Mapping[str, str]) -> InputError:
    """Return an error in which files of the disk have the names that they have in the store."""

    def renamed(text: Any) -> Any:
        for file, url in names.items():
            text = text.replace(file, url) if isinstance(text, str) else text
        return text

    value, expected = renamed(error.value), renamed(error.expected)
    return InputError(renamed(error.parameter), value, expected, renamed(error.remedy))
