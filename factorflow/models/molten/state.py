"""State of molten component analysis: globals and statistics.

Shapes: D rows of the table of a variable (its levels, and a missing one), S starts that are tried side by
side (1 once the best is chosen), K columns (components, then the additive part), B rows of a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from jaxtyping import Float64

from factorflow.models.contract import Sweep, wide
from factorflow.models.molten.settings import Settings

Stats = TypeVar("Stats")


@dataclass(frozen=True)
class Levels:
    """q of the factors of the levels of a variable.

    Parameters
    ----------
    one, two : array
        Counts: shape and rate of q(lambda); Gaussian: mean and variance of q(mu). 1 and 1, or 1 and 0, where
        nothing is learned.
    counts : array or None
        Counts: sum of y_n p_nl over the rows of a level, of this iteration.
    seen : array
        Shown rows of each level.
    log : array or None
        Counts: E log lambda, 0 where nothing is learned; None: of a Gaussian response.
    """

    one: Float64[np.ndarray, "D S K"]
    two: Float64[np.ndarray, "D S K"]
    counts: Float64[np.ndarray, "D S K"] | None
    seen: Float64[np.ndarray, " D"]
    log: Float64[np.ndarray, "D S K"] | None = None


@dataclass(frozen=True)
class Totals:
    """Sums over the levels of a variable that are learned, by which the bound and the scales go.

    Parameters
    ----------
    size, n_seen : array
        How many there are, and with shown rows.
    sums : array
        `mean` and `seen_mean`: of E lambda, or of E mu^2, over all of them and over those with shown rows;
        `log`: of E log lambda (0 of Gaussian factors); `entropy`: of the entropies (less log(2 pi) / 2 each
        of those).
    """

    size: Float64[np.ndarray, " K"]
    n_seen: Float64[np.ndarray, " K"]
    sums: Float64[np.ndarray, "4 S K"]

    @property
    def mean(self) -> Float64[np.ndarray, "S K"]:
        """Sum over all."""
        return np.asarray(self.sums[0])

    @property
    def seen_mean(self) -> Float64[np.ndarray, "S K"]:
        """Sum over those with shown rows."""
        return np.asarray(self.sums[1])

    @property
    def log(self) -> Float64[np.ndarray, "S K"]:
        """Sum of expected logarithms."""
        return np.asarray(self.sums[2])

    @property
    def entropy(self) -> Float64[np.ndarray, "S K"]:
        """Sum of entropies."""
        return np.asarray(self.sums[3])


@dataclass(frozen=True)
class Moments:
    """Sums over the shown rows: how many, of the response, of its square, of the exposure.

    Squares are about ``shift / n``, where the response lies far from 0.
    """

    n: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    exposure: float = 0.0
    shift: float = 0.0

    @property
    def mean(self) -> float:
        """Mean response."""
        return self.total / max(self.n, 1.0)

    @property
    def variance(self) -> float:
        """Variance of the response."""
        n = max(self.n, 1.0)
        return max(self.squares / n - (self.mean - self.shift / n) ** 2, 0.0)

    @property
    def unit(self) -> float:
        """Square of the unit in which priors of measurements are: the variance, where there is any."""
        return self.variance or 1.0


@dataclass(frozen=True)
class Globals:
    """Global variables.

    Parameters
    ----------
    scale : array
        Shape and rate of q(b_l), or of q(tau_l).
    noise, intercept : array or None
        Gaussian: shape and rate of q(lambda); mean (less the mean response) and variance of q(beta_0).
    shape, dispersion : array or None
        Counts: prior shape a of lambda; c.
    data : array
        Counts: bound of log p(y | lambda) with the p of this iteration, but for sum tau M.
    strength : array
        Share of each column in the response.
    objective, tried : array
        The bound now, and of all starts when the best was chosen.
    """

    levels: Mapping[str, Levels] = field(metadata=wide())
    totals: Mapping[str, Totals]
    scale: Float64[np.ndarray, "2 S K"]
    noise: Float64[np.ndarray, "2 S"] | None
    intercept: Float64[np.ndarray, "2 S"] | None
    shape: Float64[np.ndarray, " S"] | None
    dispersion: Float64[np.ndarray, " S"] | None
    data: Float64[np.ndarray, " S"]
    strength: Float64[np.ndarray, "S K"]
    objective: Float64[np.ndarray, " S"]
    tried: Float64[np.ndarray, " T"]
    moments: Moments

    @property
    def reference(self) -> float:
        """What is subtracted from a Gaussian response: its mean, where an intercept makes up for it."""
        return 0.0 if self.intercept is None else self.moments.mean


@dataclass(frozen=True)
class VariableSweep(Sweep[Globals, None, Stats]):
    """A sweep over the factors of one variable."""

    settings: Settings
    variable: int
    name: ClassVar[str] = "levels"

    @property
    def variable_name(self) -> str:
        """Name of the variable."""
        return self.settings.names[self.variable]


def best_start(globals_: Globals) -> Globals:
    """Return the start with the highest bound alone; the first where several are equal."""
    bounds = globals_.objective
    if bounds.size == 1:
        return globals_
    s = slice(int(np.argmax(bounds)), int(np.argmax(bounds)) + 1)
    return replace(_select(globals_, s, slice(None)), tried=bounds)


def select_columns(globals_: Globals, columns: np.ndarray) -> Globals:
    """Return globals with some of the columns."""
    return _select(globals_, slice(None), columns)


def _select(g: Globals, s: Any, k: Any) -> Globals:
    """Return globals of some starts and columns."""

    def of(array: Any, first: int = 0) -> Any:
        return None if array is None else array[(slice(None),) * first + (s,)]

    def columns(array: Any) -> Any:
        return None if array is None else array[:, :, k]

    levels = {}
    for name, v in g.levels.items():
        one, two, counts, log = (columns(of(x, 1)) for x in (v.one, v.two, v.counts, v.log))
        levels[name] = Levels(one, two, counts, v.seen, log)
    totals = {name: Totals(t.size[k], t.n_seen[k], t.sums[:, s][:, :, k]) for name, t in g.totals.items()}
    return replace(
        g,
        levels=levels,
        totals=totals,
        scale=of(g.scale, 1)[:, :, k],
        noise=of(g.noise, 1),
        intercept=of(g.intercept, 1),
        shape=of(g.shape),
        dispersion=of(g.dispersion),
        data=of(g.data),
        strength=g.strength[s][:, k],
        objective=of(g.objective),
    )
