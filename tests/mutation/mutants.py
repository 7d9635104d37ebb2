"""Small faults in Python source: those of cosmic-ray, and a few that its operators do not make."""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

BINARY = {"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"}
"""Other replacements of arithmetic (shifts, bits) fail with a TypeError wherever they are run at all."""
COMPARISONS = {
    "Lt": {"LtE", "Gt", "GtE"}, "LtE": {"Lt", "Gt", "GtE"},
    "Gt": {"GtE", "Lt", "LtE"}, "GtE": {"Gt", "Lt", "LtE"},
    "Eq": {"NotEq"}, "NotEq": {"Eq"}, "Is": {"IsNot"}, "IsNot": {"Is"}, "In": {"NotIn"}, "NotIn": {"In"},
}  # fmt: skip
"""Bounds moved by one, and opposites. Others (== for >=) mean the same at most places, or crash."""
LEFT_OUT = {"VariableReplacer", "VariableInserter"}
OPPOSITES = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax",
    "argmax": "argmin", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor", "log": "log1p",
    "log1p": "log", "exp": "expm1", "mean": "sum", "sum": "mean", "ones": "zeros", "zeros": "ones",
    "cumsum": "cumprod", "less": "greater", "triu_indices": "tril_indices", "argsort": "sort",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Parameters
    ----------
    path : str
        File, relative to the repository.
    line, column : int
        Where it is put, from 1 and 0.
    operator : str
        What is done there.
    occurrence : int
        Which of the possible ones: of the operator in the file (cosmic-ray), or at the place.
    """

    path: str
    line: int
    column: int
    operator: str
    occurrence: int

    @property
    def key(self) -> str:
        """Its name among the results."""
        return f"{self.path}:{self.line}:{self.column}:{self.operator}:{self.occurrence}"

    def apply(self, source: str) -> str | None:
        """Return the source with the fault in it; None where there is none to make."""
        if "/" in self.operator:
            changed = mutate_code(source, cosmic_ray.plugins.get_operator(self.operator)(), self.occurrence)
        else:
            edits = [e for e in _own(source) if (e.line, e.column, e.operator) == self._place]
            changed = edits[self.occurrence].text if self.occurrence < len(edits) else None
        if changed is None:
            return None
        try:
            same = _meaning(changed) == _meaning(source)
        except SyntaxError:
            return None
        return None if same else changed

    @property
    def _place(self) -> tuple[int, int, str]:
        return self.line, self.column, self.operator


def find_mutants(root: Path, config: Mapping[str, Any], only: tuple[str, ...] = ()) -> list[Mutant]:
    """Return every possible fault in the targets (that begin with ``only``), in order of files and places."""
    files = sorted({path for pattern in config["targets"] for path in root.glob(pattern)})
    names = [str(path.relative_to(root)) for path in files]
    names = [name for name in names if not any(fnmatch(name, p) for p in config["excluded"])]
    names = [name for name in names if not only or name.startswith(only)]
    lacking = [pattern for pattern, library in config["needs"].items() if find_spec(library) is None]
    names = [name for name in names if not any(fnmatch(name, p) for p in lacking)]
    return [mutant for name in names for mutant in _in_file(root, name, config)]


def sample(mutants: list[Mutant], seed: int) -> list[Mutant]:
    """Return one fault for each place, places shuffled by the seed, the rooms of the house in turn.

    So any first part of it has as many faults of each room, and within a room is a fair sample.
    """
    places: dict[tuple[str, int, int], list[Mutant]] = {}
    for mutant in mutants:
        places.setdefault((mutant.path, mutant.line, mutant.column), []).append(mutant)
    chosen = []
    for place, here in places.items():
        digest = hashlib.sha256(f"{seed}:{place}".encode()).digest()
        rank, rng = digest[:16], random.Random(digest)
        kinds = sorted({mutant.operator.split("_")[0] for mutant in here})  # a kind first, then one of it
        kind = rng.choice(kinds)
        chosen.append((rank, rng.choice([m for m in here if m.operator.split("_")[0] == kind])))
    turns: dict[str, int] = {}
    ordered = []
    for _, mutant in sorted(chosen, key=lambda pair: pair[0]):
        name = room(mutant.path)
        turns[name] = turns.get(name, 0) + 1
        ordered.append((turns[name], name, mutant))
    ordered.sort(key=lambda entry: entry[:2])
    return [m for *_, m in ordered]


def room(path: str) -> str:
    """Return the part of the package that a file belongs to: compiled loops are one, families one each."""
    parts = path.split("/")[1:-1]
    if "kernels" in parts:
        return "kernels"
    return "/".join(parts[: 2 if parts[:1] in (["models"], ["data"]) else 1]) or "ground"


def _in_file(root: Path, name: str, config: Mapping[str, Any]) -> Iterator[Mutant]:
    source = (root / name).read_text()
    forbidden = _without_meaning(ast.parse(source))
    found = []
    operators = [
        (full, cosmic_ray.plugins.get_operator(full)())
        for full in cosmic_ray.plugins.operator_names()
        if _wanted(full)
    ]
    counts = dict.fromkeys((full for full, _ in operators), 0)
    for node in ast_nodes(get_ast(source)):
        for full, operator in operators:
            for (line, column), _ in operator.mutation_positions(node):
                found.append(Mutant(name, line, column, full, counts[full]))
                counts[full] += 1
    seen: dict[tuple[int, int, str], int] = {}
    for edit in _own(source):
        place = edit.line, edit.column, edit.operator
        found.append(Mutant(name, *place, seen.get(place, 0)))
        seen[place] = seen.get(place, 0) + 1
    lines = source.splitlines()
    for mutant in found:
        if any(start <= (mutant.line, mutant.column) < end for start, end in forbidden):
            continue
        if "RemoveDecorator" in mutant.operator:
            decorator = lines[mutant.line - 1].strip().lstrip("@")
            if decorator.split("(")[0].split(".")[-1] in config["kept_decorators"]:
                continue
        yield mutant


def _wanted(full: str) -> bool:
    name = full.split("/")[1]
    if name in LEFT_OUT:
        return False
    if name.startswith("ReplaceBinaryOperator_"):
        return set(name.split("_")[1:]) <= BINARY
    if name.startswith("ReplaceComparisonOperator_"):
        before, after = name.split("_")[1:]
        return after in COMPARISONS.get(before, set())
    return True


def _without_meaning(tree: ast.AST) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the spans of annotations, of messages of errors, of ``__all__`` and of TYPE_CHECKING blocks."""
    spans = []
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef):
            everything = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            parts = [node.returns, *(a.annotation for a in everything)]
        elif isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, (ast.Raise, ast.Assert)):
            parts = [node]
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("__"):
            parts = [node]
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            parts = [node]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {
            "warn", "InputError", "RunError", "Field", "Variable", "TypeVar",
        }:  # fmt: skip
            parts = [node]
        for part in parts:
            if part is not None:
                spans.append(((part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)))
    return spans


