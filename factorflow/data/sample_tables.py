"""Columns of the sample metadata that a run reads: covariates, places, levels, size factors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.block import SIZES
from factorflow.core.covariates import COVARIATES, Covariates
from factorflow.core.places import PLACES
from factorflow.data.chosen_features import choose_features
from factorflow.data.covariates import (
    CodedColumns,
    code_covariates,
    projected_columns,
    warn_of_groups,
    with_digests,
)
from factorflow.data.feature_sets import match_feature_sets
from factorflow.data.places import code_levels, code_places
from factorflow.data.sizes import SizeTable, code_sizes, projected_sizes
from factorflow.errors import InputError

if TYPE_CHECKING:
    from factorflow.core.block import Meta
    from factorflow.core.places import Places
    from factorflow.data.holdout import Holdout
    from factorflow.data.store.dataset import Dataset


@dataclass(frozen=True)
class SampleTables:
    """The columns that are read with the blocks.

    Parameters
    ----------
    covariates : CodedColumns or None
        What acts on the features.
    places, levels : CodedColumns or None
        Where the samples lie; which level they are of.
    score_covariates : CodedColumns or None
        What acts on the scores.
    """

    covariates: CodedColumns | None = None
    places: CodedColumns | None = None
    levels: CodedColumns | None = None
    score_covariates: CodedColumns | None = None
    sizes: SizeTable | None = None

    @classmethod
    def of(cls, meta: Meta) -> SampleTables:
        """Return the columns of a fit."""
        return cls(
            None if meta.covariates is None else CodedColumns(meta.covariates),
            None if meta.places is None else CodedColumns(meta.places),
            None if meta.levels is None else CodedColumns(meta.levels),
            None if meta.score_covariates is None else CodedColumns(meta.score_covariates),
            SizeTable(meta.sizes) if meta.sizes else None,
        )

    @classmethod
    def projected(cls, meta: Meta, dataset: Dataset, source: Any = None) -> SampleTables:
        """Return the columns of new samples.

        Parameters
        ----------
        source : DataFrame, path, False or None
            Their columns by sample name; None: those of the dataset's metadata; False, or columns that are
            not there: unknown.

        Raises
        ------
        InputError
            When the fit reads no columns, or a sample has no row.
        """
        nothing = meta.covariates is None and not meta.score_inputs and not meta.sizes
        if nothing and source is not None and source is not False:
            expected = "none: the model was fitted without"
            raise InputError("covariates", "columns", expected, "Leave them out.")
        places = projected_columns(meta.places, dataset, source)
        if meta.places is not None and places is not None and places.known:
            warn_of_groups(meta.places, dataset.groups or None, "new samples")
        return cls(
            projected_columns(meta.covariates, dataset, source),
            places,
            projected_columns(meta.levels, dataset, source),
            projected_columns(meta.score_covariates, dataset, source),
            projected_sizes(meta.sizes, dataset, source),
        )

    def covariates_of_new(self, fitted: Meta) -> Covariates | None:
        """Return the covariates of a fit, with whether the samples that are read here lack some of them."""
        own = None if self.covariates is None else self.covariates.code
        if fitted.covariates is None or not isinstance(own, Covariates):
            return None
        return replace(fitted.covariates, incomplete=own.incomplete)

    @property
    def _of_scores(self) -> list[CodedColumns]:
        tables = (self.places, self.levels, self.score_covariates)
        return [table for table in tables if table is not None]

    @property
    def digest(self) -> str:
        """Of what is read, and what as: a column may act on features or scores; empty: nothing."""
        tables = {field.name: getattr(self, field.name) for field in fields(self)}
        return "-".join(f"{name}:{table.digest}" for name, table in tables.items() if table is not None)

    def read(self, dataset: Dataset, start: int, stop: int) -> dict[str, NDArray[np.float64]]:
        """Return what travels with some rows, by its name in ``Block.columns``."""
        columns = {}
        if self.covariates is not None:
            columns[COVARIATES] = self.covariates.read(dataset, start, stop, known=True)
        if self._of_scores:
            columns[PLACES] = np.hstack([table.read(dataset, start, stop) for table in self._of_scores])
        if self.sizes is not None:
            columns[SIZES] = self.sizes.read(dataset, start, stop)
        return columns


def model_meta(
    dataset: Dataset, config: Any, holdout: Holdout | None = None, like: Meta | None = None
) -> Meta:
    """Return what a model sees of a dataset, the columns and feature sets that it asks for among it.

    Parameters
    ----------
    like : Meta, optional
        Of an earlier fit, whose columns are coded in the same way.
    """
    meta = dataset.meta(config.views, holdout)
    meta = replace(meta, sparse_views=config.sparse_views(meta))
    if config.chosen_features is not None:
        meta = replace(meta, chosen=choose_features(dataset, *config.chosen_features))
    sets = config.given_sets([view.name for view in meta.value_views])
    if sets is not None:
        meta = replace(meta, feature_sets=match_feature_sets(dataset, *sets))

    def before(name: str) -> Any:
        return None if like is None else getattr(like, name)

    columns = (
        _with_group(dataset, config.given_columns) if config.has_group_intercepts else config.given_columns
    )
    if columns is not None:
        covariates = _covariates(
            dataset, columns, config.columns_option, before("covariates"), config.most_levels
        )
        meta = replace(meta, covariates=covariates)
    if config.smooth_columns is not None:
        of_places, by_group = config.smooth_columns
        code = partial(code_places, dataset, of_places, by_group=by_group)
        meta = replace(meta, places=_places(dataset, code, before("places")))
    if config.level_column is not None:
        code = partial(code_levels, dataset, config.level_column)
        meta = replace(meta, levels=_places(dataset, code, before("levels")))
    if config.size_columns is not None:
        names, methods = config.size_columns
        meta = replace(meta, sizes=code_sizes(dataset, names, methods, before("sizes") or ()))
    if config.score_columns is not None:
        name = "score_covariates"
        of_scores = _covariates(dataset, config.score_columns, name, before(name), config.most_levels)
        meta = replace(meta, score_covariates=of_scores)
    return meta


def _with_group(dataset: Dataset, columns: str | Sequence[str] | None) -> str | list[str]:
    """Return columns, or a formula, with the group of each sample."""
    if not dataset.groups:
        remedy = "Write the dataset with {groups}, or use the default."
        raise InputError("intercepts", "group", "True where the dataset has no groups", remedy, groups=...)
    group = f"C({dataset.code_columns['group']})"
    if isinstance(columns, str):
        return f"{columns} + {group}" if "~" in columns else f"{columns},{group}"
    return [*(columns or ()), group]


def _covariates(
    dataset: Dataset, columns: Any, option: str, like: Covariates | None, most_levels: int
) -> Covariates:
    if like is not None:
        return with_digests(like, dataset)
    return code_covariates(dataset, columns, option, most_levels)


def _places(dataset: Dataset, code: Callable[[], Places], like: Places | None) -> Places:
    return code() if like is None else with_digests(like, dataset)
