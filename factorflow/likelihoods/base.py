"""The interface of a likelihood, and its messages by quadrature.

Message of an entry at q(x) = N(m, v)::

    value      e = E log p(y | x)
    slope      g = de/dm
    curvature  u = -d2e/dm2 = -2 de/dv

With Gauss-Hermite nodes t_i and weights omega_i of a standard normal variable, s = sqrt(v), and
f_i = log p(y | m + s t_i) all three are sums of the same values, by Stein's identities::

    e = sum omega_i f_i,  g = sum omega_i t_i f_i / s,  u = -sum omega_i (t_i^2 - 1) f_i / s^2

so that no derivative of a likelihood is written by hand. The tangent of a message in x has precision u and
its maximum at m + g / u, the entry's pseudo-observation. Errors of 9 nodes: 1e-6 of e, 1e-6 of g, 1e-5 of u
at v = 1, and 2e-4, 2e-4, 1e-3 at v = 4 (Bernoulli). u has a rounding error of 1e-16 |f| / v: f is computed
in double precision.

| symbol | argument | shape |
|---|---|---|
| y | entries, NaN where missing | (B, D) |
| x, m, v | predictor; its mean and variance | (B, D); x also with nodes in front |
| phi | nuisance parameters of the features | (P, D), or with rows (P, B, D) |
| aux | what else an entry has: number of trials | (B, D) or None |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float, Float64

from factorflow.core.block import Array
from factorflow.errors import InputError
from factorflow.kernels.device import namespace, on_device
from factorflow.kernels.random import Step
from factorflow.kernels.special import logistic, softplus
from factorflow.likelihoods.newton import newton_step

N_NODES, N_PREDICTIVE_NODES = 9, 31
"""Nodes of a message, and of a prediction."""

LEAST_VARIANCE = 1e-6
"""Smallest variance of x that messages are taken at."""

NO_VARIANCE = 1e-30
"""What a variance of an entry is taken for that rounding leaves none of: of a feature that does not vary."""

LEAST_CURVATURE = 1e-8
"""Smallest precision of an observed entry."""

PHI_STEP = 0.05
"""Step of differences in phi, a logarithm: second differences of smaller ones are lost in rounding."""

REACH = 10.0
"""Units of x (a logarithm or a logit) that a pseudo-observation may lie from m; 4 would shorten steps of
ordinary entries."""

LARGEST = 300.0
"""Largest logarithm of a rate: its exponential, and the square of that, are finite."""


class Message(NamedTuple):
    """What updates see of an entry: E log p, its slope and its curvature in the mean of x."""

    value: Array
    slope: Array
    curvature: Array


class Likelihood(ABC):
    """A likelihood p(y | x, phi): subclasses are frozen dataclasses, known by their ``name``."""

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    """Kinds of views (`factorflow.core.kinds`) whose entries it explains."""
    discrete: ClassVar[bool] = False
    """Whether y is a whole number: exp(log_density) is then a probability."""
    smallest: ClassVar[float] = -float("inf")
    largest: ClassVar[float] = float("inf")
    """Where entries end: these values are allowed where y is a whole number, else they are not."""
    aux: ClassVar[str] = ""
    """What entries may have beside their values (`ViewMeta.aux`): "trials", "censored"."""
    levels: ClassVar[int] = 0
    """Of entries that are levels, how many there are: held-out scores count the right ones."""
    remedy: ClassVar[str] = "Correct the entry, or choose another likelihood for the view."
    """What to do about an entry beyond."""
    is_location: ClassVar[bool] = False
    """Whether x is where y lies, in units of y: entries may then be centred and scaled."""
    is_time: ClassVar[bool] = False
    """Whether y is the time to an event, the sooner the larger x: held-out scores are by order."""
    has_intercept: ClassVar[bool] = True
    """Whether x has an intercept; else phi has the level of the entries."""
    log_link: ClassVar[bool] = False
    """Whether E y is in proportion to e^x: a size factor of a sample then is an offset of x."""
    limited: ClassVar[bool] = False
    """Whether x is a logarithm or a logit: pseudo-observations then lie at most `REACH` from m."""
    concave: ClassVar[bool] = True
    """Whether log p is concave in x; else messages are those of `bound`."""
    loading_size: ClassVar[float] = 0.1
    """Scale of the Cauchy prior of a loading: standard deviations of a view, log odds, logs of a rate."""
    shared_alpha_prior: ClassVar[tuple[float, float] | None] = None
    """Shape and rate of the prior of alpha where all views have the same; None: loadings are Cauchy."""
    clip_start: ClassVar[float] = float("inf")
    """Standard deviations from their mean at which entries are clipped that a fit starts from."""
    n_phi: ClassVar[int] = 0
    phi_mean: ClassVar[float | tuple[float, ...]] = 0.0
    phi_sd: ClassVar[float] = 2.0
    """Mean and standard deviation of the normal prior of phi."""
    phi_variables: ClassVar[Mapping[str, str]] = {}
    """What users see of phi, a variable by feature (``<name>_<view>``) for each, with its meaning; where phi
    are logarithms, as `report_phi` has them if it is left out, what they are of."""

    @abstractmethod
    def log_kernel(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        """Return log p(y | x, phi) but for `log_factor`, in the array namespace of x."""

    def log_factor(self, y: Array, phi: Array, aux: Array | None = None) -> Array:
        """Return the part of log p that does not depend on x: it costs more than the rest."""
        return 0.0 * y

    @abstractmethod
    def moments(self, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        """Return mean and variance of y given x."""

    def moments_after(self, y: Array, x: Array, phi: Array) -> tuple[Array, Array]:
        """Return mean and variance of a time (`is_time`) given x, and that it is after y."""
        raise NotImplementedError(f"{self.name} is not of times")

    @abstractmethod
    def tails(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        """Return P(Y < y) and P(Y > y), each with small relative error."""

    @abstractmethod
    def draw(self, uniform: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        """Return the smallest y with P(Y <= y) >= uniform: a draw, given uniforms of the counters."""

    def for_entries(self, largest: float, aux: str = "") -> Likelihood:
        """Return the likelihood with parameters that follow from the entries: the largest, auxiliary data."""
        return self

    @property
    def is_binary(self) -> bool:
        """Whether entries are 0 and 1 alone."""
        return self.discrete and self.largest == 1.0

    def start(self, y: Array, aux: Array | None = None) -> Array:
        """Return entries of about one noise variance, as the first components see them."""
        return y

    def start_moments(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Return about the mean and variance of y, given those of `start`: `intercept` sees them."""
        return mean, variance

    def intercept(self, n: Array, total: Array) -> Array:
        """Return the level of x of features without factors, from number (of trials) and sum of entries."""
        return total / n

    def phi_start(self, n: Array, total: Array, squares: Array) -> Float[Array, "P D"]:
        """Return phi of features without factors, from number, sum and sum of squares of entries."""
        return np.zeros((self.n_phi, len(n)))

    def log_prior(self, phi: Float64[Array, "D P"]) -> float:
        """Return the log prior density of phi, but for its constant."""
        return -0.5 * self.phi_sd**-2 * float(((phi - np.asarray(self.phi_mean)) ** 2).sum())

    def update_phi(self, phi: Float64[Array, "D P"], derivatives: Float64[Array, "D P2"]) -> Array:
        """Return phi after a step to its mode, given the sums of `phi_derivatives`; see `newton_step`."""
        return newton_step(phi, derivatives, self.phi_mean, self.phi_sd)

    def report_phi(self, phi: Float64[Array, "P D"], scale: Float64[Array, " D"]) -> dict[str, Array]:
        """Return what users see of phi (`phi_variables`): e^phi; entries were divided by ``scale``."""
        return dict(zip(self.phi_variables, np.exp(phi), strict=False))

    def phi_from_report(self, report: Mapping[str, Array]) -> Float64[Array, "P D"]:
        """Return phi of entries in data units, from what users see of it."""
        rows = [np.log(np.asarray(report[name])) for name in self.phi_variables]
        return np.stack(rows) if rows else np.zeros((0, 1))

    # Closed forms take the place of nodes

    def terms(self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None) -> Message:
        """Return E of `log_kernel` at q(x) = N(m, v), its slope, and its curvature of either sign."""
        return quadrature(self, y, m, v, phi, aux)

    def phi_derivatives(
        self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None, *, bounded: bool = False
    ) -> Float[Array, "P2 ..."]:
        """Return the gradient of E log p in phi, and its second derivatives (of a pair i <= j), in a row.

        By differences of values, unless a file has a closed form; ``bounded``: those of `bound`.
        """
        form = self.bound if bounded else self.terms
        steps = PHI_STEP * np.eye(self.n_phi)
        pairs = [(i, j) for j in range(self.n_phi) for i in range(j + 1)]

        def value(move: Array) -> Array:
            moved = phi + namespace(phi).asarray(move).reshape(-1, *[1] * (phi.ndim - 1))
            return form(y, m, v, moved, aux).value + self.log_factor(y, moved, aux)

        both = [(value(step), value(-step)) for step in steps]
        here = value(0.0 * steps[0])
        gradient = [(up - down) / (2.0 * PHI_STEP) for up, down in both]
        second = []
        for i, j in pairs:
            if i == j:
                second.append((both[i][0] + both[i][1] - 2.0 * here) / PHI_STEP**2)
            else:
                apart = value(steps[i] + steps[j]) + value(-steps[i] - steps[j]) - sum(both[i]) - sum(both[j])
                second.append((apart + 2.0 * here) / (2.0 * PHI_STEP**2))
        return namespace(m).stack([*gradient, *second])

    def bound(self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None) -> Message:
        """Return a lower bound of E log p under any q(x) of mean m and variance v; not all have one."""
        raise NotImplementedError(f"{self.name} has no bound")

    @property
    def has_bound(self) -> bool:
        """Whether there is such a bound."""
        return type(self).bound is not Likelihood.bound

    def augment(
        self, y: Array, x: Array, rows: Array, columns: tuple[int, int], step: Step, site: int
    ) -> tuple[Array, Array, float]:
        """Draw what makes each entry Gaussian in x: u and r of exp(r x - u x^2 / 2); not all can.

        Of entries in ``rows``, global numbers; ``columns``: columns of all views, and of those before this
        view. Returns u, r, both 0 where y is missing, and sum log p(y | x).
        """
        raise NotImplementedError(f"{self.name} has no augmentation")

    @property
    def has_augmentation(self) -> bool:
        """Whether there is one: exact steps of a sampler, where others take Metropolis steps."""
        return type(self).augment is not Likelihood.augment

    def predict(self, m: Array, v: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        """Return mean and variance of a new y, x ~ N(m, v)."""
        t, weights = nodes(N_PREDICTIVE_NODES)
        sd, mean, square = np.sqrt(v), 0.0 * m, 0.0 * m
        for node, weight in zip(t, weights, strict=True):
            centre, variance = self.moments(m + node * sd, phi, aux)
            mean, square = mean + weight * centre, square + weight * (variance + centre**2)
        return mean, namespace(m).maximum(square - mean**2, 0.0)  # below it by rounding

    def response(self, y: Array, phi: Array, aux: Array | None = None) -> Array:
        """Return the entries as shares of variance are of them."""
        return y

    def expected_response(self, x: Array, phi: Array, aux: Array | None = None) -> Array:
        """Return the mean of `response` given x."""
        return self.moments(x, phi, aux)[0]

    def residual(self, difference: Array, aux: Array | None = None) -> Array:
        """Return differences of entries from what is predicted; 0 of those that say no more than that."""
        return difference

    # Of all likelihoods

    def excludes(self, y: Array) -> Array:
        """Return which entries it gives no probability, missing ones not among them."""
        if self.discrete:
            return (y < self.smallest) | (y > self.largest)
        outside = (y <= self.smallest) | (y >= self.largest)
        return outside & (abs(y) < float("inf"))

    def check_entry(self, where: str, y: float) -> None:
        """Refuse an entry that it gives no probability.

        Raises
        ------
        InputError
            Saying where it is, what is expected and what to do.
        """
        if not self.excludes(np.array([y]))[0]:
            return
        ends = [f"{self.smallest:g}", f"{self.largest:g}"]
        if self.discrete:
            expected = f"entries of at most {ends[1]}"
        else:
            expected = " and ".join(
                f"{word} {end}"
                for word, end in zip(("above", "below"), ends, strict=True)
                if "inf" not in end
            )
            expected = f"entries {expected}"
        raise InputError("likelihoods", f"{self} for {where} of {y:g}", expected, self.remedy)

    def information(self, x: Array, phi: Array, aux: Array | None = None) -> Array:
        """Return (dE y / dx)^2 / Var y, the information of an entry about x through E y."""
        step = 1e-3
        ahead, behind = self.moments(x + step, phi, aux)[0], self.moments(x - step, phi, aux)[0]
        variance = self.moments(x, phi, aux)[1]
        return ((ahead - behind) / (2.0 * step)) ** 2 / namespace(x).maximum(variance, NO_VARIANCE)

    def log_density(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        """Return log p(y | x, phi), in the array namespace of x."""
        return self.log_kernel(y, x, phi, aux) + self.log_factor(y, phi, aux)

    def terms_and_phi(
        self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None, *, bounded: bool = False
    ) -> tuple[Message, Array, Float[Array, "P2 ..."]]:
        """Return `terms` (or `bound`), `log_factor` and `phi_derivatives`, which may have parts in common."""
        form = self.bound if bounded else self.terms
        of_phi = self.phi_derivatives(y, m, v, phi, aux, bounded=bounded)
        return form(y, m, v, phi, aux), self.log_factor(y, phi, aux), of_phi

    def message(
        self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None, *, bounded: bool = False
    ) -> Message:
        """Return the message of every entry, its value but for `log_factor`; ``bounded``: that of `bound`.

        The curvature is above 0; all three are 0 where y is missing.
        """
        form = self.bound if bounded else self.terms
        return self.within_reach(form(y, m, v, phi, aux), y, bounded=bounded)

    def within_reach(self, message: Message, y: Array, *, bounded: bool = False) -> Message:
        """Return `message`, given `terms` or `bound`."""
        value, slope, curvature = message
        xp = namespace(value)
        if self.limited and not bounded:
            curvature = xp.maximum(curvature, abs(slope) / REACH)
        curvature = xp.where(curvature > LEAST_CURVATURE, curvature, LEAST_CURVATURE)
        observed = y == y
        if observed.all():
            return Message(value, slope, curvature)
        none = xp.zeros((), dtype=value.dtype)
        return Message(*(xp.where(observed, part, none) for part in (value, slope, curvature)))

    @property
    def label(self) -> str:
        """Its name with what was chosen, as results show it."""
        return str(self)

    def __str__(self) -> str:
        parameters = {f.name: f for f in fields(self) if f.init}  # type: ignore[arg-type]
        chosen = [f"{n}={getattr(self, n):g}" for n, f in parameters.items() if getattr(self, n) != f.default]
        return f"{self.name}({', '.join(chosen)})" if chosen else self.name

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "name" in cls.__dict__:
            REGISTRY[cls.name] = cls


def quadrature(
    likelihood: Likelihood,
    y: Array,
    m: Array,
    v: Array,
    phi: Array,
    aux: Array | None = None,
    n_nodes: int = N_NODES,
) -> Message:
    """Return the terms of a message by Gauss-Hermite nodes, in double precision; arguments as above."""
    xp = namespace(m)
    m, v = xp.astype(m, xp.float64), xp.astype(v, xp.float64)
    s = xp.sqrt(xp.where(v > LEAST_VARIANCE, v, LEAST_VARIANCE))
    value, slope, curvature = 0.0 * s, 0.0 * s, 0.0 * s
    for node, weight in zip(*nodes(n_nodes), strict=True):
        f = weight * likelihood.log_kernel(y, m + node * s, phi, aux)
        value, slope, curvature = value + f, slope + node * f, curvature - (node**2 - 1.0) * f
    return Message(value, slope / s, curvature / s**2)


def expected_softplus(m: Array, v: Array) -> tuple[Array, Array, Array]:
    """Return E log(1 + e^x), x ~ N(m, v), and two derivatives in m.

    On the host by the table of `factorflow.kernels.softplus_table`, which is imported here: it needs numba.
    On a device by `N_PREDICTIVE_NODES` nodes: up to v = 8 they agree to 1e-5.
    """
    if on_device(m):
        xp, s = namespace(m), namespace(m).sqrt(v)
        value, slope, curvature = 0.0 * m, 0.0 * m, 0.0 * m
        for node, weight in zip(*nodes(N_PREDICTIVE_NODES), strict=True):
            x = m + node * s
            p = logistic(x)
            value, slope = value + weight * softplus(x), slope + weight * p
            curvature = curvature + weight * p * (1.0 - p)
        return xp.asarray(value), slope, curvature
    from factorflow.kernels.softplus_table import expected_softplus as look_up

    return look_up(m, v)


@cache
def nodes(n: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return Gauss-Hermite nodes of a standard normal variable and their weights, which sum to 1."""
    t, weights = np.polynomial.hermite_e.hermegauss(n)
    return tuple(t.tolist()), tuple((weights / weights.sum()).tolist())


REGISTRY: dict[str, type[Likelihood]] = {}
"""Classes by name."""
