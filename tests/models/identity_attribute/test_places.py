"""Bits do not depend on where arrays lie: what compiled loops write may come right after what they read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from factorflow.models.identity_attribute.kernels.all_chains import smooth_all
from factorflow.models.identity_attribute.kernels.chains import smooth_attributes
from factorflow.models.identity_attribute.kernels.frames import update_complete
from factorflow.models.identity_attribute.kernels.presence import smooth_presence
from factorflow.models.identity_attribute.kernels.statistics import sum_statistics

SIZE = 2
FAR = 4096


def laid_out(arrays: list[Any], gap: int) -> list[Any]:
    """Return copies that lie one after the other in memory, so many numbers apart."""
    room = np.zeros(sum(a.size + gap for a in arrays))
    placed, at = [], 0
    for a in arrays:
        there = room[at : at + a.size].reshape(a.shape)
        there[:] = a
        placed.append(there)
        at += a.size + gap
    return placed


@pytest.mark.parametrize("n", [3, 9, 32])
@pytest.mark.parametrize("loop", ["presence", "attributes"])
def test_close_together_and_far_apart(loop: str, n: int) -> None:
    rng = np.random.default_rng(n)
    first, last = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    evidence, mean = 2.0 * rng.standard_normal((n, SIZE)), rng.standard_normal((n, SIZE))
    own, covariance = (0.1 + np.eye(SIZE))[None], np.tile(0.1 * np.eye(SIZE), (n, 1, 1))
    present, table = rng.random(n), np.log([[0.9, 0.1], [0.2, 0.8]])
    moments = np.array([[2.0, 3.0], [0.5, 0.7], [1.0, 1.5]])

    def found(gap: int, order: Any) -> bytes:
        written = [np.zeros(s) for s in ((n,), (n,), (n,), (n,), (n, SIZE), (n, SIZE, SIZE), (n, SIZE))]
        read = [evidence, mean, covariance, present]
        arrays = [*written, *read]
        placed: list[Any] = [None] * len(arrays)
        for i, there in zip(order, laid_out([arrays[i] for i in order], gap), strict=True):
            placed[i] = there
        a, b, c, d, e, f, g = placed[:7]
        y, m, v, b0 = placed[7:]
        runs = (0,) * SIZE, np.array([0]), np.array([n])
        if loop == "presence":
            smooth_presence(*runs, first, last, y, own, 0, m, v, table, 0.3, 0.1, -0.2, a, b, c, d)
            return b"".join(x.tobytes() for x in (a, b, c, d))
        edge = np.vstack([np.eye(SIZE), np.ones(SIZE)])
        smooth_attributes(*runs, first, last, b0, y, own, 0, moments, 1.0, edge, edge, e, f, g, a)
        return b"".join(x.tobytes() for x in (e, f, g, a))

    apart = found(FAR, range(11))
    for gap in range(5):
        for _ in range(12):
            assert found(gap, rng.permutation(11)) == apart


@pytest.mark.thorough
@pytest.mark.parametrize("n", [3, 32])
def test_all_identities_close_together_and_far_apart(n: int) -> None:
    rng, identities = np.random.default_rng(n), 3
    first, last = np.arange(n) == 0, np.arange(n) == n - 1
    columns = identities * SIZE
    gram = rng.standard_normal((columns, columns))
    apart = np.kron(1.0 - np.eye(identities), np.ones((SIZE, SIZE)))
    table = np.log([[0.9, 0.1], [0.2, 0.8]])
    read = [rng.standard_normal((n, columns)), (gram + gram.T) * apart]
    changed = [rng.standard_normal((n, columns)), rng.random((identities, n))]
    own = np.tile(0.1 + np.eye(SIZE), (identities, 1, 1))
    moments = np.tile([[2.0], [0.5], [1.0]], columns)
    shapes = [(identities, n)] * 4 + [
        (identities, n, SIZE),
        (identities, n, SIZE, SIZE),
        (identities, n, SIZE),
    ]

    def found(gap: int, order: Any) -> bytes:
        arrays = [*read, *changed, *(np.zeros(shape) for shape in shapes)]
        placed: list[Any] = [None] * len(arrays)
        for i, there in zip(order, laid_out([arrays[i] for i in order], gap), strict=True):
            placed[i] = there
        residual, between, activity, present, joint, earlier, e, f, mean, covariance, cross = placed
        runs = (0,) * SIZE, np.array([0]), np.array([n]), first, last
        states = activity, present, joint, earlier, e, mean, covariance, cross, f
        smooth_all(*runs, residual, between, own, moments, 1.0, table, 0.3, *states)
        return b"".join(x.tobytes() for x in states)

    far = found(FAR, range(11))
    for gap in range(5):
        for _ in range(12):
            assert found(gap, rng.permutation(11)) == far


@pytest.mark.thorough
@pytest.mark.parametrize("n", [2, 5, 16])
@pytest.mark.parametrize("loop", ["update", "tally"])
def test_frames_close_together_and_far_apart(loop: str, n: int) -> None:
    """Halves of n frames each; P = 3."""
    rng, p = np.random.default_rng(n), 3
    k = p * SIZE
    gram = rng.standard_normal((k, k)) * np.kron(1.0 - np.eye(p), np.ones((SIZE, SIZE)))
    halves = [part for _ in range(2) for part in (rng.random((n, p)), *rng.standard_normal((2, n, k)))]
    edges = [rng.random((2, p)), rng.standard_normal((2, k))]
    inverse, by = np.tile(0.1 + np.eye(SIZE), (4, p, 1, 1)), rng.uniform(0.5, 2.0, k)
    if loop == "update":
        tables = [rng.standard_normal(k), gram, rng.standard_normal((4, 2, k)), rng.standard_normal((4, 3))]
        tables += [rng.random((4, k)), inverse, rng.standard_normal((4, p))]
        read = [rng.standard_normal((k, n)), *tables, *edges, by, *halves[:3], by, *halves[3:5]]
        shapes = [(n, p), (n, k), (n, k), (n,)]
    else:
        read = [*halves, inverse, rng.standard_normal((4, p)), np.ones(2 * n + 1), *edges]
        shapes = [(2 * n, k), (k,), (k,), (SIZE, k), (4, k), (p, SIZE, SIZE), (2, 4, p), (4,), (3, p)]
    at, kind = np.arange(2 * n), np.arange(n) % 4

    def found(gap: int, order: Any) -> bytes:
        arrays = [*read, *(np.zeros(shape) for shape in shapes)]
        placed: list[Any] = [None] * len(arrays)
        for i, there in zip(order, laid_out([arrays[i] for i in order], gap), strict=True):
            placed[i] = there
        if loop == "update":
            update_complete(kind, at[:n] - 1, at[:n], *placed)
        else:
            place = np.concatenate([kind, kind])
            sum_statistics(at % 2, at // 2, *placed[:6], place, place, *placed[6:])
        return b"".join(x.tobytes() for x in placed[len(read) :])

    count = len(read) + len(shapes)
    far = found(FAR, range(count))
    for gap in range(5):
        for _ in range(12):
            assert found(gap, rng.permutation(count)) == far
