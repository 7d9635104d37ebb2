"""What factorflow does with its own dependencies alone; each optional package that is missing is named."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from factorflow.core.extras import EXTRAS

ROOT = Path(__file__).parents[2]
OPTIONAL = [*EXTRAS, "arviz_plots", "asyncpg", "fastapi", "prefect_kubernetes", "sklearn", "sqlalchemy"]

WITHOUT = f"""
import sys
sys.modules.update(dict.fromkeys({OPTIONAL!r}))  # importing one of them fails

import os
import numpy as np
import factorflow as ff
from factorflow.__main__ import main

folder, rng = sys.argv[1], np.random.default_rng(0)
y = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 8)) + 0.1 * rng.normal(size=(60, 8))

def refused(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except ff.InputError as error:
        print(str(error).rpartition("pip install ")[2])
"""

FIT = """
for name, views in {"numbers": {"y": y}, "binary": {"b": y > 0}}.items():
    dataset = ff.write_dataset(f"{folder}/{name}", views)
    posterior = ff.fit(dataset, ff.models.SparseGFA(n_factors=2), max_iter=3, holdout=0.1, progress=False)
    posterior.summary(), posterior.predict(next(iter(views))), posterior.holdout_scores()
    posterior.project(dataset)
ff.analysis.export_tables(posterior, f"{folder}/tables")

def command(*words):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as done:
        assert not done.code, (words, done.code)

np.save(f"{folder}/y.npy", y)
command("ingest", f"y={folder}/y.npy", "--out", f"{folder}/shell")
command("fit", f"{folder}/shell", "--set", "n_factors=2", "--max-iter", "3", "--out", f"{folder}/fitted")
command("summary", f"{folder}/fitted")
command("doctor", "--folder", folder)
print("done", *(name for name in OPTIONAL if sys.modules[name] is not None))
""".replace("OPTIONAL", repr(OPTIONAL))

REFUSED = {
    "report": """
dataset = ff.write_dataset(f"{folder}/d", {"y": y})
posterior = ff.fit(dataset, ff.models.SparseGFA(n_factors=2), max_iter=2, progress=False)
refused(lambda: ff.report.plot_scores(posterior))
refused(lambda: ff.report.write_report(posterior, f"{folder}/report.html"))
from factorflow.workflow.select import select
refused(select, dataset, {"model": "sparse_gfa"}, {"n_factors": [1, 2]}, out=f"{folder}/selection")
""",
    "dashboard": """
dataset = ff.write_dataset(f"{folder}/d", {"y": y})
refused(ff.fit, dataset, ff.models.SparseGFA(n_factors=2), max_iter=2, progress=False, metrics="127.0.0.1:0")
""",
    "omics": """
open(f"{folder}/x.h5ad", "wb").write(b"")
open(f"{folder}/x.mat", "wb").write(bytes(512) + bytes([137]) + b"HDF\\r\\n\\x1a\\n")
dataset = ff.write_dataset(f"{folder}/d", {"y": y})
posterior = ff.fit(dataset, ff.models.SparseGFA(n_factors=2), max_iter=2, progress=False)
refused(ff.write_dataset, f"{folder}/e", f"{folder}/x.h5ad")
refused(ff.write_dataset, f"{folder}/e", f"{folder}/x.mat")
refused(ff.analysis.export_mofa, posterior, f"{folder}/m.hdf5")
""",
    "cloud": """
refused(ff.open_dataset, "s3://bucket/dataset")
refused(ff.open_dataset, "gs://bucket/dataset")
""",
    "flows": """
from importlib import import_module
for name in ("fit", "refresh", "select", "serve"):
    refused(import_module, f"flows.{name}")
""",
    "gplvm": """
dataset = ff.write_dataset(f"{folder}/d", {"y": y})
refused(ff.fit, dataset, ff.models.GPLVMCMF(n_factors=1))
""",
    "jobqueue": """
dataset = ff.write_dataset(f"{folder}/d", {"y": y})
cluster = {"class": "dask_jobqueue.SLURMCluster", "kwargs": {"cores": 1, "memory": "1GB"}}
refused(ff.fit, dataset, ff.models.SparseGFA(n_factors=1), executor=cluster)
""",
}
"""By extra, what cannot be done without it."""


def run(script: str, folder: Path) -> list[str]:
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT + script, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.thorough
def test_a_fit_needs_no_optional_package(tmp_path: Path) -> None:
    assert run(FIT, tmp_path)[-1] == "done"


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What one process prints that tries all of them, each in a folder of its own."""
    begin = 'folder = os.path.join(sys.argv[1], "{0}")\nos.mkdir(folder)\nprint("{0}:")\n'
    script = "".join(begin.format(extra) + script for extra, script in REFUSED.items())
    return run(script, tmp_path_factory.mktemp("without"))


@pytest.mark.thorough
@pytest.mark.parametrize("extra", REFUSED)
def test_missing_extras_are_named(extra: str, lines: list[str]) -> None:
    expected = [f"'factorflow[{extra}]'."] * REFUSED[extra].count("refused(")
    if extra == "flows":
        expected *= 4
    begin = lines.index(f"{extra}:") + 1
    end = next((i for i in range(begin, len(lines)) if lines[i].endswith(":")), len(lines))
    assert lines[begin:end] == expected


def test_extras_bring_what_errors_promise() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras, packages = project["optional-dependencies"], {"PIL": "pillow"}
    assert set(EXTRAS.values()) <= extras.keys()
    for module, extra in EXTRAS.items():
        if module in {"cupy", "dask_cuda"}:  # of the extra for one version of CUDA
            extra = "gpu-cu12"
        package = {"bokeh": "dask[diagnostics]"}.get(module, packages.get(module, module.replace("_", "-")))
        assert any(line.startswith(package) for line in extras[extra]), f"{extra} does not bring {module}"
    core = " ".join(project["dependencies"])
    assert not [module for module in OPTIONAL if module.replace("_", "-") in core]
    assert "diagnostics" not in core


def test_upper_bounds_say_which_break_they_are_of() -> None:
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    first, last = (lines.index(line) for line in ("dependencies = [", "[project.scripts]"))
    bounded = [line for line in lines[first:last] if re.search(r"[\w\]]<=?\d", line)]
    assert len(bounded) == 3
    assert not [line for line in bounded if "https://" not in line]


def test_the_oldest_versions_are_those_of_pyproject() -> None:
    command = [sys.executable, str(ROOT / ".ci" / "oldest.py")]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for line in requirements["dependencies"]:
        name, _, version = line.partition(">=")
        assert f"{name.partition('[')[0]}=={version}" in found
    assert not [line for line in found if line.startswith(("factorflow", "torch"))]
