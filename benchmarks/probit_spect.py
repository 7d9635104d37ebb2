"""Long chains on SPECT, K = 3: test scores of every model and sampler beside an earlier implementation.

    python benchmarks/probit_spect.py FOLDER [--quick] [--json FILE]

FOLDER holds ``binary/spect.npz``. Split 0 hides a tenth of the entries. Four chains of 6000 sweeps (binary
factors: 900 by HMC, 2500 collapsed), the first third dropped; travel time pi / 2; a, b ~ Beta(1, 1), and the
source's own (improper) prior of tau^2. Reference: mean and standard deviation over four seeds. A pair agrees
when |mean - reference| <= 3 sqrt((sd^2 + sd_reference^2) / 4).
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import factorflow
from factorflow import models

REFERENCE = {
    ("binary", "gibbs"): (0.617, 0.007, 6000),
    ("binary", "hmc"): (0.616, 0.007, 900),
    ("binary", "collapsed"): (0.619, 0.004, 2500),
    ("spike_slab", "gibbs"): (0.574, 0.002, 6000),
    ("spike_slab", "hmc"): (0.576, 0.001, 6000),
    ("nonnegative", "gibbs"): (0.586, 0.007, 6000),
    ("nonnegative", "hmc"): (0.585, 0.003, 6000),
}


def split(data: Path, number: int = 0) -> tuple[Any, Any]:
    """Return entries (T, N) of 0 and 1, and where they are hidden in a split."""
    x = np.load(data / "binary" / "spect.npz")["data"].astype(float)
    shown = np.ones(x.size, bool)
    shown[np.random.default_rng(1000 + number).permutation(x.size)[: x.size // 10]] = False
    return x, ~shown.reshape(x.T.shape).T


def long_chain(dataset: Any, factors: str, sampler: str, sweeps: int, x: Any, hidden: Any) -> Any:
    """Return the test MNLP (bits) of four chains."""
    burn = sweeps // 3
    config = models.ProbitFactors(
        factors=factors, sampler=sampler, n_factors=3, travel_time=math.pi / 2, chains=4, n_burn_in=burn,
        n_draws=sweeps - burn, priors="improper", variance_prior=(1.0, 0.0), predictive="all",
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # says that the prior is improper
        posterior = factorflow.fit(dataset, config, seed=1)
    p = posterior.tree["averages"]["probability_spect"].values.astype(float)
    p = np.where(x == 1, p, 1 - p)[:, hidden]
    return -np.log2(p).mean(axis=1)


def main() -> None:
    """Run all pairs and say which agree."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("data", type=Path)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sweeps")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    x, hidden = split(options.data)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        views = {"spect": np.where(hidden, np.nan, x)}
        dataset = factorflow.write_dataset(
            Path(folder) / "spect.zarr", views=views, likelihoods={"spect": "bernoulli"}
        )
        for (factors, sampler), (mean, sd, sweeps) in REFERENCE.items():
            began = time.perf_counter()
            length = sweeps // 10 if options.quick else sweeps
            scores = long_chain(dataset, factors, sampler, length, x, hidden)
            ours, spread = float(scores.mean()), float(scores.std(ddof=1))
            allowed = 3 * math.sqrt((spread**2 + sd**2) / 4)
            found[f"{factors} {sampler}"] = {
                "mnlp": ours, "sd": spread, "reference": mean, "sd_reference": sd,
                "difference": ours - mean, "allowed": allowed, "agrees": abs(ours - mean) <= allowed,
                "seconds": time.perf_counter() - began,
            }  # fmt: skip
            print(factors, sampler, json.dumps(found[f"{factors} {sampler}"]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
