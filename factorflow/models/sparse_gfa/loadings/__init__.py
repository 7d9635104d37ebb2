"""Priors of the loadings of a view: one file each.

From the entries of its feature, with all else known, a loading gets the message exp(l w - p w^2 / 2): normal
equations of the feature say l and p. A prior answers with q(w), and says what alpha, the precision of the
loadings of a factor, and other parameters that loadings share follow from. A further prior is a further file
here, or a class that an entry point of the group ``factorflow.loadings`` names; mostly a list of components
(`mixture`).
"""

from factorflow.models.sparse_gfa.loadings.base import (
    LoadingsPrior,
    LoadingSums,
    PriorConstants,
    get_prior,
    prior_help,
    prior_names,
)

__all__ = ["LoadingSums", "LoadingsPrior", "PriorConstants", "get_prior", "prior_help", "prior_names"]
