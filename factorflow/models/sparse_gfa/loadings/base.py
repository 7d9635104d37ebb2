"""Interface and registry of priors of loadings."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float64, Int8

from factorflow.core.trees import replace
from factorflow.errors import InputError
from factorflow.kernels.linalg import diagonal
from factorflow.kernels.special import beta_term, digamma, expected_log_beta, gamma_term
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.loadings.drawn import (
    Equations,
    LoadingParameters,
    Noise,
    draw_gamma,
    draw_normal_slabs,
    draw_sequentially,
    draw_share,
)
from factorflow.models.sparse_gfa.state import View
from factorflow.models.sparse_gfa.weights import Weights

LEAST_PRECISION = 1e-10
"""Of exponential slabs, which add none: what tells of a loading may be as good as nothing."""

Pairs = Float64[np.ndarray, "#D Q"]
Linear = Float64[np.ndarray, "D K"]
Scale = Float64[np.ndarray, " D"]
Share = float | Float64[np.ndarray, "D 1"]


@dataclass(frozen=True)
class PriorConstants:
    """Constants of the prior of the loadings of a view.

    Parameters
    ----------
    n_features : int
        Features of the view (D).
    alpha : (float, float)
        Shape and rate of the prior of alpha.
    theta : (float, float)
        Counts (on, off) of the prior of theta.
    """

    n_features: int
    alpha: tuple[float, float]
    theta: tuple[float, float]


@dataclass(frozen=True)
class LoadingSums:
    """What loadings add up for the parameters that they share, by factor.

    Parameters
    ----------
    included : array
        Loadings that are not 0: sum_d gamma.
    squares : array
        sum_d E |w / c|^`LoadingsPrior.power` of these, c the scale of the component.
    counts : array or None
        What the prior counts besides.
    """

    included: Float64[np.ndarray, " K"]
    squares: Float64[np.ndarray, " K"]
    counts: Float64[np.ndarray, "P K"] | None = None


class LoadingsPrior(ABC):
    """A prior of the loadings of a view; a frozen dataclass, if it has parameters.

    With ``power`` n, log p(w) has alpha as (log alpha - alpha |w / c|^n) / n: 2 of normal slabs, 1 of
    exponential ones, whose rate is alpha.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    """What it says of loadings, in a few words, for the help of the option."""
    spikes: ClassVar[bool] = False
    """Whether a loading may be 0: it has an inclusion probability then, and theta is learned."""
    signed: ClassVar[bool] = True
    """Whether loadings may be of either sign."""
    takes_sets: ClassVar[bool] = False
    """Whether features in the set of a factor (`Weights.classes`) have shares of their own."""
    guides: ClassVar[bool] = False
    """Whether all but one factor (`Weights.classes`) have loadings of 0."""
    allows_plane_moves: ClassVar[bool] = False
    """Whether draws may transform two factors in their plane (`sampler.plane_moves`): loadings that are not 0
    are N(0, 1 / alpha), and the prior is that of all factors and features of a view."""
    n_shares: ClassVar[int] = 0
    """Uniforms of each factor that `draw_parameters` reads besides two: of alpha, of theta."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Further options of the model that tests fit it with."""

    @property
    def power(self) -> float:
        """The power of |w| whose expectation alpha follows from."""
        return 2.0

    @abstractmethod
    def update(
        self, weights: Weights, view: View, pairs: Pairs, linear: Linear, scale: Scale, step: Share
    ) -> tuple[Weights, float]:
        """Return q(w) of a run of features, one factor after the other, and its entropy.

        The entropy is the part of the bound that parameters shared by the loadings do not change.

        Parameters
        ----------
        weights, view : Weights, View
            Before the update.
        pairs, linear, scale : array
            Normal equations: precision scale_d P_d, packed, and linear term.
        step : float
            Share of the way that natural parameters, or moments of a mixture, move.
        """

    @abstractmethod
    def density(self, w: Float64[Array, " n"], view: View) -> tuple[float, Float64[Array, " n"]]:
        """Return the probability of 0, and the density of other values, of a loading of the first factor.

        Of its own model, parameters of the view at their expectations; what tests compare updates with.
        """

    def precision(self, view: View) -> Float64[Array, " K"]:
        """Return the precision that a slab adds to that of the entries."""
        return view.alpha if self.power == 2.0 else np.full(view.alpha.shape, LEAST_PRECISION)

    def sums(self, weights: Weights) -> LoadingSums:
        """Return what the loadings of some features add up."""
        mean, n_factors = weights.mean, weights.mean.shape[1]
        second = mean**2 + diagonal(weights.variance, n_factors)
        if weights.inclusion is None:
            squares = second if weights.scaled_square is None else weights.scaled_square
            return LoadingSums(np.full(n_factors, float(len(mean))), squares.sum(axis=0))
        squares = weights.inclusion * second if weights.scaled_square is None else weights.scaled_square
        return LoadingSums(weights.inclusion.sum(axis=0), squares.sum(axis=0))

    def learn(self, constants: PriorConstants, view: View, sums: LoadingSums) -> View:
        """Return the view with the parameters that follow from its loadings."""
        if self.spikes:
            on, off = constants.theta
            excluded = off + constants.n_features - sums.included
            view = replace(view, theta_on=on + sums.included, theta_off=excluded)
        shape, rate = constants.alpha
        return replace(
            view, alpha_shape=shape + sums.included / self.power, alpha_rate=rate + sums.squares / self.power
        )

    def terms(self, constants: PriorConstants, view: View, sums: LoadingSums) -> Float64[Array, " K"]:
        """Return E log p(w) as far as it has these parameters, and their own terms, by factor."""
        total = (sums.included * log_alpha(view) - sums.squares * view.alpha) / self.power
        total += gamma_term(view.alpha_shape, view.alpha_rate, *constants.alpha)
        if self.spikes:
            log_on, log_off = expected_log_beta(view.theta_on, view.theta_off)
            total += sums.included * log_on + (constants.n_features - sums.included) * log_off
            total += beta_term(view.theta_on, view.theta_off, *constants.theta)
        return np.asarray(total)

    def optimize(
        self, constants: PriorConstants, weights: Weights, view: View, used: Float64[Array, " K"]
    ) -> View:
        """Return the view with the parameters for the next pass, by default those that `learn` found.

        Parameters
        ----------
        constants, weights, view : PriorConstants, Weights, View
            After a pass.
        used : array
            Expectations of alpha that its loadings were updated with.
        """
        return view

    @property
    def is_drawn(self) -> bool:
        """Whether the sampler draws loadings of this prior: it says how (`odds`, or `draw`)."""
        own, base = type(self), LoadingsPrior
        return own.odds is not base.odds or own.draw is not base.draw

    def odds(
        self, parameters: LoadingParameters, classes: Int8[Array, "D K"] | None
    ) -> Float64[Array, "#D K"] | None:
        """Return the odds that each loading is not 0, but N(0, 1 / alpha); None: none is 0."""
        raise NotImplementedError

    def draw(
        self,
        factor: int,
        linear: Float64[Array, " D"],
        p: Float64[Array, " D"],
        parameters: LoadingParameters,
        uniform: Float64[Array, "D two"],
    ) -> Float64[Array, " D"]:
        """Draw the loadings of a factor given the message exp(linear w - p w^2 / 2) of each.

        Of priors without `odds`.
        """
        raise NotImplementedError

    def draw_features(
        self,
        equations: Equations,
        parameters: LoadingParameters,
        classes: Int8[Array, "D K"] | None,
        noise: Noise,
        start: Float64[Array, "D L"],
        *,
        backwards: bool = False,
    ) -> Float64[Array, "D L"]:
        """Draw loadings and coefficients of some features.

        With `odds`: which are 0 with (w, b) integrated out, then (w, b). Else one loading after the other, b
        integrated out.

        Parameters
        ----------
        equations : Equations
            What entries say of them, and the prior of the coefficients.
        parameters : LoadingParameters
            Of the view.
        classes : array or None
            As `Weights.classes`.
        noise : (array, array)
            Uniforms, one of each loading; normals of loadings and coefficients.
        start : array
            What they are.
        backwards : bool
            Whether the last factor is the first: the reverse of the step.
        """
        if type(self).draw is LoadingsPrior.draw:
            odds = self.odds(parameters, classes)
            return draw_normal_slabs(equations, parameters.alpha, odds, noise, start, backwards=backwards)

        def draw(k: int, linear: Array, p: Array, uniform: Array) -> Float64[Array, " D"]:
            return self.draw(k, linear, p, parameters, uniform)

        return draw_sequentially(draw, equations, noise, start, backwards=backwards)

    def sums_of_draw(
        self,
        loadings: Float64[Array, "D K"],
        parameters: LoadingParameters,
        classes: Int8[Array, "D K"] | None,
        uniform: Callable[[], Float64[Array, "D K"]],
    ) -> LoadingSums:
        """Return what drawn loadings add up; ``uniform`` draws of what they are a component, if of any."""
        included = (loadings != 0.0).sum(axis=0).astype(np.float64)
        squares = loadings**2 if self.power == 2.0 else np.abs(loadings) ** self.power
        return LoadingSums(included, squares.sum(axis=0))

    def common_shares(
        self, n_features: float, sums: LoadingSums
    ) -> tuple[Float64[Array, " F"], float] | None:
        """Return how many loadings are not 0, of how many: of factors whose theta has the common prior.

        None: of no factor.
        """
        return (sums.included, n_features) if self.spikes else None

    def first_parameters(self, view: View) -> LoadingParameters:
        """Return the expectations of a fit, which chains begin with."""
        return LoadingParameters(view.alpha, view.theta_on / (view.theta_on + view.theta_off))

    def draw_parameters(
        self,
        constants: PriorConstants,
        sums: LoadingSums,
        before: LoadingParameters,
        uniform: Float64[Array, "K words"],
    ) -> tuple[LoadingParameters, float]:
        """Draw what loadings share; return it with log p(w), and log p of it but for alpha, up to a constant.

        Parameters
        ----------
        constants : PriorConstants
            Those of alpha and theta may be drawn themselves (`sampler.pooled`).
        sums : LoadingSums
            Over all features.
        before : LoadingParameters
            What there was.
        uniform : array
            2 + `n_shares` of each factor.
        """
        alpha, density = self.draw_alpha(constants, sums, uniform[:, 0])
        if not self.spikes:
            return replace(before, alpha=alpha), density
        theta, of_theta = draw_share(
            constants.theta, sums.included, constants.n_features - sums.included, uniform[:, 1]
        )
        return replace(before, alpha=alpha, theta=theta), density + of_theta

    def draw_alpha(
        self, constants: PriorConstants, sums: LoadingSums, uniform: Float64[Array, " K"]
    ) -> tuple[Float64[Array, " K"], float]:
        """Draw alpha; return it with log p(w) of the slab, up to a constant."""
        (shape, rate), power = constants.alpha, self.power
        alpha = draw_gamma(shape + sums.included / power, rate + sums.squares / power, uniform)
        unit = 2.0 * np.pi if power == 2.0 else 1.0
        density = float((sums.included * np.log(alpha / unit) - alpha * sums.squares).sum()) / power
        return alpha, density

    def gaussian_part(
        self,
        loadings: Float64[Array, "D K"],
        parameters: LoadingParameters,
        uniform: Callable[[], Float64[Array, "D K"]],
    ) -> tuple[Float64[Array, "#D K"], Callable[[Float64[Array, "D K"]], Float64[Array, " D"]] | None]:
        """Return precisions of a normal prior of loadings that are not 0, and the log of theirs over it.

        None: it is normal. Of a mixture given components, which are drawn.
        """
        return parameters.alpha[None], None

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            _REGISTRY[cls.name] = cls


