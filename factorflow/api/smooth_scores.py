"""Methods of posteriors whose scores are functions of covariates of the samples: time, place, subject."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from factorflow.analysis.methods import AnalysisMethods
from factorflow.posterior import smooth

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


class SmoothScoresMethods(AnalysisMethods):
    """What posteriors with smooth scores have; others raise an InputError."""

    def smooth_scores(self) -> xr.Dataset:
        """Return the courses of the factors at the samples: functions of time or place, or random intercepts.

        Returns
        -------
        Dataset
            ``mean`` and ``sd`` (obs, factor): 0 of factors that are no such functions, NaN where the place of
            a sample is not known.

        Raises
        ------
        InputError
            When the scores of the model are no functions of places.
        """
        return smooth.smooth_scores(self)

    def intraclass_correlation(self) -> xr.DataArray:
        """Return how much of each factor differs between the levels of the random intercepts.

        Returns
        -------
        DataArray
            (random_intercept, factor): the share of the variance of a factor that samples of one level have
            in common; 0 where the data do not show any. `smooth_scores` has the intercept of each sample.

        Raises
        ------
        InputError
            When the model has no random intercepts.
        """
        return smooth.intraclass_correlation(self)

    def warped(self, covariate: str | None = None) -> xr.DataArray:
        """Return the time of each sample on the common clock of the groups (``warping=True``).

        Parameters
        ----------
        covariate : str, optional
            Name of the column of times; the model's own when left out.

        Returns
        -------
        DataArray
            (obs,), in units of the column, dates as dates in UTC; missing where the time or group is unknown.

        Raises
        ------
        InputError
            When groups have one clock, or times were a table given to `project`, which is not kept.
        """
        return smooth.warped(self, covariate)

    def smoothness(self) -> pd.DataFrame:
        """Return how smooth each factor is.

        Returns
        -------
        DataFrame
            By factor: ``smooth``, the share of its prior variance that is its course, beside it those of
            random intercepts (by the name of their column) and ``covariates`` of the scores, and ``rest``; a
            column ``length_scale_<covariate>`` for each covariate, NaN where there is no course;
            ``evidence`` for a course, in nats.

        Raises
        ------
        InputError
            When the scores of the model are no functions of places.
        """
        return smooth.smoothness(self)

    def group_correlation(self) -> xr.DataArray:
        """Return how alike the courses of groups are.

        Returns
        -------
        DataArray
            (factor, group, other_group): 1 is one course of both, 0 one of each; NaN of factors without.

        Raises
        ------
        InputError
            When the scores of the model are no functions of places, or all groups have one course.
        """
        return smooth.group_correlation(self)

    def interpolate(
        self,
        at: Any,
        groups: str | Sequence[str] | None = None,
        view: str | None = None,
        interval: float = 0.9,
    ) -> xr.Dataset:
        """Return the factors, or the data of a view, at any times or places.

        Parameters
        ----------
        at : DataFrame, mapping or array
            Places: a column for each of the model's (``time``, or ``x`` and ``y``), ``group`` beside them if
            each is of one group; or an array (n,) or (n, p). Dates stay dates in the result.
        groups : str or sequence of str, optional
            Groups of samples, each at all places; all when left out, and no column says so.
        view : str, optional
            Name of a view.
        interval : float
            Share of the values that the intervals are to hold.

        Returns
        -------
        Dataset
            By point, with its place: ``f_mean``, ``f_sd``, ``f_lower``, ``f_upper`` of the course of each
            factor, and ``z_...`` of the score of a sample there. With a view ``mean``, ``sd``, ``lower``,
            ``upper`` of a new observation (point, feature_<view>), covariates at their average.

        Raises
        ------
        InputError
            When the scores of the model are no functions of places, or a place or group is not known.

        Examples
        --------
        >>> curve = posterior.interpolate(np.linspace(0.0, 1.0, 50))  # doctest: +SKIP
        >>> curve["f_mean"].sel(factor="Factor1")  # doctest: +SKIP
        """
        return smooth.interpolate(self, at, groups, view, interval)
