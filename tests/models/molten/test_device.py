"""Fits on a device equal those on the host: Numba's simulator, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("device_pass.py")
SHORT = ("mixed", "measurements")
OTHERS = ("counts", "single", "linear counts", "linear measurements")


def check(cases: tuple[str, ...]) -> set[str]:
    """Run cases on the simulated device, compare, and return the passes they called."""
    pytest.importorskip("numba.cuda")
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, "-W", "ignore", str(SCRIPT), *cases]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["differences"]) == set(cases)
    for name, difference in found["differences"].items():
        assert difference < 1e-10, name
    return set(found["used"])


@pytest.mark.thorough
def test_fits_on_a_simulated_device_equal_the_host() -> None:
    assert check(SHORT) == {"moments", "place", "products", "shares", "totals"}


@pytest.mark.slow
def test_more_fits_on_a_simulated_device_equal_the_host() -> None:
    check(OTHERS)


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
