"""alpha and theta at their optimum have the same bits whatever threads compute them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from factorflow.core import threads
from factorflow.models.sparse_gfa.loadings import optimum
from factorflow.models.sparse_gfa.loadings.optimum import Shares, optimal_slab


@pytest.mark.parametrize("classes", [1, 2])
@pytest.mark.parametrize(("n_factors", "n_threads", "n_parts"), [(7, 2, 2), (7, 8, 3), (3, 2, 1), (1, 4, 1)])
def test_bits_do_not_depend_on_threads(
    classes: int, n_factors: int, n_threads: int, n_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimum, "SMALL", 0)
    cut: list[int] = []

    def count(function: Any, items: Sequence[Any]) -> list[Any]:
        cut.append(len(items))
        return threads.map_in_threads(function, items)

    monkeypatch.setattr(optimum, "map_in_threads", count)
    rng = np.random.default_rng(1)
    shape = (1000, n_factors)
    weights: Any = SimpleNamespace(variance=rng.gamma(2.0, 0.01, shape), mean=rng.normal(size=shape))
    alpha = rng.gamma(2.0, 1.0, n_factors)
    inside = rng.random(shape) < 0.3 if classes == 2 else None
    prior = np.ones((classes, n_factors)) if classes == 2 else 1.0
    on = rng.uniform(1.0, 100.0, (classes, n_factors))
    shares = Shares(on, 1000.0 - on, prior, prior, inside)
    whole = optimal_slab((1e-3, 1e-3), weights, alpha, 0.9 * alpha, shares)
    with threads.allow_threads(n_threads):
        parts = optimal_slab((1e-3, 1e-3), weights, alpha, 0.9 * alpha, shares)
    assert cut == [1, n_parts]
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one, other)


def test_threads_that_are_used_have_one_each() -> None:
    with threads.allow_threads(2):
        inside = threads.map_in_threads(lambda _: threads.allowed_threads(), range(3))
        assert (inside, threads.allowed_threads()) == ([1, 1, 1], 2)
    assert threads.allowed_threads() == 1
