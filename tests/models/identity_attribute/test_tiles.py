"""The kernel of tiles does what equations 24 to 46 say, frame by frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from factorflow.models.identity_attribute.kernels.frames import TILE, update_complete


@pytest.mark.parametrize(("n_identities", "size"), [(3, 2), (2, 1), (4, 3), (5, 1)])
def test_tiles_are_frames_one_by_one(n_identities: int, size: int) -> None:
    """Columns that no four share, tiles that are not full, and both ends of the block."""
    rng, p, q = np.random.default_rng(1), n_identities, size
    k, n = p * q, 4 * TILE + 7
    rows = np.arange(0, n, 2)
    chosen = np.delete(np.arange(len(rows)), [3, 4, 30])
    apart = np.kron(1.0 - np.eye(p), np.ones((q, q)))
    given: dict[str, Any] = {
        "data": rng.normal(size=(len(rows), k)),
        "pull": rng.normal(size=k),
        "gram": 0.3 * rng.normal(size=(k, k)) * apart,
        "hold": rng.normal(size=(2, k)),
        "odds": rng.normal(size=3),
        "precision": rng.uniform(1.0, 2.0, k),
        "inverse": np.stack([np.eye(q) + 0.1 for _ in range(p)]),
        "offset": rng.normal(size=p),
        "beside_present": rng.uniform(size=(2, p)),
        "beside_mean": rng.normal(size=(2, k)),
    }
    present, on, off = rng.uniform(size=(n, p)), rng.normal(size=(n, k)), rng.normal(size=(n, k))
    expected = [part.copy() for part in (present, on, off)]
    mean = np.repeat(present, q, axis=1) * on + np.repeat(1.0 - present, q, axis=1) * off
    around = np.concatenate([given["beside_mean"][:1], mean, given["beside_mean"][1:]])
    chances = np.concatenate([given["beside_present"][:1], present, given["beside_present"][1:]])
    for number in chosen:
        t = rows[number]
        prior = given["hold"][0] * around[t] + given["hold"][1] * around[t + 2]
        x = np.repeat(present[t], q) * on[t]
        for i in range(p):
            own = slice(i * q, (i + 1) * q)
            told = given["data"][number, own] - given["pull"][own] - given["gram"][own] @ x + prior[own]
            met = given["inverse"][i] @ told
            gain = 0.5 * (met @ told - (prior[own] ** 2 / given["precision"][own]).sum())
            gain += given["offset"][i] + given["odds"] @ [1.0, chances[t, i], chances[t + 2, i]]
            expected[0][t, i] = 1.0 / (1.0 + np.exp(-gain))
            expected[1][t, own], x[own] = met, expected[0][t, i] * met
        expected[2][t] = prior / given["precision"]
    update_complete(rows, chosen, *given.values(), present, on, off)
    for found, right in zip((present, on, off), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-11, atol=1e-12)
