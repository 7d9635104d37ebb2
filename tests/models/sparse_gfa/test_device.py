"""Whole passes on a device equal those on the host: Numba's simulator, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("device_pass.py")
SHORT = ("mixed", "boehning, samples absent", "fit")
OTHERS = ("complete", "sample noise", "groups", "spikes on scores")
EVERYTHING = {
    "centred", "column_moments", "gaps", "pairs_by_column", "pairs_by_row", "pseudo_boehning",
    "pseudo_jaakkola", "pseudo_poisson", "residual_squares", "solve_normals",
}  # fmt: skip


def check(cases: tuple[str, ...]) -> set[str]:
    """Run cases on the simulated device, compare, and return the kernels they called."""
    pytest.importorskip("numba.cuda")
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, "-W", "ignore", str(SCRIPT), *cases]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name.rpartition(", ")[0] for name in found["differences"]} == set(cases)
    for name, difference in found["differences"].items():
        assert difference < (1e-5 if name.endswith("float32") else 1e-10), name
    return set(found["used"])


@pytest.mark.thorough
def test_stages_on_a_simulated_device_equal_the_host() -> None:
    assert check(SHORT) == EVERYTHING


@pytest.mark.slow
def test_more_stages_on_a_simulated_device_equal_the_host() -> None:
    check(OTHERS)
