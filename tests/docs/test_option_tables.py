"""Tables of options: what the columns "here" and "options here" name exists in Python or in the shell."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

import factorflow as ff
from factorflow.cli import app
from factorflow.likelihoods import likelihood_names
from factorflow.models.registry import registered_models
from factorflow.models.sparse_gfa.loadings import prior_names

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("docs/coming-from-*.md")), ROOT / "docs" / "studies.md"]
PLACEHOLDERS = {
    "path",
    "view",
    "other",
    "data",
    "dataset",
    "new",
    "adata",
    "mdata",
    "posterior",
    "columns",
    "at",
    "groups",
    "...",
}
"""Names of the reader's own."""


def rows(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the cells of the columns called "here", with their lines."""
    place = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        cells = (
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
            if line.startswith("|")
            else []
        )
        if not cells:
            place = None
        elif here := {"here", "options here"} & set(cells):
            place = cells.index(here.pop())
        elif place is not None and set(cells[0]) - set("-: "):
            yield number, cells[place]


@cache
def parameters() -> dict[str, set[str]]:
    """Return by name of a function, method or model the names of what it takes; under "" all of them."""
    found: dict[str, set[str]] = {}
    models = {config.__name__: set(config.model_fields) for config in registered_models().values()}
    found |= models
    for module in (ff, ff.analysis, ff.report, ff.tracking):
        for name in module.__all__:
            function = getattr(module, name)
            if inspect.isfunction(function):
                found[name] = set(inspect.signature(function).parameters)
    found["fit"] |= models["SparseGFA"] | found["write_dataset"]
    for name in dir(ff.Posterior):
        member = inspect.getattr_static(ff.Posterior, name)
        if not name.startswith("_") and inspect.isfunction(member):
            found[name] = found.get(name, set()) | set(inspect.signature(member).parameters)
    for name in ff.report.__all__:
        if name.startswith("plot_"):
            short = name.removeprefix("plot_")
            found[short] = found.get(short, set()) | found[name]
    for name in dir(ff.data.Dataset):
        member = inspect.getattr_static(ff.data.Dataset, name)
        if not name.startswith("_") and inspect.isfunction(member):
            found[name] = found.get(name, set()) | set(inspect.signature(member).parameters)
    found[""] = set().union(*found.values())
    return found


@cache
def choices() -> set[str]:
    """Return the texts that options may be: of their schemas, and the names of likelihoods."""
    found = {*likelihood_names(), *prior_names()}

    def visit(node: Any) -> None:
        if isinstance(node, dict):
            found.update(value for value in node.get("enum", []) if isinstance(value, str))
            found.update(value for value in [node.get("const")] if isinstance(value, str))
            for value in node.values():
                visit(value)
        elif isinstance(node, list):
            for value in node:
                visit(value)

    for config in registered_models().values():
        visit(config.model_json_schema())
    return found


@cache
def commands() -> dict[str, set[str]]:
    """Return by command of the shell its flags."""
    group: Any = typer.main.get_command(app)
    found = {}
    for name, command in group.commands.items():
        flags = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
        found[name] = flags | {"--json", "--debug"}
    return found


def unknown_in_shell(text: str) -> list[str]:
    """Return what a command names that does not exist."""
    words = text.split()
    if words[0] not in commands():
        return [words[0]]
    return [
        word for word in words if word.startswith("--") and word.partition("=")[0] not in commands()[words[0]]
    ]


def unknown(span: str) -> list[str]:
    """Return what a piece of code names that does not exist."""
    if span.startswith("factorflow "):
        return unknown_in_shell(span.removeprefix("factorflow "))
    if span.startswith("-"):
        flags = set().union(*commands().values())
        return [word for word in span.split() if word.startswith("--") and word not in flags]
    text = span.removesuffix("=") if re.fullmatch(r"\w+=", span) else span
    text = re.sub(r"^\.", "posterior.plot.", re.sub(r"=(?=[,)])", "=...", text))
    if assigned := re.fullmatch(r"(\w+)=(.+)", text):
        text = f"fit({text})" if assigned[1] in parameters()["fit"] else f"anything({text})"
    tree = ast.parse(text, mode="eval").body
    return list(missing(tree))


def missing(tree: ast.expr) -> Iterator[str]:
    known = parameters()
    if isinstance(tree, ast.Name) and tree.id not in known | dict.fromkeys(known[""]) | dict.fromkeys(
        PLACEHOLDERS
    ):
        yield tree.id
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str) and tree.value not in choices():
        yield repr(tree.value)
    if isinstance(tree, ast.Attribute):
        yield from missing_attribute(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = (
            called.attr
            if isinstance(called, ast.Attribute)
            else called.id
            if isinstance(called, ast.Name)
            else ""
        )
        if isinstance(called, ast.Attribute):
            yield from missing_attribute(called)
        if name != "anything" and name not in known:
            yield name
        takes = known[""] if name == "anything" else known.get(name, set())
        for keyword in node.keywords:
            if keyword.arg not in takes:
                yield f"{name}({keyword.arg}=)"
            value = keyword.value
            of_model = keyword.arg in known["SparseGFA"] | known["fit"]
            is_choice = keyword.arg in {
                "loadings",
                "scores",
                "inference",
                "kernel",
                "slab",
                "precision",
                "device",
            }
            if of_model and is_choice and isinstance(value, ast.Constant) and isinstance(value.value, str):
                if value.value not in choices() | {"cpu", "cuda"}:
                    yield f"{keyword.arg}={value.value!r}"


def missing_attribute(tree: ast.Attribute) -> Iterator[str]:
    text = ast.unparse(tree)
    owners = {
        "posterior": ff.Posterior,
        "factorflow": ff,
        "ff": ff,
        "analysis": ff.analysis,
        "models": ff.models,
        "dataset": ff.data.Dataset,
    }
    first, *rest = text.split(".")
    if first not in owners:
        yield text
        return
    if first == "posterior" and rest[0] == "plot":
        owners, rest = {first: ff.report}, [f"plot_{rest[1]}"] if len(rest) > 1 else []
    found: Any = owners[first]
    for name in rest:
        if not hasattr(found, name):
            yield text
            return
        found = getattr(found, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_tables_name_exists(page: Path) -> None:
    found = list(rows(page))
    assert len(found) > 5
    wrong = [
        f"{page.name}:{line}: `{span}` ({', '.join(names)})"
        for line, cell in found
        for span in re.findall(r"`([^`]+)`", cell)
        if (names := unknown(span))
    ]
    assert not wrong, "\n".join(wrong)


WRONG = """
no_such_option
n_factor=5
SparseGFA(factors=5)
posterior.weights()
posterior.plot.nothing()
posterior.project(dataset, nothing=1)
analysis.nothing(posterior)
loadings="lasso"
"lasso"
--nothing
factorflow fits
factorflow fit --seeds 3
"""

RIGHT = """
n_factors
likelihoods=
fit(seed=)
loadings="horseshoe"
SparseGFA(n_factors=5)
posterior.scores()
posterior.plot.scores(color="age")
.top_weights()
factorflow fit --holdout 0.1
"""


@pytest.mark.parametrize("span", WRONG.split("\n")[1:-1])
def test_what_does_not_exist_is_found(span: str) -> None:
    assert unknown(span)


@pytest.mark.parametrize("span", RIGHT.split("\n")[1:-1])
def test_what_exists_is_known(span: str) -> None:
    assert not unknown(span)
