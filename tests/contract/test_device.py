"""Whole runs on a CUDA device find what they find on the host, but for roundings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import factorflow

pytestmark = pytest.mark.gpu

VARIATIONAL = 1e-3
"""Largest difference, over the largest entry of a variable: stored in single precision, some after roundings
that thousands of updates have carried on."""


def differences(found: Any, expected: Any) -> dict[str, float]:
    """Return how far each variable of floating point is off, over the largest entry of what is expected."""
    off = {}
    for path in ("variational", "posterior", "holdout"):
        if path not in expected.tree:
            continue
        ours, theirs = (run.tree[path].to_dataset().data_vars for run in (found, expected))
        assert list(ours) == list(theirs)
        for name in ours:
            a, b = np.asarray(ours[name]), np.asarray(theirs[name])
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            if b.dtype.kind != "f":
                continue
            np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
            scale = np.nanmax(np.abs(b), initial=0.0)
            off[f"{path}/{name}"] = float(
                np.nanmax(np.abs(a - b), initial=0.0) / (scale if scale > 0 else 1.0)
            )
    return off


def test_runs_on_a_device_find_what_they_find_on_the_host(family: str, dataset: Any, config: Any) -> None:
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no CUDA device")
    if "cuda" not in config.devices:
        pytest.skip(f"{family} works on the host alone")
    runs = {
        where: factorflow.fit(dataset, config, seed=3, holdout=0.1, device=where) for where in ("cuda", "cpu")
    }
    found, expected = runs["cuda"], runs["cpu"]
    off = differences(found, expected)
    print(family, {name: f"{value:.1e}" for name, value in off.items()})
    assert found.trace.sizes == expected.trace.sizes
    if expected.kind != "monte carlo":  # of chains, one proposal decided otherwise makes another chain
        assert max(off.values()) < VARIATIONAL
