"""Noise of simulated data, and what a simulator hands back.

Noise comes from NumPy's Philox generator, keyed by (seed, purpose) and counted by tiles of 32 rows, so the
same seed gives the same data under any block size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from factorflow.data.store.rows import ReadCodes
from factorflow.data.store.views import ViewSource
from factorflow.data.store.writer import Truth

__all__ = ["TILE_ROWS", "Noise", "Simulated"]

TILE_ROWS = 32
"""Rows drawn from one generator; the smallest block ingest chooses, so that none is drawn twice."""

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Noise:
    """Noise that depends on the seed, the purpose and the row alone.

    Parameters
    ----------
    seed : int
        0 ... 2^64 - 1.
    """

    seed: int

    def generator(self, site: int, tile: int = 0) -> np.random.Generator:
        """Return the generator of one purpose and tile."""
        key = np.array([self.seed, site], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, 0, tile], np.uint64)))

    def rows(
        self, site: int, start: int, stop: int, width: int, kind: Literal["normal", "uniform"] = "normal"
    ) -> FloatArray:
        """Return standard normals or uniforms for rows ``start`` to ``stop``, (stop - start, width)."""
        first, last = start // TILE_ROWS, -(-stop // TILE_ROWS)
        out = np.empty(((last - first) * TILE_ROWS, width), np.float32)
        for tile in range(first, last):
            generator = self.generator(site, tile)
            draw = generator.standard_normal if kind == "normal" else generator.random
            offset = (tile - first) * TILE_ROWS
            draw(dtype=np.float32, out=out[offset : offset + TILE_ROWS])
        return out[start - first * TILE_ROWS : stop - first * TILE_ROWS]


@dataclass(frozen=True)
class Simulated:
    """What a simulator hands back: everything but the writing.

    Parameters
    ----------
    views : list of ViewSource
        The views, read block by block.
    truth : Truth
        What the data were made from.
    codes : dict of str to callable
        ``group``, or ``sequence`` and ``time``, where there are any: (start, stop) -> int32 array.
    groups : tuple of str
        Names of the groups.
    n_sequences : int
        Sequences; 0: none.
    """

    views: list[ViewSource]
    truth: Truth
    codes: dict[str, ReadCodes] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    n_sequences: int = 0
