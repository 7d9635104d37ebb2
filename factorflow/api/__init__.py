"""Public functions: `fit`, `project`, `open_posterior`, `load`, and the `Posterior` they return."""

from factorflow.api.posterior import Posterior, open_posterior
from factorflow.api.runs import fit, project
from factorflow.api.sharing import load

__all__ = ["Posterior", "fit", "load", "open_posterior", "project"]
