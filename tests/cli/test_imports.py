"""The import rule, and what ``import factorflow`` costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import factorflow
import flows

ROOT = Path(factorflow.__file__).parent
FLOWS = Path(flows.__file__).parent

# Room (or module) of factorflow -> those it may import from, besides itself and the ground.
GROUND = {"errors", "kinds", "lazily", "shape", "trees", "files"}
MAY_IMPORT = {
    "errors": set(),
    "kinds": set(),
    "lazily": set(),
    "shape": set(),
    "trees": set(),
    "files": set(),
    "settings": set(),
    "kernels": set(),
    "data": {"kernels"},
    "models": {"kernels", "settings"},
    "posterior": {"data", "models", "kernels", "run"},
    "engine": {"data", "models", "kernels", "posterior"},
    "analysis": {"posterior", "data", "models", "kernels"},
    "report": {"analysis", "posterior", "models", "kernels", "data"},
    "doctor": {"engine"},
}
ONLY_IN = {
    "prefect": {"flows"},
    "distributed": {"factorflow/engine", "factorflow/run.py"},  # run.py names the type of a Client
    "anndata": {"factorflow/data", "factorflow/analysis", "factorflow/cli"},
    "matplotlib": {"factorflow/report", "factorflow/reproduce", "flows/artifacts.py"},
}
HEAVY = {
    "prefect",
    "dask",
    "distributed",
    "numba",
    "torch",
    "arviz",
    "matplotlib",
    "cupy",
    "pandas",
    "xarray",
    "zarr",
}


def sources() -> list[Path]:
    return sorted([*ROOT.rglob("*.py"), *FLOWS.rglob("*.py")])


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_directions_between_packages() -> None:
    wrong = []
    for path in ROOT.rglob("*.py"):
        part = path.relative_to(ROOT).with_suffix("").parts[0]
        if part not in MAY_IMPORT:
            continue
        allowed = {f"factorflow.{name}" for name in {part} | GROUND | MAY_IMPORT[part]}
        for name in sorted(imported(path)):
            inside = name.startswith("factorflow.") and not any(
                (name + ".").startswith(a + ".") for a in allowed
            )
            if inside and not any((a + ".").startswith(name + ".") for a in allowed):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("library", ONLY_IN)
def test_libraries_stay_where_they_belong(library: str) -> None:
    top = ROOT.parent
    wrong = [
        str(path)
        for path in sources()
        if any(name.split(".")[0] == library for name in imported(path))
        and not any(
            str(path.relative_to(top if ROOT in path.parents else FLOWS.parent)).startswith(a)
            for a in ONLY_IN[library]
        )
    ]
    assert not wrong, "\n".join(wrong)


def test_import_is_light() -> None:
    code = f"import sys, factorflow; print(*sorted({HEAVY!r} & set(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert loaded == []


def test_help_imports_no_heavy_library() -> None:
    code = f"import sys, factorflow.cli; print(*sorted({HEAVY!r} & set(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert loaded == []


def test_every_public_name_exists() -> None:
    for name in factorflow.__all__:
        assert getattr(factorflow, name) is not None


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        factorflow.no_such_name  # noqa: B018
    with pytest.raises(AttributeError, match="NoSuchModel"):
        factorflow.models.NoSuchModel  # noqa: B018
