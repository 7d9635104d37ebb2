"""A long table: one response a row, explained by products of components of categorical variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from factorflow.core.kinds import KINDS
from factorflow.data.ingest import checks
from factorflow.data.ingest.align import number_names
from factorflow.data.simulation.noise import Noise, Simulation, check_count, share_of
from factorflow.data.store.view_source import ViewSource
from factorflow.data.store.writer import RowTruth, Truth
from factorflow.errors import InputError
from factorflow.kernels.sites import SIMULATORS

CODES, PARAMETERS, CODE_GAPS, EXPOSURE, RESPONSE, GAPS, WEIGHTS = (SIMULATORS[i] for i in range(7))
"""Purposes of noise."""

TILE = 2048
"""Rows drawn together."""

DEFAULT_VARIABLES = {"site": 6, "species": 5, "year": 4}

VALUE, GIVEN = "y", "exposure"

FloatArray = NDArray[np.float64]


def table(
    n_samples: int,
    draws: Noise,
    variables: Mapping[str, int] = DEFAULT_VARIABLES,
    n_components: int = 3,
    response: Literal["poisson", "gaussian"] = "poisson",
    exposure: bool | None = None,
    rate: float = 4.0,
    noise: float = 0.5,
    missing: float = 0.0,
    missing_codes: float | Mapping[str, float] = 0.0,
    linear: Mapping[str, int] | None = None,
) -> Simulation:
    """Simulate a table with categorical variables.

    ``m_n = t_n sum_l prod_d w_{d, x_nd, l}`` over the components l and the variables d, where x_nd is the
    level of variable d in row n and t_n the exposure; poisson: y_n is a count with mean m_n; gaussian: y_n is
    m_n plus noise. Views: ``y`` (one feature), each variable (categorical), ``exposure`` (covariate). The
    factor of a linear group is ``sum_c z_nc w_{d, c, l}`` over its columns c, whose weights z >= 0 are the
    columns of a covariate view.

    Parameters
    ----------
    n_samples : int
        Rows (N).
    variables : mapping of str to int
        The variables, and how many levels each has.
    n_components : int
        Components (L).
    response : {"poisson", "gaussian"}
        Of the response. Components of counts are positive.
    exposure : bool, optional
        Whether there is an exposure; left out: for counts.
    rate : float
        Mean of counts at an exposure of one.
    noise : float
        Standard deviation of the noise of a gaussian response.
    missing : float
        Share of the rows whose response is missing.
    missing_codes : float, or mapping of variable to float
        Share of the rows whose level is missing, though the response depends on it.
    linear : mapping of str to int, optional
        Linear groups, and how many columns each has.
    """
    linear = {} if linear is None else linear
    draws = replace(draws, tile_rows=TILE)
    _check(variables, linear, n_components, response, rate, noise)
    sizes = [*variables.values(), *linear.values()]
    world = _TableModel(
        draws=draws,
        levels=np.array(list(variables.values())),
        columns=list(linear.values()),
        weights=_weights(draws.generator(PARAMETERS), sizes, n_components, response, rate),
        exposure=response == "poisson" if exposure is None else exposure,
        noise=None if response == "poisson" else noise,
        missing=share_of("missing", missing, VALUE),
        missing_codes=[share_of("missing_codes", missing_codes, name) for name in variables],
    )
    views = [ViewSource(VALUE, number_names("feature", 1), world.read, KINDS[response])]
    views += [
        ViewSource(name, number_names(name, n), partial(world.observed_codes, d), KINDS["categorical"])
        for d, (name, n) in enumerate(variables.items())
    ]
    views += [
        ViewSource(name, number_names(name, n), partial(world.columns_of, d), KINDS["covariate"])
        for d, (name, n) in enumerate(linear.items())
    ]
    if world.exposure:
        views.append(ViewSource(GIVEN, np.array([GIVEN]), world.exposed, KINDS["covariate"]))
    arrays: dict[str, tuple[tuple[str, ...], Any]] = {
        f"loadings_{name}": ((f"feature_{name}", "factor"), weight)
        for name, weight in zip([*variables, *linear], world.weights, strict=True)
    }
    if response == "gaussian":
        arrays[f"noise_deviation_{VALUE}"] = ((f"feature_{VALUE}",), np.array([noise]))
    rows = {
        "mean": RowTruth(f"feature_{VALUE}", 1, world.mean),
        "codes": RowTruth("variable", world.levels.size, world.codes),
    }
    return Simulation(views, Truth(arrays, rows))


@dataclass(frozen=True)
class _TableModel:
    """The parameters of a table, and its rows from ``start`` to ``stop`` (B of them).

    Parameters
    ----------
    levels : (variables,) int array
        Levels of each variable.
    columns : list of int
        Columns of each linear group.
    weights : list of (levels, L) array
        Components of each variable, and of each group.
    noise : float or None
        Standard deviation around the mean; None: counts.
    missing : float
        Share of responses that are missing.
    missing_codes : list of float
        Share of the levels that are missing, of each variable.
    """

    draws: Noise
    levels: NDArray[np.int64]
    columns: list[int]
    weights: list[FloatArray]
    exposure: bool
    noise: float | None
    missing: float
    missing_codes: list[float]

    def codes(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the levels of rows, (B, variables); the first rows go through all of them."""
        uniform = self.draws.rows(CODES, start, stop, self.levels.size, "uniform").astype(np.float64)
        row = np.arange(start, stop)[:, None]
        codes = (uniform * self.levels).astype(np.int64)
        return np.asarray(np.where(row < self.levels, row % self.levels, codes))

    def observed_codes(self, variable: int, start: int, stop: int) -> NDArray[np.int32]:
        """Return the codes of a variable, (B,), -1 where missing; the first rows show every level."""
        uniform = self.draws.rows(CODE_GAPS, start, stop, self.levels.size, "uniform")[:, variable]
        lost = uniform < self.missing_codes[variable]
        lost &= np.arange(start, stop) >= self.levels[variable]
        return np.asarray(np.where(lost, -1, self.codes(start, stop)[:, variable]), dtype=np.int32)

    def exposed(self, start: int, stop: int) -> FloatArray:
        """Return the exposures t, (B, 1)."""
        return np.exp(0.5 * self.draws.rows(EXPOSURE, start, stop, 1).astype(np.float64))

    def columns_of(self, group: int, start: int, stop: int) -> FloatArray:
        """Return the weights z of a linear group, (B, columns), of sum 1 on average."""
        weights = self.draws.rows(WEIGHTS, start, stop, sum(self.columns), "uniform").astype(np.float64)
        first, size = sum(self.columns[:group]), self.columns[group]
        return np.ascontiguousarray(weights[:, first : first + size] * (2.0 / size))

    def mean(self, start: int, stop: int) -> FloatArray:
        """Return the means m, (B, 1)."""
        total, level = np.zeros(stop - start), self.codes(start, stop)
        groups = [self.columns_of(group, start, stop) for group in range(len(self.columns))]
        for component in range(self.weights[0].shape[1]):
            product = np.ones(stop - start)
            for d, weight in enumerate(self.weights[: self.levels.size]):
                product *= weight[level[:, d], component]
            for z, weight in zip(groups, self.weights[self.levels.size :], strict=True):
                product *= z @ weight[:, component]
            total += product
        return total[:, None] * (self.exposed(start, stop) if self.exposure else 1.0)

    def tile(self, number: int) -> FloatArray:
        """Return the responses of a whole tile: how many words a count takes depends on its mean."""
        start, stop = number * TILE, (number + 1) * TILE
        if self.noise is None:
            y = self.draws.generator(RESPONSE, number).poisson(self.mean(start, stop)).astype(np.float64)
        else:
            y = self.mean(start, stop) + self.noise * self.draws.rows(RESPONSE, start, stop, 1)
        if self.missing:
            y[self.draws.rows(GAPS, start, stop, 1, "uniform") < self.missing] = np.nan
        return y

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return the responses, (B, 1), NaN where they are missing."""
        first = start // TILE
        y = np.concatenate([self.tile(number) for number in range(first, -(-stop // TILE))])
        return y[start - first * TILE : stop - first * TILE].astype(np.float32)


def _weights(
    generator: np.random.Generator, sizes: Sequence[int], n_components: int, response: str, rate: float
) -> list[FloatArray]:
    """Return the components of every variable and group, (levels, L) each."""
    if response == "gaussian":
        return [generator.standard_normal((n, n_components)) for n in sizes]
    scale = (rate / n_components) ** (1.0 / len(sizes))
    return [scale * generator.gamma(2.0, 0.5, (n, n_components)) for n in sizes]


def _check(variables: Any, linear: Any, n_components: Any, response: Any, rate: Any, noise: Any) -> None:
    expected = "a number of levels for every variable"
    if not isinstance(variables, Mapping) or not variables:
        raise InputError("variables", variables, expected, 'For example {"site": 6, "year": 4}.')
    if not isinstance(linear, Mapping):
        raise InputError("linear", linear, "a number of columns for every group", 'For example {"cover": 3}.')
    checks.check_view_names([*map(str, variables), *map(str, linear), VALUE, GIVEN])
    for name, n_levels in variables.items():
        check_count(f"levels of {name!r}", n_levels, 2)
    for name, n_columns in linear.items():
        check_count(f"columns of {name!r}", n_columns)
    check_count("n_components", n_components)
    if response not in ("poisson", "gaussian"):
        raise InputError("response", response, "poisson or gaussian", "Choose one of them.")
    for what, value in (("rate", rate), ("noise", noise)):
        if not value > 0:
            raise InputError(what, value, "a positive number", "Correct it.")
