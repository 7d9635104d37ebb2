"""``python -m flows.fit`` with no server running before."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

import factorflow
from factorflow.cli import output
from factorflow.models import SparseGFA

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "multiple_features.npz"

pytestmark = pytest.mark.timeout(600)


def command(*more: object) -> list[str]:
    return [sys.executable, "-m", "flows.fit", str(EXAMPLE), *(str(word) for word in more)]


@pytest.mark.slow
def test_it_starts_what_it_needs(processes: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = command("--out", out, "--set", "n_factors=15", "--workers", 2, "--max-iter", 60)
    log: list[str] = []
    page = ""
    with subprocess.Popen(
        arguments, cwd=ROOT, env=processes.env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            log.append(line)
            if "Dask dashboard: " in line:
                with urlopen(line.split("Dask dashboard: ")[1].strip(), timeout=30) as answer:
                    page = answer.read().decode()
        assert process.wait() == 0, "".join(log)
    assert "Bokeh" in page, "".join(log)
    assert "needs bokeh" not in page
    text = "".join(log)
    for name in ("posterior.zarr", "summary.json", "report.html"):
        assert str(out / name) in text
        assert (out / name).exists()


def invoke(*options: object) -> Result:
    """Run the command in this process."""
    pytest.importorskip("prefect")
    from flows.fit import main

    app = typer.Typer()
    output.command(app)(main)
    return CliRunner().invoke(app, [*command(*options)[3:], "--json"])


@pytest.mark.parametrize(
    ("option", "named"), [("--set=n_factors=0", "n_factors"), ("--holdout=2", "holdout")]
)
def test_bad_input_exits_with_2(option: str, named: str, tmp_path: Path) -> None:
    done = invoke("--out", tmp_path / "out", option)
    assert done.exit_code == 2
    assert json.loads(done.stdout)["error"]["parameter"] == named


def test_a_source_is_looked_for_before_a_server_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prefect")
    from factorflow.errors import InputError
    from factorflow.settings import RunOptions, SourceOptions
    from flows import fit

    monkeypatch.setattr(fit, "naming_server", lambda: pytest.fail("a server"))
    with pytest.raises(InputError, match=r"absent\.csv: expected a file or folder that exists"):
        fit.main(Path("absent.csv"), Path("out"), None, RunOptions(), SourceOptions())  # type: ignore[arg-type]


@pytest.mark.thorough
def test_a_terminal_says_that_prefect_is_loaded() -> None:
    """It takes several seconds."""
    pytest.importorskip("prefect")
    terminal, stderr = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    subprocess.run([sys.executable, "-c", "import flows.prepare"], cwd=ROOT, stderr=stderr, check=True)
    assert b"loading Prefect [00:00]" in os.read(terminal, 10_000)


def test_a_model_without_its_family_is_the_first_one() -> None:
    """And one that does not exist is refused with those there are."""
    pytest.importorskip("prefect")
    from prefect.exceptions import ParameterTypeError

    from flows.fit import fit

    def checked(**model: Any) -> Any:
        return fit.validate_parameters({"source": "a.csv", "out": "b", "model": model})["model"]

    assert checked(n_factors=3) == SparseGFA(n_factors=3)
    assert checked(model="probit", n_factors=3).model == "probit"
    with pytest.raises(ParameterTypeError, match="sparse-gfa: expected one of .*gplvm_cmf, .*sparse_gfa"):
        checked(model="sparse-gfa", n_factors=3)


def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    pytest.importorskip("prefect")
    from prefect.settings import PREFECT_API_URL, temporary_settings

    address = "http://127.0.0.1:9/api"  # nobody listens there
    with temporary_settings({PREFECT_API_URL: address}):
        done = invoke("--out", tmp_path / "out")
    assert done.exit_code == 2
    error = json.loads(done.stdout)["error"]
    assert (error["parameter"], error["value"]) == ("PREFECT_API_URL", address)
    assert "prefect server start" in error["remedy"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param("SIGINT", marks=pytest.mark.slow), pytest.param("SIGTERM", marks=pytest.mark.thorough)],
)
def test_an_interrupt_says_how_to_go_on(name: str, processes: Any, tmp_path: Path) -> None:
    options = [
        "--executor",
        "local",
        "--set",
        "tol=1e-12",
        "--set",
        "max_iter=4000",
        "--checkpoint-every",
        "1",
    ]
    arguments = command("--out", tmp_path, *options)
    posterior = tmp_path / "posterior.zarr"
    restore = "import signal, runpy; signal.signal(signal.SIGINT, signal.default_int_handler)"
    script = f"{restore}; runpy.run_module('flows.fit', run_name='__main__')"
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments[3:]],
        cwd=ROOT,
        env=processes.env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        limit = time.monotonic() + 300
        while not (tmp_path / "posterior.zarr.run" / "manifest.json").exists():
            assert time.monotonic() < limit
            time.sleep(0.1)
        process.send_signal(getattr(signal, name))
        shown = process.communicate(timeout=120)[0]
    assert process.returncode == 130, shown
    assert f"To go on: factorflow resume {posterior}" in shown
    assert factorflow.open_posterior(posterior).run["status"] == "partial"


@pytest.mark.slow
def test_errors_come_without_traceback(processes: Any, tmp_path: Path) -> None:
    arguments = [
        sys.executable,
        "-m",
        "flows.fit",
        str(tmp_path / "nowhere.npz"),
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(
        arguments, cwd=ROOT, env=processes.env(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "nowhere.npz" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
