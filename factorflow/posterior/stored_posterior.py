"""`StoredPosterior`: the variables and labels of a posterior, in memory or read lazily from a store.

Analyses, prediction and summaries take it and are not imported here. `factorflow.Posterior` joins them to it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from factorflow.arguments import name_wrong_arguments_of_methods
from factorflow.errors import InputError
from factorflow.models.variables import AVERAGES
from factorflow.posterior.align import Alignment, Symmetry, align_draws, find_alignment
from factorflow.posterior.fitted_run import FittedRun
from factorflow.posterior.lazy import numbered_names
from factorflow.posterior.open import load_variable
from factorflow.posterior.schema import NAMED

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from factorflow.data import Dataset
    from factorflow.data.aligned_dataset import AlignedDataset


@name_wrong_arguments_of_methods
class StoredPosterior(FittedRun):
    """The arrays and labels of the posterior of one run, and the record of that run.

    Parameters
    ----------
    tree : xarray.DataTree
        Its groups (``docs/posterior.md``).
    path : str, optional
        The store it was opened from.
    """

    def __init__(self, tree: xr.DataTree, path: str | None = None) -> None:
        super().__init__(tree, path)
        self._alignment: Alignment | None = None
        self._aligned: dict[str, xr.DataArray] = {}
        self._means: dict[str, xr.DataArray] = {}

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

    def _stored_coordinate(self, dim: str) -> xr.Variable | None:
        for node in (self.tree[self.main_group], *self.tree.children.values()):
            if dim in node.coords:
                return node.coords[dim].variable
        return None

    def coordinate(self, dim: str) -> xr.Variable:
        """Return the labels of a dimension from the group that has them, else from the dataset.

        Parameters
        ----------
        dim : str
            Name of the dimension: ``obs``, ``factor``, ``feature_<view>``, ...

        Returns
        -------
        Variable
        """
        import xarray as xr

        if (labels := self._stored_coordinate(dim)) is not None:
            return labels
        if dim == "obs" and self.is_numbered:
            return xr.Variable(dim, numbered_names(self.meta.n_rows))
        dataset = self.dataset
        names = dataset.obs_names if dim == "obs" else dataset.features(dim.removeprefix("feature_"))
        return xr.Variable(dim, names.astype(object))

    def variable(self, name: str) -> xr.DataArray:
        """Return a variable of the model in memory; of a sampler, its mean over aligned draws.

        Parameters
        ----------
        name : str
            Name of the variable: ``scores``, ``loadings_<view>``, ...

        Returns
        -------
        DataArray

        Raises
        ------
        InputError
            When the model has no such variable, or a chunk of it is damaged.

        Examples
        --------
        >>> posterior.variable("scores_variance").dims
        ('obs', 'factor')
        """
        if self.kind == "variational":
            return self._load(name)
        if name in self._means:
            return self._means[name]
        draws = self.draws(name)
        mean = draws.mean([dim for dim in ("chain", "draw") if dim in draws.dims], keep_attrs=True)
        if "obs" not in mean.dims:
            self._means[name] = mean
        return mean

    @property
    def n_draws(self) -> int | None:
        """Draws of each chain: 0 of a sampler that was stopped in its burn-in; None without a sampler."""
        return self.tree[self.main_group].sizes["draw"] if self.kind == "monte carlo" else None

    def draws(self, name: str) -> xr.DataArray:
        """Return the draws of a variable, factors aligned between draws and chains.

        Of a variational posterior only where they were drawn on request (`sample`).

        Parameters
        ----------
        name : str
            Name of the variable.

        Returns
        -------
        DataArray
            (chain, draw, ...)

        Raises
        ------
        InputError
            Where there are no draws of the variable.

        Examples
        --------
        >>> posterior.sample(50).draws("scores").dims
        ('chain', 'draw', 'obs', 'factor')
        """
        if self.kind == "variational":
            group = self.tree["posterior"] if "posterior" in self.tree.children else None
            if group is None or name not in group.data_vars:
                self._load(name)  # refuses what is no variable at all
                expected = "a sampler's, or draws on request: a variational posterior is means and variances"
                remedy = f"Ask posterior.sample(100).draws({name!r}), or variable({name!r}) for the mean."
                raise InputError("draws", name, expected, remedy)
            requested: xr.DataArray = load_variable(group[name], f"posterior/{name}", self.path)
            return requested
        draws = self._load(name)
        symmetry = getattr(self.model, "symmetry", None) if self.kind == "monte carlo" else None
        if symmetry is None or "chain" not in draws.dims:
            return draws
        if "obs" in draws.dims:
            return self._align((name,), symmetry)[name]
        if not self._aligned:
            variables = self.tree[self.main_group].data_vars.items()
            globals_ = [str(n) for n, v in variables if "chain" in v.dims and "obs" not in v.dims]
            self._aligned = self._align(globals_, symmetry)
        return self._aligned[name]

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
            remedy = "Ask for loadings(view) or variable(name)."
            raise InputError("model", family, "a family whose samples have scores", remedy)
        if not adjusted:
            return self.variable("scores")
        if not self.has("score_regression"):
            expected = "False where the model has no covariates"
            raise InputError("adjusted", adjusted, expected, "Fit with {covariates}.", covariates=["age"])
        found = self.variable("scores") - self.variable("covariates") @ self.variable("score_regression")
        return found.transpose("obs", "factor")

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
            raise InputError("model", family, expected, "Ask for scores().")
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
            raise InputError("factor", label, f"one of {', '.join(labels)}", "Factors are numbered from 1.")
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
        """Return the entries of a view that were held out of the fit.

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
            When nothing was held out, or the dataset is not there any more.

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

    # Inner parts

    @property
    def is_numbered(self) -> bool:
        """Whether the samples have no names but numbers: ``sample0``, ``sample1``, ..."""
        return not self.run.get(NAMED, True)

    @property
    def main_group(self) -> str:
        """Group of the tree that holds the model's variables."""
        return "variational" if self.kind == "variational" else "posterior"

    def has(self, name: str) -> bool:
        """Return whether the model has a variable of this name.

        Parameters
        ----------
        name : str
            Name of the variable.

        Returns
        -------
        bool
        """
        return any(name in self.tree[group].data_vars for group in self._groups)

    def array(self, name: str) -> xr.DataArray:
        """Return a variable of the model as it is stored, unread: of a sampler with its chains, unaligned.

        Parameters
        ----------
        name : str
            Name of the variable.

        Returns
        -------
        DataArray

        Raises
        ------
        InputError
            When the model has no such variable.
        """
        group: Any = self.tree[self._group_of(name)]
        array: xr.DataArray = group[name]
        return array

    @property
    def _groups(self) -> tuple[str, ...]:
        """Groups of the tree with variables of the model: what has draws, or is exact, first."""
        return tuple(group for group in (self.main_group, AVERAGES) if group in self.tree.children)

    def _group_of(self, name: str) -> str:
        """Return the group of a variable of the model, or of another group of the tree."""
        for group in dict.fromkeys((*self._groups, *map(str, self.tree.children))):
            if name in self.tree[group].data_vars:
                return group
        names = [str(v) for group in self._groups for v in self.tree[group].data_vars]
        raise InputError("variable", name, f"one of {', '.join(names)}", "Choose one of them.")

    def check_draws(self) -> None:
        """Raise an error if a sampler has no draws because it was stopped in its burn-in."""
        if self.n_draws == 0:
            remedy = "Run it with more iterations ({max_iter}), with {overwrite}."
            if self.run.get("status") == "partial":
                remedy = "Go on with it (`factorflow resume`)."
            expected = "at least one: the run was stopped in its burn-in"
            raise InputError("draws", 0, expected, remedy, max_iter=..., overwrite=True)

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

    def _load(self, name: str) -> xr.DataArray:
        array, group = self.array(name), self._group_of(name)
        self.check_draws()
        loaded: xr.DataArray = load_variable(array, f"{group}/{name}", self.path)
        return loaded

    def _align(self, names: Sequence[str], symmetry: Symmetry) -> dict[str, xr.DataArray]:
        """Return the draws of some variables of a sampler, the factors of all draws and chains aligned."""
        draws = {name: self._load(name) for name in names}
        loadings = {name: self._load(name) for name in (f"loadings_{view}" for view in self.views)}
        if self._alignment is None:
            stacked = np.concatenate([array.values for array in loadings.values()], axis=2)
            self._alignment = find_alignment(stacked, symmetry)
        needed = draws | loadings if symmetry == "flip" else draws  # a flip of 0 and 1 moves the intercepts
        dims = {name: tuple(str(dim) for dim in array.dims) for name, array in needed.items()}
        arrays = {name: array.values for name, array in needed.items()}
        values = align_draws(arrays, dims, symmetry, self._alignment)
        return {name: draws[name].copy(data=values[name]) for name in names}
