"""Findings: what a user should know about a posterior before relying on it.

`fit`, `Posterior.summary`, the representations, the report and the command line say it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.errors import InputError, OptionText, pluralize
from factorflow.posterior.active_views import active_factors
from factorflow.posterior.confounders import batch, depth
from factorflow.posterior.data_findings import (
    LEAST_MANY,
    absent_features,
    dispersion,
    not_described,
    without_limits,
)
from factorflow.posterior.finding import Finding, naming_option
from factorflow.posterior.labels import names_of_rows
from factorflow.posterior.mixing_findings import mixing
from factorflow.posterior.smooth import unresolved

if TYPE_CHECKING:
    from factorflow.posterior.stored_posterior import StoredPosterior

__all__ = ["Finding", "findings"]

MOST_SAMPLES = 200_000
"""With more samples the scores of a sampler are not looked at one by one."""

MOST_ALONE = 0.8
"""Share of a factor's squared scores, or loadings, that makes one sample, or feature, all of it."""

TYPICAL_SHARE = 0.01
"""Of the mean variance of a view's features: where their median is below this, the widest hide the others."""

LEAST_STABLE = 0.8
"""Correlation with the nearest factor of other starts, on average, below which a factor is unstable."""

SCORES = {
    "gaussian": ("rmse", "baseline_rmse", "{:.4g}"),
    "bernoulli": ("log_loss", "baseline_log_loss", "{:.4f}"),
    "poisson": ("deviance", "baseline_deviance", "{:.4f}"),
    "negative_binomial": ("deviance", "baseline_deviance", "{:.4f}"),
}
"""By likelihood, the held-out score and that of the features' means: smaller is better."""

HEAVY_SCORES = ("log_likelihood", "baseline_log_likelihood", "{:.4g}")
"""The same of other likelihoods: larger is better."""

LOG_LIKELIHOODS = ("log_likelihood", "baseline_log_likelihood")
"""The same of predictions with their standard deviations: larger is better."""


def findings(posterior: StoredPosterior) -> list[Finding]:
    """Return the findings of a posterior, the most serious first; of a projection, about its samples only."""
    if posterior.run["status"] == "projected":
        parts = [_outliers(posterior), absent_features(posterior), without_limits(posterior)]
        parts += [not_described(posterior), dispersion(posterior)]
        return [finding for part in parts for finding in part]
    parts = [_budget(posterior), _outliers(posterior)]
    if posterior.n_draws != 0:
        parts += [mixing(posterior), _baseline(posterior), dispersion(posterior)]
        parts += [
            _no_factors(posterior),
            _unstable(posterior),
            _no_intercepts(posterior),
            _scales(posterior),
            _lone_samples(posterior),
            _lone_features(posterior),
            unresolved(posterior),
            depth(posterior),
            batch(posterior),
        ]
    return [finding for part in parts for finding in part]


def _budget(posterior: StoredPosterior) -> Iterator[Finding]:
    """Find a run that ended before convergence."""
    run, path = posterior.run, posterior.path
    reason, n = run.get("reason", ""), run.get("n_iterations", 0)
    if posterior.n_draws == 0:
        ended = run["status"] == "complete"  # a budget of iterations leaves nothing to go on with
        remedy = f"Fit again with a larger {reason or 'budget'}." if ended else _more(path)
        yield Finding(
            "burn-in", f"There are no draws: the run was stopped in its burn-in ({reason}).", remedy
        )
    elif run["status"] == "partial":
        message = f"The run was ended ({reason}) after {n} iterations, before it was done."
        yield Finding("budget", message, _more(path))
    elif reason == "max_iter":
        own = run.get("max_iter") is None  # the limit is that of the model, not of the run
        what, limit = "its bound had converged", "max_iter of the model" if own else "max_iter"
        option = "max_iter"
        if posterior.kind != "variational":
            what = "R-hat was small enough" if own else "all draws were made"
            option = limit = "n_draws" if own else "max_iter"
        most = int(getattr(posterior.config, option, n) if own else run["max_iter"])
        after = f" ({most}), after {n} iterations of all stages" if own else f" after {n} iterations"
        message = f"The run was ended by {limit}{after}, before {what}."
        name = f"model.{option}" if own else option
        remedy = OptionText(f"Fit again with {{{name}}} or more.", **{name: 2 * most})
        yield Finding("budget", message, remedy)


def _more(path: str | None) -> str:
    if path is None:
        return "Fit again with larger budgets."
    return f"Resume it: factorflow resume {path}"


def _outliers(posterior: StoredPosterior) -> Iterator[Finding]:
    """Name single entries far from all others of their feature; nothing without the data."""
    try:
        entries = posterior.dataset.manifest.views
    except InputError:  # the dataset has moved
        return
    modelled = {view.name: view.likelihood for view in posterior.meta.value_views}
    for entry in entries:
        if not entry.outliers or entry.name not in modelled:
            continue
        density = posterior.model.likelihood(entry.name)
        if density.concave and (density.is_location or modelled[entry.name] != "gaussian"):
            option = posterior.config.wider(modelled[entry.name])
            outliers = "; ".join(map(str, entry.outliers))
            yield Finding(
                "outlier",
                f"Far from all others of the feature in {entry.name}: {outliers}.",
                "Correct it or leave it empty, and ingest again: a single such value can hide all factors."
                if option is None
                else naming_option(
                    "Correct it or leave it empty, and ingest again: a single such value can hide all "
                    "factors. Or fit with {option}.",
                    option,
                ),
            )


