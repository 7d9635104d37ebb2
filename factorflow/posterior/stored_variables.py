"""`StoredVariables`: the variables of a posterior by name, read lazily from its tree; draws are aligned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.errors import InputError
from factorflow.models.variables import AVERAGES
from factorflow.posterior.align import Alignment, Symmetry, align_draws, find_alignment
from factorflow.posterior.fitted_run import FittedRun
from factorflow.posterior.lazy import numbered_names
from factorflow.posterior.open import load_variable
from factorflow.posterior.schema import NAMED

if TYPE_CHECKING:
    import xarray as xr


class StoredVariables(FittedRun):
    """The variables and labels in the groups of the tree of a posterior."""

    def __init__(self, tree: xr.DataTree, path: str | None = None) -> None:
        super().__init__(tree, path)
        self._alignment: Alignment | None = None
        self._aligned: dict[str, xr.DataArray] = {}
        self._means: dict[str, xr.DataArray] = {}

    @property
    def is_numbered(self) -> bool:
        """Whether the samples have no names but numbers: ``sample0``, ``sample1``, ..."""
        return not self.run.get(NAMED, True)

    @property
    def main_group(self) -> str:
        """Group of the tree that holds the model's variables."""
        return "variational" if self.kind == "variational" else "posterior"

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

    def global_variables(self) -> dict[str, NDArray[Any]]:
        """Return the variables that are not of samples, whole, as they are stored: factors not aligned.

        Returns
        -------
        dict of str to array
            By name.

        Examples
        --------
        >>> "loadings_rna" in posterior.global_variables()
        True
        """
        return {v.name: self._load(v.name).values for v in self.model.table if not v.rows}

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
                remedy = f"Use posterior.sample(100).draws({name!r}), or variable({name!r}) for the mean."
                raise InputError("draws", name, expected, remedy)
            requested: xr.DataArray = load_variable(group[name], f"posterior/{name}", self.path)
            return requested
        draws = self._load(name)
        if self._symmetry is None or "chain" not in draws.dims:
            return draws
        if "obs" in draws.dims or name not in self.tree[self.main_group]:
            return self._align((name,))[name]
        if not self._aligned:
            variables = self.tree[self.main_group].data_vars.items()
            globals_ = [str(n) for n, v in variables if "chain" in v.dims and "obs" not in v.dims]
            self._aligned = self._align(globals_)
        return self._aligned[name]

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
                remedy = "Resume it (`factorflow resume`)."
            expected = "at least one: the run was stopped in its burn-in"
            raise InputError("draws", 0, expected, remedy, max_iter=..., overwrite=True)

    def _load(self, name: str) -> xr.DataArray:
        array, group = self.array(name), self._group_of(name)
        self.check_draws()
        loaded: xr.DataArray = load_variable(array, f"{group}/{name}", self.path)
        return loaded

    @property
    def _symmetry(self) -> Symmetry | None:
        return getattr(self.model, "symmetry", None) if self.kind == "monte carlo" else None

    @property
    def alignment(self) -> Alignment | None:
        """How the factors of every draw of a sampler are renamed; None where they need not be."""
        if self._symmetry is not None and self._alignment is None:
            loadings = [self._load(f"loadings_{view}").values for view in self.views]
            self._alignment = find_alignment(np.concatenate(loadings, axis=2), self._symmetry)
        return self._alignment

    def _align(self, names: Sequence[str]) -> dict[str, xr.DataArray]:
        """Return the draws of some variables of a sampler, the factors of all draws and chains aligned."""
        draws = {name: self._load(name) for name in names}
        symmetry: Symmetry = self._symmetry or "none"
        needed = dict(draws)
        if symmetry == "flip":  # of 0 and 1: it moves the intercepts
            needed |= {name: self._load(name) for name in (f"loadings_{view}" for view in self.views)}
        dims = {name: tuple(str(dim) for dim in array.dims) for name, array in needed.items()}
        arrays = {name: array.values for name, array in needed.items()}
        values = align_draws(arrays, dims, symmetry, self.alignment)
        return {name: array.copy(data=values[name]) for name, array in draws.items()}
