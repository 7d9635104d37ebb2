"""Binomial likelihood: y of n trials succeed, with log odds x; Bernoulli where n = 1."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from factorflow.core.block import Array
from factorflow.errors import InputError
from factorflow.kernels.device import namespace
from factorflow.kernels.random import Step
from factorflow.kernels.special import gammaln, logistic, softplus
from factorflow.likelihoods.base import LARGEST, Likelihood, Message, expected_softplus


@dataclass(frozen=True)
class Binomial(Likelihood):
    """Successes of ``aux`` trials, else of ``trials``; 0: all entries have their own."""

    trials: int = 1

    name, kinds, discrete, limited, smallest, aux = "binomial", ("poisson",), True, True, 0.0, "trials"
    loading_size, shared_alpha_prior = 1.0, (10.0, 10.0)
    remedy = "Correct the entry, or say how many trials there are: binomial(trials=N)."

    def __post_init__(self) -> None:
        if self.trials < 0:
            raise InputError("trials", self.trials, "an integer >= 1", "Say the number of trials.")

    def for_entries(self, largest: float, aux: str = "") -> Likelihood:
        if aux == "trials":
            return type(self)(trials=0)
        if not self.trials:
            remedy = "Say the number of trials, or write the dataset with the numbers of all entries: trials."
            raise InputError("trials", 0, "an integer >= 1", remedy)
        return self

    @property
    def label(self) -> str:
        return str(self) if self.trials else self.name

    @property
    def largest(self) -> float:  # type: ignore[override]
        return self.trials or float("inf")

    def n(self, aux: Array | None) -> Array:
        """Return the number of trials."""
        return float(max(1, self.trials)) if aux is None else aux

    def log_kernel(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        return y * x - self.n(aux) * softplus(x)

    def log_factor(self, y: Array, phi: Array, aux: Array | None = None) -> Array:
        xp, n = namespace(y), self.n(aux)
        return gammaln(n + xp.ones_like(y)) - gammaln(y + 1.0) - gammaln(n - y + 1.0)

    def terms(self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None) -> Message:
        n = self.n(aux)
        value, slope, curvature = expected_softplus(m, v)
        return Message(y * m - n * value, y - n * slope, n * curvature)

    def bound(self, y: Array, m: Array, v: Array, phi: Array, aux: Array | None = None) -> Message:
        """Jaakkola and Jordan's: log p = (y - n/2) x - n log 2cosh(x/2) is convex in x^2."""
        xp, n = namespace(m), self.n(aux)
        xi = xp.sqrt(m**2 + v + 1e-12)
        u = n * xp.tanh(0.5 * xi) / (2.0 * xi)
        value = (y - 0.5 * n) * m - n * (softplus(xi) - 0.5 * xi)
        return Message(value, y - 0.5 * n - u * m, u)

    def expected_response(self, x: Array, phi: Array, aux: Array | None = None) -> Array:
        return self.n(aux) * logistic(x)

    def moments(self, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        mean = self.expected_response(x, phi, aux)
        return mean, mean * logistic(-x)

    def tails(self, y: Array, x: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        from scipy.stats import binom

        n = self.n(aux)
        return binom.cdf(y - 1.0, n, logistic(x)), binom.cdf(n - y - 1.0, n, logistic(-x))

    def draw(self, uniform: Array, x: Array, phi: Array, aux: Array | None = None) -> Array:
        from scipy.stats import binom

        return binom.ppf(uniform, self.n(aux), logistic(x))

    def start(self, y: Array, aux: Array | None = None) -> Array:
        """Return successes by the root of the trials, of variance p (1 - p); log odds where trials differ."""
        if aux is not None:
            xp, n = namespace(y), aux.astype(y.dtype)
            return xp.log((y + 0.5) / (n - y + 0.5))
        return y if self.trials == 1 else y / np.float32(self.trials**0.5)

    def start_moments(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        if not self.trials:
            return logistic(mean), logistic(mean) * logistic(-mean)
        return mean * self.trials**0.5, variance * self.trials

    def intercept(self, n: Array, total: Array) -> Array:
        n = max(1, self.trials) * n
        return np.clip(np.log((total + 0.5) / (n - total + 0.5)), -LARGEST, LARGEST)


@dataclass(frozen=True)
class Bernoulli(Binomial):
    """0 or 1."""

    trials: int = field(default=1, init=False)

    name, kinds, aux = "bernoulli", ("bernoulli",), ""

    def for_entries(self, largest: float, aux: str = "") -> Likelihood:
        return self

    def log_factor(self, y: Array, phi: Array, aux: Array | None = None) -> Array:
        return 0.0 * y

    def predict(self, m: Array, v: Array, phi: Array, aux: Array | None = None) -> tuple[Array, Array]:
        p = expected_softplus(m, v)[1]
        return p, p * (1.0 - p)

    def augment(
        self, y: Array, x: Array, rows: Array, columns: tuple[int, int], step: Step, site: int
    ) -> tuple[Array, Array, float]:
        """Polya-Gamma weights (Polson, Scott and Windle 2013)."""
        from factorflow.kernels.polya_gamma import draw_weights

        return draw_weights(y, x, rows, columns, step, site)
