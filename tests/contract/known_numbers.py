"""Numbers that small runs found once, and what is asked of those that they find now.

A few numbers of each array: how many are finite, mean, root mean square and a sum whose weights differ from
place to place. Where a change of the package is meant to change them, they are written anew:

    FACTORFLOW_WRITE_NUMBERS=1 pytest tests/contract/test_numbers.py tests/data/test_numbers.py
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["check_numbers", "numbers_of"]

WRITE = "FACTORFLOW_WRITE_NUMBERS"
TOLERANCE = 1e-4
"""Share of the root mean square by which they may differ: other processors round otherwise."""


def numbers_of(arrays: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the numbers of every array of numbers; others are left out."""
    return {n: _of(np.asarray(a)) for n, a in arrays.items() if np.asarray(a).dtype.kind in "fiub"}


def _of(array: np.ndarray) -> list[float]:
    values = array.astype(float).ravel()
    known = np.isfinite(values)
    x, weight = values[known], np.cos(np.arange(values.size))[known]
    n = max(1, x.size)
    found = [x.sum() / n, np.sqrt((x**2).sum() / n), (weight * x).sum() / np.sqrt(n)]
    return [float(known.sum()), *(float(f"{value:.7g}") for value in found)]


def check_numbers(file: Path, name: str, arrays: Mapping[str, Any]) -> None:
    """Compare the numbers of arrays with those that a file has under a name; every array must be there."""
    known = json.loads(file.read_text()) if file.exists() else {}
    found = numbers_of(arrays)
    if os.environ.get(WRITE):
        known[name] = found
        rows = [
            f" {json.dumps(case)}: {{\n"
            + ",\n".join(f"  {json.dumps(key)}: {json.dumps(of[key])}" for key in sorted(of))
            + "\n }"
            for case, of in sorted(known.items())
        ]
        file.write_text("{\n" + ",\n".join(rows) + "\n}\n")
        return
    assert name in known, f"no known numbers of {name}: {WRITE}=1 pytest {file.with_name('test_numbers.py')}"
    assert found.keys() == known[name].keys()
    for key, (n, *moments) in known[name].items():
        assert found[key][0] == n, f"{key}: finite values"
        atol = TOLERANCE * moments[1] + 1e-9
        np.testing.assert_allclose(found[key][1:], moments, rtol=0.0, atol=atol, err_msg=f"{name}: {key}")
