"""Samples that a neural decoder makes of latent variables, which are a smooth function of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.kinds import KINDS
from factorflow.data.ingest import checks
from factorflow.data.ingest.align import number_names
from factorflow.data.simulation.factor_models import specifications
from factorflow.data.simulation.noise import Noise, Simulation, check_count, share_of
from factorflow.data.store.view_source import ViewSource
from factorflow.data.store.writer import RowTruth, Truth
from factorflow.errors import InputError
from factorflow.kernels.sites import SIMULATORS

INPUTS, PARAMETERS, LATENT = (SIMULATORS[i] for i in range(3))
FIRST_VIEW = 10
"""Purposes of noise; view ``i`` has site number ``FIRST_VIEW + 2 i`` for values, the next for gaps."""

WAVES = 24
"""Random cosines that the smooth function is a sum of (for infinitely many: a Gaussian process)."""

DEFAULT_VIEWS = {"pixels": ("bernoulli", 60)}

FloatArray = NDArray[np.float64]


def gplvm(
    n_samples: int,
    noise: Noise,
    views: Mapping[str, tuple[str, int]] = DEFAULT_VIEWS,
    n_factors: int = 2,
    n_inputs: int = 2,
    length: float = 1.0,
    scatter: float = 0.2,
    hidden: int = 12,
    strength: float = 2.0,
    deviation: float = 0.5,
    missing: float | Mapping[str, float] = 0.0,
    inputs: str | None = None,
) -> Simulation:
    """Simulate ``x ~ N(0, I)``, ``z = f(x) + noise``, and views that a layer of tanh units makes of z.

    Gaussian views: the decoder plus noise; Bernoulli ones: success probability sigmoid of it.

    Parameters
    ----------
    n_samples : int
        Rows (N).
    views : mapping of str to (likelihood, n_features)
        The views in order; gaussian or bernoulli.
    n_factors, n_inputs : int
        Latent variables (Q) and inputs (R).
    length : float
        Length on which f changes (that of a squared exponential kernel).
    scatter : float
        Standard deviation of z around f(x); f has variance 1 - scatter^2.
    hidden : int
        Hidden units of each decoder.
    strength : float
        Standard deviation of the decoders' outputs, about.
    deviation : float
        Standard deviation of the noise of Gaussian views.
    missing : float, or mapping of view to float
        Share of the entries that are missing.
    inputs : str, optional
        Name of a covariate view that the inputs are written to; left out: they are kept with the truth only.
    """
    specs = specifications(views)
    _check(specs, n_factors, n_inputs, hidden, length, scatter)
    if inputs is not None:
        checks.check_view_names([*specs, inputs])
    generator = noise.generator(PARAMETERS)
    waves = generator.standard_normal((n_factors, WAVES, n_inputs)) / length
    phases = generator.uniform(0.0, 2.0 * np.pi, (n_factors, WAVES))
    heights = generator.standard_normal((n_factors, WAVES))
    heights *= np.sqrt(2.0 * (1.0 - scatter**2) / (heights**2).sum(axis=1, keepdims=True))
    world = _LatentModel(noise, waves, phases, heights, scatter)
    sources: list[ViewSource] = []
    arrays: dict[str, tuple[tuple[str, ...], Any]] = {}
    for index, (name, (likelihood, n_features)) in enumerate(specs.items()):
        first = generator.standard_normal((n_factors, hidden))
        second = generator.standard_normal((hidden, n_features)) * strength / np.sqrt(hidden)
        bias = generator.standard_normal((2, max(hidden, n_features)))
        parts = first, bias[0, :hidden], second, bias[1, :n_features]
        arrays |= {
            f"decoder_hidden_{name}": (("factor", f"unit_{name}"), parts[0]),
            f"decoder_hidden_bias_{name}": ((f"unit_{name}",), parts[1]),
            f"decoder_mean_{name}": ((f"unit_{name}", f"feature_{name}"), parts[2]),
            f"decoder_mean_bias_{name}": ((f"feature_{name}",), parts[3]),
        }
        spread = deviation if likelihood == "gaussian" else None
        view = _View(world, index, parts, spread, share_of("missing", missing, name))
        sources.append(ViewSource(name, number_names("feature", n_features), view.read, KINDS[likelihood]))
    if inputs is not None:
        sources.append(ViewSource(inputs, number_names("input", n_inputs), world.inputs, KINDS["covariate"]))
    rows = {
        "scores": RowTruth("factor", n_factors, world.scores),
        "inputs": RowTruth("input", n_inputs, world.inputs),
    }
    return Simulation(sources, Truth(arrays, rows))


@dataclass(frozen=True)
class _LatentModel:
    """The smooth function f, and what goes through it: rows from ``start`` to ``stop`` (B of them).

    ``f_q(x) = sum_w heights[q, w] cos(waves[q, w] . x + phases[q, w])``; waves (Q, W, R), the others (Q, W).
    """

    noise: Noise
    waves: FloatArray
    phases: FloatArray
    heights: FloatArray
    scatter: float

    def inputs(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return x, (B, R)."""
        return self.noise.rows(INPUTS, start, stop, self.waves.shape[2])

    def scores(self, start: int, stop: int) -> FloatArray:
        """Return z, (B, Q)."""
        x, n_factors = self.inputs(start, stop).astype(np.float64), len(self.waves)
        z = self.scatter * self.noise.rows(LATENT, start, stop, n_factors).astype(np.float64)
        for q in range(n_factors):
            for wave, phase, height in zip(self.waves[q], self.phases[q], self.heights[q], strict=True):
                z[:, q] += height * np.cos((x * wave).sum(axis=1) + phase)
        return z


