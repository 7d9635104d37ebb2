"""Array annotations are checked while the tests run; what they write goes to memory where there is room.

The annotations are those of every function and every dataclass of factorflow. Of each the first calls in a
file of tests: checks of all of them take longer than the fits. Workers that are processes of their own
(Dask's) check nothing.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from inspect import Signature, isclass, signature, unwrap
from types import FunctionType, ModuleType
from typing import Any

import dask
import pytest
from beartype import BeartypeConf, beartype
from jaxtyping import jaxtyped

with suppress(ImportError):  # the test of the core alone does without
    import hypothesis

    hypothesis.settings.register_profile(  # a busy machine is no failure
        "suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("suite")

ANNOTATED = re.compile(r"\b[A-Z]\w+\[(Array|np\.ndarray), [\"']")
CALLS = 3
"""Calls of a function that are checked in each file of tests."""

IN_MEMORY, ROOM = "/dev/shm", 4 << 30
"""Where the tests write, if so many bytes are free there: most of them wait for the disk else."""

_calls: Counter[Callable[..., Any]] = Counter()
_seen: set[Callable[..., Any]] = set()
"""Functions called so often that nothing is left to check."""

TYPES = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int will do for a float


def write_to_memory() -> None:
    """Make temporary files of this process, and of those it starts, files in memory; not if one was named."""
    there = os.path.isdir(IN_MEMORY) and os.access(IN_MEMORY, os.W_OK)
    if there and "TMPDIR" not in os.environ and shutil.disk_usage(IN_MEMORY).free > ROOM:
        os.environ["TMPDIR"] = tempfile.tempdir = IN_MEMORY


write_to_memory()


def of_arrays(annotation: Any, names: dict[str, Any]) -> Any:
    """Return an annotation in which arrays stand, and Any for others; raise where it cannot be read.

    Left to itself jaxtyping takes what it cannot read for Any.
    """
    if not isinstance(annotation, str) or not ANNOTATED.search(annotation):
        return Any
    try:
        return eval(annotation, names)
    except Exception as error:
        raise TypeError(f"{names['__name__']}: the annotation {annotation} cannot be read") from error


def with_checks(function: FunctionType, names: dict[str, Any]) -> Callable[..., Any]:
    """Return a function that checks the arrays it takes and gives at first; itself, where there are none."""
    whole = signature(function)
    parameters = [p.replace(annotation=of_arrays(p.annotation, names)) for p in whole.parameters.values()]
    returned = of_arrays(whole.return_annotation, names)
    if returned is Any and all(p.annotation is Any for p in parameters):
        return function
    function.__signature__ = Signature(  # type: ignore[attr-defined]
        parameters, return_annotation=Signature.empty if returned is Any else returned
    )
    checking = cache(lambda: jaxtyped(function, typechecker=TYPES))  # most functions are never called

    @wraps(function)
    def sometimes(*args: Any, **named: Any) -> Any:
        if function in _seen:
            return function(*args, **named)
        _calls[function] += 1
        if _calls[function] == CALLS:
            _seen.add(function)
        return checking()(*args, **named)

    return sometimes


@pytest.fixture(scope="session", autouse=True)
def _dashboards_anywhere() -> Iterator[None]:
    """Clusters of several test processes do not race for the port of the dashboard."""
    with dask.config.set({"factorflow.dashboard-address": "127.0.0.1:0"}):
        yield


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is left in the cache folder of who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FACTORFLOW_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", autouse=True)
def _each_file_counts_anew() -> None:
    _calls.clear()
    _seen.clear()


@pytest.fixture
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave figures of reports blank: to lay them out and write them takes longer than all the rest."""
    figure = pytest.importorskip("matplotlib.figure")
    svg = '<svg width="9" viewBox="0 0 9 9"></svg>'
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, file, **_: file.write(svg))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what CI runs beside the quick tests as slow; what is slow in itself stays no more than that."""
    for item in items:
        if item.get_closest_marker("slow"):
            item.own_markers = [mark for mark in item.own_markers if mark.name != "thorough"]
        elif item.get_closest_marker("thorough"):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Leave tests and modules, which stay, out of what Python looks through for garbage from now on."""
    gc.collect()
    gc.freeze()


def checked(value: Any, module: ModuleType) -> Any:
    """Return a function, method or property that checks its arrays, if it has any."""
    if isinstance(value, (classmethod, staticmethod)):
        return type(value)(checked(value.__func__, module))
    if isinstance(value, property):
        return property(checked(value.fget, module), value.fset, value.fdel, value.__doc__)
    if not isinstance(value, FunctionType) or unwrap(value).__module__ != module.__name__:
        return value
    return with_checks(value, vars(module))


def check(module: ModuleType) -> None:
    """Have the functions, methods and dataclasses of a module check their arrays.

    Functions inside functions are left alone: they would be prepared anew at every call. So are the scalar
    functions that Numba compiles, which have no annotations.
    """
    for name, value in list(vars(module).items()):
        if not isclass(value):
            vars(module)[name] = checked(value, module)
        elif value.__module__ == module.__name__:
            for key, member in list(vars(value).items()):
                if key == "__init__" and is_dataclass(value):
                    inherited = [vars(sys.modules[c.__module__]) for c in reversed(value.__mro__)]
                    names = {name: known for module_ in inherited for name, known in module_.items()}
                    value.__init__ = with_checks(member, names)
                elif isinstance(member, (FunctionType, classmethod, staticmethod, property)):
                    new = checked(member, module)
                    if new is not member:
                        setattr(value, key, new)


class Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        check(module)


class Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.split(".")[0] != "factorflow":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec


assert "factorflow" not in sys.modules, "imported before it can be checked"
sys.meta_path.insert(0, Finder())
