"""Object stores: the path of an object, its requests, and their errors.

A `RemotePath` has the methods of a path that are needed and raises `FileNotFoundError` where there is no such
object. Every other failure becomes an error that names the store and what to do; the store's own message is
left out, because it may repeat keys and signatures that were sent. Credentials come from the environment: a
path holds its URL only, so none are pickled or recorded.
"""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from factorflow.errors import InputError, RunError, pluralize

SCHEMES: Mapping[str, str] = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY",
}
"""Schemes of URLs, and the environment variables with their credentials."""
PREFIXES = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE_STORAGE"}
"""Prefixes of those variables; ``<prefix>_ALLOW_HTTP`` allows a store without TLS."""
RIGHTS: Mapping[str, tuple[str, ...]] = {
    "read": ("s3:GetObject, and s3:ListBucket where there may be none", "storage.objects.get", "blobs/read"),
    "write": ("s3:PutObject", "storage.objects.create", "blobs/write"),
    "delete": ("s3:DeleteObject", "storage.objects.delete", "blobs/delete"),
    "list": ("s3:ListBucket", "storage.objects.list", "blobs/read"),
}
"""What the stores, in the order of the schemes, call the right to do something with an object."""

CONCURRENCY = 8
"""Concurrent requests of one reader: each takes tens of milliseconds."""
RETRIES, RETRY_TIMEOUT, CONNECT_TIMEOUT = 6, timedelta(seconds=60), timedelta(seconds=10)
RANGE_BYTES = 16 << 20
"""Bytes requested at a time when an object is downloaded."""

CODE = re.compile(r"(?:<Code>|\(code: )(\w{1,60})")  # the second: of one of several objects to delete
STATUS = re.compile(r"status code: (\d{3})")
NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist")
NO_CREDENTIALS = re.compile(r"169\.254\.169\.254|must be specified")  # the first: a cloud's metadata service
REFUSED = re.compile(r"status code: 40[13]|AccessDenied|ExpiredToken|InvalidToken|TokenRefreshRequired")
BUSY = re.compile(r"status code: (?:429|503)|\(code: (?:SlowDown|ServiceUnavailable)\)")
BROKEN = re.compile(r"status code: 50[024]|\(code: InternalError\)")
FULL = re.compile(r"Quota|StorageFull|InsufficientStorage|status code: 507")

