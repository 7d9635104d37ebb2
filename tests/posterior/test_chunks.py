"""Parts of arrays written as files of chunks: the same files as Zarr's."""

from __future__ import annotations

from pathlib import Path

import bayesian_pca
import numpy as np
import pytest
import zarr

from factorflow.core.block import Meta, ViewMeta
from factorflow.errors import InputError
from factorflow.posterior.chunks import new_array, write_part
from factorflow.posterior.store import create_draws, write_draws
from factorflow.storage.local import atomic_write

SHAPE = (3, 10, 5)


def made(store: Path, chunks: tuple[int, ...], dtype: str = "f8") -> Path:
    group = zarr.open_group(store, mode="a", zarr_format=3)
    new_array(group, "x", ("chain", "draw", "feature"), SHAPE, chunks, np.dtype(dtype))
    return store / "x"


def files(where: Path) -> dict[str, bytes]:
    return {str(f.relative_to(where)): f.read_bytes() for f in where.rglob("*") if f.is_file()}


PARTS = {
    "whole": [((0, 0), (3, 10))],
    "consecutive": [((0, 0), (3, 3)), ((0, 3), (3, 6)), ((0, 9), (3, 1))],
    "again": [((0, 0), (3, 6)), ((0, 4), (3, 4))],
    "one_chain": [((2, 3), (1, 2)), ((0, 9), (1, 1))],
}


@pytest.mark.parametrize("dtype", ["f8", "f4", "u1", "i8"])
@pytest.mark.parametrize("chunks", [(1, 4, 5), (3, 3, 5), (2, 10, 5), (1, 1, 2), (3, 16, 8)])
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_files_are_those_that_zarr_writes(tmp_path: Path, parts: list, chunks: tuple, dtype: str) -> None:
    ours, zarrs = (made(tmp_path / name, chunks, dtype) for name in ("ours", "zarrs"))
    rng, array = np.random.default_rng(0), zarr.open_array(zarrs).with_config({"write_empty_chunks": True})
    for first, size in parts:
        values = (100.0 * rng.random((*size, SHAPE[2]))).astype(dtype)
        write_part(ours, first, values)
        array[first[0] : first[0] + size[0], first[1] : first[1] + size[1]] = values
    assert files(ours) == files(zarrs)


@pytest.mark.parametrize("damage", ["a_byte", "cut", "empty"])
def test_a_damaged_chunk_is_not_written_on(tmp_path: Path, damage: str) -> None:
    """Its checksum would be right again; what is replaced as a whole may be damaged."""
    where = made(tmp_path, (1, 4, 5))
    values = np.ones((3, 10, 5))
    write_part(where, (0, 0), values[:, :3])
    file = where / "c" / "1" / "0" / "0"
    content = bytearray(file.read_bytes())
    content[20] ^= 1
    file.write_bytes({"a_byte": content, "cut": content[:-9], "empty": b""}[damage])
    with pytest.raises(InputError, match=r"c/1/0/0 = checksum mismatch"):
        write_part(where, (0, 3), values[:, :2])
    write_part(where, (0, 0), values)
    assert np.array_equal(zarr.open_array(where)[:], values)


@pytest.mark.parametrize("durable", [True, False])
def test_files_are_on_the_disk_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    where, seen = made(tmp_path, (1, 4, 5)), []

    def spied(path: Path, content: bytes, *, durable: bool = False) -> None:
        seen.append(durable)
        atomic_write(path, content, durable=durable)

    monkeypatch.setattr("factorflow.posterior.chunks.atomic_write", spied)
    write_part(where, (0, 0), np.ones((3, 10, 5)), durable=durable)
    assert seen == [durable] * 9


def test_draws_are_on_the_disk_once_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint relies on those that were in a chunk before it was written again."""
    meta, seen = Meta(40, 2, 32, (ViewMeta("a", "gaussian", 7, "none"),)), []
    model = bayesian_pca.BayesianPCA(n_draws=10).build(meta)
    create_draws(tmp_path / "p.zarr", model, 10)

    def spied(path: Path, content: bytes, *, durable: bool = False) -> None:
        seen.append(durable)
        atomic_write(path, content, durable=durable)

    monkeypatch.setattr("factorflow.posterior.chunks.atomic_write", spied)
    tau = next(v for v in model.table if v.name == "tau")
    write_draws(tmp_path / "p.zarr", tau, 0, np.ones((2, 4)))
    assert seen == [True, True]


def test_arrays_made_anew_and_larger_ones_are_seen(tmp_path: Path) -> None:
    where = made(tmp_path, (1, 4, 5))
    write_part(where, (0, 0), np.ones((3, 10, 5)))
    zarr.open_array(where).resize((3, 14, 5))
    write_part(where, (0, 10), np.full((3, 4, 5), 2.0))  # the last chunk is not whole any more
    found = zarr.open_array(where)[:]
    assert np.array_equal(found[:, :10], np.ones((3, 10, 5)))
    assert np.array_equal(found[:, 10:], np.full((3, 4, 5), 2.0))
    where = made(tmp_path, (3, 2, 5), "f4")
    write_part(where, (0, 0), np.ones((3, 10, 5)))
    assert np.array_equal(zarr.open_array(where)[:], np.ones((3, 10, 5), "f4"))
