"""Something to know of a posterior."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something to know of a posterior.

    Parameters
    ----------
    kind : str
        "burn-in", "mixing", "budget", "outlier", "baseline", "overdispersion", "no factors", "unstable",
        "scale", "one sample", "one feature", "depth" or "batch"; of a projection "outlier", "features",
        "not described" or "overdispersion".
    message : str
        What was found, with its numbers.
    remedy : str
        What to do.
    """

    kind: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}"
