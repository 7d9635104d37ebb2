"""What users call: `fit`, `resume`, `project`, `open_posterior`, `load`, and the `Posterior` they return."""

from factorflow.api.posterior import Posterior, open_posterior
from factorflow.api.runs import fit, project, resume
from factorflow.api.sharing import load

__all__ = ["Posterior", "fit", "load", "open_posterior", "project", "resume"]
