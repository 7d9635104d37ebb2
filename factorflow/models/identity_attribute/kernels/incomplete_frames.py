"""Loops over frames with missing entries, of the posterior factorised over frames and identities (eq. 20).

Shapes as in `kernels.frames`; each of these frames has covariances S1 of its own. `update_gap` is the source
of the CPU and of CUDA devices (`kernels.cuda`). Importing this module imports numba.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np

from factorflow.kernels.compile import compile_scalar, options
from factorflow.models.identity_attribute.kernels.small import FAST, logistic

Array = Any


@options(fastmath=FAST)
def update_one(information, prior, precision, inverse, offset, odds, on, off):
    """Write the two means of one identity in one frame (equations 29, 40), return q(b = 1) (41, 46).

    ``information`` is what the data say of a (Q), ``prior`` what the neighbouring frames do, ``offset`` is
    (log|S1| - log|S0|) / 2.
    """
    size = on.shape[0]
    gain = offset
    for i in range(size):
        total = 0.0
        for j in range(size):
            total += inverse[i, j] * (prior[j] + information[j])
        on[i] = total
        off[i] = prior[i] / precision[i]
        gain += 0.5 * (total * (prior[i] + information[i]) - off[i] * prior[i])
    return logistic(odds + gain)


@options(fastmath=FAST)
def update_gap(
    n, kind, residual, seen, weights, weighted, prior, precision, inverse, offset, odds, information, x,
    present, on, off,
):  # fmt: skip
    """Update all identities of frame n with missing entries; ``information`` (Q,) is worked in.

    See `update_gaps` for all others.
    """
    n_identities, size = inverse.shape[1], inverse.shape[2]
    n_features = weights.shape[1]
    which = kind[n]
    rest = residual[n]
    for p in range(n_identities):
        low, high = p * size, (p + 1) * size
        for i in range(low, high):
            for d in range(n_features):
                rest[d] += x[n, i] * weights[i, d] * seen[n, d]
        for i in range(size):
            total = 0.0
            for d in range(n_features):
                total += weighted[low + i, d] * rest[d]
            information[i] = total
        b = update_one(
            information, prior[n, low:high], precision[which, low:high], inverse[n, p], offset[n, p],
            odds[n, p], on[n, low:high], off[n, low:high],
        )  # fmt: skip
        present[n, p] = b
        for i in range(low, high):
            x[n, i] = b * on[n, i]
            for d in range(n_features):
                rest[d] -= x[n, i] * weights[i, d] * seen[n, d]


@options(fastmath=FAST)
def _update_rows(
    kind, residual, seen, weights, weighted, prior, precision, inverse, offset, odds, x, present, on, off
):
    information = np.empty(inverse.shape[2])
    for n in range(kind.shape[0]):
        update_gap(
            n, kind, residual, seen, weights, weighted, prior, precision, inverse, offset, odds, information,
            x, present, on, off,
        )  # fmt: skip


def update_gaps(*arguments: Array) -> None:
    """Update all identities of frames with missing entries, one after the other.

    Parameters
    ----------
    kind : (n,) array
        Places, rows of ``precision`` (4, K).
    residual : (n, D) array
        y - E W x of the observed entries, 0 elsewhere; changed on the way.
    seen : (n, D) array
        1.0 where an entry is observed.
    weights, weighted : (K, D) arrays
        E W and E rho W.
    prior : (n, K) array
        What the neighbouring frames say of a.
    precision, inverse, offset : (4, K), (n, P, Q, Q), (n, P) arrays
        The latter two of each frame.
    odds : (n, P) array
        What the neighbouring frames say of b.
    x, present, on, off : (n, K), (n, P), (n, K), (n, K) arrays
        Written.
    """
    compile_scalar(_update_rows)(*arguments)