Version = tuple[Any, ...]
"""ETag, version, time and size of an object; () if there is none."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class RemotePath:
    """An object, or all objects whose names begin with its own: what a directory is on a disk.

    Parameters
    ----------
    url : str
        ``s3://bucket/name``; made by `as_location`.
    """

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.url}/{name}")

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
        return PurePosixPath(self.key).name

    @property
    def stem(self) -> str:
        """Last part of the name without its suffix."""
        return PurePosixPath(self.key).stem

    @property
    def suffix(self) -> str:
        """Suffix of the name, with its dot."""
        return PurePosixPath(self.key).suffix

    def with_suffix(self, suffix: str) -> RemotePath:
        """Return the path with another suffix."""
        return RemotePath(f"{self.bucket}/{PurePosixPath(self.key).with_suffix(suffix)}")

    @property
    def parents(self) -> tuple[RemotePath, ...]:
        """Prefixes that contain it, innermost first, without the bucket."""
        return tuple(
            RemotePath(f"{self.bucket}/{key}") for key in PurePosixPath(self.key).parents if key.name
        )

    def read(self) -> Any:
        """Return the content of the object as a buffer."""
        return self._request("read", lambda obs, store: obs.get(store, self.key).bytes())

    def read_bytes(self) -> bytes:
        """Return the content of the object."""
        return bytes(self.read())

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the content of the object as text."""
        return self.read_bytes().decode(encoding)

    def download(self, target: Path) -> None:
        """Write the object to a file, in ranges of one version: an InputError if it is replaced meanwhile."""
        tag, _, _, size = self._head()

        def read_range(start: int) -> Any:
            options = {"range": (start, min(start + RANGE_BYTES, size)), **({"if_match": tag} if tag else {})}
            return self._request("read", lambda obs, store: obs.get(store, self.key, options=options).bytes())

        expected = "an object that stays as it is while it is read"
        with target.open("wb") as file:
            try:
                for content in map_concurrently(True, read_range, range(0, size, RANGE_BYTES)):
                    file.write(content)
            except FileExistsError:
                raise InputError("source", str(self), expected, "Then try again.") from None
            if file.tell() != size:
                raise InputError("source", str(self), f"{size} bytes (got {file.tell()})", "Try again.")

    def version(self) -> Version:
        """Return the version of the object; () if there is none."""
        try:
            return self._head()
        except FileNotFoundError:
            return ()

    def exists(self) -> bool:
        """Return whether there is an object of this name or below it."""
        return bool(self.version()) or next(self.list_urls(), None) is not None

    def put(self, content: bytes, *, new: bool = False, replaces: Version = ()) -> None:
        """Write the object in one request; FileExistsError: a condition does not hold.

        Only if there is no object of that name (``new``), or only in place of a `version` that it
        ``replaces``: S3 and Azure compare its ETag, Google its number.
        """
        mode: Any = "create" if new else "overwrite"
        if replaces:
            mode = {name: value for name, value in zip(("e_tag", "version"), replaces, strict=False) if value}
        self._request(
            "write", lambda obs, store: obs.put(store, self.key, content, mode=mode, use_multipart=False)
        )

    def put_file(self, file: Path) -> None:
        """Upload a file; the object appears when all parts of it have arrived."""
        self._request("write", lambda obs, store: obs.put(store, self.key, file))

    def unlink(self, missing_ok: bool = True) -> None:
        """Delete the object, if there is one."""
        with suppress(FileNotFoundError):
            self._request("delete", lambda obs, store: obs.delete(store, self.key))

    def unlink_within(self, names: Iterable[str]) -> None:
        """Delete objects below it by their relative names, where they exist."""
        keys = [f"{self.key}/{name}" for name in sorted(names)]
        try:
            if keys:
                self._request("delete", lambda obs, store: obs.delete(store, keys))
        except FileNotFoundError:  # S3 ignores missing objects; others stop at the first
            for _ in map_concurrently(True, lambda key: RemotePath(f"{self.bucket}/{key}").unlink(), keys):
                pass

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: object stores have no directories."""

    def list_urls(self) -> Iterator[str]:
        """Yield the URLs of all objects below it."""
        batches = self._request("list", lambda obs, store: iter(obs.list(store, prefix=self.key + "/")))
        while (batch := self._request("list", lambda *_: next(batches, None))) is not None:
            yield from (f"{self.bucket}/{meta['path']}" for meta in batch)

    def list_names(self) -> set[str]:
        """Return the relative names of all objects below it."""
        return {url.removeprefix(f"{self}/") for url in self.list_urls()}

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield the objects directly below it whose names match a pattern."""
        prefix = self.key + "/"
        listed = self._request("list", lambda obs, store: obs.list_with_delimiter(store, prefix=prefix))
        names = (meta["path"].rpartition("/")[2] for meta in listed["objects"])
        yield from (self / name for name in names if fnmatchcase(name, pattern))

    def _head(self) -> Version:
        meta = self._request("read", lambda obs, store: obs.head(store, self.key))
        return meta["e_tag"], meta["version"], meta["last_modified"], meta["size"]

    @property
    def _client(self) -> Any:
        """Client of the bucket with the credentials that are in the environment now."""
        prefix = PREFIXES[self.url.partition(":")[0]].partition("_")[0] + "_"
        settings = sorted((name, value) for name, value in os.environ.items() if name.startswith(prefix))
        return _connect(self.bucket, tuple((n, v, _modification_time(v)) for n, v in settings))

    def _request(self, right: str, function: Callable[[Any, Any], Any]) -> Any:
        """Return ``function(obstore, client)``; errors name the location, the right and the remedy."""
        import obstore

        try:
            return function(obstore, self._client)
        except (obstore.exceptions.BaseError, OSError) as error:
            explained = _translate(self, error, right)
            if isinstance(explained, InputError) and explained.parameter.startswith("credentials"):
                _connect.cache_clear()  # the next request reads corrected ones, wherever they come from
            raise explained from None  # its text may repeat what was sent


