"""Sparse group factor analysis with draws: a variational fit, then Gibbs sampling of its model.

The chains share the fit and part with the first sweep. Likelihoods are exact, whatever the fit approximates:
by their augmentation (binary entries), else by Metropolis steps. The factors are those that the fit kept. The
priors of noise, slabs and shares of loadings, flat in the fit, are learned (`pooled`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float64, Shaped

from factorflow.core.trees import replace
from factorflow.likelihoods import Likelihood
from factorflow.likelihoods.predictive import Predictive
from factorflow.models.contract import Array, Block, Model, Stage, Step, Sweep, Variable
from factorflow.models.sparse_gfa import prediction, results
from factorflow.models.sparse_gfa.learned_sizes import computed_sizes
from factorflow.models.sparse_gfa.model import SparseGFAModel
from factorflow.models.sparse_gfa.pseudo_data import PreparedGlobals, expected_scores
from factorflow.models.sparse_gfa.sampler.drawn_results import Averages, drawn_variables
from factorflow.models.sparse_gfa.sampler.first_draw import first_draw
from factorflow.models.sparse_gfa.sampler.gibbs import ChoiceSweep, GibbsSweep
from factorflow.models.sparse_gfa.sampler.gibbs_state import ChainGlobals, DrawnScores
from factorflow.models.sparse_gfa.sampler.metropolis import corrected_views
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.smooth.results import course_labels
from factorflow.models.sparse_gfa.start.guided import guided_views
from factorflow.models.sparse_gfa.state import Globals, Local


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
    predicts_new: ClassVar[bool] = True
    predicts_by_factors: ClassVar[bool] = True

    @property
    def symmetry(self) -> Literal["none", "sign", "flip"]:
        """What leaves the model as it is: signs of factors, where scores and loadings may be negative."""
        signed = all(view.prior.signed for view in self.settings.views)
        return "sign" if signed and not self.settings.nonnegative else "none"

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
        return drawn_variables(self.settings)

    def coords(self, globals_: Globals | ChainGlobals) -> Mapping[str, Sequence[str]]:
        """Return the labels of factors and views."""
        names = [view.name for view in self.settings.views]
        numbers = globals_.factors.numbers if isinstance(globals_, Globals) else globals_.numbers
        factors = self.factor_names(globals_.n_factors, numbers)
        if isinstance(globals_, ChainGlobals):
            factors = self._set_labels(globals_, factors)
        labels = {"factor": factors, "view": names}
        covariates = self.settings.covariates
        smooth = self.settings.smooth
        labels |= {} if covariates is None else covariates.coords
        return labels if smooth is None else labels | course_labels(smooth)

    def _set_labels(self, globals_: ChainGlobals, numbered: Sequence[str]) -> list[str]:
        """Return labels of the factors: their sets, the views that they are guided by, or numbers."""
        labels, sets = list(numbered), globals_.sets
        if self.settings.sets is not None and sets is not None:
            for k in np.flatnonzero(sets.holds):
                labels[k] = self.settings.sets.names[sets.numbers[k]]
        for name in guided_views(self.settings):
            for k in np.flatnonzero(globals_.classes[name].any(axis=0)) if name in globals_.classes else ():
                labels[k] = name
        return labels

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
        covariates = self.settings.design(block, local)[:, 1:]
        if isinstance(local, DrawnScores):
            scores = local.scores(self.settings)
        else:
            assert isinstance(globals_, PreparedGlobals)
            scores, _ = expected_scores(results.finish(self.fit.settings, block, local, globals_, step).q)
        sizes, nothing = computed_sizes(self.settings, block, fixed), np.zeros(scores.shape)
        if not isinstance(local, DrawnScores) or local.total is None or local.squares is None:
            return Averages(covariates, (scores, nothing, sizes), (nothing, nothing, 0.0 * sizes))
        k, mean = scores.shape[1], local.total / local.n_kept
        variance = np.maximum(local.squares / local.n_kept - mean**2, 0.0)
        has_more = self.settings.smooth is not None or self.settings.scores_spike
        cuts = [k, (2 if has_more else 1) * k]
        if self.settings.incomplete:
            own = mean.shape[1] - covariates.shape[1]
            covariates, mean, variance = mean[:, own:], mean[:, :own], variance[:, :own]
        means, variances = (tuple(np.split(values, cuts, axis=1)) for values in (mean, variance))
        if not self.settings.learns_sizes:
            means = *means[:2], sizes
        return Averages(covariates, means, variances)

    def projection(self) -> tuple[Sweep[Any, Any, Any], ...]:
        """Return the sweep that draws the scores of new samples."""
        return (GibbsSweep(self.settings, keep=True),)

    def predict(
        self, block: Block, rows: Mapping[str, Array], record: Mapping[str, Array], view: str
    ) -> tuple[Float64[Array, "B D"], Float64[Array, "B D"]]:
        """Return mean and standard deviation of new observations over all draws, on the data scale."""
        aux = prediction.aux_of_new(self.settings, block, view)
        own, noise = self.settings.view(view), 0.0
        if own.is_gaussian:
            noise = (1.0 / np.asarray(record[f"noise_precision_{view}"])).mean(axis=(0, 1))

        def moments(x: Float64[Array, "B D"], phi: Float64[Array, "P D"]) -> tuple[Array, Array | float]:
            return (x, noise) if own.is_gaussian else own.density.moments(x, phi, aux)

        mean, variance = _over_draws(self.settings, rows, record, view, moments)
        return mean, np.sqrt(variance)

    def predictive(
        self, block: Block, rows: Mapping[str, Array], record: Mapping[str, Array], view: str
    ) -> Predictive | None:
        """Return the distribution of new observations, x normal over draws; None of Gaussian views."""
        density = self.settings.view(view).density
        if self.settings.view(view).is_gaussian:
            return None
        mean, variance = _over_draws(self.settings, rows, record, view, lambda x, phi: (x, 0.0))
        phi = np.mean([phi for *_, phi in _draws(self.settings, record, view)], axis=0)
        return Predictive(density, mean, variance, phi, prediction.aux_of_new(self.settings, block, view))

    def alone(self, globals_: Globals | ChainGlobals, view: str) -> tuple[Array, Array] | None:
        """Return the likelihood fitted to each feature of a view alone."""
        return prediction.alone(self.settings, globals_.fixed[view], view)

    def interpolate(
        self, record: Mapping[str, Array], places: Array, codes: Array
    ) -> tuple[Array, Array, Array]:
        """Return the courses of all draws at any places, (C, M, n, K), and variances beside them, (n, K).

        Of the courses given the draw, then of scores about them.
        """
        return self.fit.interpolate(_one_fit(record), places, codes)

    def warped(self, record: Mapping[str, Array], places: Array, codes: Array) -> Array:
        """Return own times of groups on the common clock, (n,), which is that of the fit."""
        return self.fit.warped(_one_fit(record), places, codes)

    def shortest_lengths(self) -> tuple[Array, int] | None:
        """Return the shortest length scales that cosines resolve, and how many these are a column."""
        return self.fit.shortest_lengths()

    def likelihood(self, view: str) -> Likelihood:
        """Return the likelihood of the entries of a view."""
        return self.settings.view(view).density


def _one_fit(record: Mapping[str, Array]) -> dict[str, Array]:
    """Return the coefficients of courses of all draws, and what all draws have of the fit."""
    return {name: values if name == "course" else values[0, 0] for name, values in record.items()}


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
    covariates = np.zeros((len(scores), scores.shape[1], 0))
    if "covariates_draws" in rows:
        covariates = np.asarray(rows["covariates_draws"]).reshape(len(scores), scores.shape[1], -1)
    elif settings.covariates is not None:
        covariates = np.broadcast_to(known := _of_one_chain(rows["covariates"]), (len(scores), *known.shape))
    # squares about the intercepts of measurements, which may be far from 0
    scaled = settings.view(name).is_scaled
    place = np.asarray(record[f"intercept_{name}"]).mean(axis=(0, 1)) if scaled else 0.0
    levels = np.zeros((len(scores), scores.shape[1], 1))
    if settings.view(name).size_factors != "none":
        index = [view.name for view in settings.views].index(name)
        if settings.view(name).learned_sizes:
            levels = np.asarray(rows["log_size_factors"])[..., index].reshape(levels.shape)
        else:
            levels = levels + np.log(_of_one_chain(rows["size_factors"]))[:, index, None]
    total: Array = 0.0
    squares: Array = 0.0
    each = zip(scores, covariates, levels, _draws(settings, record, name), strict=True)
    for z, c, level, (loadings, intercept, phi) in each:
        beside = np.concatenate([z.astype(np.float64), c], axis=1)
        mean, variance = moments(beside @ loadings.T + (intercept - place) + level, phi)
        total, squares = total + mean, squares + mean**2 + variance
    mean = total / len(scores)
    return mean + place, np.maximum(squares / len(scores) - mean**2, 0.0)


def _of_one_chain(values: Shaped[Array, ...]) -> Float64[Array, "B n"]:
    """Return what all chains have alike."""
    found = np.asarray(values)
    return found[0] if found.ndim == 3 else found
