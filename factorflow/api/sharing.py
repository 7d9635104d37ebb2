"""Opening a shared posterior: downloaded to the cache folder if need be, verified, then opened."""

from __future__ import annotations

import json
import os
import shutil
import uuid
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, build_opener

from factorflow.api.inputs import cache_folder, keep
from factorflow.api.posterior import Posterior, open_posterior
from factorflow.engine.progress import LOGGER
from factorflow.errors import InputError
from factorflow.storage.checksums import METADATA, SIGNATURE, ChecksumManifest, chunks_of
from factorflow.storage.location import as_location, is_remote
from factorflow.storage.remote import RemotePath, map_concurrently

EXPECTED = "a posterior: a folder that factorflow.fit wrote, or a .zip file of one"
AGAIN = "Download it again, or ask who shared it."

SECONDS = 60.0
"""Without an answer of a server after that long a download ends."""

Fetch = Callable[[str, Path], Any]


def load(path: str | os.PathLike[str] | RemotePath) -> Posterior:
    """Open a shared posterior, having compared all of it with its checksums.

    What is at a URL is downloaded to the cache folder (``FACTORFLOW_CACHE``, by default
    ``~/.cache/factorflow``), once. New samples can be projected on it without the data of the fit.

    Parameters
    ----------
    path : path-like, or URL
        A folder that `fit` wrote, or a ``.zip`` file of one (`Posterior.save`): on a disk, at an
        ``https://`` URL, or (folders only) in an object store, ``s3://bucket/name``.

    Returns
    -------
    Posterior

    Raises
    ------
    InputError
        When there is no posterior, it cannot be downloaded, or a file of it is missing or changed.

    Examples
    --------
    >>> shared = factorflow.load("cohort-k3.zarr")
    >>> shared.project(dataset).scores().shape
    (80, 3)
    """
    text = path if isinstance(path, str) else str(as_location(path, "path"))
    place: str | Path
    if text.startswith("https://"):
        name = unquote(urlsplit(text).path).rstrip("/").rpartition("/")[2]
        place = _from_zip(text, name) if name.endswith(".zip") else _from_files(_http(text), name)
    elif text.startswith("http://"):
        remedy = (
            "Use https://, or download it yourself and give the path: http:// is open to changes on its way."
        )
        raise InputError("path", _without_secrets(text), "a path, or an https:// URL", remedy)
    elif is_remote(text):
        remote: Any = as_location(path, "posterior")
        place = _from_files(lambda name, file: (remote / name).download(file), remote.name)
    elif text.endswith(".zip"):
        place = _extract(Path(text).expanduser(), Path(text).name, text)
    else:
        posterior = open_posterior(text)
        posterior.verify()
        return posterior
    return open_posterior(place)


def _without_secrets(url: str) -> str:
    """Return a URL as errors may show it: without what can hold a password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _http(url: str) -> Fetch:
    """Return a function that downloads a file below a URL."""
    parts = urlsplit(url)

    def fetch(name: str, file: Path) -> None:
        path = f"{parts.path.rstrip('/')}/{quote(name)}" if name else parts.path
        _download(parts._replace(path=path).geturl(), file)

    return fetch


class _OnlyHttps(HTTPRedirectHandler):
    """Follows redirects to https:// alone."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Return the request of a redirect."""
        if not newurl.startswith("https://"):
            raise URLError(f"a redirect to {_without_secrets(newurl)}, which is not https://")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _download(url: str, file: Path) -> None:
    try:
        opener = build_opener(_OnlyHttps)
        with opener.open(url, timeout=SECONDS) as answer, file.open("wb") as out:
            shutil.copyfileobj(answer, out)
            n_bytes, expected = out.tell(), answer.headers["Content-Length"]
            if expected is not None and n_bytes != int(expected):
                raise URLError(f"the connection ended after {n_bytes} of {expected} bytes")
    except (URLError, HTTPException, OSError, ValueError) as error:
        expected = f"{EXPECTED}, that can be downloaded ({error})"
        raise InputError("path", _without_secrets(url), expected, "Check the URL, or try again.") from error


