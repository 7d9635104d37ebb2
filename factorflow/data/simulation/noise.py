"""Noise of simulated data, and the return type of simulators.

Noise comes from NumPy's Philox generator, keyed by (seed, purpose) and counted by tiles of rows (32, unless a
simulator says otherwise), so the same seed gives the same data under any block size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from factorflow.data.store.rows import ReadCodes
from factorflow.data.store.view_source import ViewSource
from factorflow.data.store.writer import Truth
from factorflow.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

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
    tile_rows : int
        Rows drawn from one generator; more of them are faster where rows are narrow.
    """

    seed: int
    tile_rows: int = TILE_ROWS

    def generator(self, site: int, tile: int = 0) -> np.random.Generator:
        """Return the generator of one purpose and tile."""
        key = np.array([self.seed, site], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, 0, tile], np.uint64)))

    def rows(
        self, site: int, start: int, stop: int, width: int, kind: Literal["normal", "uniform"] = "normal"
    ) -> FloatArray:
        """Return standard normals or uniforms for rows ``start`` to ``stop``, (stop - start, width)."""
        size = self.tile_rows
        first, last = start // size, -(-stop // size)
        out = np.empty(((last - first) * size, width), np.float32)
        for tile in range(first, last):
            generator = self.generator(site, tile)
            draw = generator.standard_normal if kind == "normal" else generator.random
            offset = (tile - first) * size
            draw(dtype=np.float32, out=out[offset : offset + size])
        return out[start - first * size : stop - first * size]


@dataclass(frozen=True)
class Simulation:
    """The return type of simulators: everything but the writing.

    Parameters
    ----------
    codes : dict of str to callable
        ``group``, or ``sequence`` and ``time``, where there are any: (start, stop) -> int32 array.
    n_sequences : int
        Sequences; 0: none.
    obs : DataFrame or None
        Sample metadata, in the order of the rows.
    """

    views: list[ViewSource]
    truth: Truth
    codes: dict[str, ReadCodes] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    n_sequences: int = 0
    obs: pd.DataFrame | None = None


def check_count(what: str, value: Any, least: int = 1) -> None:
    """Refuse values other than integers >= ``least``."""
    if not isinstance(value, int | np.integer) or value < least:
        raise InputError(what, value, f"an integer >= {least}", "Correct it.")


def share_of(what: str, value: float | Mapping[str, float], view: str) -> float:
    """Return a share given for all views or by view, refusing what is none."""
    share = float(value.get(view, 0.0) if isinstance(value, Mapping) else value)
    if not 0.0 <= share < 1.0:
        raise InputError(what, share, "a share from 0 to below 1", "0.1 makes a tenth missing.")
    return share
