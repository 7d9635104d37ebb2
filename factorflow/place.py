"""What a place is: a folder on a disk (`pathlib.Path`), or a name in an object store (`Remote`).

A `Remote` has the few methods of a path that are needed, and raises what a path raises: `FileNotFoundError`
where there is no such object. All else that a store says becomes an error that names the store and what to
do; the store's own words are left out of it: they repeat what was sent, keys and signatures too.

Credentials come from the environment alone. A place is its URL, so that is all that is pickled and recorded.
"""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from factorflow.disk import ADDRESS, local_path, shown
from factorflow.errors import InputError, RunError

__all__ = ["SCHEMES", "Place", "Remote", "as_place", "at_once", "is_remote", "listed", "made_at", "named"]

SCHEMES: Mapping[str, str] = MappingProxyType(
    {
        "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL",
        "gs": "GOOGLE_APPLICATION_CREDENTIALS",
        "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY",
    }
)
"""What URLs may begin with, and where their credentials are looked for."""

HTTP = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE_STORAGE"}
"""What the variables begin with that allow a store without TLS: an emulator, or one of the own network."""

EXAMPLE = "s3://bucket/name.zarr"

IN_FLIGHT = 8
"""Requests of one reader at a time: a store answers each after tens of milliseconds."""

RETRIES = 6
"""Requests that fail because a store is busy or away are sent again so often, within `PATIENCE`."""
PATIENCE, CONNECT = timedelta(seconds=60), timedelta(seconds=10)

PIECE = 16 << 20
"""Bytes of an object that are asked for at a time where it goes to a disk."""

