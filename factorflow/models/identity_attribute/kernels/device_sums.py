"""Sums over the frames of a block on a device, as array-API calls; `kernels.statistics` has them for the CPU.

Arguments are those of the functions there.
"""

from __future__ import annotations

import numpy as np

from factorflow.core.block import Array
from factorflow.kernels import device


def write_means(present: Array, on: Array, off: Array, x: Array, a: Array) -> None:
    """See `kernels.statistics.write_means`."""
    n, n_identities = present.shape
    shape, b = (n, n_identities, -1), present[:, :, None]
    x[...] = (b * on.reshape(shape)).reshape(x.shape)
    a[...] = x + ((1.0 - b) * off.reshape(shape)).reshape(x.shape)


def _pad_rows(values: Array, ends: Array) -> Array:
    """Return rows with one before and one behind them."""
    ends = device.move_beside(ends, values)
    return device.namespace(values).concat([ends[:1], values, ends[1:]])


def sum_statistics(
    odd: Array, at: Array, even_present: Array, even_on: Array, even_off: Array, odd_present: Array,
    odd_on: Array, odd_off: Array, kind: Array, which: Array, inverse: Array, half_on: Array, linked: Array,
    beside_present: Array, beside_mean: Array, x: Array, active: Array, cross: Array, bands: Array,
    squares: Array, spread: Array, chances: Array, numbers: Array, pairs: Array,
) -> float:  # fmt: skip
    """See `kernels.statistics.sum_statistics`; what is added to lies on the host."""
    xp, host = device.namespace(even_on), device.on_host
    order = device.move_beside(at + odd * len(even_on), even_on)
    halves = (even_present, odd_present), (even_on, odd_on), (even_off, odd_off)
    present, on, off = (xp.concat(both)[order] for both in halves)
    a = xp.empty_like(on)
    write_means(present, on, off, x, a)
    marks = (kind == np.arange(4)[:, None]).astype(np.float64)
    complete = which < 4
    numbers += marks.sum(axis=1)
    there = device.move_beside(marks, on)
    squares += host(there @ (x * on + (a - x) * off))
    chances[1] += host(there @ present)
    chances[0] += host(device.move_beside(marks * complete, on) @ present)
    link = device.move_beside(linked[:, None], on)
    mean, b = _pad_rows(a, beside_mean), _pad_rows(present, beside_present)
    active += host(xp.sum(x, axis=0))
    cross += host(xp.sum(link * mean[:-1] * mean[1:], axis=0))
    pairs += host(xp.stack([xp.sum(link * part, axis=0) for part in (b[:-1] * b[1:], b[:-1], b[1:])]))
    k = x.shape[1]
    for apart in range(len(bands)):
        bands[apart, : k - apart] += host(xp.sum(x[:, : k - apart] * (on - x)[:, apart:], axis=0))
    if complete.all():
        return 0.0
    gaps = np.flatnonzero(~complete)
    rows, own = device.move_beside(gaps, on), device.move_beside(which[gaps], on)
    b = present[rows]
    variances = xp.reshape(b[:, :, None] * xp.linalg.diagonal(inverse[own]), (len(gaps), -1))
    squares += host(device.move_beside(marks[:, gaps], on) @ variances)
    spread += host(xp.sum(b[:, :, None, None] * inverse[own], axis=0))
    return float(xp.sum(b * half_on[own]))


def covariances(present: Array, on: Array, which: Array, inverse: Array, out: Array) -> None:
    """See `kernels.statistics.covariances`."""
    b, a = present[:, :, None, None], on.reshape(*present.shape, -1)
    spread = (1.0 - b) * a[:, :, :, None] * a[:, :, None, :]
    out[...] = b * (inverse[device.move_beside(which, on)] + spread)


def sum_chain_statistics(
    each: tuple[int, ...], first: Array, last: Array, present: Array, joint: Array, earlier: Array,
    present_entropy: Array, mean_entropy: Array, mean: Array, covariance: Array, cross: Array, chances: Array,
    moments: Array, spread: Array,
) -> None:  # fmt: skip
    """See `kernels.statistics.sum_chain_statistics`; what is written lies on the host."""
    xp, host = device.namespace(mean), device.on_host
    begins = first.astype(np.float64)
    marks = device.move_beside(np.stack([begins, 1.0 - begins, 1.0 - last]), mean)
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
