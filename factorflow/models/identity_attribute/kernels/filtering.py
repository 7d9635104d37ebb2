"""One frame after the other, each predicted from those before it alone.

Of the states presence, mean and covariance of each identity are kept; a frame is then looked at by a few
rounds of the update of equations 37 to 48, with the prediction in the place of the neighbours.
Importing this module imports numba.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from factorflow.kernels.compile import options
from factorflow.models.identity_attribute.kernels.small import FAST, invert, logistic


@options(fastmath=FAST)
def _predict_state(fresh, transition, initial, variance, dynamics, squares, present, mean, covariance):
    """Predict the states of the next frame from those of one frame."""
    n_identities, size = mean.shape
    for p in range(n_identities):
        if fresh:
            present[p] = initial
        else:
            present[p] = present[p] * transition[1, 1] + (1.0 - present[p]) * transition[0, 1]
        for i in range(size):
            for j in range(size):
                if fresh:
                    covariance[p, i, j] = variance if i == j else 0.0
                elif i != j:
                    covariance[p, i, j] *= dynamics[p, i] * dynamics[p, j]
                else:
                    second = squares[p, i] * (covariance[p, i, i] + mean[p, i] ** 2)
                    covariance[p, i, i] = second - (dynamics[p, i] * mean[p, i]) ** 2 + 1.0 - squares[p, i]
        for i in range(size):
            mean[p, i] = 0.0 if fresh else dynamics[p, i] * mean[p, i]


@options(fastmath=FAST)
def filter_frames(
    y, seen, first, weights, variances, precision, transition, initial, variance, dynamics, squares, rounds,
    present, mean, covariance, density,
):  # fmt: skip
    """Write the prediction of the states of each frame by those before, and a bound of its log density.

    Parameters
    ----------
    y, seen : (n, D) arrays
        Values less their mean, 0 where missing; 1.0 where there is one.
    first : (n,) bool array
        Whether a sequence begins.
    weights, variances : (D, P, Q) arrays
        Mean and variance of the loadings.
    precision : (D,) array
        Of the noise.
    transition : (2, 2) array
        E T.
    initial, variance : float
        pi_0, sigma_a^2.
    dynamics, squares : (P, Q) arrays
        E lambda, E lambda^2.
    rounds : int
        Of the update of a frame.
    present, mean, covariance : (n, P), (n, P, Q), (n, P, Q, Q) arrays
        Written.
    density : (n,) array
        Written: a lower bound of log p(y_t | y_1 ... y_t-1).
    """
    n, n_features = y.shape
    n_identities, size = weights.shape[1], weights.shape[2]
    b, m = np.full(n_identities, initial), np.zeros((n_identities, size))
    v = np.zeros((n_identities, size, size))
    on, x = np.zeros((n_identities, size)), np.zeros((n_identities, size))
    inner, gram = np.empty((n_identities, size, size)), np.empty((n_identities, size, size))
    back, now = np.empty((n_identities, size, size)), np.empty(n_identities)
    rest, shift = np.empty(n_features), np.empty(size)
    gain = np.empty(n_identities)
    for t in range(n):
        _predict_state(first[t] or t == 0, transition, initial, variance, dynamics, squares, b, m, v)
        constant = 0.0
        for d in range(n_features):
            rest[d] = y[t, d]
            constant += 0.5 * seen[t, d] * (math.log(precision[d]) - math.log(2.0 * math.pi))
        for p in range(n_identities):
            present[t, p], now[p] = b[p], b[p]
            for i in range(size):
                mean[t, p, i], x[p, i] = m[p, i], b[p] * m[p, i]
                for j in range(size):
                    covariance[t, p, i, j] = v[p, i, j]
                    total = 0.0
                    for d in range(n_features):
                        second = weights[d, p, i] * weights[d, p, j]
                        if i == j:
                            second += variances[d, p, i]
                        total += seen[t, d] * precision[d] * second
                    gram[p, i, j] = total
                for d in range(n_features):
                    rest[d] -= seen[t, d] * weights[d, p, i] * x[p, i]
            gain[p] = -0.5 * invert(v[p], back[p])
        for _ in range(rounds):
            for p in range(n_identities):
                for i in range(size):
                    for d in range(n_features):
                        rest[d] += seen[t, d] * weights[d, p, i] * x[p, i]
                odds = math.log(b[p]) - math.log1p(-b[p]) + gain[p]
                for i in range(size):
                    total = 0.0
                    for d in range(n_features):
                        total += precision[d] * weights[d, p, i] * rest[d]
                    for j in range(size):
                        total += back[p, i, j] * m[p, j]
                        inner[p, i, j] = back[p, i, j] + gram[p, i, j]
                        odds -= 0.5 * m[p, i] * back[p, i, j] * m[p, j]
                    shift[i] = total
                odds -= 0.5 * invert(inner[p], inner[p])
                for i in range(size):
                    on[p, i] = 0.0
                    for j in range(size):
                        on[p, i] += inner[p, i, j] * shift[j]
                    odds += 0.5 * on[p, i] * shift[i]
                now[p] = logistic(odds)
                for i in range(size):
                    x[p, i] = now[p] * on[p, i]
                    for d in range(n_features):
                        rest[d] -= seen[t, d] * weights[d, p, i] * x[p, i]
        density[t] = constant
        for d in range(n_features):
            density[t] -= 0.5 * precision[d] * rest[d] * rest[d]
        for p in range(n_identities):
            density[t] -= _cost(
                weights[:, p],
                seen[t],
                precision,
                gram[p],
                back[p],
                gain[p],
                b[p],
                m[p],
                now[p],
                on[p],
                inner[p],
            )
            c = now[p]
            for i in range(size):
                for j in range(size):
                    apart = (on[p, i] - m[p, i]) * (on[p, j] - m[p, j])
                    v[p, i, j] = c * inner[p, i, j] + (1.0 - c) * v[p, i, j] + c * (1.0 - c) * apart
            for i in range(size):
                m[p, i] = c * on[p, i] + (1.0 - c) * m[p, i]
            b[p] = min(max(c, 1e-12), 1.0 - 1e-12)


@options(fastmath=FAST)
def _cost(weights, seen, precision, gram, back, gain, b, m, c, on, inner):
    """Return the divergence of an identity's posterior from its prediction, and what its variance costs."""
    size = m.shape[0]
    work = np.empty((size, size))
    log_det = -invert(inner, work)  # of the precision
    inside, cost = 0.5 * log_det - gain - 0.5 * size, 0.0
    for i in range(size):
        for j in range(size):
            second = c * (inner[i, j] + on[i] * on[j])
            cost += 0.5 * gram[i, j] * second
            total = 0.0
            for d in range(weights.shape[0]):
                total += seen[d] * precision[d] * weights[d, i] * weights[d, j]
            cost -= 0.5 * total * c * on[i] * c * on[j]
            apart = (on[i] - m[i]) * (on[j] - m[j])
            inside += 0.5 * back[i, j] * (inner[i, j] + apart)
    cost += c * inside
    if c > 0.0:
        cost += c * (math.log(c) - math.log(b))
    if c < 1.0:
        cost += (1.0 - c) * (math.log1p(-c) - math.log1p(-b))
    return float(cost)