def _baseline(posterior: StoredPosterior) -> Iterator[Finding]:
    """Find views predicted worse than by feature means, or a run without held-out entries."""
    if not posterior.was_scored:
        if (share := posterior.run.get("holdout", 0.0)) and posterior.run["status"] == "complete":
            message = f"Nothing was held out: a share of {share:g} hides none of so few entries."
            yield Finding("holdout", message, "Fit with a larger holdout.")
        return
    table, split = posterior.holdout_scores(), posterior.run.get("holdout_unit") == "count"
    what = "Held-out counts" if split else "Hidden entries"
    for view in posterior.meta.value_views:
        if split and view.likelihood != "poisson":
            yield Finding(
                "holdout",
                f"Nothing of {view.name} was held out: it has no counts to split.",
                OptionText(
                    "Compare models by its values with another unit ({holdout_unit}).", holdout_unit="entry"
                ),
            )
            continue
        density = posterior.model.likelihood(view.name)
        heavy = density.name not in SCORES  # a few errors may be the sum of squares
        score, base, form = SCORES.get(density.name, HEAVY_SCORES)
        if view.name not in table.index or not {score, base} <= set(table.columns):
            continue
        score_value, other = (float(table[name][view.name]) for name in (score, base))
        if score_value < other if heavy else score_value > other:
            yield Finding(
                "baseline",
                f"{what} of {view.name} are predicted worse than by the means of its features "
                f"({score.replace('_', ' ')} {form.format(score_value)}, of the means {form.format(other)}).",
                "Fit fewer factors or more samples, or leave the view out.",
            )
            continue
        if heavy or view.likelihood != "gaussian" or not set(LOG_LIKELIHOODS) <= set(table.columns):
            continue
        score_value, other = (float(table[name][view.name]) for name in LOG_LIKELIHOODS)
        if score_value < other:
            scaled = getattr(posterior.config, "scale_features", True)  # or the family has no such choice
            scaling = "" if scaled else " (fit with {model.scale_features})"
            option = posterior.config.wider("gaussian")
            heavier = "transform the features" + ", or fit with {option}" * (option is not None)
            remedy = OptionText(
                "Do not rely on standard deviations and intervals of its predictions: its noise is not "
                f"normal ({heavier}), or of another size in some samples or features{scaling}.",
                **{"model.scale_features": True},
            )
            yield Finding(
                "baseline",
                f"The log likelihood of hidden entries of {view.name} is below that by means and variances "
                f"of its features ({score_value:.4g} nats an entry, of the means {other:.4g}), though "
                "they are predicted more closely.",
                remedy if option is None else naming_option(remedy, option),
            )


def _no_factors(posterior: StoredPosterior) -> Iterator[Finding]:
    """Find a posterior without factors."""
    if posterior.has("scores") and not len(posterior.factors):
        yield Finding(
            "no factors",
            "No factor was kept: none explains more than noise would.",
            OptionText(
                "The data look like noise to the model. See whether they are on the right scale, or keep all "
                "factors with {model.drop}.",
                **{"model.drop": 0},
            ),
        )


def _no_intercepts(posterior: StoredPosterior) -> Iterator[Finding]:
    """Find views with a log link fitted without intercepts: logarithms of rates are not about 0."""
    if getattr(posterior.config, "intercepts", True):  # or the family has no such choice
        return
    names = [v.name for v in posterior.meta.value_views if posterior.model.likelihood(v.name).log_link]
    if names:
        yield Finding(
            "intercepts",
            f"Factors of {', '.join(names)} hold the levels of the features besides: logarithms of rates are "
            "modelled without intercepts.",
            OptionText(
                "Fit with {model.intercepts}; where rates add up, take a model of non-negative programs.",
                **{"model.intercepts": True},
            ),
        )


def _unstable(posterior: StoredPosterior) -> Iterator[Finding]:
    """Find factors that other starts did not reproduce; none with a single start."""
    if not posterior.has("stability"):
        return
    stability = posterior.variable("stability").values
    weak = [(label, r) for label, r in zip(posterior.factors, stability, strict=True) if r < LEAST_STABLE]
    if weak:
        n_starts = posterior.variable("start_objective").sizes["start"]
        names = ", ".join(f"{label} ({r:.2f})" for label, r in weak)
        yield Finding(
            "unstable",
            f"{len(weak)} of {pluralize(len(stability), 'factor')} depend on the start: their largest "
            f"correlation with a factor of the other starts ({n_starts - 1}) is on average {names}.",
            "Interpret the others; more starts (n_starts) may find a higher bound, fewer factors (n_factors) "
            "are often stable.",
        )


