"""Kernels of chains against enumeration and dense matrices, and cuts against the whole."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from factorflow.models.identity_attribute import ica
from factorflow.models.identity_attribute.kernels import attribute_messages, chains, presence, small

FIRST = np.array([True, False, False, True, False, True, False, False, False])
"""Where sequences begin; with cuts before frames 2, 3, 7 and 8 some blocks lie within one sequence."""

CUTS = [[9], [2, 3, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 9]]
LAST = np.append(FIRST[1:], True)
TABLE = np.log([[0.8, 0.1], [0.3, 0.6]])
START = 0.4


def _blocks(cuts: list[int]) -> list[slice]:
    return [slice(a, b) for a, b in zip([0, *cuts], cuts, strict=False)]


def _runs(rows: slice) -> tuple[Any, Any]:
    """Return where the runs of frames of one sequence begin and end in a block."""
    starts = np.flatnonzero(FIRST[rows] | (np.arange(len(FIRST[rows])) == 0))
    return starts, np.append(starts[1:], len(FIRST[rows]))


def _enumerated(evidence: Any) -> tuple[Any, Any, Any, float]:
    """Return Q(b = 1), pairwise and earlier marginals, and entropy, by all 2^9 states."""
    n = len(evidence)
    present, joint, earlier, weights = np.zeros(n), np.zeros(n), np.zeros(n), []
    states = list(product([0, 1], repeat=n))
    for b in states:
        log = sum(evidence[t] * b[t] for t in range(n))
        log += sum(START * b[t] if FIRST[t] else TABLE[b[t - 1], b[t]] for t in range(n))
        weights.append(log)
    p = np.exp(np.array(weights) - max(weights))
    p /= p.sum()
    for b, w in zip(states, p, strict=True):
        for t in range(n):
            present[t] += w * b[t]
            if not FIRST[t]:
                joint[t] += w * b[t] * b[t - 1]
                earlier[t] += w * b[t - 1]
    return present, joint, earlier, float(-(p * np.log(np.maximum(p, 1e-300))).sum())


@pytest.mark.thorough
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("scale", [1.0, 30.0, 3000.0])
def test_presence_is_enumeration(cuts: list[int], scale: float) -> None:
    evidence = scale * np.random.default_rng(1).normal(size=len(FIRST))
    blocks = _blocks(cuts)
    told = np.empty((len(blocks), 2, 2))

    def given(rows: slice) -> tuple[Any, ...]:
        """Return arguments of which the log odds by the data are those above: a is 1."""
        ones = np.ones((len(FIRST[rows]), 1))
        return evidence[rows, None], np.zeros((1, 1, 1)), 0, ones, np.zeros((len(ones), 1, 1)), TABLE, START

    for i, rows in enumerate(blocks):
        work = np.empty(len(FIRST[rows]))
        presence.presence_message((0,), *_runs(rows), FIRST[rows], *given(rows), work, told[i])
    before, behind = np.empty(len(blocks)), np.empty(len(blocks))
    presence.scan_presence(told, before, behind)
    found = np.empty((4, len(FIRST)))
    for i, rows in enumerate(blocks):
        out = [np.empty(len(FIRST[rows])) for _ in range(4)]
        args = FIRST[rows], LAST[rows], *given(rows), before[i], behind[i]
        presence.smooth_presence((0,), *_runs(rows), *args, *out)
        found[:, rows] = out
    present, joint, earlier, entropy = _enumerated(evidence)
    for got, expected in zip(found, (present, joint, earlier), strict=False):
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-13)
    assert found[3].sum() == pytest.approx(entropy, rel=1e-9, abs=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("size", [1, 2])
def test_smoother_is_dense_inverse(cuts: list[int], size: int) -> None:
    """Frames without data among them, whose precision is 0."""
    rng, n = np.random.default_rng(2), len(FIRST)
    root = rng.normal(size=(n, size, size))
    precision = np.einsum("tij,tkj->tik", root, root)
    precision[[4, 6]] = 0.0
    information = rng.normal(size=(n, size)) * (precision[:, :1, 0] > 0)
    moments = np.array([[2.0, 3.0, 1.4], [-0.8, 2.2, 0.5], [1.0, 2.0, 0.4]])[:, :size].copy()
    variance = 1.7
    dense, at = np.zeros((n, size, n, size)), np.arange(size)
    for t in range(n):
        dense[t, :, t] += precision[t]
        dense[t, at, t, at] += 1 / variance if FIRST[t] else moments[0]
        if not FIRST[t]:
            dense[t - 1, at, t - 1, at] += moments[2]
            dense[t, at, t - 1, at] -= moments[1]
            dense[t - 1, at, t, at] -= moments[1]
    whole = np.linalg.inv(dense.reshape(n * size, n * size))
    centre = (whole @ information.reshape(-1)).reshape(n, size)
    whole = whole.reshape(n, size, n, size)
    blocks = _blocks(cuts)
    matrix, vector = np.empty((len(blocks), 2 * size, 2 * size)), np.empty((len(blocks), 2 * size))
    joined = np.array([float(not FIRST[rows.start]) for rows in blocks])
    each, present = (0,) * size, np.ones(n)

    def given(rows: slice) -> tuple[Any, ...]:
        return present[rows], information[rows], precision[rows], 1, moments, variance

    for i, rows in enumerate(blocks):
        attribute_messages.attribute_message(
            each, *_runs(rows), FIRST[rows], *given(rows), matrix[i], vector[i]
        )
    boundary = [np.empty((len(blocks), size + 1, size)) for _ in range(2)]
    attribute_messages.scan_attributes(each, matrix, vector, joined, *boundary)
    mean, covariance = np.empty((n, size)), np.empty((n, size, size))
    cross, entropy = np.empty((n, size)), np.empty(n)
    for i, rows in enumerate(blocks):
        out = [np.empty_like(a[rows]) for a in (mean, covariance, cross, entropy)]
        part = FIRST[rows], LAST[rows], *given(rows), boundary[0][i], boundary[1][i]
        chains.smooth_attributes(each, *_runs(rows), *part, *out)
        mean[rows], covariance[rows], cross[rows], entropy[rows] = out
    np.testing.assert_allclose(mean, centre, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(covariance, whole[np.arange(n), :, np.arange(n)], rtol=1e-9, atol=1e-12)
    for t in np.flatnonzero(~FIRST):
        expected = whole[t - 1, at, t, at] + centre[t - 1] * centre[t]
        np.testing.assert_allclose(cross[t], expected, rtol=1e-9, atol=1e-12)
    flat = whole.reshape(n * size, n * size)
    expected = 0.5 * np.linalg.slogdet(2 * np.pi * np.e * flat)[1]
    assert entropy.sum() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("scale", [1.0, 1e-70, 1e90])
def test_small_inverse(scale: float, size: int) -> None:
    root = np.random.default_rng(0).normal(size=(size, size))
    matrix = root @ root.T + 0.1 * np.eye(size)
    matrix *= scale
    for invert in (small.invert, partial(small.invert_small, (0,) * size)):
        out = np.empty((size, size))
        log_det = invert(matrix, out)
        np.testing.assert_allclose(out, np.linalg.inv(matrix), rtol=1e-9)
        assert log_det == pytest.approx(np.linalg.slogdet(matrix)[1], rel=1e-12)


def test_start_finds_pairs_and_what_is_apart_in_time() -> None:
    """Sources that come and go in pairs, mixed: grouped by energy, and turned to their autocorrelations."""
    rng, n, decay = np.random.default_rng(0), 6000, np.array([0.3, 0.9, 0.5, 0.95])
    a, b = np.empty((n, 4)), np.repeat(np.repeat(rng.random((n // 20, 2)) < 0.5, 20, axis=0), 2, axis=1)
    a[0] = rng.normal(size=4)
    for t in range(1, n):
        a[t] = decay * a[t - 1] + np.sqrt(1 - decay**2) * rng.normal(size=4)
    mixing = rng.normal(size=(7, 4))
    y = (a * b) @ mixing.T
    white, basis = ica.whiten(y - y.mean(axis=0), 4)
    turn = ica.fast_ica(white, rng.normal(size=(4, 4)))
    turn = turn[:, ica.energy_groups(white @ turn, 2)]
    sources = white @ turn
    turn = turn @ ica.separate_in_time(sources[:-1], sources[1:], 2)
    found = np.abs(np.corrcoef((white @ turn).T, (a * b).T)[:4, 4:])
    match = found.argmax(axis=1)
    assert sorted(match) == [0, 1, 2, 3]
    assert found.max(axis=1).min() > 0.97
    assert {frozenset(match[:2]), frozenset(match[2:])} == {frozenset((0, 1)), frozenset((2, 3))}
    np.testing.assert_allclose(basis @ white.T, (y - y.mean(axis=0)).T, atol=1e-8)
