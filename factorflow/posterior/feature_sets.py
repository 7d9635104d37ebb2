"""Feature sets that name factors: whether a name holds, and which features a set lacks or has too many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.feature_sets import FeatureSets
from factorflow.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from factorflow.posterior.stored_posterior import StoredPosterior

SMALL = 0.25
"""Size, in standard deviations of loadings that are not 0, below which a member is taken for none. In a set
most are expected not to be 0, so the probability of 0 itself stays low."""


def check_sets(posterior: StoredPosterior) -> FeatureSets:
    """Return the feature sets of the model of a fit."""
    feature_sets = posterior.meta.feature_sets
    if feature_sets is None:
        family = posterior.run["config"].get("model")
        expected, remedy = "one with feature sets", "Fit with {loadings} and {feature_sets}."
        actual = f"{family} without feature sets"
        raise InputError("model", actual, expected, remedy, loadings="informed", feature_sets="sets.gmt")
    return feature_sets


def feature_sets(posterior: StoredPosterior, error: float) -> pd.DataFrame:
    """Return the set of each factor (`Posterior.feature_sets`)."""
    import pandas as pd

    sets, refined = check_sets(posterior), refined_sets(posterior, error)
    evidence, rows = posterior.variable("set_evidence"), []
    total = evidence.sum("view")
    for factor, number in _factors_with_sets(posterior):
        name = sets.names[number]
        for view, members in sets.members.items():
            if not members[number]:
                continue
            mine = refined[(refined["factor"] == factor) & (refined["view"] == view)]["change"]
            row: dict[str, Any] = {"factor": factor, "set": name, "view": view}
            row["evidence"] = float(evidence.sel(factor=factor, view=view))
            by_outcome = factor in posterior.views  # a guided factor, whatever its set
            row["holds"] = factor == name or (
                by_outcome and float(total.sel(factor=factor)) > sets.evidence_needed
            )
            row["n_members"] = len(members[number])
            rows.append(row | {f"n_{what}": int((mine == what).sum()) for what in ("added", "removed")})
    columns = ["factor", "set", "view", "evidence", "holds", "n_members", "n_added", "n_removed"]
    return pd.DataFrame(rows, columns=columns)


def refined_sets(posterior: StoredPosterior, error: float) -> pd.DataFrame:
    """Return the features that a set lacks or has too many (`Posterior.refined_sets`)."""
    import pandas as pd

    sets = check_sets(posterior)
    if not 0.0 < error < 1.0:
        raise InputError("error", error, "a number > 0 and < 1", "For example 0.1.")
    rows = []
    for factor, number in _factors_with_sets(posterior):
        for view, members in sets.members.items():
            names = posterior.features(view)
            if not members[number]:
                continue
            inside = sets.inside(view, number, len(names))
            some, small = _probabilities(posterior, view, factor)
            for change, candidates, probability in (("added", ~inside, some), ("removed", inside, small)):
                for i in _longest(np.where(candidates, probability, -1.0), error):
                    row = factor, sets.names[number], view, str(names[i]), change, float(probability[i])
                    rows.append(row)
    return pd.DataFrame(rows, columns=["factor", "set", "view", "feature", "change", "probability"])


def _factors_with_sets(posterior: StoredPosterior) -> Iterator[tuple[str, int]]:
    """Yield the factors that have a set, and its number."""
    numbers = posterior.variable("set_of_factor").values
    for factor, number in zip(posterior.factors, numbers.tolist(), strict=True):
        if number >= 0:
            yield factor, int(number)


def _probabilities(
    posterior: StoredPosterior, view: str, factor: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the probability of each feature that its loading is not 0, and that it is small."""

    def of(name: str) -> NDArray[np.float64]:
        return np.asarray(posterior.variable(f"{name}_{view}").sel(factor=factor).values, np.float64)

    from scipy.special import ndtr

    inclusion = of("inclusion")
    if posterior.kind == "monte carlo":
        w = posterior.draws(f"loadings_{view}").sel(factor=factor).values
        alphas = posterior.draws("alpha").sel(view=view, factor=factor).values[..., None]
        small = np.abs(w) < SMALL * posterior.variable(f"scale_{view}").values / np.sqrt(alphas)
        return inclusion, small.mean(axis=(0, 1))
    inclusion_floor = np.maximum(inclusion, 1e-300)
    mean = of("loadings") / inclusion_floor
    variance = (of("loadings_variance") - inclusion * (1.0 - inclusion) * mean**2) / inclusion_floor
    sd = np.sqrt(np.maximum(variance, 1e-300))
    alpha = float(posterior.variable("alpha").sel(view=view, factor=factor))
    size = SMALL * posterior.variable(f"scale_{view}").values / np.sqrt(alpha)
    near = ndtr((size - mean) / sd) - ndtr((-size - mean) / sd)
    return inclusion, 1.0 - inclusion + inclusion * near


def _longest(probability: NDArray[np.float64], error: float) -> NDArray[np.intp]:
    """Return the longest list of the likeliest whose mean error is at most ``error``; below 0: never."""
    order = np.argsort(-probability, kind="stable")
    order = order[probability[order] >= 0.0]
    if not len(order):
        return order
    mean = np.cumsum(1.0 - probability[order]) / np.arange(1, len(order) + 1)
    return order[: int((mean <= error).sum())]
