"""The XML interface of Google Cloud Storage before an emulator that has the JSON one alone (fake-gcs-server).

Requests are translated; what they mean, which of two conditional ones wins too, is up to the emulator.
"""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

EDGE = b"an-edge-that-no-object-holds-4c0f"
MATCH = "x-goog-if-generation-match"


class Translator(ThreadingHTTPServer):
    """Listens on a free port of this machine, and asks the emulator at another one."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Translate)
        self.behind = port


class _Translate(BaseHTTPRequestHandler):
    server: Translator
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # noqa: N802
        if self.key:
            asked = {name: self.headers[name] for name in ("Range", "If-Match") if name in self.headers}
            self.answer(*self.ask(self.command, self.path, headers=asked))
            return
        asked = parse_qs(urlsplit(self.path).query)
        given = {"prefix": "prefix", "delimiter": "delimiter", "continuation-token": "pageToken"}
        query = {theirs: asked[ours][0] for ours, theirs in given.items() if ours in asked}
        found, content = self.ask("GET", f"/storage/v1/b/{self.bucket}/o", query)
        if found.status != 200:
            self.answer(found, content)
            return
        self.answer(found, _listing(json.loads(content)), {"Content-Type": "application/xml"})

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:  # noqa: N802
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        query = {"uploadType": "multipart", "name": self.key}  # of others the emulator forgets the condition
        if MATCH in self.headers:
            query["ifGenerationMatch"] = self.headers[MATCH]
        parts = [(b"application/json", b"{}"), (b"application/octet-stream", content)]
        body = b"".join(b"--%s\r\nContent-Type: %s\r\n\r\n%s\r\n" % (EDGE, *part) for part in parts)
        kind = {"Content-Type": f"multipart/related; boundary={EDGE.decode()}"}
        path = f"/upload/storage/v1/b/{self.bucket}/o"
        found, said = self.ask("POST", path, query, body + b"--%s--" % EDGE, kind)
        if found.status != 200:
            self.answer(found, said)
            return
        made = json.loads(said)
        self.answer(found, b"", {"ETag": f'"{made["etag"]}"', "x-goog-generation": str(made["generation"])})

    def do_DELETE(self) -> None:  # noqa: N802
        self.answer(*self.ask("DELETE", f"/storage/v1/b/{self.bucket}/o/{quote(self.key, safe='')}"))

    @property
    def bucket(self) -> str:
        return urlsplit(self.path).path.split("/")[1]

    @property
    def key(self) -> str:
        return unquote("/".join(urlsplit(self.path).path.split("/")[2:]))

    def ask(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection("127.0.0.1", self.server.behind, timeout=30)
        words = "&".join(f"{name}={quote(value, safe='')}" for name, value in (query or {}).items())
        connection.request(method, f"{path}?{words}" if words else path, content, headers or {})
        found = connection.getresponse()
        said = found.read()
        connection.close()
        return found, said

    def answer(self, found: HTTPResponse, content: bytes, headers: dict[str, str] | None = None) -> None:
        if found.status == 404 and self.ask("GET", f"/storage/v1/b/{self.bucket}")[0].status == 404:
            content = b"<Error><Code>NoSuchBucket</Code></Error>"  # as the XML interface says it
        self.send_response_only(found.status)
        kept = {"etag", "last-modified", "content-range", "x-goog-generation"}
        given = {name: value for name, value in found.getheaders() if name.lower() in kept}
        for name, value in (given | (headers or {})).items():
            self.send_header(name, value)
        length = str(len(content))
        if self.command == "HEAD" and found.status == 200:
            length = found.getheader("Content-Length", "0")
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _listing(found: dict[str, Any]) -> bytes:
    """Return an answer of the JSON interface as the XML one gives it."""
    lines = ["<ListBucketResult>"]
    if "nextPageToken" in found:
        lines.append(f"<NextContinuationToken>{escape(found['nextPageToken'])}</NextContinuationToken>")
    for each in found.get("items", []):
        lines.append(
            f"<Contents><Key>{escape(each['name'])}</Key><Size>{each['size']}</Size>"
            f"<LastModified>{each['updated']}</LastModified><ETag>{escape(each['etag'])}</ETag></Contents>"
        )
    prefixes = (f"<Prefix>{escape(name)}</Prefix>" for name in found.get("prefixes", []))
    lines += [f"<CommonPrefixes>{prefix}</CommonPrefixes>" for prefix in prefixes]
    return "".join([*lines, "</ListBucketResult>"]).encode()
