"""Initialisation: moments of the features, principal components, and the coupling from the means of z."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float64

from factorflow.core.block import Array
from factorflow.errors import InputError
from factorflow.kernels.device import on_host
from factorflow.kernels.linalg import orthonormal
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Block, Info, Step, Sweep, wide
from factorflow.models.gplvm_cmf import decoders
from factorflow.models.gplvm_cmf.rows import (
    convert_rows,
    factor_of,
    noise_of,
    standardise,
    standardised_inputs,
)
from factorflow.models.gplvm_cmf.settings import Settings
from factorflow.models.gplvm_cmf.state import Globals, Local, Standardisation, initial_moments, initial_steps

SKETCH, WEIGHTS, HEADS, REVERSE = MODELS[6], MODELS[7], MODELS[8], MODELS[9]
OVERSAMPLING = 6

LEAST_NOISE = 1e-5
"""Least s_q^2 that the coupling begins with: below the variances of sharp posteriors (digits: .002; Gaussian
tables: .0005), which it would widen, and decoders would unlearn what they can no longer tell apart."""

START_NOISE = 0.01
"""s_q^2 before anything is known of z."""

START_LENGTH = 5.0
"""Length of the kernel over the square root of R, where inputs have variance 1: so long that the process
begins as a nearly linear map with little variance of its own, and loses little of what the warm-up found;
not so long that bends need w of hundreds, which Adam takes long to reach."""

START_LENGTH_GIVEN = 3.0
"""The same where X is given: there the map has to bend from the start."""

START_FACTOR = 0.03
"""Standard deviation of the map that w_q makes when the coupling begins, where w has one. It moves all rows
together, so it must be small beside what they differ by: of `free` the factor of S, of `prior`, whose S
stays I, that of the kernel (kappa has no prior that would keep it small)."""


def empty_globals(settings: Settings) -> Globals:
    """Return globals before any data are seen.

    Raises
    ------
    InputError
        When there are more inducing points than samples.
    """
    if settings.coupling == "gp" and settings.n_inducing > settings.n_rows:
        raise InputError(
            "n_inducing",
            settings.n_inducing,
            f"at most the number of samples, {settings.n_rows}",
            "Use fewer; some tens are enough for a few inputs.",
        )
    return Globals({}, {}, {}, Standardisation({}, {}, {}))


@dataclass(frozen=True)
class Moments:
    """Number, sum and sum of squares of the observed entries of each feature."""

    count: Mapping[str, Float64[np.ndarray, " D"]] = field(metadata=wide())
    first: Mapping[str, Float64[np.ndarray, " D"]] = field(metadata=wide())
    second: Mapping[str, Float64[np.ndarray, " D"]] = field(metadata=wide())


@dataclass(frozen=True)
class MomentsSweep(Sweep[Globals, None, Moments]):
    """First pass: where each feature lies and how far it spreads."""

    settings: Settings
    name: ClassVar[str] = "moments"

    def map(self, block: Block, local: None, globals_: Globals, step: Step) -> tuple[None, Moments]:
        """Add up moments of the block."""
        settings, sums = self.settings, []
        zeros = {name: np.zeros(x.shape[1]) for name, x in _as_floats(settings, block)}
        blank = Standardisation(zeros, {name: x + 1.0 for name, x in zeros.items()}, {})
        if settings.given:
            standardised_inputs(settings, block, blank)  # refuses what is missing
        kinds = {view.name: view.likelihood for view in settings.views}
        about = _locations(settings)
        for name, x in _as_floats(settings, block):
            observed = (x >= 0) if kinds.get(name) == "bernoulli" else (x == x)
            x = np.where(observed, x - about.get(name, 0.0), 0.0)
            sums.append((name, observed.sum(0).astype(float), x.sum(0), (x * x).sum(0)))
        return None, Moments(*({name: parts[i] for name, *parts in sums} for i in range(3)))

    def update(self, globals_: Globals, stats: Moments, step: Step) -> tuple[Globals, Info]:
        """Fix location and scale; lay out a sketch of the features."""
        settings, location, scale, basis = self.settings, {}, {}, {}
        for name, count in stats.count.items():
            n = np.maximum(count, 1.0)
            mean = stats.first[name] / n
            location[name] = mean + _locations(settings).get(name, 0.0)
            variance = np.maximum(stats.second[name] / n - mean**2, 0.0)
            constant = variance <= 1e-12 * np.maximum(mean**2, 1e-300)
            scale[name] = np.where(constant, 1.0, np.sqrt(variance))
        width = settings.n_factors + OVERSAMPLING
        for v, view in enumerate(settings.views):
            basis[view.name] = step.normal(SKETCH, np.arange(view.n_features) + (v << 40), width)
        return replace(globals_, fixed=Standardisation(location, scale, basis)), {}


def _locations(settings: Settings) -> dict[str, Float64[np.ndarray, " D"]]:
    """Return what is subtracted from the features of views far from 0 before squares are added up."""
    return {view.name: np.array(view.location) for view in settings.views if view.location}


def _as_floats(settings: Settings, block: Block) -> list[tuple[str, Float64[np.ndarray, "B D"]]]:
    """Return the values of all views and inputs as they are in the block."""
    names = [*(view.name for view in settings.views), *settings.given]
    return [(name, np.asarray(on_host(block.data[name]), dtype=np.float64)) for name in names]


@dataclass(frozen=True)
class Sketch:
    """Y'(Y basis) of each view, and (Y basis)'(Y basis)."""

    views: Mapping[str, Float64[np.ndarray, "D L"]] = field(metadata=wide())
    gram: Float64[np.ndarray, "L L"]


@dataclass(frozen=True)
class SketchSweep(Sweep[Globals, None, Sketch]):
    """One multiplication of the sketch with Y'Y, for the standardised values Y of all views side by side.

    Halko, Martinsson, Tropp (2011), SIAM Review 53, 217-288, algorithm 4.4.
    """

    settings: Settings
    name: ClassVar[str] = "principal components"

    def map(self, block: Block, local: None, globals_: Globals, step: Step) -> tuple[None, Sketch]:
        """Multiply the sketch with the block and with its transpose."""
        fixed = globals_.fixed
        values = {v.name: standardise(self.settings, fixed, block, v.name) for v in self.settings.views}
        scores = sum(y @ fixed.basis[name] for name, y in values.items())
        return None, Sketch({name: y.T @ scores for name, y in values.items()}, scores.T @ scores)

    def update(self, globals_: Globals, stats: Sketch, step: Step) -> tuple[Globals, Info]:
        """Make the sketch orthonormal; the second time, of it the components, and decoders to begin with."""
        settings, fixed = self.settings, globals_.fixed
        if step.count == 0:
            stacked = orthonormal(np.concatenate([stats.views[view.name] for view in settings.views]))
            cuts = np.cumsum([view.n_features for view in settings.views])[:-1]
            parts = zip(settings.views, np.split(stacked, cuts), strict=True)
            return replace(globals_, fixed=replace(fixed, basis={v.name: part for v, part in parts})), {}
        variances, vectors = np.linalg.eigh(stats.gram)
        order = np.argsort(variances)[::-1][: settings.n_factors]
        size = np.sqrt(np.maximum(variances[order], 0.0) / settings.n_rows)
        turned = np.where(size > 1e-9, vectors[:, order] / np.maximum(size, 1e-9), 0.0)
        basis = {name: part @ turned for name, part in fixed.basis.items()}
        values = _initial_decoders(settings, fixed, step)
        moments = initial_moments(values), initial_moments(values)
        return replace(
            globals_,
            values=values,
            first=moments[0],
            second=moments[1],
            steps=initial_steps(values),
            fixed=replace(fixed, basis=basis),
        ), {}


def _initial_decoders(settings: Settings, fixed: Standardisation, step: Step) -> dict[str, Array]:
    values: dict[str, Array] = {}
    for v, view in enumerate(settings.views):
        units = step.normal(WEIGHTS, np.arange(settings.hidden) + (v << 40), settings.n_factors).T
        heads = step.normal(HEADS, np.arange(view.n_features) + (v << 40), settings.hidden)
        values |= decoders.start(settings, view, units, heads, fixed.location[view.name])
    return values


@dataclass(frozen=True)
class Directions:
    """Sums over rows of m, m m' and the variances; the z (or given inputs) that inducing inputs begin at."""

    total: Float64[np.ndarray, " Q"]
    square: Float64[np.ndarray, "Q Q"]
    variance: Float64[np.ndarray, " Q"]
    chosen: Float64[np.ndarray, "M _"]


