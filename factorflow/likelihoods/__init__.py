"""Likelihoods of the entries of a view, for all families: one file each.

An entry y has a predictor x and nuisance parameters phi of its feature. A likelihood says log p(y | x, phi),
moments and quantiles of y, and where x starts; messages of variational updates follow from the log density by
quadrature, unless a file has a closed form (`factorflow.likelihoods.base`). A further likelihood is a further
file here, or a class that an entry point of the group ``factorflow.likelihoods`` names.
"""

from factorflow.likelihoods.base import Likelihood, Message, quadrature
from factorflow.likelihoods.registry import get_likelihood, likelihood_names

__all__ = ["Likelihood", "Message", "get_likelihood", "likelihood_names", "quadrature"]
