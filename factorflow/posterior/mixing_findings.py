"""Findings about the chains of samplers: whether they have mixed, and how many draws are effective."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from factorflow.posterior.finding import Finding
from factorflow.posterior.mixing import effective_sizes, normal_scores, rank_rhat

if TYPE_CHECKING:
    from factorflow.posterior.stored_posterior import StoredPosterior

HIGH_RHAT = 1.01
"""R-hat above this says that chains differ (Vehtari et al. 2021), unless it is high by chance, and ..."""

RARE = 0.01
"""... the largest of all R-hats of well-mixed chains is called high that often."""

LEAST_SIZE = 100
"""Effective draws a chain below which quantiles cannot be relied on (the same)."""

MOST_DRAWN = 2_000_000
"""Numbers of the draws that are looked at: of wide variables evenly spaced entries."""


def mixing(posterior: StoredPosterior) -> Iterator[Finding]:
    """Find chains that have not mixed, or autocorrelated draws."""
    n_draws = posterior.n_draws
    if n_draws is None:
        return
    names, draws = _sample_entries(posterior)
    n_chains = draws.shape[0]
    more = "Fit with more burn-in and draws, and look at posterior.diagnostics() and plot_trace"
    if n_draws < 4:
        yield Finding(
            "mixing", f"{n_draws} draws of each chain do not show whether the chains mix.", f"{more}."
        )
        return
    with np.errstate(invalid="ignore", divide="ignore"):
        scores = normal_scores(draws)
        r_hat, sizes = rank_rhat(draws, scores), effective_sizes(draws, scores)
        bound = _high_rhat(effective_sizes(draws, scores, within_chains=True), n_chains)
    least = LEAST_SIZE * n_chains
    few = sizes < least
    high = r_hat > np.where(few, HIGH_RHAT, bound)  # chance is no excuse where draws are few
    if not (high.any() or few.any()):
        return
    looked = f"of {len(names)} continuous entries looked at"
    sentences = []
    if high.any():
        worst = int(np.nanargmax(r_hat))
        where = f"in {high.sum()} {looked} ({r_hat[worst]:.2f} in {names[worst]})"
        sentences.append(f"R-hat is above {HIGH_RHAT}, beyond chance, {where}")
    if few.any():
        worst = int(np.nanargmin(sizes))
        which = (
            f"in {few.sum()}{'' if sentences else f' {looked}'} the effective sample size is below {least}"
        )
        sentences.append(f"{which} ({sizes[worst]:.0f} of {n_chains * n_draws} draws in {names[worst]})")
    what = "The chains have not mixed" if high.any() else "The draws are autocorrelated"
    fewer = "; fewer factors mix better" if high.any() and posterior.factors else ""
    alone = "; fit several chains" if n_chains == 1 else ""
    yield Finding("mixing", f"{what}: {'; '.join(sentences)}.", f"{more}{fewer}{alone}.")


def _high_rhat(sizes: Float64[np.ndarray, " E"], n_chains: int) -> Float64[np.ndarray, " E"]:
    """Return above which R-hat E entries with these effective sizes (within chains) differ between chains.

    With n effective draws of each of 2 C half chains that have mixed, n (R-hat^2 - 1) + 1 is about
    chi-square / df, df = 2 C - 1: 1.01 is the mean of 4 chains of 100, and the largest of hundreds of entries
    lies far above its mean (of bulk and tail the larger one, hence 2 E).
    """
    from scipy.special import chdtri

    df = 2 * n_chains - 1
    excess = chdtri(df, RARE / (2 * len(sizes))) / df * 2 * n_chains
    return np.asarray(np.fmax(HIGH_RHAT, np.sqrt(1.0 + excess / np.maximum(sizes, 1e-300))))


def _sample_entries(posterior: StoredPosterior) -> tuple[list[str], Any]:
    """Return entries of the global variables, evenly spaced, with their names: (chain, draw, entry)."""
    draws = posterior.tree["posterior"]
    chosen = [
        str(name)
        for name, variable in draws.data_vars.items()
        if variable.dims[:2] == ("chain", "draw")
        and "obs" not in variable.dims
        and variable.dtype.kind == "f"
    ]
    most = max(1, MOST_DRAWN // max(1, draws.sizes["chain"] * draws.sizes["draw"] * len(chosen)))
    names, parts = [], []
    for name in chosen:
        array = posterior.draws(name)
        values = array.values.reshape(*array.shape[:2], -1)
        places = np.unique(np.linspace(0, values.shape[2] - 1, min(most, values.shape[2])).astype(int))
        dims = zip(array.dims[2:], array.shape[2:], strict=True)
        labels = [array[dim].values if dim in array.coords else range(n) for dim, n in dims]
        where = np.unravel_index(places, array.shape[2:]) if labels else ()
        marks = [
            ", ".join(str(label[i]) for label, i in zip(labels, place, strict=True))
            for place in zip(*where, strict=True)
        ]
        names += [f"{name}[{mark}]" for mark in marks] if labels else [name]
        parts.append(values[:, :, places])
    return names, np.concatenate(parts, axis=2).astype(float)
