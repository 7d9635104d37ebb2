"""Draws of sparse group factor analysis, array side: loadings of features, gamma variates."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Integer

from factorflow.kernels.compile import compile_scalar
from factorflow.kernels.random import Step
from factorflow.models.sparse_gfa.kernels import gammas, plane_moves, spikes, uniforms


def uniform(
    step: Step, site: int, index: Integer[np.ndarray, " B"], words: int = 1
) -> Float64[np.ndarray, "B {words}"]:
    """Return what `Step.uniform` does, bit for bit, in a tenth of the time where it is little."""
    out = np.empty((len(index), words))
    seed, *rest = _counter(step, site)
    compile_scalar(uniforms.loop_uniforms)(seed, np.ascontiguousarray(index, np.uint64), *rest, out)
    return out


def _counter(step: Step, site: int) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Return what loops give to `philox_pair` beside numbers and words: seed, iteration, place."""
    return np.uint64(step.seed), np.uint64(step.iteration), np.uint64(site | (step.stream << 16))


def draw_gammas(
    step: Step, site: int, index: Integer[np.ndarray, " D"], shapes: Float64[np.ndarray, " D"]
) -> Float64[np.ndarray, " D"]:
    """Return draws of Gamma(shape, 1): each of the words of its index, as many as it takes."""
    out, numbers = np.empty(len(index)), np.ascontiguousarray(index, np.uint64)
    compile_scalar(gammas.loop_gammas)(np.ascontiguousarray(shapes), numbers, *_counter(step, site), out)
    return out


def gamma_marginals(
    halves: Float64[np.ndarray, " D"],
    rates: Float64[np.ndarray, " D"],
    shapes: Float64[np.ndarray, " A"],
    scales: Float64[np.ndarray, " P"],
    units: Float64[np.ndarray, "P D"],
    logs: Float64[np.ndarray, " P"],
) -> Float64[np.ndarray, "A P"]:
    """Return log p of data with x ~ Ga(a, a s unit) integrated out, see `gammas.loop_marginals`."""
    out = np.empty((len(shapes), len(scales)))
    arguments = (np.ascontiguousarray(a, np.float64) for a in (halves, rates, shapes, scales, units, logs))
    compile_scalar(gammas.loop_marginals)(*arguments, out)
    return out


def draw_loadings(
    pairs: Float64[np.ndarray, "#D Q"],
    cross: Float64[np.ndarray, "D L"],
    scale: Float64[np.ndarray, " D"],
    precision: Float64[np.ndarray, "*#D L"],
    shift: Float64[np.ndarray, " D"],
    odds: Float64[np.ndarray, "*#D K"] | None,
    noise: tuple[Float64[np.ndarray, "D K"], Float64[np.ndarray, "D L"]],
    loadings: Float64[np.ndarray, "D L"],
    *,
    backwards: bool = False,
) -> Float64[np.ndarray, "D L"]:
    """Return new loadings and coefficients, in place of ``loadings``; without ``odds`` there are no spikes.

    See `spikes.loop_features`; ``noise`` are uniforms and normals.
    """
    drawn = np.array(loadings, dtype=np.float64)
    rows = np.atleast_2d(precision)
    arguments = [np.array(a, dtype=np.float64, order="C") for a in (pairs, cross, scale, rows, shift)]
    uniform, normal = (np.array(a, order="C") for a in noise)
    of_one = np.atleast_2d(np.ones(uniform.shape[1]) if odds is None else np.array(odds, dtype=np.float64))
    compile_scalar(spikes.loop_features)(
        *arguments, of_one, odds is not None, backwards, uniform, normal, drawn
    )
    return drawn


def plane_equations(
    pairs: Float64[np.ndarray, "#D Q"],
    cross: Float64[np.ndarray, "D L"],
    scale: Float64[np.ndarray, " D"],
    precision: Float64[np.ndarray, " L"],
    shift: Float64[np.ndarray, " D"],
    n_factors: int,
    spikes: bool,
    plane: tuple[int, int],
    loadings: Float64[np.ndarray, "D L"],
) -> tuple[Float64[np.ndarray, "D ..."], ...]:
    """Return C, h, G of two factors, and how residuals go with their loadings.

    See `plane_moves.loop_planes`.
    """
    arguments = [np.array(a, dtype=np.float64, order="C") for a in (pairs, cross, scale, precision, shift)]
    n, size = cross.shape
    out = np.empty((n, 3)), np.empty((n, 2)), np.empty((n, size, 2)), np.empty((n, 7))
    compile_scalar(plane_moves.loop_planes)(
        *arguments, n_factors, spikes, plane, np.array(loadings, order="C"), *out
    )
    return out


def plane_gains(
    square: Float64[np.ndarray, "D 3"],
    linear: Float64[np.ndarray, "D 2"],
    prior: tuple[Float64[np.ndarray, " 2"], Float64[np.ndarray, " 2"], bool],
    tried: Float64[np.ndarray, "J 4"],
) -> Float64[np.ndarray, " J"]:
    """Return log p(y | z A, s of the other factors), up to a constant, of each A.

    See `plane_moves.loop_gains`. ``prior``: alpha of the two, the odds of s = 1, whether there are spikes.
    """
    gains = np.empty(len(tried))
    compile_scalar(plane_moves.loop_gains)(square, linear, *prior, tried, gains)
    return gains


def plane_pairs(
    square: Float64[np.ndarray, "D 3"],
    linear: Float64[np.ndarray, "D 2"],
    prior: tuple[Float64[np.ndarray, " 2"], Float64[np.ndarray, " 2"], bool],
    turn: Float64[np.ndarray, " 4"],
    noise: tuple[Float64[np.ndarray, " D"], Float64[np.ndarray, "D 2"]],
) -> Float64[np.ndarray, "D 2"]:
    """Return loadings of the two factors after z -> z A; see `plane_moves.loop_pairs`."""
    drawn = np.empty(linear.shape)
    compile_scalar(plane_moves.loop_pairs)(square, linear, *prior, turn, *noise, drawn)
    return drawn