def _meaning(source: str) -> str:
    """Return the tree of a source without its annotations."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
                argument.annotation = None
    return ast.dump(tree)


@dataclass(frozen=True)
class _Edit:
    line: int
    column: int
    operator: str
    text: str


def _own(source: str) -> list[_Edit]:
    """Return faults that people make and cosmic-ray does not."""
    lines = source.splitlines(keepends=True)
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line.encode()))
    raw = source.encode()

    def at(line: int, column: int) -> int:
        return offsets[line - 1] + column

    def text_of(node: Any) -> str:
        return raw[at(node.lineno, node.col_offset) : at(node.end_lineno, node.end_col_offset)].decode()

    def put(node: Any, operator: str, new: str) -> _Edit:
        start, end = at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)
        changed = raw[:start] + new.encode() + raw[end:]
        return _Edit(node.lineno, node.col_offset, operator, changed.decode())

    edits = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
            edits.append(put(node, "LeaveOutRight", f"({text_of(node.left)})"))
            sign = "-" if isinstance(node.op, ast.Sub) else ""
            edits.append(put(node, "LeaveOutLeft", f"({sign}{text_of(node.right)})"))
        elif isinstance(node, ast.IfExp):
            swapped = f"({text_of(node.orelse)} if {text_of(node.test)} else {text_of(node.body)})"
            edits.append(put(node, "SwapBranches", swapped))
        elif isinstance(node, ast.AugAssign):
            edits.append(put(node, "LeaveOutStatement", "pass"))
            if isinstance(node.op, (ast.Add, ast.Sub)):
                other = "-=" if isinstance(node.op, ast.Add) else "+="
                edits.append(put(node, "TurnSign", f"{text_of(node.target)} {other} {text_of(node.value)}"))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            edits.append(put(node, "LeaveOutStatement", "pass"))
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in OPPOSITES:
                whole = text_of(node.func)
                other = whole[: len(whole) - len(name)] + OPPOSITES[name]
                edits.append(put(node.func, "Opposite", other))
            if name in {"sqrt", "abs", "maximum", "max", "where", "square"} and node.args:
                kept = node.args[1] if name == "where" and len(node.args) == 3 else node.args[0]
                if not isinstance(kept, (ast.Starred, ast.GeneratorExp)):
                    edits.append(put(node, "LeaveOutCall", f"({text_of(kept)})"))
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
            first, second = map(text_of, node.value.elts)
            edits.append(put(node, "SwapReturned", f"return {second}, {first}"))
    return edits
