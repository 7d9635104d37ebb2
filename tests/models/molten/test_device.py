"""Fits on a device equal those on the host: in Numba's simulator and, where there is one, on a device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("device_pass.py")
SHORT = ("mixed", "measurements")
OTHERS = ("counts", "single", "linear counts", "linear measurements")


def check(run: Callable[..., dict[str, Any]], cases: tuple[str, ...], real: bool = False) -> set[str]:
    """Run cases on a device, compare, and return the passes they called."""
    found = run(SCRIPT, cases, real)
    assert set(found["differences"]) == set(cases)
    for name, difference in found["differences"].items():
        assert difference < 1e-10, name
    return set(found["used"])


@pytest.mark.thorough
def test_fits_on_a_simulated_device_equal_the_host(on_a_device: Callable[..., dict[str, Any]]) -> None:
    assert check(on_a_device, SHORT) == {"moments", "place", "products", "shares", "totals"}


@pytest.mark.slow
def test_more_fits_on_a_simulated_device_equal_the_host(on_a_device: Callable[..., dict[str, Any]]) -> None:
    check(on_a_device, OTHERS)


@pytest.mark.gpu
def test_fits_on_a_device_equal_the_host(on_a_device: Callable[..., dict[str, Any]]) -> None:
    check(on_a_device, SHORT + OTHERS, real=True)


TO_PTX = """
from factorflow.models.molten.kernels.cuda import pairs_kernel, products_kernel, totals_kernel
codes, order, start = types.int32[:, ::1], types.int32[::1], types.int64[::1]
y = types.float64[::1]
for table in (types.float32[:, ::1], types.float64[:, ::1]):
    kernels.append((totals_kernel(), (codes, table, y)))
    kernels.append((products_kernel(), (codes, order, start, y, table, types.int64, types.float64[:, ::1])))
    kernels.append((pairs_kernel(), (codes, order, start, y, table, types.int64, types.float64[:, :, ::1])))
"""


@pytest.mark.thorough
def test_kernels_compile_to_ptx(compile_to_ptx: Callable[[str], int]) -> None:
    assert compile_to_ptx(TO_PTX) == 6
