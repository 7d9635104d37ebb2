"""What a run reads of the sample metadata: covariates of the features, and where samples lie."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from factorflow.data.chosen_features import choose_features
from factorflow.data.covariates import CovariateTable, code_covariates, projected_covariates, with_digests
from factorflow.data.feature_sets import match_feature_sets
from factorflow.data.places import PlaceTable, code_levels, code_places, places_with_digests, projected_places
from factorflow.errors import InputError

if TYPE_CHECKING:
    from factorflow.covariates import Covariates
    from factorflow.data.holdout import Holdout
    from factorflow.data.store.dataset import Dataset
    from factorflow.places import Places
    from factorflow.shape import Meta

__all__ = ["SampleTables", "model_meta"]


@dataclass(frozen=True)
class SampleTables:
    """The columns that are read with the blocks.

    Parameters
    ----------
    covariates : CovariateTable or None
        What acts on the features.
    places : PlaceTable or None
        What scores are functions of.
    """

    covariates: CovariateTable | None = None
    places: PlaceTable | None = None

    @classmethod
    def of(cls, meta: Meta) -> SampleTables:
        """Return the columns of a fit."""
        return cls(
            None if meta.covariates is None else CovariateTable(meta.covariates),
            None if meta.places is None else PlaceTable(meta.places),
        )

    @classmethod
    def projected(cls, meta: Meta, dataset: Dataset, source: Any = None) -> SampleTables:
        """Return the columns of new samples.

        Parameters
        ----------
        meta : Meta
            Of the fit.
        dataset : Dataset
            The new samples.
        source : DataFrame, path, False or None
            Their columns by sample name; None: those of the dataset's metadata; False, or columns that are
            not there: unknown.

        Raises
        ------
        InputError
            When the fit reads no columns, or a sample has no row.
        """
        if meta.covariates is None and meta.places is None and source is not None and source is not False:
            expected = "none: the model was fitted without"
            raise InputError("covariates", "columns", expected, "Leave them out.")
        covariates = projected_covariates(meta.covariates, dataset, source)
        return cls(covariates, projected_places(meta.places, dataset, source))

    @property
    def digest(self) -> str:
        """Of what is read; empty: nothing."""
        return "-".join(table.digest for table in (self.covariates, self.places) if table is not None)


def model_meta(
    dataset: Dataset, config: Any, holdout: Holdout | None = None, like: Meta | None = None
) -> Meta:
    """Return what a model sees of a dataset, the columns and feature sets that it asks for among it.

    Parameters
    ----------
    dataset : Dataset
        What is to be fitted.
    config : ModelConfig
        The model.
    holdout : Holdout, optional
        What is hidden.
    like : Meta, optional
        Of an earlier fit, whose columns are coded in the same way.
    """
    meta = replace(dataset.meta(config.views, holdout), sparse_rows=config.sparse_rows)
    if config.chosen_features is not None:
        meta = replace(meta, chosen=choose_features(dataset, *config.chosen_features))
    sets = config.given_sets([view.name for view in meta.value_views])
    if sets is not None:
        meta = replace(meta, feature_sets=match_feature_sets(dataset, *sets))
    if config.given_columns is not None:
        before = None if like is None else like.covariates
        coded = (
            code_covariates(dataset, config.given_columns)
            if before is None
            else with_digests(before, dataset)
        )
        meta = replace(meta, covariates=coded)
    if config.smooth_columns is not None:
        meta = replace(meta, places=_places(dataset, config.smooth_columns, like))
    if config.level_column is not None:
        meta = replace(meta, places=_levels(dataset, config.level_column, like))
    return meta


def _covariates(dataset: Dataset, columns: Any, like: Meta | None) -> Covariates:
    if like is None or like.covariates is None:
        return code_covariates(dataset, columns)
    return with_digests(like.covariates, dataset)


def _places(dataset: Dataset, request: tuple[Any, bool], like: Meta | None) -> Places:
    if like is None or like.places is None:
        return code_places(dataset, request[0], by_group=request[1])
    return places_with_digests(like.places, dataset)


def _levels(dataset: Dataset, column: str, like: Meta | None) -> Places:
    if like is None or like.places is None:
        return code_levels(dataset, column)
    return places_with_digests(like.places, dataset)
