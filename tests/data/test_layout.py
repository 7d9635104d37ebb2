from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorflow.data.store.layout import choose_block_rows, choose_tile


@given(st.integers(2, 10**9), st.lists(st.integers(1, 10**6), min_size=1, max_size=5))
def test_block_rows(n_rows: int, widths: list[int]) -> None:
    rows = choose_block_rows(n_rows, widths)
    assert rows & (rows - 1) == 0
    assert 32 <= rows <= 4096
    if n_rows >= 256:
        assert -(-n_rows // rows) >= 2
    assert rows == 32 or rows < 2 * n_rows
    size = 4 * rows * sum(widths)
    assert size < 24 * 2**20 or rows == 32  # about 16 MB
    assert size > 11 * 2**20 or rows == 4096 or rows > n_rows / 4


@pytest.mark.parametrize(
    ("n_rows", "widths", "rows"),
    [
        (220, [184, 200, 142], 256),
        (2000, [216, 76, 64, 6, 240, 47, 240], 1024),
        (5_000_000, [1000], 4096),
        (256, [1], 128),
    ],
)
def test_usual_sizes(n_rows: int, widths: list[int], rows: int) -> None:
    assert choose_block_rows(n_rows, widths) == rows


@given(st.sampled_from([2**i for i in range(13)]), st.integers(1, 10**6), st.sampled_from([1, 2, 4]))
def test_tiles(block_rows: int, n_features: int, itemsize: int) -> None:
    tile = choose_tile(block_rows, n_features, itemsize)
    assert 1 <= tile <= n_features
    assert block_rows * tile * itemsize <= 4 * 2**20 + block_rows * itemsize
