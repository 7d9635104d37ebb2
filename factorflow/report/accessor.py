"""`posterior.plot`: the figures of a posterior as its methods."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from types import MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from factorflow.api import Posterior

NAMES = (
    "association",
    "attributes",
    "calibration",
    "covariate",
    "data",
    "distribution",
    "embedding",
    "enrichment",
    "factor_correlation",
    "group_correlation",
    "identities",
    "loadings",
    "presence",
    "rhat",
    "rootogram",
    "scores",
    "smoothness",
    "space",
    "survival",
    "top_weights",
    "trace",
    "variance_explained",
    "weights",
)
"""Names of the figures of a posterior: ``factorflow.report.plot_NAME``."""


class Plots:
    """The figures of a posterior, ``posterior.plot.NAME(...)``: those of `factorflow.report.plot_NAME`.

    Each draws into the Axes given as ``ax``, or a new figure, and returns them.
    """

    def __init__(self, posterior: Posterior) -> None:
        self._posterior = posterior

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in NAMES:
            return MethodType(getattr(import_module("factorflow.report"), f"plot_{name}"), self._posterior)
        near = get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(NAMES)}"
        raise AttributeError(f"no figure is called {name!r}: {hint}", name=name, obj=self)

    def __dir__(self) -> list[str]:
        return [*NAMES]

    def __repr__(self) -> str:
        return f"<figures of a posterior: {', '.join(NAMES)}>"
