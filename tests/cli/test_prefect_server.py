"""Settings of Prefect that flows could not run with are named at once."""

from __future__ import annotations

import os
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from factorflow.cli import doctor, prefect_server
from factorflow.cli.prefect_server import check_prefect, exempt_local_server
from factorflow.errors import InputError

ROOT = Path(__file__).parents[2]


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
    file.write_text("no database" * 100)
    with pytest.raises(InputError, match=f"database {file} = another: expected an SQLite file"):
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


def refusing(connection: socket.socket) -> None:
    """Speak as PostgreSQL does to a wrong password."""
    fields = (b"SFATAL", b"C28P01", b'Mpassword authentication failed for user "prefect"', b"")
    answer = b"".join(field + b"\0" for field in fields)
    with connection:
        if not connection.recv(8):  # it only looked whether somebody is there
            return
        connection.sendall(b"N")  # no TLS
        connection.recv(1000)
        connection.sendall(b"E" + struct.pack("!i", 4 + len(answer)) + answer)


def test_a_database_that_does_not_answer_or_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, without the password."""
    pytest.importorskip("asyncpg")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        url = f"postgresql+asyncpg://prefect:secret@127.0.0.1:{port}/prefect"
        answering = threading.Thread(target=lambda: [refusing(server.accept()[0]) for _ in range(2)])
        answering.start()
        with pytest.raises(InputError, match="lets Prefect in .*password authentication failed") as caught:
            check_prefect(home=str(tmp_path), database=url)
        answering.join(10)
        assert "secret" not in str(caught.value)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", url)
    found = doctor._prefect()
    shown = f"PREFECT_API_DATABASE_CONNECTION_URL = postgresql+asyncpg://...@127.0.0.1:{port}/prefect"
    assert not found.ok
    assert found.found.startswith(f"{shown}: expected a database that answers ([Errno 111]")


PROFILE = "active = 'lab'\n[profiles.lab]\n"


def run(home: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    given |= environment | {"PREFECT_HOME": str(home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    return subprocess.run([sys.executable, *command], env=given, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("environment", "profiles", "said"),
    [
        (
            {"PREFECT_API_ENABLE_HTTP2": "maybe"},
            "",
            "PREFECT_API_ENABLE_HTTP2 = maybe: expected a valid",
        ),
        ({"PREFECT_LOGGING_LEVEL": "loud"}, "", "PREFECT_LOGGING_LEVEL = loud: expected 'DEBUG', 'INFO'"),
        ({}, "profiles = 3", "settings of Prefect = {home}/profiles.toml: expected profiles as"),
        ({}, f"{PROFILE}PREFECT_API_URL = 5", "url of Prefect's settings = 5: expected a valid string"),
        ({}, f"{PROFILE}PREFECT_API_URL = 'http://127.0.0.1:1/api'", "PREFECT_API_URL = http://127.0.0.1:1"),
    ],
)
def test_the_doctor_reads_what_prefect_reads(
    tmp_path: Path, environment: dict[str, str], profiles: str, said: str
) -> None:
    """Profiles, too; of what Prefect cannot read it names setting and file."""
    pytest.importorskip("prefect")
    (tmp_path / "profiles.toml").write_text(profiles)
    looks = "from factorflow.cli.doctor import _prefect; found = _prefect(); print(found.ok, found.found)"
    assert f"False {said.format(home=tmp_path)}" in run(tmp_path, "-c", looks, **environment).stdout


@pytest.mark.thorough
def test_a_flow_names_what_prefect_cannot_read(tmp_path: Path) -> None:
    """In place of Prefect's traceback."""
    pytest.importorskip("prefect")
    (tmp_path / "profiles.toml").write_text("[x")
    done = run(tmp_path, "-m", "flows.fit", "--help")
    said = f"error: settings of Prefect = {tmp_path}/profiles.toml: expected a TOML file (Expected ']'"
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
