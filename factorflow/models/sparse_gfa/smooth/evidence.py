"""Inference of a course from the messages of rows: its evidence, q(c), length scales and how groups share it.

Rows say of c_k a quadratic form, of matrix G_k and linear term r_k at the others as they are (`Forms`). The
parameters theta_k of its prior covariance s_k T_k maximise::

    e_k(theta) = r' L (I + L'GL)^-1 L' r / 2 - log |I + L'GL| / 2,   L L' = s_k T_k(theta)

in which c_k is integrated out, and q(c_k) follows: Cov c = L (I + L'GL)^-1 L', E c = Cov c r. Where matrices
G_kj between factors are known factors take turns; else all move at once, with a curvature that is larger by
`Forms.ratio`, so that the bound does not fall either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float64
from scipy.linalg import cholesky, lapack, solve_triangular

from factorflow.core.trees import replace
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.smooth.basis import Basis
from factorflow.models.sparse_gfa.smooth.courses import Courses

MOST_SHARING = 0.999
"""Largest sharing between groups: their correlations need a root."""
N_CYCLES = 3
"""Times that each factor is updated in a pass."""
EVALUATIONS = 30
"""Evaluations of e_k for the parameters of a factor in a pass, at most."""
STARTS = 7
"""Length scales that a factor is tried with when it gets a course."""


@dataclass(frozen=True)
class Forms:
    """Messages of the rows about c: sum_n J_n,kj phi phi', and the slope of the bound at E c.

    Parameters
    ----------
    form : callable
        Gives G_kj of two factors; of one alone where ``has_cross_forms`` is not set.
    products : callable or None
        Given k, factors j and a vector, gives G_jk times the vector, a row for each j: quicker than by `form`
        where forms are alike; None: by that.
    slope : array
        g_k = sum_n phi_n (m_n - f_n)_k / zeta_k.
    has_cross_forms : bool
        Whether forms between factors are known.
    ratio : float
        Largest curvature of a row in all its factors, over that in each of them.
    """

    form: Callable[[int, int], Float64[Array, "M M"]]
    slope: Float64[np.ndarray, "K M"]
    has_cross_forms: bool = True
    ratio: float = 1.0
    products: Callable[[int, list[int], Float64[Array, " M"]], Float64[Array, "J M"]] | None = None

    def multiply(self, k: int, others: list[int], vector: Float64[Array, " M"]) -> Float64[Array, "J M"]:
        """Return G_jk times a vector for some factors j."""
        if self.products is not None:
            return self.products(k, others, vector)
        return np.stack([self.form(j, k) @ vector for j in others])


@dataclass(frozen=True)
class _Site:
    """c of one factor given the messages of the rows: decompositions for evidence and posterior."""

    root: Float64[np.ndarray, "M ..."]
    along: Float64[np.ndarray, " M"]
    wide: Float64[np.ndarray, "M M"]
    steep: Float64[np.ndarray, "M M"]

    @classmethod
    def of(
        cls,
        covariance: Float64[Array, "M ..."],
        form: Float64[Array, "M M"],
        linear: Float64[Array, " M"],
        ratio: float,
    ) -> _Site:
        """Decompose I + L'GL, and I + ratio L'GL, for L L' the prior covariance, or its diagonal."""
        root = root_of(covariance)
        inner = root[:, None] * form * root if root.ndim == 1 else root.T @ form @ root
        wide = _cholesky_beside_one(inner)
        steep = wide if ratio == 1.0 else _cholesky_beside_one(ratio * inner)
        along = solve_triangular(steep, multiply_transposed_root(root, linear[:, None])[:, 0], lower=True)
        return cls(root, along, wide, steep)

    def at(self, linear: Float64[Array, " M"]) -> _Site:
        """Return the same with another linear term."""
        projected = multiply_transposed_root(self.root, linear[:, None])[:, 0]
        return replace(self, along=np.asarray(solve_triangular(self.steep, projected, lower=True)))

    @property
    def value(self) -> float:
        """e_k."""
        return 0.5 * float(self.along @ self.along) + 0.5 * self.logdet

    @property
    def logdet(self) -> float:
        """Log determinant of Cov v."""
        return -2.0 * float(np.log(np.diag(self.wide)).sum())

    @property
    def white(self) -> Float64[Array, " M"]:
        """E v."""
        return np.asarray(solve_triangular(self.steep, self.along, lower=True, trans=1))

    @property
    def mean(self) -> Float64[Array, " M"]:
        """E c."""
        return self.root * self.white if self.root.ndim == 1 else self.root @ self.white

    @cached_property
    def inverse(self) -> Float64[Array, "M M"]:
        """A root of Cov v, R: Cov v = R'R."""
        return np.asarray(lapack.dtrtri(self.wide.T)[0].T)  # no copy, where it lies row by row

    @property
    def half(self) -> Float64[Array, "M M"]:
        """X, with Cov c = X'X."""
        return self.inverse * self.root if self.root.ndim == 1 else self.inverse @ self.root.T

    @property
    def energy(self) -> float:
        """E |v|^2."""
        return float(self.white @ self.white) + float((self.inverse**2).sum())

    @property
    def covariance(self) -> Float64[Array, "M M"]:
        """Cov c."""
        half = self.half
        return np.asarray(half.T @ half)  # of one array: half of the products

    def slope(
        self,
        covariance: Float64[Array, "M ..."],
        form: Float64[Array, "M M"],
        linear: Float64[Array, " M"],
        ratio: float,
    ) -> Float64[Array, "M ..."]:
        """Return twice the slope of e_k by the prior covariance, or by its diagonal; arguments as of `of`."""
        left = linear - ratio * (form @ self.mean)
        if covariance.ndim == 1:  # G Cov c G - G = L^-1 (Cov v - I) L^-1
            return np.asarray(left**2 + ((self.inverse**2).sum(axis=0) - 1.0) / covariance)
        lost = self.half @ form
        return np.asarray(np.outer(left, left) - form + lost.T @ lost)


