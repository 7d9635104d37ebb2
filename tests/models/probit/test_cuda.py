"""The CUDA path: Numba's simulator runs the kernel, in a process of its own; a device, where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorflow.kernels.random import Step
from factorflow.models.probit.kernels.blocks import sweep_block
from factorflow.models.probit.kernels.tables import FactorTables

# Run with NUMBA_ENABLE_CUDASIM=1: every pair once on the simulated device, saved for comparison.
ON_DEVICE = """
import sys
import numpy as np
from factorflow.models.probit.kernels.cuda import launch_rows
from factorflow.models.probit.kernels.tables import FactorTables
from factorflow.kernels.random import Step

given = np.load(sys.argv[1])
x, z, o, a = (given[name] for name in ("x", "z", "o", "a"))
out = {}
for kind, sampler in given["pairs"]:
    tables = FactorTables(z, o, z @ z.T, a / (1 - a), int(kind), int(sampler), 0.5 * np.pi, 10_000)
    found = launch_rows(x, 1000, given[f"f{kind}"], tables, Step(2**63 + 5, 3, 7))
    for name, values in zip(("factors", "latent", "chance", "density", "counts"), found, strict=True):
        out[f"{kind}{sampler}{name}"] = values
np.savez(sys.argv[2], **out)
"""


PAIRS = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 2)]
"""Kinds of factors and samplers."""


def given() -> dict[str, Any]:
    """Return four samples of five features and starts of each kind of two factors."""
    rng = np.random.default_rng(2)
    x = rng.integers(-1, 2, (4, 5)).astype(np.int8)
    z, o, a = rng.normal(size=(2, 5)), rng.normal(size=5), np.array([0.3, 0.6])
    s = (rng.random((4, 2)) < 0.5) * 1.0
    starts = {"f0": s, "f1": (s * rng.normal(size=(4, 2))).astype(np.float32), "f2": s * 0.5}
    return {"x": x, "z": z, "o": o, "a": a} | starts


def swept(x: Any, values: dict[str, Any], kind: int, sampler: int) -> Any:
    """Return a sweep of entries wherever they lie."""
    z, o, a = (values[name] for name in ("z", "o", "a"))
    tables = FactorTables(z, o, z @ z.T, a / (1 - a), kind, sampler, 0.5 * np.pi, 10_000)
    return sweep_block(x, 1000, values[f"f{kind}"], tables, Step(2**63 + 5, 3, 7), chances=True)


@pytest.mark.thorough
def test_simulated_device_equals_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("numba.cuda")
    values = given()
    np.savez(tmp_path / "given.npz", pairs=PAIRS, **values)
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    paths = [str(tmp_path / "given.npz"), str(tmp_path / "found.npz")]
    command = [sys.executable, "-W", "ignore", "-c", ON_DEVICE, *paths]
    subprocess.run(command, check=True, env=environment, timeout=300)
    found = np.load(tmp_path / "found.npz")
    for kind, sampler in PAIRS:
        factors, chances, sums = swept(values["x"], values, kind, sampler)
        names = ("factors", "latent", "chance", "density", "counts")
        device = {name: found[f"{kind}{sampler}{name}"] for name in names}
        # The same source, but the CPU's compiler fuses multiplications and reorders sums.
        np.testing.assert_allclose(device["factors"], factors, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(device["chance"], chances, rtol=1e-9)
        np.testing.assert_allclose(device["density"].sum(), sums.density, rtol=1e-10)
        np.testing.assert_allclose(device["latent"].sum(0), sums.cross[:, -1], rtol=1e-6, atol=1e-9)
        np.testing.assert_array_equal(np.delete(device["counts"].sum(0), 3), np.delete(sums.counts, 3))


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "sampler"), PAIRS)
def test_device_equals_the_cpu(kind: int, sampler: int) -> None:
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no CUDA device")
    values = given()
    factors, chances, sums = swept(values["x"], values, kind, sampler)
    there = swept(cupy.asarray(values["x"]), values, kind, sampler)
    np.testing.assert_allclose(cupy.asnumpy(there[0]), factors, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(there[1], chances, rtol=1e-9)
    np.testing.assert_allclose(there[2].density, sums.density, rtol=1e-10)
    np.testing.assert_allclose(there[2].cross, sums.cross, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(np.delete(there[2].counts, 3), np.delete(sums.counts, 3))


TO_PTX = """
from factorflow.models.probit.kernels.cuda import _kernel
vector, table = types.float64[::1], types.float64[:, ::1]
signature = (types.int8[:, ::1], types.int64, table, vector, table, vector, types.int64, types.int64,
             types.float64, types.int64, types.uint64, types.uint64, types.uint64, table, table, table, table,
             types.int32[:, ::1], vector, table)
kernels.append((_kernel(), signature))
"""


@pytest.mark.slow
def test_kernel_compiles_to_ptx(compile_to_ptx: Callable[[str], int]) -> None:
    assert compile_to_ptx(TO_PTX) == 1
