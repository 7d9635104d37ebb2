"""Places that lack something: a cache that can be written, a terminal with Greek letters, a disk to write."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorflow.cli.output import _print_result
from factorflow.errors import InputError

NO_LOCATORS = """
import numba.core.caching as caching
for kind in list(vars(caching).values()):
    if isinstance(kind, type) and kind.__name__.endswith("Locator") and hasattr(kind, "from_function"):
        kind.from_function = classmethod(lambda cls, function, path: None)
"""


@pytest.mark.slow
def test_a_fit_without_a_place_for_compiled_code(tmp_path: Path) -> None:
    """Whatever is compiled is compiled without a cache, as said once; the doctor names the variable."""
    (tmp_path / "sitecustomize.py").write_text(NO_LOCATORS)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    code = """
import numpy as np, factorflow as ff
from factorflow.cli.doctor import _compiled_code
x = np.random.default_rng(0).normal(size=(40, 4))
data = ff.write_dataset("d", {"x": x, "c": np.random.default_rng(0).poisson(3, (40, 3))})
ff.fit(data, ff.models.SparseGFA(n_factors=1), max_iter=1, progress=False)
check = _compiled_code()
print(check.ok, check.remedy)
"""
    environment = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stderr.count("NUMBA_CACHE_DIR") == 1
    assert run.stdout.startswith("False Set NUMBA_CACHE_DIR")


def _double(x: int) -> int:
    return 2 * x


def test_no_place_for_compiled_code(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    from factorflow.kernels import compile as compiling
    from factorflow.kernels import shared_cache

    def cache(function: Any, stamp: Any) -> Any:
        raise RuntimeError("cannot cache function 'double': no locator available for file 'x.py'")

    monkeypatch.setattr(shared_cache, "SharedCache", cache)
    compiling._log_compilation.cache_clear()
    with caplog.at_level(logging.WARNING, "factorflow"):
        assert [compiling.jit(_double, cache=True)(2) for _ in range(2)] == [4, 4]
    assert caplog.text.count("NUMBA_CACHE_DIR") == 1


def test_a_terminal_without_greek(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    _print_result("β-catenin of Zürich")
    assert raw.getvalue() == b"\\u03b2-catenin of Z\\xfcrich\n"


def test_select_on_a_disk_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import factorflow
    from factorflow.workflow.select import select

    data = factorflow.write_dataset(tmp_path / "d", {"y": np.random.default_rng(0).normal(size=(40, 4))})
    made = Path.mkdir

    def mkdir(self: Path, *given: Any, **named: Any) -> None:
        if "read-only" in str(self):
            raise OSError(30, "Read-only file system", str(self))
        made(self, *given, **named)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(InputError, match="Read-only file system"):
        select(data, {"model": "sparse_gfa"}, {"n_factors": [1]}, out=tmp_path / "read-only" / "s")


def test_settings_of_a_store_that_were_corrected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    from factorflow.storage.remote import RemotePath

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    first = RemotePath("s3://bucket/x")._client
    assert RemotePath("s3://bucket/x")._client is first
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:10")
    assert RemotePath("s3://bucket/x")._client is not first
    key = tmp_path / "key"
    key.write_text("a")
    os.utime(key, (1, 1))
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(key))
    second = RemotePath("s3://bucket/x")._client
    os.utime(key, (2, 2))
    assert RemotePath("s3://bucket/x")._client is not second


def test_a_view_called_time(tmp_path: Path) -> None:
    import factorflow

    t = np.linspace(0.0, 1.0, 40)[:, None]
    data = factorflow.write_dataset(tmp_path / "d", {"y": np.sin(6 * t), "time": t})
    np.testing.assert_allclose(data.values("time"), t, rtol=1e-6)
    assert list(factorflow.open_dataset(tmp_path / "d").views) == ["y", "time"]
    given = factorflow.write_dataset(tmp_path / "g", {"y": t, "time": t}, inputs={"time": "covariate"})
    model = factorflow.models.GPLVMCMF(n_factors=1, given=("time",)).build(given.meta())
    assert model.settings.given == ("time",)
    with pytest.raises(InputError, match="view name = time: expected another name"):
        factorflow.write_dataset(tmp_path / "e", {"y": t, "time": t}, sequences=[0] * 40)


def test_a_full_disk_is_told_from_a_damaged_table(tmp_path: Path) -> None:
    """Whatever is spooled says why it could not be written; /dev/full is a disk without any room."""
    from factorflow.data.tables.columns import append

    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    with pytest.raises(OSError, match="No space left") as caught, Path("/dev/full").open("wb") as out:
        append(out, np.zeros(100_000))
    assert caught.value.errno == 28


@pytest.mark.thorough
def test_a_fit_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    """In a process of its own: packages that are imported for the first time take part."""
    code = f"""
import gc, os, random, signal, sys, threading
import numpy as np, pandas, xarray
import factorflow as ff

def state():
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)]
    python = [sys.excepthook, threading.excepthook, sys.getrecursionlimit(), sys.getswitchinterval()]
    return [dict(os.environ), os.getcwd(), handlers, python, random.getstate(), str(np.random.get_state()),
            np.geterr(), gc.isenabled(), gc.get_threshold(), sys.modules["__main__"], list(sys.path)]

signal.signal(signal.SIGUSR1, lambda *_: None)
np.seterr(all="raise")  # which a fit does not meet
before = state()
rng = np.random.default_rng(0)
x = rng.normal(size=(80, 2)) @ rng.normal(size=(2, 9)) + 0.5 * rng.normal(size=(80, 9))
views = {{"x": x, "b": (x > 0) * 1.0, "c": rng.poisson(np.exp(x / 4)) * 1.0}}
data = ff.write_dataset({str(tmp_path / "d")!r}, views, {{"b": "bernoulli", "c": "poisson"}})
model = ff.models.SparseGFA(n_factors=2, max_iter=8, warmup_iter=3)
posterior = ff.fit(data, model, progress=False, holdout=0.1)
posterior.project(data, progress=False)
posterior.summary()
print([i for i, (one, other) in enumerate(zip(before, state())) if one != other])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert done.stdout.split() == ["[]"], done.stderr[-2000:]
