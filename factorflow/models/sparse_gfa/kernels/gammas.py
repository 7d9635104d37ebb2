"""Gamma variables: what they have in common with themselves integrated out, and draws of them."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from factorflow.kernels.scalar.normal import ndtri
from factorflow.kernels.scalar.philox import philox_pair


def loop_marginals(halves, rates, shapes, scales, units, logs, out):
    """Set out (A, P) to log p of data that say x^halves exp(-rates x) of D precisions, but for log Gammas.

    x ~ Ga(a, a s unit) of the A ``shapes`` a, and P ``units`` (P, D) with their ``scales`` s, is integrated
    out: sum_d a log(a s unit) - (a + halves) log(a s unit + rates). ``logs``: sum_d log unit. Of features
    with as many entries, one behind the other, one logarithm is taken.
    """
    product = np.empty(len(shapes))
    for p in range(len(scales)):
        factors = shapes * scales[p]
        for i in range(len(shapes)):
            product[i] = 1.0
            out[i, p] = shapes[i] * (len(halves) * math.log(factors[i]) + logs[p])
        for d in range(len(halves)):
            unit, rate, least, most = units[p, d], rates[d], 1e100, 1e-100
            for i in range(len(shapes)):  # without branches: vector instructions
                product[i] *= factors[i] * unit + rate
                least, most = min(least, product[i]), max(most, product[i])
            if d + 1 == len(halves) or halves[d + 1] != halves[d] or least < 1e-100 or most > 1e100:
                for i in range(len(shapes)):
                    out[i, p] -= (shapes[i] + halves[d]) * math.log(product[i])
                    product[i] = 1.0


def loop_gammas(shapes, numbers, seed, iteration, place, out):
    """Set out to draws of Gamma(shape, 1), of the words of each number: exactly, by rejection.

    G. Marsaglia, W. W. Tsang, "A simple method for generating gamma variables", ACM Transactions on
    Mathematical Software 26 (2000) 363-372; shapes below 1 by those of one more.
    """
    for i in range(len(shapes)):
        shape = shapes[i]
        raised = shape if shape >= 1.0 else shape + 1.0
        d, word = raised - 1.0 / 3.0, np.uint64(0)
        c = 1.0 / math.sqrt(9.0 * d)
        while True:
            first, second = philox_pair(seed, numbers[i], word, iteration, place)
            word += np.uint64(1)
            x = ndtri(first)
            v = 1.0 + c * x
            if v > 0.0:
                v = v * v * v
                if math.log(second) < 0.5 * x * x + d * (1.0 - v + math.log(v)):
                    break
        out[i] = d * v
        if shape < 1.0:
            first, _ = philox_pair(seed, numbers[i], word, iteration, place)
            out[i] *= first ** (1.0 / shape)
