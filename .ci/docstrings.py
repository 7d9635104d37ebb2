"""Fail where the docstring of a public name lacks parameters, returns or a text: numpydoc's validation.

Public are the names of docs/reference and the public members of the classes among them that this package
defines. Fields of options are documented as the site is built (docs/conf.py), and those that a function takes
stand together, out of order (`document_options`). An override without a section Parameters is documented by
what it overrides.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name

from numpydoc.validate import validate

from factorflow.settings import Options

CODES = {"GL08", "PR01", "PR02", "PR03", "RT01"}
"""No docstring; parameters that are missing, unknown or in another order; no section Returns."""

MEMBERS = (classmethod, staticmethod, property, cached_property)


def listed() -> Iterator[str]:
    """Yield the names in the reference."""
    for page in sorted((Path(__file__).parents[1] / "docs" / "reference").glob("*.rst")):
        module, inside = "", False
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith(".. "):
                module = line.removeprefix(".. currentmodule:: ") if "currentmodule" in line else module
                inside = line.startswith(".. autosummary::")
            elif inside and re.fullmatch(r"   [\w.]+", line):
                yield f"{module}.{line.strip()}"


def members(cls: type) -> Iterator[str]:
    """Yield the public members of a class that say something of their own."""
    homes = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "factorflow"]
    for name in dict.fromkeys(name for base in homes for name in vars(base)):
        found = [vars(base)[name] for base in homes if name in vars(base)]
        is_member = inspect.isfunction(found[0]) or isinstance(found[0], MEMBERS)
        if name.startswith(("_", "check_")) or not is_member:
            continue
        if len(found) == 1 or "Parameters\n" in (found[0].__doc__ or ""):
            yield name


def errors(name: str) -> Iterator[str]:
    """Yield what is wrong with the docstring of a name."""
    obj, left_out = resolve_name(name), set[str]()
    if inspect.isclass(obj) and issubclass(obj, Options):
        left_out = {"PR01"}
    elif inspect.isfunction(obj) or inspect.ismethod(obj):
        left_out = {"PR03"} if "@document_options(" in inspect.getsource(obj) else left_out
    for code, text in validate(name)["errors"]:
        if code in CODES - left_out:
            yield f"{name}: {code} {text}"


def main() -> int:
    """Print what is wrong; return 1 if something is."""
    found: list[str] = []
    for name in listed():
        obj = resolve_name(name)
        found += errors(name)
        for member in members(obj) if inspect.isclass(obj) else ():
            found += errors(f"{name}.{member}")
    print("\n".join(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
