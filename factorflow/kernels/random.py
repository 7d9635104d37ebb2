"""Counter-based random numbers: the noise of a row does not depend on worker or block.

Philox4x32-10 turns a 128-bit counter and a 64-bit key into 128 random bits [1]_. The key is the seed; the
counter says what the number is for::

    row (48 bits) | word (16) | iteration (32) | site (16) | chain (16)

so that nothing is hashed and no two uses collide. One counter gives two uniforms of 52 bits (words 2w and
2w + 1); normals come by inversion, so that every index takes a fixed number of words. A site is a named
constant of the file that draws at it, from the table in `factorflow.kernels.sites`.

The functions here work on NumPy arrays. Compiled loops draw the same uniforms from the scalar functions of
`factorflow.kernels.scalar.philox`.

References
----------
.. [1] J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
   SC 2011.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Integer, UInt8, UInt64

from factorflow.core.block import Array

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_ROUNDS = 10

PROJECTED = 1 << 15
"""Bit of the chain that tells noise of new samples from that of the samples of a fit."""


Words = tuple[UInt64[Array, "..."], UInt64[Array, "..."], UInt64[Array, "..."], UInt64[Array, "..."]]
"""A counter, or what it is encrypted to: words of 32 bits that broadcast against each other."""


def philox4x32(counter: Words, key: int) -> Words:
    """Encrypt counters with Philox4x32-10.

    Parameters
    ----------
    counter : tuple of four arrays
        Words of 32 bits, least significant first; they broadcast against each other.
    key : int
        64 bits.

    Returns
    -------
    tuple of four arrays
        Random words of 32 bits.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF
    for _ in range(_ROUNDS):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c2 = (p1 >> _HALF) ^ c1 ^ np.uint64(k0), (p0 >> _HALF) ^ c3 ^ np.uint64(k1)
        c1, c3 = p1 & _LOW, p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def _unit(low: UInt64[Array, "*shape"], high: UInt64[Array, "*shape"]) -> Float64[Array, "*shape"]:
    """Return uniforms in the open interval (0, 1), the midpoints of 2^52 cells, from two words of 32 bits."""
    bits = (high << np.uint64(20)) | (low >> np.uint64(12))
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def _counter(
    row: Integer[Array, "*_"] | int,
    word: Integer[Array, "*_"] | int,
    iteration: Integer[Array, "*_"] | int,
    site: int,
    chain: int,
) -> Words:
    row = np.asarray(row).astype(np.uint64)
    high = (row >> _HALF) | (np.asarray(word).astype(np.uint64) << np.uint64(16))
    last = np.asarray(site | (chain << 16)).astype(np.uint64)
    return row & _LOW, high, np.asarray(iteration).astype(np.uint64), last


@dataclass(frozen=True)
class Step:
    """Where in a run noise is drawn; the source of all noise of a model.

    Parameters
    ----------
    seed : int
        Seed of the run, 0 ... 2^64 - 1.
    chain : int
        Chain of a sampler, 0 ... 2^15 - 1.
    iteration : int
        Iteration of the run, counted over all stages, 0 ... 2^32 - 1.
    stage : str
        Name of the stage.
    count : int
        Iterations of the stage before this one.
    scale : float
        What a sum over the blocks in hand is multiplied by to estimate, without bias, the sum over all.
    projecting : bool
        Whether the samples are new ones, globals fixed: their noise is not that of the fit's own rows.
    """

    seed: int
    chain: int = 0
    iteration: int = 0
    stage: str = ""
    count: int = 0
    scale: float = 1.0
    projecting: bool = False

    @property
    def stream(self) -> int:
        """The chain, with the highest of its 16 bits set for new samples: what the counter holds of both."""
        return self.chain | (PROJECTED if self.projecting else 0)

    def uniform(self, site: int, index: Integer[Array, " B"], words: int = 1) -> Float64[Array, "B {words}"]:
        """Return uniforms in (0, 1).

        Parameters
        ----------
        site : int
            Purpose of the numbers, 0 ... 2^16 - 1.
        index : array
            Global row (or feature, factor, ...) numbers, 0 ... 2^48 - 1.
        words : int
            Numbers per index, at most 2^17.

        Returns
        -------
        array
            A row for each index.
        """
        index = np.asarray(index).reshape(-1, 1)
        pairs = np.arange((words + 1) // 2).reshape(1, -1)
        counter = _counter(index, pairs, self.iteration, site, self.stream)
        r0, r1, r2, r3 = philox4x32(counter, self.seed)
        shape = (index.shape[0], pairs.shape[1])
        out = np.empty((*shape, 2))
        out[..., 0], out[..., 1] = _unit(r0, r1), _unit(r2, r3)
        return np.ascontiguousarray(out.reshape(shape[0], 2 * shape[1])[:, :words])

    def bits(self, site: int, index: Integer[Array, " B"], count: int) -> UInt8[Array, "B bytes"]:
        """Return random bits, eight a byte; arguments as for `uniform`.

        Parameters
        ----------
        site : int
            Purpose of the bits.
        index : array
            Global row numbers.
        count : int
            Bits per index, at most 2^23.

        Returns
        -------
        array
            A row for each index, a multiple of 16 bytes.
        """
        index = np.asarray(index).reshape(-1, 1)
        words = np.arange(-(-count // 128)).reshape(1, -1)
        encrypted = philox4x32(_counter(index, words, self.iteration, site, self.stream), self.seed)
        out = np.empty((len(index), words.shape[1], 4), "<u4")
        for i, word in enumerate(encrypted):
            out[..., i] = word
        return out.reshape(len(index), -1).view(np.uint8)

    def normal(self, site: int, index: Integer[Array, " B"], words: int = 1) -> Float64[Array, "B {words}"]:
        """Return standard normals by inversion.

        Parameters
        ----------
        site, index, words
            As for `uniform`.

        Returns
        -------
        array
            A row for each index.
        """
        from scipy.special import ndtri

        return ndtri(self.uniform(site, index, words))

    def gamma(
        self, site: int, index: Integer[Array, " B"], shape: Float64[Array, "*B"] | float
    ) -> Float64[Array, " B"]:
        """Return draws from Gamma(shape, 1) by inversion.

        Parameters
        ----------
        site, index
            As for `uniform`.
        shape : float or (B,) array
            One for all, or one for each index (B of them).

        Returns
        -------
        (B,) array
        """
        from scipy.special import gammaincinv

        return gammaincinv(shape, self.uniform(site, index)[:, 0])


def entry_uniform(
    seed: int, site: int, row: Integer[Array, "*_"] | int, column: Integer[Array, "*_"] | int
) -> Float64[Array, "*_"]:
    """Return one uniform in (0, 1) for every entry of a matrix.

    Keyed by the entry alone (the column stands in the iteration bits), so that held-out entries do not
    depend on how the matrix is cut.

    Parameters
    ----------
    row, column : arrays
        Global row and column numbers, broadcast against each other.

    Returns
    -------
    array
        Of the broadcast shape.
    """
    low, high, _, _ = philox4x32(_counter(row, 0, column, site, 0), seed)
    return _unit(low, high)