def _from_files(fetch: Fetch, name: str) -> Path:
    """Download the files that the root of a posterior lists; return where they are."""
    with _new_folder() as new:
        new.mkdir()
        fetch(METADATA, new / METADATA)
        try:
            document = json.loads((new / METADATA).read_bytes())
            target = _target(name, document["attributes"][SIGNATURE])
            manifest = ChecksumManifest.from_root(new, document, AGAIN)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError("path", name, EXPECTED, "Check the URL: it has another zarr.json.") from error
        if not _is_intact(target):
            _fetch_all(fetch, manifest, new)
            _verify(new)
            LOGGER.info("posterior in %s", target)
            keep(new, target)
        return target


def _fetch_all(fetch: Fetch, manifest: ChecksumManifest, folder: Path) -> None:
    nodes = list(manifest.contents)
    if any(Path(node).is_absolute() or ".." in Path(node).parts for node in nodes):
        raise InputError("path", "names outside of the folder", EXPECTED, "Ask who shared it.")

    def fetch_one(name: str) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        fetch(name, folder / name)

    for _ in map_concurrently(True, fetch_one, [f"{node}/{METADATA}" for node in nodes]):
        pass
    for node in nodes:
        manifest.check_metadata(node, (folder / node / METADATA).read_bytes())
    chunks = [chunks_of(node, json.loads((folder / node / METADATA).read_bytes()))[0] for node in nodes]
    for _ in map_concurrently(True, fetch_one, [chunk for names in chunks for chunk in names]):
        pass


def _from_zip(url: str, name: str) -> Path:
    """Download a .zip file and unpack it."""
    file = _cache() / f"new-{uuid.uuid4().hex}.zip"
    try:
        _download(url, file)
        return _extract(file, name, _without_secrets(url))
    finally:
        file.unlink(missing_ok=True)


def _extract(file: Path, name: str, source: str) -> Path:
    """Unpack a posterior from a .zip file into the cache folder; return where it is."""
    with _new_folder() as new:
        try:
            with zipfile.ZipFile(file) as packed:
                _check_room(packed, new.parent, source)
                packed.extractall(new)
            roots = (new / METADATA, *sorted(new.glob(f"*/{METADATA}")))
            root = next(path.parent for path in roots if path.exists())
            target = _target(name, json.loads((root / METADATA).read_bytes())["attributes"][SIGNATURE])
        except InputError:
            raise
        except StopIteration:
            raise InputError("path", source, EXPECTED, f"There is no {METADATA} in it.") from None
        except (OSError, zipfile.BadZipFile, ValueError, KeyError, TypeError) as error:
            raise InputError("path", source, EXPECTED, f"It cannot be read: {error}.") from error
        if not _is_intact(target):
            _verify(root)
            keep(root, target)
        return target


def _check_room(packed: zipfile.ZipFile, folder: Path, source: str) -> None:
    """Refuse a file that declares more bytes than are free, before any of it is unpacked."""
    needed, room = sum(info.file_size for info in packed.infolist()), shutil.disk_usage(folder).free
    if needed > room:
        expected = f"at most the {room:,} bytes free at {folder}"
        remedy = "Check where it is from, or set FACTORFLOW_CACHE to a folder with more room."
        raise InputError("path", f"{source}, {needed:,} bytes unpacked", expected, remedy)


def _verify(folder: Path) -> None:
    """Compare everything with its checksums; raises InputError, naming the first file that differs."""
    document = json.loads((folder / METADATA).read_bytes())
    ChecksumManifest.from_root(folder, document, AGAIN).verify()


def _is_intact(target: Path) -> bool:
    """Return whether a posterior is in the cache; a damaged one is deleted."""
    if not target.exists():
        return False
    try:
        _verify(target)
    except (InputError, OSError, ValueError, KeyError, TypeError):
        shutil.rmtree(target)
        return False
    return True


def _target(name: str, signature: str) -> Path:
    return _cache() / f"{name.removesuffix('.zip').removesuffix('.zarr')}-{signature[:12]}.zarr"


@contextmanager
def _new_folder() -> Iterator[Path]:
    """Yield the path of a folder in the cache that is deleted in the end, also of an interrupted download."""
    new = _cache() / f"new-{uuid.uuid4().hex}"
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _cache() -> Path:
    folder = cache_folder() / "posteriors"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
