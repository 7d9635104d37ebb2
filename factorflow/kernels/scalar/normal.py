"""The normal distribution on scalars: distribution function, quantile, and draws truncated to the positive.

`ndtr` and `fast_exp` have no branches and call no library, so that a loop over features becomes vector
code; quantiles follow Wichura's AS 241 [1]_. Relative errors are a few units of 1e-16 (`ndtr`: times
1 + x^2 / 2, that of the exponential's argument). `overrelaxed` and `overrelaxed_tail` make of the noise of
the value before, and of fresh noise, such that takes a draw to the other side of its mean.

References
----------
.. [1] M. J. Wichura, "Algorithm AS 241: the percentage points of the normal distribution",
   Applied Statistics 37 (1988) 477-484.
.. [2] S. L. Adler, "Over-relaxation method for the Monte Carlo evaluation of the partition function for
   multiquadratic actions", Physical Review D 23 (1981) 2901-2904.
.. [3] R. M. Neal, "Suppressing random walks in Markov chain Monte Carlo using ordered overrelaxation",
   in Learning in Graphical Models (1998) 205-228; section 3 for other distributions than the normal.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from factorflow.kernels.compile import options

FAR = 35.0
"""Beyond this many standard deviations a tail is drawn by `_far_tail`: the probability itself underflows."""
CENTRAL = 0.425
"""Quantiles of probabilities within this of one half take one rational function."""

RELAXATION = 0.9
"""A draw is correlated by minus this much with the value that it replaces (0: drawn anew)."""
_REFRESHED = math.sqrt(1.0 - RELAXATION * RELAXATION)

_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding and taking it away rounds to an integer
_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_KAPPA = 5.3


@options(forceinline=True)
def at_least_zero(x):
    """Return x, or 0 where it is negative (`max` does not compile for every device)."""
    return x if x > 0.0 else 0.0


@options(forceinline=True)
def fast_exp(x):
    """Return exp(x), for x clipped to -708 ... 708."""
    x = -708.0 if x < -708.0 else x
    x = 708.0 if x > 708.0 else x
    n = (x * _LOG2_E + _ROUND) - _ROUND
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = 2.5114870219497476e-08
    p = p * r + 2.7632640675430235e-07
    p = p * r + 2.755722495611072e-06
    p = p * r + 2.480148547921643e-05
    p = p * r + 1.9841269909219843e-04
    p = p * r + 1.3888888952318045e-03
    p = p * r + 8.333333333309526e-03
    p = p * r + 4.166666666648808e-02
    p = p * r + 0.16666666666666702
    p = p * r + 0.5000000000000019
    p = (p * r + 1.0) * r + 1.0
    return p * np.int64((np.int64(n) + np.int64(1023)) << np.int64(52)).view(np.float64)


@options(forceinline=True)
def scaled_tail(a):
    """Return Phi(-a) exp(a^2 / 2) for a >= 0: half the scaled complementary error function of a / sqrt(2).

    (1 + a) times it is a polynomial in (a - kappa) / (a + kappa), fitted at Chebyshev nodes (error 4e-16).
    """
    t = (a - _KAPPA) / (a + _KAPPA)
    p = -8.838251408716632e-10
    p = p * t - 7.368150446261187e-10
    p = p * t + 1.0761528139629392e-08
    p = p * t + 7.298435038029379e-09
    p = p * t - 8.363928420961594e-08
    p = p * t - 2.50153968977575e-08
    p = p * t + 5.88124103369435e-07
    p = p * t - 2.698250088330824e-07
    p = p * t - 3.904688796127989e-06
    p = p * t + 7.096339914847515e-06
    p = p * t + 1.8429180467218242e-05
    p = p * t - 9.538338609856606e-05
    p = p * t + 8.356015797737599e-05
    p = p * t + 6.088085320365988e-04
    p = p * t - 3.164414092078593e-03
    p = p * t + 8.799461894272827e-03
    p = p * t - 1.7196451772000843e-02
    p = p * t + 2.4611817447878225e-02
    p = p * t - 2.3475432458773808e-02
    p = p * t + 5.185267851236542e-03
    p = p * t + 3.433302813701415e-02
    p = p * t - 8.964564019973843e-02
    p = p * t + 0.45887581137438477
    return p / (1.0 + a)


@options(forceinline=True)
def ndtr(x):
    """Return the standard normal distribution function Phi(x)."""
    a = abs(x)
    tail = scaled_tail(a) * fast_exp(-0.5 * a * a)
    return 1.0 - tail if x > 0.0 else tail


def log_ndtr(x):
    """Return log Phi(x)."""
    if x > 0.0:
        return math.log1p(-scaled_tail(x) * fast_exp(-0.5 * x * x))
    return math.log(scaled_tail(-x)) - 0.5 * x * x


@options(forceinline=True)
def central_quantile(c):
    """Return the quantile of probability 1/2 + c, for abs(c) <= 0.425."""
    r = 0.180625 - c * c
    p = 2.5090809287301226727e3
    p = p * r + 3.3430575583588128105e4
    p = p * r + 6.7265770927008700853e4
    p = p * r + 4.5921953931549871457e4
    p = p * r + 1.3731693765509461125e4
    p = p * r + 1.9715909503065514427e3
    p = p * r + 1.3314166789178437745e2
    p = p * r + 3.3871328727963666080
    q = 5.2264952788528545610e3
    q = q * r + 2.8729085735721942674e4
    q = q * r + 3.9307895800092710610e4
    q = q * r + 2.1213794301586595867e4
    q = q * r + 5.3941960214247511077e3
    q = q * r + 6.8718700749205790830e2
    q = q * r + 4.2313330701600911252e1
    q = q * r + 1.0
    return c * p / q


def tail_quantile(p):
    """Return minus the quantile of a small probability p (below 0.075)."""
    r = math.sqrt(-math.log(p))
    if r <= 5.0:
        r -= 1.6
        a = 7.74545014278341407640e-4
        a = a * r + 2.27238449892691845833e-2
        a = a * r + 2.41780725177450611770e-1
        a = a * r + 1.27045825245236838258
        a = a * r + 3.64784832476320460504
        a = a * r + 5.76949722146069140550
        a = a * r + 4.63033784615654529590
        a = a * r + 1.42343711074968357734
        b = 1.05075007164441684324e-9
        b = b * r + 5.475938084995344946e-4
        b = b * r + 1.51986665636164571966e-2
        b = b * r + 1.48103976427480074590e-1
        b = b * r + 6.89767334985100004550e-1
        b = b * r + 1.67638483018380384940
        b = b * r + 2.05319162663775882187
        return a / (b * r + 1.0)
    r -= 5.0
    a = 2.01033439929228813265e-7
    a = a * r + 2.71155556874348757815e-5
    a = a * r + 1.24266094738807843860e-3
    a = a * r + 2.65321895265761230930e-2
    a = a * r + 2.96560571828504891230e-1
    a = a * r + 1.78482653991729133580
    a = a * r + 5.46378491116411436990
    a = a * r + 6.65790464350110377720
    b = 2.04426310338993978564e-15
    b = b * r + 1.42151175831644588870e-7
    b = b * r + 1.84631831751005468180e-5
    b = b * r + 7.86869131145613259100e-4
    b = b * r + 1.48753612908506148525e-2
    b = b * r + 1.36929880922735805310e-1
    b = b * r + 5.99832206555887937690e-1
    return a / (b * r + 1.0)


def ndtri(p):
    """Return the standard normal quantile of p, 0 < p < 1."""
    c = p - 0.5
    if abs(c) <= CENTRAL:
        return central_quantile(c)
    tail = tail_quantile(p if c < 0.0 else 1.0 - p)
    return -tail if c < 0.0 else tail


def _far_tail(a, u):
    """Return y >= 0 with Phi(-a - y) = u Phi(-a), for a large, by Newton's method on logarithms."""
    y = -math.log(u) / a
    start = math.log(scaled_tail(a))
    for _ in range(4):
        mills = scaled_tail(a + y)
        excess = y * (a + 0.5 * y) - math.log(mills) + start + math.log(u)
        y = at_least_zero(y - excess * mills * 2.5066282746310002)
    return y


