"""Checks of a Prefect server, or of the requirements of an embedded one, before Prefect waits for it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sqlite3
import tomllib
import warnings
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from traceback import walk_tb
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, build_opener, getproxies, proxy_bypass

from factorflow.errors import InputError

LOCAL = ("127.0.0.1", "localhost")
"""Address of the server of a flow itself."""

DATABASE = "PREFECT_API_DATABASE_CONNECTION_URL"

READERS = "prefect.settings", "pydantic", "tomllib"
"""Modules in which errors of settings come up; others say what is wrong with an installation."""

ANSWER_SECONDS = 10.0
"""A server that answers at all does so within this time."""


def exempt_local_server() -> None:
    """Add this machine to NO_PROXY where a proxy is set: a flow asks its own server, not the proxy for it."""
    if getproxies():
        for name in ("no_proxy", "NO_PROXY"):
            hosts = [part.strip() for part in os.environ.get(name, "").split(",") if part.strip()]
            os.environ[name] = ",".join(dict.fromkeys([*hosts, *LOCAL]))


def read_settings() -> Any:
    """Return the settings of Prefect, of the environment and of its files.

    Raises
    ------
    InputError
        Naming the setting, or the file, that Prefect cannot read; Prefect's own error says neither.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prefect = import_module("prefect.settings")
            settings = prefect.Settings()
            prefect.load_profiles()
            return settings
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        *_, (frame, _) = walk_tb(error.__traceback__)
        if not str(frame.f_globals.get("__name__")).startswith(READERS):
            raise
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> InputError:
    home = Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    profiles = Path(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml").expanduser()
    for path in (profiles, Path("prefect.toml"), Path("pyproject.toml")):
        try:
            tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError:  # there is none
            pass
        except ValueError as wrong:
            expected, remedy = f"a TOML file ({wrong})", "Correct it, or move it away."
            return InputError("settings of Prefect", str(path), expected, remedy)
    files = f"{profiles}, prefect.toml, pyproject.toml or .env"
    for detail in getattr(error, "errors", list)():
        if not detail["loc"] or detail["type"] == "default_factory_not_called":  # what follows of another one
            continue
        value, key = str(detail["input"]), str(detail["loc"][-1])
        expected = str(detail["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
        for name, text in os.environ.items():
            ours = name.startswith("PREFECT_") and name.endswith(f"_{key.upper()}")
            if ours and text.lower() == value.lower():
                return InputError(name, text, expected, f"Correct it, or unset it (`unset {name}`).")
        return InputError(f"{key} of Prefect's settings", value, expected, f"Correct it in {files}.")
    expected = f"profiles as `prefect profile create` writes them ({type(error).__name__}: {error})"
    return InputError("settings of Prefect", str(profiles), expected, f"Correct {files}.")


def check_prefect(
    address: str | None = None,
    password: str | None = None,
    home: str | None = None,
    database: str | None = None,
    *,
    starts_server: bool = True,
) -> None:
    """Refuse settings of Prefect with which flows would wait, or fail with an error that does not name them.

    Parameters
    ----------
    address : str, optional
        PREFECT_API_URL; none: a flow starts a server of its own.
    starts_server : bool
        PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: whether a flow may start a server of its own.
    """
    _check_socks()
    if address:
        _check_address(address, password)
        return
    if not starts_server:  # also of a profile that says neither
        raise InputError(
            "PREFECT_API_URL",
            "not set",
            "the address of a Prefect server, since PREFECT_SERVER_ALLOW_EPHEMERAL_MODE is off",
            "Set it, or let flows start one: `prefect config set PREFECT_SERVER_ALLOW_EPHEMERAL_MODE=true`.",
        )
    folder = Path(home or "~/.prefect").expanduser()
    _check_home(folder)
    if database and database.startswith("postgresql+"):
        _check_postgres(database)
    path = _path_of(database) if database else folder / "prefect.db"
    if path is not None:
        _check_database(path)


def _check_socks() -> None:
    proxies = {name: url for name, url in getproxies().items() if url.startswith("socks")}
    if proxies and find_spec("socksio") is None:
        name, url = next(iter(proxies.items()))
        remedy = "Install it (`pip install socksio`), or unset the variable for flows."
        raise InputError(f"{name}_proxy", url, "socksio, by which Prefect speaks SOCKS", remedy)


def _check_address(address: str, password: str | None) -> None:
    """Ask a server for its version, as Prefect does first."""
    request = Request(f"{address.rstrip('/')}/admin/version")
    if password:
        request.add_header("Authorization", f"Basic {b64encode(password.encode()).decode()}")
    elif key := os.environ.get("PREFECT_API_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with build_opener().open(request, timeout=ANSWER_SECONDS) as answer:  # proxies as they are now
            if isinstance(json.loads(answer.read(1000)), str):  # "3.9.1"
                return
        what = "its answer is no version"
    except HTTPError as error:
        if error.code in (401, 403):
            expected = f"the password of the server at {address}"
            remedy = "Set it to user:password, as PREFECT_SERVER_API_AUTH_STRING of the server."
            value = "another one" if password else "not set"
            raise InputError("PREFECT_API_AUTH_STRING", value, expected, remedy) from None
        what = f"{error.code} {error.reason}"
    except (json.JSONDecodeError, UnicodeDecodeError):
        what = "its answer is no version: another program, or not the path /api of the server"
    except (URLError, OSError, ValueError) as error:
        what = str(getattr(error, "reason", error))
    host = (request.host or "").rpartition(":")[0] or request.host
    proxy = getproxies().get(request.type)
    by = "" if proxy is None or (host and proxy_bypass(host)) else f", asked by the proxy {proxy}"
    remedy = (
        "Start it (`prefect server start`), or take the setting away (`unset PREFECT_API_URL`, or in a "
        "profile `prefect config unset PREFECT_API_URL`): a flow then starts a server itself."
    )
    if by:
        remedy += f" Where it needs no proxy, add {host} to NO_PROXY."
    raise InputError("PREFECT_API_URL", address, f"a running Prefect server ({what}{by})", remedy)


def _check_home(folder: Path) -> None:
    """Make a file in the folder, or where it is to be made: rights do not tell on every disk."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    try:
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        expected = f"a folder that can be written ({error.strerror})"
        raise InputError("PREFECT_HOME", str(folder), expected, "Set it to a folder of yours.") from None


def _path_of(database: str) -> Path | None:
    """Return the file of a database of SQLite; None of others."""
    scheme, _, location = database.partition(":///")
    if scheme.startswith("sqlite"):
        path = Path(unquote(location.partition("?")[0]))
        if not location or location.startswith(":memory:") or location.startswith("file:"):
            return None
        if not path.parent.is_dir():
            expected = f"a file in a folder that exists (not {path.parent})"
            raise InputError(DATABASE, database, expected, "Make the folder, or correct the setting.")
        return path
    if not re.match(r"(sqlite|postgresql)\+\w+:", database):
        expected = "a URL such as sqlite+aiosqlite:////path/prefect.db or postgresql+asyncpg://host/name"
        text = database.partition("://")[0] + "://..." if "://" in database else database
        raise InputError(DATABASE, text, expected, "Correct it, or unset it.")
    return None


def _check_postgres(database: str) -> None:
    """Log in, as Prefect's server would: where it cannot, a flow waits for it as long as it may."""
    text = re.sub("//[^@/]*@", "//...@", database)
    remedy = "Start the database, or correct the setting; unset it for an SQLite database."
    try:
        where = urlsplit(database)
        if where.hostname:
            socket.create_connection((where.hostname, where.port or 5432), ANSWER_SECONDS).close()
    except (OSError, ValueError) as error:
        raise InputError(DATABASE, text, f"a database that answers ({error})", remedy) from None
    if not where.hostname or find_spec("asyncpg") is None:
        return
    asyncpg = import_module("asyncpg")

    async def log_in() -> None:
        address = f"postgresql://{where.netloc}{where.path}"
        await (await asyncpg.connect(address, timeout=ANSWER_SECONDS)).close()

    try:
        with ThreadPoolExecutor(1) as pool:  # asynchronous code may be running in this thread
            pool.submit(asyncio.run, log_in()).result()
    except asyncpg.PostgresError as error:
        raise InputError(DATABASE, text, f"a database that lets Prefect in ({error})", remedy) from None
    except (OSError, ValueError, asyncpg.InterfaceError):  # of TLS, say, of which the address knows more
        pass


def _check_database(path: Path) -> None:
    """Refuse a database that this version of Prefect cannot migrate: it does not know its last migration."""
    spec = find_spec("prefect")
    if spec is None or not spec.submodule_search_locations or not path.exists():
        return
    folder = Path(spec.submodule_search_locations[0], "server/database/_migrations/versions/sqlite")
    engines = {
        match[1]
        for file in folder.glob("*.py")
        if (
            match := re.search(
                r"^revision\b.*?[\"'](\w+)[\"']", file.read_text(encoding="utf-8"), re.MULTILINE
            )
        )
    }
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as opened:
            row = opened.execute("select version_num from alembic_version").fetchone()
            whole = opened.execute("select 1 from sqlite_master where name = 'flow_run'").fetchone()
    except sqlite3.Error as error:  # none yet; or locked by a server that runs
        if path.is_dir() or "not a database" in str(error):
            expected = f"an SQLite file ({'a folder' if path.is_dir() else error})"
            raise InputError(
                f"database {path}", "another", expected, "Move it, or choose another path."
            ) from None
        return
    if row and engines and (row[0] not in engines or not whole):
        remedy = "Install that version, set PREFECT_HOME to another folder, or move the file away."
        expected = "a whole database of the installed version of Prefect, or of one before it"
        value = f"one of another version, or a part of one (revision {row[0]})"
        raise InputError(f"database {path}", value, expected, remedy)
