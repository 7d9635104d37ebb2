"""``hat`` mode with independent scores takes the very steps that mofapy2 0.7.5 takes.

The numbers were written by ``make_mofapy2_states.py`` (an environment of its own). Left out is what is wrong
in mofapy2: its printed bound (the entropy of w where s = 0 uses 1 / alpha instead of the stored variance) and
its stochastic updates.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from factorflow.models.sparse_gfa import SparseGFA
from factorflow.models.sparse_gfa.e_step import UpdatedRows, statistics, update_rows
from factorflow.models.sparse_gfa.elbo import Moves, _update_view
from factorflow.models.sparse_gfa.m_step import _update_noise, _update_spike, normal_equations
from factorflow.models.sparse_gfa.pseudo_data import PreparedGlobals, pseudo_data
from factorflow.models.sparse_gfa.start.components import empty_globals, initial_view
from factorflow.models.sparse_gfa.state import Fixed, Local, Weights, expected_weights
from factorflow.models.sparse_gfa.statistics import FeatureSums
from factorflow.shape import Block

TABLE = np.load(Path(__file__).with_name("mofapy2_states.npz"))
N_STEPS = max(int(name.split("_")[0]) for name in TABLE.files if name[0].isdigit())


def state(number):
    prefix = f"{number}_"
    return {name[len(prefix) :]: TABLE[name] for name in TABLE.files if name.startswith(prefix)}


def settings_of(tools):
    views = {f"v{m}": TABLE[f"y_{m}"] for m in range(2)}
    meta = tools.make_meta(views, ("gaussian", "gaussian"), "scattered")
    model = SparseGFA(
        n_factors=3,
        spike="hat",
        scores_posterior="factorised",
        intercepts=False,
        scale_views=False,
        ard_prior=tuple(TABLE["alpha_prior"]),
        precision=64,
    ).build(meta)
    priors = replace(
        model.settings.priors,
        noise=tuple(TABLE["tau_prior"]),
        theta=tuple(TABLE["theta_prior"]),
    )
    return replace(model.settings, priors=priors), views


def globals_of(settings, views, s):
    fixed, weights, shared = {}, {}, {}
    for m, (name, y) in enumerate(views.items()):
        mean, zero = np.nanmean(y, axis=0), np.zeros(y.shape[1])
        count = (~np.isnan(y)).sum(axis=0).astype(float)[:, None]
        squares = np.nansum((y - mean) ** 2, axis=0)[:, None]
        fixed[name] = Fixed(mean, zero + 1.0, mean, count, squares, 0.0 * count)
        weights[name] = Weights(
            s[f"w_mean_{m}"], s[f"w_variance_{m}"], s[f"inclusion_{m}"], zero, zero, s[f"tau_a_{m}"].T,
            s[f"tau_b_{m}"].T, np.empty((len(zero), 0)),
        )  # fmt: skip
        shared[name] = replace(
            initial_view(settings, name, weights[name], fixed[name]),
            alpha_shape=s[f"alpha_a_{m}"], alpha_rate=s[f"alpha_b_{m}"], theta_on=s[f"theta_a_{m}"],
            theta_off=s[f"theta_b_{m}"],
        )  # fmt: skip
    return replace(empty_globals(settings), fixed=fixed, weights=weights, views=shared)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("number", range(1, N_STEPS + 1))
def test_the_same_step(tools, number):
    """Each update of W, alpha, theta, Z and tau, from the state before it."""
    settings, views = settings_of(tools)
    before, after = state(number - 1), state(number)
    node = str(TABLE["schedule"][(number - 1) % len(TABLE["schedule"])])
    globals_ = globals_of(settings, views, before)
    local, codes = Local(before["z_mean"], before["z_variance"]), np.zeros(len(views["v0"]), int)
    block = Block(0, 0, len(codes), 1, views)
    if node == "Z":
        new = update_rows(settings, block, codes, local, PreparedGlobals(settings, globals_), 0).local
        close(new.mean, after["z_mean"])
        close(new.variance, after["z_variance"])
        return
    known = PreparedGlobals(settings, globals_).tables(0, views["v0"])
    pseudo = {n: pseudo_data(settings, n, block, local, globals_, known[n]) for n in views}
    stats = statistics(
        settings, codes, UpdatedRows(local, pseudo, 0.0, 0.0, np.zeros(local.mean.shape[1])), globals_
    )
    for m, name in enumerate(views):
        weights, shared = globals_.weights[name], globals_.views[name]
        mine = stats.features[name]
        if node == "W":
            system = normal_equations(settings.precision(name, weights), mine.pairs, mine)
            new, _ = _update_spike(settings, weights, shared, system)
            close(new.mean, after[f"w_mean_{m}"])
            close(new.variance, after[f"w_variance_{m}"])
            close(new.inclusion, after[f"inclusion_{m}"])
        elif node == "Tau":
            shape, rate = settings.priors.noise
            shared = replace(shared, noise_shape=shape, noise_rate=rate)
            expected, fixed = expected_weights(weights), globals_.fixed[name]
            new, _, _ = _update_noise(settings, name, weights, expected, fixed, shared, (mine, mine.pairs))
            close(new.noise_shape.T, after[f"tau_a_{m}"])
            close(new.noise_rate.T, after[f"tau_b_{m}"])
        else:
            gamma = weights.inclusion
            squares = (gamma * (weights.mean**2 + weights.variance)).sum(axis=0)
            nothing = np.zeros((1, len(squares)))
            sums = FeatureSums(gamma.sum(axis=0), squares, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, nothing, None)
            moves = Moves({name: squares}, {name: gamma.sum(axis=0)}, nothing, 0.0)
            if node == "AlphaW":  # the variance where s = 0 was set with w, from the alpha before
                close(1.0 / shared.alpha, before[f"off_variance_{m}"][0])
            new = _update_view(settings, shared, settings.view(name), moves, sums, sparse=True)
            if node == "AlphaW":
                close(new.alpha_shape, after[f"alpha_a_{m}"])
                close(new.alpha_rate, after[f"alpha_b_{m}"])
            else:
                close(new.theta_on, after[f"theta_a_{m}"])
                close(new.theta_off, after[f"theta_b_{m}"])
