"""The same at az://, against the emulator Azurite (`npm install azurite`), where it is on the PATH."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from contract_tools import assert_same_bits

import factorflow
from factorflow import place
from factorflow.errors import InputError, RunError
from factorflow.place import as_place

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


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """URL of an empty container."""
    pytest.importorskip("obstore")
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("azurite-blob is not on the PATH")
    command = [program, "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    server = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            try:
                make_container("bucket")
                break
            except OSError:
                time.sleep(0.1)
        given = {"USE_EMULATOR": "true", "ACCOUNT_NAME": ACCOUNT, "ACCOUNT_KEY": KEY}
        for name, value in given.items():
            monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
        place._client.cache_clear()
        yield "az://bucket"
    finally:
        place._client.cache_clear()
        server.terminate()
        server.wait(10)


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
    assert not list(as_place(f"{container}/p.zarr.run").within())
    with pytest.raises(InputError, match="overwrite=True"):
        factorflow.fit(data, config, **options)
    factorflow.fit(data, config, **options, overwrite=True, seed=1).verify()


def test_conditional_requests_and_errors(container: str) -> None:
    there = as_place(f"{container}/x")
    there.put(b"1", new=True)
    with pytest.raises(FileExistsError):
        there.put(b"2", new=True)
    with pytest.raises(FileExistsError):
        there.put(b"2", instead='"0x123"')
    there.put(b"3", instead=there.version()[0])
    assert there.read_bytes() == b"3"
    with pytest.raises(InputError, match=r"az://nothere = |az://nothere: .*a bucket that exists"):
        factorflow.open_dataset("az://nothere/d.zarr")
