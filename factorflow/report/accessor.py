"""`posterior.plot`: the figures of a posterior as its methods."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from types import MethodType
from typing import TYPE_CHECKING, Any

from factorflow import report

if TYPE_CHECKING:
    from factorflow.api import Posterior

NAMES = tuple(
    name.removeprefix("plot_")
    for name in report.__all__
    if name.startswith("plot_") and name != "plot_selection"
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
            return MethodType(getattr(report, f"plot_{name}"), self._posterior)
        near = get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(NAMES)}"
        raise AttributeError(f"no figure is called {name!r}: {hint}", name=name, obj=self)

    def __dir__(self) -> list[str]:
        return [*NAMES]

    def __repr__(self) -> str:
        return f"<figures of a posterior: {', '.join(NAMES)}>"
