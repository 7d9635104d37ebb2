"""Files of settings: numbers are what they look like, and nothing in them hangs or ends in a raw error."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from factorflow.settings import read_yaml

ALIASES = "\n".join(f"{y}: &{y} [{','.join([f'*{x}'] * 9)}]" for x, y in ["ab", "bc", "cd", "de", "ef", "fg"])
"""Each of nine of the one before."""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12:00:00", "12:00:00"),  # a wall-clock limit, not 43200
        ("1:30", "1:30"),
        ("010", "010"),  # not 8
        ("-010.5", "-010.5"),
        ("0x10", 16),
        ("1_000", 1000),
        ("-3", -3),
        ("0", 0),
        ("1e-3", 1e-3),
        ("12E3", 12000.0),
        ("+.5", 0.5),
        ("5.", 5.0),
        (".inf", float("inf")),
        ("4GB", "4GB"),
        ("1.2.3", "1.2.3"),
        ("yes", True),
        ("2026-01-01", date(2026, 1, 1)),
        ("~", None),
    ],
)
def test_values_are_what_they_look_like(text: str, value: Any) -> None:
    found = read_yaml(f"a: {text}")["a"]
    assert (type(found), found) == (type(value), value)


def test_aliases() -> None:
    assert read_yaml("a: &x {c: 1}\nb: {<<: *x, d: [*x, *x]}")["b"] == {"c": 1, "d": [{"c": 1}, {"c": 1}]}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: &x [*x]", "line 2: it holds an alias of itself"),
        ("&x {a: *x}", "line 1: it holds an alias of itself"),
        (f"a: &a [1]\n{ALIASES}", "line 1: there are more than 100,000 entries, with those of aliases"),
        ("[" * 5000, "nested too deeply"),
    ],
)
def test_what_has_no_end_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_yaml(text)
