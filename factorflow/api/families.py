"""Methods of the posteriors of single families: tables, sequences, decoders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from factorflow.api.smooth_scores import SmoothScoresMethods
from factorflow.engine import run
from factorflow.engine.executors.launch import executor_options
from factorflow.errors import InputError
from factorflow.posterior import consensus, covariates, feature_sets, prediction, sequences, summary
from factorflow.settings import ResumeOptions, parse_config

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from factorflow.data import Dataset
    from factorflow.engine.executors.launch import ExecutorLike


class FamilyMethods(SmoothScoresMethods):
    """What the posteriors of some families have; others raise an InputError."""

    def components(self, n: int = 5) -> pd.DataFrame:
        """Return the components of a table's model, strongest first: weights, and top levels by variable.

        Parameters
        ----------
        n : int
            Levels named for each variable.

        Returns
        -------
        DataFrame
            By component: ``weight``, and for each variable its levels with the largest loadings.

        Raises
        ------
        InputError
            When the components of the family have no weights.
        """
        return summary.components(self, n)

    def coefficients(self, view: str, total: bool = False) -> xr.Dataset:
        """Return the coefficients of the covariates of a model, for each feature of a view.

        Parameters
        ----------
        view : str
            Name of the view.
        total : bool
            With what factors that go with the covariates add: total effects, of the adjusted scores
            (``scores(adjusted=True)``); else direct ones, beside the factors.

        Returns
        -------
        Dataset
            ``mean`` and ``sd`` (covariate, feature_<view>), for each unit of the column, in units of x (data
            units of measurements, log odds, logarithms of rates). ``sd`` takes factors for known; of a
            sampler it is that over draws.

        Raises
        ------
        InputError
            When there is no such view, or the model has no covariates.
        """
        return covariates.coefficients(self, view, total=total)

    def score_coefficients(self) -> xr.Dataset:
        """Return what the factors have to do with the covariates of the scores (``score_covariates``).

        Returns
        -------
        Dataset
            ``mean`` and ``sd`` (score_covariate, factor), for each unit of the column, of scores of variance
            1; 0 of factors that the data do not show to have to do with any.

        Raises
        ------
        InputError
            When the model has no covariates of the scores.
        """
        return covariates.score_coefficients(self)

    def size_factors(self, view: str) -> xr.DataArray:
        """Return the size factors of the samples in a view of counts.

        Parameters
        ----------
        view : str
            Name of the view.

        Returns
        -------
        DataArray
            (obs,); predictions are of the sample as it was counted, with its own size factor.

        Raises
        ------
        InputError
            When there is no such view, or the model has no size factors.
        """
        name = self.check_view(view)
        if not self.has("size_factors"):
            remedy = "Fit with {size_factors}."
            expected = "one with size factors"
            raise InputError("model", "one without size factors", expected, remedy, size_factors="total")
        return self.variable("size_factors").sel(view=name, drop=True)

    def consensus(self, threshold: float = 0.5) -> xr.Dataset:
        """Return the programs or factors that the starts of a fit agree on (``n_starts``).

        Parameters
        ----------
        threshold : float
            Mean distance to the nearest programs of other starts, as vectors of length 1, above which a
            program is left out.

        Returns
        -------
        Dataset
            ``loadings_<view>`` (consensus_factor, feature_<view>), medians: of programs (`PoissonFactors`)
            scaled to sum to 1, of factors (`SparseGFA`) in data units, the largest positive; ``stability``
            (consensus_factor), mean silhouettes; ``label`` (start, factor), the number of the consensus
            program from 1 on, 0 of those left out; ``distance`` (start, factor). Attribute ``share_kept``.

        Raises
        ------
        InputError
            When the fit had one start, or the family none.
        """
        return consensus.consensus_of_starts(self, threshold)

    def adjusted(
        self,
        view: str,
        remove: Sequence[str] | None = None,
        start: int | None = None,
        stop: int | None = None,
    ) -> xr.Dataset:
        """Return the data of a view of measurements without the effect of covariates, read as it is computed.

        Parameters
        ----------
        view : str
            Name of the view.
        remove : sequence of str, optional
            Terms whose effect is subtracted; all when left out.
        start, stop : int, optional
            Rows; all when left out.

        Returns
        -------
        Dataset
            ``mean``, the prediction, and ``observed``, the data, (obs, feature), both without that effect.

        Raises
        ------
        InputError
            When there is no such view or term, the view is not Gaussian, or the model has no covariates.
        """
        return covariates.adjusted(self, view, remove, start, stop)

    def feature_sets(self) -> pd.DataFrame:
        """Return the feature set of each factor that has one (``loadings="informed"``).

        Returns
        -------
        DataFrame
            A row for each factor and view: ``factor``, ``set``, ``view``; ``evidence``, the nats by which the
            bound is higher with the set; ``holds``, whether the evidence of all views is above
            3 + log(number of sets), so that the factor has the name of the set (a guided one has that of its
            outcome); ``n_members`` in the view, ``n_added`` and ``n_removed`` by `refined_sets`.

        Raises
        ------
        InputError
            When the model has no feature sets.
        """
        return feature_sets.feature_sets(self, 0.1)

    def refined_sets(self, error: float = 0.1) -> pd.DataFrame:
        """Return the features that the sets of factors lack, or have too many.

        Parameters
        ----------
        error : float
            Mean probability of an error in each list; lists are as long as that allows.

        Returns
        -------
        DataFrame
            ``factor``, ``set``, ``view``, ``feature``; ``change``, "added" of a feature outside of the set
            whose loading is not 0, "removed" of a member whose loading is small: below a quarter of the
            standard deviation of those that are not 0; ``probability`` of that.

        Raises
        ------
        InputError
            When the model has no feature sets.
        """
        return feature_sets.refined_sets(self, error)

    def identities(self) -> xr.DataArray:
        """Return the probability that each identity is present in each frame.

        Returns
        -------
        DataArray
            (obs, identity)

        Raises
        ------
        InputError
            When the family has no identities.
        """
        sequences.check_identities(self)
        return self.variable("present")

    def attributes(self) -> xr.Dataset:
        """Return the attributes of each frame.

        Returns
        -------
        Dataset
            ``mean`` and ``sd``, (obs, identity, attribute).

        Raises
        ------
        InputError
            When the family has no attributes.
        """
        return sequences.attributes(self)

    def one_step(
        self,
        start: int | None = None,
        stop: int | None = None,
        dataset: Dataset | str | os.PathLike[str] | None = None,
    ) -> xr.Dataset:
        """Return what is predicted of each frame from the frames of its sequence before it alone.

        Parameters
        ----------
        start, stop : int, optional
            Rows; all when left out. Their sequences are gone through from the beginning.
        dataset : Dataset or path, optional
            Other frames of the same views; those of the fit when left out. Entries that a fit held out are
            taken as observed.

        Returns
        -------
        Dataset
            By view ``mean_<view>`` and ``sd_<view>`` of a new observation, (obs, feature); ``present``
            (obs, identity); ``log_density`` (obs,), a lower bound of log p(y_t | y_1 ... y_t-1) in nats.

        Raises
        ------
        InputError
            When the family knows no sequences.
        """
        return sequences.one_step(self, start, stop, dataset)

    def log_likelihood(
        self,
        dataset: Dataset | str | os.PathLike[str],
        *,
        n_draws: int = 500,
        n_repeats: int = 4,
        executor: ExecutorLike = "local",
        workers: int | None = None,
    ) -> xr.Dataset:
        """Return log p(y) of samples under the fitted model, their latent variables integrated out.

        By importance sampling; of models that can. Missing entries are left out.

        Parameters
        ----------
        dataset : Dataset or path
            Samples, matched as by `project`.
        n_draws : int
            Draws of each repeat.
        n_repeats : int
            Repeats, whose spread gives the error bars.
        executor, workers
            As for `fit`.

        Returns
        -------
        Dataset
            ``log_likelihood`` (nats) and ``log_likelihood_error``, its standard error, (obs,).

        Raises
        ------
        InputError
            When the family cannot, or dataset and model do not fit together.
        """
        for name, value in (("n_draws", n_draws), ("n_repeats", n_repeats)):
            if not isinstance(value, int) or value < 1:
                raise InputError(name, value, "an integer >= 1", "Leave it out.")
        place, where = executor_options(executor)
        options = parse_config(ResumeOptions, {"workers": workers} | where)
        tree: Any = run.project(self, dataset, 1, options, place=place, scored=(n_draws, n_repeats))
        stored: xr.Dataset = tree[self.main_group].to_dataset(inherit=False)
        return stored[["log_likelihood", "log_likelihood_error"]]

    def generate(self, n_samples: int, seed: int = 0) -> dict[str, xr.DataArray]:
        """Return new samples of the model, by view; of models that can.

        Parameters
        ----------
        n_samples : int
            Samples (N).
        seed : int
            Key of their noise.

        Returns
        -------
        dict of str to DataArray
            Per view (obs, feature) on the data scale; ``scores`` (obs, factor), the latent variables.

        Raises
        ------
        InputError
            When the family cannot.
        """
        return prediction.generate(self, n_samples, seed)
