"""Methods of a posterior about the variance that its factors explain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from factorflow.api.families import FamilyMethods
from factorflow.errors import InputError
from factorflow.posterior import variance
from factorflow.posterior.covariates import variance_explained as shares_of_covariates

if TYPE_CHECKING:
    import xarray as xr

    from factorflow.posterior.variance import By


class VarianceMethods(FamilyMethods):
    """Shares of the variance of views, by factor or term, for all samples or each."""

    def __init__(self, tree: xr.DataTree, path: str | None = None) -> None:
        super().__init__(tree, path)
        self._shares_of: dict[tuple[By | None, str | None], xr.Dataset] = {}
        self._terms_of: dict[tuple[By | None, str | None], xr.DataArray] = {}

    def variance_explained(
        self,
        by: By | None = None,
        *,
        view: str | None = None,
        terms: Literal["factor", "covariate", "all"] = "factor",
    ) -> xr.DataArray:
        """Return the share of the variance of each view that each factor explains.

        Parameters
        ----------
        by : {"group", "sample", "feature"}, optional
            For every sample group, sample or feature. What the run did not record is computed from the
            dataset, block by block.
        view : str, optional
            One view alone; needed by feature, where there are several.
        terms : {"factor", "covariate", "all"}
            What each factor explains beside the covariates of the model; what the covariates explain, each
            term alone and all together, beside the intercepts; or both.

        Returns
        -------
        DataArray
            (view, factor), with ``by`` (group, view, factor) or (obs, view, factor); of one view without that
            dimension: (feature_<view>, factor). Of covariates (view, term), in the same way. Of draws that of
            their mean prediction.

        Raises
        ------
        InputError
            When the dataset has no groups, the model has no covariates, or shares by feature are asked for of
            several views.

        Examples
        --------
        >>> posterior.variance_explained().sel(view="rna").round(1).values
        array([0.4, 0.3, 0.3])
        >>> posterior.variance_explained(by="feature", view="rna").sizes["feature_rna"]
        30
        """
        import xarray as xr

        if terms not in ("factor", "covariate", "all"):
            raise InputError("terms", terms, "factor, covariate or all", "Leave it out for factors.")
        if terms == "factor":
            return self._shares(by, view)["variance_explained"]
        self._check_shares(by, view)
        if (by, view) not in self._terms_of:
            self._terms_of[by, view] = shares_of_covariates(self, by, view)
        shares = self._terms_of[by, view]
        if terms == "covariate":
            return shares
        factors = self._shares(by, view)["variance_explained"].rename(factor="term")
        return xr.concat([shares, factors], dim="term")

    def variance_explained_total(self, by: By | None = None, *, view: str | None = None) -> xr.DataArray:
        """Return the share of the variance of each view that all factors explain.

        Parameters
        ----------
        by, view
            As for `variance_explained`.

        Returns
        -------
        DataArray
            (view,), with ``by`` (group, view) or (obs, view); of one view without that dimension.

        Raises
        ------
        InputError
            As for `variance_explained`.

        Examples
        --------
        >>> posterior.variance_explained_total().round(1).values
        array([0.9, 0.5])
        """
        return self._shares(by, view)["variance_explained_total"]

    def contribution_scores(self) -> xr.DataArray:
        """Return how much each view contributes to where each sample lies among the factors.

        The variance of a sample that all factors explain in a view, divided by what they explain of the view
        in all samples (below 0 taken as 0), as a share of the sum over views (MOFA2's
        `calculate_contribution_scores`).

        Returns
        -------
        DataArray
            (obs, view); rows sum to 1. NaN of a view that a sample lacks, and where no view is explained.

        Raises
        ------
        InputError
            When fewer than two views are explained.

        Examples
        --------
        >>> posterior.contribution_scores().sum("view").values[:3].round(6)
        array([1., 1., 1.])
        """
        return variance.contribution_scores(
            self, self.variance_explained_total(by="sample"), self.variance_explained_total()
        )

    def _check_shares(self, by: By | None, view: str | None) -> None:
        if by not in (None, "group", "sample", "feature"):
            raise InputError("by", by, "group, sample or feature", "Leave it out for all samples.")
        if by == "group" and not self.meta.groups:
            expected, remedy = "a dataset with sample groups", "Write the dataset with {groups}."
            raise InputError("by", by, expected, remedy, groups=...)
        if view is not None:
            self.check_explained(view)

    def _shares(self, by: By | None, view: str | None) -> xr.Dataset:
        self._check_shares(by, view)
        if (by, view) not in self._shares_of:
            self._shares_of[by, view] = variance.variance_explained(self, by, view)
        return self._shares_of[by, view]
