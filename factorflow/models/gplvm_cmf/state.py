"""State of a GP-LVM-CMF: parameters and their moments, what is fixed, what rows keep, what is added up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64

from factorflow.core.block import Array
from factorflow.models.contract import wide

Arrays = Mapping[str, Array]
"""Arrays by name; of rows they lead with the rows."""


@dataclass(frozen=True)
class Standardisation:
    """Location and scale of the features, from the first passes.

    Parameters
    ----------
    location, scale : mapping of str to (D,) array
        Per view (and covariate) mean and standard deviation of the features; a view's values enter as
        (y - location) / scale where they are Gaussian.
    basis : mapping of str to (D, L) array
        Per view, what its standardised values are multiplied by to give the components that z starts from.
    turn, centre : array or None
        X starts at (m - centre) turn, where m is the mean of z (Q,); None until that is known.
    """

    location: Mapping[str, Float64[np.ndarray, " D"]]
    scale: Mapping[str, Float64[np.ndarray, " D"]]
    basis: Mapping[str, Float64[np.ndarray, "D L"]] = field(metadata=wide())
    turn: Float64[np.ndarray, "Q R"] | None = None
    centre: Float64[np.ndarray, " Q"] | None = None


@dataclass(frozen=True)
class Cotangents:
    """What the first of two passes leaves for the second: derivatives of log r(w|z) - log q(w).

    Parameters
    ----------
    gram, shift : arrays
        With respect to G (Q, M, M) and h (Q, M), for each draw (S in front).
    values : mapping of str to array
        With respect to the parameters, at fixed G and h.
    """

    gram: Float64[np.ndarray, "S Q M M"]
    shift: Float64[np.ndarray, "S Q M"]
    values: Arrays
    bound: float


@dataclass(frozen=True)
class Globals:
    """Globals.

    Parameters
    ----------
    values : mapping of str to array
        Parameters, unbounded: decoders (`settings.decoder`), the kernel (``log_length`` (R,),
        ``log_variance`` (), ``inducing`` (M, R)), q(w) (``w`` (M, Q), ``w_factor`` (Q, M, M)), ``log_noise``
        (Q,) for log s_q^2, the network of r(X|z).
    first, second : mapping of str to array
        Adam's running means of each gradient and of its square.
    steps : mapping of str to array
        Adam's steps of each parameter so far, (); those of decoders go on from the warm-up.
    pending : Cotangents or None
        Between the two passes of a step.
    comparison : (3, 2) array or None
        Bound a row of q(z) coupled, diagonal and full on the same decoder, and its standard error.
    """

    values: Arrays
    first: Arrays
    second: Arrays
    fixed: Standardisation
    steps: Arrays = field(default_factory=dict)
    pending: Cotangents | None = None
    comparison: Float64[np.ndarray, "3 2"] | None = None

    @property
    def coupled(self) -> bool:
        """Whether the Gaussian process is there: not yet, while the decoders warm up."""
        return "inducing" in self.values


@dataclass(frozen=True)
class Local:
    """Local state of a block (B rows).

    Parameters
    ----------
    values : mapping of str to (B, ...) array
        ``inputs`` (B, R), phi, and ``spread`` (B, R (R + 1) / 2), F of Phi = F F' packed by rows, its
        diagonal in logarithms, or ``log_spread`` (B, R), log Phi of a diagonal one; or ``mean`` (B, Q)
        and ``log_sd`` (B, Q) or ``factor`` (B, Q (Q + 1) / 2), a Cholesky factor, packed alike.
    first, second : mapping of str to (B, ...) array
        Adam's running means.
    steps : (B,) array
        Adam's steps so far.
    """

    values: Arrays
    first: Arrays
    second: Arrays
    steps: Float64[np.ndarray, " B"]


@dataclass(frozen=True)
class Gradients:
    """Sum over rows of the bound, and its derivatives with respect to the parameters."""

    bound: float
    values: Arrays


@dataclass(frozen=True)
class Values:
    """Sum over rows of the bound; G (S, Q, M, M) and h (S, Q, M) of each draw where u is drawn.

    ``observed`` is the number of observed entries.
    """

    bound: float
    observed: float
    gram: Float64[np.ndarray, "S Q M M"] | None = None
    shift: Float64[np.ndarray, "S Q M"] | None = None


def initial_moments(values: Arrays) -> dict[str, Array]:
    """Return Adam's moments before the first step."""
    return {name: np.zeros_like(value) for name, value in values.items()}


def initial_steps(values: Arrays) -> dict[str, Array]:
    """Return Adam's steps before the first, of each parameter."""
    return {name: np.zeros(()) for name in values}
