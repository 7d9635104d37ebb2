"""Smooth courses of factors at the root: q(c), length scales, sharing between groups, and shares of noise.

With z_nk = f_k(n) + e_nk, f_k(n) = phi_n' c_k, c_k ~ N(0, s_k T_k), e_nk ~ N(0, zeta_k), s_k + zeta_k = 1,
and q(z_n | c) the exact conditional given the loadings (`rows`), rows say of c_k a quadratic form, of matrix
G_k and linear term r_k at the others as they are. Then the parameters theta_k of T_k maximise::

    e_k(theta) = r' L (I + L'GL)^-1 L' r / 2 - log |I + L'GL| / 2,   L L' = s_k T_k(theta)

in which c_k is integrated out, and q(c_k) follows: Cov c = L (I + L'GL)^-1 L', E c = Cov c r. Where matrices
G_kj between factors are known (`Forms`) factors take turns; else all move at once, with a curvature that is
larger by `Forms.ratio`, so that the bound does not fall either.

zeta_k is the better of two maxima of the bound, one at fixed q(z, c), one at fixed q(z, v), c = L v: roots of
cubics.

References
----------
Velten et al. (2022), Nature Methods 19, 179-186: the model (MEFISTO), with other posteriors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Integer
from scipy.linalg import solve_triangular

from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.smooth.basis import Basis
from factorflow.models.sparse_gfa.smooth.processes import LEVELS
from factorflow.trees import replace

__all__ = [
    "Courses",
    "Forms",
    "NoiseSums",
    "close_rough",
    "courses_terms",
    "noise_moves",
    "open_courses",
    "select_courses",
    "turn_courses",
    "update_courses",
    "update_noise",
    "without_courses",
]

LEAST_NOISE = 1e-4
"""Share of the prior variance of a factor that is noise at least; of its course at least."""
FIRST_SHARING = 0.9
"""Sharing between groups that a course begins with: at 0 it would not move."""
STILL = 0.003
"""What the share of noise of a factor may move by in the last pass: it settles slowly where views say little
of a factor, long after the bound."""
NEIGHBOURS = 1.01
"""Distances of neighbouring places up to which a length scale is at the shortest there may be."""
MOST_SHARING = 0.999
"""Largest sharing between groups: their correlations need a root."""
TURNS = 3
"""Times that each factor has its turn in a pass."""
EVALUATIONS = 30
"""Evaluations of e_k for the parameters of a factor in a pass, at most."""
STARTS = 7
"""Length scales that a factor is tried with when it gets a course."""


@dataclass(frozen=True)
class Courses:
    """q(c) of all factors, and their parameters.

    Parameters
    ----------
    mean, covariance : array
        E c and Cov c; 0 of factors without a course.
    energy, logdet : array
        E |v|^2 and log |Cov v|, c = L v.
    noise : array
        zeta: share of the prior variance that is noise; 1 of factors without a course.
    lengths, sharing : array
        Length scale of each covariate; how much each group shares.
    evidence : array
        Nats by which the data favour the course.
    average : array
        Average over the samples of Var f.
    centre, second : array
        Averages over the samples of phi, and of phi phi' centred.
    n_known : float
        Samples whose place is known.
    values, spread : array or None
        What the blocks need of E c and Cov c (`rows.for_blocks`).
    """

    mean: Float64[np.ndarray, "K M"]
    covariance: Float64[np.ndarray, "K M1 M1"]
    energy: Float64[np.ndarray, " K"]
    logdet: Float64[np.ndarray, " K"]
    noise: Float64[np.ndarray, " K"]
    lengths: Float64[np.ndarray, "K R"]
    sharing: Float64[np.ndarray, "K G"]
    evidence: Float64[np.ndarray, " K"]
    average: Float64[np.ndarray, " K"]
    centre: Float64[np.ndarray, " M"]
    second: Float64[np.ndarray, "M2 M2"]
    n_known: float
    values: Float64[np.ndarray, "M3 K"] | None = None
    spread: Float64[np.ndarray, "M4 V"] | None = None

    @property
    def is_smooth(self) -> Bool[Array, " K"]:
        """Which factors have a course."""
        return self.noise < 1.0


@dataclass(frozen=True)
class Forms:
    """What the rows say of c: sum_n J_n,kj phi phi', and the slope of the bound at E c.

    Parameters
    ----------
    form : callable
        Gives G_kj of two factors; of one alone where ``turns`` is not set.
    slope : array
        g_k = sum_n phi_n (m_n - f_n)_k / zeta_k.
    turns : bool
        Whether forms between factors are known.
    ratio : float
        Largest curvature of a row in all its factors, over that in each of them.
    """

    form: Callable[[int, int], Float64[Array, "M M"]]
    slope: Float64[np.ndarray, "K M"]
    turns: bool = True
    ratio: float = 1.0


@dataclass(frozen=True)
class NoiseSums:
    """Sums over samples whose place is known, by which zeta is updated; see `rows`.

    Parameters
    ----------
    residual, second, cross, course : array
        sum E (z - f)^2, sum E z^2, sum E z f, sum E f^2.
    unknown : array
        sum E z^2 over the other samples.
    """

    residual: Float64[np.ndarray, " K"]
    second: Float64[np.ndarray, " K"]
    cross: Float64[np.ndarray, " K"]
    course: Float64[np.ndarray, " K"]
    unknown: Float64[np.ndarray, " K"]


def open_courses(
    basis: Basis,
    centre: Float64[Array, " M"],
    second: Float64[Array, "M M"],
    n_known: float,
    n_factors: int,
    share: float = 0.5,
) -> Courses:
    """Return a course for every factor, as its prior has it: half of the variance of the factor.

    Parameters
    ----------
    basis : Basis
        The functions.
    centre, second, n_known : array, array, float
        See `Courses`.
    n_factors : int
        Factors (K).
    share : float
        s, share of the course.
    """
    lengths = np.sqrt(basis.shortest * basis.longest)
    sharing = np.full(basis.n_groups, FIRST_SHARING)
    covariance = share * basis.scaled_covariance(lengths, sharing, second)[0]
    covariance = np.diag(covariance) if covariance.ndim == 1 else covariance
    each = (n_factors, 1)
    size = len(centre)
    return Courses(
        mean=np.zeros((n_factors, size)),
        covariance=np.tile(covariance, (n_factors, 1, 1)),
        energy=np.full(n_factors, float(size)),
        logdet=np.zeros(n_factors),
        noise=np.full(n_factors, 1.0 - share),
        lengths=np.tile(lengths, each),
        sharing=np.tile(sharing, each),
        evidence=np.full(n_factors, np.nan),
        average=np.full(n_factors, share),
        centre=centre,
        second=second,
        n_known=n_known,
    )


@dataclass(frozen=True)
class _Site:
    """c of one factor given what the rows say: decompositions that evidence and posterior share."""

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
        inner = turned_root(root, turned_root(root, form).T)
        wide = np.linalg.cholesky(np.eye(len(inner)) + inner)
        steep = wide if ratio == 1.0 else np.linalg.cholesky(np.eye(len(inner)) + ratio * inner)
        along = solve_triangular(steep, turned_root(root, linear[:, None])[:, 0], lower=True)
        return cls(root, along, wide, steep)

    def at(self, linear: Float64[Array, " M"]) -> _Site:
        """Return the same with another linear term."""
        turned = turned_root(self.root, linear[:, None])[:, 0]
        return replace(self, along=np.asarray(solve_triangular(self.steep, turned, lower=True)))

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

    def half(self, values: Float64[Array, "M M"]) -> Float64[Array, "M M"]:
        """Return X G of a matrix G, with Cov c = X'X."""
        return np.asarray(solve_triangular(self.wide, turned_root(self.root, values), lower=True))

    @property
    def energy(self) -> float:
        """E |v|^2."""
        inverse = solve_triangular(self.wide, np.eye(len(self.wide)), lower=True)
        return float(self.white @ self.white) + float((inverse**2).sum())


