"""Findings that compare data with predictions: of counts, and of new samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float64

from factorflow.errors import InputError, OptionText, pluralize
from factorflow.posterior.finding import Finding, naming_option
from factorflow.posterior.prediction import Predictor

if TYPE_CHECKING:
    from factorflow.posterior.stored_posterior import StoredPosterior

MOST_CHECKED = 200_000
"""Entries of a count view, of its first block, that are held against their predictions."""

MOST_SPREAD = 1.5
"""Counts that vary so many times as much as expected are overdispersed."""

MOST_APART = 3.0
"""Root mean square of the residuals of new samples, in standard deviations of a new observation (1 is to be
expected), above which they are not described; below its inverse their unit is another one."""

N_NAMED = 3
"""Features that a finding names."""

LEAST_MANY = 8
"""With fewer samples (or features) than this one of them may well make a factor, and means tell little."""


def dispersion(posterior: StoredPosterior) -> Iterator[Finding]:
    """Find counts that vary more than the model expects; none without data."""
    for view in posterior.meta.value_views:
        if view.likelihood != "poisson":
            continue
        try:
            squares = _residuals(posterior, view.name)
        except InputError:  # the dataset has moved, or the run kept nothing to predict from
            continue
        ratio = _mean(squares)
        by_feature = _overdispersed_features(posterior, view.name, squares) if view.n_features > 1 else []
        if ratio <= MOST_SPREAD and not by_feature:
            continue
        what, least = f"Counts of {view.name}", ""
        if ratio <= MOST_SPREAD:
            features = f"{len(by_feature)} of {pluralize(view.n_features, 'feature')}"
            what, least, ratio = f"Counts of {features} of {view.name}", "at least ", by_feature[-1][1]
        option = posterior.config.wider("poisson")
        yield Finding(
            "overdispersion",
            f"{what} vary {least}{_times(ratio)} times as much as the model "
            f"expects{_name_features(by_feature)}.",
            naming_option("Fit with {option}.", option)
            if option
            else "Intervals are too narrow: fit log(1 + counts) as gaussian, or rely on held-out scores.",
        )


def _name_features(by_feature: list[tuple[str, float]]) -> str:
    """Return the features that vary most, as text."""
    if not by_feature:
        return ""
    names = ", ".join(f"{name} {_times(ratio)}" for name, ratio in by_feature[:N_NAMED])
    return f" ({names}{', ...' * (len(by_feature) > N_NAMED)})"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 1e4 else f"{ratio:.0e}"


def _overdispersed_features(
    posterior: StoredPosterior, view: str, squares: Float64[np.ndarray, "B D"]
) -> list[tuple[str, float]]:
    """Return the features that vary too much beyond two standard errors, the most first, and how much."""
    n = (~np.isnan(squares)).sum(axis=0)
    enough = np.flatnonzero(n >= LEAST_MANY)
    some = squares[:, enough]
    ratio, error = np.nanmean(some, axis=0), np.nanstd(some, axis=0) / np.sqrt(n[enough])
    above = np.flatnonzero(ratio - 2.0 * error > MOST_SPREAD)
    order = above[np.argsort(-ratio[above], kind="stable")]
    names = posterior.features(view)
    return [(str(names[enough[i]]), float(ratio[i])) for i in order]


def absent_features(posterior: StoredPosterior) -> Iterator[Finding]:
    """Find features missing from views of new samples; whole views may be left out."""
    for view in posterior.meta.views:
        try:
            if view.name not in posterior.dataset.views or view.kind.coded:
                continue
            there = set(posterior.dataset.features(view.name).tolist())
        except InputError:  # the dataset has moved
            return
        fitted_features = posterior.features(view.name).tolist()
        absent = [str(name) for name in fitted_features if name not in there]
        if absent:
            more = len(there) - len(fitted_features) + len(absent)
            others = f"; {pluralize(more, 'feature')} that it does not know are left out" if more else ""
            names = ", ".join(absent[:N_NAMED]) + ", ..." * (len(absent) > N_NAMED)
            yield Finding(
                "features",
                f"{len(absent)} of {pluralize(len(fitted_features), 'feature')} of {view.name} that the "
                f"model knows are not in these samples ({names}) and count as missing{others}.",
                "If they were measured, name them as in the dataset of the fit.",
            )


def without_limits(posterior: StoredPosterior) -> Iterator[Finding]:
    """Find new samples of a view with limits of detection that were written without any."""
    for view in posterior.meta.views:
        try:
            there = posterior.dataset.views.get(view.name)
        except InputError:  # the dataset has moved
            return
        if view.aux == "censored" and there is not None and not there.aux:
            yield Finding(
                "limits",
                f"{view.name} was fitted with limits of detection, and these samples were written without: "
                "all of their values count as measured.",
                OptionText(
                    "If some are limits, write the samples with {limits}, or with entries such as <0.5.",
                    limits=...,
                ),
            )


def not_described(posterior: StoredPosterior) -> Iterator[Finding]:
    """Find new samples that the model does not describe: other units, other samples, or noise."""
    for view in posterior.meta.value_views:
        try:
            if view.name not in posterior.dataset.views:
                continue
            gaussian = view.likelihood == "gaussian"
            apart = np.sqrt(_mean(_residuals(posterior, view.name))) if gaussian else 1.0
        except InputError:  # the dataset has moved
            return
        share = _own_share(posterior, view.name)
        if apart > MOST_APART:
            yield Finding(
                "not described",
                f"Values of {view.name} are {apart:.3g} standard deviations from what the model predicts "
                "for these samples (root mean square; 1 is to be expected).",
                "See whether they are in the unit, and were transformed and normalised in the way, of the "
                "data of the fit; if so, these samples are of another kind.",
            )
        elif 0.0 < apart < 1.0 / MOST_APART:
            yield Finding(
                "not described",
                f"Values of {view.name} are only {apart:.2g} standard deviations from what the model "
                "predicts for these samples (root mean square; 1 is to be expected).",
                "See whether they are in the unit of the data of the fit.",
            )
        elif share < 0.0:
            yield Finding(
                "not described",
                f"The model describes {view.name} of these samples worse than the means of its features do "
                f"(variance explained {100 * share:.3g} %).",
                "See whether they were measured, transformed and normalised as the data of the fit; rely on "
                "their scores only if so.",
            )


def _own_share(posterior: StoredPosterior, view: str) -> float:
    """Return the share of the variance of a view of new samples that is explained; NaN: not recorded."""
    if not posterior.has("variance_explained_total") or posterior.meta.n_rows < LEAST_MANY:
        return float("nan")
    share = posterior.variable("variance_explained_total").sel(view=view)
    return float(np.nanmax(share.values)) if np.isfinite(share.values).any() else float("nan")


def _residuals(posterior: StoredPosterior, view: str) -> Float64[np.ndarray, "B D"]:
    """Return (y - mean)^2 / sd^2 of entries of the first block that the model saw; NaN: of no others."""
    from factorflow.data import Holdout

    dataset = posterior.data
    block = dataset.block(0, [view], Holdout.of(posterior.run, dataset.design))
    rows = block.rows[: max(1, MOST_CHECKED // max(1, dataset.views[view].n_features))]
    y, observed = dataset.views[view].kind.fill_missing(block.data[view][: len(rows)])
    mean, sd = Predictor(posterior, view, seen=True)(rows)
    usable = np.asarray(observed, bool) & (sd > 0.0)
    squares = (np.asarray(y, float) - mean) ** 2 / np.where(usable, sd, 1.0) ** 2
    return np.where(usable, squares, np.nan)


def _mean(squares: Float64[np.ndarray, "B D"]) -> float:
    """Return the mean of the values that are not NaN; 0 of none."""
    finite = squares[~np.isnan(squares)]
    return float(finite.mean()) if finite.size else 0.0