def positive_tail(mean, u, q):
    """Return a normal of this mean, truncated to y >= 0, where q = u Phi(mean) lies outside the centre."""
    if mean < -FAR:
        return _far_tail(-mean, u)
    tail = tail_quantile(1.0 - q if q > 0.5 else q)
    return at_least_zero(mean - tail if q > 0.5 else mean + tail)


def positive_normal(mean, u):
    """Return a normal of this mean and variance 1, truncated to y >= 0, from a uniform u.

    By inversion of the upper tail: y = mean - Phi^-1(u Phi(mean)).
    """
    q = u * ndtr(mean)
    c = q - 0.5
    if abs(c) <= CENTRAL and mean >= -FAR:
        return at_least_zero(mean - central_quantile(c))
    return positive_tail(mean, u, q)


@options(forceinline=True)
def overrelaxed(before, fresh):
    """Return standard normal noise that lies opposite to that of the value before (Adler [2]_).

    Both given as (value - mean) / standard deviation under the distribution to draw from. That is left as it
    is, as by an independent draw; what a draw adds to the walk from sweep to sweep is taken back by the next.
    """
    return _REFRESHED * fresh - RELAXATION * before


def overrelaxed_tail(mean, y, u):
    """Return the uniform for `positive_normal` that lies opposite to that of the value before (Neal [3]_).

    The value before, y, is u' = Phi(mean - y) / Phi(mean) of the distribution from its upper end; the new one
    is 1 - u' moved by noise, and folded back where it leaves (0, 1): a kernel symmetric in the two.
    """
    above = y - mean
    if mean < 0.0:  # either probability may underflow, their ratio does not
        before = scaled_tail(above) / scaled_tail(-mean) * fast_exp(-0.5 * y * (above - mean))
    else:
        before = ndtr(-above) / ndtr(mean)
    moved = abs(1.0 - before + _REFRESHED * (u - 0.5))
    moved = 2.0 - moved if moved > 1.0 else moved
    return moved if moved > 1e-17 else 1e-17