@dataclass(frozen=True)
class _View:
    """A view: the output of a decoder of the scores.

    ``index`` is the place among the views, ``parts`` are the decoder's weights, as of `_decode`,
    ``deviation`` that of gaussian noise (None: binary entries), ``missing`` the share of missing entries.
    """

    world: _LatentModel
    index: int
    parts: tuple[FloatArray, FloatArray, FloatArray, FloatArray]
    deviation: float | None
    missing: float

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return the entries, (B, D), NaN where they are missing."""
        noise, y = self.world.noise, _decode(self.world.scores(start, stop), *self.parts)
        site, gaps = (SIMULATORS[FIRST_VIEW + 2 * self.index + i] for i in range(2))
        if self.deviation is not None:
            y += self.deviation * noise.rows(site, start, stop, y.shape[1])
        else:
            y[:] = noise.rows(site, start, stop, y.shape[1], "uniform") * (1.0 + np.exp(-y)) < 1.0
        out = y.astype(np.float32)
        if self.missing:
            out[noise.rows(gaps, start, stop, y.shape[1], "uniform") < self.missing] = np.nan
        return out


def _decode(
    z: FloatArray, first: FloatArray, bias: FloatArray, second: FloatArray, level: FloatArray
) -> FloatArray:
    """Return the decoder's outputs; no matrix product, whose bits depend on the number of rows."""
    y = np.tile(level, (len(z), 1))
    for unit in range(len(bias)):
        inner = bias[unit] + sum(z[:, q] * first[q, unit] for q in range(len(first)))
        y += np.tanh(inner)[:, None] * second[unit]
    return y


def _check(
    specs: Mapping[str, tuple[str, int]],
    n_factors: int,
    n_inputs: int,
    hidden: int,
    length: float,
    scatter: float,
) -> None:
    for name, (likelihood, _) in specs.items():
        if likelihood not in ("gaussian", "bernoulli"):
            raise InputError(
                f"likelihood of view {name!r}", likelihood, "gaussian or bernoulli", "Choose one."
            )
    for what, value in (("n_factors", n_factors), ("n_inputs", n_inputs), ("hidden", hidden)):
        check_count(what, value)
    if not (0.0 <= scatter < 1.0 and length > 0.0):
        raise InputError(
            "scatter, length", f"{scatter}, {length}", "from 0 to below 1, and above 0", "For example 0.2, 1."
        )
