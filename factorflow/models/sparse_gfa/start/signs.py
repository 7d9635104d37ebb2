"""Signs that entries are flipped by, and rows less components: what a count of components compares with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import DTypeLike

from factorflow.core.trees import replace
from factorflow.kernels import device
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Array, Block, Step
from factorflow.models.sparse_gfa.kernels.arrays import RUN_ENTRIES
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


def rows_with_signs(
    settings: Settings, block: Block, data: Mapping[str, Float[Array, "B _"]], spectrum: Spectrum, step: Step
) -> Iterator[tuple[str, slice, list[Float[Array, "B _"]]]]:
    """Yield what components leave of the rows of a block with the signs of each draw, the same in every pass.

    Some features of a view at a time, which stay in a core's cache until they are multiplied.
    """
    scores: Array | None = None
    if spectrum.n_components:
        scores = multiply_views(data, spectrum.scores, settings.dtype).astype(settings.dtype)
    number = {view.name: at for at, view in enumerate(settings.views)}
    for name, x in data.items():
        known, fitted = scores, spectrum.views[name].fitted.astype(settings.dtype)
        if isinstance(x, EntryRows):
            x = x if known is None else x.subtract(known, fitted)
            x, known = _with_zeros(settings, block, x, step, number[name]), None
        if isinstance(x, EntryRows):
            words = [_words(step, draw, number[name]) for draw in range(FLIPS)]
            yield name, slice(None), [x.with_signs(block.rows, one) for one in words]
            continue
        packed = _signs(block, name, x.shape[1], replace(step, chain=number[name]))
        at_once = x.shape[1] if device.on_device(x) else max(1, RUN_ENTRIES // len(x) // 4)
        for first in range(0, packed.shape[2], at_once):
            run, rows = slice(8 * first, 8 * (first + at_once)), x[:, 8 * first : 8 * (first + at_once)]
            if known is not None:
                rows = rows - device.move_beside(known, x) @ device.move_beside(fitted[run].T, x)
            bits = packed[:, :, first : first + at_once]
            signs = (as_signs(draw, rows.shape[1], rows.dtype) for draw in bits)
            yield name, run, [rows * device.move_beside(one, x) for one in signs]


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


def _signs(block: Block, name: str, n_features: int, step: Step) -> UInt8[Array, "flips B bytes"]:
    """Return the signs of all draws for the entries of a view, which are kept with the block."""

    def make() -> UInt8[Array, "flips B bytes"]:
        draws = [replace(step, iteration=one) for one in range(FLIPS)]
        return np.stack([one.bits(SITE_SIGNS, block.rows, n_features) for one in draws])

    return np.asarray(block.once(("signs", name), (step.seed,), make))


def as_signs(packed: UInt8[Array, "B bytes"], count: int, dtype: DTypeLike) -> Float[Array, "B {count}"]:
    """Return random bits, eight a byte, as numbers of 1 and -1."""
    signs = np.empty((*packed.shape, 8), dtype)
    np.take(_signs_of_bytes(np.dtype(dtype)), packed, axis=0, out=signs, mode="clip")
    return signs.reshape(len(packed), -1)[:, :count]


@cache
def _signs_of_bytes(dtype: np.dtype[np.floating]) -> Float[np.ndarray, "256 8"]:
    return 1.0 - 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(dtype)
