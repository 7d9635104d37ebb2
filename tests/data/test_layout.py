from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorflow.core.kinds import KINDS
from factorflow.data.store.chunks import tile_checksums
from factorflow.data.store.layout import choose_block_rows, choose_tile
from factorflow.data.store.view_source import ViewSource, is_long_table
from factorflow.storage.checksums import crc32c


def before(n_rows: int, row_bytes: int) -> int:
    """The rows of a block as they were chosen when blocks ended at 4096 rows."""
    rows = 2 ** round(np.log2(max(2**24 / row_bytes, 1.0)))
    if n_rows >= 256:
        rows = min(rows, 2 ** ((n_rows - 1).bit_length() - 1))
    return max(32, min(rows, 2 ** (n_rows - 1).bit_length(), 4096))


@given(st.integers(2, 10**9), st.integers(4, 4 * 10**6))
def test_block_rows(n_rows: int, row_bytes: int) -> None:
    rows = choose_block_rows(n_rows, row_bytes)
    n_blocks = -(-n_rows // rows)
    assert rows & (rows - 1) == 0
    assert 32 <= rows <= 2**17
    if n_rows >= 256:
        assert n_blocks >= 2
    assert rows == 32 or rows < 2 * n_rows
    size = rows * max(128, row_bytes)
    assert size < 24 * 2**20 or rows == 32  # about 16 MB
    if rows > 4096:
        assert n_blocks >= 8
        assert size > 11 * 2**20 or -(-n_rows // (2 * rows)) < 8
    else:
        assert rows == before(n_rows, row_bytes)


@pytest.mark.parametrize(
    ("n_rows", "row_bytes", "rows"),
    [
        (220, 4 * 526, 256),
        (2000, 4 * 892, 1024),
        (5_000_000, 4000, 4096),
        (5_000_000, 2800, 8192),  # 5992 rows are nearer to 8192 than to 4096, by their logarithms
        (256, 4, 128),
        (255, 4, 256),
        (10**8, 20, 2**17),
        (10**8, 128, 2**17),
        (10**8, 182, 2**16),
        (10**6, 20, 2**17),  # eight blocks of it
        (7 * 8192, 20, 4096),  # one row more, and eight blocks of 8192 are left
        (7 * 8192 + 1, 20, 8192),
        (7 * 2**17, 20, 2**16),
        (7 * 2**17 + 1, 20, 2**17),
        (10_000, 20, 4096),  # three blocks: those of 4096 rows may be few
        (4096, 20, 2048),
        (10**9, 10**6, 32),
    ],
)
def test_usual_sizes(n_rows: int, row_bytes: int, rows: int) -> None:
    assert choose_block_rows(n_rows, row_bytes) == rows


def test_a_long_table_has_few_blocks() -> None:
    row = sum(KINDS[kind].work_bytes(1) for kind in ("poisson", *["categorical"] * 3, "covariate"))
    assert row == 24
    assert choose_block_rows(10**8, row, table=True) == 2**19
    assert choose_block_rows(10**6, row, table=True) == 2**18
    assert choose_block_rows(10**6, 128, table=True) == 2**17  # about 16 MB
    assert choose_block_rows(7 * 2**19, row, table=True) == 2**18  # one row more, and eight of 2^19 are left
    assert choose_block_rows(7 * 2**19 + 1, row, table=True) == 2**19
    assert choose_block_rows(2**18 + 1, row, table=True) == 2**18
    assert choose_block_rows(2**18, row, table=True) == 2**17


def test_what_a_long_table_is() -> None:
    def source(kind: str | None, n_features: int = 1) -> ViewSource:
        return ViewSource("v", np.arange(n_features).astype(str), lambda a, b: None, kind and KINDS[kind])

    assert is_long_table([source("poisson"), source("categorical", 9), source("covariate", 2)])
    assert is_long_table([source(None), source("categorical", 9)])
    assert not is_long_table([source("poisson"), source("covariate", 2)])
    assert not is_long_table([source("poisson", 2), source("categorical", 9)])
    assert not is_long_table([source("categorical", 9)])


def test_binary_entries_count_as_others_do() -> None:
    found = {name: kind.work_bytes(50) for name, kind in KINDS.items()}
    assert found == {"gaussian": 200, "bernoulli": 200, "poisson": 200, "categorical": 4, "covariate": 400}


@given(st.sampled_from([2**i for i in range(13)]), st.integers(1, 10**6), st.sampled_from([1, 2, 4]))
def test_tiles(block_rows: int, n_features: int, itemsize: int) -> None:
    tile = choose_tile(block_rows, n_features, itemsize)
    assert 1 <= tile <= n_features
    assert block_rows * tile * itemsize <= 4 * 2**20 + block_rows * itemsize


def test_checksums_of_tiles() -> None:
    """One for each tile, the last and narrow one among them; the same for rows in any order in memory."""
    block = np.arange(60, dtype=np.float32).reshape(6, 10)
    found = tile_checksums(block, 4)
    assert found == [crc32c(np.ascontiguousarray(block[:, i : i + 4])) for i in (0, 4, 8)]
    assert tile_checksums(np.asfortranarray(block), 4) == found
    assert tile_checksums(block, 10) == [crc32c(block)]
    for column in range(10):
        changed = block.copy()
        changed[5, column] += 1
        differ = [a != b for a, b in zip(tile_checksums(changed, 4), found, strict=True)]
        assert differ == [i == column // 4 for i in range(3)]
