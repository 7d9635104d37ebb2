"""What users call: `fit`, `resume`, `project`, `open_posterior`, `load`, and the `Posterior` they return."""

from factorflow.surface.posterior import Posterior, open_posterior
from factorflow.surface.runs import fit, project, resume
from factorflow.surface.sharing import load

__all__ = ["Posterior", "fit", "load", "open_posterior", "project", "resume"]
