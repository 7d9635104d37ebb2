"""Formulas of tables: what is understood, and what is refused by name."""

from __future__ import annotations

import pytest

from factorflow.data.tables.formula import Linear, Offset, parse
from factorflow.errors import InputError


def test_every_kind_of_term() -> None:
    terms = parse(
        "count ~ site + C(year) + `tree type` + linear(1, depth) + offset(log(effort))"
        " + offset(np.log(`n h`)) + offset(x) + 1"
    )
    assert terms.response == "count"
    assert terms.variables == ("site", "year", "tree type")
    assert terms.forced == {"year"}
    assert terms.linear == (Linear((None, "depth")),)
    assert terms.offsets == (Offset("effort", True), Offset("n h", True), Offset("x", False))
    assert terms.numbers == ("effort", "n h", "x", "depth")


def test_an_intercept_or_none_says_nothing() -> None:
    for formula in ("y ~ 1 + a + b", "y ~ 0 + a + b", "y ~ a + b - 1"):
        assert parse(formula).variables == ("a", "b")


def test_a_variable_written_twice_is_one() -> None:
    assert parse("y ~ a + b + a").variables == ("a", "b")


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("y ~ a * b", "formula = a:b: .*Interactions"),
        ("y ~ a:b", "formula = a:b"),
        ("y ~ a / b", "formula = a:b"),
        ("y ~ (a + b) ** 2", "formula = a:b"),
        ("y ~ a | b", "a response, ~, and variables"),
        ("y ~ a +* b", "incorrectly used"),
        ("y ~ .", "a response, ~, and variables"),
        ("~ a + b", "a response, ~, and variables"),
        ("a + b", "a response, ~, and variables"),
        ("y ~ a ~ b", "a response, ~, and variables"),
        (3, "formula = 3"),
        ("log(y) ~ a", r"formula = log\(y\): expected one column"),
        ("y + z ~ a", "one column as the response"),
        ("y ~ a + poly(b, 2)", r"formula = poly\(b, 2\)"),
        ("y ~ a + offset(log(a + b))", r"formula = offset\(log\(a \+ b\)\)"),
        ("y ~ a + offset(sqrt(e))", r"formula = offset\(sqrt\(e\)\)"),
        ("y ~ C(a, b)", r"formula = C\(a, b\)"),
        ("y ~ a + linear(x)", "two or more different columns.*power"),
        ("y ~ a + linear(x, x)", "two or more different columns"),
        ("y ~ a + linear(2, x)", r"formula = linear\(2, x\)"),
        ("y ~ 1", "at least one variable"),
        ("y ~ offset(log(e))", "at least one variable"),
        ("y ~ y + a", "formula = y: expected every column in one role"),
        ("y ~ a + linear(a, b)", "formula = a: expected every column in one role"),
        ("y ~ a + b + offset(log(b))", "formula = b: expected every column in one role"),
        ("y ~ a + offset(y)", "formula = y: expected every column in one role"),
    ],
)
def test_refused(formula: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(formula)