def map_concurrently(remote: bool, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield ``function(item)`` in order: several at a time for object stores, one by one for disks."""
    if not remote:
        yield from map(function, items)
        return
    pending: deque[Future[R]] = deque()
    try:
        for item in items:
            if len(pending) == CONCURRENCY:
                yield pending.popleft().result()
            pending.append(_request_pool().submit(function, item))
        while pending:
            yield pending.popleft().result()
    finally:  # after an error, callers rely on no request being under way
        for request in pending:
            request.cancel()
        wait(pending)


@cache
def _request_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=2 * CONCURRENCY, thread_name_prefix="factorflow-store")


def _modification_time(path: str) -> float:
    """Return the modification time of a credentials file; 0 if there is none."""
    try:
        return os.stat(path).st_mtime
    except (OSError, ValueError):
        return 0.0


@cache
def _connect(bucket: str, settings: tuple[tuple[str, str, float], ...]) -> Any:
    """Return the client of a bucket; a new one when settings, or the files they name, have changed."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    scheme, store_options = bucket.partition(":")[0], {name: value for name, value, _ in settings}
    endpoint = store_options.get("AWS_ENDPOINT_URL", store_options.get("AWS_ENDPOINT", ""))
    options: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT, "timeout": RETRY_TIMEOUT}
    allows_http = store_options.get(f"{PREFIXES[scheme]}_ALLOW_HTTP", "").lower() in {"1", "true"}
    if allows_http or endpoint.startswith("http://"):
        options["allow_http"] = True  # client_options replace the variable
    retry: Any = {"max_retries": RETRIES, "retry_timeout": RETRY_TIMEOUT}
    try:
        return from_url(bucket, client_options=options, retry_config=retry)
    except (BaseError, OSError, ValueError):  # its text may repeat the credentials
        expected = "credentials that can be read"
        remedy = f"Check {SCHEMES[scheme]} in the environment, on workers as well, and the files they name."
        raise InputError(f"credentials for {bucket}", "unreadable", expected, remedy) from None


def _translate(path: RemotePath, error: Exception, right: str) -> Exception:
    """Translate an error of the store into one that names the missing right."""
    scheme = path.url.partition(":")[0]
    kind, message, variables = type(error).__name__, str(error), SCHEMES[scheme]
    match = CODE.search(message) or STATUS.search(message)
    code = f" ({match[1]})" if match else ""
    if NO_BUCKET.search(message):
        remedy = f"Create it, or check its name and the address of the store: {variables} in the environment."
        return InputError("bucket", path.bucket, f"a bucket that exists{code}", remedy)
    if isinstance(error, FileExistsError) or kind in {"AlreadyExistsError", "PreconditionError"}:
        return FileExistsError(errno.EEXIST, "Object exists, or is another one", str(path))
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "No such object", str(path))
    if FULL.search(message):
        return RunError(f"{path} cannot be written: {path.bucket} is full{code}. Free some space there.")
    if NO_CREDENTIALS.search(message):
        expected, remedy = "some in the environment", f"Set {variables}, on workers as well."
        return InputError(f"credentials for {path.bucket}", "none", expected, remedy)
    unexplained = code == " (400)" and "performing HEAD" in message  # to which an answer has no text
    if REFUSED.search(message) or unexplained or kind in {"PermissionDeniedError", "UnauthenticatedError"}:
        remedy = f"Check {variables} in the environment, on workers as well, and the rights to the bucket."
        expected = f"some that may {right} {path} ({dict(zip(SCHEMES, RIGHTS[right], strict=True))[scheme]})"
        return InputError(f"credentials for {path.bucket}", f"refused{code}", expected, remedy)
    if BUSY.search(message) or BROKEN.search(message):
        state = "is busy" if BUSY.search(message) else "has an error of its own"
        text = f"it did not {right} {path}, also when asked {pluralize(RETRIES, 'time')} more"
        remedy = "Wait, and run it again, with fewer workers if it is busy with those."
        return RunError(f"{path.bucket} {state}{code}: {text}. {remedy}")
    remedy = f"Check the network and the address of the store: {variables} in the environment."
    value, expected = f"an error{code}" if code else "no answer", f"an answer about {path}"
    return InputError(f"store {path.bucket}", value, expected, f"{remedy} Then try again.")
