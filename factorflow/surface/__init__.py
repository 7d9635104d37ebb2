"""What users call: `fit`, `resume`, `project` and `open_posterior`, and the `Posterior` that they return."""

from factorflow.surface.posterior import Posterior, open_posterior
from factorflow.surface.runs import fit, project, resume

__all__ = ["Posterior", "fit", "open_posterior", "project", "resume"]
