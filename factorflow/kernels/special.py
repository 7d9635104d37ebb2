"""Special functions, from SciPy or CuPy by array namespace, and terms of the bound built from them."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np
from array_api_compat import is_cupy_array
from jaxtyping import Float

from factorflow.core.block import Array
from factorflow.kernels.device import namespace, on_device


def _special_function(name: str, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    if on_device(x) and is_cupy_array(x):
        from cupyx.scipy import special as cupy_special

        return getattr(cupy_special, name)(x)
    return namespace(x).asarray(getattr(_scipy_special(), name)(np.asarray(x)))


@cache
def _scipy_special() -> ModuleType:
    from scipy import special

    return special


def digamma(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return the derivative of log Gamma, element by element."""
    return _special_function("digamma", x)


def gammaln(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return log Gamma, element by element."""
    return _special_function("gammaln", x)


def trigamma(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return the derivative of the digamma function, element by element: Hurwitz's zeta of 2."""
    if on_device(x) and is_cupy_array(x):
        from cupyx.scipy import special as cupy_special

        return cupy_special.polygamma(1, x)
    return namespace(x).asarray(_scipy_special().zeta(2.0, np.asarray(x)))


def log_ndtr(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return the logarithm of the standard normal distribution function, element by element."""
    return _special_function("log_ndtr", x)


def softplus(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return log(1 + e^x) without overflow."""
    xp = namespace(x)
    return xp.where(x > 0, x, 0.0) + xp.log1p(xp.exp(-xp.abs(x)))


def logistic(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return 1 / (1 + e^-x) with small relative error, without overflow."""
    xp = namespace(x)
    small = xp.exp(-xp.abs(x))
    return xp.where(x > 0, 1.0, small) / (1.0 + small)


def gamma_term(
    shape: Float[Array, "*shape"],
    rate: Float[Array, "*shape"],
    prior_shape: float,
    prior_rate: float | Float[Array, "#*shape"],
) -> Float[Array, "*shape"]:
    """Return E[log p - log q] of Gamma variables: q = Ga(shape, rate), p = Ga(prior_shape, prior_rate)."""
    xp = namespace(rate)
    mean, log_rate = shape / rate, xp.log(rate)
    first = xp.asarray([prior_shape], dtype=rate.dtype)
    return (
        prior_shape * (float(np.log(prior_rate)) if isinstance(prior_rate, float) else xp.log(prior_rate))
        - gammaln(first)[0]
        + (prior_shape - shape) * (digamma(shape) - log_rate)
        - (prior_rate - rate) * mean
        - shape * log_rate
        + gammaln(shape)
    )


def expected_log_beta(
    on: Float[Array, "*shape"], off: Float[Array, "*shape"]
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """Return E[log theta] and E[log(1 - theta)] of theta ~ Be(on, off)."""
    total = digamma(on + off)
    return digamma(on) - total, digamma(off) - total


def beta_term(
    on: Float[Array, "*shape"],
    off: Float[Array, "*shape"],
    prior_on: float | Float[Array, "#*shape"],
    prior_off: float | Float[Array, "#*shape"],
) -> Float[Array, "*shape"]:
    """Return E[log p - log q] of Beta variables: q = Be(on, off), p = Be(prior_on, prior_off)."""
    from scipy.special import betaln

    log_on, log_off = expected_log_beta(on, off)
    log_norm = gammaln(on) + gammaln(off) - gammaln(on + off)
    norm = betaln(prior_on, prior_off)
    prior_norm: Array = norm if norm.ndim else float(norm)  # other namespaces take no scalar of NumPy
    return (prior_on - on) * log_on + (prior_off - off) * log_off - prior_norm + log_norm