def root_of(covariance: Float64[Array, "M ..."]) -> Float64[Array, "M ..."]:
    """Return L with L L' a covariance, or its diagonal as that of the covariance is given."""
    return np.sqrt(covariance) if covariance.ndim == 1 else np.asarray(np.linalg.cholesky(covariance))


def turned_root(root: Float64[Array, "M ..."], values: Float64[Array, "M n"]) -> Float64[Array, "M n"]:
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
    scaled, slopes = basis.scaled_covariance(lengths, sharing, courses.second)
    site = _Site.of(share * scaled, form, linear, ratio)
    left, lost = linear - ratio * (form @ site.mean), site.half(form)
    if scaled.ndim == 1:
        weight = left**2 - np.diag(form) + (lost**2).sum(axis=0)
    else:
        weight = np.outer(left, left) - form + lost.T @ lost
    by = [float((weight * one).sum()) for one in (*slopes, scaled)]
    return site.value, 0.5 * share * np.array(by)


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
    for turn in range(TURNS if forms.turns else 1):
        for k in smooth:
            form, before = forms.form(k, k), mean[k].copy()
            linear = slope[k] + forms.ratio * (form @ before)
            share = 1.0 - float(courses.noise[k])
            if turn:
                sites[k] = sites[k].at(linear)
            else:
                given = basis, courses, form, linear
                if starts:
                    found = _learn(*given, lengths[k], sharing[k], share, forms.ratio, starts)
                    lengths[k], sharing[k] = found
                scaled, _ = basis.scaled_covariance(lengths[k], sharing[k], courses.second)
                sites[k] = _Site.of(share * scaled, form, linear, forms.ratio)
            mean[k] = sites[k].mean
            if forms.turns:
                for j in smooth:
                    slope[j] -= forms.form(j, k) @ (mean[k] - before)
    for k, site in sites.items():
        half = site.half(np.eye(mean.shape[1]))
        covariance[k] = half.T @ half
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
) -> tuple[Float64[Array, " R"], Float64[Array, " G"]]:
    """Return the length scales and the sharing that the data favour."""
    from scipy.optimize import minimize

    n_lengths, grouped = len(lengths), basis.n_groups > 1
    low, high = np.log(basis.shortest), np.log(basis.longest)

    def unpack(vector: Float64[Array, " n"]) -> tuple[Float64[Array, " R"], Float64[Array, " G"]]:
        return np.exp(vector[:n_lengths]), vector[n_lengths:] if grouped else sharing

    def negative(vector: Float64[Array, " n"]) -> tuple[float, Float64[Array, " n"]]:
        value, slopes = evidence(basis, courses, form, linear, *unpack(vector), share, ratio)
        return -value, -slopes[: len(vector)]

    limits = [*zip(low, high, strict=True), *[(-MOST_SHARING, MOST_SHARING)] * (grouped * basis.n_groups)]
    now = np.concatenate([np.clip(np.log(lengths), low, high), sharing if grouped else []])
    best, value = now, negative(now)[0]
    others = [
        np.concatenate([low + part * (high - low), sharing if grouped else []])
        for part in np.linspace(0.0, 1.0, starts + 1)[1:-1]
    ]
    first = min([now, *others], key=lambda vector: negative(vector)[0]) if others else now
    found = minimize(
        negative, first, jac=True, bounds=limits, method="L-BFGS-B", options={"maxfun": EVALUATIONS}
    )
    if found.fun < value:
        best = found.x
    return unpack(best)


