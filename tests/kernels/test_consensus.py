"""What several starts agree on."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import silhouette_samples

from factorflow.kernels.consensus import find_consensus

S, K, D = 8, 5, 60


def programs(seed: int = 0) -> np.ndarray:
    found = np.random.default_rng(seed).gamma(0.2, 1.0, (K, D))
    return found / found.sum(axis=1, keepdims=True)


def test_copies_of_one_start_are_that_start() -> None:
    """In any order of its programs."""
    truth, rng = programs(), np.random.default_rng(1)
    orders = [rng.permutation(K) for _ in range(S)]
    found = find_consensus(np.stack([truth[order] for order in orders]), K)
    assert (found.labels >= 0).all()
    np.testing.assert_allclose(found.distance, 0.0, atol=1e-6)
    np.testing.assert_allclose(found.stability, 1.0, atol=1e-6)
    for s, order in enumerate(orders):
        for k in range(K):
            np.testing.assert_allclose(found.programs[found.labels[s, k]], truth[order[k]], atol=1e-12)


def test_strays_are_left_out_and_noise_is_averaged() -> None:
    truth, rng = programs(), np.random.default_rng(2)
    noisy = truth * np.exp(0.3 * rng.standard_normal((S, K, D)))
    noisy /= noisy.sum(axis=2, keepdims=True)
    noisy[3, 2] = np.eye(D)[7]
    found = find_consensus(noisy, K)
    assert (found.labels == -1).sum() == 1
    assert found.labels[3, 2] == -1
    assert found.distance[3, 2] > 1.0
    np.testing.assert_allclose(found.programs.sum(axis=1), 1.0)
    each = [np.abs(noisy[:, k] - truth[k]).sum(axis=1).mean() for k in range(K)]
    for k in range(K):
        group = found.labels[0, k]
        assert (np.delete(found.labels[:, k], 3) == group).all()
        assert np.abs(found.programs[group] - truth[k]).sum() < 0.7 * each[k]


def test_stability_is_the_mean_silhouette() -> None:
    rng = np.random.default_rng(3)
    noisy = programs() * np.exp(0.8 * rng.standard_normal((S, K, D)))
    noisy /= noisy.sum(axis=2, keepdims=True)
    found = find_consensus(noisy, K, threshold=2.0)
    unit = noisy.reshape(-1, D) / np.linalg.norm(noisy.reshape(-1, D), axis=1, keepdims=True)
    expected = silhouette_samples(unit, found.labels.ravel())
    for group in range(K):
        mine = found.labels.ravel() == group
        np.testing.assert_allclose(found.stability[group], expected[mine].mean(), rtol=1e-9)
    assert (np.diff(np.bincount(found.labels.ravel())) <= 0).all()


def test_nothing_is_left() -> None:
    found = find_consensus(np.eye(D)[:8].reshape(2, 4, D), 4)
    assert found.programs.shape == (0, D)
    assert (found.labels == -1).all()


def test_factors_of_either_sign_and_starts_that_lack_some() -> None:
    """Groups, signs and medians of factors that starts find in other orders, signs and numbers."""
    rng = np.random.default_rng(5)
    truth = rng.standard_normal((3, 40))
    starts = np.full((6, 4, 40), np.nan)
    places = []
    for start in starts:
        order, flip = rng.permutation(3), rng.choice([-1.0, 1.0], 3)
        start[:3] = flip[:, None] * truth[order] + 0.05 * rng.standard_normal((3, 40))
        places.append(order)
    starts[0, 3] = rng.standard_normal(40)  # nobody else finds it
    starts[5, 2] = np.nan
    found = find_consensus(starts, 3, signed=True)
    assert (found.labels[:, 3] == -1).all()
    assert found.distance[0, 3] > 0.5
    assert np.isnan(found.distance[1:, 3]).all()
    assert (found.labels[:5, :3] >= 0).all()
    cosines = found.programs @ truth.T / np.linalg.norm(found.programs, axis=1)[:, None]
    cosines = np.abs(cosines / np.linalg.norm(truth, axis=1))
    match = cosines.argmax(axis=1)
    assert sorted(match) == [0, 1, 2]
    assert cosines.max(axis=1).min() > 0.99
    np.testing.assert_allclose(
        np.linalg.norm(found.programs, axis=1), np.linalg.norm(truth[match], axis=1), rtol=0.05
    )
    assert (np.take_along_axis(found.programs, np.abs(found.programs).argmax(axis=1)[:, None], 1) > 0.0).all()
    for start, order in enumerate(places[:5]):
        np.testing.assert_array_equal(match[found.labels[start, :3]], order)
    assert (found.stability > 0.9).all()
    plain = find_consensus(starts[:, :3], 3, signed=False)
    assert plain.programs.shape[0] < 3 or plain.stability.min() < 0.9  # signs set them apart
