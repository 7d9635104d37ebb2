"""Figures of times to an event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.errors import InputError
from factorflow.posterior import outcomes
from factorflow.posterior.prediction import values_of_rows
from factorflow.report.drawing import some_rows
from factorflow.report.style import CATEGORIES, new_axes, quiet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from factorflow.api import Posterior

N_TIMES = 60
"""Times at which curves of the model are drawn."""


def plot_survival(posterior: Posterior, view: str, groups: int = 3, ax: Axes | None = None) -> Axes:
    """Draw survival by groups of predicted risk: of the data (Kaplan and Meier), and of the model, dashed.

    Parameters
    ----------
    posterior : Posterior
        What was fitted; its dataset is read.
    view : str
        Name of a view of times to an event.
    groups : int
        Groups of as many samples each, from the lowest risk to the highest.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When the view is not of times, or there are fewer samples with a time than groups.

    Examples
    --------
    Of a posterior with a view of times::

        posterior.plot.survival("death", groups=2)
    """
    rows = some_rows(posterior.data)
    risk = outcomes.risk(posterior, posterior.check_explained(view), rows).to_numpy()
    key = posterior.data.views[view].aux_key
    time = values_of_rows(posterior.data, view, rows)[:, 0].astype(float)
    event = values_of_rows(posterior.data, view, rows, key)[:, 0] == 0
    seen = np.flatnonzero(~np.isnan(time))
    if not isinstance(groups, int) or not 1 <= groups <= max(1, min(len(seen), len(CATEGORIES))):
        raise InputError("groups", groups, f"1 to {len(CATEGORIES)}, each with a sample", "For example 3.")
    ax = new_axes(ax)
    at = np.linspace(0.0, time[seen].max(initial=0.0), N_TIMES)
    parts = np.array_split(seen[np.argsort(risk[seen], kind="stable")], groups)
    for number, part in enumerate(parts):
        label = "all" if groups == 1 else f"risk {number + 1} of {groups} (n = {len(part)})"
        ends, alive = kaplan_meier(time[part], event[part])
        ax.step(ends, alive, where="post", color=CATEGORIES[number], label=label)
        curve = outcomes.survival(posterior, view, at.tolist(), np.sort(rows[part])).mean("obs")
        ax.plot(at, curve, color=CATEGORIES[number], linestyle="--", linewidth=1.0)
    ax.set_ylim(0.0, 1.02)
    ax.set_xlabel(f"time ({view})")
    ax.set_ylabel("without event")
    ax.legend(frameon=False)
    return quiet(ax)


def kaplan_meier(time: Any, event: Any) -> tuple[Any, Any]:
    """Return times of events, 0 the first, and the product-limit estimate of survival from each on."""
    times = np.unique(time[event])
    at_risk = (time[None] >= times[:, None]).sum(axis=1)
    lost = (time[event][None] == times[:, None]).sum(axis=1)
    return np.append(0.0, times), np.append(1.0, np.cumprod(1.0 - lost / np.maximum(at_risk, 1)))