def update_noise(courses: Courses, sums: NoiseSums) -> Courses:
    """Return zeta at the maximum of the bound.

    Along q(z, c) the maximum is at a root in (0, 1) of (N + P) zeta^3 + (t q - e - P - 2 N) zeta^2 +
    (N + 2 e) zeta - e, with e = sum E (z - f)^2, t = E |v|^2, P coefficients and q = 1 - zeta as it was;
    along q(z, v), f times r, zeta = 1 - q r^2, at a root of N q^2 r^3 - q zf r^2 + (ff + q zz - N q) r - zf.

    Parameters
    ----------
    courses : Courses
        As they were.
    sums : NoiseSums
        Over the samples, with these.
    """
    n, size = courses.n_known, courses.mean.shape[1]
    noise, energy, logdet = courses.noise.copy(), courses.energy.copy(), courses.logdet.copy()
    scale = np.ones(len(noise))
    for k in np.flatnonzero(courses.is_smooth):
        now, t = float(noise[k]), float(energy[k])
        e, zz, zf, ff = (float(part[k]) for part in (sums.residual, sums.second, sums.cross, sums.course))
        q = 1.0 - now

        def fixed_c(z: float) -> float:
            return float(-0.5 * (n * np.log(z) + e / z + size * np.log((1 - z) / q) + t * q / (1 - z)))  # noqa: B023

        def fixed_v(z: float) -> float:
            r = np.sqrt((1 - z) / q)  # noqa: B023
            return float(-0.5 * (n * np.log(z) + (zz - 2 * r * zf + r * r * ff) / z + t))  # noqa: B023

        along_c = _real_roots([n + size, t * q - e - size - 2 * n, n + 2 * e, -e])
        roots = _real_roots([n * q * q, -q * zf, ff + q * zz - n * q, -zf])
        along_v = [1.0, *(1.0 - q * r * r for r in roots if r > 0.0)]
        tried = [(fixed_c(_clip(z)) - fixed_c(now), _clip(z), True) for z in along_c]
        tried += [(fixed_v(_clip(z)) - fixed_v(now), _clip(z), False) for z in along_v]
        gain, best, keeps_c = max(tried)
        if gain <= 0.0:
            continue
        r = float(np.sqrt((1.0 - best) / q))
        noise[k] = best
        if keeps_c:
            energy[k], logdet[k] = energy[k] / r**2, logdet[k] - 2.0 * size * np.log(r)
        else:
            scale[k] = r
    return replace(
        courses,
        noise=noise,
        energy=energy,
        logdet=logdet,
        mean=courses.mean * scale[:, None],
        covariance=courses.covariance * scale[:, None, None] ** 2,
        average=courses.average * scale**2,
    )


