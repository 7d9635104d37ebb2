"""Fits on a device equal those on the host: in Numba's simulator and, where there is one, on a device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("device_pass.py")
SHORT = ("gaps", "chain", "one block")
OTHERS = ("frame", "gaps in chains", "views")


def check(run: Callable[..., dict[str, Any]], cases: tuple[str, ...], real: bool = False) -> set[str]:
    """Run cases on a device, compare, and return the functions they called there."""
    found = run(SCRIPT, cases, real)
    assert set(found["differences"]) == set(cases)
    for name, difference in found["differences"].items():
        assert difference < 1e-8, name
    return set(found["used"])


@pytest.mark.thorough
def test_fits_on_a_simulated_device_equal_the_host(on_a_device: Callable[..., dict[str, Any]]) -> None:
    from factorflow.models.identity_attribute.kernels import cuda, host

    assert sorted(cuda.__all__) == sorted(host.__all__)
    assert check(on_a_device, SHORT) == set(cuda.__all__)


@pytest.mark.slow
def test_more_fits_on_a_simulated_device_equal_the_host(on_a_device: Callable[..., dict[str, Any]]) -> None:
    check(on_a_device, OTHERS)


@pytest.mark.gpu
def test_fits_on_a_device_equal_the_host(on_a_device: Callable[..., dict[str, Any]]) -> None:
    check(on_a_device, SHORT + OTHERS, real=True)


TO_PTX = """
from factorflow.models.identity_attribute.kernels import cuda as loops
rows, flags, vector, table = (types.int64[::1], types.boolean[::1], types.float64[::1], types.float64[:, ::1])
cube, four = types.float64[:, :, ::1], types.float64[:, :, :, ::1]
number, whole = types.float64, types.int64
kernels.append((loops.frames_kernel(), (table, vector, cube, vector, *(table,) * 5, vector, table)))
kernels.append((loops.gaps_kernel(), (rows, table, table, table, table, table, table, four, table, table,
                                      table, table, table, table, table)))
kernels.append((loops.inversion_kernel(), (table, four, four, table)))
given = (table, cube, whole, table, cube, table, number)
kernels.append((loops.presence_kernel(2), (rows, rows, flags, flags, *given, number, number, table, vector,
                                           vector, vector, vector)))
kernels.append((loops.presence_span_kernel(2), (rows, rows, flags, *given, vector, table)))
given = (vector, table, cube, whole, table, number)
kernels.append((loops.attributes_kernel(2), (rows, rows, flags, flags, *given, table, table, cube, cube,
                                             table, cube, table, vector)))
kernels.append((loops.attributes_span_kernel(2), (rows, rows, flags, *given, table, table, vector)))
"""


@pytest.mark.thorough
def test_kernels_compile_to_ptx(compile_to_ptx: Callable[[str], int]) -> None:
    assert compile_to_ptx(TO_PTX) == 7
