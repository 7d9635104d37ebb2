"""Settings of a molten component model: roles of the views, and constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float64

from factorflow.core.block import Meta, ViewMeta
from factorflow.errors import InputError

Pair = tuple[float, float]

LANES = 4
"""Components are padded to a multiple of this in the tables of the compiled loops."""

COUPLED = 64
"""Columns that a linear group may have beside a Gaussian response: sums over all pairs of them are needed."""


@dataclass(frozen=True)
class Roles:
    """Views by role.

    Parameters
    ----------
    variables : tuple of (str, int)
        The categorical variables and the linear groups, and their numbers of levels, in the order of the
        sweeps.
    linear : tuple of str
        Those of them that are linear groups: covariate views whose columns are levels, weighted by their
        values.
    exposure, offset, weight, within : str or None
        Covariates: multiplies the rate of a count, is added to the mean of a Gaussian response; of merged
        rows how many they are, and their sum of squares about their mean.
    constant : float
        What the log likelihood of the table exceeds that of its merged rows by.
    level_exposures : tuple of (str, tuple of float), or None
        Of a complete grid, of which only the rows with y > 0 are there: the exposures of the levels of
        variables that have any. None: all rows are there.
    location : float
        About where a response lies that is far from 0 (`ViewMeta.location`), else 0.
    """

    response: str
    variables: tuple[tuple[str, int], ...]
    linear: tuple[str, ...] = ()
    exposure: str | None = None
    offset: str | None = None
    weight: str | None = None
    within: str | None = None
    constant: float = 0.0
    level_exposures: tuple[tuple[str, tuple[float, ...]], ...] | None = None
    location: float = 0.0


MOST_RUNS = 2**14
"""Runs that the rows of a block may fall into; of the rows of a block, which are many more."""


@dataclass(frozen=True)
class Hyperparameters:
    """Sizes, start and priors that a configuration chooses, apart from the roles.

    Parameters
    ----------
    n_components, n_starts : int
        L; starts that are tried.
    shape : float or None
        Prior shape a of lambda; None: learned, or no such parameter.
    shape_mean : float
        Mean of the exponential prior of a, where it is learned.
    rate : float or None
        Prior rate b of lambda, or precision of mu; None: learned, b_l ~ Gamma(`rate_prior`).
    rate_prior : (float, float)
        Shape and rate of the prior of b_l, or of the precision tau_l.
    additive : (float, float) or None
        Shape and rate of the prior of w; None: no additive part.
    overdispersed : bool
        Whether there is xi_n ~ Gamma(c, c).
    noise_prior, intercept_precision : (float, float), float or None
        Of a Gaussian response: prior of lambda; kappa, None: no intercept.
    missing_level : bool
        Whether a missing level is a level of its own, with factors; else its factor is 1.
    scale_step : bool
        Whether the scales of the variables are moved to their best ratio once an iteration.
    drop : float
        Components whose share of the response is below this are removed.
    table_bits : {32, 64}
        Of the numbers that rows of counts look up.
    """

    n_components: int
    n_starts: int
    start: Literal["margins", "random"]
    shape: float | None
    rate: float | None
    rate_prior: Pair
    additive: Pair | None = None
    overdispersed: bool = False
    noise_prior: Pair = (1e-3, 1e-3)
    intercept_precision: float | None = None
    missing_level: bool = True
    scale_step: bool = True
    drop: float = 0.0
    table_bits: Literal[32, 64] = 64
    shape_mean: float = 1.0


@dataclass(frozen=True)
class Settings:
    """Roles and hyperparameters together, and what follows from them.

    A table of a variable with D_g levels has D_g + 1 rows: the last is that of a missing level. It has K
    columns: the L components, then one for the additive part of each variable (`n_additive`), which is a
    component with factor w in its own variable and a fixed 1 in the others.
    """

    likelihood: Literal["gaussian", "poisson"]
    roles: Roles
    hyper: Hyperparameters
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(name for name, _ in self.roles.variables))

    @property
    def n_variables(self) -> int:
        """Variables (G)."""
        return len(self.names)

    @property
    def n_additive(self) -> int:
        """Columns of the additive part: none, or one for each variable."""
        return 0 if self.hyper.additive is None else self.n_variables

    def size(self, name: str) -> int:
        """Return the rows of the table of a variable."""
        return dict(self.roles.variables)[name] + 1

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where the table of each variable begins when they lie below each other, and where the last ends."""
        return tuple(int(n) for n in np.cumsum([0, *(self.size(name) for name in self.names)]))

    def place(self, name: str) -> slice:
        """Return where the table of a variable is when they lie below each other."""
        at = self.names.index(name)
        return slice(*self.starts[at : at + 2])

    @cached_property
    def outer(self) -> tuple[int, ...]:
        """Places of the variables by which rows are sorted into runs: the smallest, while runs are few.

        One is left to change within a run; linear ones always do.
        """
        sizes = sorted(
            (self.size(name), g) for g, name in enumerate(self.names) if name not in self.roles.linear
        )
        axes: list[int] = []
        for (_, place), n_runs in zip(sizes, np.cumprod([float(size) for size, _ in sizes]), strict=True):
            if n_runs <= MOST_RUNS and len(axes) + 1 < max(self.n_variables, 2):
                axes.append(place)
        return tuple(axes)

    def grid_exposure(self, name: str) -> Float64[np.ndarray, " D"]:
        """Return the exposures of the levels of a variable in a complete grid: none of a missing level."""
        level_exposures = dict(self.roles.level_exposures or ())
        return np.append(
            np.asarray(level_exposures.get(name, np.ones(self.size(name) - 1)), dtype=float), 0.0
        )

    def free(self, name: str, index: range, n_columns: int) -> Bool[np.ndarray, "D K"]:
        """Return which entries of rows ``index`` of the table of a variable are learned; others are 1."""
        size, n_multiplied = self.size(name), n_columns - self.n_additive
        out = np.ones((len(index), n_columns), dtype=bool)
        if self.n_additive:
            out[:, n_multiplied:] = np.arange(self.n_variables) == self.names.index(name)
        if not self.hyper.missing_level and index.stop == size:
            out[-1] = False
        return out

    def is_component(self, n_columns: int) -> Bool[np.ndarray, " K"]:
        """Return which columns are components, not the additive part."""
        return np.arange(n_columns) < n_columns - self.n_additive


