"""Analyses as methods of a posterior, each one a function of this package."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from factorflow.analysis.association import associate
from factorflow.analysis.enrichment import enrich
from factorflow.analysis.matching import Matching, match_factors
from factorflow.posterior.stored_posterior import StoredPosterior

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["AnalysisMethods"]


class AnalysisMethods(StoredPosterior):
    """What was found, with the analyses of it that need nothing else."""

    def associate(
        self,
        columns: str | Sequence[str] | pd.DataFrame | pd.Series[Any] | None = None,
        metadata: pd.DataFrame | pd.Series[Any] | None = None,
        *,
        adjust: str | Sequence[str] | None = None,
        blocks: str | None = None,
        survival: tuple[str, str] | None = None,
    ) -> pd.DataFrame:
        """Test every factor's scores against columns of the sample metadata.

        Parameters
        ----------
        columns, metadata, adjust, blocks, survival
            As for `factorflow.analysis.associate`, where the tests are described.

        Returns
        -------
        DataFrame
            A row for each factor and column, sorted by p-value.

        Raises
        ------
        InputError
            For a column that does not exist or cannot be tested, and when there is none.

        Examples
        --------
        >>> found = posterior.associate(["age"])
        >>> found[["factor", "test", "n"]]
            factor      test   n
        0  Factor1  spearman  80
        1  Factor2  spearman  80
        2  Factor3  spearman  80
        """
        return associate(self, columns, metadata, adjust=adjust, blocks=blocks, survival=survival)

    def enrich(
        self,
        view: str,
        sets: Mapping[str, Sequence[str]] | pd.DataFrame | str | os.PathLike[str],
        *,
        sign: Literal["both", "positive", "negative"] = "both",
        test: Literal["rank", "parametric"] = "rank",
        min_size: int = 5,
        factors: Sequence[str] | None = None,
        correlation_adjusted: bool = False,
    ) -> pd.DataFrame:
        """Test feature sets among the loadings of a view.

        Parameters
        ----------
        view, sets, sign, test, min_size, factors, correlation_adjusted
            As for `factorflow.analysis.enrich`, where the tests are described.

        Returns
        -------
        DataFrame
            A row for each factor and set, sorted by factor and p-value.

        Raises
        ------
        InputError
            When no set has enough features of the view.

        Examples
        --------
        >>> sets = {"first": [f"gene{i}" for i in range(10)]}
        >>> posterior.enrich("rna", sets)["size"].tolist()
        [10, 10, 10]
        """
        return enrich(
            self,
            view,
            sets,
            sign=sign,
            test=test,
            min_size=min_size,
            factors=factors,
            correlation_adjusted=correlation_adjusted,
        )

    def match(self, *others: StoredPosterior, by: Literal["scores", "loadings"] = "scores") -> Matching:
        """Match the factors of other runs with those of this one.

        Parameters
        ----------
        *others : Posterior
            One run or more.
        by : {"scores", "loadings"}
            As for `factorflow.analysis.match_factors`.

        Returns
        -------
        Matching

        Raises
        ------
        InputError
            When two runs share too few names of samples (features).

        Examples
        --------
        >>> other = factorflow.fit(dataset, model, seed=1, max_iter=20)
        >>> posterior.match(other).stability.round(1).to_dict()
        {'Factor1': 1.0, 'Factor2': 1.0, 'Factor3': 1.0}
        """
        return match_factors([self, *others], by)