def slab_variances(weights: Weights) -> Float64[Array, "D K"]:
    """Return variances, also of the full covariances that the warm-up leaves."""
    return np.asarray(diagonal(weights.variance, weights.mean.shape[1]))


def log_alpha(view: View) -> Float64[Array, " K"]:
    """Return E log alpha."""
    return np.asarray(digamma(view.alpha_shape) - np.log(view.alpha_rate))


_REGISTRY: dict[str, type[LoadingsPrior]] = {}


@cache
def _scan_package() -> None:
    from importlib import import_module
    from pathlib import Path
    from pkgutil import iter_modules

    for module in iter_modules([str(Path(__file__).parent)]):
        import_module(f"factorflow.models.sparse_gfa.loadings.{module.name}")


@cache
def _scan() -> None:
    """Import the files of this package and what entry points name, once."""
    from importlib import metadata

    _scan_package()
    for entry in metadata.entry_points(group="factorflow.loadings"):
        entry.load()


def prior_names() -> tuple[str, ...]:
    """Return the names of all priors of loadings, the default first."""
    _scan()
    return tuple(sorted(_REGISTRY, key=_default_first))


def _default_first(name: str) -> tuple[bool, str]:
    return name != "spike_slab", name


def prior_help() -> str:
    """Return a line about each prior of loadings, for the help of the option."""
    _scan_package()
    names = sorted(_REGISTRY, key=_default_first)
    own = [kind for name in names if (kind := _REGISTRY[name]).__module__.startswith(__package__)]
    return ", ".join(f"{kind.name} ({kind.help})" for kind in own)


@cache
def get_prior(text: str) -> LoadingsPrior:
    """Return a prior by name, with parameters in brackets where it has some.

    Raises
    ------
    InputError
        When there is none of that name, or a parameter is not of it.
    """
    _scan()
    match = re.fullmatch(r"(\w+)(?:\((\w+)=(\w+)\))?", text)
    kind: Any = _REGISTRY.get(match[1]) if match else None
    if match is None or kind is None:
        raise InputError("loadings", text, f"one of {', '.join(prior_names())}", "Choose one of them.")
    if match[2] is None:
        return kind()  # type: ignore[no-any-return]
    field_names = [field.name for field in fields(kind)] if hasattr(kind, "__dataclass_fields__") else []
    if match[2] not in field_names:
        options = f" with {' or '.join(field_names)}" if field_names else ", without parameters"
        raise InputError("loadings", text, f"{kind.name}{options}", "Correct what is in brackets.")
    return kind(**{match[2]: match[3]})  # type: ignore[no-any-return]
