"""Signs that entries are flipped by, and rows less components: what a count of components compares with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import DTypeLike

from factorflow.core.trees import replace
from factorflow.kernels import device
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Array, Block, Step
from factorflow.models.sparse_gfa.kernels.entry_rows import EntryRows
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.start.components import multiply_views
from factorflow.models.sparse_gfa.start.sketches import Spectrum

SITE_SIGNS = MODELS[24]

FLIPS = 2
"""Draws of signs: a component passes the mean + 2 sd of their largest singular values (squared). Four draws
count no better, at twice the cost."""

LISTED_ZEROS, FEWEST_ZEROS = 1 << 20, 64
"""Entries of a view up to which all of its zeros are compared, and more of larger ones; and of how many zeros
one is listed at least (`sign_flips`), so that they are few beside the other entries."""


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


def sign_draws(
    settings: Settings, block: Block, left: Mapping[str, Float[Array, "B _"]], step: Step
) -> Iterator[dict[str, Float[Array, "B _"]]]:
    """Yield rows with the signs of each draw: the same in every pass."""
    number = {view.name: at for at, view in enumerate(settings.views)}
    rows = {name: _with_zeros(settings, block, x, step, number[name]) for name, x in left.items()}
    for draw in range(FLIPS):
        yield {
            name: x.with_signs(block.rows, _words(step, draw, number[name]))
            if isinstance(x, EntryRows)
            else _flip(block, name, x, draw, replace(step, chain=number[name]))
            for name, x in rows.items()
        }


def _with_zeros(
    settings: Settings, block: Block, x: Float[Array, "B D"], step: Step, number: int
) -> Float[Array, "B D"]:
    """Return rows with the zeros that are compared: of small views all."""
    if not isinstance(x, EntryRows):
        return x
    times = min(settings.n_rows * x.shape[1] // LISTED_ZEROS, FEWEST_ZEROS)
    if times < 2:
        return x.dense()
    group = 1 << times.bit_length() - 1
    return x.with_some_zeros(block.rows, _words(step, FLIPS, number), group)


def _words(step: Step, draw: int, number: int) -> tuple[int, int, int, int]:
    return step.seed, draw, SITE_SIGNS, number


def _flip(block: Block, name: str, x: Float[Array, "B D"], draw: int, step: Step) -> Float[Array, "B D"]:
    """Return the entries of an array with the signs of a draw, which are kept with the block."""

    def make() -> UInt8[Array, "flips B bytes"]:
        draws = [replace(step, iteration=one) for one in range(FLIPS)]
        return np.stack([one.bits(SITE_SIGNS, block.rows, x.shape[1]) for one in draws])

    packed = block.once(("signs", name), (step.seed,), make)
    return x * device.move_beside(as_signs(packed[draw], x.shape[1], x.dtype), x)


def as_signs(packed: UInt8[Array, "B bytes"], count: int, dtype: DTypeLike) -> Float[Array, "B {count}"]:
    """Return random bits, eight a byte, as numbers of 1 and -1."""
    table = 1.0 - 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(dtype)
    signs = np.empty((*packed.shape, 8), dtype)
    np.take(table, packed, axis=0, out=signs, mode="clip")
    return signs.reshape(len(packed), -1)[:, :count]