CODE = re.compile(r"<Code>(\w{1,60})</Code>")
STATUS = re.compile(r"status code: (\d{3})")
NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist")
AT_INSTANCE = "169.254.169.254"
"""Where clouds give credentials to their own machines: asked when the environment has none."""
REFUSED = re.compile(r"status code: 40[13]|ExpiredToken|InvalidToken|TokenRefreshRequired")
FULL = re.compile(r"Quota|StorageFull|InsufficientStorage|status code: 507")

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Remote:
    """An object in a store, or all those whose names begin with its own: what a folder is on a disk.

    Parameters
    ----------
    url : str
        ``s3://bucket/name``; made by `as_place`.
    """

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self.url}/{name}")

    @property
    def bucket(self) -> str:
        """URL of the bucket."""
        return "/".join(self.url.split("/")[:3])

    @property
    def key(self) -> str:
        """Name within the bucket."""
        return self.url.removeprefix(self.bucket).strip("/")

    @property
    def name(self) -> str:
        """Last part of the name."""
        return self.url.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """Last part of the name, without its suffix."""
        return Path(self.name).stem

    @property
    def suffix(self) -> str:
        """Ending of the name, its dot included."""
        return Path(self.name).suffix

    def with_suffix(self, suffix: str) -> Remote:
        """Return the name beside it with another ending."""
        return Remote(f"{self.url.removesuffix(self.suffix)}{suffix}")

    @property
    def parents(self) -> tuple[Remote, ...]:
        """What it lies in, from the innermost on; the bucket is none of them."""
        parts = self.key.split("/")
        return tuple(Remote(f"{self.bucket}/{'/'.join(parts[:n])}") for n in range(len(parts) - 1, 0, -1))

    def read(self) -> Any:
        """Return the content of an object as a buffer.

        Raises
        ------
        FileNotFoundError
            If there is none.
        InputError
            If the store cannot be read.
        """
        import obstore

        with _explained(self):
            return obstore.get(_client(self.bucket), self.key).bytes()

    def read_bytes(self) -> bytes:
        """Return the content of an object; raises as `read`."""
        return bytes(self.read())

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the content of an object as text; raises as `read`."""
        return self.read_bytes().decode(encoding)

    def download(self, target: Path) -> None:
        """Write an object to a file of a disk, piece by piece, all of them of one version.

        Raises
        ------
        FileNotFoundError
            If there is none.
        InputError
            If the store cannot be read, or the object is replaced meanwhile.
        """
        import obstore
        from obstore.exceptions import PreconditionError

        client = _client(self.bucket)
        with _explained(self):
            found = obstore.head(client, self.key)
        size, same = found["size"], {"if_match": found["e_tag"]} if found["e_tag"] else {}

        def piece(start: int) -> Any:
            options: Any = {"range": (start, min(start + PIECE, size)), **same}
            with _explained(self):
                try:
                    return obstore.get(client, self.key, options=options).bytes()
                except PreconditionError:
                    expected, remedy = "an object that stays as it is while it is read", "Then try again."
                    raise InputError("source", str(self), expected, remedy) from None

        with target.open("wb") as file:
            for content in at_once(True, piece, range(0, size, PIECE)):
                file.write(content)
            if file.tell() != size:
                expected = f"{size} bytes ({file.tell()} came)"
                raise InputError("source", str(self), expected, "Try again.")

    def version(self) -> tuple[Any, ...]:
        """Return what tells an object from another that takes its place; (): there is none."""
        import obstore

        try:
            with _explained(self):
                found = obstore.head(_client(self.bucket), self.key)
        except FileNotFoundError:
            return ()
        return found["e_tag"], found["version"], found["last_modified"], found["size"]

    def exists(self) -> bool:
        """Return whether there is any object of this name, or within it."""
        return bool(self.version()) or next(self.within(), None) is not None

    def put(self, content: bytes, *, new: bool = False, instead: tuple[Any, ...] = ()) -> None:
        """Put an object there, in one request.

        Parameters
        ----------
        content : bytes
            What is in it.
        new : bool
            Only if there is none of that name.
        instead : tuple
            Only in the place of that one, by its `version`: S3 and Azure compare its ETag, Google its number.

        Raises
        ------
        FileExistsError
            If there is one, or another one.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with _explained(self):
            try:
                mode: Any = "create" if new else "overwrite"
                if instead:
                    told = zip(("e_tag", "version"), instead[:2], strict=True)
                    mode = {name: value for name, value in told if value}
                obstore.put(_client(self.bucket), self.key, content, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                raise FileExistsError(errno.EEXIST, "There is one", str(self)) from None

    def put_file(self, file: Path) -> None:
        """Put a file of a disk there; a large one in parts, of which nothing is seen before the last."""
        import obstore

        with _explained(self):
            obstore.put(_client(self.bucket), self.key, file)

    def delete(self) -> None:
        """Remove an object, if there is one."""
        import obstore

        with _explained(self), suppress(FileNotFoundError):
            obstore.delete(_client(self.bucket), self.key)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove an object; whether there is one is not asked."""
        self.delete()

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: a name needs no folder."""

    def delete_within(self, names: Iterable[str]) -> None:
        """Remove objects within it, by their names there; whether each is there does not matter."""
        import obstore

        keys = [f"{self.key}/{name}" for name in names]
        try:
            if keys:
                with _explained(self):
                    obstore.delete(_client(self.bucket), keys)
        except FileNotFoundError:  # S3 does not mind; others stop at the first that is gone
            for _ in at_once(True, lambda key: Remote(f"{self.bucket}/{key}").delete(), keys):
                pass

    def within(self) -> Iterator[str]:
        """Yield the URLs of all objects within it."""
        import obstore

        with _explained(self):
            for part in obstore.list(_client(self.bucket), prefix=self.key + "/"):
                yield from (f"{self.bucket}/{found['path']}" for found in part)

    def glob(self, pattern: str) -> Iterator[Remote]:
        """Yield the objects directly within it whose names match a pattern."""
        import obstore

        with _explained(self):
            found = obstore.list_with_delimiter(_client(self.bucket), prefix=self.key + "/")["objects"]
        names = (entry["path"].rpartition("/")[2] for entry in found)
        yield from (self / name for name in names if fnmatchcase(name, pattern))


Place = Path | Remote


def as_place(path: str | os.PathLike[str] | Remote, parameter: str = "path") -> Place:
    """Return what a user's path means: a path made absolute (`local_path`), or a name in an object store.

    Raises
    ------
    InputError
        For URLs of other kinds, incomplete ones, and those with a password; without obstore.
    """
    if isinstance(path, Remote):
        return path
    text = os.fsdecode(path) if isinstance(path, str | os.PathLike) else ""
    if not ADDRESS.match(text):
        return local_path(path, parameter)
    scheme, _, rest = text.partition(":")
    known = ", ".join(f"{name}://bucket/name" for name in SCHEMES)
    if scheme not in SCHEMES:
        remedy = "Mount it, or copy it to a disk or one of these stores."
        raise InputError(parameter, shown(text), f"a path, or {known}", remedy)
    if re.search(r"[@?#]", rest):
        remedy = f"Leave credentials out of it, they are taken from the environment: {SCHEMES[scheme]}."
        raise InputError(parameter, shown(text), f"a URL like {EXAMPLE}, without @, ? or #", remedy)
    if not rest.startswith("//"):
        remedy = f"Write {EXAMPLE}, as text: pathlib.Path takes a slash away."
        raise InputError(parameter, text, f"a URL like {EXAMPLE}", remedy)
    bucket, *names = rest[2:].rstrip("/").split("/")
    if not bucket or not names or any(name in {"", ".", ".."} for name in names):
        raise InputError(parameter, text, f"a URL like {EXAMPLE}", "Name a bucket and what lies in it.")
    check_installed(parameter, text)
    return Remote(f"{scheme}://{bucket}/{'/'.join(names)}")


def named(out: str | os.PathLike[str] | Remote, parameter: str = "out") -> Place:
    """Return where a result goes as it is to be shown: a relative path stays one; raises as `as_place`."""
    place = as_place(out, parameter)
    return place if isinstance(place, Remote) else Path(os.path.expanduser(out))  # type: ignore[arg-type]


def check_installed(parameter: str, url: str) -> None:
    """Refuse a URL where the package that reads object stores is missing."""
    try:
        import obstore  # noqa: F401
    except ImportError:
        remedy = "python -m pip install 'factorflow[cloud]'"
        raise InputError(parameter, url, "the package obstore to be installed", remedy) from None


def is_remote(path: str) -> bool:
    """Return whether the name of a place, as text, is a URL."""
    return path.partition("://")[0] in SCHEMES


def listed(folder: str) -> set[str]:
    """Return the files in a folder and those below it, or the objects within a name."""
    if is_remote(folder):
        return set(Remote(folder).within())
    return {os.path.join(inner, file) for inner, _, files in os.walk(folder) for file in files}


def made_at(place: Place) -> datetime:
    """Return when a file or object, or the ``zarr.json`` of a store, was written; raises as `Remote.read`."""
    if isinstance(place, Path):
        return datetime.fromtimestamp(os.stat(place).st_mtime, UTC)
    version = place.version() or (place / "zarr.json").version()
    if not version:
        raise FileNotFoundError(errno.ENOENT, "No such object", str(place))
    found: datetime = version[2]
    return found


def at_once(remote: bool, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield what a function makes of items, in order: of a store several at a time, of a disk one by one."""
    if not remote:
        yield from map(function, items)
        return
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            if len(waiting) == IN_FLIGHT:
                yield waiting.popleft().result()
            waiting.append(_requests().submit(function, item))
        while waiting:
            yield waiting.popleft().result()
    finally:  # of an error: what comes after it relies on nothing being under way any more
        for request in waiting:
            request.cancel()
        wait(waiting)


@cache
def _requests() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=2 * IN_FLIGHT, thread_name_prefix="factorflow-store")


def _client(bucket: str) -> Any:
    """Return what speaks with a bucket, with the credentials that the environment has now."""
    prefix = HTTP[bucket.partition(":")[0]].partition("_")[0] + "_"
    given = tuple(sorted((key, text) for key, text in os.environ.items() if key.startswith(prefix)))
    return _connected(bucket, given, tuple(map(_written_at, dict(given).values())))


def _written_at(path: str) -> float:
    """Return when a file was written last; 0: there is none."""
    try:
        return os.stat(path).st_mtime
    except (OSError, ValueError):
        return 0.0


@cache
def _connected(bucket: str, given: tuple[tuple[str, str], ...], written: tuple[float, ...]) -> Any:
    """Return what speaks with a bucket; another where the settings given, or the files they name, changed.

    Raises
    ------
    InputError
        If they cannot be understood, or a file that they name cannot be read; nothing has been sent then.
    """
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    endpoint = os.environ.get("AWS_ENDPOINT_URL", os.environ.get("AWS_ENDPOINT", ""))
    options: dict[str, Any] = {"connect_timeout": CONNECT, "timeout": PATIENCE}
    scheme = bucket.partition(":")[0]
    asked = os.environ.get(f"{HTTP[scheme]}_ALLOW_HTTP", "")  # options replace it
    if endpoint.startswith("http://") or asked.lower() in {"1", "true"}:  # who says so wants it
        options["allow_http"] = True
    retry: Any = {"max_retries": RETRIES, "retry_timeout": PATIENCE}
    try:
        return from_url(bucket, client_options=options, retry_config=retry)
    except (BaseError, OSError, ValueError):  # its text may repeat them
        expected = "some that can be read"
        remedy = f"Check {SCHEMES[scheme]} in the environment, on workers as well, and the files they name."
        raise InputError(f"credentials for {bucket}", "unreadable", expected, remedy) from None


@contextmanager
def _explained(place: Remote) -> Iterator[None]:
    """Turn what a store says into an error that names the place and the remedy."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError) as error:
        raise _explanation(place, error) from None  # its text may repeat what was sent


def _explanation(place: Remote, error: Exception) -> Exception:
    said, scheme = str(error), place.url.partition(":")[0]
    code = next((found[1] for found in (CODE.search(said), STATUS.search(said)) if found), "")
    told, settings = f" ({code})" if code else "", f"{SCHEMES[scheme]} in the environment"
    if NO_BUCKET.search(said):
        remedy = f"Create it, or check its name and where the store is: {settings}."
        return InputError("bucket", place.bucket, f"a bucket that exists{told}", remedy)
    if isinstance(error, FileExistsError):
        return error
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "No such object", str(place))
    if FULL.search(said):
        return RunError(f"{place} cannot be written: {place.bucket} is full{told}. Free some space there.")
    if AT_INSTANCE in said or "must be specified" in said:
        expected, remedy = "some in the environment", f"Set {SCHEMES[scheme]}, on workers as well."
        return InputError(f"credentials for {place.bucket}", "none", expected, remedy)
    if REFUSED.search(said) or type(error).__name__ in {"PermissionDeniedError", "UnauthenticatedError"}:
        expected = f"some that may use {place}"
        remedy = f"Check {settings}, on workers as well, and the rights to the bucket."
        return InputError(f"credentials for {place.bucket}", f"refused{told}", expected, remedy)
    remedy = f"Check the network and where the store is: {settings}. Then try again."
    found = f"an error{told}" if told else "no answer"
    return InputError(f"store {place.bucket}", found, f"an answer about {place}", remedy)
