"""Sparse group factor analysis with draws: a variational fit, then Gibbs sampling of its model.

The chains share the fit and part with the first sweep. Likelihoods are exact, whatever the fit approximates:
by their augmentation (binary entries), else by Metropolis steps. The factors are those that the fit kept. The
priors of noise, slabs and shares of loadings, flat in the fit, are learned (`pooled`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float64, Shaped

from factorflow.likelihoods import Likelihood
from factorflow.likelihoods.predictive import Predictive
from factorflow.models.contract import Array, Block, Model, Stage, Step, Sweep, Variable
from factorflow.models.sparse_gfa import prediction, results
from factorflow.models.sparse_gfa.learned_sizes import computed_sizes
from factorflow.models.sparse_gfa.model import SparseGFAModel
from factorflow.models.sparse_gfa.pseudo_data import PreparedGlobals, expected_scores
from factorflow.models.sparse_gfa.sampler.gibbs import ChoiceSweep, GibbsSweep
from factorflow.models.sparse_gfa.sampler.gibbs_state import ChainGlobals, DrawnScores, DrawnView, first_draw
from factorflow.models.sparse_gfa.sampler.metropolis import corrected_views
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.smooth.results import course_labels, course_variables
from factorflow.models.sparse_gfa.smooth.rows import SmoothSettings
from factorflow.models.sparse_gfa.state import Globals, Local
from factorflow.models.variables import AVERAGES
from factorflow.trees import replace

__all__ = ["SampledGFAModel"]

DRAWN, NOT_DRAWN = (
    {"course", "score_coefficients"},
    {"course_covariance", "course_centre", "course_second", "score_coefficients_variance"},
)
"""Of the variables of courses those with draws, and those that chains do not have; others stay as fitted."""


@dataclass(frozen=True)
class SampledGFAModel(Model[Globals | ChainGlobals, Local | DrawnScores]):
    """A fit, and the chains that start from it.

    Parameters
    ----------
    fit : SparseGFAModel
        The variational model.
    n_draws, n_burn_in, thin, chains : int
        As in the configuration.
    learned_slab : bool
        Whether the chains learn the prior of alpha.
    """

    fit: SparseGFAModel
    n_draws: int
    n_burn_in: int
    thin: int
    chains: int
    learned_slab: bool
    kind: ClassVar[Literal["variational", "monte carlo"]] = "monte carlo"
    symmetry: ClassVar[Literal["none", "sign", "flip"]] = "sign"

    @property
    def n_chains(self) -> int:
        """Independent chains."""
        return self.chains

    @property
    def settings(self) -> Settings:
        """Settings of the sampler."""
        priors = replace(self.fit.settings.priors, learned_slab=self.learned_slab)
        return replace(self.fit.settings, priors=priors)

    def stages(self) -> tuple[Stage[Any], ...]:
        """Return the stages of the fit, once for all chains, then burn-in and sampling."""
        fit: list[Stage[Any]] = [replace(stage, shared=True, closing=False) for stage in self.fit.stages()]
        enter = partial(first_draw, self.settings)
        burn_in = Stage[Any]("burn-in", self._sweeps(keep=False), self.n_burn_in, enter=enter)
        sampling = Stage[Any](
            "sampling",
            self._sweeps(keep=True),
            self.n_draws * self.thin,
            keep=True,
            thin=self.thin,
            enter=None if self.n_burn_in else enter,
        )
        return (*fit, burn_in, sampling) if self.n_burn_in else (*fit, sampling)

    def _sweeps(self, *, keep: bool) -> tuple[Sweep[Any, Any, Any], ...]:
        """Return the passes of a sweep."""
        first = GibbsSweep(self.settings, keep=keep)
        return (first, ChoiceSweep(self.settings)) if corrected_views(self.settings) else (first,)

    def init(self, step: Step) -> Globals:
        """Return globals before any data are seen."""
        return self.fit.init(step)

    def variables(self) -> tuple[Variable, ...]:
        """Return the table of variables."""
        return _variables(self.settings)

    def coords(self, globals_: Globals | ChainGlobals) -> Mapping[str, Sequence[str]]:
        """Return the labels of factors and views."""
        names = [view.name for view in self.settings.views]
        labels = {"factor": self.factor_names(globals_.n_factors, globals_.numbers), "view": names}
        covariates = self.settings.covariates
        smooth = self.settings.smooth
        labels |= {} if covariates is None else covariates.coords
        return labels if smooth is None else labels | course_labels(smooth)

    def prepare(self, globals_: Globals | ChainGlobals) -> PreparedGlobals | ChainGlobals:
        """Return what `finish` reads: of a run that ended before its chains began, the fit."""
        return PreparedGlobals(self.fit.settings, globals_) if isinstance(globals_, Globals) else globals_

    def finish(
        self,
        block: Block,
        local: Local | DrawnScores | None,
        globals_: PreparedGlobals | ChainGlobals,
        step: Step,
    ) -> Averages:
        """Return means and variances over the draws of a chain."""
        fixed = globals_.globals_.fixed if isinstance(globals_, PreparedGlobals) else globals_.fixed
        beside = np.exp(computed_sizes(self.settings, block, fixed)), self.settings.design(block)[:, 1:]
        if isinstance(local, DrawnScores):
            if local.total is None or local.squares is None:
                return Averages(local.values, np.zeros(local.values.shape), *beside)
            mean, k = local.total / local.n_kept, local.values.shape[1]
            spread = np.maximum(local.squares / local.n_kept - mean**2, 0.0)
            return Averages(mean[:, :k], spread[:, :k], *beside, mean[:, k:], spread[:, k:])
        assert isinstance(globals_, PreparedGlobals)
        expected, _ = expected_scores(results.finish(self.fit.settings, block, local, globals_, step).q)
        return Averages(expected, np.zeros(expected.shape), *beside)

    def projection(self) -> tuple[Sweep[Any, Any, Any], ...]:
        """Return the sweep that draws the scores of new samples."""
        return (GibbsSweep(self.settings, keep=True),)

    def predict(
        self, block: Block, rows: Mapping[str, Array], record: Mapping[str, Array], view: str
    ) -> tuple[Float64[Array, "B D"], Float64[Array, "B D"]]:
        """Return mean and standard deviation of new observations over all draws, on the data scale."""
        aux = prediction.aux_of_new(self.settings, block, view)
        return _predict(self.settings, rows, record, view, aux)

    def predictive(
        self, block: Block, rows: Mapping[str, Array], record: Mapping[str, Array], view: str
    ) -> Predictive | None:
        """Return the distribution of new observations of a view that is not Gaussian."""
        aux = prediction.aux_of_new(self.settings, block, view)
        return _predictive(self.settings, rows, record, view, aux)

    def alone(self, globals_: Globals | ChainGlobals, view: str) -> tuple[Array, Array] | None:
        """Return the likelihood fitted to each feature of a view alone."""
        return prediction.alone(self.settings, globals_.fixed[view], view)

    def likelihood(self, view: str) -> Likelihood:
        """Return the likelihood of the entries of a view."""
        return self.settings.view(view).density


@dataclass(frozen=True)
class Averages:
    """Mean and variance of the scores of a block over the draws of a chain, and of what is beside them.

    Size factors, covariates; means and variances of the courses, where scores have any.
    """

    mean: Float64[np.ndarray, "B K"]
    variance: Float64[np.ndarray, "B K"]
    size_factors: Float64[np.ndarray, "B M"]
    covariates: Float64[np.ndarray, "B J"]
    courses: Float64[np.ndarray, "B courses"] | None = None
    courses_variance: Float64[np.ndarray, "B courses"] | None = None

    def of_courses(self, values: Float64[np.ndarray, "B courses"] | None) -> Float64[np.ndarray, "B K"]:
        """Return means or variances of the courses; 0 where the run ended before there were draws."""
        return np.zeros(self.mean.shape) if values is None else values


def _variables(settings: Settings) -> tuple[Variable, ...]:
    names = [view.name for view in settings.views]
    single = partial(Variable, rows=True, dtype="float32")

    def each(value: Callable[[DrawnView], object]) -> Callable[[ChainGlobals], Array]:
        return lambda g: np.stack([np.asarray(value(g.record.shared.views[name])) for name in names])

    table = [
        single(
            "scores", results.SCORE, "Score of a sample on a factor, z: mean over draws.", lambda f: f.mean
        ),
        single("scores_variance", results.SCORE, "Variance of a score over draws.", lambda f: f.variance),
        single("scores_draws", results.SCORE, "z, every draw.", lambda local: local.stored, draws=True),
        Variable(
            "alpha",
            ("view", "factor"),
            "Precision of the loadings that are not 0, on the model's scale.",
            each(lambda v: v.alpha),
        ),
        Variable("intercept_mean", ("view",), "Mean of the intercepts, m.", each(lambda v: v.intercept_mean)),
        Variable(
            "intercept_precision",
            ("view",),
            "Precision of the intercepts about it, lambda.",
            each(lambda v: v.intercept_precision),
        ),
    ]
    if settings.sized:
        doc = "Size factor of a sample in a view; 1 where the view has none."
        sizes = Variable("size_factors", ("obs", "view"), doc, lambda f: f.size_factors, rows=True)
        table.append(sizes)
    if settings.covariates is not None:
        table.append(results.covariates_variable(lambda rows: rows.covariates))
        doc = "Precision of the coefficients of a term, on the model's scale."
        precision = each(lambda v: v.term_precision)
        table.append(Variable("coefficient_precision", ("view", "term"), doc, precision))
    if any(view.spikes for view in settings.views):
        doc = "Share of loadings that are not 0."
        table.append(Variable("theta", ("view", "factor"), doc, partial(_theta, settings)))
    if settings.scores_prior != "normal":
        dims = ("group", "factor") if settings.groups else ("factor",)
        doc = "Prior precision of scores, beta."
        table.append(Variable("score_precision", dims, doc, lambda g: _beta(settings, g)))
    if settings.smooth is not None:
        table += _courses_table(settings.smooth)
    for view in settings.views:
        table += _view_table(settings, view.name)
    return tuple(table)


def _courses_table(smooth: SmoothSettings) -> Iterator[Variable]:
    """Yield the variables of the courses: of draws, and the parameters that are those of the fit."""
    doc = "Course of a factor at the place of a sample, f: mean over draws."
    course = "smooth_scores"
    yield Variable(course, results.SCORE, doc, lambda rows: rows.of_courses(rows.courses), rows=True)
    doc, name = "Variance of it over draws.", f"{course}_variance"
    yield Variable(name, results.SCORE, doc, lambda rows: rows.of_courses(rows.courses_variance), rows=True)
    for variable in course_variables(smooth):
        if variable.name not in NOT_DRAWN:
            group = "" if variable.name in DRAWN else AVERAGES
            yield replace(variable, value=partial(_of_record, variable), group=group)


def _of_record(variable: Variable, sample: ChainGlobals) -> Array:
    """Return the value of a variable of the courses in a draw."""
    return np.asarray(
        variable.value(SimpleNamespace(courses=sample.record.courses, n_factors=sample.n_factors))
    )


def _theta(settings: Settings, sample: ChainGlobals) -> Float64[Array, "M K"]:
    """Return the share of loadings that are not 0, of each view."""
    ones, views = np.ones(sample.n_factors), sample.record.shared.views
    return np.stack([views[view.name].theta if view.spikes else ones for view in settings.views])


def _beta(settings: Settings, sample: ChainGlobals) -> Float64[Array, "*G K"]:
    """Return the prior precision of scores, by group where there are any."""
    beta = sample.record.shared.beta
    return beta if settings.groups else beta[0]


def _view_table(settings: Settings, name: str) -> Iterator[Variable]:
    """Yield the variables of a view, on the data's own scale."""
    feature = f"feature_{name}"

    def loadings(g: ChainGlobals) -> Float64[Array, "D K"]:
        return g.record.weights[name].loadings

    def scale(g: ChainGlobals) -> Float64[Array, " D"]:
        return g.fixed[name].scale

    def phi(name_shown: str, g: ChainGlobals) -> Float64[Array, " D"]:
        values = g.record.weights[name].phi
        assert values is not None
        return np.asarray(settings.view(name).density.report_phi(values.T, scale(g))[name_shown])

    yield Variable(
        f"loadings_{name}",
        (feature, "factor"),
        "Loading in data units, w, 0 where s = 0.",
        lambda g: loadings(g) * scale(g)[:, None],
    )
    yield Variable(
        f"intercept_{name}",
        (feature,),
        "Intercept in data units, b.",
        lambda g: (
            g.record.weights[name].coefficients[:, 0] * scale(g)
            + settings.view(name).level(g.fixed[name].reference)
        ),
    )
    if settings.covariates is not None:
        yield Variable(
            f"coefficients_{name}",
            (feature, "covariate"),
            "Coefficient of a covariate in data units.",
            lambda g: g.record.weights[name].coefficients[:, 1:] * scale(g)[:, None],
        )
    if settings.view(name).spikes:
        doc = "Whether a loading is not 0, s."
        yield Variable(
            f"inclusion_{name}", (feature, "factor"), doc, lambda g: loadings(g) != 0.0, dtype="uint8"
        )
    for variable, doc in settings.view(name).density.phi_variables.items():
        yield Variable(f"{variable}_{name}", (feature,), doc, partial(phi, variable))
    if settings.view(name).is_gaussian:
        doc = "Noise precision in data units, tau."
        yield Variable(
            f"noise_precision_{name}",
            (feature,),
            doc,
            lambda g: g.record.weights[name].precision[:, 0] / scale(g) ** 2,
        )