def _scales(posterior: StoredPosterior) -> Iterator[Finding]:
    """Find views where few features have nearly all the variance; none without data.

    A view is scaled as a whole: beside features of another unit the others, and their factors, are nothing.
    """
    if getattr(posterior.config, "scale_features", True):  # or the family has no such choice
        return
    for view in posterior.meta.value_views:
        if not posterior.model.likelihood(view.name).is_location or view.n_features < LEAST_MANY:
            continue
        try:
            variance = np.asarray(posterior.dataset.moments(view.name, "variance")["variance"], float)
        except InputError:
            continue
        varying = variance > 0.0
        typical, mean = float(np.median(variance[varying])), float(variance[varying].mean())
        if typical < TYPICAL_SHARE * mean:
            widest = int(np.nanargmax(variance))
            share = variance[widest] / variance[varying].sum()
            yield Finding(
                "scale",
                f"Features of {view.name} differ much in scale: {posterior.features(view.name)[widest]} has "
                f"{100 * share:.3g} % of the variance of the view, half of the others less than "
                f"{100 * typical / variance[varying].sum():.1g} % each. Factors of those may not be found.",
                OptionText(
                    "Fit with {model.scale_features}, or bring the features to one unit before.",
                    **{"model.scale_features": True},
                ),
            )


def _lone_samples(posterior: StoredPosterior) -> Iterator[Finding]:
    """Find factors that describe a single sample."""
    few = posterior.kind == "variational" or posterior.meta.n_rows <= MOST_SAMPLES
    if not (posterior.has("scores") and few and posterior.meta.n_rows >= LEAST_MANY):
        return
    if posterior.array("scores").dims[-2:] != ("obs", "factor"):
        return
    shares, rows = _largest_shares(posterior)
    for label, share, row in zip(posterior.factors, shares, rows, strict=True):
        if share > MOST_ALONE:
            name = names_of_rows(posterior, np.array([row]))[0]
            yield Finding(
                "one sample",
                f"{label} is one sample: {name} has {100 * share:.0f} % of its squared scores.",
                "See whether the sample is an outlier, and fit without it.",
            )


def _largest_shares(posterior: StoredPosterior) -> tuple[Any, Any]:
    """Return, by factor, the largest share that a sample has of the squared scores about 0, and which one."""
    array = posterior.array("scores") if posterior.kind == "variational" else posterior.scores()
    n_factors = array.sizes["factor"]
    total, largest, where = np.zeros(n_factors), np.zeros(n_factors), np.zeros(n_factors, int)
    for start in range(0, posterior.meta.n_rows, 1 << 16):
        squares = np.asarray(array.isel(obs=slice(start, start + (1 << 16))).values, float) ** 2
        total += squares.sum(axis=0)
        best = squares.argmax(axis=0)
        top = squares[best, np.arange(n_factors)]
        where = np.where(top > largest, start + best, where)
        largest = np.maximum(top, largest)
    return largest / np.maximum(total, 1e-300), where


def _lone_features(posterior: StoredPosterior) -> Iterator[Finding]:
    """Find factors that explain a single feature."""
    explained = {view.name for view in posterior.meta.value_views}
    views = [
        view
        for view in posterior.loaded_views
        if view in explained and posterior.array(f"loadings_{view}").dims[-1] == "factor"
    ]
    if not views or len(views) < len(posterior.loaded_views):
        return
    by_view = {view: _largest_loadings(posterior, view) for view in views}
    if all((shares <= MOST_ALONE).all() for shares, _ in by_view.values()):
        return
    active = {view: active_factors(posterior, view) for view in views}
    for k, label in enumerate(posterior.factors):
        mine = [view for view in views if active[view][k]]
        if len(mine) != 1 or len(posterior.features(mine[0])) < LEAST_MANY:
            continue
        shares, largest = by_view[mine[0]]
        if shares[k] > MOST_ALONE:
            counts = any(v.name == mine[0] and v.likelihood == "poisson" for v in posterior.meta.views)
            option = posterior.config.wider("poisson") if counts else None
            yield Finding(
                "one feature",
                f"{label} is one feature: {posterior.features(mine[0])[int(largest[k])]} of {mine[0]} has "
                f"{100 * shares[k]:.0f} % of its squared loadings.",
                "Look at the values of the feature first, or fit without the feature."
                if option is None
                else naming_option(
                    "Look at the values of the feature first, or fit without the feature. Counts that vary "
                    "more than the model expects make such factors: fit with {option}.",
                    option,
                ),
            )


def _largest_loadings(posterior: StoredPosterior, view: str) -> tuple[Any, Any]:
    """Return, by factor, the largest share that a feature has of a view's squared loadings, and which one."""
    weights = np.asarray(posterior.loadings(view).values, float)
    if posterior.has(f"scale_{view}"):  # features in units of the model, or the widest one would win
        weights = weights / posterior.variable(f"scale_{view}").values[:, None]
    squares = weights**2
    return squares.max(axis=0) / np.maximum(squares.sum(axis=0), 1e-300), squares.argmax(axis=0)
