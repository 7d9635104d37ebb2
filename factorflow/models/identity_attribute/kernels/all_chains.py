"""All identities of a block in turn, where nothing is missing and no chain goes on elsewhere (equation 19).

For the CPU; `kernels.cuda` has the same. Letters as in `kernels.chains`; P identities, K = P Q columns.
Importing this module imports numba.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np

from factorflow.kernels.compile import compile_scalar, options
from factorflow.models.identity_attribute.kernels.chains import add_frame_before, continue_chain
from factorflow.models.identity_attribute.kernels.chains import smooth_block as smooth_attributes_of
from factorflow.models.identity_attribute.kernels.presence import smooth_block as smooth_presence_of
from factorflow.models.identity_attribute.kernels.small import STEADY


@options(fastmath=STEADY)
def compute_evidence(each, p, residual, between, activity, evidence):
    """Write what the data and all other identities leave to identity p, (B, Q); ``between`` is symmetric."""
    size = len(each)
    for t in range(len(residual)):
        for i in range(size):
            total = residual[t, p * size + i]
            for k in range(between.shape[1]):
                total -= activity[t, k] * between[p * size + i, k]
            evidence[t, i] = total


@options(fastmath=STEADY)
def _smooth_all(
    each, starts, stops, first, last, residual, between, own, moments, variance, table, start, activity,
    present, joint, earlier, present_entropy, mean, covariance, cross, mean_entropy,
):  # fmt: skip
    size, nothing = len(each), np.zeros((len(each) + 1, len(each)))
    evidence, links = np.empty((len(first), size)), np.empty((3, size))
    for p in range(len(own)):
        for i in range(size):
            for n in range(3):
                links[n, i] = moments[n, p * size + i]
        compute_evidence(each, p, residual, between, activity, evidence)
        smooth_attributes_of(
            each, starts, stops, first, last, present[p], evidence, own[p : p + 1], 0, links, variance,
            nothing, nothing, mean[p], covariance[p], cross[p], mean_entropy[p],
        )  # fmt: skip
        smooth_presence_of(
            each, starts, stops, first, last, evidence, own[p : p + 1], 0, mean[p], covariance[p], table,
            start, 0.0, 0.0, present[p], joint[p], earlier[p], present_entropy[p],
        )  # fmt: skip
        for t in range(len(first)):
            for i in range(size):
                activity[t, p * size + i] = present[p, t] * mean[p, t, i]


def smooth_all(*arguments: Any) -> None:
    """Update the chains of all identities, one after the other: attributes, then presence.

    Parameters
    ----------
    each, starts, stops, first, last
        As for `kernels.chains.smooth_attributes`.
    residual : (B, K) array
        W' rho (y - m).
    between : (K, K) array
        E W' rho W between identities; 0 within one.
    own : (P, Q, Q) array
        E W_p' rho W_p.
    moments : (3, K) array
        E 1/(1 - l^2), l/(1 - l^2), l^2/(1 - l^2).
    variance : float
        Of a in the first frame of a sequence.
    table, start
        As for `kernels.presence.smooth_presence`.
    activity : (B, K) array
        E a b; changed.
    present : (P, B) array
        Q(b = 1); changed.
    joint, earlier, present_entropy, mean, covariance, cross, mean_entropy : (P, B, ...) arrays
        Written (`state.Track`).
    """
    compile_scalar(_smooth_all, omit=frozenset({continue_chain, add_frame_before}))(*arguments)
