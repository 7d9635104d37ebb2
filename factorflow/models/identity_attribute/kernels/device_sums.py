"""Sums over the frames of a block on a device, as array-API calls; `kernels.tallies` has them for the CPU.

Arguments are those of the functions there.
"""

from __future__ import annotations

import numpy as np

from factorflow.kernels import device
from factorflow.shape import Array

__all__ = ["covariances", "entropies", "means", "pairs", "tally", "tally_chain"]


def means(present: Array, on: Array, off: Array, x: Array, a: Array) -> None:
    """See `kernels.tallies.means`."""
    n, n_identities = present.shape
    shape, b = (n, n_identities, -1), present[:, :, None]
    x[...] = (b * on.reshape(shape)).reshape(x.shape)
    a[...] = x + ((1.0 - b) * off.reshape(shape)).reshape(x.shape)


def tally(
    present: Array, on: Array, off: Array, x: Array, a: Array, kind: Array, which: Array, inverse: Array,
    squares: Array, bands: Array, spread: Array, chances: Array, numbers: Array,
) -> None:  # fmt: skip
    """See `kernels.tallies.tally`; what is added to lies on the host."""
    xp, host = device.namespace(x), device.on_host
    marks = (kind == np.arange(4)[:, None]).astype(np.float64)
    complete = which < 4
    numbers += marks.sum(axis=1)
    there = device.beside(marks, x)
    squares += host(there @ (x * on + (a - x) * off))
    chances[1] += host(there @ present)
    chances[0] += host(device.beside(marks * complete, x) @ present)
    k = x.shape[1]
    for apart in range(len(bands)):
        bands[apart, : k - apart] += host(xp.sum(x[:, : k - apart] * (on - x)[:, apart:], axis=0))
    if complete.all():
        return
    gaps = np.flatnonzero(~complete)
    rows, own = device.beside(gaps, x), device.beside(which[gaps], x)
    b = present[rows]
    variances = (b[:, :, None] * xp.linalg.diagonal(inverse[own])).reshape(len(gaps), -1)
    squares += host(device.beside(marks[:, gaps], x) @ variances)
    spread += host(xp.sum(b[:, :, None, None] * inverse[own], axis=0))


def pairs(
    rows: Array, goes_on: Array, present: Array, a: Array, beside_present: Array, beside_mean: Array,
    cross: Array,
) -> tuple[float, float, float]:  # fmt: skip
    """See `kernels.tallies.pairs`; ``cross`` lies on the host."""
    xp = device.namespace(a)
    then = device.beside(goes_on[:, None], a)

    def around(values: Array, ends: Array) -> tuple[Array, Array, Array]:
        ends = device.beside(ends, values)
        padded = xp.concat([ends[:1], values, ends[1:]])
        return tuple(padded[device.beside(rows + shift, a)] for shift in range(3))

    early, now, late = around(present, beside_present)
    both, came, went = now * (early + then * late), early + then * now, now + then * late
    early_a, now_a, late_a = around(a, beside_mean)
    cross += device.on_host(xp.sum(now_a * (early_a + then * late_a), axis=0))
    return float(xp.sum(both)), float(xp.sum(came)), float(xp.sum(went))


def covariances(present: Array, on: Array, which: Array, inverse: Array, out: Array) -> None:
    """See `kernels.tallies.covariances`."""
    b, a = present[:, :, None, None], on.reshape(*present.shape, -1)
    spread = (1.0 - b) * a[:, :, :, None] * a[:, :, None, :]
    out[...] = b * (inverse[device.beside(which, on)] + spread)


def entropies(present: Array, which: Array, half_on: Array, kind: Array, half_off: Array) -> float:
    """See `kernels.tallies.entropies`."""
    xp = device.namespace(present)
    off = device.beside(half_off[kind], present)
    each = present * half_on[device.beside(which, present)] + (1.0 - present) * off
    for b in (present, 1.0 - present):
        each = each - b * xp.log(xp.maximum(b, 1e-300))
    return float(xp.sum(each))


def tally_chain(
    each: tuple[int, ...], first: Array, last: Array, present: Array, joint: Array, earlier: Array,
    present_entropy: Array, mean_entropy: Array, mean: Array, covariance: Array, cross: Array, chances: Array,
    moments: Array, spread: Array,
) -> None:  # fmt: skip
    """See `kernels.tallies.tally_chain`; what is written lies on the host."""
    xp, host = device.namespace(mean), device.on_host
    begins = first.astype(np.float64)
    marks = device.beside(np.stack([begins, 1.0 - begins, 1.0 - last]), mean)
    went = marks[:2] @ present
    of_b = xp.stack(
        [xp.sum(joint), xp.sum(earlier), went[1], went[0], xp.sum(present_entropy + mean_entropy)]
    )
    chances[...] = host(of_b)
    moments[:3] = host(marks @ (mean**2 + xp.linalg.diagonal(covariance)))
    moments[3] = host(xp.sum(cross, axis=0))
    b, size = present[:, None], len(each)
    own = xp.reshape(present @ xp.reshape(covariance, (len(b), -1)), (size, size))
    spread[...] = host(own + (mean * (b * (1.0 - b))).T @ mean)
