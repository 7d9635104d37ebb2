"""Write ``mofapy2_states.npz``: the states that mofapy2 passes through, for `test_sparse_gfa_mofapy2`.

Run in an environment of its own::

    python -m venv peers && peers/bin/pip install mofapy2==0.7.5 numpy==2.4.6 scipy==1.17.1
    peers/bin/python tests/models/sparse_gfa/make_mofapy2_states.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from mofapy2.run.entry_point import entry_point

N_ROWS, SIZES, N_FACTORS, N_ITERATIONS = 15, (6, 5), 3, 3
SCHEDULE = ("W", "AlphaW", "ThetaW", "Z", "Tau")


def make_data() -> list[Any]:
    """Return two views with missing entries."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((N_ROWS, 2))
    views = []
    for size in SIZES:
        values = scores @ rng.standard_normal((2, size)) + 0.5 * rng.standard_normal((N_ROWS, size)) + 3.0
        views.append(np.where(rng.random(values.shape) < 0.15, np.nan, values))
    return views


def state(nodes: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of every q as plain arrays."""
    z = nodes["Z"].Q.getParameters()
    out = {"z_mean": z["mean"], "z_variance": z["var"]}
    for m in range(len(SIZES)):
        w = nodes["W"].nodes[m].Q.getParameters()
        out[f"w_mean_{m}"], out[f"w_variance_{m}"] = w["mean_B1"], w["var_B1"]
        out[f"inclusion_{m}"], out[f"off_variance_{m}"] = w["theta"], w["var_B0"]
        for name, node in (("alpha", "AlphaW"), ("tau", "Tau"), ("theta", "ThetaW")):
            q = nodes[node].nodes[m].Q.getParameters()
            out[f"{name}_a_{m}"], out[f"{name}_b_{m}"] = q["a"], q["b"]
    return {name: np.array(value, dtype=float) for name, value in out.items()}


def main() -> None:
    """Step the nodes one by one, in the order of mofapy2's schedule."""
    views = make_data()
    model = entry_point()
    model.set_data_options(use_float32=False)
    model.set_data_matrix([[v] for v in views], likelihoods=["gaussian"] * len(views))
    model.set_model_options(factors=N_FACTORS, spikeslab_weights=True, ard_weights=True)
    model.set_train_options(iter=2, seed=1, quiet=True)
    model.build()
    bayes_net = model.model
    nodes = bayes_net.getNodes()
    bayes_net.setTrainOptions(model.train_opts)
    bayes_net.precompute()
    table: dict[str, Any] = {f"y_{m}": v for m, v in enumerate(views)}
    table |= {f"0_{name}": value for name, value in state(nodes).items()}
    number = 0
    for _ in range(N_ITERATIONS):
        for node in SCHEDULE:
            nodes[node].update()
            number += 1
            table |= {f"{number}_{name}": value for name, value in state(nodes).items()}
    priors = nodes["AlphaW"].nodes[0].P.getParameters(), nodes["Tau"].nodes[0].P.getParameters()
    table["alpha_prior"] = np.array([np.ravel(priors[0]["a"])[0], np.ravel(priors[0]["b"])[0]])
    table["tau_prior"] = np.array([np.ravel(priors[1]["a"])[0], np.ravel(priors[1]["b"])[0]])
    theta = nodes["ThetaW"].nodes[0].P.getParameters()
    table["theta_prior"] = np.array([np.ravel(theta["a"])[0], np.ravel(theta["b"])[0]])
    table["schedule"] = np.array(SCHEDULE)
    np.savez_compressed(Path(__file__).with_name("mofapy2_states.npz"), **table)


if __name__ == "__main__":
    main()
