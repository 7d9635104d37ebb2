"""The import rule, and what ``import factorflow`` costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import factorflow
import flows

ROOT = Path(factorflow.__file__).parent
FLOWS = Path(flows.__file__).parent

# Package (or module) of factorflow -> those it may import from, besides itself and the ground; whether at the
# top of a file, in a function or for types only.
GROUND = {"errors", "core"}
BELOW_API = {"engine", "posterior", "data", "models", "kernels", "settings", "storage"}
MAY_IMPORT: dict[str, set[str]] = {
    **{name: set() for name in GROUND},
    "storage": set(),
    "settings": set(),
    "kernels": set(),
    "likelihoods": {"kernels"},
    "data": {"likelihoods", "kernels", "settings", "storage"},
    "models": {"likelihoods", "kernels", "settings"},
    "posterior": {"data", "models", "likelihoods", "kernels", "settings", "storage"},
    "engine": {"data", "models", "kernels", "posterior", "settings", "storage"},
    "api": {"analysis", *BELOW_API} - {"kernels"},
    "": {"api", "models", "data", "posterior", "analysis", "report", "tracking", "workflow"},  # public names
    "analysis": {"posterior", "data", "models", "kernels", "storage"},
    "report": {"api", "analysis", *BELOW_API},
    "tracking": {"api", "engine", "posterior"},
    "workflow": {"api", "analysis", "report", *BELOW_API},
    "cli": {"", "api", "analysis", "report", "workflow", "factorflow.workflow.refresh", *BELOW_API},
    "__main__": {"cli"},
}
FLOORS = (
    GROUND,
    {"kernels", "settings", "storage"},
    {"likelihoods"},
    {"models", "data"},
    {"posterior"},
    {"engine", "analysis"},
    {"api"},
    {"report", "tracking"},
    {"workflow", ""},
    {"cli", "__main__"},
)
"""Rooms import those of their own floor and of the floors before it."""
ONLY_IN = {
    "google_crc32c": {"factorflow/storage/checksums.py"},
    "obstore": {"factorflow/storage"},
    "prefect": {"flows"},
    # api names the type of a Client
    "distributed": {"factorflow/engine", "factorflow/api"},
    # api names the type of its objects
    "anndata": {"factorflow/data", "factorflow/analysis", "factorflow/cli", "factorflow/api"},
    "matplotlib": {"factorflow/report", "flows/artifacts.py"},
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
    "obstore",
    "pandas",
    "xarray",
    "zarr",
}


def sources() -> list[Path]:
    return sorted([*ROOT.rglob("*.py"), *FLOWS.rglob("*.py")])


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@cache
def graph() -> dict[str, set[str]]:
    """Return the modules of both packages, each with those of them that it imports anywhere in its text."""
    files = {}
    for path in sources():
        parts = path.relative_to(ROOT.parent if ROOT in path.parents else FLOWS.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    edges: dict[str, set[str]] = {}
    for module, path in files.items():
        found = set()
        for node in nodes(path):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}: a relative import"
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {name if name in files else str(node.module) for name in inner}
        edges[module] = (found & files.keys()) - {module}
    return edges


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in edges[module]:
            if other not in number:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == number[module]:
            component = stack[stack.index(module) :]
            del stack[-len(component) :]
            if len(component) > 1:
                found.append(sorted(component))

    for module in edges:
        if module not in number:
            visit(module)
    return found


def test_directions_between_rooms() -> None:
    edges = {name: others for name, others in graph().items() if name.split(".")[0] == "factorflow"}
    room = {name: (name.split(".") + [""])[1] for name in edges}
    assert set(room.values()) == set(MAY_IMPORT), "a room without a rule"
    wrong = [
        f"{name} imports {other}"
        for name, others in edges.items()
        for other in sorted(others)
        if room.get(other, other) not in {room[name]} | GROUND | MAY_IMPORT[room[name]]
    ]
    assert not wrong, "\n".join(wrong)


def test_ten_floors_and_no_import_that_runs_back_up() -> None:
    floor = {room: i for i, rooms in enumerate(FLOORS) for room in rooms}
    assert len(FLOORS) <= 10
    assert floor.keys() == MAY_IMPORT.keys()
    up = [
        (room, other)
        for room, others in MAY_IMPORT.items()
        for other in others
        if floor.get(other, 0) > floor[room]
    ]
    assert not up


def test_no_circles() -> None:
    assert not circles(graph())
    assert circles({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set()}) == [["a", "b", "c"]]


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


def test_no_family_is_named_outside_its_folder() -> None:
    """Code that is no family's knows none by name; docstrings may give examples, simulators have names."""
    from factorflow.models.registry import registered_models

    names = {name for name, kind in registered_models().items() if kind.__module__.startswith("factorflow.")}
    names |= {registered_models()[name].__name__ for name in names}
    allowed = {ROOT / "data/simulation", ROOT / "core/arguments.py", ROOT / "models"}
    for path in sources():
        if allowed.isdisjoint({path, *path.parents}):
            words = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}  # docstrings
            texts = {n.value for n in nodes(path) if isinstance(n, ast.Constant) and id(n) not in words}
            assert not names & texts, path
            named = {w for text in texts if isinstance(text, str) for w in re.findall(r"\w+", text)}
            assert not names & named, path


def test_flows_prepare_for_prefect() -> None:
    """Defaults of its server are set, and the extra is named, before anything of Prefect is imported."""
    found = {}
    for path in FLOWS.glob("*.py"):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "import " in line]
        first = [next((i for i, line in enumerate(lines) if line.startswith(words)), None)
                 for words in (("from prefect", "import prefect"), "import flows.prepare")]  # fmt: skip
        found[path.stem] = first
    assert {name for name, (prefect, _) in found.items() if prefect is not None} == {
        "artifacts", "fit", "notify", "refresh", "restore", "select", "serve", "submission", "submit",
        "tasks",
    }  # fmt: skip
    assert all(
        prepared is not None and prepared < prefect
        for prefect, prepared in found.values()
        if prefect is not None
    )


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


@pytest.mark.thorough
def test_a_fit_imports_its_family_alone(tmp_path: Path) -> None:
    """In this process, of a model by name: neither Dask's cluster nor other families."""
    factorflow.write_dataset(tmp_path / "d.zarr", {"x": np.random.default_rng(0).normal(size=(20, 3))})
    code = (
        "import sys, factorflow; factorflow.fit(sys.argv[1], {'model': 'sparse_gfa', 'n_factors': 1}, "
        "max_iter=2, progress=False); families = {m.split('.')[2] for m in sys.modules "
        "if m.startswith('factorflow.models.') and hasattr(sys.modules[m], '__path__')}; "
        "print('distributed' in sys.modules, *sorted(families))"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "d.zarr")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "sparse_gfa"]
