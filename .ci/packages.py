"""Check what `python -m build` made: the files of the packages, their metadata, a whole source archive.

python .ci/packages.py dist
"""

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("factorflow", "flows")
LEFT_OUT = "benchmarks/results/"


def tracked(*folders: str) -> set[str]:
    """Return the names of the files that git knows."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", *folders]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")) - {""}


def check_wheel(file: Path) -> list[str]:
    """Return what is wrong with a wheel."""
    with zipfile.ZipFile(file) as packed:
        names = packed.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        found = message_from_bytes(packed.read(metadata))
        points = packed.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    inside = {name for name in names if ".dist-info/" not in name}
    wrong = [f"{name} is missing" for name in sorted(tracked(*PACKAGES) - inside)]
    wrong += [f"{name} does not belong to it" for name in sorted(inside - tracked(*PACKAGES))]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if set(found.get_all("Provides-Extra", [])) != set(project["optional-dependencies"]):
        wrong.append("its extras are not those of pyproject.toml")
    if found["Requires-Python"] != project["requires-python"]:
        wrong.append("it asks for another Python than pyproject.toml")
    if not any(name.endswith("licenses/LICENSE") for name in names):
        wrong.append("there is no licence")
    for name, function in project["scripts"].items():
        if f"{name} = {function}" not in points:
            wrong.append(f"there is no command {name}")
    return wrong


def check_sdist(file: Path) -> list[str]:
    """Return what is wrong with a source archive."""
    with tarfile.open(file) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    expected = {name for name in tracked() if not name.startswith(LEFT_OUT)}
    return [f"{name} is missing" for name in sorted(expected - inside)]


def main(folder: Path) -> None:
    """Check the one wheel and the one source archive in a folder."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    wrong = [f"{wheel.name}: {text}" for text in check_wheel(wheel)]
    wrong += [f"{sdist.name}: {text}" for text in check_sdist(sdist)]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
