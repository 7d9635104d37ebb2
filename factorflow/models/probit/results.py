"""What a probit factor model leaves behind: variables, averages of rows, predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Bool, Float, Float64, Shaped
from scipy import special

from factorflow.errors import InputError
from factorflow.models.contract import Array, Block, Variable
from factorflow.models.probit.kernels.samplers import BINARY
from factorflow.models.probit.state import Globals, Local, Settings


def variables(settings: Settings, *, store_factors: bool) -> tuple[Variable, ...]:
    """Return the table of variables."""
    view, k = settings.view, settings.n_factors
    feature = f"feature_{view}"

    def loadings(g: Globals) -> Float64[np.ndarray, "N K1"]:
        return g.loadings[view]

    out = [
        Variable(
            f"loadings_{view}", (feature, "factor"), "z_nk, 0 where c_nk = 0", lambda g: loadings(g)[:, :-1]
        ),
        Variable(
            f"inclusion_{view}",
            (feature, "factor"),
            "c_nk",
            lambda g: loadings(g)[:, :-1] != 0.0,
            dtype="uint8",
        ),
        Variable(f"intercept_{view}", (feature,), "o_n = z_n(K+1)", lambda g: loadings(g)[:, -1]),
        Variable("activity", ("factor",), "a_k: probability that a factor is on", lambda g: g.activity),
        Variable("loading_density", (), "b: probability that a loading is not 0", lambda g: g.density),
        Variable(
            "loading_variance", (), "tau^2: variance of the loadings that are not 0", lambda g: g.variance
        ),
    ]
    single = partial(Variable, rows=True, dtype="float32")
    average = "mean over draws" if settings.keep_means else "last draw"
    symbol = "s_kt" if settings.kind == BINARY else "f_kt = s_kt v_kt"
    out.append(single("scores", ("obs", "factor"), f"{symbol}, {average}", lambda rows: rows.scores))
    if settings.kind != BINARY:
        doc = f"s_kt, {average}"
        out.append(single("scores_inclusion", ("obs", "factor"), doc, lambda rows: rows.inclusion))
    if settings.keep_all or settings.keep_held_out:
        which = "all entries" if settings.keep_all else "held-out entries, NaN elsewhere"
        doc = f"p(x_nt = 1 | X), mean over draws: {which}"
        out.append(single(f"probability_{view}", ("obs", feature), doc, lambda rows: rows.chance))
    if store_factors:
        doc = f"{symbol}, every draw"
        out.append(single("scores_draws", ("obs", "factor"), doc, lambda local: local.factors(k), draws=True))
    return tuple(out)


@dataclass(frozen=True)
class Averages:
    """Averages over draws of a block of B rows; before any draw is kept, its present state.

    Parameters
    ----------
    scores, inclusion : array
        f and s.
    chance : array or None
        Probability of a 1, NaN where it is not kept.
    """

    scores: Float[np.ndarray, "B K"]
    inclusion: Float[np.ndarray, "B K"] | Bool[np.ndarray, "B K"]
    chance: Float64[np.ndarray, "B N"] | None


def compute_averages(settings: Settings, block: Block, local: Local, globals_: Globals) -> Averages:
    """Return the averages over draws of one block."""
    factors, n = local.factors(settings.n_factors), local.n_kept
    chance = None
    if settings.keep_all:
        now = _probabilities(factors, globals_.loadings[settings.view])
        chance = now if local.sum_chances is None else local.sum_chances / n
    elif settings.keep_held_out:
        chance = _held_out(settings, block, local, factors, globals_)
    return Averages(
        factors if local.sum_values is None else local.sum_values / n,
        (factors != 0.0) if local.sum_on is None else local.sum_on / n,
        chance,
    )


def predict(
    settings: Settings, stored: Mapping[str, Array], recorded: Mapping[str, Array]
) -> tuple[Float64[np.ndarray, "B N"], Float64[np.ndarray, "B N"]]:
    """Return the probability of a 1 and the standard deviation of an entry.

    Averages over the draws of all chains: those summed in the run, else of stored factors.

    Raises
    ------
    InputError
        When neither was kept.
    """
    name = f"probability_{settings.view}"
    p: Float64[np.ndarray, "B N"]
    if name in stored and (settings.keep_all or "scores_draws" not in stored):
        p = np.asarray(stored[name], dtype=np.float64).mean(axis=0)
    elif "scores_draws" in stored:
        p = _mean_over_draws(settings, stored["scores_draws"], recorded)
    else:
        raise InputError(
            "predictive",
            "none",
            "predictive probabilities that were averaged, or stored factors",
            "Fit with {predictive} or {store_factors}.",
            predictive="all",
            store_factors=True,
        )
    return p, np.sqrt(p * (1.0 - p))


def _mean_over_draws(
    settings: Settings, factors: Shaped[Array, "C M B K"], recorded: Mapping[str, Shaped[Array, "C M ..."]]
) -> Float64[np.ndarray, "B N"]:
    """Return the mean over chains and draws of Phi(z_n . f_t)."""
    z = np.asarray(recorded[f"loadings_{settings.view}"])
    o = np.asarray(recorded[f"intercept_{settings.view}"])
    f = np.asarray(factors)
    n_chains, n_draws, n_rows, _ = f.shape
    total = np.zeros((n_rows, z.shape[2]))
    for chain in range(n_chains):
        for i in range(n_draws):
            total += special.ndtr(f[chain, i] @ z[chain, i].T + o[chain, i])
    return np.asarray(total / (n_chains * n_draws))


def _probabilities(
    factors: Float64[np.ndarray, "B K"], loadings: Float64[np.ndarray, "N K1"]
) -> Float64[np.ndarray, "B N"]:
    return np.asarray(special.ndtr(factors @ loadings[:, :-1].T + loadings[:, -1]))


def _held_out(
    settings: Settings, block: Block, local: Local, factors: Float64[np.ndarray, "B K"], globals_: Globals
) -> Float64[np.ndarray, "B N"]:
    out = np.full((block.n_rows, settings.n_features), np.nan)
    if settings.view in block.hidden:
        where, features = block.hidden[settings.view]
        if local.sum_held_out is not None:
            out[where, features] = local.sum_held_out / local.n_kept
        else:
            out[where, features] = _probabilities(factors, globals_.loadings[settings.view])[where, features]
    return out
