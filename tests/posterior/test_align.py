"""Labels, signs and flips put back, on draws that were shuffled on purpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factorflow.posterior.align import Alignment, align_draws, find_alignment

DIMS = {
    "loadings_a": ("chain", "draw", "feature_a", "factor"),
    "intercept_a": ("chain", "draw", "feature_a"),
    "activity": ("chain", "draw", "factor"),
    "scores": ("chain", "obs", "factor"),
    "density": ("chain", "draw"),
}


def truth(rng: Any) -> dict[str, Any]:
    z = rng.normal(size=(1, 1, 9, 3)) * 3 + 0.1 * rng.normal(size=(2, 12, 9, 3))
    return {
        "loadings_a": z,
        "intercept_a": 0.1 * rng.normal(size=(2, 12, 9)),
        "activity": rng.random((2, 12, 3)),
        "scores": np.tile(rng.random((1, 5, 3)), (2, 1, 1)),
        "density": rng.random((2, 12)),
    }


def shuffle(draws: dict[str, Any], symmetry: str, rng: Any) -> dict[str, Any]:
    """Rename the factors of every draw: of the second chain all alike, so that its means can follow."""
    out = {name: values.copy() for name, values in draws.items()}
    for c in range(2):
        order, sign = np.arange(3), np.ones(3)
        if c == 1:
            order = rng.permutation(3)
            sign = np.where(rng.random(3) < 0.5, -1.0, 1.0) if symmetry != "none" else sign
        for m in range(12):
            z = draws["loadings_a"][c, m][:, order]
            out["loadings_a"][c, m] = z * sign
            if symmetry == "flip":
                out["intercept_a"][c, m] = draws["intercept_a"][c, m] + z[:, sign < 0].sum(1)
            a = draws["activity"][c, m][order]
            out["activity"][c, m] = np.where((sign < 0) & (symmetry == "flip"), 1 - a, a)
        s = draws["scores"][c][:, order]
        if symmetry == "sign":
            s = s * sign
        if symmetry == "flip":
            s = np.where(sign < 0, 1 - s, s)
        out["scores"][c] = s
    return out


@pytest.mark.parametrize("symmetry", ["none", "sign", "flip"])
@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_shuffled_draws_are_put_back(symmetry: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    draws = truth(rng)
    aligned = align_draws(shuffle(draws, symmetry, rng), DIMS, symmetry)
    straight = align_draws(draws, DIMS, symmetry)
    for name in draws:
        np.testing.assert_allclose(aligned[name], straight[name], atol=1e-12, err_msg=name)


def test_every_draw_may_differ() -> None:
    rng = np.random.default_rng(1)
    z = np.tile(rng.normal(size=(8, 4)), (1, 30, 1, 1))
    shuffled = np.stack([z[0, m][:, rng.permutation(4)] * rng.choice([-1, 1], 4) for m in range(30)])[None]
    alignment = find_alignment(shuffled, "sign")
    back = np.take_along_axis(shuffled, alignment.order[:, :, None, :], 3) * alignment.sign[:, :, None, :]
    np.testing.assert_allclose(back, np.tile(back[:, :1], (1, 30, 1, 1)))


def test_means_of_a_chain_follow_most_of_its_draws() -> None:
    """Seven draws of twelve: neither the first of them, nor the last, nor the rarest renaming."""
    orders = np.array([[2, 1, 0]] * 2 + [[1, 2, 0]] * 7 + [[0, 1, 2]] * 3)
    signs = np.array([[1.0, 1.0, 1.0]] * 2 + [[1.0, -1.0, 1.0]] * 7 + [[1.0, -1.0, 1.0]] * 3)
    other = np.tile([0, 2, 1], (12, 1))
    alignment = Alignment(np.stack([orders, other]), np.stack([signs, -np.ones((12, 3))]))
    chains = alignment.of_chains()
    np.testing.assert_array_equal(chains.order, [[[1, 2, 0]], [[0, 2, 1]]])
    np.testing.assert_array_equal(chains.sign, [[[1.0, -1.0, 1.0]], [[-1.0, -1.0, -1.0]]])


@pytest.mark.parametrize("symmetry", ["none", "sign", "flip"])
def test_what_is_turned_with_a_factor(symmetry: Any) -> None:
    """Loadings always, scores by sign or as probabilities; inclusions and intercepts of "sign" never."""
    rng = np.random.default_rng(2)
    z, p = rng.normal(size=(1, 1, 9, 2)) * [3.0, 1.0], rng.random((1, 1, 5, 2))
    given_draws = {
        "loadings_a": np.concatenate([-z[..., ::-1], z, z], axis=1),
        "scores": np.repeat(p, 3, axis=1),
        "scores_inclusion": np.repeat(p, 3, axis=1),
        "intercept_a": np.zeros((1, 3, 9)),
        "inclusion_a": np.repeat(rng.random((1, 1, 9, 2)), 3, axis=1),
    }
    tail = {"loadings_a": "feature_a", "inclusion_a": "feature_a", "intercept_a": "feature_a"}
    dims = {
        name: ("chain", "draw", tail.get(name, "obs"), *(() if name == "intercept_a" else ("factor",)))
        for name in given_draws
    }
    found = align_draws(given_draws, dims, symmetry)
    for name in given_draws:
        np.testing.assert_array_equal(found[name][:, 1:], given_draws[name][:, 1:], err_msg=name)
    if symmetry == "none":  # the nearest order, without a turn
        return
    turned = p[0, 0, :, ::-1]
    np.testing.assert_allclose(found["loadings_a"][0, 0], z[0, 0])
    np.testing.assert_allclose(found["inclusion_a"][0, 0], given_draws["inclusion_a"][0, 0][:, ::-1])
    if symmetry == "sign":
        np.testing.assert_allclose(found["scores"][0, 0], -turned)
        np.testing.assert_allclose(found["scores_inclusion"][0, 0], turned)
        assert not found["intercept_a"].any()
    else:
        np.testing.assert_allclose(found["scores"][0, 0], 1.0 - turned)
        np.testing.assert_allclose(found["intercept_a"][0, 0], -z[0, 0].sum(axis=1))
