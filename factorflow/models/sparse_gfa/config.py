"""Options of sparse group factor analysis, and what is refused of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, field_validator, model_validator

from factorflow.errors import InputError
from factorflow.likelihoods import get_likelihood
from factorflow.models.configuration import Example, ModelConfig
from factorflow.models.contract import Meta
from factorflow.models.registry import register
from factorflow.models.size_factors import LEARNED, METHODS, columns_of
from factorflow.models.sparse_gfa.examples import small_examples
from factorflow.models.sparse_gfa.loadings import get_prior, prior_help
from factorflow.models.sparse_gfa.model import SparseGFAModel
from factorflow.models.sparse_gfa.refusals import refuse_options
from factorflow.models.sparse_gfa.resolve import (
    check_guided_names,
    likelihoods_of,
    loadings_of,
    settings_of,
    sparse_views_of,
)
from factorflow.models.sparse_gfa.sampler.sampled import SampledGFAModel
from factorflow.models.views import refuse_inputs

NAME = "a group factor analysis"


@register
class SparseGFA(ModelConfig):
    """Sparse Bayesian group factor analysis of several views (the model of MOFA)."""

    is_default = True

    model: Literal["sparse_gfa"] = "sparse_gfa"
    n_factors: int = Field(
        default=10,
        ge=1,
        description="Factors at most: a fit begins with those counted in the data and drops weak ones.",
    )
    loadings: str | dict[str, str] = Field(
        default="spike_slab",
        description=f"Prior of the loadings, of all views or by view: {prior_help()}.",
    )
    slab: Literal["exponential", "half_normal"] = Field(
        default="exponential",
        description="Distribution of positive loadings and scores where they are 'nonnegative'.",
    )
    outcomes: dict[str, Literal["open", "guided"]] | None = Field(
        default=None,
        description="Views of one feature that are to be predicted, each 'open' (normal loadings of all "
        "factors) or 'guided' (of one factor, which is named by the view); left out: all such views are "
        "'open' whose loadings are not named, beside others of more features.",
    )
    feature_sets: str | dict[str, str | list[str] | dict[str, list[str]]] | None = Field(
        default=None,
        description="Sets of features that factors with loadings 'informed' may be named by: path of a GMT "
        "file, members by set, or either of them by view. Names are assigned by evidence.",
    )
    ard_prior: tuple[PositiveFloat, PositiveFloat] | None = Field(
        default=None,
        description="Shape and rate of the gamma prior of these precisions; left out: the size of loadings "
        "is Cauchy, of scale 0.1 (measurements), 1 (binary, binomial) or 0.01 (counts); (10, 10) where all "
        "views are binary: weights are log odds then, of a size that is known roughly. "
        "Chains (n_draws) learn it where it is left out.",
    )
    likelihoods: str | dict[str, str] | None = Field(
        default=None,
        description="Likelihood by view, or one for all views whose entries it explains: gaussian or "
        "student_t(nu=4) (outliers; degrees of freedom) of measurements, gamma or lognormal of positive "
        "ones, beta or logit_normal of those between 0 and 1, bernoulli of binary entries, "
        "poisson, negative_binomial, zero_inflated_poisson, zero_inflated_negative_binomial or "
        "binomial(trials=N) of counts, ordinal of levels, survival of times to an event; left out: what the "
        "dataset was written with, else gaussian, bernoulli, poisson.",
    )
    bound: bool = Field(
        default=False,
        description="Fit a lower bound of the likelihood of binary views and negative binomial counts that "
        "no pass lowers, Jaakkola and Jordan's, instead of the likelihood at the posterior of the predictor; "
        "loadings come out smaller.",
    )
    covariates: str | list[str] | None = Field(
        default=None,
        description="Columns of the sample metadata that act on the features, by name or as a formula "
        "('~ age + batch + age:sex'): numbers, and categories with a coefficient for each level, shrunk by "
        "a variance of each term and view.",
    )
    score_covariates: str | list[str] | None = Field(
        default=None,
        description="Columns of the sample metadata that act on the scores, as `covariates`: what a factor "
        "has to do with age or treatment is learned with it.",
    )
    size_factors: str | dict[str, str] = Field(
        default="none",
        description="What rates of counts are relative to, of all views of counts or by view: none, total "
        "(of the sample), median (over features, of the ratio to their average), learned (a number of each "
        "sample that its counts decide), total+learned (the same, about the total), or a column of the "
        "sample metadata with numbers above 0 (relative to their mean).",
    )
    intercepts: bool | Literal["group"] = Field(
        default=True,
        description="Learn an intercept for each feature; 'group': and what each group of samples differs "
        "from it by, shrunk by a variance of each view.",
    )
    center: bool = Field(default=True, description="Without intercepts: subtract the mean of each feature.")
    scale_views: bool = Field(default=True, description="Scale each Gaussian view to variance 1.")
    scale_features: bool = Field(default=False, description="Scale each Gaussian feature to variance 1.")
    noise: Literal["feature", "sample", "both"] = Field(
        default="feature", description="What has a noise precision of its own in Gaussian views."
    )
    grouped_noise: bool = Field(default=False, description="A noise precision for each feature and group.")
    scores: Literal["auto", "normal", "ard", "spike", "nonnegative", "smooth"] = Field(
        default="auto",
        description="Prior of the scores; 'ard' and 'spike' learn a scale for each group and factor; "
        "'nonnegative': as 'spike', 0 or positive (without intercepts nothing is subtracted); "
        "'smooth': functions of smooth_covariates, random_intercepts and score_covariates, as far as data "
        "show it. 'auto': 'smooth' where any of these is given, 'ard' where there are groups, else 'normal'.",
    )
    smooth_covariates: str | list[str | list[str]] | None = Field(
        default=None,
        description="Columns of the sample metadata that smooth scores are functions of: time, dose; those "
        "of an inner list are one place: [['x', 'y']].",
    )
    kernel: Literal["matern12", "matern32", "matern52", "rbf"] = Field(
        default="matern52", description="Covariance of smooth scores: how often they can be differentiated."
    )
    n_functions: int | None = Field(
        default=None,
        ge=4,
        le=200,
        description="Cosines of each column that smooth scores are made of; left out: one function for each "
        "place where these are few, else as many as are not too many.",
    )
    random_intercepts: str | None = Field(
        default=None,
        description="Column of the sample metadata, such as subjects: samples of one have an intercept of "
        "the scores in common, as far as the data show it.",
    )
    warping: bool = Field(
        default=False,
        description="Groups have clocks that differ: their times are put on that of one of them, where "
        "courses are shared.",
    )
    warping_reference: str | None = Field(
        default=None, description="Group whose clock the others are put on; left out: the first."
    )
    smooth_groups: bool = Field(
        default=True, description="Groups share the course of a smooth factor as far as the data show it."
    )
    scores_posterior: Literal["full", "factorised"] = Field(
        default="full", description="Full covariance of the scores of a sample, or independent scores."
    )
    start: str = Field(default="pca", description="'pca', 'random', or the path of an .npy array of scores.")
    n_starts: int = Field(
        default=1,
        ge=1,
        description="Starts, the first by `start`, the others from components that differ with the "
        "seed; the highest bound goes on, and how stable each factor is over the starts is recorded.",
    )
    drop: float = Field(
        default=1e-3,
        ge=0,
        lt=1,
        description="Drop factors that explain less of every view than this, and those without which "
        "the bound is higher (few binary entries: compare numbers of them); 0: keep all.",
    )
    warmup_iter: int = Field(default=40, ge=1, description="Passes without spikes at most.")
    max_iter: int = Field(default=200, ge=1, description="Passes with spikes at most.")
    tol: float = Field(
        default=1e-6,
        gt=0,
        description="Stop when a pass gains less than this many nats an observed entry (few binary entries: "
        "by bound and likelihood together, and at 0.05 nats in all).",
    )
    precision: Literal["auto", 32, 64] = Field(
        default="auto",
        description="Bits of the data in matrix products, sums of which have 64. 'auto': 64 where the views "
        "have less than a million entries, else 32.",
    )

    n_draws: int = Field(
        default=0,
        ge=0,
        description="Draws kept of each chain of a Gibbs sampler that starts from the variational fit, for "
        "uncertainty without its approximations; 0: no sampling.",
    )
    n_burn_in: int = Field(default=200, ge=0, description="Sweeps of the sampler before the first draw.")
    thin: int = Field(default=1, ge=1, description="Sweeps of the sampler from one draw to the next.")
    chains: int = Field(default=4, ge=1, le=2**15, description="Independent chains of the sampler.")

    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")

    @model_validator(mode="before")
    @classmethod
    def _one_likelihood_a_view(cls, values: Any) -> Any:
        """Refuse likelihoods by feature, which only a dataset can have."""
        by_feature = values.get("likelihoods") if isinstance(values, Mapping) else None
        if isinstance(by_feature, Mapping) and any(isinstance(one, Mapping) for one in by_feature.values()):
            remedy = "Write the dataset with likelihoods by feature: they cut the view, one part each."
            raise InputError("likelihoods", by_feature, "one likelihood for a view", remedy)
        return values

    @field_validator("feature_sets", mode="before")
    @classmethod
    def _absolute(cls, value: Any) -> Any:
        """Return paths that mean the same wherever a run is resumed."""
        if isinstance(value, str | os.PathLike):
            return str(Path(value).absolute())
        if not isinstance(value, Mapping):
            return value
        if all(isinstance(one, str | os.PathLike | Mapping) for one in value.values()):
            return {str(view): cls._absolute(one) for view, one in value.items()}
        return {str(name): one if isinstance(one, str) else list(one) for name, one in value.items()}

    def given_sets(self, views: Sequence[str]) -> tuple[list[str], str | Mapping[str, Any]] | None:
        """Return the views whose features may be in sets, and the sets."""
        informed = [view for view in views if get_prior(loadings_of(self, view)).takes_sets]
        return None if self.feature_sets is None or not informed else (informed, self.feature_sets)

    @property
    def given_columns(self) -> str | list[str] | None:
        """Columns of the sample metadata that the model is given."""
        return self.covariates

    @property
    def size_columns(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Columns of the sample metadata that are size factors, and what else they may be."""
        return columns_of(self.size_factors, METHODS + LEARNED)

    @property
    def has_group_intercepts(self) -> bool:
        """Whether the model is given the group of each sample besides."""
        return self.intercepts == "group"

    @property
    def smooth_columns(self) -> tuple[str | list[str | list[str]], bool] | None:
        """Columns of the sample metadata that scores are functions of, and whether by group."""
        return None if self.smooth_covariates is None else (self.smooth_covariates, self.smooth_groups)

    @property
    def level_column(self) -> str | None:
        """Column of the sample metadata whose levels scores have an intercept for."""
        return self.random_intercepts

    @property
    def score_columns(self) -> str | list[str] | None:
        """Columns of the sample metadata that act on the scores."""
        return self.score_covariates

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        """Return cases small enough for tests."""
        return small_examples(cls)

    def wider(self, kind: str) -> str | None:
        """Return the option with which measurements have outliers, or counts vary more than Poisson's."""
        likelihood = {"gaussian": "student_t", "poisson": "negative_binomial"}.get(kind)
        is_default = likelihood is None or likelihood in str(self.likelihoods)
        return None if is_default else f'likelihoods="{likelihood}"'

    def sparse_views(self, meta: Meta) -> tuple[str, ...]:
        """Return the sparse Gaussian views of which rows are observed or missing as a whole."""
        return sparse_views_of(self, meta)

    def build(self, meta: Meta) -> SparseGFAModel | SampledGFAModel:
        """Return the model for a dataset of this shape."""
        refuse_inputs(meta, NAME)
        n_features = sum(view.n_features for view in meta.views)
        if self.n_factors > min(meta.n_rows, n_features):
            raise InputError(
                "n_factors",
                self.n_factors,
                f"at most {min(meta.n_rows, n_features)}, the smaller of {meta.n_rows} samples and "
                f"{n_features} features",
                "Ask for fewer factors.",
            )
        check_guided_names(self, meta)
        return self.build_fitted(meta)

    def build_fitted(self, meta: Meta) -> SparseGFAModel | SampledGFAModel:
        """Return the model for new samples: as few as there are."""
        refuse_inputs(meta, NAME)
        settings = settings_of(self, meta)
        if settings.smooth is not None:
            refuse_options(settings, "scores")
        for group, size in zip(settings.groups, meta.group_sizes, strict=False):
            if size < 2:
                raise InputError(
                    f"size of group {group}",
                    size,
                    "at least 2 samples in every group that has parameters of its own "
                    f"(scores {settings.scores_prior!r}, grouped_noise {settings.grouped_noise})",
                    "Leave the group out or join it with another, or use {scores} and {grouped_noise}.",
                    scores="normal",
                    grouped_noise=False,
                )
        if self.n_draws:
            refuse_options(settings, "n_draws")
            fit = SparseGFAModel(meta, settings, self.max_iter, self.warmup_iter, self.tol)
            learned = self.ard_prior is None
            return SampledGFAModel(meta, fit, self.n_draws, self.n_burn_in, self.thin, self.chains, learned)
        return SparseGFAModel(meta, settings, self.max_iter, self.warmup_iter, self.tol)

    def unused(self, meta: Meta) -> dict[str, str]:
        """Return the options that do nothing for a dataset of this shape, each with the reason."""
        kinds = {likelihood for _, likelihood in likelihoods_of(self, meta)}
        unused: dict[str, str] = {}
        if not meta.groups:
            unused["grouped_noise"] = "the dataset has no groups of samples"
        if kinds == {"gaussian"}:
            unused["bound"] = "all views are Gaussian"
        if "gaussian" not in kinds:
            why = "no view is Gaussian"
            unused |= dict.fromkeys(("noise", "scale_views", "scale_features", "grouped_noise"), why)
        if isinstance(self.size_factors, str):
            if not any(get_likelihood(likelihood).log_link for _, likelihood in likelihoods_of(self, meta)):
                unused["size_factors"] = "no view is of counts"
        if self.given_sets([view.name for view in meta.views]) is None:
            unused["feature_sets"] = "the loadings of no view are 'informed'"
        if all(get_prior(loadings_of(self, view.name)).signed for view in meta.value_views):
            if self.scores != "nonnegative":
                unused["slab"] = "neither scores nor the loadings of any view are 'nonnegative'"
        if self.intercepts or self.scores == "nonnegative":
            unused["center"] = "intercepts are learned" if self.intercepts else "scores are not negative"
        if not self.warping:
            unused["warping_reference"] = "no times are aligned"
        if not meta.groups:
            unused["smooth_groups"] = "the dataset has no groups of samples"
        if meta.places is None:
            why = "no scores are functions of smooth_covariates"
            names = ("kernel", "n_functions", "warping", "warping_reference", "smooth_groups")
            unused |= dict.fromkeys(names, why)
        if not self.n_draws:
            why = "they are of the sampler; n_draws says how many draws it keeps"
            unused |= dict.fromkeys(("n_burn_in", "thin", "chains"), why)
        return unused
