"""Philox4x32-10 on scalars: the uniforms of `factorflow.kernels.random`, inside compiled loops."""

from __future__ import annotations

import numpy as np

from factorflow.kernels.compile import options

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF, _UP, _DOWN, _WORD = np.uint64(32), np.uint64(20), np.uint64(12), np.uint64(16)


@options(forceinline=True)
def philox_words(seed, row, word, iteration, place):  # type: ignore[no-untyped-def]
    """Return four words of 32 bits of a row, as uint64.

    All arguments are uint64; ``place`` is site | chain << 16. They are bits 128 word ... 128 word + 127 of
    `Step.bits`.
    """
    c0, c1, c2, c3 = row & _LOW, (row >> _HALF) | (word << _WORD), iteration & _LOW, place & _LOW
    k0, k1 = seed & _LOW, seed >> _HALF
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c2 = (p1 >> _HALF) ^ c1 ^ k0, (p0 >> _HALF) ^ c3 ^ k1
        c1, c3 = p1 & _LOW, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@options(forceinline=True)
def philox_pair(seed, row, pair, iteration, place):  # type: ignore[no-untyped-def]
    """Return words 2 * pair and 2 * pair + 1 of a row as uniforms in (0, 1).

    Arguments are those of `philox_words`. Equal to `Step.uniform`, bit for bit.
    """
    c0, c1, c2, c3 = philox_words(seed, row, pair, iteration, place)  # type: ignore[no-untyped-call]
    first = (c1 << _UP) | (c0 >> _DOWN)
    second = (c3 << _UP) | (c2 >> _DOWN)
    return (float(first) + 0.5) * 2.0**-52, (float(second) + 0.5) * 2.0**-52
