"""Configurations of models: what users set, and cases for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import ConfigDict, Field

from factorflow.models.contract import Meta, Model
from factorflow.settings import Options, describe


class ModelConfig(Options):
    """Base of the public configurations (`factorflow.models`): unknown keys are refused.

    ``views`` selects and orders nothing: it names the views to model, all when None.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    views: tuple[str, ...] | None = Field(default=None, description="Views to model; all when left out.")

    is_default: ClassVar[bool] = False
    """Whether commands and flows fit this family where none is named."""

    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    """Where `Sweep.map` can work: "cuda" means that it takes the values of a block as CuPy arrays."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Set the public module of the class, and document its options."""
        cls.of = f"factorflow.models.{cls.__name__}"
        if "model" in cls.model_fields:
            lines = ["", "", "Parameters", "----------"]
            for option in describe(cls):
                lines += [f"{option['option']} : {option['values']}; default {option['default']}"]
                lines += [f"    {option['description']}".rstrip()]
            cls.__doc__ = (cls.__doc__ or "").rstrip() + "\n".join([*lines, ""])

    columns_option: ClassVar[str] = "covariates"
    """Option, or options, that name `given_columns`: for errors."""

    most_levels: ClassVar[int] = 60
    """Levels of a category of `given_columns` at most: with more, a coefficient for each level and feature,
    with the covariances of those of a feature, would be another set of factors."""

    def sparse_views(self, meta: Meta) -> tuple[str, ...]:
        """Return the views whose rows `Sweep.map` takes by their entries that are not zero (`SparseRows`).

        Parameters
        ----------
        meta : Meta
            Of the dataset, before anything of the configuration is in it.

        Returns
        -------
        tuple of str
            Of counts (`Kind.by_size`), or with `ViewMeta.block_entries`; none by default.
        """
        return ()

    @property
    def given_columns(self) -> str | Sequence[str] | None:
        """Columns of the sample metadata that the model is given (`Meta.covariates`); None: none."""
        return None

    @property
    def has_group_intercepts(self) -> bool:
        """Whether the model is given the group of each sample besides."""
        return False

    @property
    def smooth_columns(self) -> tuple[str | Sequence[str | Sequence[str]], bool] | None:
        """Columns of the sample metadata that scores are functions of (`Meta.places`), and whether by group.

        None: scores are no functions.
        """
        return None

    @property
    def level_column(self) -> str | None:
        """Column of the sample metadata with an intercept of the scores for each level (`Meta.levels`)."""
        return None

    @property
    def score_columns(self) -> str | Sequence[str] | None:
        """Columns of the sample metadata that act on the scores (`Meta.score_covariates`); None: none."""
        return None

    @property
    def size_columns(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Columns of the sample metadata that are size factors (`Meta.sizes`), and what else they may be.

        None: no columns.
        """
        return None

    @property
    def chosen_features(self) -> tuple[Mapping[str, str | Sequence[str]], str | None] | None:
        """Features that the model is fitted to, by view, and the column with batches (`Meta.chosen`).

        Their names, or "highly_variable"; None: all.
        """
        return None

    def given_sets(self, views: Sequence[str]) -> tuple[Sequence[str], str | Mapping[str, Any]] | None:
        """Return the views whose features may be in sets, and the sets (`Meta.feature_sets`); None: none.

        Parameters
        ----------
        views : sequence of str
            Views that the model explains.
        """
        return None

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        """Return cases small enough for tests, each by a word: the contract suite runs them all."""
        return {"default": Example(cls())}

    def build(self, meta: Meta) -> Model[Any, Any]:
        """Return the model for a dataset of this shape.

        Parameters
        ----------
        meta : Meta
            Shape of the dataset.

        Returns
        -------
        Model

        Raises
        ------
        InputError
            When configuration and dataset do not fit together.
        """
        raise NotImplementedError

    def build_fitted(self, meta: Meta) -> Model[Any, Any]:
        """Build the fitted model for new samples, without checks that concern a fit only.

        Parameters
        ----------
        meta : Meta
            Shape of the new samples.

        Returns
        -------
        Model
        """
        return self.build(meta)

    def wider(self, kind: str) -> str | None:
        """Return the option with which entries of a kind may vary more, as written, where it is not set.

        Parameters
        ----------
        kind : str
            Kind of the view: "gaussian", "bernoulli" or "poisson".

        Returns
        -------
        str or None
            Such as ``overdispersed=True``; None where there is no such option, or it is set.
        """
        return None

    def unused(self, meta: Meta) -> dict[str, str]:
        """Return the options that do nothing for a dataset of this shape, each with the reason.

        Only what differs from its default is told to users (`fit` warns of it).

        Parameters
        ----------
        meta : Meta
            Shape of the dataset.

        Returns
        -------
        dict of str to str
            Reason by option.
        """
        return {}


@dataclass(frozen=True)
class Example:
    """A configuration with data that suit it, small enough for tests.

    Parameters
    ----------
    config : ModelConfig
        The configuration.
    simulator : str
        Name of the simulator (`factorflow.simulate`).
    data : mapping of str to Any
        Its settings, besides the number of samples, ``missing`` and the seed.
    """

    config: ModelConfig
    simulator: str = "sparse_gfa"
    data: Mapping[str, Any] = field(default_factory=dict)
