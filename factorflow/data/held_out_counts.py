"""Runs that hold out a part of each count (`thinning`): which they may be, and rates of what is held out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from factorflow.core.kinds import Kind
from factorflow.data.holdout import Holdout
from factorflow.errors import InputError

if TYPE_CHECKING:
    from factorflow.core.block import Meta
    from factorflow.data.store.dataset import Dataset
    from factorflow.likelihoods import Likelihood


def is_split(holdout: Holdout | None, kind: Kind) -> bool:
    """Return whether a part of each entry of a kind of view is held out."""
    return holdout is not None and holdout.unit == "count" and holdout.concerns(kind)


def exposure_of_rest(holdout: Holdout) -> float:
    """Return what rates of the counts that a fit saw are multiplied by, for those held out: h / (1 - h)."""
    return holdout.fraction / (1.0 - holdout.fraction)


def exposure_of_all(holdout: Holdout | None, kind: Kind) -> float:
    """Return what rates of the counts that a fit saw are multiplied by, for all: 1 / (1 - h).

    Parameters
    ----------
    kind : Kind
        Of the view; 1 where its entries were not split.
    """
    return 1.0 / (1.0 - holdout.fraction) if holdout is not None and is_split(holdout, kind) else 1.0


def check_split(
    holdout: Holdout | None, dataset: Dataset, meta: Meta, likelihood_of: Callable[[str], Likelihood]
) -> None:
    """Refuse to split counts that have no rate, or beside views computed of them, and data without counts."""
    if holdout is None or holdout.unit != "count":
        return
    views = {view.name: is_split(holdout, view.kind) for view in meta.value_views}
    remedy = "Hold out entries or rows ({holdout_unit})"
    if not any(views.values()):
        expected = f"a view of counts among {', '.join(views)}"
        raise InputError("holdout_unit", "count", expected, f"{remedy}.", holdout_unit="entry")
    sources = {entry.name: entry.of for entry in dataset.manifest.views}
    for name, split in views.items():
        likelihood, expected = likelihood_of(name), ""
        if split and not likelihood.log_link:
            expected = "counts that have a rate: poisson, negative_binomial, or zero-inflated"
        elif views.get(sources[name]):
            expected = f"no view computed of the counts of {sources[name]}: it has those held out in it"
        if expected:
            what = f"count, with view {name} of likelihood {likelihood.name}"
            either = f"{remedy}, or leave the view out ({{views}})."
            raise InputError("holdout_unit", what, expected, either, holdout_unit="entry", views=...)