def noise_moves(before: Courses | None, after: Courses | None) -> bool:
    """Return whether a pass moved the share of noise of a factor by more than `STILL`."""
    if before is None or after is None or len(before.noise) != len(after.noise):
        return False
    return bool((np.abs(after.noise - before.noise) > STILL).any())


def _clip(share: float) -> float:
    return float(min(max(share, LEAST_NOISE), 1.0 - LEAST_NOISE))


def _real_roots(coefficients: list[float]) -> list[float]:
    return [float(x.real) for x in np.roots(coefficients) if abs(x.imag) < 1e-9]


def courses_terms(courses: Courses, sums: NoiseSums) -> Float64[Array, " K"]:
    """Return the terms of the bound of the scores given the courses and of the courses, by factor.

    The entropy of q(z | c), without constants, is elsewhere.
    """
    size = courses.mean.shape[1]
    total = -0.5 * (courses.n_known * np.log(courses.noise) + sums.residual / courses.noise + sums.unknown)
    of_courses = 0.5 * (size + courses.logdet - courses.energy)
    return np.asarray(total + np.where(courses.is_smooth, of_courses, 0.0))


def close_rough(basis: Basis, courses: Courses) -> Courses:
    """Return the courses without those that are worth less than their parameters cost.

    p / 2 log N nats of p parameters. Those whose length scales are down at the distance of neighbouring
    places, and would be shorter yet, go as well: they are noise.
    """
    price = 0.5 * basis.n_parameters * np.log(courses.n_known)
    nearest = np.asarray(basis.places.nearest)
    noise = (courses.lengths <= NEIGHBOURS * nearest).all(axis=1) & (basis.kernel != LEVELS)
    return without_courses(courses, courses.is_smooth & (noise | ~(courses.evidence >= price)))


def without_courses(courses: Courses, gone: Bool[Array, " K"]) -> Courses:
    """Return the courses without those of some factors, which become rough."""
    kept = ~gone
    return replace(
        courses,
        mean=courses.mean * kept[:, None],
        covariance=courses.covariance * kept[:, None, None],
        energy=np.where(gone, float(courses.mean.shape[1]), courses.energy),
        logdet=np.where(gone, 0.0, courses.logdet),
        noise=np.where(gone, 1.0, courses.noise),
        average=courses.average * kept,
    )


BY_FACTOR = ("mean", "covariance", "energy", "logdet", "noise", "lengths", "sharing", "evidence", "average")
"""Fields of `Courses` with a row for each factor."""


def select_courses(courses: Courses | None, kept: Integer[Array, " kept"]) -> Courses | None:
    """Return the courses of some factors, in the order given."""
    if courses is None:
        return None
    return replace(courses, **{name: getattr(courses, name)[kept] for name in BY_FACTOR})


def turn_courses(courses: Courses | None, signs: Float64[Array, "K K"]) -> Courses | None:
    """Return the courses after a change of signs of the factors, a diagonal matrix."""
    return None if courses is None else replace(courses, mean=signs @ courses.mean)
