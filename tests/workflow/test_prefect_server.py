"""Settings of Prefect that flows could not run with are named at once."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from factorflow import doctor, prefect_server
from factorflow.errors import InputError
from factorflow.prefect_server import check_prefect, exempt_local_server


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.fixture
def address() -> Iterator[str]:
    """A server that lets in user:right alone."""

    class Guarded(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers.get("Authorization") == "Basic dXNlcjpyaWdodA=="
            body = b'"3.9.1"' if self.path == "/api/admin/version" else b"<html>a page</html>"
            self.send_response(200 if known else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Guarded)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/api"
    server.shutdown()
    server.server_close()


def test_a_password(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_prefect(address, "user:right")
    for password, value in ((None, "not set"), ("user:wrong", "another one")):
        with pytest.raises(InputError, match=f"PREFECT_API_AUTH_STRING = {value}"):
            check_prefect(address, password)
    monkeypatch.setenv("PREFECT_API_URL", address)
    assert "PREFECT_API_AUTH_STRING" in doctor._prefect().found
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "user:right")
    assert doctor._prefect().ok


def test_another_server(address: str) -> None:
    with pytest.raises(InputError, match="a running Prefect server .its answer is no version"):
        check_prefect(address.removesuffix("/api"), "user:right")


def test_a_proxy(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with pytest.raises(InputError, match="asked by the proxy http://127.0.0.1:9.*NO_PROXY"):
        check_prefect(address, "user:right")
    monkeypatch.setenv("no_proxy", "example.org")
    monkeypatch.setenv("NO_PROXY", "")
    exempt_local_server()
    assert os.environ["no_proxy"] == "example.org,127.0.0.1,localhost"
    check_prefect(address, "user:right")
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:9")
    monkeypatch.setattr(prefect_server, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="all_proxy = socks5://.*socksio"):
        check_prefect(None, home=str(tmp_path))


def test_a_home_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_prefect(home=str(tmp_path / "new" / "home"))
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").touch()
    for home in (tmp_path / "file" / "home", Path("/proc/nowhere")):
        with pytest.raises(InputError, match=f"PREFECT_HOME = {home}"):
            check_prefect(home=str(home))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", "/proc/nowhere")
    assert "PREFECT_HOME" in doctor._prefect().found


def test_a_database_of_another_version(tmp_path: Path) -> None:
    pytest.importorskip("prefect")
    path = tmp_path / "prefect.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table alembic_version (version_num varchar(32) not null)")
        database.execute("insert into alembic_version values ('5b0bd3b41a23')")  # a migration of 2023
        database.commit()
        with pytest.raises(InputError, match="a part of one"):
            check_prefect(home=str(tmp_path))
        database.execute("create table flow_run (id int)")
        database.commit()
        check_prefect(home=str(tmp_path))
        database.execute("update alembic_version set version_num = 'ffffffffffff'")
        database.commit()
    with pytest.raises(InputError, match=f"database {path} = one of another version.*ffffffffffff"):
        check_prefect(home=str(tmp_path), database=f"sqlite+aiosqlite:///{path}")
    check_prefect(home=str(tmp_path), database="postgresql+asyncpg://db/prefect")


def test_no_server_and_none_may_be_started(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        InputError, match="PREFECT_API_URL = not set.*PREFECT_SERVER_ALLOW_EPHEMERAL_MODE is off"
    ):
        check_prefect(home=str(tmp_path), starts_server=False)
    check_prefect(address, "user:right", starts_server=False)
    for name in ("PREFECT_API_URL", "PREFECT_API_DATABASE_CONNECTION_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    for value, fine in (("False", False), ("true", True)):
        monkeypatch.setenv("PREFECT_SERVER_ALLOW_EPHEMERAL_MODE", value)
        assert doctor._prefect().ok is fine


def test_databases_that_are_none(tmp_path: Path) -> None:
    home, file = str(tmp_path), tmp_path / "x.db"
    check_prefect(home=home, database=f"sqlite+aiosqlite:///{file}")  # none yet
    check_prefect(home=home, database="sqlite+aiosqlite:///:memory:")
    check_prefect(home=home, database="postgresql+asyncpg://user:word@db/prefect")
    file.write_text("no database" * 100)
    with pytest.raises(InputError, match=f"database {file} = another: expected a file of SQLite"):
        check_prefect(home=home, database=f"sqlite+aiosqlite:///{file}")
    (tmp_path / "prefect.db").mkdir()
    with pytest.raises(InputError, match="prefect.db = another.*a folder"):
        check_prefect(home=home)
    with pytest.raises(InputError, match=f"a folder that exists .not {tmp_path}/none"):
        check_prefect(home=home, database=f"sqlite+aiosqlite:///{tmp_path}/none/x.db")
    for wrong, shown in (("prefect", "prefect"), ("mysql://user:word@db/prefect", "mysql://...")):
        with pytest.raises(InputError, match=f"CONNECTION_URL = {shown}") as found:
            check_prefect(home=home, database=wrong)
        assert "word" not in str(found.value)