@dataclass(frozen=True)
class DirectionsSweep(Sweep[Globals, Local, Directions]):
    """The leading directions of the means of z: where the inputs begin."""

    settings: Settings
    name: ClassVar[str] = "inputs"

    def map(
        self, block: Block, local: Local | None, globals_: Globals, step: Step
    ) -> tuple[Local | None, Directions]:
        """Add up moments of the means of z."""
        settings = self.settings
        rows = convert_rows(settings, settings.alone, block, local, globals_, step)
        assert rows is not None
        m, variance = rows.values["mean"], (factor_of(rows) ** 2).sum(2)
        z = _draw_scores(settings, block, rows, step)
        at = z if settings.learns_inputs else standardised_inputs(settings, block, globals_.fixed)
        rows_here = spread_rows(settings.n_inducing, settings.n_rows) - block.start
        mine = (rows_here >= 0) & (rows_here < block.n_rows)
        chosen = np.zeros((settings.n_inducing, at.shape[1]))
        chosen[mine] = at[rows_here[mine]]
        return local, Directions(m.sum(0), m.T @ m, variance.sum(0), chosen)

    def update(self, globals_: Globals, stats: Directions, step: Step) -> tuple[Globals, Info]:
        """Lay out the inputs and the kernel; w is still 0."""
        settings, fixed, n = self.settings, globals_.fixed, self.settings.n_rows
        centre = stats.total / n
        inducing = stats.chosen
        if settings.learns_inputs:
            variances, vectors = np.linalg.eigh(stats.square / n - np.outer(centre, centre))
            order = np.argsort(variances)[::-1][: settings.n_inputs]
            turn = np.zeros((settings.n_factors, settings.n_inputs))
            # with the variances of rows: of a factor that explains nothing the means have none, but z has 1
            whole = variances + (vectors**2).T @ stats.variance / n
            turn[:, : len(order)] = vectors[:, order] / np.sqrt(whole[order])
            fixed = replace(fixed, turn=turn, centre=centre)
            noise = step.normal(REVERSE, np.arange(settings.n_inducing), settings.n_inputs)
            inducing = (stats.chosen - centre) @ turn + np.where(turn.any(axis=0), 0.0, 0.5) * noise
        values = dict(globals_.values) | _initial_process(settings, inducing, step)
        return replace(globals_, values=values, fixed=fixed), {}