def _predict(
    settings: Settings,
    rows: Mapping[str, Array],
    record: Mapping[str, Shaped[Array, "C M ..."]],
    name: str,
    aux: Float64[Array, "B D"] | None = None,
) -> tuple[Float64[Array, "B D"], Float64[Array, "B D"]]:
    """Return mean and standard deviation of new observations over all draws."""
    view, noise = settings.view(name), 0.0
    if view.is_gaussian:
        noise = (1.0 / np.asarray(record[f"noise_precision_{name}"])).mean(axis=(0, 1))

    def moments(x: Float64[Array, "B D"], phi: Float64[Array, "P D"]) -> tuple[Array, Array | float]:
        return (x, noise) if view.is_gaussian else view.density.moments(x, phi, aux)

    mean, variance = _over_draws(settings, rows, record, name, moments)
    return mean, np.sqrt(variance)


def _predictive(
    settings: Settings,
    rows: Mapping[str, Array],
    record: Mapping[str, Shaped[Array, "C M ..."]],
    name: str,
    aux: Float64[Array, "B D"] | None = None,
) -> Predictive | None:
    """Return the distribution of new observations, x taken for normal over draws; None of Gaussian views."""
    view = settings.view(name)
    if view.is_gaussian:
        return None
    mean, variance = _over_draws(settings, rows, record, name, lambda x, phi: (x, 0.0))
    phi = np.mean([phi for *_, phi in _draws(settings, record, name)], axis=0)
    return Predictive(view.density, mean, variance, phi, aux)


