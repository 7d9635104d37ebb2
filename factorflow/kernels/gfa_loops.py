"""Compiled loops of sparse group factor analysis: everything that is not a matrix product.

Imported lazily by `factorflow.kernels.gfa` (importing this module imports numba). All loops release the
GIL, call no library function inside their inner loops, and keep sums in float64. Data may be float32 or
float64: the arithmetic of a single entry is always double precision, so both take one source.

A symmetric (K, K) matrix is packed by rows of its lower triangle: entry (k, j), j <= k, is at
k (k + 1) / 2 + j. Small matrices are handled 64 at a time ("lanes"): the innermost loop runs over
that many samples or features, which the compiler turns into vector instructions.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

LANES = 64
compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
inlined = njit(
    cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"}, inline="always"
)


@intrinsic
def _float_of_bits(context, x):  # type: ignore[no-untyped-def]
    def generate(codegen, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], codegen.get_value_type(types.float64))

    return types.float64(types.int64), generate


@intrinsic
def _bits_of_float(context, x):  # type: ignore[no-untyped-def]
    def generate(codegen, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], codegen.get_value_type(types.int64))

    return types.int64(types.float64), generate


_C = tuple(1.0 / math.factorial(i) for i in range(13))
_SQRT_HALF_BITS = np.int64(0x3FE6A09E667F3BCD)


@inlined
def exp(x):
    """Return e^x for |x| < 700: range reduction and a polynomial, relative error 2e-15, vectorises."""
    n = math.floor(x * 1.4426950408889634 + 0.5)
    r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10
    p = ((((_C[12] * r + _C[11]) * r + _C[10]) * r + _C[9]) * r + _C[8]) * r + _C[7]
    p = (((((((p * r + _C[6]) * r + _C[5]) * r + _C[4]) * r + _C[3]) * r + 0.5) * r) + 1.0) * r + 1.0
    return p * _float_of_bits((np.int64(n) + 1023) << 52)


@inlined
def log(x):
    """Return log x of a positive normal number: absolute error 2e-15, vectorises."""
    bits = _bits_of_float(x)
    k = (bits - _SQRT_HALF_BITS) >> 52
    m = _float_of_bits(bits - (k << 52))
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = (((1.0 / 21.0 * z + 1.0 / 19.0) * z + 1.0 / 17.0) * z + 1.0 / 15.0) * z + 1.0 / 13.0
    p = ((((p * z + 1.0 / 11.0) * z + 1.0 / 9.0) * z + 1.0 / 7.0) * z + 1.0 / 5.0) * z + 1.0 / 3.0
    return np.float64(k) * 6.93147180559945309417e-01 + 2.0 * s * (p * z + 1.0)


@inlined
def log1p_small(e):
    """Return log(1 + e) for 0 <= e <= 1 with small relative error."""
    return e * (1.0 - e * (0.5 - e * (1.0 / 3.0 - 0.25 * e))) if e < 1e-4 else log(1.0 + e)


# Reading a block ---------------------------------------------------------------------------------


@compiled
def column_moments(values, lowest, count, total, squares):
    """Add the number, sum and sum of squares of the observed entries of each column."""
    for n in range(values.shape[0]):
        row = values[n]
        for d in range(row.size):
            observed = row[d] >= lowest
            y = np.float64(row[d]) if observed else 0.0
            count[d] += 1.0 if observed else 0.0
            total[d] += y
            squares[d] += y * y


@compiled
def centre(values, lowest, reference, inverse_scale, filled):
    """Write (values - reference) * inverse_scale, 0 where missing."""
    for n in range(values.shape[0]):
        row, out = values[n], filled[n]
        for d in range(row.size):
            out[d] = (row[d] - reference[d]) * inverse_scale[d] if row[d] >= lowest else out.dtype.type(0)


@compiled
def count_missing(values, lowest, missing):
    """Count the missing entries of each row."""
    for n in range(values.shape[0]):
        row = values[n]
        absent = 0
        for d in range(row.size):
            absent += 0 if row[d] >= lowest else 1
        missing[n] = absent


@compiled
def list_minority(values, lowest, missing, start, column):
    """List, row by row, the missing entries, or the observed ones where those are fewer.

    ``start`` (B + 1,) delimits the rows in ``column``, which needs one place more than it has entries.
    """
    flag = np.empty(values.shape[1], np.uint8)
    p = np.uint64(0)
    for n in range(values.shape[0]):
        start[n] = p
        row = values[n]
        listed = 2 * missing[n] > row.size
        for d in range(row.size):
            flag[d] = (row[d] >= lowest) == listed
        for d in range(row.size):
            column[p] = d
            p += np.uint64(flag[d])
    start[values.shape[0]] = p


@compiled
def transpose_lists(start, column, by_column, row):
    """Turn lists of columns by row into lists of rows by column (``by_column`` (D + 1,) delimits them)."""
    n_columns = by_column.size - 1
    by_column[:] = 0
    for j in range(start[-1]):
        by_column[column[j] + 1] += 1
    for d in range(n_columns):
        by_column[d + 1] += by_column[d]
    for n in range(start.size - 1):
        for j in range(start[n], start[n + 1]):
            d = column[j]
            row[by_column[d]] = n
            by_column[d] += 1
    for d in range(n_columns, 0, -1):
        by_column[d] = by_column[d - 1]
    by_column[0] = 0


@compiled
def add_listed(table, start, index, keep, sign, base, out):
    """out_i += keep_i base + sign_i sum of the rows of ``table`` that the i-th list names."""
    accumulated = np.zeros(table.shape[1], table.dtype)
    for i in range(out.shape[0]):
        accumulated[:] = 0
        j, end = start[i], start[i + 1]
        while j + 4 <= end:
            a, b, c, d = table[index[j]], table[index[j + 1]], table[index[j + 2]], table[index[j + 3]]
            for q in range(accumulated.size):
                accumulated[q] += (a[q] + b[q]) + (c[q] + d[q])
            j += 4
        while j < end:
            a = table[index[j]]
            for q in range(accumulated.size):
                accumulated[q] += a[q]
            j += 1
        row = out[i]
        k, s = keep[i], sign[i]
        for q in range(accumulated.size):
            row[q] += k * base[q] + s * accumulated[q]


# Expectations ------------------------------------------------------------------------------------


@compiled
def expected_pairs(mean, spread, constant, constant_variance, weight, out):
    """Write weight_i E[x x'] packed, x = (x_1 ... x_K, constant), Var x = ``spread`` (diagonal or packed).

    ``spread`` has K columns (diagonal) or K (K + 1) / 2; one row of it may serve all.
    """
    n_factors = mean.shape[1]
    diagonal = spread.shape[1] == n_factors
    for i in range(mean.shape[0]):
        m, row, f = mean[i], out[i], weight[i]
        s = spread[i] if spread.shape[0] > 1 else spread[0]
        q = 0
        for k in range(n_factors):
            a = f * m[k]
            triangle = row[q : q + k + 1]
            for j in range(k + 1):
                triangle[j] = a * m[j]
            if diagonal:
                triangle[k] += f * s[k]
            else:
                part = s[q : q + k + 1]
                for j in range(k + 1):
                    triangle[j] += f * part[j]
            q += k + 1
        a = f * constant[i]
        last = row[q:]
        for j in range(n_factors):
            last[j] = a * m[j]
        last[n_factors] = a * constant[i] + f * constant_variance[i]


@compiled
def quadratic(cross, pairs, mean, spread, constant, constant_variance, out):
    """out_i = E[x' P_i x] - 2 E[x]' c_i: a residual sum of squares without its sum of squares."""
    n_factors = mean.shape[1]
    diagonal = spread.shape[1] == n_factors
    for i in range(mean.shape[0]):
        m, c = mean[i], cross[i]
        s = spread[i] if spread.shape[0] > 1 else spread[0]
        p = pairs[i] if pairs.shape[0] > 1 else pairs[0]
        total, q = 0.0, 0
        for k in range(n_factors):
            triangle = p[q : q + k + 1]
            inner = 0.0
            for j in range(k):
                inner += triangle[j] * m[j]
            total += m[k] * (2.0 * inner + triangle[k] * m[k] - 2.0 * c[k])
            if diagonal:
                total += triangle[k] * s[k]
            else:
                part = s[q : q + k + 1]
                trace = 0.0
                for j in range(k):
                    trace += triangle[j] * part[j]
                total += 2.0 * trace + triangle[k] * part[k]
            q += k + 1
        last = p[q:]
        inner = 0.0
        for j in range(n_factors):
            inner += last[j] * m[j]
        b = constant[i]
        out[i] = total + b * (2.0 * inner - 2.0 * c[n_factors]) + last[n_factors] * (b * b + constant_variance[i])


# Updates of many small Gaussians or spike-and-slabs -----------------------------------------------


@inlined
def _load(source, first, factor, work):
    """Copy 64 rows of ``source`` (the last one repeated; a single row serves all) into lanes."""
    n_rows = source.shape[0]
    for lane in range(LANES):
        i = min(first + lane, n_rows - 1)
        row = source[i]
        f = factor[min(first + lane, factor.size - 1)]
        for q in range(work.shape[0]):
            work[q, lane] = f * row[q]


@compiled
def solve_normals(pairs, linear, scale, prior, mean, covariance, log_determinant):
    """Means (scale_i P_i + prior)^-1 h_i, the inverses packed, and the log determinants of the inverses.

    ``pairs`` (N or 1, >= K (K + 1) / 2), ``linear`` (N, K), ``scale`` (N or 1,), ``prior`` (N or 1, K).
    """
    n_factors = linear.shape[1]
    n_pairs = n_factors * (n_factors + 1) // 2
    a, x = np.empty((n_pairs, LANES)), np.empty((n_pairs, LANES))
    p, h = np.empty((n_factors, LANES)), np.empty((n_factors, LANES))
    m, logdet, t = np.empty((n_factors, LANES)), np.empty(LANES), np.empty(LANES)
    one = np.ones(1)
    for first in range(0, linear.shape[0], LANES):
        _load(pairs, first, scale, a)
        _load(prior, first, one, p)
        _load(linear, first, one, h)
        _cholesky_lanes(a, p, logdet, t)
        _invert_lanes(a, x, t)
        for k in range(n_factors):
            for lane in range(LANES):
                t[lane] = 0.0
            for j in range(n_factors):
                row = x[k * (k + 1) // 2 + j] if j <= k else x[j * (j + 1) // 2 + k]
                for lane in range(LANES):
                    t[lane] += row[lane] * h[j, lane]
            for lane in range(LANES):
                m[k, lane] = t[lane]
        for lane in range(min(LANES, linear.shape[0] - first)):
            log_determinant[first + lane] = logdet[lane]
            for k in range(n_factors):
                mean[first + lane, k] = m[k, lane]
            for q in range(n_pairs):
                covariance[first + lane, q] = x[q, lane]


@compiled
def _cholesky_lanes(a, prior, logdet, t):
    """Factor a + diag(prior) in place; the diagonal of L holds its reciprocals; log |inverse|."""
    n_factors = prior.shape[0]
    for lane in range(LANES):
        logdet[lane] = 0.0
    for j in range(n_factors):
        rj = j * (j + 1) // 2
        for lane in range(LANES):
            a[rj + j, lane] += prior[j, lane]
        for k in range(j):
            for lane in range(LANES):
                a[rj + j, lane] -= a[rj + k, lane] * a[rj + k, lane]
        for lane in range(LANES):
            logdet[lane] -= log(a[rj + j, lane])
            t[lane] = 1.0 / math.sqrt(a[rj + j, lane])
            a[rj + j, lane] = t[lane]
        for i in range(j + 1, n_factors):
            ri = i * (i + 1) // 2
            row = a[ri + j]
            for k in range(j):
                for lane in range(LANES):
                    row[lane] -= a[ri + k, lane] * a[rj + k, lane]
            for lane in range(LANES):
                row[lane] *= t[lane]


@compiled
def _invert_lanes(a, x, t):
    """x = (L L')^-1 packed, from L with reciprocal diagonal; ``a`` is overwritten by L^-1."""
    n_pairs = a.shape[0]
    n_factors = int((math.sqrt(8.0 * n_pairs + 1.0) - 1.0) / 2.0 + 0.5)
    for i in range(n_factors):
        ri = i * (i + 1) // 2
        for j in range(i):
            for lane in range(LANES):
                t[lane] = 0.0
            for k in range(j, i):
                rk = k * (k + 1) // 2
                for lane in range(LANES):
                    t[lane] -= a[ri + k, lane] * x[rk + j, lane]
            for lane in range(LANES):
                x[ri + j, lane] = t[lane] * a[ri + i, lane]
        for lane in range(LANES):
            x[ri + i, lane] = a[ri + i, lane]
    for q in range(n_pairs):
        for lane in range(LANES):
            a[q, lane] = x[q, lane]
    for i in range(n_factors):
        for j in range(i + 1):
            for lane in range(LANES):
                t[lane] = 0.0
            for k in range(i, n_factors):
                rk = k * (k + 1) // 2
                for lane in range(LANES):
                    t[lane] += a[rk + i, lane] * a[rk + j, lane]
            for lane in range(LANES):
                x[i * (i + 1) // 2 + j, lane] = t[lane]


@compiled
def coordinate_updates(pairs, linear, scale, prior, log_odds, log_prior, spike, mean, variance, inclusion, entropy):
    """One pass of exact coordinate updates over k of N independent spike-and-slab (or Gaussian) vectors.

    With l = h_k - sum_{j != k} A_kj <x_j>, p = A_kk + prior_k: slab N(l / p, 1 / p),
    logit gamma = log_odds_k + (log_prior_k + l^2 / p - log p) / 2; without spike gamma stays as it is.
    ``pairs`` (N or 1, >= K (K + 1) / 2) times ``scale`` is A; ``prior``, ``log_odds``, ``log_prior``
    (N or 1, K). In place: slab ``mean``, ``variance``, ``inclusion`` (N, K). ``entropy`` (N,) receives
    sum_k gamma (1 + log variance) / 2 - gamma log gamma - (1 - gamma) log (1 - gamma).
    """
    n_factors = linear.shape[1]
    n_pairs = n_factors * (n_factors + 1) // 2
    a, h = np.empty((n_pairs, LANES)), np.empty((n_factors, LANES))
    p, o, c = np.empty((n_factors, LANES)), np.empty((n_factors, LANES)), np.empty((n_factors, LANES))
    m, g, w = np.empty((n_factors, LANES)), np.empty((n_factors, LANES)), np.empty((n_factors, LANES))
    v, total, l = np.empty((n_factors, LANES)), np.empty(LANES), np.empty(LANES)
    one = np.ones(1)
    for first in range(0, linear.shape[0], LANES):
        _load(pairs, first, scale, a)
        _load(linear, first, one, h)
        _load(prior, first, one, p)
        _load(log_odds, first, one, o)
        _load(log_prior, first, one, c)
        _load(mean, first, one, m)
        _load(inclusion, first, one, g)
        for lane in range(LANES):
            total[lane] = 0.0
        for k in range(n_factors):
            for lane in range(LANES):
                w[k, lane] = m[k, lane] * g[k, lane]
        for k in range(n_factors):
            for lane in range(LANES):
                l[lane] = h[k, lane]
            for j in range(n_factors):
                if j != k:
                    row = a[k * (k + 1) // 2 + j] if j < k else a[j * (j + 1) // 2 + k]
                    for lane in range(LANES):
                        l[lane] -= row[lane] * w[j, lane]
            diagonal = a[k * (k + 1) // 2 + k]
            for lane in range(LANES):
                precision = diagonal[lane] + p[k, lane]
                log_precision = log(precision)
                v[k, lane] = 1.0 / precision
                m[k, lane] = l[lane] / precision
                gamma = g[k, lane]
                uncertainty = 0.0
                if spike:
                    logit = o[k, lane] + 0.5 * (c[k, lane] + l[lane] * m[k, lane] - log_precision)
                    size = min(abs(logit), 500.0)
                    e = exp(-size)
                    small = e / (1.0 + e)
                    gamma = 1.0 - small if logit > 0.0 else small
                    uncertainty = log1p_small(e) + size * small
                g[k, lane] = gamma
                w[k, lane] = gamma * m[k, lane]
                total[lane] += 0.5 * gamma * (1.0 - log_precision) + uncertainty
        for lane in range(min(LANES, linear.shape[0] - first)):
            entropy[first + lane] = total[lane]
            for k in range(n_factors):
                mean[first + lane, k] = m[k, lane]
                variance[first + lane, k] = v[k, lane]
                inclusion[first + lane, k] = g[k, lane]


# Bounds of non-Gaussian likelihoods: precision u, u times pseudo-data, and the sum of x-free terms -----


@compiled
def jaakkola(values, second, precision, weighted):
    """xi^2 = E[x^2]: u = tanh(xi / 2) / (2 xi), u y^ = y - 1/2; returns sum of log sigma(xi) - xi / 2 + u xi^2 / 2."""
    total = 0.0
    product = np.empty(values.shape[1])
    for n in range(values.shape[0]):
        y, x2, u, r = values[n], second[n], precision[n], weighted[n]
        linear = 0.0
        for d in range(y.size):
            yd = np.float64(y[d])
            o = 1.0 if yd >= 0.0 else 0.0
            square = max(np.float64(x2[d]), 1e-10)
            xi = math.sqrt(square)
            e = exp(-min(xi, 600.0))
            ud = (1.0 - e) / ((1.0 + e) * (xi + xi))
            product[d] = 1.0 + o * e
            linear += o * 0.5 * (ud * square - xi)
            u[d] = o * ud
            r[d] = o * (yd - 0.5)
        # log of a product of at most 512 factors in [1, 2]: one logarithm instead of 512
        for first in range(0, y.size, 512):
            block = product[first : first + 512]
            p = 1.0
            for d in range(block.size):
                p *= block[d]
            linear -= math.log(p)
        total += linear
    return total


@inlined
def _softplus_parts(x):
    """Return log(1 + e^x) and sigma(x)."""
    e = exp(-min(abs(x), 600.0))
    return max(x, 0.0) + log1p_small(e), (1.0 if x > 0.0 else e) / (1.0 + e)


@compiled
def poisson(values, x, precision, weighted):
    """zeta = x: u = 1/4 + 0.17 y, u y^ = u zeta - f'(zeta); returns the sum of -f(zeta) + zeta f' - u zeta^2 / 2.

    f(x) = r(x) - y log r(x), r(x) = log(1 + e^x); log y! is left out. zeta is kept above -30.
    """
    total = 0.0
    for n in range(values.shape[0]):
        y, zeta, u, r = values[n], x[n], precision[n], weighted[n]
        for d in range(y.size):
            yd = np.float64(y[d])
            o = 1.0 if yd >= 0.0 else 0.0
            yd = yd if yd >= 0.0 else 0.0
            z = max(np.float64(zeta[d]), -30.0)
            rate, s = _softplus_parts(z)
            slope = s * (1.0 - yd / rate)
            kappa = 0.25 + 0.17 * yd
            total += o * (yd * log(rate) - rate + z * slope - 0.5 * kappa * z * z)
            u[d] = o * kappa
            r[d] = o * (kappa * z - slope)
    return total


@compiled
def boehning(values, x, pseudo):
    """zeta = x, u = 1/4: writes y^ = zeta + 4 (y - sigma(zeta)), 0 where missing; returns the x-free sum."""
    total = 0.0
    for n in range(values.shape[0]):
        y, zeta, out = values[n], x[n], pseudo[n]
        for d in range(y.size):
            yd = np.float64(y[d])
            o = 1.0 if yd >= 0.0 else 0.0
            z = np.float64(zeta[d])
            rate, s = _softplus_parts(z)
            slope = s - yd
            total += o * (yd * z - rate + z * slope - 0.125 * z * z)
            out[d] = o * (z - 4.0 * slope)
    return total


@inlined
def _squared_error(y, x, link):
    """Return (y - g(x))^2: g the identity (0), the logistic function (1), or log(1 + e^x) (2)."""
    if link == 0:
        return (y - x) * (y - x)
    rate, s = _softplus_parts(x)
    r = y - (s if link == 1 else rate)
    return r * r


@compiled
def residual_squares(values, lowest, fit, scores, loadings, intercept, weight, link, out):
    """out_0 += sum of weighted squared errors of g(fit); out_k+1 += those of g(b_d + w_kd z_nk)."""
    for n in range(values.shape[0]):
        y, x = values[n], fit[n]
        total = 0.0
        for d in range(y.size):
            e = _squared_error(np.float64(y[d]), x[d], link)
            total += weight[d] * e if y[d] >= lowest else 0.0
        out[0] += total
        for k in range(loadings.shape[0]):
            w, z = loadings[k], scores[n, k]
            total = 0.0
            for d in range(y.size):
                e = _squared_error(np.float64(y[d]), intercept[d] + w[d] * z, link)
                total += weight[d] * e if y[d] >= lowest else 0.0
            out[k + 1] += total
