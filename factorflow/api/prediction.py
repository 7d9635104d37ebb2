"""Methods of a posterior about entries: predictions, imputed values, log-likelihoods of draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from factorflow.api.variance import VarianceMethods
from factorflow.errors import InputError
from factorflow.posterior import outcomes, prediction, tables
from factorflow.posterior.labels import rows_of
from factorflow.posterior.log_likelihood import arviz_tree
from factorflow.posterior.new_samples import predict_new

if TYPE_CHECKING:
    import xarray as xr


class PredictionMethods(VarianceMethods):
    """Predictions of the entries of the views."""

    def predict(
        self,
        view: Any,
        start: int | None = None,
        stop: int | None = None,
        obs: Sequence[str] | None = None,
        interval: float | None = None,
        factors: Sequence[str | SupportsIndex] | None = None,
        trials: int | None = None,
        new_obs: Any = None,
        size_factor: float = 1.0,
    ) -> xr.Dataset:
        """Return predictions of a view on the data scale, computed for the rows that are looked at.

        Parameters
        ----------
        view : str, or a table
            Name of the view. Of a model of a table also new rows of it (a frame, a path, a dataset), as
            `write_table` takes them; the response may be left out.
        start, stop : int, optional
            Rows; all when left out.
        obs : sequence of str, optional
            Names of samples, instead of rows.
        interval : float, optional
            Share of new observations that central intervals are to hold, such as 0.9; not of new rows of a
            table.
        factors : sequence of str or int, optional
            Factors, by label or number from 1, that predict beside the intercepts; all when left out. Of a
            variational posterior; not of new rows of a table.
        trials : int, optional
            Of a view with numbers of trials, that of new observations; when left out, that of each entry, or
            1 where it is missing.
        new_obs : DataFrame, mapping or path, optional
            Samples that are not there, known by columns of metadata alone: a row for each, columns of the
            model's covariates, of features and scores, times or places, groups. Cells that are empty, and
            columns of the scores that are left out, are not known. Of `SparseGFA`.
        size_factor : float
            Of the counts of these, where they lack the column that the fit took size factors from.

        Returns
        -------
        Dataset
            ``mean`` and ``sd`` of a new observation, (obs, feature_<view>); with an interval also ``lower``
            and ``upper``: quantiles of Student's t where the degrees of freedom of the noise are known, else
            of a normal distribution; of counts and binary values their own. Nothing is computed until values
            are asked for, and then only for the rows selected: ``predict("rna").isel(obs=slice(0, 100))``. Of
            a table (obs,), in its order, and at once; of ``new_obs`` at once.

        Raises
        ------
        InputError
            When there is no such view, sample or factor, a row is negative, ``interval`` is not in (0, 1), or
            arguments exclude each other.

        Examples
        --------
        >>> found = posterior.predict("rna", obs=["patient0", "patient1"], interval=0.9)
        >>> found["mean"].dims, found["mean"].shape
        (('obs', 'feature_rna'), (2, 30))
        >>> bool((found["lower"] < found["upper"]).all())
        True
        """
        self.check_draws()
        not_used: dict[str, Any] = {"start": start, "stop": stop, "obs": obs}
        not_used |= {"factors": factors, "trials": trials}
        is_table = self.meta.design is not None and not (isinstance(view, str) and view in self.views)
        if is_table:
            sized = size_factor if size_factor != 1.0 else None
            not_used |= {"interval": interval, "new_obs": new_obs, "size_factor": sized}
        if is_table or new_obs is not None:
            beside = "rows of a table" if is_table else "new_obs"
            remedy = (
                f"It is of {self.views[0]}, a view of the fit." if is_table else "Leave one of the two out."
            )
            for name, value in not_used.items():
                if value is not None:
                    raise InputError(name, value, f"left out beside {beside}", remedy)
        if is_table:
            return tables.predict_table(self, view)
        if new_obs is not None:
            return predict_new(self, self.check_explained(view), new_obs, interval, size_factor)
        if size_factor != 1.0:
            remedy = "Leave it out: samples of the fit have sizes of their own."
            raise InputError("size_factor", size_factor, "left out without new_obs", remedy)
        return prediction.predict(
            self, self.check_explained(view), rows_of(self, start, stop, obs), interval, factors, trials
        )

    def impute(self, view: str, start: int | None = None, stop: int | None = None) -> xr.Dataset:
        """Return a view with its missing entries predicted.

        Parameters
        ----------
        view : str
            Name of the view.
        start, stop : int, optional
            Rows; all when left out.

        Returns
        -------
        Dataset
            ``mean``, ``sd`` and ``observed``, (obs, feature_<view>), computed for the rows that are looked
            at. Where there is a value, it is the ``mean``, and ``sd`` is 0; also where the fit held it out.
            An entry beyond a limit of detection, or a time without an event, is not observed, and predicted
            given that it lies there.

        Raises
        ------
        InputError
            When there is no such view, or the dataset is not there any more.

        Examples
        --------
        >>> found = posterior.impute("rna", stop=10)
        >>> found["observed"].values[0, :3]
        array([False,  True,  True])
        >>> found["sd"].values[0, :3].round(1)
        array([0.6, 0. , 0. ])
        """
        self.check_draws()
        return prediction.impute(self, self.check_explained(view), rows_of(self, start, stop, None))

    def risk(
        self, view: str, start: int | None = None, stop: int | None = None, obs: Sequence[str] | None = None
    ) -> xr.DataArray:
        """Return how much larger the hazard of each sample is than the baseline, as a logarithm.

        Parameters
        ----------
        view : str
            Name of a view of times to an event (likelihood "survival").
        start, stop : int, optional
            Rows; all when left out.
        obs : sequence of str, optional
            Names of samples, instead of rows.

        Returns
        -------
        DataArray
            (obs): expected log hazard ratio, of samples without a time as well. The baseline is that of a
            sample with scores of 0.

        Raises
        ------
        InputError
            When there is no such view, or it is not of times.

        Examples
        --------
        >>> import numpy as np, pandas as pd, tempfile, factorflow
        >>> rng = np.random.default_rng(0)
        >>> z = rng.standard_normal(80)
        >>> rna = z[:, None] + rng.standard_normal((80, 6))
        >>> times = pd.DataFrame({"time": rng.exponential(np.exp(-z)), "event": 1})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     views = {"rna": rna, "death": times}
        ...     data = factorflow.write_dataset(folder + "/d", views, likelihoods={"death": "survival"})
        ...     fit = factorflow.fit(data, n_factors=2, progress=False)
        ...     risk, curves = fit.risk("death"), fit.survival("death", [0.5, 1.0])
        >>> bool(np.corrcoef(risk, z)[0, 1] > 0.8), curves.dims, bool((curves[:, 0] > curves[:, 1]).all())
        (True, ('obs', 'time'), True)
        """
        self.check_draws()
        return outcomes.risk(self, self.check_explained(view), rows_of(self, start, stop, obs))

    def survival(
        self,
        view: str,
        times: Sequence[float] | None = None,
        start: int | None = None,
        stop: int | None = None,
        obs: Sequence[str] | None = None,
    ) -> xr.DataArray:
        """Return survival curves: the probability that samples have no event until each time.

        Parameters
        ----------
        view : str
            Name of a view of times to an event (likelihood "survival").
        times : sequence of float, optional
            Times of 0 or more; when left out, 0 and those at which intervals of the baseline hazard meet.
        start, stop : int, optional
            Rows; all when left out.
        obs : sequence of str, optional
            Names of samples, instead of rows.

        Returns
        -------
        DataArray
            (obs, time): E exp(-H(t) e^x), over the uncertainty of x. Beyond the last time of an event the
            last hazard goes on.

        Raises
        ------
        InputError
            When there is no such view, it is not of times, or a time is negative.
        """
        self.check_draws()
        return outcomes.survival(self, self.check_explained(view), times, rows_of(self, start, stop, obs))

    def to_arviz(
        self,
        log_likelihood: bool | str | Sequence[str] = False,
        *,
        start: int | None = None,
        stop: int | None = None,
        samples: bool = False,
    ) -> xr.DataTree:
        """Return the draws as ArviZ takes them, factors aligned between draws and chains.

        ``arviz_stats.summary``, ``rhat`` and ``ess`` and ``arviz_plots`` also take ``tree`` itself; there the
        factors of every draw are as they were drawn, and may have changed places.

        Parameters
        ----------
        log_likelihood : bool, str or sequence of str
            Views whose entries get their log-likelihood under every draw (True: all), for
            ``arviz_stats.loo(tree, var_name=view)``: of the entries that the model saw. It takes 8 bytes for
            each entry and draw. Of a sampler it needs stored factors (``store_factors=True``).
        start, stop : int, optional
            Samples that it is computed for; all when left out.
        samples : bool
            Whether stored draws of the samples' variables are taken along.

        Returns
        -------
        DataTree
            ``posterior``, and ``sample_stats`` and ``constant_data`` where there are any;
            ``log_likelihood`` and ``observed_data``, a variable for each view by ``entry_<view>``, with
            ``obs_<view>`` and ``feature_<view>`` beside.

        Raises
        ------
        InputError
            Without draws (of a variational posterior: `sample` first), or if too much would be computed.

        Examples
        --------
        >>> tree = posterior.sample(50).to_arviz(log_likelihood="rna")
        >>> tree["log_likelihood/rna"].dims
        ('chain', 'draw', 'entry_rna')
        """
        view_names = [view.name for view in self.meta.value_views]
        chosen = view_names if log_likelihood is True else log_likelihood or []
        chosen = [chosen] if isinstance(chosen, str) else list(chosen)
        views = [self.check_explained(view) for view in chosen]
        return arviz_tree(self, views, rows_of(self, start, stop, None), samples=samples)
