"""Processes that tests start, and one Prefect server for all of them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(ready: Callable[[], bool], what: str, seconds: float = 120) -> None:
    limit = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > limit:
            raise TimeoutError(f"{what} was not ready after {seconds:.0f} s")
        time.sleep(0.2)


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


@dataclass
class Processes:
    """Starts commands in the repository's root, as a deployment would; stops them at the end."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)
    _count: int = 0

    def env(self, **more: str) -> dict[str, str]:
        scripts = str(Path(sys.executable).parent)
        return {
            **os.environ,
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "PREFECT_HOME": str(self.folder / "prefect"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            **self.environment,
            **more,
        }

    def start(self, command: Sequence[str], **env: str) -> subprocess.Popen[bytes]:
        self._count += 1
        log = self._stack.enter_context((self.folder / f"{self._count:02d}-{command[0]}.log").open("wb"))
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=self.env(**env),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Background jobs of a shell, and all that they start, ignore SIGINT.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        self._stack.callback(_stop, process)
        return process

    def run(self, command: Sequence[str], timeout: float = 300, **env: str) -> str:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self.env(**env),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, (
            f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        return done.stdout

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        self._stack.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def started(folder: Path) -> Iterator[Processes]:
    processes = Processes(folder)
    try:
        yield processes
    finally:
        processes.close()


def database(processes: Processes) -> dict[str, str]:
    """Start PostgreSQL, if it is installed; return the environment of a Prefect server that works on it."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs or (os.getuid() == 0 and shutil.which("setpriv") is None):
        return {}
    binaries, port = programs[-1].parent, free_port()
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # another user has to see it
    processes._stack.callback(shutil.rmtree, folder, ignore_errors=True)
    other: list[str] = []
    if os.getuid() == 0:  # PostgreSQL does not run as root
        shutil.chown(folder, "postgres", "postgres")
        other = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    data, password = folder / "data", folder / "password"
    password.write_text("chosen\n")
    password.chmod(0o644)
    login = ["-U", "prefect", "--auth=scram-sha-256", f"--pwfile={password}"]
    processes.run([*other, str(binaries / "initdb"), "-D", str(data), *login])
    options = ["-h", "127.0.0.1", "-p", str(port), "-k", str(folder)]
    processes.start([*other, str(binaries / "postgres"), "-D", str(data), *options])
    ready = [str(binaries / "pg_isready"), "-h", "127.0.0.1", "-p", str(port), "-U", "prefect"]
    wait_for(lambda: subprocess.run(ready, capture_output=True, check=False).returncode == 0, "PostgreSQL")
    address = ["-h", "127.0.0.1", "-p", str(port), "-U", "prefect", "prefect"]
    processes.run([str(binaries / "createdb"), *address], PGPASSWORD="chosen")
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    name = "PREFECT_API_DATABASE_CONNECTION_URL"
    given = services["prefect-server"]["environment"][name]
    url = given.replace("${POSTGRES_PASSWORD:?choose a password}", "chosen")
    return {name: url.replace("@postgres:5432", f"@127.0.0.1:{port}")}


@pytest.fixture(scope="session")
def tools() -> ModuleType:
    """This module: test files cannot import it by name."""
    return sys.modules[__name__]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with started(tmp_path) as them:
        yield them


@pytest.fixture(scope="session")
def api_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Prefect server of the tests' own, with an empty database."""
    port = free_port()
    with started(tmp_path_factory.mktemp("server")) as them:
        them.start(["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)])
        url = f"http://127.0.0.1:{port}/api"
        wait_for(lambda: answers(f"{url}/health"), "the Prefect server")
        yield url


@pytest.fixture
def prefect_api(api_url: str) -> Iterator[str]:
    """Let flows of this process use the tests' server."""
    from prefect.logging.handlers import APILogHandler
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: api_url}):
        yield api_url
        APILogHandler().flush()  # before the server goes
