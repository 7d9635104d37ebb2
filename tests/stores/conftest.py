"""An S3 server of its own (moto), as a process; the tests are skipped where moto or obstore is missing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from factorflow.storage import checksums, remote

KEY, SECRET = "an-access-key", "a-secret-that-nobody-may-see"


class Bucket:
    """A bucket of the server, its name and what a test does there behind factorflow's back."""

    def __init__(self, endpoint: str, name: str) -> None:
        from obstore.store import S3Store

        self.endpoint, self.name = endpoint, name
        self.store = S3Store(name, endpoint=endpoint, client_options={"allow_http": True})

    def url(self, key: str) -> str:
        return f"s3://{self.name}/{key}"

    def keys(self, prefix: str = "") -> list[str]:
        import obstore

        return sorted(o["path"] for part in obstore.list(self.store, prefix or None) for o in part)

    def get(self, key: str) -> bytes:
        import obstore

        return bytes(obstore.get(self.store, key).bytes())

    def put(self, key: str, content: bytes) -> None:
        import obstore

        obstore.put(self.store, key, content)

    def delete(self, *keys: str) -> None:
        import obstore

        obstore.delete(self.store, list(keys))

    def copy(self, folder: Path, key: str) -> str:
        """Put a whole folder there, as any other tool would, and return its URL."""
        for file in folder.rglob("*"):
            if file.is_file():
                self.put(f"{key}/{file.relative_to(folder)}", file.read_bytes())
        return self.url(key)

    def asks_for_rights(self, after: str) -> None:
        """Have the server refuse unknown keys after so many requests; inf: never."""
        headers = {"Content-Type": "text/plain"}  # the body of a form is not read
        urlopen(Request(f"{self.endpoint}/moto-api/reset-auth", after.encode(), headers), timeout=10).close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Address of an S3 server that ends with the tests."""
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    port = _free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert process.poll() is None, "the server has ended"
            try:
                urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Any]:
    """An empty bucket, and an environment in which factorflow finds it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    given = {"ACCESS_KEY_ID": KEY, "SECRET_ACCESS_KEY": SECRET, "REGION": "us-east-1", "ENDPOINT_URL": server}
    for name, value in given.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(remote, "RETRIES", 1)
    monkeypatch.setattr(checksums, "_verified", {})
    remote._connect.cache_clear()
    name = f"bucket-{abs(hash(request.node.nodeid))}"
    headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request"}
    urlopen(Request(f"{server}/{name}", b"", headers, method="PUT"), timeout=10).close()
    yield Bucket(server, name)
    remote._connect.cache_clear()


class Proxy(ThreadingHTTPServer):
    """Stands between factorflow and the server: so it is far away, full, or refuses what it took before.

    Attributes
    ----------
    gather : int
        Requests that are waited for, a second at most, before any of them is answered.
    refused : set of str
        Methods of the requests that are refused when there is no room; objects are deleted by POST.
    room : int
        Such requests that are still taken.
    refusal : tuple of int and str
        Status and code of the answer to others.
    most : int
        Requests that were under way at a time.
    served : int
        Requests in all.
    """

    daemon_threads = True

    def __init__(self, server: str) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        self.behind = server.removeprefix("http://")
        self.gather, self.now, self.most, self.served = 0, 0, 0, 0
        self.refused, self.room, self.refusal = {"PUT"}, 10**6, (507, "XMinioStorageFull")
        self.lock = threading.Condition()


class _Forward(BaseHTTPRequestHandler):
    server: Proxy
    protocol_version = "HTTP/1.1"

    def forward(self) -> None:
        proxy = self.server
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with proxy.lock:
            proxy.now += 1
            proxy.served += 1
            if proxy.now > proxy.most:
                proxy.most = proxy.now
                proxy.lock.notify_all()
            full = self.command in proxy.refused and proxy.room <= 0
            proxy.room -= self.command in proxy.refused
            proxy.lock.wait_for(lambda: proxy.most >= proxy.gather, timeout=1.0)
        time.sleep(0.05 if proxy.gather else 0.0)  # one request too many has time to come
        try:
            if full:
                status, code = proxy.refusal
                body = f"<Error><Code>{code}</Code><Message>as-sent: key</Message></Error>"
                self.answer(status, {}, body.encode())
                return
            connection = HTTPConnection(proxy.behind, timeout=30)
            connection.request(self.command, self.path, sent, dict(self.headers))
            found = connection.getresponse()
            self.answer(found.status, dict(found.getheaders()), found.read())
            connection.close()
        finally:
            with proxy.lock:
                proxy.now -= 1

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        left_out = {"content-length", "connection", "transfer-encoding"}
        for name, value in headers.items():
            if name.lower() not in left_out:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward  # noqa: N815  names that the library calls

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def proxy(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before the bucket, which factorflow goes through."""
    with Proxy(bucket.endpoint) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{found.server_port}")
        remote._connect.cache_clear()
        yield found
        found.shutdown()
