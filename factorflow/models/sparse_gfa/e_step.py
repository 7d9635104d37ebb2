"""The sample side of sparse group factor analysis: q(z) of a block of rows, and what the block adds up.

Order within a block: pseudo-data -> z -> rho -> statistics.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float64, Integer

from factorflow.core.covariates import COVARIATES
from factorflow.core.trees import replace
from factorflow.kernels import device
from factorflow.kernels.linalg import row_place
from factorflow.kernels.special import digamma, expected_log_beta, gamma_term
from factorflow.models.contract import Array, Block, Step
from factorflow.models.sparse_gfa.groups import add_groups, by_noise_group, scatter_rows
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.learned_sizes import (
    at_log_sizes,
    update_log_sizes,
    with_log_sizes,
)
from factorflow.models.sparse_gfa.messages import Pseudo
from factorflow.models.sparse_gfa.nonnegative_scores import update_nonnegative
from factorflow.models.sparse_gfa.pseudo_data import (
    Evidence,
    PreparedGlobals,
    Table,
    evidence_of,
    expected_scores,
    linear_term,
    pseudo_data,
)
from factorflow.models.sparse_gfa.sample_statistics import UpdatedRows, sum_statistics
from factorflow.models.sparse_gfa.score_steps import interpolate_scores, step_fraction
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.smooth.rows import Conditional, CoursePrior, course_prior, spread_scores
from factorflow.models.sparse_gfa.state import Globals, Local
from factorflow.models.sparse_gfa.statistics import Stats
from factorflow.models.sparse_gfa.stored_scores import (
    blank_entropy,
    blank_precision,
    blank_scores,
    rotated_scores,
    scores_before,
    scores_or_blank,
    starting_scores_of,
)
from factorflow.models.sparse_gfa.unknown_covariates import solve_jointly

Phase = Literal["start", "restart", "update", "known"]


def map_rows(
    settings: Settings, block: Block, local: Local | None, prepared: PreparedGlobals, step: Step, phase: Phase
) -> tuple[Local | None, Stats]:
    """Update q(z) of a block and return the statistics that follow; the body of `Sweep.map`.

    ``phase`` says how q(z) is found: "start" (given by the start of the run), "restart" (its means, with a
    variance of 0.1; where there is a tangent, with its variance), "update", or "known" (the same of scores
    that go with the globals as they are).
    """
    globals_ = prepared.globals_
    codes = settings.group_codes(block)
    before = None if step.projecting else scores_before(local, globals_)
    if not step.projecting and phase != "known":  # new ones never changed basis
        local = rotated_scores(local, globals_)
    if phase == "start":
        local = starting_scores_of(settings, block, globals_, step)
    else:
        local = scores_or_blank(settings, block, local, globals_)
    if settings.n_noise_groups == 1:
        new, stats = update_samples(settings, block, codes, local, prepared, 0, phase, new=step.projecting)
    else:
        parts = by_noise_group(settings, block, codes, local)
        done = [
            (g, update_samples(settings, rows, c, old, prepared, g, phase)) for g, _, rows, c, old in parts
        ]
        stats = add_groups([(g, added) for g, (_, added) in done], settings.n_noise_groups)
        new = scatter_rows([(p[1], d[1][0]) for p, d in zip(parts, done, strict=True)], block.n_rows)
    return (replace(new, before=before) if settings.stateful else None), stats


def update_rows(
    settings: Settings,
    block: Block,
    codes: Integer[Array, " B"],
    local: Local | None,
    prepared: PreparedGlobals,
    noise_group: int,
    phase: Phase = "update",
    *,
    new: bool = False,
    each: bool = False,
    integrate: bool = False,
) -> UpdatedRows:
    """Update pseudo-data, q(z) and q(rho) of rows that share their noise precision.

    ``new``: they are not of the fit; ``each``: see `smooth.rows.course_prior`; ``integrate``: covariates that
    are not known have a distribution, as those of new rows do.
    """
    globals_ = prepared.globals_
    local = with_log_sizes(settings, block, local, globals_)
    tabulated = prepared.tables(noise_group, next(iter(block.data.values())))
    pseudo = {
        name: pseudo_data(settings, name, block, local, globals_, table) for name, table in tabulated.items()
    }
    evidence = {
        name: _evidence(settings, block, name, pseudo[name], table, globals_)
        for name, table in tabulated.items()
    }
    design = settings.design(block, local)
    given_courses = None
    if phase == "start":
        assert local is not None
        updated, entropy, precision = local, blank_entropy(local.mean), blank_precision(local.mean)
    else:
        covariates = None
        if (new or integrate) and settings.incomplete:
            covariates = np.asarray(block.columns[COVARIATES])
        courses, course_weights = None, globals_.courses if new else prepared.courses(each=each)
        if course_weights is not None:
            assert settings.smooth is not None
            courses = course_prior(settings.smooth, block, course_weights, each=each, new=new)
        updated, entropy, precision, given_courses = update_scores(
            settings, codes, design, local, globals_, evidence, courses, covariates
        )
        if settings.learns_sizes:
            assert local is not None
            packed = updated.variance if given_courses is None else given_courses.covariance
            if covariates is not None:  # scores of these stay
                packed = np.where(np.isnan(covariates).any(axis=1, keepdims=True), 0.0, packed)
            updated = update_log_sizes(
                settings,
                block,
                local,
                updated,
                packed,
                design,
                globals_,
                pseudo,
                tabulated,
            )
        if local is not None:
            share = step_fraction(settings, globals_, local, updated)
            if np.min(share) < 1.0:
                updated, entropy = interpolate_scores(settings, local, updated, entropy, share)
        if phase == "restart":
            fresh = blank_scores(settings, expected_scores(updated)[0])
            if settings.tangent and settings.full_scores and not settings.scores_spike:
                # x of a large loading would vary far too much
                fresh = replace(fresh, variance=updated.variance)
            else:
                entropy, precision = blank_entropy(updated.mean), blank_precision(updated.mean)
            updated = replace(
                fresh,
                noise_shape=updated.noise_shape,
                noise_rate=updated.noise_rate,
                log_sizes=updated.log_sizes,
                log_sizes_variance=updated.log_sizes_variance,
            )
    updated = round_scores(updated, settings)
    size_sums = None
    if settings.learns_sizes:
        assert local is not None
        pseudo, size_sums, of_sizes = at_log_sizes(settings, block, local, updated, globals_, pseudo)
        entropy += of_sizes
    free = sum(p.free for p in pseudo.values())
    if settings.sample_noise:
        updated, terms = _update_noise(settings, updated, design, evidence, globals_, pseudo, noise_group)
        free += terms
    return UpdatedRows(updated, design, pseudo, free, entropy, precision, given_courses, size_sums)


def _evidence(
    settings: Settings, block: Block, name: str, pseudo: Pseudo, table: Table, globals_: Globals
) -> Evidence:
    """Return what a view says about the scores.

    With courses products of the entries are kept: two sweeps running have the same loadings.
    """
    size, linear = globals_.n_factors + settings.n_given, None
    if globals_.courses is not None and settings.view(name).is_gaussian:
        given = (table.loadings,)
        linear = block.once(("linear", name), given, lambda: linear_term(pseudo, table, size))
    return evidence_of(pseudo, table, size, linear)


def update_samples(
    settings: Settings,
    block: Block,
    codes: Integer[Array, " B"],
    local: Local | None,
    prepared: PreparedGlobals,
    noise_group: int,
    phase: Phase,
    *,
    new: bool = False,
) -> tuple[Local, Stats]:
    """Update rows that share their noise precision, and return what they add up; see `update_rows`."""
    rows = update_rows(settings, block, codes, local, prepared, noise_group, phase, new=new)
    return rows.local, sum_statistics(settings, codes, rows, prepared.globals_)


def round_scores(local: Local, settings: Settings) -> Local:
    """Round q(z) to the precision of the data, so that all statistics speak of the same scores."""
    if settings.dtype == np.float64:
        return local
    return replace(local, mean=local.mean.astype(settings.dtype).astype(np.float64))


def prior_precision(globals_: Globals, codes: Integer[Array, " B"]) -> Float64[Array, "#B K"]:
    """Return the prior precision of the scores."""
    beta = globals_.scores.beta_shape / globals_.scores.beta_rate
    return beta if beta.shape[0] == 1 else beta[codes]


def update_scores(
    settings: Settings,
    codes: Integer[Array, " B"],
    design: Float64[Array, "B C"],
    local: Local | None,
    globals_: Globals,
    evidence: dict[str, Evidence],
    courses: CoursePrior | None = None,
    covariates: Float64[Array, "B J"] | None = None,
) -> tuple[Local, float, Float64[Array, " K"], Conditional | None]:
    """Maximise the bound over q(z) given everything else.

    Returns
    -------
    Local, float, array, Conditional or None
        q(z), its entropy, `UpdatedRows.precision`, and q(z) given the courses, where there are any.

    ``covariates``: covariates, NaN where they are not known: q of such rows is of z and them.
    """
    n_rows, n_factors = len(codes), globals_.n_factors
    noise = None
    if settings.sample_noise:
        assert local is not None
        assert local.noise_shape is not None
        noise = local.noise_shape / local.noise_rate
    pairs: Array = 0.0
    linear: Array = 0.0
    for m, view in enumerate(settings.views):
        e = evidence[view.name]
        if noise is not None and view.is_gaussian:
            rho = noise[:, m, None]
            pairs, linear = pairs + device.move_beside(rho, e.pairs) * e.pairs, linear + rho * e.linear
        else:
            pairs, linear = pairs + e.pairs, linear + e.linear
    prior, one = prior_precision(globals_, codes), np.ones(1)
    if courses is not None:
        prior = courses.precision
        linear = linear.copy()
        linear[:, :n_factors] += prior * courses.mean
    joint = None
    if covariates is not None:
        joint = solve_jointly(settings, covariates, device.on_host(pairs), linear, prior)
        design = np.concatenate([design[:, :1], joint.mean[:, n_factors:]], axis=1)
    h = _less_given(linear, pairs, design, n_factors)
    site_terms = None
    if settings.full_scores and not settings.scores_spike:
        mean, covariance, logdet = gfa.solve_normals(pairs, h, one, prior)
        if joint is not None:
            mean, covariance = joint.in_place_of(mean, covariance)
        if courses is not None:
            site_terms = None if courses.variance is None else Conditional(courses, covariance)
            covariance = spread_scores(courses, covariance)
        new = Local(mean, covariance)
        entropy = 0.5 * float(logdet.sum() + n_rows * n_factors)
    else:
        new, entropy = _coordinates(settings, codes, local, globals_, (pairs, h, prior))
        if joint is not None and not settings.nonnegative:
            new = joint.normal(new)
    if joint is not None:
        new = joint.with_covariates(new, expected_scores(new)[1], together=not settings.nonnegative)
    if local is not None:
        new = replace(new, noise_shape=local.noise_shape, noise_rate=local.noise_rate)
    own = [device.on_host(pairs[:, k * (k + 3) // 2])[:, None] for k in range(n_factors)]  # of the diagonal
    log_odds = np.log(np.concatenate([np.zeros((len(pairs), 0)), *own], axis=1) + prior)
    return new, entropy, log_odds.sum(axis=0) if len(log_odds) == n_rows else n_rows * log_odds[0], site_terms


def _less_given(
    linear: Float64[Array, "B L"],
    pairs: Float64[Array, "#B Q"],
    design: Float64[Array, "B C"],
    n_factors: int,
) -> Float64[Array, "B K"]:
    """Return the linear terms of the scores less what given columns explain."""
    h = linear[:, :n_factors]
    for c in range(design.shape[1]):
        h = h - design[:, c, None] * device.on_host(pairs[:, row_place(n_factors + c, n_factors)])
    return h


def _coordinates(
    settings: Settings,
    codes: Integer[Array, " B"],
    local: Local | None,
    globals_: Globals,
    system: tuple[Float64[Array, "#B Q"], Float64[Array, "B K"], Float64[Array, "#B K"]],
) -> tuple[Local, float]:
    """Update factorised scores, with or without a spike, one factor after the other."""
    pairs, h, prior = system
    if settings.nonnegative:
        assert local is not None
        return update_nonnegative(settings, codes, local, globals_, device.on_host(pairs), h)
    mean, variance, inclusion = np.zeros(h.shape), np.ones(h.shape), np.ones(h.shape)
    if local is not None and local.variance.shape == local.mean.shape:
        mean, variance = local.mean, local.variance
        inclusion = inclusion if local.inclusion is None else local.inclusion
    odds = None
    if settings.scores_spike:
        on, off = expected_log_beta(globals_.scores.psi_on, globals_.scores.psi_off)
        log_beta = digamma(globals_.scores.beta_shape) - np.log(globals_.scores.beta_rate)
        pick = slice(None) if on.shape[0] == 1 else codes
        odds = ((on - off)[pick], log_beta[pick])
    mean, variance, inclusion, entropy = gfa.coordinate_updates(
        device.on_host(pairs), h, np.ones(1), prior, (mean, variance, inclusion), odds
    )
    return Local(mean, variance, inclusion if settings.scores_spike else None), float(entropy.sum())


def _update_noise(
    settings: Settings,
    local: Local,
    design: Float64[Array, "B C"],
    evidence: dict[str, Evidence],
    globals_: Globals,
    pseudo: dict[str, Pseudo],
    noise_group: int,
) -> tuple[Local, float]:
    """Update q(rho) of each row in each Gaussian view; return it and its terms of the bound."""
    mean, spread = expected_scores(local)
    shape, rate = np.ones((mean.shape[0], len(settings.views))), np.ones((mean.shape[0], len(settings.views)))
    prior_shape, prior_rate, terms = *settings.priors.sample_noise, 0.0
    for m, view in enumerate(settings.views):
        if not view.is_gaussian:
            continue
        e, p = evidence[view.name], pseudo[view.name]
        tau = settings.precision(view.name, globals_.weights[view.name])[:, noise_group]
        squares = device.product(p.response.astype(np.float64) ** 2, tau)
        residual = squares + gfa.quadratic(e.linear, device.on_host(e.pairs), mean, spread, design, None)
        assert p.gaps is not None
        observed = p.gaps.n_features - p.gaps.missing
        shape[:, m], rate[:, m] = prior_shape + 0.5 * observed, prior_rate + 0.5 * residual
        terms += float(gamma_term(shape[:, m], rate[:, m], prior_shape, prior_rate).sum())
        terms += 0.5 * float(observed @ (digamma(shape[:, m]) - np.log(rate[:, m])))
    return replace(local, noise_shape=shape, noise_rate=rate), terms
