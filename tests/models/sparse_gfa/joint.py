"""Drawing from the joint distribution of the sampled model, one sweep at a time: for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from factorflow.core.block import Block, Meta, ViewMeta
from factorflow.core.covariates import COVARIATES, Column, Covariates, Term
from factorflow.core.places import PLACES, Places
from factorflow.kernels.random import Step
from factorflow.likelihoods import get_likelihood
from factorflow.models.sparse_gfa import SparseGFA
from factorflow.models.sparse_gfa.loadings.adaptive_shrinkage import AdaptiveShrinkage
from factorflow.models.sparse_gfa.loadings.drawn import EDGE, LoadingParameters
from factorflow.models.sparse_gfa.loadings.guided import Guided
from factorflow.models.sparse_gfa.loadings.horseshoe import Horseshoe
from factorflow.models.sparse_gfa.loadings.informed import Informed
from factorflow.models.sparse_gfa.loadings.nonnegative import Nonnegative
from factorflow.models.sparse_gfa.sampler import pooled
from factorflow.models.sparse_gfa.sampler.gibbs import ChoiceSweep, GibbsSweep
from factorflow.models.sparse_gfa.sampler.gibbs_state import (
    ChainGlobals,
    DrawnScores,
    DrawnView,
    DrawnWeights,
    Names,
    Record,
    Shared,
)
from factorflow.models.sparse_gfa.sampler.metropolis import corrected_views
from factorflow.models.sparse_gfa.settings import Priors, Settings, ViewSettings
from factorflow.models.sparse_gfa.smooth.basis import Basis
from factorflow.models.sparse_gfa.smooth.composite import Linear, Sum
from factorflow.models.sparse_gfa.smooth.courses import Courses, open_courses
from factorflow.models.sparse_gfa.smooth.evidence import multiply_transposed_root, root_of
from factorflow.models.sparse_gfa.smooth.points import Points
from factorflow.models.sparse_gfa.smooth.processes import LEVELS
from factorflow.models.sparse_gfa.smooth.rows import SmoothSettings
from factorflow.models.sparse_gfa.state import Fixed

PAIR = (3.0, 2.0)
PRIORS = Priors(intercept=PAIR, intercept_mean=1.0, beta=PAIR, sizes=PAIR)
MILD = (6.0, 1.0)
MILD_PRIORS = Priors(intercept=MILD, intercept_mean=4.0, beta=PAIR, sizes=MILD)
"""Where x is a logarithm: of counts of 10 000, which others lead to, chains stay for thousands of sweeps."""
VARIANCES, LEVEL = np.array([0.5, 1.0, 1.5, 3.0]), 1.5
"""Of the entries, as the prior of their noise sees them: constants here."""
N, K, D = 6, 2, 4
CODES = np.array([0, 1, 0, 1, 1, 0], np.int32)
AGES = np.array([[-1.2], [0.3], [1.5], [-0.6], [-0.9], [0.9]])
SHARE = 0.6
"""Of the variance of a factor that its course has."""
MOST = 1e6
"""Entries of data whose ranks are looked at: of counts of 1e16 precisions of 1 are below rounding."""
CLASSES = np.array([[1, 0], [1, 0], [0, 0], [0, 0]], np.int8)
"""Of loadings of whose prior there are classes: the first factor has a set, of half of the features."""
TIMES = np.array([0.0, 1.0, 1.0, 2.5, np.nan, 3.0])


def settings_of(
    kinds: tuple[str, ...],
    *,
    groups: bool,
    dense: bool | str = False,
    slab: bool = False,
    covariates: bool = False,
    courses: str = "",
    sizes: str = "none",
    intercepts: bool = True,
    scores: str = "auto",
    score_slab: str = "exponential",
    loadings: str = "spike_slab",
) -> Settings:
    """Return the settings of the sampler with priors that can be drawn from.

    ``dense``: whether loadings are "ard"; "first", "last": those of that view; ``covariates``: whether `AGES`
    are given; ``courses``: what scores are functions of, "time", or "levels" of groups and `AGES`;
    ``sizes``: of the first view, learned without computed ones; ``scores``, ``score_slab``: their prior;
    ``loadings``: the prior of those that are not "ard".
    """
    kind_of = {name: get_likelihood(name).kinds[0] for name in kinds}
    views = tuple(ViewMeta(f"v{i}", kind_of[name], D, "scattered") for i, name in enumerate(kinds))
    named: dict[str, Any] = {"groups": ("one", "two"), "group_sizes": (3, 3)} if groups else {}
    if covariates:
        named["covariates"] = Covariates((Column("age"),), (Term(("age",)),), (float((AGES**2).mean()),))
    dense_of = {"last": {views[-1].name: "ard"}, "first": {views[0].name: "ard"}}
    ard = dense_of.get(dense, "ard" if dense else "spike_slab")
    of_scores: Any = {"scores": scores, "slab": score_slab}
    config = SparseGFA(n_factors=K, n_draws=1, loadings=ard, precision=64, **of_scores)
    found = config.build(Meta(N, 1, 32, views, **named)).settings
    views = tuple(
        replace(v, likelihood=name, scattered=True) for v, name in zip(found.views, kinds, strict=True)
    )
    views = tuple(replace(v, loadings=loadings) if v.loadings != "ard" else v for v in views)
    views = (replace(views[0], learned_sizes="" if sizes == "none" else sizes), *views[1:])
    found = replace(found, intercepts=intercepts)
    found = replace(found, views=views, smooth=SmoothSettings(basis_of(courses), False) if courses else None)
    pair, priors = (MILD, MILD_PRIORS) if corrected_views(found) else (PAIR, PRIORS)
    if found.scores_spike:
        priors = replace(priors, beta=pair)
    views = tuple(replace(v, alpha_prior=pair) for v in views)
    return replace(found, priors=replace(priors, learned_slab=slab), views=views)


def basis_of(courses: str) -> Basis:
    """Return the functions that scores may be."""
    if courses == "time":
        times = np.unique(TIMES[np.isfinite(TIMES)])
        cells = tuple((0.0, float(t)) for t in times)
        return Points(Places(("t",), (0,), (), (0.0,), (3.0,), (0.5,), (), cells, N - 1), "matern32")
    levels = Places(("l",), (0,), (), (0.0,), (1.0,), (1.0,), (), ((0.0, 0.0), (0.0, 1.0)), N, ("a", "b"))
    return Sum((Points(levels, LEVELS), Linear(Covariates((Column("age"),), (Term(("age",)),), (1.0,)))))


def places_of(settings: Settings) -> Any:
    """Return what courses are read from."""
    assert settings.smooth is not None
    return TIMES[:, None] if isinstance(settings.smooth.basis, Points) else np.column_stack([CODES, AGES])


def courses_of(rng: Any, settings: Settings) -> tuple[Any, Courses]:
    """Return courses drawn from their prior, at the rows and as they are."""
    assert settings.smooth is not None
    basis, places = settings.smooth.basis, places_of(settings)
    known = np.isfinite(places).all(axis=1)
    functions = basis.functions(np.where(known[:, None], places, 0.0), np.zeros(N, np.int64)) * known[:, None]
    centre = functions.sum(axis=0) / known.sum()
    functions = (functions - centre) * known[:, None]
    second, size = functions.T @ functions / known.sum(), basis.size
    courses = open_courses(basis, centre, second, float(known.sum()), K, SHARE)
    v, mean = rng.normal(size=(K, size)), np.zeros((K, size))
    for k in range(K):
        scaled, _ = basis.scaled_covariance(courses.lengths[k], courses.sharing[k], second)
        mean[k] = multiply_transposed_root(root_of(SHARE * scaled).T, v[k][:, None])[:, 0]
    energy, none = (v**2).sum(axis=1), np.zeros((K, 0, 0))
    return functions @ mean.T, replace(courses, mean=mean, energy=energy, covariance=none)


def loadings_of(
    rng: Any, view: ViewSettings, alpha: Any, theta: Any
) -> tuple[Any, LoadingParameters, dict[str, Any]]:
    """Return loadings drawn from their prior, what they share, and classes of a view that has any.

    ``theta``: from the prior that views have in common.
    """
    prior, shares, classes, unit = view.prior, None, {}, rng.normal(size=(D, K))
    share = theta
    if isinstance(prior, Horseshoe):
        c = rng.choice(prior.scales, (D, K), p=np.exp(prior.shares))
        return unit * c / np.sqrt(alpha), LoadingParameters(alpha, theta), classes
    if isinstance(prior, AdaptiveShrinkage):
        shares = rng.dirichlet(np.ones(10), K).T
        scales = np.array([0.0, *2.0 ** np.arange(-5.0, 4.0)])
        c = np.stack([rng.choice(scales, D, p=one) for one in shares.T], axis=1)
        return unit * c / np.sqrt(alpha), LoadingParameters(alpha, 1.0 - shares[0], shares), classes
    if isinstance(prior, Nonnegative):
        unit = np.abs(unit)
        if prior.power == 1.0:
            return (
                rng.exponential(size=(D, K)) / alpha * (rng.random((D, K)) < theta),
                LoadingParameters(alpha, theta),
                classes,
            )
    if isinstance(prior, Informed):
        classes = {view.name: CLASSES}
        theta = np.where(CLASSES.any(axis=0), rng.beta(1.0, 20.0, K), theta)
        shares = rng.beta(4.0, 1.0, (1, K))
        share = np.where(CLASSES == 1, shares, theta)
    if isinstance(prior, Guided):
        classes, share = {view.name: CLASSES}, CLASSES
    on = rng.random((D, K)) < share if view.spikes or prior.guides else 1.0
    return unit / np.sqrt(alpha) * on, LoadingParameters(alpha, theta, shares), classes


def prior(rng: Any, settings: Settings) -> tuple[Any, ChainGlobals]:
    """Return scores and globals drawn from the prior."""
    beta = np.ones((settings.n_groups, K))
    if settings.scores_prior != "normal":
        shape, rate = settings.priors.beta
        beta = rng.gamma(shape, 1 / rate, beta.shape)
    groups, f, courses = CODES if settings.n_groups > 1 else np.zeros(N, int), np.zeros((N, K)), None
    if settings.smooth is not None:
        f, courses = courses_of(rng, settings)
        beta = np.stack([np.ones(K), 1.0 / courses.noise])
        groups = np.isfinite(places_of(settings)).all(axis=1).astype(int)
    z, psi = f + rng.normal(size=(N, K)) / np.sqrt(beta[groups]), None
    if settings.scores_spike:
        psi = rng.beta(*settings.priors.psi, beta.shape)
        z = np.abs(z) if settings.nonnegative else z
        z = rng.exponential(size=z.shape) / beta[groups] if settings.score_power == 1.0 else z
        z = z * (rng.random(z.shape) < psi[groups])
    weights, views, fixed, variances, classes = {}, {}, {}, {}, {}
    slab = None
    if settings.priors.learned_slab:
        slab = pooled.SlabPrior(float(rng.choice(pooled.ALIKE)), rng.exponential())
    mean, concentration = rng.choice(pooled.MEANS), rng.choice(pooled.CONCENTRATIONS)
    for view in settings.views:
        shape, rate = slab.parameters if slab else view.alpha_prior
        alpha = rng.gamma(shape, size=K) / rate
        theta = rng.beta(mean * concentration, (1.0 - mean) * concentration, K).clip(EDGE, 1.0 - EDGE)
        m = rng.normal() / np.sqrt(settings.priors.intercept_mean)
        lam = rng.gamma(settings.priors.intercept[0]) / settings.priors.intercept[1]
        w, own, of_view = loadings_of(rng, view, alpha, theta)
        classes |= of_view
        b = m + rng.normal(size=(D, 1)) / np.sqrt(lam)
        tau = noise = phi = None
        if view.is_gaussian:
            a, power = rng.choice(pooled.ALIKE), rng.choice(pooled.POWERS)
            noise = pooled.NoisePrior(float(a), rng.exponential(), float(power), LEVEL)
            tau = rng.gamma(a, size=(D, 1)) / noise.rates(VARIANCES)[:, None]
            variances[view.name] = VARIANCES
        elif view in corrected_views(settings):
            density = view.density
            phi = density.phi_mean + density.phi_sd * rng.normal(size=(D, density.n_phi))
        if not settings.has_intercepts(view):
            b = 0.0 * b
        if not view.density.has_intercept:
            m, lam = 0.0, view.density.n_phi / view.density.phi_sd**2
        terms = rng.gamma(settings.priors.intercept[0], size=settings.n_terms) / settings.priors.intercept[1]
        others = rng.normal(size=(D, settings.n_given - 1)) / np.sqrt(terms[settings.term_of_column])
        weights[view.name] = DrawnWeights(w, np.concatenate([b, others], axis=1), tau, phi=phi)
        of_intercepts = float(m), float(lam)
        views[view.name] = DrawnView(alpha, own.theta, *of_intercepts, noise, terms, own.shares)
        zeros = np.zeros((D, 1))
        fixed[view.name] = Fixed(zeros[:, 0], np.ones(D), zeros[:, 0], zeros, zeros, zeros)
    shared = Shared(views, beta, slab, psi=psi)
    size = K + len(settings.learned_sizes)
    rest = (
        np.eye(size),
        np.zeros((settings.n_given, size)),
        Record(weights, shared, courses),
        Names.of(weights.values()),
    )
    n_sizes = len(settings.learned_sizes)
    shape, rate = settings.priors.sizes
    shared = replace(shared, sizes=rng.gamma(shape, size=n_sizes) / rate)
    z = np.concatenate([z, rng.normal(size=(N, n_sizes)) / np.sqrt(shared.sizes)], axis=1)
    return z, ChainGlobals(fixed, weights, shared, variances, *rest, courses=courses, classes=classes)


def observe(
    rng: Any, settings: Settings, z: Any, g: ChainGlobals, missing: Any
) -> tuple[dict[str, Any], ChainGlobals]:
    """Return new entries given everything, and the globals that know them: squares, reference."""
    data, fixed, reference = {}, {}, {}
    for view in settings.views:
        mine = g.weights[view.name]
        x, none = predictors(settings, z, mine, view.name), np.nan
        if mine.precision is not None:
            y = x + rng.normal(size=x.shape) / np.sqrt(mine.precision[:, 0])
        else:
            phi = np.empty((0, D)) if mine.phi is None else mine.phi.T
            y = view.density.draw(rng.random(x.shape), x, phi)
            none = -1 if view.kind == "bernoulli" else np.nan
        y = np.where(missing, none, y)
        data[view.name] = y.astype(np.int8) if view.kind == "bernoulli" else y
        count, squares = (~missing).sum(axis=0)[:, None], np.nansum(y**2, axis=0)[:, None]
        fixed[view.name] = replace(g.fixed[view.name], count=count.astype(float), squares=squares)
        if mine.phi is not None:
            reference[view.name] = reference_of(settings, view, np.where(missing, np.nan, y))
    return data, replace(g, fixed=fixed, reference=reference)


def design_of(settings: Settings) -> Any:
    """Return the given columns."""
    return np.column_stack([np.ones(N), AGES])[:, : settings.n_given]


def predictors(settings: Settings, z: Any, mine: DrawnWeights, name: str) -> Any:
    """Return x of all entries of a view; ``z``: scores, and learned size factors."""
    return z @ mine.extended(settings.size_column(name)).T + design_of(settings) @ mine.coefficients.T


def moved_scores(settings: Settings, z: Any, g: ChainGlobals) -> Any:
    """Return the scores that a chain goes on from."""
    return z @ g.transform.T + design_of(settings) @ g.shift


def reference_of(settings: Settings, view: ViewSettings, y: Any) -> DrawnWeights:
    """Return parameters without factors in the place of those of a fit: they depend on the data alone."""
    n, total = np.maximum((y == y).sum(axis=0), 1), np.nansum(y, axis=0)
    level = view.density.intercept(n.astype(float), total)
    coefficients = np.column_stack([level, np.zeros((D, settings.n_given - 1))])
    return DrawnWeights(
        np.zeros((D, K)), coefficients, None, phi=np.full((D, view.density.n_phi), view.density.phi_mean)
    )


def fit_of(settings: Settings, data: Any, reference: Any) -> tuple[Any, Any]:
    """Return scores and parameters that a run would begin with, in place of a fit: they depend on data alone.

    Alternate Newton steps of rows and features of views with Metropolis steps, from ``reference`` on, with
    precisions of 1 of all but intercepts; a step moves no predictor by more than 2.
    """
    design, weights, sizes = design_of(settings), dict(reference), len(settings.learned_sizes)
    z = np.concatenate([np.random.default_rng(0).normal(size=(N, K)), np.zeros((N, sizes))], axis=1)
    for _ in range(60):
        linear, square = -z, np.tile(np.eye(K + sizes), (N, 1, 1))
        for name, mine in weights.items():
            view, y, column = settings.view(name), data[name], settings.size_column(name)
            own, x = np.concatenate([z[:, :K], design], axis=1), predictors(settings, z, mine, name)
            _, slope, u = view.density.message(y, x, 0.0 * x, mine.phi.T)
            prior = np.diag(np.append(np.ones(K), np.full(design.shape[1], 0.1)))
            left = own.T @ slope - prior @ mine.whole.T
            whole = mine.whole + _newton_step(np.einsum("nd,nk,nj->dkj", u, own, own) + prior, left.T, own)
            weights[name] = mine = replace(mine, loadings=whole[:, :K], coefficients=whole[:, K:])
            x, loadings = predictors(settings, z, mine, name), mine.extended(column)
            _, slope, u = view.density.message(y, x, 0.0 * x, mine.phi.T)
            linear = linear + slope @ loadings
            square = square + np.einsum("nd,dk,dj->nkj", u, loadings, loadings)
        rows = np.concatenate([mine.extended(settings.size_column(name)) for name, mine in weights.items()])
        z = z + _newton_step(square, linear, rows)
    return z, weights


def _newton_step(square: Any, linear: Any, columns: Any) -> Any:
    step = np.linalg.solve(square, linear[:, :, None])[:, :, 0]
    return step * np.minimum(1.0, 2.0 / np.maximum(np.abs(step @ columns.T).max(axis=1), 1e-9))[:, None]


def statistics_of(sweep: Any, data: Any, local: Any, g: ChainGlobals, step: Step) -> tuple[Any, ...]:
    """Return scores, statistics, and what features draw and add up in a pass."""
    columns: dict[str, Any] = {"group": CODES} if sweep.settings.groups else {}
    if sweep.settings.covariates is not None:
        columns[COVARIATES] = AGES
    if sweep.settings.smooth is not None:
        columns[PLACES] = places_of(sweep.settings)
    block = Block(0, 0, N, 1, data, columns=columns)
    local, stats = sweep.map(block, local, sweep.prepare(g), step)
    found = {name: sweep.features(name, range(D), g, stats, step) for name in sweep.axes()}
    return local, stats, *({name: pair[i] for name, pair in found.items()} for i in (0, 1))


def sweep_once(
    sweep: GibbsSweep, data: Any, local: Any, g: ChainGlobals, step: Step
) -> tuple[Any, ChainGlobals]:
    passes = (sweep, ChoiceSweep(sweep.settings)) if corrected_views(sweep.settings) else (sweep,)
    for each in passes:
        local, stats, parts, sums = statistics_of(each, data, local, g, step)
        g, _ = each.assemble(g, stats, parts, sums, step)
    return local, g


def summaries(z: Any, g: ChainGlobals | Record) -> list[float]:
    z, sizes = z[:, :K], z[:, K:]
    out = [np.tanh(z).mean(), (np.tanh(z) ** 2).mean(), np.log(g.shared.beta).mean()]
    if g.shared.psi is not None:
        psi, on = g.shared.psi, z != 0.0
        out += [psi.mean(), (psi**2).mean(), on.mean(), np.tanh(np.abs(z)).mean(), psi[0] @ on[0]]
        out += [(psi * np.tanh(g.shared.beta)).mean(), (on[0] * np.tanh(g.shared.beta[0])).mean()]
    if sizes.size:
        b = next(iter(g.weights.values())).coefficients[:, 0]
        out += [np.tanh(sizes).mean(), (np.tanh(sizes) ** 2).mean(), *np.log(g.shared.sizes)]
        out += [np.tanh(sizes).mean() * np.tanh(b).mean(), np.tanh(sizes[0]).sum()]
    if g.courses is not None:
        c = np.tanh(g.courses.mean)
        out += [
            c.mean(),
            (c**2).mean(),
            np.tanh(g.courses.energy).mean(),
            (c.mean(axis=1) @ np.tanh(z[0])).sum(),
        ]
    if g.shared.slab is not None:
        out += [np.log(g.shared.slab.shape), np.log(g.shared.slab.mean)]
    for name, mine in g.weights.items():
        w, b, v = mine.loadings, mine.coefficients[:, 0], g.shared.views[name]
        out += [(w != 0).mean(), (np.tanh(w) ** 2).mean(), np.tanh(b).mean(), (np.tanh(b) ** 2).mean()]
        for column in mine.coefficients[:, 1:].T:
            out += [np.tanh(column).mean(), (np.tanh(column) ** 2).mean(), *np.log(v.term_precision)]
            out += [
                (np.tanh(column) * np.tanh(b)).mean(),
                (np.tanh(AGES.T @ z) * (np.tanh(column @ w))).mean(),
            ]
        out += [np.log(v.alpha).mean(), v.theta.mean(), (v.theta**2).mean(), np.tanh(v.intercept_mean)]
        out += [np.tanh(v.intercept_mean) ** 2, np.log(v.intercept_precision), (v.theta * (w != 0)).mean()]
        if v.shares is not None:
            out += [*(v.shares**2).mean(axis=1), *(v.shares * (w != 0).mean(axis=0)).mean(axis=1)]
            out += [(w[CLASSES == 1] != 0.0).mean(), np.tanh(v.alpha).mean() * np.tanh(w**2).mean()]
        out += [(np.tanh(np.abs(z).mean(axis=0) * np.abs(w).mean(axis=0))).mean()]
        if mine.precision is not None:
            logs = np.log(mine.precision).ravel()
            out += [logs.mean(), np.tanh(logs).std(), np.log(v.noise.shape), np.log(v.noise.mean)]
            out += [v.noise.power, v.noise.power * (logs @ np.log(VARIANCES))]
        if mine.phi is not None and mine.phi.size:
            out += [mine.phi.mean(), np.tanh(mine.phi).mean(), np.abs(mine.phi).mean()]
            out += [(np.tanh(mine.phi[:, 0]) * np.tanh(b)).mean()]
    return [float(x) for x in out]


def invariants(settings: Settings, z: Any, g: ChainGlobals) -> dict[str, list[float]]:
    """Return summaries that do not change with signs and order of the factors: of parameters by what they are
    of, of loadings and scores (squared lengths), a few predictors.
    """
    x = [predictors(settings, z, mine, name)[:2, :2].ravel() for name, mine in g.weights.items()]
    w = [(mine.loadings**2).sum(axis=1) for mine in g.weights.values()]
    return {
        "parameters": summaries(z, g)[1:],
        "loadings": np.concatenate(w).tolist(),
        "scores": (z[:, :K] ** 2).sum(axis=1).tolist(),
        "predictors": np.concatenate(x).tolist(),
    }


def ranks(sweep: GibbsSweep, seed: int, n_burn_in: int, n_draws: int, thin: int) -> dict[str, Any]:
    """Return the rank of each invariant of parameters from the prior among draws given their data.

    The chain starts from other parameters, drawn from the prior too; those of views with Metropolis steps,
    and the scores, from `fit_of`, which their stand-ins are of: as in a run. Which data are taken depends on
    these alone (`MOST`): ranks stay uniform. Ties, of what is discrete, are broken at random.
    """
    settings, rng = sweep.settings, np.random.default_rng([11, seed])
    missing = rng.random((N, D)) < 0.2
    data: dict[str, Any] = {"none": np.inf}
    while max(np.nanmax(np.abs(y)) for y in data.values()) > MOST:
        z, g = prior(rng, settings)
        data, known = observe(rng, settings, z, g, missing)
    named, (_, start) = invariants(settings, z, g), prior(rng, settings)
    truth = np.concatenate(list(named.values()))
    g, local = replace(start, fixed=known.fixed, reference=known.reference), None
    if known.reference:
        scores, weights = fit_of(settings, data, known.reference)
        g = replace(g, weights={**g.weights, **weights}, reference=weights)
        local = DrawnScores(scores, reference=scores)
    below, equal = np.zeros(len(truth)), np.zeros(len(truth))
    for i in range(n_burn_in + n_draws * thin):
        local, g = sweep_once(sweep, data, local, g, Step(seed, 0, i))
        if i >= n_burn_in and (i - n_burn_in) % thin == thin - 1:
            now = invariants(settings, moved_scores(settings, local.values, g), g)
            drawn = np.concatenate(list(now.values()))
            same = np.isclose(drawn, truth, rtol=1e-12, atol=0.0)
            equal += same
            below += (drawn < truth) & ~same
    found = below + np.floor(rng.random(len(truth)) * (equal + 1.0))
    ends = np.cumsum([len(values) for values in named.values()])[:-1]
    return dict(zip(named, np.split(found, ends), strict=True))
