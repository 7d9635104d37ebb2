"""Labels of factors that have no names of their own: Factor1, Factor2, ..."""

from __future__ import annotations

import re


def number_label(number: int) -> str:
    """Return the label of a factor, given its number from 0."""
    return f"Factor{number + 1}"


def is_number_label(name: str) -> bool:
    """Return whether a factor without a name may be called so."""
    return re.fullmatch(r"Factor[1-9]\d*", name) is not None
