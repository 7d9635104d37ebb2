"""What tests of several kernels need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

COMPILE = """
from unittest import mock
from numba import cuda
from numba.core import types
try:
    cuda.compile_ptx(lambda x: x + 1.0, (types.float64,), device=True, cc=(9, 0))
except Exception as error:
    print("skip", type(error).__name__)
    raise SystemExit
kernels = []
{kernels}
device = mock.Mock(compute_capability=(9, 0))  # nested device functions ask the device they are compiled for
with mock.patch("numba.cuda.dispatcher.get_current_device", return_value=device):
    texts = [cuda.compile_ptx(kernel.py_func, signature, cc=(9, 0))[0] for kernel, signature in kernels]
print("compiled", len(texts), all(".visible .entry" in text for text in texts))
"""


@pytest.fixture
def compile_to_ptx() -> Callable[[str], int]:
    """Return what compiles ``kernels``, (kernel, signature) pairs that a script appends, and counts them.

    Without a device: by Numba's compiler alone, where its libraries are installed; else the test is skipped.
    """

    def compile_all(kernels: str) -> int:
        script = COMPILE.format(kernels=kernels)
        command = [sys.executable, "-W", "ignore", "-c", script]
        found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if found.stdout.startswith("skip"):
            pytest.skip(f"no CUDA compiler: {found.stdout.strip()}")
        assert found.stdout.startswith("compiled"), found.stderr
        assert found.stdout.strip().endswith("True")
        return int(found.stdout.split()[1])

    return compile_all


@pytest.fixture
def on_a_device() -> Callable[..., dict[str, Any]]:
    """Return what runs cases of a script in a process of its own and returns what it printed last.

    On Numba's simulator; ``real``: on a CUDA device, and where there is none the test is skipped.
    """

    def run(script: Path, cases: Sequence[str], real: bool = False) -> dict[str, Any]:
        if real:
            cupy = pytest.importorskip("cupy")
            if not cupy.cuda.is_available():
                pytest.skip("no CUDA device")
        pytest.importorskip("numba.cuda")
        environment = os.environ | ({} if real else {"NUMBA_ENABLE_CUDASIM": "1"})
        command = [sys.executable, "-W", "ignore", str(script), *cases]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run
