"""Newton steps of nuisance parameters with normal priors."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from factorflow.core.block import Array
from factorflow.kernels.linalg import unpack

MOST = 0.5
"""Most that a nuisance parameter, a logarithm, moves in a pass: the state that its derivatives are taken at
moves as well."""
LEAST = 1e-3
"""Least curvature, in nats, that a Newton step is taken by."""


def newton_step(
    phi: Float64[Array, "D P"],
    derivatives: Float64[Array, "D P2"],
    mean: float | tuple[float, ...],
    sd: float,
) -> Float64[Array, "D P"]:
    """Return the nuisance parameters of each feature after one Newton step.

    phi ~ N(mean, sd^2), at its mode, given the derivatives of the expected log-likelihood
    (`Likelihood.phi_derivatives`). Where the curvature points the wrong way a step goes uphill; no parameter
    moves by more than `MOST`.
    """
    n, precision = phi.shape[1], sd**-2
    gradient = derivatives[:, :n] - precision * (phi - np.asarray(mean))
    information = precision * np.eye(n) - unpack(derivatives[:, n:], n)
    values, vectors = np.linalg.eigh(information)
    along = np.einsum("dij,di->dj", vectors, gradient) / np.maximum(np.abs(values), LEAST)
    step = np.clip(np.einsum("dij,dj->di", vectors, along), -MOST, MOST)
    return np.asarray(phi + step)
