"""The loops of the identity/attribute model on a CUDA device; `kernels.host` has the same ones for the CPU.

Frames are updated a thread each, chains a thread for each run of frames of one sequence, by the functions
that the CPU runs. Sums over frames are array-API calls (CuPy's), and come back to the host. Results agree
with the CPU's up to rounding. Importing this module imports numba.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,attr-defined"

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Int

from factorflow.core.block import Array
from factorflow.kernels import device
from factorflow.kernels.compile import compile_scalar
from factorflow.kernels.cuda import cuda
from factorflow.models.identity_attribute.kernels import (
    attribute_messages,
    chains,
    frames,
    incomplete_frames,
    presence,
    small,
)
from factorflow.models.identity_attribute.kernels.device_sums import (
    covariances,
    sum_chain_statistics,
    sum_statistics,
    write_means,
)

__all__ = [
    "attribute_message",
    "covariances",
    "invert_all",
    "write_means",
    "presence_message",
    "smooth_all",
    "smooth_attributes",
    "smooth_presence",
    "sum_chain_statistics",
    "sum_statistics",
    "update_complete",
    "update_gaps",
]

THREADS = 64
"""Threads in a block."""


def _launch(kernel: Any, n_threads: int, other: Array, *arguments: Any) -> None:
    """Run a kernel with so many threads at least, where ``other`` lies; arrays of the host go there."""
    there = (device.move_beside(a, other) if isinstance(a, np.ndarray) else a for a in arguments)
    kernel[max(1, -(-n_threads // THREADS)), THREADS](*there)


@cache
def frames_kernel() -> Any:
    """Return the kernel of complete frames at one place of sequences: a thread a frame."""
    update = compile_scalar(frames.update_lanes, "cuda")

    @cuda.jit
    def kernel(gram, alone, inverse, offset, own, before, seen, met, chance, entropy, work):
        t = cuda.grid(1)
        if t < own.shape[1]:
            update(t, t + 1, gram, alone, inverse, offset, own, before, seen, met, chance, entropy, work)

    return kernel


def update_complete(
    kind: Int[np.ndarray, " n"], earlier: Int[np.ndarray, " n"],
    later: Int[np.ndarray, " n"], data: Array, pull: Any, gram: Any, hold: Any, odds: Any, alone: Any,
    inverse: Any, offset: Any, beside_present: Any, beside_mean: Any, other_by: Array, other_present: Array,
    other_on: Array, other_off: Array, old_by: Array, old_present: Array, old_on: Array, present: Array,
    on: Array, off: Array, entropy: Array,
) -> None:  # fmt: skip
    """See `kernels.frames.update_complete`."""
    xp, (k, p), size = device.namespace(data), (on.shape[1], present.shape[1]), inverse.shape[2]
    other = xp.empty_like(other_on), xp.empty_like(other_on)
    write_means(other_present, other_on, other_off, *other)
    pull = device.move_beside(pull[:, None], data)

    def near(values: Array, ends: Any, at: Any, end: int) -> Array:
        """Return what neighbours have, in lanes."""
        padded = xp.concat(
            [values, xp.zeros_like(values[:1]), device.move_beside(ends[end : end + 1], values)]
        )
        return padded[device.move_beside(at, values)].T  # NOBODY and OUTSIDE are the last two

    for place in range(len(odds)):
        chosen = np.flatnonzero(kind == place)
        if not len(chosen):
            continue
        there, m = device.move_beside(chosen, data), len(chosen)
        before, chance = xp.zeros((k, m)), xp.full((p, m), odds[place, 0])
        for end, at in enumerate((earlier[chosen], later[chosen])):
            held = device.move_beside(hold[place, end][:, None], data)
            before += held * near(other[1] * other_by, beside_mean, at, end)
            chance += odds[place, end + 1] * near(other_present, beside_present, at, end)
        own, seen = xp.zeros((k, m)), data[:, there] - pull
        own += (xp.repeat(old_present[there], size, axis=1) * old_on[there] * old_by).T
        met, spread, work = xp.empty((k, m)), xp.empty(m), xp.empty((4, m))
        _launch(
            frames_kernel(), m, data, gram, alone[place], inverse[place], offset[place], own, before, seen,
            met, chance, spread, work,
        )  # fmt: skip
        entropy[there] = spread
        present[there], on[there], off[there] = chance.T, met.T, before.T


@cache
def gaps_kernel() -> Any:
    """Return the kernel of frames with missing entries: a thread a frame."""
    update = compile_scalar(incomplete_frames.update_gap, "cuda")

    @cuda.jit
    def kernel(kind, residual, seen, weights, weighted, prior, precision, inverse, offset, odds, information,
               x, present, on, off):  # fmt: skip
        n = cuda.grid(1)
        if n < kind.size:
            update(
                n, kind, residual, seen, weights, weighted, prior, precision, inverse, offset, odds,
                information[n], x, present, on, off,
            )  # fmt: skip

    return kernel


def update_gaps(kind: Int[np.ndarray, " n"], *others: Any) -> None:
    """See `kernels.incomplete_frames.update_gaps`."""
    (*given, x, present, on, off), size = others, others[6].shape[2]
    work = device.namespace(x).empty((len(kind), size))
    _launch(gaps_kernel(), len(kind), x, kind, *given, work, x, present, on, off)


@cache
def inversion_kernel() -> Any:
    """Return the kernel of small inverses: a thread a row."""
    invert = compile_scalar(small.invert_one, "cuda")

    @cuda.jit
    def kernel(precision, gram, inverse, log_det):
        m = cuda.grid(1)
        if m < gram.shape[0]:
            invert(m, precision, gram, inverse, log_det)

    return kernel


def invert_all(precision: Array, gram: Array, inverse: Array, log_det: Array) -> None:
    """See `kernels.small.invert_all`."""
    _launch(inversion_kernel(), len(gram), gram, precision, gram, inverse, log_det)


@cache
def presence_kernel(size: int) -> Any:
    """Return the kernel of chains of b, of identities of so many attributes: a thread a run of frames."""
    each, odds_of_run = (0,) * size, compile_scalar(presence.odds_of_run, "cuda")
    smooth = compile_scalar(presence.smooth_run, "cuda")

    @cuda.jit
    def kernel(starts, stops, first, last, evidence, own, gaps, mean, covariance, table, start, before,
               behind, work, present, joint, earlier, entropy):  # fmt: skip
        run = cuda.grid(1)
        if run < starts.size:
            low, high = starts[run], stops[run]
            odds_of_run(each, low, high, evidence, own, gaps, mean, covariance, work[0])
            beyond = 0.0 if last[high - 1] else behind
            smooth(
                low, high, first[low], work[0], table, start, before, beyond, work[1], work[2], present,
                joint, earlier, entropy,
            )  # fmt: skip

    return kernel


def smooth_presence(each: tuple[int, ...], starts: Int[np.ndarray, " R"], *others: Any) -> None:
    """See `kernels.presence.smooth_presence`."""
    *given, present, joint, earlier, entropy = others
    work = device.namespace(present).empty((3, len(present)))
    marginals = present, joint, earlier, entropy
    _launch(presence_kernel(len(each)), len(starts), present, starts, *given, work, *marginals)


@cache
def presence_span_kernel(size: int) -> Any:
    """Return the kernel of the message of a block about b: one thread."""
    each, odds_of_run = (0,) * size, compile_scalar(presence.odds_of_run, "cuda")
    span = compile_scalar(presence.block_message, "cuda")

    @cuda.jit
    def kernel(starts, stops, first, evidence, own, gaps, mean, covariance, table, start, odds, out):
        if cuda.grid(1) == 0:
            end = starts.size - 1
            odds_of_run(each, 0, stops[0], evidence, own, gaps, mean, covariance, odds)
            odds_of_run(each, starts[end], stops[end], evidence, own, gaps, mean, covariance, odds)
            span(starts, stops, first, odds, table, start, out)

    return kernel


def presence_message(each: tuple[int, ...], *others: Any) -> None:
    """See `kernels.presence.presence_message`; ``out`` on the host."""
    (*inputs, odds, out) = others
    message = device.move_beside(out, odds)
    _launch(presence_span_kernel(len(each)), 1, odds, *inputs, odds, message)
    out[...] = device.on_host(message)


@cache
def attributes_kernel(size: int) -> Any:
    """Return the kernel of chains of a, of so many attributes each: a thread a run of frames."""
    each, smooth = (0,) * size, compile_scalar(chains.smooth_run, "cuda")

    @cuda.jit
    def kernel(starts, stops, first, last, present, evidence, own, gaps, moments, variance, before, behind,
               there, work, mean, covariance, cross, entropy):  # fmt: skip
        run = cuda.grid(1)
        if run < starts.size:
            low, high = starts[run], stops[run]
            smooth(
                each, low, high, first[low], last[high - 1], present, evidence, own, gaps, moments, variance,
                before, behind, there, work[run], mean, covariance, cross, entropy,
            )  # fmt: skip

    return kernel


def smooth_attributes(each: tuple[int, ...], starts: Int[np.ndarray, " R"], *others: Any) -> None:
    """See `kernels.chains.smooth_attributes`."""
    *given, mean, covariance, cross, entropy = others
    xp, (n, q) = device.namespace(mean), mean.shape
    work = xp.empty((n, q, q)), xp.empty((len(starts), 4 * q + 2, q))
    marginals = mean, covariance, cross, entropy
    _launch(attributes_kernel(q), len(starts), mean, starts, *given, *work, *marginals)


def smooth_all(
    each: tuple[int, ...], starts: Any, stops: Any, first: Any, last: Any, residual: Array, between: Array,
    own: Array, moments: Array, variance: float, table: Array, start: float, activity: Array, present: Array,
    joint: Array, earlier: Array, present_entropy: Array, mean: Array, covariance: Array, cross: Array,
    mean_entropy: Array,
) -> None:  # fmt: skip
    """See `kernels.all_chains.smooth_all`."""
    size, nothing, frames = len(each), np.zeros((len(each) + 1, len(each))), (starts, stops, first, last)
    for p in range(len(own)):
        columns = slice(p * size, (p + 1) * size)
        gram = device.move_beside(np.ascontiguousarray(between[:, columns]), activity)
        evidence = residual[:, columns] - activity @ gram
        links = np.ascontiguousarray(moments[:, columns])
        smooth_attributes(
            each, *frames, present[p], evidence, own[p : p + 1], 0, links, variance, nothing, nothing,
            mean[p], covariance[p], cross[p], mean_entropy[p],
        )  # fmt: skip
        smooth_presence(
            each, *frames, evidence, own[p : p + 1], 0, mean[p], covariance[p], table, start, 0.0, 0.0,
            present[p], joint[p], earlier[p], present_entropy[p],
        )  # fmt: skip
        activity[:, columns] = present[p][:, None] * mean[p]


@cache
def attributes_span_kernel(size: int) -> Any:
    """Return the kernel of the message of a block about a: one thread."""
    each, span = (0,) * size, compile_scalar(attribute_messages.block_message, "cuda")

    @cuda.jit
    def kernel(starts, stops, first, present, evidence, own, gaps, moments, variance, work, matrix, vector):
        if cuda.grid(1) == 0:
            span(
                each, starts, stops, first, present, evidence, own, gaps, moments, variance, work, matrix,
                vector,
            )  # fmt: skip

    return kernel


def attribute_message(each: tuple[int, ...], *others: Any) -> None:
    """See `kernels.attribute_messages.attribute_message`; ``matrix`` and ``vector`` on the host."""
    (*inputs, matrix, vector), q, other = others, len(each), others[3]
    message = device.move_beside(matrix, other), device.move_beside(vector, other)
    work = device.namespace(other).empty((6 * q + 4, q))
    _launch(attributes_span_kernel(q), 1, other, *inputs, work, *message)
    matrix[...], vector[...] = (device.on_host(part) for part in message)
