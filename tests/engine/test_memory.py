"""What a run asks for is at least what it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorflow
from factorflow.engine.events import IterationDone
from factorflow.engine.kept import local_must_spill
from factorflow.engine.memory import kept_bytes, required_bytes
from factorflow.errors import InputError
from factorflow.models import ProbitFactors, SparseGFA
from factorflow.models.sparse_gfa.kernels import gaps as gfa_gaps
from factorflow.models.sparse_gfa.kernels import products as gfa


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Half of the entries are missing: the lists of gaps are as long as they can be."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(512, 300)).astype(np.float32)
    values[rng.random(values.shape) < 0.5] = np.nan
    path = tmp_path_factory.mktemp("memory") / "d.zarr"
    return factorflow.write_dataset(path, {"v": values}, block_rows=64)


def nbytes(gaps: Any) -> int:
    arrays = [gaps.complement, gaps.missing, gaps.start, gaps.column, *gaps.by_column]
    return sum(a.nbytes if a.base is None else a.base.nbytes for a in arrays)


def test_what_is_remembered_of_kept_blocks_is_counted(dataset: Any) -> None:
    config = SparseGFA(n_factors=2, warmup_iter=3, max_iter=2)
    footprint = config.build(dataset.meta()).footprint()
    remembered: list[tuple[int, int]] = []

    def look(event: Any) -> None:
        if isinstance(event, IterationDone):
            lists = [found for values, found in gfa_gaps._known.values() if values() is not None]
            lists = [found for found in lists if found.n_features == 300]
            centred = sum(c.filled.nbytes for c in gfa._centred.values() if c.filled.shape[1] == 300)
            remembered.append((sum(map(nbytes, lists)), centred))

    factorflow.fit(dataset, config, on_event=look)
    gaps, centred = remembered[-1]
    assert gaps > 2 * 512 * 300  # all blocks are kept, each with its lists
    assert gaps <= footprint.kept_per_row * 512
    assert 0 < centred <= footprint.remembered


def test_lists_take_their_share_of_the_memory_for_blocks(dataset: Any) -> None:
    model = SparseGFA(n_factors=2).build(dataset.meta())
    row, beside = 4 * 300, model.footprint().kept_per_row
    rows = kept_bytes(model, 1 << 20) // row
    assert 0.99 * 2**20 < rows * (row + beside) <= 1 << 20


def test_centred_blocks_are_asked_for(tmp_path: Path) -> None:
    """A limit that leaves no room for them is refused."""
    values = np.ones((4096, 2500), np.float32)
    values[::2] = 2.5
    dataset = factorflow.write_dataset(tmp_path / "d.zarr", {"v": values})
    config = SparseGFA(n_factors=2)
    model = config.build(dataset.meta())
    assert model.footprint().remembered == min(values.nbytes, gfa.REMEMBERED_BYTES)
    limit = required_bytes(model, 1, 1, 1 << 40) - model.footprint().remembered + 1
    with pytest.raises(InputError, match="memory_limit"):
        factorflow.fit(dataset, config, memory_limit=limit)


def test_local_state_that_outgrows_memory_goes_to_disk(tmp_path: Path) -> None:
    """Three copies of 10^8 rows of 83 bytes would not fit 1 GiB; a block's do."""
    x = (np.random.default_rng(0).random((64, 10)) < 0.5).astype(float)
    dataset = factorflow.write_dataset(tmp_path / "d.zarr", {"x": x}, {"x": "bernoulli"})
    meta = replace(dataset.meta(), n_rows=10**8, n_blocks=10**8 // 64)
    model = ProbitFactors(factors="spike_slab", n_factors=20, average_scores=False).build(meta)
    assert model.footprint().local_per_row == 83
    assert local_must_spill(model, 2, 1, 1 << 30)
    assert required_bytes(model, 2, 1, 1 << 30) < 1 << 30
    assert not local_must_spill(model, 2, 1, 1 << 40)
    assert required_bytes(model, 2, 1, 1 << 40) > 3 * 83 * 10**8 / 2