def _draws(
    settings: Settings, record: Mapping[str, Shaped[Array, "C M ..."]], name: str
) -> Iterator[tuple[Float64[Array, "D L"], Float64[Array, " D"], Float64[Array, "P D"]]]:
    """Yield what belongs to the features in every draw, chain by chain, in data units.

    Loadings and coefficients of covariates side by side, intercepts, nuisance parameters.
    """
    density = settings.view(name).density
    loadings, intercept = (np.asarray(record[f"{key}_{name}"]) for key in ("loadings", "intercept"))
    report = {key: np.asarray(record[f"{key}_{name}"]) for key in density.phi_variables}
    if settings.covariates is not None:
        loadings = np.concatenate([loadings, np.asarray(record[f"coefficients_{name}"])], axis=-1)
    for at in np.ndindex(loadings.shape[:2]):
        phi = density.phi_from_report({key: values[at] for key, values in report.items()})
        yield loadings[at], intercept[at], phi


def _over_draws(
    settings: Settings,
    rows: Mapping[str, Array],
    record: Mapping[str, Shaped[Array, "C M ..."]],
    name: str,
    moments: Callable[[Array, Array], tuple[Array, Array | float]],
) -> tuple[Float64[Array, "B D"], Float64[Array, "B D"]]:
    """Return mean and variance over draws of x of what has these moments given x."""
    scores = np.asarray(rows["scores_draws"])
    scores = scores.reshape(scores.shape[0] * scores.shape[1], *scores.shape[2:])
    covariates = np.zeros((scores.shape[1], 0))
    if settings.covariates is not None:
        covariates = _of_one_chain(rows["covariates"])
    # squares about the intercepts of measurements, which may be far from 0
    scaled = settings.view(name).is_scaled
    place = np.asarray(record[f"intercept_{name}"]).mean(axis=(0, 1)) if scaled else 0.0
    level: Array = 0.0
    if settings.view(name).size_factors != "none":
        index = [view.name for view in settings.views].index(name)
        level = np.log(_of_one_chain(rows["size_factors"]))[:, index, None]
    total: Array = 0.0
    squares: Array = 0.0
    for z, (loadings, intercept, phi) in zip(scores, _draws(settings, record, name), strict=True):
        beside = np.concatenate([z.astype(np.float64), covariates], axis=1)
        mean, variance = moments(beside @ loadings.T + (intercept - place) + level, phi)
        total, squares = total + mean, squares + mean**2 + variance
    mean = total / len(scores)
    return mean + place, np.maximum(squares / len(scores) - mean**2, 0.0)


def _of_one_chain(values: Shaped[Array, ...]) -> Float64[Array, "B n"]:
    """Return what all chains have alike."""
    found = np.asarray(values)
    return found[0] if found.ndim == 3 else found
