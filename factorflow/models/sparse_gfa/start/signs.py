"""Signs that entries are flipped by, and rows less components: what a count of components compares with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import DTypeLike

from factorflow.kernels import device
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Array, Block, Step
from factorflow.models.sparse_gfa.kernels.entry_rows import EntryRows
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.start.components import multiply_views
from factorflow.models.sparse_gfa.start.sketches import Spectrum
from factorflow.trees import replace

__all__ = ["FLIPS", "Signs", "as_signs", "dense_rows", "entry_signs", "left_over", "tiles"]

SITE_SIGNS = MODELS[24]

FLIPS = 2
"""Draws of signs: a component passes the mean + 2 sd of their largest singular values (squared). Four draws
count no better, at twice the cost."""

DENSE_ENTRIES = 1 << 20
"""Entries of a view by its entries that are dense at once, to have their signs flipped: 4 MiB."""

Signs = Callable[[str, int, Float[Array, "B D"], slice], Float[Array, "B D"]]
"""Multiplies the entries of a view with the signs of a draw; which rows they are of."""


def left_over(
    data: Mapping[str, Float[Array, "B _"]], spectrum: Spectrum, dtype: DTypeLike
) -> dict[str, Float[Array, "B _"]]:
    """Return what the components leave of the rows of a block."""
    if not spectrum.n_components:
        return dict(data)
    scores = multiply_views(data, spectrum.scores, dtype).astype(dtype)
    return {name: _without(x, scores, spectrum.views[name].fitted.astype(dtype)) for name, x in data.items()}


def _without(
    x: Float[Array, "B D"], scores: Float[Array, "B K"], fitted: Float[Array, "D K"]
) -> Float[Array, "B D"]:
    """Return rows of a view less what components make of them."""
    if isinstance(x, EntryRows):
        return x.subtract(scores, fitted)
    return x - device.move_beside(scores, x) @ device.move_beside(fitted.T, x)


def dense_rows(x: Float[Array, "B D"], tile: slice) -> Float[Array, "b D"]:
    """Return some rows of a view as an array."""
    return x.dense(tile) if isinstance(x, EntryRows) else x[tile]


def tiles(rows: Mapping[str, Float[Array, "B _"]]) -> list[slice]:
    """Return rows that are flipped together: few where they have to be made dense for that."""
    by_entries = [x.shape for x in rows.values() if isinstance(x, EntryRows)]
    if not by_entries:
        return [slice(None)]
    size = max(1, DENSE_ENTRIES // max(n_features for _, n_features in by_entries))
    return [slice(start, start + size) for start in range(0, by_entries[0][0], size)]


def entry_signs(
    settings: Settings, block: Block, filled: Mapping[str, Float[Array, "B _"]], step: Step
) -> Signs:
    """Return what multiplies entries of a view with the signs of a draw: the same in every pass."""
    packed = {}
    for number, name in enumerate(filled):
        n_features = settings.view(name).n_features

        def make(number: int = number, n_features: int = n_features) -> UInt8[Array, "flips B bytes"]:
            draws = [replace(step, chain=number, iteration=draw) for draw in range(FLIPS)]
            return np.stack([draw.bits(SITE_SIGNS, block.rows, n_features) for draw in draws])

        packed[name] = block.once(("signs", name), (step.seed,), make)

    def flip(name: str, draw: int, x: Float[Array, "B D"], tile: slice) -> Float[Array, "B D"]:
        return x * device.move_beside(as_signs(packed[name][draw][tile], x.shape[1], x.dtype), x)

    return flip


def as_signs(packed: UInt8[Array, "B bytes"], count: int, dtype: DTypeLike) -> Float[Array, "B {count}"]:
    """Return random bits, eight a byte, as numbers of 1 and -1."""
    table = 1.0 - 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(dtype)
    signs = np.empty((*packed.shape, 8), dtype)
    np.take(table, packed, axis=0, out=signs, mode="clip")
    return signs.reshape(len(packed), -1)[:, :count]
