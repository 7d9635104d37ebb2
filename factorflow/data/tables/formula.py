"""Formulas of tables: ``count ~ site + species + year + offset(log(effort))``.

Read by formulaic, of which the grammar is used and nothing else. What is understood:

| term | meaning |
|---|---|
| ``site`` | a categorical variable |
| ``C(depth)`` | the same, of a column of numbers whose values are to be levels |
| ``linear(1, depth)``, ``linear(oak, beech, fir)`` | a group whose levels are columns, weighted by their values x >= 0; ``1`` is a column of ones |
| ``offset(log(effort))`` | counts: the exposure is ``effort``; else ``log(effort)`` is added to the mean |
| ``offset(x)`` | counts: the exposure is ``exp(x)``; else ``x`` is added to the mean |
| ``1``, ``0`` | nothing: whether a model has an intercept is among its settings |

Several offsets add up. Names that are no identifiers stand in backticks.
"""  # noqa: E501  a table

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

from factorflow.errors import InputError

_UNDERSTOOD = "columns, C(column), linear(1, column, ...), offset(column) and offset(log(column)), added up"


@dataclass(frozen=True)
class Offset:
    """An offset: a column, or its logarithm."""

    column: str
    log: bool


@dataclass(frozen=True)
class Linear:
    """A group whose levels are columns; None stands for the column of ones."""

    columns: tuple[str | None, ...]


@dataclass(frozen=True)
class Terms:
    """The terms of a formula."""

    formula: str
    response: str
    variables: tuple[str, ...]
    forced: frozenset[str]
    linear: tuple[Linear, ...]
    offsets: tuple[Offset, ...]

    @property
    def numbers(self) -> tuple[str, ...]:
        """Columns of numbers besides the response."""
        columns = [column for group in self.linear for column in group.columns if column is not None]
        return tuple(dict.fromkeys([*(offset.column for offset in self.offsets), *columns]))


def parse(formula: str) -> Terms:
    """Read a formula.

    Raises
    ------
    InputError
        When it is none, has a term that is not understood, or names a column in two roles.
    """
    left, right = _sides(formula)
    response = _response(formula, left)
    variables: list[str] = []
    forced: set[str] = set()
    linear: list[Linear] = []
    offsets: list[Offset] = []
    for factors in right:
        if len(factors) != 1:
            raise InputError(
                "formula",
                ":".join(expr for expr, _ in factors),
                _UNDERSTOOD,
                "Interactions are what the components find; for one variable of all combinations, make a "
                "column of them.",
            )
        expr, method = factors[0]
        if method == "lookup":
            variables.append(expr)
        elif method == "python":
            term = _call(expr)
            if isinstance(term, str):
                variables.append(term)
                forced.add(term)
            elif isinstance(term, Offset):
                offsets.append(term)
            else:
                linear.append(term)
    terms = Terms(
        formula, response, tuple(dict.fromkeys(variables)), frozenset(forced), tuple(linear), tuple(offsets)
    )
    _check(terms)
    return terms


def _sides(formula: Any) -> tuple[list[list[tuple[str, str]]], list[list[tuple[str, str]]]]:
    """Return the terms on both sides, each a list of factors: expression, and how it is evaluated."""
    from formulaic.parser import DefaultFormulaParser

    shape = "a response, ~, and variables"
    remedy = "For example 'count ~ site + species + offset(log(effort))'."
    if not isinstance(formula, str) or [bool(side.strip()) for side in formula.split("~")] != [True, True]:
        raise InputError("formula", formula, shape, remedy)
    try:
        parsed = DefaultFormulaParser(include_intercept=False).get_terms(formula)
        left, right = (
            [[(factor.expr, factor.eval_method.value) for factor in term.factors] for term in side]
            for side in (parsed.lhs, parsed.rhs)
        )
    except Exception as error:  # formulaic raises what it comes across
        first = (str(error).splitlines() or [""])[0]
        raise InputError("formula", formula, f"{shape} ({first})", f"It may have {_UNDERSTOOD}.") from error
    return left, right


def _response(formula: str, left: list[list[tuple[str, str]]]) -> str:
    if len(left) != 1 or len(left[0]) != 1 or left[0][0][1] != "lookup":
        raise InputError(
            "formula",
            formula.partition("~")[0].strip() or "no response",
            "one column as the response",
            "Compute it as a column of the table.",
        )
    return left[0][0][0]


def _call(expr: str) -> str | Offset | Linear:
    """Return the term of a call: a column of labels, an offset, or a group."""
    names: dict[str, str] = {}

    def stand_in(match: re.Match[str]) -> str:
        names[f"_quoted{len(names)}"] = match.group(1)
        return f"_quoted{len(names) - 1}"

    refused = InputError("formula", expr, _UNDERSTOOD, "Make a column of it, and name that.")
    try:
        node = ast.parse(re.sub(r"`([^`]*)`", stand_in, expr), mode="eval").body
    except SyntaxError:
        raise refused from None

    def column(part: ast.expr) -> str | None:
        return names.get(part.id, part.id) if isinstance(part, ast.Name) else None

    name, arguments = _function(node)
    columns = [column(part) for part in arguments]
    if name == "C" and len(columns) == 1 and columns[0] is not None:
        return columns[0]
    if name == "offset" and len(columns) == 1:
        inner, inside = _function(arguments[0])
        log = inner in ("log", "np.log") and len(inside) == 1
        exposure = column(inside[0]) if log else columns[0]
        if exposure is not None:
            return Offset(exposure, log)
    if name == "linear":
        ones = [isinstance(part, ast.Constant) and part.value == 1 for part in arguments]
        if all(one or variable is not None for one, variable in zip(ones, columns, strict=True)):
            return _linear(expr, columns)
    raise refused


def _function(node: ast.expr) -> tuple[str, list[ast.expr]]:
    """Return the name of what is called and its arguments; "" where nothing is."""
    if not isinstance(node, ast.Call) or node.keywords:
        return "", []
    return ast.unparse(node.func), node.args


def _linear(expr: str, columns: list[str | None]) -> Linear:
    if len(set(columns)) < max(2, len(columns)):
        raise InputError(
            "formula",
            expr,
            "two or more different columns",
            "linear(1, x) makes a group of which the factor is m_1 + m_2 x; a power m^x is no part of these "
            "models.",
        )
    return Linear(tuple(columns))


def _check(terms: Terms) -> None:
    if not terms.variables and not terms.linear:
        raise InputError("formula", terms.formula, "at least one variable", "Name a column after the ~.")
    roles = [terms.response, *terms.variables]
    roles += [column for group in terms.linear for column in group.columns if column is not None]
    offsets = {offset.column for offset in terms.offsets}
    twice = sorted(
        {name for name in roles if roles.count(name) > 1} | (offsets & {terms.response, *terms.variables})
    )
    if twice:
        raise InputError(
            "formula",
            ", ".join(twice),
            "every column in one role",
            "Leave the others out, or make a copy of it.",
        )
