"""The kernel of tiles does what equations 24 to 46 say, frame by frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import xlogy

from factorflow.models.identity_attribute.kernels.frames import TILE, update_complete
from factorflow.models.identity_attribute.kernels.neighbours import NOBODY, OUTSIDE


@pytest.mark.parametrize(("n_identities", "size"), [(3, 2), (2, 1), (4, 3), (5, 1)])
@pytest.mark.parametrize("dense", [True, False])
def test_tiles_are_frames_one_by_one(n_identities: int, size: int, dense: bool) -> None:
    """Columns that no four share, tiles that are not full, all places of frames and ends of the block."""
    rng, p, q = np.random.default_rng(1), n_identities, size
    k, n = p * q, 2 * TILE + 5
    kind = np.zeros(n, int)
    kind[[0, 7, 40]], kind[[20, 50]], kind[33], kind[[3, 4, 30]] = 1, 2, 3, -1
    if not dense:
        kind[60:90] = 2
    earlier, later = np.arange(n) - 1, np.arange(n)  # where neighbours are in the other half
    later[-1] = OUTSIDE  # as the first one's earlier neighbour is
    earlier[(kind == 1) | (kind == 3)], later[(kind == 2) | (kind == 3)] = NOBODY, NOBODY
    kind[0], earlier[0] = 0, OUTSIDE
    apart = np.kron(1.0 - np.eye(p), np.ones((q, q)))
    hold = rng.normal(size=(4, 2, k))
    odds = rng.normal(size=(4, 3))
    hold[1::2, 0], odds[1::2, 1], hold[2:, 1], odds[2:, 2] = 0.0, 0.0, 0.0, 0.0
    given: dict[str, Any] = {
        "data": rng.normal(size=(k, n + 3)),
        "pull": rng.normal(size=k),
        "gram": 0.3 * rng.normal(size=(k, k)) * apart,
        "hold": hold,
        "odds": odds,
        "alone": rng.uniform(0.5, 1.0, (4, k)),
        "inverse": rng.uniform(0.1, 0.2, (4, p, q, q)) + np.eye(q),
        "offset": rng.normal(size=(4, p)),
        "beside_present": rng.uniform(size=(2, p)),
        "beside_mean": rng.normal(size=(2, k)),
    }

    def half() -> list[Any]:
        return [rng.uniform(0.5, 2.0, k), rng.uniform(size=(n, p)), *rng.normal(size=(2, n, k))]

    (by, b, on, off), (old_by, old_b, old_on, _) = half(), half()
    mean = by * (np.repeat(b, q, axis=1) * on + np.repeat(1.0 - b, q, axis=1) * off)
    around = np.concatenate([mean, np.zeros((1, k)), np.zeros((1, k))])  # NOBODY, OUTSIDE
    chances = np.concatenate([b, np.zeros((1, p)), np.zeros((1, p))])
    written = [np.full(shape, 7.0) for shape in ((n, p), (n, k), (n, k), n)]
    expected = [part.copy() for part in written]
    for t in np.flatnonzero(kind >= 0):
        where = kind[t]
        prior, total = np.zeros(k), np.repeat(odds[where, 0], p)
        for end, at in enumerate((earlier[t], later[t])):
            around[OUTSIDE], chances[OUTSIDE] = given["beside_mean"][end], given["beside_present"][end]
            prior += hold[where, end] * around[at]
            total += odds[where, end + 1] * chances[at]
        x = np.repeat(old_b[t], q) * old_by * old_on[t]
        for i in range(p):
            own = slice(i * q, (i + 1) * q)
            told = given["data"][own, t] - given["pull"][own] - given["gram"][own] @ x + prior[own]
            met = given["inverse"][where, i] @ told
            gain = 0.5 * (met @ told - (prior[own] ** 2 * given["alone"][where, own]).sum())
            gain += given["offset"][where, i] + total[i]
            expected[0][t, i] = 1.0 / (1.0 + np.exp(-gain))
            expected[1][t, own], x[own] = met, expected[0][t, i] * met
        expected[2][t], (c, d) = prior * given["alone"][where], (expected[0][t], 1.0 - expected[0][t])
        expected[3][t] = -(xlogy(c, c) + xlogy(d, d)).sum()
    update_complete(kind, earlier, later, *given.values(), by, b, on, off, old_by, old_b, old_on, *written)
    for found, right in zip(written, expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-11, atol=1e-12)
