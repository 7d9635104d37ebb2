"""Which tests a mutant is shown to where there is no map: those beside it that name what is faulty first."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Mapping
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from mutants import Mutant

NUMBERS = "tests/contract/test_numbers.py"


def likely_tests(root: Path, mutant: Mutant, config: Mapping[str, Any]) -> list[str]:
    """Return files (of the contract suite: cases) in the order in which they may notice a fault.

    Known numbers of the family; its namesakes; those that name what is around the fault, or the module; the
    others beside it, and files elsewhere that import the module. The small ones first.
    """
    home = [p for glob, patterns in config["home"].items() if fnmatch(mutant.path, glob) for p in patterns]
    compiled = [patterns for glob, patterns in config["compiled"].items() if fnmatch(mutant.path, glob)]
    patterns = [*home, *(compiled[0] if compiled else [])]
    source = (root / mutant.path).read_text()
    names = names_around(source, mutant.line)
    module = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    ranked = []
    for name, text in _tests(root).items():
        if any(fnmatch(name, p) for p in config["unasked"]):
            continue
        cases = [p for p in patterns if name == NUMBERS and p.startswith(name)]
        beside = any(fnmatch(name, p) for p in patterns if p not in cases)
        named = sum(bool(re.search(rf"\b{n}\b", text)) for n in names)
        imports = bool(re.search(rf"\b{re.escape(module)}\b", text))
        namesake = module.rpartition(".")[2] in Path(name).stem
        size = len(text)
        if cases:
            ranked.append(((0, 0, size), _cases(root, cases)))
        elif beside:
            ranked.append(((1, -3 * namesake - 2 * imports - named, size), [name]))
        elif imports:
            ranked.append(((2, -named, size), [name]))
    ranked.sort(key=lambda entry: entry[0])
    return [name for _, found in ranked for name in found]


def names_around(source: str, line: int) -> list[str]:
    """Return the names of the functions and classes that a line is in, and of the constant that it sets."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if node.lineno <= line <= (node.end_lineno or 0):
                names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno <= line <= (node.end_lineno or 0):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            names += [target.id] if isinstance(target, ast.Name) else []
    return [name for name in names if not name.startswith("__")]


@cache
def _tests(root: Path) -> dict[str, str]:
    files = sorted((root / "tests").rglob("test_*.py"))
    return {str(path.relative_to(root)): path.read_text() for path in files}


def _cases(root: Path, patterns: list[str]) -> list[str]:
    """Return the cases of known numbers that patterns name; of options, by the model that they are for."""
    found = []
    for case in _collected(root):
        name = case.partition("[")[2].rstrip("]")
        text = f"{case.partition('::')[0]}{_models(root).get(name, name)}"
        found += [case] if any(fnmatch(text, p) for p in patterns) else []
    return found


@cache
def _collected(root: Path) -> list[str]:
    options = ["-q", "--collect-only", "-m", "not slow", "-p", "no:cacheprovider", NUMBERS]
    command = [sys.executable, "-m", "pytest", *options]
    listed = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    return [row for row in listed.stdout.splitlines() if "::" in row]


@cache
def _models(root: Path) -> dict[str, str]:
    """Return the model of each case of options: the constant that its settings begin with."""
    text = (root / NUMBERS).read_text()
    models = dict(re.findall(r'^([A-Z]+): dict.*?"model": "(\w+)"', text, re.MULTILINE | re.DOTALL))
    cases = re.findall(r'^    "([\w ]+)": \(.*, ([A-Z]+)(?: \|.*)?\),$', text, re.MULTILINE)
    return {case: models.get(constant, "") for case, constant in cases}
