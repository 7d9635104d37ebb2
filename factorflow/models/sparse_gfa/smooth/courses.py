"""Smooth courses of factors at the root: q(c), its parameters, and shares of noise.

z_nk = f_k(n) + e_nk, f_k(n) = phi_n' c_k, c_k ~ N(0, s_k T_k), e_nk ~ N(0, zeta_k), s_k + zeta_k = 1, and
q(z_n | c) is the exact conditional given the loadings (`rows`); q(c_k) and what T_k depends on follow from
what the rows say of c_k (`evidence`).

zeta_k is the better of two maxima of the bound, one at fixed q(z, c), one at fixed q(z, v), c = L v: roots of
cubics.

References
----------
Velten et al. (2022), Nature Methods 19, 179-186: the model (MEFISTO), with other posteriors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Integer

from factorflow.core.trees import replace
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.smooth.basis import Basis

LEAST_NOISE = 1e-4
"""Share of the prior variance of a factor that is noise at least; of its course at least."""
FIRST_SHARING = 0.9
"""Sharing between groups that a course begins with: at 0 it would not move."""
STILL = 0.003
"""Largest move of the share of noise of a factor in the last pass: it settles slowly where views say little
of a factor, long after the bound."""


@dataclass(frozen=True)
class Courses:
    """q(c) of all factors, and their parameters.

    Parameters
    ----------
    mean, covariance : array
        E c and Cov c; 0 of factors without a course. Of draws c, and no covariance; when read back all draws.
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
    warp : array or None
        Clock of each group, see `warping`; None: all have one.
    values, spread : array or None
        What the blocks need of E c and Cov c (`rows.for_blocks`).
    units : array or None
        tr(S T) of each factor before T is scaled, where length scales and sharing stay as they are.
    """

    mean: Float64[np.ndarray, "*draws K M"]
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
    warp: Float64[np.ndarray, "G W"] | None = None
    values: Float64[np.ndarray, "M3 K"] | None = None
    spread: Float64[np.ndarray, "M4 V"] | None = None
    units: Float64[np.ndarray, " K"] | None = None

    @property
    def is_smooth(self) -> Bool[Array, " K"]:
        """Which factors have a course."""
        return self.noise < 1.0


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
    noise = basis.is_noise(courses.lengths)
    return without_courses(courses, courses.is_smooth & (noise | ~(courses.evidence >= price)))


def without_courses(courses: Courses, closed: Bool[Array, " K"]) -> Courses:
    """Return the courses without those of some factors, which become rough."""
    remaining = ~closed
    return replace(
        courses,
        mean=courses.mean * remaining[:, None],
        covariance=courses.covariance * remaining[:, None, None],
        energy=np.where(closed, float(courses.mean.shape[1]), courses.energy),
        logdet=np.where(closed, 0.0, courses.logdet),
        noise=np.where(closed, 1.0, courses.noise),
        average=courses.average * remaining,
    )


BY_FACTOR = ("mean", "covariance", "energy", "logdet", "noise", "lengths", "sharing", "evidence", "average")
"""Fields of `Courses` with a row for each factor."""


def select_courses(courses: Courses | None, factors: Integer[Array, " kept"]) -> Courses | None:
    """Return the courses of some factors, in the order given."""
    if courses is None:
        return None
    return replace(courses, **{name: getattr(courses, name)[factors] for name in BY_FACTOR})


def change_signs(courses: Courses | None, signs: Float64[Array, "K K"]) -> Courses | None:
    """Return the courses after a change of signs of the factors, a diagonal matrix."""
    return None if courses is None else replace(courses, mean=signs @ courses.mean)
