"""Strips: some features of a view, of all samples, read alone and by way of a run's source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorflow
from factorflow.data import Holdout
from factorflow.data.store import views as store_views
from factorflow.engine.source import Source
from factorflow.shape import Meta, ViewMeta

VIEWS = {"a": ("gaussian", 23), "b": ("poisson", 11), "c": ("bernoulli", 7)}


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Views of three kinds with missing entries, nine features to a chunk."""
    monkeypatch.setattr(store_views, "choose_tile", lambda rows, entries, itemsize: min(entries, 9))
    return factorflow.simulate(
        "sparse_gfa", tmp_path / "d.zarr", 97, views=VIEWS, n_factors=3, missing=0.2, block_rows=32, seed=1
    )


def whole(dataset: Any, view: str, holdout: Holdout | None) -> Any:
    """Return all of a view, block after block."""
    blocks = [dataset.block(number, [view], holdout) for number in range(dataset.n_blocks)]
    return np.concatenate([block.data[view] for block in blocks])


@pytest.mark.parametrize("holdout", [None, Holdout(0.3, 5), Holdout(0.3, 5, "row")], ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_strip_is_those_columns_of_the_blocks(dataset: Any, view: str, holdout: Holdout | None) -> None:
    expected = whole(dataset, view, holdout)
    for features in (range(0, 1), range(5, 7), range(3, VIEWS[view][1])):
        found = dataset.strip(view, features, holdout)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected[:, features.start : features.stop])
        assert not found.flags.writeable


@pytest.mark.parametrize("cache", [0, 1000, 1 << 20])
def test_source_yields_the_strips_it_is_asked_for(dataset: Any, cache: int) -> None:
    source = Source(dataset, tuple(VIEWS), Holdout(0.3, 5), cache)
    strips = dataset.meta().strips(4)
    assert [(s.view, s.features) for s in strips[5:8]] == [
        ("a", range(14, 17)), ("a", range(17, 20)), ("a", range(20, 23)),
    ]  # fmt: skip
    assert strips[8].view == "b"
    for _ in range(2):
        found = list(source.strips(range(1, len(strips)), strips))
        assert [block.number for block in found] == list(range(1, len(strips)))
        for block in found:
            strip = strips[block.number]
            expected = dataset.strip(strip.view, strip.features, Holdout(0.3, 5))
            assert block.features == strip.features
            assert block.n_rows == 97
            np.testing.assert_array_equal(block.data[strip.view], expected)
            assert block.data[strip.view].flags.c_contiguous
        next(iter(source.stream([0])))  # another cut of the same dataset


def test_neighbouring_strips_are_read_once(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are read whole, whatever is asked of them."""
    read: list[tuple[str, range]] = []
    strip = type(dataset).strip

    def watch(self: Any, view: str, features: range, holdout: Any = None) -> Any:
        read.append((view, features))
        return strip(self, view, features, holdout)

    monkeypatch.setattr(type(dataset), "strip", watch)
    source = Source(dataset, tuple(VIEWS), None, 0)
    list(source.strips(range(8), dataset.meta().strips(4)))
    assert read == [("a", range(0, 11)), ("a", range(11, 20)), ("a", range(20, 23))]


@pytest.mark.parametrize(
    ("n_features", "n"), [(1, 1), (100, 1), (101, 2), (201, 4), (450, 8), (801, 16), (1600, 16), (1601, 24)]
)
def test_strips_are_equal_and_of_a_number_that_workers_share_evenly(n_features: int, n: int) -> None:
    meta = Meta(64, 1, 64, (ViewMeta("x", "gaussian", n_features, "none"),))
    strips = meta.strips(100)
    assert len(strips) == n
    assert [f for strip in strips for f in strip.features] == list(range(n_features))
    lengths = [len(strip.features) for strip in strips]
    assert max(lengths) - min(lengths) <= 1
    assert max(lengths) <= 100


def test_strips_are_not_empty() -> None:
    """Five features, each for itself, where eight strips would do."""
    meta = Meta(64, 1, 64, (ViewMeta("x", "gaussian", 5, "none"), ViewMeta("y", "gaussian", 3, "none")))
    assert [(s.view, len(s.features)) for s in meta.strips(1)] == [("x", 1)] * 5 + [("y", 1)] * 3
