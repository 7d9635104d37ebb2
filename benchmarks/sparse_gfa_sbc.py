"""Simulation-based calibration of the sampler of sparse group factor analysis (Talts et al. 2018).

Parameters, scores and entries of a small model (6 samples, views of 4 features, by default a Gaussian and a
binary one, a fifth of the entries missing, 2 factors) are drawn from the prior; a chain that starts from
another draw of the prior samples their posterior. The rank of the truth among the draws is uniform if the
sampler is right. Usage::

    python benchmarks/sparse_gfa_sbc.py --out benchmarks/results/sparse_gfa_sbc.json [--sets 150]
        [--views negative_binomial poisson --thin 20] [--options courses=levels covariates=1] [--burn-in 60]

For every summary that does not depend on signs and order of the factors: standard errors by which the mean
rank is off, and the mean square of the ranks about their centre, 1 if they are uniform. Of summaries of
loadings, scores, predictors and the other parameters the share between the least and the largest of 39
draws, an interval of 95 %. The steps and the options are in ``tests/models/sparse_gfa/joint.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "models" / "sparse_gfa"))

import numpy as np  # noqa: E402 - after the number of threads is set
from joint import ranks, settings_of  # noqa: E402
from scipy.stats import chi2  # noqa: E402

from factorflow.models.sparse_gfa.sampler.gibbs import GibbsSweep  # noqa: E402

DRAWS, BINS = 39, 8


def main() -> None:
    """Run all sets, print and write how uniform the ranks are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sets", type=int, default=150)
    parser.add_argument("--first", type=int, default=1000, help="number of the first set, its seed")
    parser.add_argument("--views", nargs="+", default=["gaussian", "bernoulli"], help="their likelihoods")
    parser.add_argument("--thin", type=int, default=6, help="sweeps from one draw to the next")
    parser.add_argument("--burn-in", type=int, default=60, help="sweeps before the first draw")
    parser.add_argument("--options", nargs="*", default=[], help="of settings_of, NAME=VALUE")
    given = parser.parse_args()
    options = dict(option.split("=") for option in given.options)
    settings = settings_of(tuple(given.views), groups=False, slab=True, **options)
    sweep, n = GibbsSweep(settings, keep=False), DRAWS
    start = time.process_time()
    named = [ranks(sweep, given.first + i, given.burn_in, n, given.thin) for i in range(given.sets)]
    found = np.array([np.concatenate([*one.values()]) for one in named])
    inside = {
        name: np.array([(one[name] > 0) & (one[name] < n) for one in named]).mean(axis=1) for name in named[0]
    }
    off = (found.mean(axis=0) / n - 0.5) * np.sqrt(12.0 * given.sets * n / (n + 2.0))
    spread = ((found / n - 0.5) ** 2).mean(axis=0) * 12.0 * n / (n + 2.0)
    # as many draws as make bins of equal size: ranks 0 to 39 in eight bins of five
    counts = np.stack(
        [np.bincount(column.astype(int) * BINS // (n + 1), minlength=BINS) for column in found.T]
    )
    statistic = ((counts - given.sets / BINS) ** 2).sum(axis=1) * BINS / given.sets
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, loaded",
        "views": given.views,
        "options": options,
        "CPU minutes": round((time.process_time() - start) / 60.0, 1),
        "sets": given.sets,
        "thin": given.thin,
        "burn-in": given.burn_in,
        "summaries": found.shape[1],
        "in intervals of 95 %, with standard error": {
            name: [round(float(share.mean()), 3), round(float(share.std() / np.sqrt(len(share))), 3)]
            for name, share in inside.items()
        },
        "largest mean rank, standard errors": round(float(np.abs(off).max()), 2),
        "their root mean square": round(float(np.sqrt((off**2).mean())), 2),
        "mean square of ranks": [round(float(v), 2) for v in (spread.min(), spread.mean(), spread.max())],
        "smallest chi-square p": round(float(chi2.sf(statistic, BINS - 1).min()), 4),
    }
    print(json.dumps(result, indent=1))
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
