"""Blocks for tasks: from the cache of this process, else prefetched."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.core.block import Block
from factorflow.core.trees import freeze, nbytes
from factorflow.engine.reading import Reading, announce

if TYPE_CHECKING:
    from factorflow.data import Dataset, Holdout
    from factorflow.data.aligned_dataset import AlignedDataset
    from factorflow.data.sample_tables import SampleTables

Pair = tuple[Block, Mapping[str, Any]]
"""A block, and the values of its held-out entries by view."""

READ_AHEAD = 2
"""Blocks read while one is computed. Counted in the memory a run asks for."""


@dataclass(frozen=True)
class Source:
    """The blocks of a dataset as one run sees them.

    Parameters
    ----------
    cache_bytes : int
        Memory a process may spend on keeping blocks.
    memory_bytes : int
        Memory it may spend on what follows from those blocks (`Block.once`).
    device : {"cpu", "cuda"}
        Where the values of a block are handed out: as NumPy arrays, or as CuPy's.
    sparse : tuple of str
        Views whose rows are handed out by their entries (`SparseRows`).
    """

    dataset: Dataset | AlignedDataset
    views: tuple[str, ...]
    holdout: Holdout | None
    cache_bytes: int
    memory_bytes: int = 0
    device: str = "cpu"
    tables: SampleTables | None = None
    sparse: tuple[str, ...] = ()

    @property
    def original(self) -> Dataset:
        """The dataset that is on disk."""
        from factorflow.data import Dataset

        return self.dataset if isinstance(self.dataset, Dataset) else self.dataset.dataset

    def stream(self, numbers: Sequence[int]) -> Iterator[Block]:
        """Yield blocks in the given order, reading the next ones meanwhile."""
        for block, _ in self.with_truth(numbers):
            yield block

    def with_truth(self, numbers: Sequence[int]) -> Iterator[Pair]:
        """Yield blocks, each with the values of its held-out entries by view, which no model may see."""
        cache = _block_cache(self)
        waiting: deque[Pair | Future[Pair]] = deque()
        remaining = iter(numbers)

        def read_next() -> None:
            number = next(remaining, None)
            if number is not None:
                waiting.append(cache.get(number) or _reader().submit(self._read, number))

        for _ in range(READ_AHEAD + 1):
            read_next()
        while waiting:
            item = waiting.popleft()
            if isinstance(item, Future):
                block, truth = item.result()
                block = _on_device(block, self.device)
                READING.add(_size(block, truth))
                item = cache.offer(block, truth)
            read_next()
            yield item

    def _read(self, number: int) -> Pair:
        block, truth = self.dataset.read(number, self.views, self.holdout, self.sparse)
        if self.tables is not None:
            rows = self.tables.read(self.original, block.start, block.start + block.n_rows)
            block = replace(block, columns=freeze({**block.columns, **rows}))
        return block, truth


class _BlockCache:
    """Blocks kept in memory with what follows from them, first come, until the budget is full.

    A pass visits every block once, so evicting the least recently used would evict just what comes next.
    """

    def __init__(self, cache_bytes: int, memory_bytes: int) -> None:
        self._blocks: dict[int, Pair] = {}
        self.n_bytes = 0
        self._given = {"blocks": cache_bytes, "memory": memory_bytes}
        self._left = dict(self._given)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, number: int) -> Pair | None:
        return self._blocks.get(number)

    def offer(self, block: Block, truth: Mapping[str, Any]) -> Pair:
        """Return block and truth, the block with a memory of its own if they are kept."""
        size = _size(block, truth)
        if block.number in self._blocks or not self.spend("blocks", size):
            return block, truth
        self.n_bytes += size
        entry = replace(block, memory=_Memory(self)), truth
        self._blocks[block.number] = entry
        return entry

    def resize(self, cache_bytes: int, memory_bytes: int) -> None:
        """Set the memory budgets, and evict blocks above them."""
        with self._lock:
            for what, size in (("blocks", cache_bytes), ("memory", memory_bytes)):
                self._left[what] += size - self._given[what]
                self._given[what] = size
            while self._blocks and min(self._left.values()) < 0:
                _, (block, truth) = self._blocks.popitem()
                assert isinstance(block.memory, _Memory)
                size = _size(block, truth)
                self.n_bytes -= size
                self._left["blocks"] += size
                self._left["memory"] += block.memory.n_bytes

    def spend(self, what: str, size: int) -> bool:
        """Take memory from a budget, if it is left."""
        with self._lock:
            if size > self._left[what]:
                return False
            self._left[what] -= size
            return True


class _Memory:
    """What follows from one kept block (`Block.once`), as far as the budget goes."""

    def __init__(self, cache: _BlockCache) -> None:
        self._block_cache = cache
        self.n_bytes = 0
        self._made: dict[Hashable, tuple[tuple[Any, ...], Any]] = {}

    def once(self, name: Hashable, arguments: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        cached = self._made.get(name)
        if cached is not None and _equal(cached[0], arguments):
            return cached[1]
        value = make()
        if cached is not None:  # in the place of one of its size
            self._made[name] = arguments, value
        elif self._block_cache.spend("memory", size := nbytes(value)):
            self._made[name] = arguments, value
            self.n_bytes += size
        return value


def _equal(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    return all(a is b or np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def _size(block: Block, truth: Mapping[str, Any]) -> int:
    """Return the bytes of a block and of what is hidden of it."""
    size = sum(int(a.nbytes) for a in (*block.data.values(), *block.columns.values(), *truth.values()))
    return size + sum(int(r.nbytes) + int(c.nbytes) for r, c in block.hidden.values())


def _on_device(block: Block, device: str) -> Block:
    if device == "cpu":
        return block
    import cupy

    return replace(block, data={view: cupy.asarray(values) for view, values in block.data.items()})


_CACHES: dict[tuple[Any, ...], _BlockCache] = {}
_LOCK = threading.Lock()


def _block_cache(source: Source) -> _BlockCache:
    """Return the blocks kept by this process for this dataset; another dataset's are let go."""
    digest = source.tables and source.tables.digest
    of_blocks = source.views, source.holdout, source.device, source.sparse
    key = (source.dataset.fingerprint, *of_blocks, digest)
    with _LOCK:
        if key not in _CACHES:
            _CACHES.clear()
            _CACHES[key] = _BlockCache(source.cache_bytes, source.memory_bytes)
            announce(READING)
        cache = _CACHES[key]
        cache.resize(source.cache_bytes, source.memory_bytes)
        return cache


def _count_cached() -> tuple[int, int]:
    """Return how many blocks this process keeps, and their bytes."""
    caches = list(_CACHES.values())
    return sum(map(len, caches)), sum(cache.n_bytes for cache in caches)


READING = Reading(_count_cached)
"""Blocks and bytes read by this process."""


@cache
def _reader() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=READ_AHEAD, thread_name_prefix="factorflow-read")
