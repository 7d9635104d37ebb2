"""The conda recipe is built and tested by rattler-build, from a channel of stand-ins for conda-forge's.

Each stand-in has the name and the version of a package, and no content: modules are those of the environment
of this test, which the stand-in of Python reads. So this is about the recipe, not about what conda-forge has.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "deploy" / "conda" / "recipe.yaml"

pytestmark = pytest.mark.slow

rattler_build: Any = pytest.importorskip("rattler_build")
for module in ("hatchling", "hatch_vcs", "pip"):
    pytest.importorskip(module)

OF_PYPI = {"dask-core": "dask"}
"""Names of packages in PyPI, where they are others."""


def write_python(channel: Path, staged: Path) -> None:
    """Package an interpreter like that of a virtual environment, which finds the modules of this one."""
    interpreter = os.path.realpath(sys.executable)
    major_minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    packages = staged / "lib" / f"python{major_minor}" / "site-packages"
    packages.mkdir(parents=True)
    (staged / "bin").mkdir()
    for name in ("python", "python3", f"python{major_minor}"):
        (staged / "bin" / name).symlink_to(interpreter)
    (staged / "pyvenv.cfg").write_text(f"home = {os.path.dirname(interpreter)}\n")
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "modules.pth").write_text("\n".join(sorted(installed)))
    number = ".".join(map(str, sys.version_info[:3]))
    rattler_build.assemble_package("python", number, "linux-64", "0_cpython", channel, files_dir=staged)


def write_index(folder: Path) -> None:
    """Write the file that lists the packages of a folder of a channel."""
    packages = {}
    for file in folder.glob("*.conda"):
        name, number, build = file.stem.rsplit("-", 2)
        content = file.read_bytes()
        packages[file.name] = {
            "name": name,
            "version": number,
            "build": build,
            "build_number": 0,
            "depends": [],
            "subdir": folder.name,
            "size": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    index = {
        "info": {"subdir": folder.name},
        "packages": {},
        "packages.conda": packages,
        "repodata_version": 1,
    }
    (folder / "repodata.json").write_text(json.dumps(index))


@pytest.fixture
def channel(tmp_path: Path) -> str:
    requirements = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))["requirements"]
    names = {line.split()[0] for part in requirements.values() for line in part} - {"python", "__linux"}
    for folder in ("linux-64", "noarch"):
        (tmp_path / "channel" / folder).mkdir(parents=True)
    write_python(tmp_path / "channel" / "linux-64", tmp_path / "python")
    for name in sorted(names):
        staged = tmp_path / name / "share"
        staged.mkdir(parents=True)
        (staged / name).write_text("a stand-in")
        number = version(OF_PYPI.get(name, name))
        folder = tmp_path / "channel" / "noarch"
        rattler_build.assemble_package(
            name, number, "noarch", "0", folder, files_dir=staged.parent, noarch="generic"
        )
    for folder in (tmp_path / "channel").iterdir():
        write_index(folder)
    return (tmp_path / "channel").as_uri()


@pytest.mark.filterwarnings("ignore:build_recipes is deprecated")
def test_the_recipe_is_built_and_tested(
    channel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own tests are run: the imports, `pip check` and the commands."""
    monkeypatch.setenv("VERSION", "7.8.9")
    rattler_build.build_recipes([RECIPE], channel=[channel], output_dir=tmp_path / "out", test="native")
    (file,) = (tmp_path / "out" / "noarch").glob("*.conda")
    package = rattler_build.Package.from_file(file)
    assert (package.name, str(package.version)) == ("factorflow", "7.8.9")
    files = set(package.files)
    assert "site-packages/factorflow/report/report.html.j2" in files
    assert "site-packages/flows/fit.py" in files
    assert any(name.endswith("licenses/LICENSE") for name in files)
    assert not [name for name in files if "tests/ground" in name]
    assert len(package.tests) == 2
