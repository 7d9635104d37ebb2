"""Opening a shared posterior: downloaded to the cache folder if need be, verified, then opened."""

from __future__ import annotations

import json
import os
import shutil
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import urlopen

from factorflow.api.inputs import cache_folder, keep
from factorflow.api.posterior import Posterior, open_posterior
from factorflow.engine.progress import LOGGER
from factorflow.errors import InputError
from factorflow.storage.checksums import METADATA, SIGNATURE, ChecksumManifest, chunks_of
from factorflow.storage.location import as_location, is_remote
from factorflow.storage.remote import RemotePath, map_concurrently

EXPECTED = "a posterior: a folder that factorflow.fit wrote, or a .zip file of one"
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
        A folder that `fit` wrote, or a ``.zip`` file of one: on a disk, at an ``https://`` URL, or (folders
        only) in an object store, ``s3://bucket/name``.

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
    elif is_remote(text):
        remote: Any = as_location(path, "posterior")
        place = _from_files(lambda name, file: (remote / name).download(file), remote.name)
    elif text.endswith(".zip"):
        place = _extract(Path(text).expanduser(), Path(text).name, text)
    else:
        place = text
    posterior = open_posterior(place)
    posterior.verify()
    return posterior


def _http(url: str) -> Fetch:
    """Return a function that downloads a file below a URL."""
    parts = urlsplit(url)

    def fetch(name: str, file: Path) -> None:
        path = f"{parts.path.rstrip('/')}/{quote(name)}" if name else parts.path
        _download(parts._replace(path=path).geturl(), file)

    return fetch


def _download(url: str, file: Path) -> None:
    try:
        with urlopen(url, timeout=SECONDS) as answer, file.open("wb") as out:
            shutil.copyfileobj(answer, out)
    except (URLError, OSError, ValueError) as error:
        shown = url.partition("?")[0]
        raise InputError(
            "path", shown, f"{EXPECTED}, that can be downloaded ({error})", "Check it."
        ) from error


def _from_files(fetch: Fetch, name: str) -> Path:
    """Download the files that the root of a posterior lists; return where they are."""
    folder = _cache()
    new = folder / f"new-{uuid.uuid4().hex}"
    new.mkdir()
    try:
        fetch(METADATA, new / METADATA)
        try:
            document = json.loads((new / METADATA).read_bytes())
            target = folder / f"{Path(name).stem}-{document['attributes'][SIGNATURE][:12]}.zarr"
            manifest = ChecksumManifest.from_root(new, document, "Download it again, or ask who shared it.")
        except (ValueError, KeyError, TypeError) as error:
            raise InputError("path", name, EXPECTED, "Check the URL: it has another zarr.json.") from error
        if not target.exists():
            _fetch_all(fetch, manifest, new)
            LOGGER.info("posterior in %s", target)
            return keep(new, target)
        return target
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _fetch_all(fetch: Fetch, manifest: ChecksumManifest, folder: Path) -> None:
    nodes = list(manifest.contents)
    if any(Path(node).is_absolute() or ".." in Path(node).parts for node in nodes):
        raise InputError("path", "names outside of the folder", EXPECTED, "Ask who shared it.")

    def fetch_one(name: str) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        fetch(name, folder / name)

    for _ in map_concurrently(True, fetch_one, [f"{node}/{METADATA}" for node in nodes]):
        pass
    chunks = [chunks_of(node, json.loads((folder / node / METADATA).read_bytes()))[0] for node in nodes]
    for _ in map_concurrently(True, fetch_one, [chunk for names in chunks for chunk in names]):
        pass


def _from_zip(url: str, name: str) -> Path:
    """Download a .zip file and unpack it."""
    file = _cache() / f"new-{uuid.uuid4().hex}.zip"
    try:
        _download(url, file)
        return _extract(file, name, url.partition("?")[0])
    finally:
        file.unlink(missing_ok=True)


def _extract(file: Path, name: str, shown: str) -> Path:
    """Unpack a posterior from a .zip file into the cache folder; return where it is."""
    folder = _cache()
    new = folder / f"new-{uuid.uuid4().hex}"
    try:
        with zipfile.ZipFile(file) as packed:
            packed.extractall(new)
        roots = [
            path.parent for path in (new / METADATA, *sorted(new.glob(f"*/{METADATA}"))) if path.exists()
        ]
        root = roots[0]
        signature = json.loads((root / METADATA).read_bytes())["attributes"][SIGNATURE]
    except (OSError, zipfile.BadZipFile, ValueError, KeyError, TypeError, IndexError) as error:
        shutil.rmtree(new, ignore_errors=True)
        raise InputError("path", shown, EXPECTED, f"It cannot be read: {error}.") from error
    target = folder / f"{name.removesuffix('.zip').removesuffix('.zarr')}-{signature[:12]}.zarr"
    try:
        return keep(root, target)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _cache() -> Path:
    folder = cache_folder() / "posteriors"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
