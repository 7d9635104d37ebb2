"""Decoders p(y|z): one hidden layer of tanh units for each view, equations (9), (10), (11) and (19).

Written once, for NumPy arrays and PyTorch's tensors alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float64

from factorflow.core.block import Array
from factorflow.models.gplvm_cmf.settings import Settings, View, decoder

PARTS = ("hidden", "hidden_bias", "mean", "mean_bias", "log_variance", "log_variance_bias")
"""Parameters of a decoder; the last two of Gaussian views only."""

START_LOG_VARIANCE = -0.5
"""Of a standardised feature: below 0, the log variance of a decoder that explains nothing."""


def start(
    settings: Settings,
    view: View,
    noise: Float64[np.ndarray, "Q H"],
    heads: Float64[np.ndarray, "D H"],
    location: Float64[np.ndarray, " D"],
) -> dict[str, Array]:
    """Return the first parameters of the decoder of a view, which explains nothing but the means.

    Parameters
    ----------
    noise, heads : arrays
        Standard normals.
    location : array
        Means of the features (their frequencies, of a Bernoulli view).
    """
    d, h = view.n_features, settings.hidden
    values = [noise / np.sqrt(settings.n_factors), np.zeros(h), 0.1 * heads.T / np.sqrt(h)]
    if view.likelihood == "gaussian":
        values += [np.zeros(d), np.zeros((h, d)), np.full(d, START_LOG_VARIANCE)]
    else:
        p = np.clip(location, 0.01, 0.99)
        values.append(np.log(p / (1.0 - p)))
    return {decoder(view.name, part): np.ascontiguousarray(v) for part, v in zip(PARTS, values, strict=False)}


def outputs(
    values: Mapping[str, Any], view: View, z: Any, tanh: Callable[[Any], Any] = np.tanh
) -> tuple[Any, Any]:
    """Return what a decoder makes of latent variables.

    Parameters
    ----------
    values : mapping of str to array
        Parameters (`PARTS`).
    z : (..., Q) array
        Latent variables.

    Returns
    -------
    mean, log_variance : (..., D) arrays
        Of standardised values (the variance without its floor); of a Bernoulli view logits, and None.
    """
    part = {name: values.get(decoder(view.name, name)) for name in PARTS}
    hidden = tanh(z @ part["hidden"] + part["hidden_bias"])
    mean = hidden @ part["mean"] + part["mean_bias"]
    if view.likelihood == "bernoulli":
        return mean, None
    return mean, hidden @ part["log_variance"] + part["log_variance_bias"]


def observe(
    settings: Settings,
    values: Mapping[str, Any],
    view: View,
    z: Float64[np.ndarray, "B Q"],
    location: Float64[np.ndarray, " D"],
    scale: Float64[np.ndarray, " D"],
) -> tuple[Float64[np.ndarray, "B D"], Float64[np.ndarray, "B D"]]:
    """Return mean and variance of y given z, on the data scale."""
    mean, log_variance = outputs(values, view, z)
    if view.likelihood == "bernoulli":
        p = 0.5 * (1.0 + np.tanh(0.5 * mean))
        return p, p * (1.0 - p)
    return location + scale * mean, scale**2 * (settings.noise_floor + np.exp(log_variance))