def _cholesky_beside_one(matrix: Float64[Array, "M M"]) -> Float64[Array, "M M"]:
    """Return the lower root of I + a matrix; twice as fast as numpy's, which copies."""
    total = np.array(matrix, order="C")
    total.flat[:: len(total) + 1] += 1.0
    return np.asarray(cholesky(total.T, lower=False, overwrite_a=True, check_finite=False).T)


def root_of(covariance: Float64[Array, "M ..."]) -> Float64[Array, "M ..."]:
    """Return L with L L' a covariance, or its diagonal as that of the covariance is given."""
    return np.sqrt(covariance) if covariance.ndim == 1 else np.asarray(np.linalg.cholesky(covariance))


def multiply_transposed_root(
    root: Float64[Array, "M ..."], values: Float64[Array, "M n"]
) -> Float64[Array, "M n"]:
    """Return L' times a matrix."""
    return root[:, None] * values if root.ndim == 1 else np.asarray(root.T @ values)


def evidence(
    basis: Basis,
    courses: Courses,
    form: Float64[Array, "M M"],
    linear: Float64[Array, " M"],
    lengths: Float64[Array, " R"],
    sharing: Float64[Array, " G"],
    share: float,
    ratio: float = 1.0,
) -> tuple[float, Float64[Array, " n"]]:
    """Return e_k, and its slopes: by log length scales, by sharing, by log s.

    Parameters
    ----------
    basis, courses : Basis, Courses
        The functions, and their averages.
    form, linear : array
        G_kk; r_k.
    lengths, sharing, share : array, array, float
        Parameters of the prior of c.
    ratio : float
        See `Forms`.
    """
    site, slopes = _evaluate(basis, courses, form, linear, lengths, sharing, share, ratio)
    return site.value, slopes


def _evaluate(
    basis: Basis,
    courses: Courses,
    form: Float64[Array, "M M"],
    linear: Float64[Array, " M"],
    lengths: Float64[Array, " R"],
    sharing: Float64[Array, " G"],
    share: float,
    ratio: float,
) -> tuple[_Site, Float64[Array, " n"]]:
    """Return the course given its parameters, and the slopes of its evidence; see `evidence`."""
    scaled, slopes = basis.scaled_covariance(lengths, sharing, courses.second)
    site = _Site.of(share * scaled, form, linear, ratio)
    weight = site.slope(share * scaled, form, linear, ratio)
    by = [float((weight * one).sum()) for one in (*slopes, scaled)]
    return site, 0.5 * share * np.array(by)


def slope_by_covariance(
    covariance: Float64[Array, "M ..."],
    form: Float64[Array, "M M"],
    linear: Float64[Array, " M"],
    ratio: float = 1.0,
) -> tuple[float, Float64[Array, "M ..."]]:
    """Return e_k, and twice its slope by the prior covariance of c, or by its diagonal."""
    site = _Site.of(covariance, form, linear, ratio)
    return site.value, site.slope(covariance, form, linear, ratio)