def spread_rows(n: int, n_rows: int) -> np.ndarray:
    """Return ``n`` rows spread evenly over all."""
    return (np.arange(n) * n_rows + n_rows // 2) // n


def _initial_process(
    settings: Settings, inducing: Float64[np.ndarray, "M R"], step: Step
) -> dict[str, Array]:
    """Return the parameters of the process, and of the network of r(X|z)."""
    q, r, m = settings.n_factors, settings.n_inputs, settings.n_inducing
    length = START_LENGTH if settings.learns_inputs else START_LENGTH_GIVEN
    values: dict[str, Array] = {
        "inducing": inducing,
        "log_length": np.full(r, np.log(length * np.sqrt(r))),
        "log_variance": np.array(2.0 * np.log(START_FACTOR) if settings.q_u == "prior" else 0.0),
        "w": np.zeros((m, q)),
        "log_noise": np.full(q, np.log(START_NOISE)),
    }
    if settings.q_u == "free":
        values["w_factor"] = np.tile(np.log(START_FACTOR) * np.eye(m), (q, 1, 1))
    if settings.r_x == "mlp" and settings.learns_inputs:
        h = settings.reverse_hidden
        units = step.normal(REVERSE, np.arange(h) + (1 << 40), q + r).T / np.sqrt(q + r)
        values |= {"reverse hidden": np.ascontiguousarray(units), "reverse hidden_bias": np.zeros(h)}
        values |= {"reverse out": np.zeros((h, 2 * r)), "reverse out_bias": np.zeros(2 * r)}
    return values


@dataclass(frozen=True)
class CoupleStats:
    """Sums over rows of a a', a z' and z^2: the normal equations of z on a(x)."""

    gram: Float64[np.ndarray, "M M"]
    right: Float64[np.ndarray, "M Q"]
    square: Float64[np.ndarray, " Q"]


@dataclass(frozen=True)
class CoupleSweep(Sweep[Globals, Local, CoupleStats]):
    """The regression of draws of z on the inducing inputs: where kappa and s_q^2 begin.

    Of draws, not of means: the process is asked for all of q(z), and what it cannot give is s_q^2. Where X
    does not spread, of draws on means: s_q^2 is the variance of the rows.
    """

    settings: Settings
    name: ClassVar[str] = "coupling"

    def map(
        self, block: Block, local: Local | None, globals_: Globals, step: Step
    ) -> tuple[Local | None, CoupleStats]:
        """Add up the normal equations."""
        from factorflow.models.gplvm_cmf.autodiff import passes

        settings = self.settings
        rows = convert_rows(settings, settings.alone, block, local, globals_, step)
        assert rows is not None
        z, fixed = _draw_scores(settings, block, rows, step), globals_.fixed
        x = inputs_of(settings, block, convert_rows(settings, "gp", block, local, globals_, step), globals_)
        if settings.spreads_inputs and fixed.turn is not None and fixed.centre is not None:
            x = np.where(fixed.turn.any(axis=0), (z - fixed.centre) @ fixed.turn, x)
        gram, right = passes.regress(settings, globals_.values, x, z)
        return local, CoupleStats(gram, right, (z * z).sum(0))

    def update(self, globals_: Globals, stats: CoupleStats, step: Step) -> tuple[Globals, Info]:
        """Solve for kappa under w ~ N(0, 1) and the least noise; what is left is s_q^2."""
        ridge = LEAST_NOISE * np.eye(len(stats.gram))
        w = np.linalg.solve(stats.gram + ridge, stats.right)
        moved = np.einsum("mq,mn,nq->q", w, stats.gram, w)
        left = (stats.square - 2.0 * (w * stats.right).sum(0) + moved) / self.settings.n_rows
        noise = np.clip(left, LEAST_NOISE, 1.0)
        values = dict(globals_.values) | {"w": w, "log_noise": np.log(noise)}
        fresh = initial_moments(values)  # of the process; those of the decoders go on from the warm-up
        first, second = fresh | dict(globals_.first), fresh | dict(globals_.second)
        steps = initial_steps(values) | dict(globals_.steps)
        return replace(globals_, values=values, first=first, second=second, steps=steps), {}


def _draw_scores(settings: Settings, block: Block, rows: Local, step: Step) -> Float64[np.ndarray, "B Q"]:
    """Return a draw of z of rows that have Gaussians of their own."""
    noise = noise_of(settings, "mean_field", block, step, 1)[0]["scores"]
    return np.asarray(rows.values["mean"] + (factor_of(rows) @ noise[:, :, None])[:, :, 0])


def inputs_of(settings: Settings, block: Block, local: Any, globals_: Globals) -> Float64[np.ndarray, "B R"]:
    """Return phi of the rows: X itself where it is given."""
    if not settings.learns_inputs:
        return standardised_inputs(settings, block, globals_.fixed)
    return np.asarray(local.values["inputs"])
