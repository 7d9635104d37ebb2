"""One feature of a probit factor model: its spike-and-slab loadings given the utilities (appendix A)."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from factorflow.kernels.scalar.normal import overrelaxed
from factorflow.kernels.scalar.pivots import cholesky, colour, sweep


def _fill_precision(matrix, gram, cross, square, precision):
    """Set matrix to [[Q + I / tau^2, j], [j', sum of y^2]]; Q comes packed by rows of its upper triangle."""
    size = cross.size
    position = 0
    for i in range(size):
        for j in range(i, size):
            matrix[i, j] = gram[position]
            matrix[j, i] = gram[position]
            position += 1
        matrix[i, i] += precision
        matrix[i, size] = cross[i]
        matrix[size, i] = cross[i]
    matrix[size, size] = square


def _inclusion(matrix, loadings, odds, precision, uniform):
    """Gibbs update of c_k, k by k, with z integrated out: loadings become 1 or 0 as c_k says.

    The matrix is swept on the included, so that gamma_k^-2 and g_k of the source stand in it: as they are
    for the others, and by way of the inverse for the included.
    """
    for k in range(loadings.size):
        last = loadings.size
        if loadings[k] != 0.0:
            curvature = -1.0 / matrix[k, k]
            force = matrix[k, last] * curvature
        else:
            curvature = matrix[k, k]
            force = matrix[k, last]
        exponent = min(0.5 * force * force / curvature, 700.0)
        ratio = odds * math.sqrt(precision / curvature) * math.exp(exponent)
        included = uniform[k] * (1.0 + ratio) < ratio
        if included != (loadings[k] != 0.0):
            sweep(matrix, k, 1.0 if included else -1.0)
            loadings[k] = 1.0 if included else 0.0


def feature_loadings(gram, cross, square, chi_square, odds, variance, uniform, normal, loadings, scratch):
    """Draw (c_n, z_n) of one feature from p(z_n, c_n | y_n, F, tau^2, b).

    Between c and z the utilities are rescaled by g, with g^2 (sum of y^2 - j' Sigma j) ~ chi^2 of as many
    degrees of freedom as there are observations: the Haar move of parameter-expanded data augmentation
    (Liu and Wu 1999), exact, and free because the utilities are drawn anew in the next sweep.

    z is overrelaxed: with z = mean + L^-T e, e of an entry that stays included lies opposite to what it was.
    Given the utilities, c and g do not depend on e, so that their joint distribution is left invariant.

    Parameters
    ----------
    gram : (P,) array
        Q_n, packed.
    cross : (K + 1,) array
        j_n.
    square, chi_square : float
        Sum of y_n^2; the chi-square variate (0: no rescaling).
    odds, variance : float
        b / (1 - b) and tau^2.
    uniform, normal : (K + 1,) arrays
    loadings : (K + 1,) array
        z_n (the offset last), changed in place; 0 where c_nk = 0.
    scratch : (K + 4, K + 2) array
    """
    size = cross.size
    matrix, mean, noise = scratch[: size + 1], scratch[size + 1], scratch[size + 2]
    precision = 1.0 / variance
    _fill_precision(matrix, gram, cross, square, precision)
    cholesky(matrix, loadings)
    _overrelax(matrix, loadings, normal, noise)
    _fill_precision(matrix, gram, cross, square, precision)
    for k in range(size):
        if loadings[k] != 0.0:
            sweep(matrix, k, 1.0)
    _inclusion(matrix, loadings, odds, precision, uniform)
    remainder = matrix[size, size]
    scale = math.sqrt(chi_square / remainder) if chi_square > 0.0 and remainder > 0.0 else 1.0
    for k in range(size):
        mean[k] = scale * matrix[k, size]
    _fill_precision(matrix, gram, cross, square, precision)
    cholesky(matrix, loadings)
    colour(matrix, loadings, noise)
    for k in range(size):
        if loadings[k] != 0.0:
            loadings[k] = mean[k] + noise[k]


def _overrelax(matrix, loadings, normal, noise):
    """Set noise to standard normals, opposite to those that the loadings before stand for.

    These are e = L'(z_+ - mean) = L' z_+ - L^-1 j_+; j is the last column, L^-1 j is left there.
    """
    size = loadings.size
    for i in range(size):
        noise[i] = normal[i]
        if loadings[i] != 0.0:
            total = matrix[i, size]
            for m in range(i):
                if loadings[m] != 0.0:
                    total -= matrix[i, m] * matrix[m, size]
            matrix[i, size] = total / matrix[i, i]
            before = -matrix[i, size]
            for m in range(i, size):
                before += matrix[m, i] * loadings[m]
            noise[i] = overrelaxed(before, normal[i])


def loop_features(gram, cross, squares, chi_squares, odds, variance, uniform, normal, loadings):  # fmt: skip
    """Loop `feature_loadings` over a run of features."""
    size = loadings.shape[1] + 1
    scratch = np.empty((size + 2, size))
    for n in range(loadings.shape[0]):
        feature_loadings(gram[n], cross[n], squares[n], chi_squares[n], odds, variance, uniform[n], normal[n],
                         loadings[n], scratch)  # fmt: skip