def roles_of(
    meta: Meta,
    likelihood: Literal["gaussian", "poisson"],
    response: str | None,
    variables: Sequence[str] | None,
    linear: Sequence[str] | None,
    exposure: str | None,
) -> Roles:
    """Return the roles of the views: by options, else by the dataset, else by their kinds.

    Raises
    ------
    InputError
        When they do not suit the model.
    """
    design = getattr(meta, "design", None)
    views = {view.name: view for view in meta.views}
    response = response or (design.response if design else _only_response(meta, likelihood))
    response_view = _view(views, "response", response, (likelihood,))
    if response_view.n_features != 1:
        raise InputError(
            "response",
            f"{response} ({response_view.n_features} features)",
            "a view of one feature",
            "A table has one response a row; fit SparseGFA to a matrix.",
        )
    others = [view.name for view in meta.value_views if view.name != response]
    if others:
        raise InputError(
            "views",
            ", ".join(others),
            f"no values but the response, {response}",
            "Select the others: {views}.",
            views=[name for name in views if name not in others],
        )
    sizes, linear = _variables(meta, views, likelihood, variables, linear)
    if "offset" in views and likelihood == "poisson":
        raise InputError("offset", "offset", "an exposure", "Counts take exp(offset) as view 'exposure'.")

    def covariate(role: str, column: str | None = None) -> str | None:
        name = column or (getattr(design, role) if design else role if role in views else None)
        return None if name is None else _view(views, role, name, ("covariate",)).name

    gaussian = likelihood == "gaussian"
    if gaussian and (exposure or (exposure is None and covariate("exposure"))):
        raise InputError(
            "exposure",
            exposure or "exposure",
            "none for a Gaussian response",
            "Leave the view out with `views`, or give an offset.",
        )
    return Roles(
        response,
        sizes,
        linear=linear,
        exposure=None if gaussian else covariate("exposure", exposure),
        offset=covariate("offset") if gaussian else None,
        weight=covariate("weight") if gaussian else None,
        within=covariate("within") if gaussian else None,
        constant=design.constant if design and not gaussian else 0.0,
        level_exposures=design.level_exposures if design and design.grid else None,
        location=response_view.location[0] if response_view.location else 0.0,
    )


