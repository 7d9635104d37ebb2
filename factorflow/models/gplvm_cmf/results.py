"""Results of a GP-LVM-CMF: variables, predictions, and new data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from factorflow.core.block import Array
from factorflow.kernels.random import Step
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Variable
from factorflow.models.gplvm_cmf import decoders
from factorflow.models.gplvm_cmf.compare import FAMILIES
from factorflow.models.gplvm_cmf.settings import Settings, View, decoder
from factorflow.models.gplvm_cmf.state import Globals

NODES, PRIOR, OBSERVED = MODELS[11], MODELS[12], MODELS[13]

N_NODES = 32
"""Draws of z (and as many mirrored) that a prediction averages over: the same of every row."""


@dataclass(frozen=True)
class Row:
    """What is stored of rows: mean and variance of z; of X, where there is a process."""

    mean: Float64[np.ndarray, "B Q"]
    variance: Float64[np.ndarray, "B Q"]
    inputs: Float64[np.ndarray, "B R"]
    spread: Float64[np.ndarray, "B R"]


DECODER = {
    "hidden": (("factor", "unit"), "W_1, weights of the hidden units"),
    "hidden_bias": (("unit",), "b_1"),
    "mean": (("unit", ""), "W_2: means of standardised values, or logits"),
    "mean_bias": (("",), "b_2"),
    "log_variance": (("unit", ""), "W_3: log variances of standardised values"),
    "log_variance_bias": (("",), "b_3"),
}
"""Parts of a decoder: dims (the empty one is the features'), and what they are."""


FIXED = {"location": "mean of a feature", "scale": "standard deviation of a feature"}
"""Variables by which values are standardised."""


def variables(settings: Settings) -> tuple[Variable, ...]:
    """Return the table of variables."""
    score = ("obs", "factor")
    out = [
        Variable("scores", score, "z, mean", lambda row: row.mean, rows=True),
        Variable("scores_variance", score, "z, variance", lambda row: row.variance, rows=True),
        Variable(
            "comparison",
            ("coupling",),
            "bound a row (nats) of q(z) coupled, diagonal and full, on the same decoders",
            lambda g: _comparison(g, 0),
        ),
        Variable(
            "comparison_error",
            ("coupling",),
            "standard error of the difference to the model's own coupling",
            lambda g: _comparison(g, 1),
        ),
    ]
    if settings.coupling == "gp":
        out += _process_variables(settings)
    for view in settings.views:
        out += _view_variables(view)
    return tuple(out)


def _comparison(g: Globals, column: int) -> Float64[np.ndarray, " F"]:
    return np.full(len(FAMILIES), np.nan) if g.comparison is None else g.comparison[:, column]


def _process_variables(settings: Settings) -> list[Variable]:
    """Return the variables of the process; NaN where a run was stopped before it was there."""
    q, r, m = settings.n_factors, settings.n_inputs, settings.n_inducing

    def process_value(name: str, shape: tuple[int, ...], *, log: bool = False) -> Callable[[Globals], Array]:
        def find(g: Globals) -> Array:
            if not g.coupled:
                return np.full(shape, np.nan)
            return np.exp(g.values[name]) if log else g.values[name]

        return find

    out = [
        Variable("inputs", ("obs", "input"), "phi, mean of X", lambda row: row.inputs, rows=True),
        Variable(
            "inputs_variance", ("obs", "input"), "Phi, variance of X", lambda row: row.spread, rows=True
        ),
        Variable("kernel_length", ("input",), "l_r", process_value("log_length", (r,), log=True)),
        Variable("kernel_variance", (), "s2", process_value("log_variance", (), log=True)),
        Variable("inducing_inputs", ("inducing", "input"), "Z", process_value("inducing", (m, r))),
        Variable(
            "inducing_values", ("inducing", "factor"), "kappa, mean of w = L^-1 u", process_value("w", (m, q))
        ),
        Variable("coupling_noise", ("factor",), "s_q^2", process_value("log_noise", (q,), log=True)),
    ]
    for name in settings.given:
        for word, doc in FIXED.items():
            out.append(Variable(f"{word}_{name}", (f"feature_{name}",), doc, _standardisation_of(word, name)))
    return out


def _view_variables(view: View) -> list[Variable]:
    """Return the variables of a view: its decoder, and what its values are standardised by."""
    feature, out = f"feature_{view.name}", []
    for part, (dims, doc) in DECODER.items():
        if view.likelihood == "bernoulli" and part.startswith("log_variance"):
            continue
        key, dim_names = decoder(view.name, part), tuple(dim or feature for dim in dims)
        out.append(Variable(f"decoder_{part}_{view.name}", dim_names, doc, _value(key)))
    if view.likelihood == "gaussian":
        for word, doc in FIXED.items():
            out.append(Variable(f"{word}_{view.name}", (feature,), doc, _standardisation_of(word, view.name)))
    return out


def _value(key: str) -> Callable[[Globals], Array]:
    return lambda g: g.values[key]


def _standardisation_of(word: str, view: str) -> Callable[[Globals], Array]:
    return lambda g: getattr(g.fixed, word)[view]


def coords(settings: Settings) -> dict[str, list[str]]:
    """Return the labels of the dims that are the model's own."""
    labels: dict[str, list[str]] = {
        "unit": [f"unit{i + 1}" for i in range(settings.hidden)],
        "coupling": list(FAMILIES),
    }
    if settings.coupling == "gp":
        labels["input"] = [f"Input{i + 1}" for i in range(settings.n_inputs)]
        labels["inducing"] = [f"point{i + 1}" for i in range(settings.n_inducing)]
    return labels


def predict(
    settings: Settings, rows: Mapping[str, Array], record: Mapping[str, Array], name: str
) -> tuple[Float64[np.ndarray, "B D"], Float64[np.ndarray, "B D"]]:
    """Return mean and standard deviation of a new observation of every entry, z averaged over q(z)."""
    view = next(view for view in settings.views if view.name == name)
    mean, sd = rows["scores"], np.sqrt(rows["scores_variance"])
    half = Step(0).normal(NODES, np.arange(N_NODES), settings.n_factors)
    first = second = np.zeros((1, 1))
    for node in np.concatenate([half, -half]):
        centre, variance = _observe(settings, record, view, mean + sd * node)
        first, second = first + centre / (2 * N_NODES), second + (variance + centre**2) / (2 * N_NODES)
    return np.asarray(first), np.sqrt(np.maximum(second - first**2, 0.0))


def generate(
    settings: Settings, record: Mapping[str, Array], n_samples: int, seed: int
) -> dict[str, Float64[np.ndarray, "N D"]]:
    """Return samples of the decoders, by view; ``scores`` are the z ~ N(0, I) that they were made of."""
    step, index = Step(seed), np.arange(n_samples)
    z = step.normal(PRIOR, index, settings.n_factors)
    samples: dict[str, Float64[np.ndarray, "N D"]] = {"scores": z}
    for v, view in enumerate(settings.views):
        mean, variance = _observe(settings, record, view, z)
        if view.likelihood == "bernoulli":
            noise = step.uniform(OBSERVED, index + (v << 40), view.n_features)
            samples[view.name] = (noise < mean).astype(float)
        else:
            noise = step.normal(OBSERVED, index + (v << 40), view.n_features)
            samples[view.name] = mean + np.sqrt(variance) * noise
    return samples


def _observe(
    settings: Settings, record: Mapping[str, Array], view: View, z: Float64[np.ndarray, "B Q"]
) -> tuple[Float64[np.ndarray, "B D"], Float64[np.ndarray, "B D"]]:
    """Return mean and variance of y given z, from stored variables."""
    parts = {part: f"decoder_{part}_{view.name}" for part in DECODER}
    values = {decoder(view.name, part): record[key] for part, key in parts.items() if key in record}
    ones = np.ones(view.n_features)
    location, scale = record.get(f"location_{view.name}", 0.0 * ones), record.get(f"scale_{view.name}", ones)
    return decoders.observe(settings, values, view, z, location, scale)