def draw_course(
    covariance: Float64[Array, "M ..."],
    form: Float64[Array, "M M"],
    linear: Float64[Array, " M"],
    normal: Float64[Array, " M"],
) -> tuple[Float64[Array, " M"], float]:
    """Return a draw of c given its messages, c = L v, and |v|^2.

    ``covariance``: that of its prior, or its diagonal.
    """
    site = _Site.of(covariance, form, linear, 1.0)
    v = site.white + solve_triangular(site.wide, normal, lower=True, trans=1)
    return site.root * v if site.root.ndim == 1 else site.root @ v, float(v @ v)


def update_courses(basis: Basis, courses: Courses, forms: Forms, starts: int = 1) -> Courses:
    """Return q(c) and its parameters at the maximum of the bound, zeta as it is.

    Parameters
    ----------
    basis, courses : Basis, Courses
        The functions; as they were.
    forms : Forms
        What the rows say.
    starts : int
        Length scales that each course is tried with, as it is among them; 0: parameters stay as they are.
    """
    slope, smooth = forms.slope.copy(), [int(k) for k in np.flatnonzero(courses.is_smooth)]
    mean, covariance = courses.mean.copy(), courses.covariance.copy()
    lengths, sharing = courses.lengths.copy(), courses.sharing.copy()
    energy, logdet = courses.energy.copy(), courses.logdet.copy()
    nats, average = courses.evidence.copy(), courses.average.copy()
    sites: dict[int, _Site] = {}
    for cycle in range(N_CYCLES if forms.has_cross_forms else 1):
        for k in smooth:
            form, before = forms.form(k, k), mean[k].copy()
            linear = slope[k] + forms.ratio * (form @ before)
            share = 1.0 - float(courses.noise[k])
            if cycle:
                sites[k] = sites[k].at(linear)
            else:
                arguments = basis, courses, form, linear, lengths[k], sharing[k], share, forms.ratio
                if starts:
                    sites[k], lengths[k], sharing[k] = _learn(*arguments, starts)
                else:
                    sites[k], _ = _evaluate(*arguments)
            mean[k] = sites[k].mean
            if forms.has_cross_forms:
                slope[smooth] -= forms.multiply(k, smooth, mean[k] - before)
    for k, site in sites.items():
        covariance[k] = site.covariance
        nats[k], energy[k], logdet[k] = site.value, site.energy, site.logdet
        average[k] = float((covariance[k] * courses.second).sum())
    return replace(
        courses,
        mean=mean,
        covariance=covariance,
        lengths=lengths,
        sharing=sharing,
        energy=energy,
        logdet=logdet,
        evidence=nats,
        average=average,
    )


def _learn(
    basis: Basis,
    courses: Courses,
    form: Float64[Array, "M M"],
    linear: Float64[Array, " M"],
    lengths: Float64[Array, " R"],
    sharing: Float64[Array, " G"],
    share: float,
    ratio: float,
    starts: int,
) -> tuple[_Site, Float64[Array, " R"], Float64[Array, " G"]]:
    """Return the course at the length scales and the sharing that the data favour, and these."""
    from scipy.optimize import minimize

    n_lengths, grouped = len(lengths), basis.n_groups > 1
    low, high = np.log(basis.shortest), np.log(basis.longest)
    best: tuple[float, _Site, Float64[Array, " n"]] | None = None

    def unpack(vector: Float64[Array, " n"]) -> tuple[Float64[Array, " R"], Float64[Array, " G"]]:
        return np.exp(vector[:n_lengths]), vector[n_lengths:] if grouped else sharing

    def negative(vector: Float64[Array, " n"]) -> tuple[float, Float64[Array, " n"]]:
        nonlocal best
        site, slopes = _evaluate(basis, courses, form, linear, *unpack(vector), share, ratio)
        value = -site.value
        if best is None or value < best[0]:
            best = value, site, vector.copy()
        return value, -slopes[: len(vector)]

    limits = [*zip(low, high, strict=True), *[(-MOST_SHARING, MOST_SHARING)] * (grouped * basis.n_groups)]
    now = np.concatenate([np.clip(np.log(lengths), low, high), sharing if grouped else []])
    others = [
        np.concatenate([low + part * (high - low), sharing if grouped else []])
        for part in np.linspace(0.0, 1.0, starts + 1)[1:-1]
    ]
    first = min([now, *others], key=lambda vector: negative(vector)[0]) if others else now
    minimize(negative, first, jac=True, bounds=limits, method="L-BFGS-B", options={"maxfun": EVALUATIONS})
    assert best is not None
    return best[1], *unpack(best[2])