def _variables(
    meta: Meta,
    views: dict[str, ViewMeta],
    likelihood: str,
    variables: Sequence[str] | None,
    linear: Sequence[str] | None,
) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...]]:
    """Return categorical variables and linear groups with their levels, and the names of the latter."""
    design = getattr(meta, "design", None)
    if variables is None and design:
        variables = design.variables
    if variables is None:
        variables = [view.name for view in meta.input_views if view.likelihood == "categorical"]
    if linear is None:
        linear = design.linear if design else ()
    names = [*variables, *linear]
    if not names:
        raise InputError(
            "variables",
            "none",
            "at least one categorical variable",
            "Write the dataset with factorflow.write_table(path, table, formula='y ~ a + b').",
        )
    if len(set(names)) < len(names):
        raise InputError("variables", ", ".join(names), "each variable once", "Correct them.")
    sizes = [(name, _view(views, "variables", name, ("categorical",)).n_features) for name in variables]
    groups = [_view(views, "linear", name, ("covariate",)) for name in linear]
    _check_groups(groups, likelihood, bool(design and design.grid))
    sizes += [(view.name, view.n_features) for view in groups]
    return tuple(sizes), tuple(linear)


def _check_groups(groups: Sequence[ViewMeta], likelihood: str, grid: bool) -> None:
    """Refuse linear groups that a model cannot take."""
    for view in groups if likelihood == "gaussian" else ():
        if view.n_features > COUPLED:
            raise InputError(
                "linear",
                f"{view.name} ({view.n_features} columns)",
                f"a group of {COUPLED} columns at most for a Gaussian response",
                "Its levels are coupled, pair by pair: leave columns out, or add some up.",
            )
    if groups and grid:
        raise InputError(
            "linear",
            ", ".join(view.name for view in groups),
            "none for a complete grid without its zeros",
            "Write the table without `grid`: the weights of cells that are not there are not known.",
        )


def _only_response(meta: Meta, likelihood: str) -> str:
    """Return the name of the one view that holds values."""
    values = meta.value_views
    if len(values) != 1 or values[0].likelihood != likelihood:
        raise InputError(
            "response",
            ", ".join(f"{v.name} ({v.likelihood})" for v in values) or "none",
            f"one view of likelihood {likelihood}",
            "Select one with {views}; counts are for molten_poisson, measurements for molten_normal.",
            views=...,
        )
    return values[0].name


def _view(views: dict[str, ViewMeta], role: str, name: str, kinds: tuple[str, ...]) -> ViewMeta:
    """Return the view of a role, refusing one that is not there or of another kind."""
    if name not in views:
        raise InputError(role, name, f"one of {', '.join(views)}", "Name a view of the dataset.")
    if views[name].likelihood not in kinds:
        raise InputError(
            role,
            f"{name} ({views[name].likelihood})",
            f"a view of kind {' or '.join(kinds)}",
            "Counts are for molten_poisson, measurements for molten_normal."
            if role == "response"
            else "Numbers become levels: bin them, or write them as text.",
        )
    return views[name]
