"""`StoredPosterior`: labels, scores, loadings and held-out entries of a posterior, in memory or in a store.

Analyses, prediction and summaries take it and are not imported here. `factorflow.Posterior` joins them to it.
"""

from __future__ import annotations

import operator
from functools import cached_property
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from factorflow.errors import InputError
from factorflow.posterior.stored_variables import StoredVariables

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from factorflow.data import Dataset
    from factorflow.data.aligned_dataset import AlignedDataset


class StoredPosterior(StoredVariables):
    """The arrays and labels of the posterior of one run, and the record of that run.

    Parameters
    ----------
    tree : xarray.DataTree
        Its groups (``docs/posterior.md``).
    path : str, optional
        The store it was opened from.
    """

    @property
    def data(self) -> Dataset | AlignedDataset:
        """The dataset as the model sees it: views and features are those of the fit, in its order.

        New samples may have fewer of them, others, or another order: they are matched by name, and what is
        not there is missing. Whatever holds values against the model reads them here.
        """
        from factorflow.data.aligned_dataset import AlignedDataset

        if self.run["status"] != "projected":
            return self.dataset
        if self._projected_data is None:
            features = {view: self.features(view) for view in self.views}
            self._projected_data = AlignedDataset(self.dataset, self.meta, features)
        return self._projected_data

    @property
    def loaded_views(self) -> tuple[str, ...]:
        """Names of the views whose features have loadings, in order."""
        return tuple(view for view in self.views if self.has(f"loadings_{view}"))

    @property
    def predicts_by_factors(self) -> bool:
        """Whether predictions are sums over factors with loadings."""
        return bool(self.loaded_views) and (self.kind == "variational" or self.model.predicts_by_factors)

    @property
    def factors(self) -> list[str]:
        """Labels of the factors."""
        group = self.tree[self.main_group]
        return [str(label) for label in group.coords["factor"].values] if "factor" in group.coords else []

    @cached_property
    def obs_names(self) -> Any:
        """Names of the samples, (N,)."""
        return np.asarray(self.coordinate("obs").values, dtype=object)

    def features(self, view: str) -> Any:
        """Return the names of the features of a view.

        Parameters
        ----------
        view : str
            Name of the view.

        Returns
        -------
        (D,) array of str

        Raises
        ------
        InputError
            When there is no such view.

        Examples
        --------
        >>> posterior.features("rna")[:3].tolist()
        ['gene0', 'gene1', 'gene2']
        """
        return np.asarray(self.coordinate(f"feature_{self.check_view(view)}").values, dtype=object)

    def own_features(self, view: str) -> Any:
        """Return the names of the features of a view, if they are in the posterior itself.

        Parameters
        ----------
        view : str
            Name of the view.

        Returns
        -------
        (D,) array of str, or None
            None: they are in the dataset alone.

        Raises
        ------
        InputError
            When there is no such view.
        """
        labels = self._stored_coordinate(f"feature_{self.check_view(view)}")
        return None if labels is None else np.asarray(labels.values, dtype=object)

    def scores(self, adjusted: bool = False) -> xr.DataArray:
        """Return the factor scores of the samples.

        Parameters
        ----------
        adjusted : bool
            Less their regression on the covariates of the model: uncorrelated with these.

        Returns
        -------
        DataArray
            (obs, factor)

        Raises
        ------
        InputError
            When the samples of the family have none, or the model has no covariates to adjust for.

        Examples
        --------
        >>> posterior.scores().sel(factor="Factor1").round(1).values[:3]
        array([ 0.1,  0.3, -1.4])
        """
        if not self.has("scores"):
            family = self.run["config"].get("model")
            remedy = "Use loadings(view) or variable(name)."
            raise InputError("model", family, "a family whose samples have scores", remedy)
        if not adjusted:
            return self.variable("scores")
        if not self.has("score_regression"):
            expected = "False where the model has no covariates"
            raise InputError("adjusted", adjusted, expected, "Fit with {covariates}.", covariates=["age"])
        adjusted_scores = self.variable("scores") - self.variable("covariates") @ self.variable(
            "score_regression"
        )
        return adjusted_scores.transpose("obs", "factor")

    def inputs(self) -> xr.DataArray:
        """Return the inputs X of the process that couples the samples.

        Of models with such a process; ``variable("inputs_variance")`` says how certain they are.

        Returns
        -------
        DataArray
            (obs, input)

        Raises
        ------
        InputError
            When the family has no such process.
        """
        if not self.has("inputs"):
            family = self.run["config"].get("model")
            expected = "a model whose samples a process couples"
            raise InputError("model", family, expected, "Use scores().")
        return self.variable("inputs")

    def loadings(self, view: str) -> xr.DataArray:
        """Return the loadings of a view.

        Parameters
        ----------
        view : str
            Name of the view.

        Returns
        -------
        DataArray
            (feature_<view>, factor)

        Raises
        ------
        InputError
            When there is no such view, or the family has none of them.

        Examples
        --------
        >>> posterior.loadings("rna").dims
        ('feature_rna', 'factor')
        >>> posterior.loadings("rna").sel(feature_rna="gene0").round(1).values
        array([-3.1,  0.9,  0.7])
        """
        return self.variable(f"loadings_{self.check_view(view)}")

    def inclusion(self, view: str) -> xr.DataArray:
        """Return the probability that each loading of a view differs from zero.

        Parameters
        ----------
        view : str
            Name of the view.

        Returns
        -------
        DataArray
            (feature_<view>, factor)

        Raises
        ------
        InputError
            When there is no such view, or the family has none of them.

        Examples
        --------
        >>> included = posterior.inclusion("mutations") > 0.5
        >>> included.dims, bool(included.any())
        (('feature_mutations', 'factor'), True)
        """
        return self.variable(f"inclusion_{self.check_view(view)}")

    def intercept(self, view: str) -> xr.DataArray:
        """Return the intercepts of the features of a view.

        Parameters
        ----------
        view : str
            Name of the view.

        Returns
        -------
        DataArray
            (feature_<view>,)

        Raises
        ------
        InputError
            When there is no such view, or the family has none of them.

        Examples
        --------
        >>> posterior.intercept("rna").dims
        ('feature_rna',)
        """
        return self.variable(f"intercept_{self.check_view(view)}")

    def factor(self, label: str | SupportsIndex) -> str:
        """Return the label of a factor.

        Parameters
        ----------
        label : str or int
            Label, or number from 1 (an integer of any type).

        Returns
        -------
        str

        Raises
        ------
        InputError
            When there is no such factor.

        Examples
        --------
        >>> posterior.factor(2)
        'Factor2'
        """
        labels = self.factors
        try:
            number = 0 if isinstance(label, str | bool) else operator.index(label)
        except TypeError:
            number = 0
        name = labels[number - 1] if 0 < number <= len(labels) else str(label)
        if name not in labels:
            if not labels:
                remedy = "See posterior.findings for the reason."
                raise InputError("factor", label, "a posterior with factors: this one has none", remedy)
            expected = f"one of {', '.join(labels)}, or a number from 1 to {len(labels)}"
            raise InputError("factor", label, expected, "See posterior.factors.")
        return name

    @property
    def was_scored(self) -> bool:
        """Whether entries were held out."""
        return "holdout" in self.tree.children

    def holdout_scores(self) -> pd.DataFrame:
        """Return the scores of the held-out entries.

        Returns
        -------
        DataFrame
            By view, and what the shown means would have scored.

        Raises
        ------
        InputError
            When nothing was held out.

        Examples
        --------
        >>> posterior.holdout_scores()["rmse"].round(1).to_dict()
        {'rna': 0.5, 'mutations': 0.4}
        """
        self._check_scored()
        return self.tree["holdout"].to_dataset().to_dataframe()

    def holdout_entries(self, view: str) -> pd.DataFrame:
        """Return the entries of a view that were held out of the fit; of split counts the part of each.

        Parameters
        ----------
        view : str
            Name of the view.

        Returns
        -------
        DataFrame
            ``obs``, ``feature`` and ``value``, read from the dataset of the fit, in the order of its rows.

        Raises
        ------
        InputError
            When nothing of the view was held out, or the dataset is not there any more.

        Examples
        --------
        >>> entries = posterior.holdout_entries("rna")
        >>> len(entries), entries.columns.tolist()
        (250, ['obs', 'feature', 'value'])
        """
        import pandas as pd

        from factorflow.data import Holdout

        self._check_scored()
        view, dataset = self.check_explained(view), self.dataset
        holdout = Holdout.of(self.run, dataset.design)
        assert holdout is not None
        if not holdout.concerns(dataset.views[view].kind):
            remedy = "See posterior.holdout_scores()."
            raise InputError("view", view, "a view of counts: of no other a part was held out", remedy)
        features, parts = np.asarray(self.features(view), dtype=object), []
        for number in range(dataset.n_blocks):
            block, truth = dataset.read(number, [view], holdout)
            rows, columns = block.hidden[view]
            names = np.asarray(self.obs_names[block.start : block.start + block.n_rows], dtype=object)[rows]
            parts.append(pd.DataFrame({"obs": names, "feature": features[columns], "value": truth[view]}))
        return pd.concat(parts, ignore_index=True)

    def _check_scored(self) -> None:
        if not self.was_scored:
            raise InputError(
                "holdout",
                self.run.get("holdout", 0.0),
                "a run with held-out entries",
                "Fit with {holdout}.",
                holdout=0.1,
            )

    def check_view(self, view: str) -> str:
        """Return the name of a view, refusing one that the model has not."""
        if view not in self.views:
            raise InputError(
                "view", view, f"one of {', '.join(self.views)}", "Choose one of the views of the model."
            )
        return view

    def check_explained(self, view: str) -> str:
        """Return the name of a view, refusing one that the model is given instead of explaining it."""
        explained = [entry.name for entry in self.meta.value_views]
        if self.check_view(view) not in explained:
            raise InputError(
                "view", view, f"one of {', '.join(explained)}", "It is an input: given, not predicted."
            )
        return view
