"""Names of a package that are imported on first use (PEP 562), so that importing the package stays light."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import FunctionType
from typing import Any

from factorflow.core.garbage import rare_collection


def names_of(package: str, public: Sequence[str]) -> Callable[[], list[str]]:
    """Return a module's ``__dir__``: its public names, also those that are imported on first use."""

    def listed() -> list[str]:
        return sorted({*public, *(name for name in vars(sys.modules[package]) if name.startswith("__"))})

    return listed


def on_first_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that imports names from where they live.

    Parameters
    ----------
    homes : mapping of str to str
        Public name to the module it is in; the name itself where it is a module.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with rare_collection:
            module = import_module(homes[name])
        return module if homes[name] == f"{package}.{name}" else public(getattr(module, name), package, name)

    return get


def public(value: Any, package: str, name: str) -> Any:
    """Return a public name; functions are wrapped to check arguments and close figures on failure."""
    if not isinstance(value, FunctionType) or hasattr(value, "is_checked"):
        return value
    key = package, name
    if key not in _PUBLIC or _PUBLIC[key][0] is not value:
        from factorflow.core.arguments import closing_figures, name_wrong_arguments

        call = name_wrong_arguments(closing_figures(value), f"{package}.{name}")
        call.__module__, call.__qualname__ = package, name  # where pickle finds it again
        call.__dict__["is_checked"] = True
        _PUBLIC[key] = value, call
    return _PUBLIC[key][1]


_PUBLIC: dict[tuple[str, str], tuple[Any, Any]] = {}
"""By package and name, a function, and what users call in its place."""
