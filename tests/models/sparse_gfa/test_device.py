"""Whole passes on a device equal those on the host: in Numba's simulator and, where there is one, on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("device_pass.py")
SHORT = ("mixed", "bound, samples absent", "fit")
DRAWS = ("draws", "draws by Metropolis steps")
OTHERS = ("complete", "sample noise", "groups", "spikes on scores", "negative binomial", *DRAWS)
BY_NODES = {"mixed", "negative binomial", "fit", DRAWS[1]}
"""Cases with E log(1 + e^x), on the host from a table of single precision."""
EVERYTHING = {"centred", "column_moments", "gaps", "pairs_by_column", "pairs_by_row", "solve_normals"}


def check(run: Callable[..., dict[str, Any]], cases: tuple[str, ...], real: bool = False) -> set[str]:
    """Run cases on a device, compare, and return the kernels they called."""
    found = run(SCRIPT, cases, real)
    assert {name.rpartition(", ")[0] for name in found["differences"]} == set(cases)
    for name, difference in found["differences"].items():
        case, _, bits = name.rpartition(", ")
        assert difference < (1e-4 if case in BY_NODES else 1e-5 if bits == "float32" else 1e-10), name
    return set(found["used"])


@pytest.mark.thorough
def test_stages_on_a_simulated_device_equal_the_host(on_a_device: Callable[..., dict[str, Any]]) -> None:
    assert check(on_a_device, SHORT) == EVERYTHING


@pytest.mark.slow
def test_more_stages_on_a_simulated_device_equal_the_host(on_a_device: Callable[..., dict[str, Any]]) -> None:
    check(on_a_device, OTHERS)


@pytest.mark.gpu
def test_stages_on_a_device_equal_the_host(on_a_device: Callable[..., dict[str, Any]]) -> None:
    check(on_a_device, SHORT + OTHERS, real=True)
