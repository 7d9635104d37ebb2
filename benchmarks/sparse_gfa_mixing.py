"""How far chains of the sampler of sparse group factor analysis mix, and what R-hat of mixed chains comes to.

Data are those of ``sparse_gfa_draws.py``; of "binary" ones the second view is y ~ Bern(sigma(1.5 x)). With
``--features`` two Gaussian views of so many features in all, complete, nearly all loadings of four factors
small but not 0: ways to have two factors are hard to tell apart. Usage::

    python benchmarks/sparse_gfa_mixing.py --out benchmarks/results/sparse_gfa_mixing.json --label now \\
        [--samples 50] [--binary] [--features 3000] [--first 2000] [--sets 6] [--draws 1000] [--chains 4]
    python benchmarks/sparse_gfa_mixing.py --out benchmarks/results/sparse_gfa_mixing.json --rule

Of each set: the smallest bulk effective size of all entries of a kind, of all draws together, the largest
rank-normalised split R-hat, factors aligned, and whether the fit finds that its chains have not mixed. An
earlier version on PYTHONPATH, with ``--label before``, samples the same.

``--rule``: in what share of runs of 200 independent entries R-hat of some is above 1.01, and above what
findings hold it against; and of entries of one chain of which all lie half a standard deviation off, the
share above either.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set
from scipy.signal import lfilter  # noqa: E402

KINDS = (
    "intercept_mean",
    "intercept_precision",
    "alpha",
    "theta",
    "noise_precision",
    "intercept",
    "loadings",
)
RULE = ((2, 400, 0.0), (4, 1000, 0.6))
"""Chains, draws, and the correlation of each with the next: .6 leaves a quarter of the draws effective."""
OFF, RUNS, ENTRIES = 0.5, 60, 200


def simulated(n_rows: int, seed: int, binary: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """Return two views with hidden entries, and their likelihoods."""
    import sparse_gfa_draws as data

    z, w, y, hidden = data.simulate(n_rows, seed)
    first, kinds = data.FEATURES[0], {"view0": "gaussian", "view1": "bernoulli" if binary else "gaussian"}
    if binary:
        x = 1.5 * z @ w[first:].T
        y[:, first:] = np.random.default_rng([n_rows, seed, 5]).random(x.shape) < 1.0 / (1.0 + np.exp(-x))
    return data.by_view(np.where(hidden, np.nan, y)), kinds


def wide(n_rows: int, n_features: int, seed: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Return two complete Gaussian views of many features, and their likelihoods."""
    rng = np.random.default_rng([n_rows, n_features, seed])
    w = 0.35 * rng.normal(size=(n_features, 4)) * (rng.random((n_features, 4)) < 0.95)
    y = rng.normal(size=(n_rows, 4)) @ w.T + rng.normal(size=(n_rows, n_features))
    return dict(zip("ab", np.split(y, 2, axis=1), strict=True)), dict.fromkeys("ab", "gaussian")


def run(
    views: dict[str, Any], kinds: dict[str, str], seed: int, draws: int, chains: int, n_factors: int
) -> dict[str, Any]:
    """Fit and sample one set; return what is printed of it."""
    import factorflow
    from factorflow.models import SparseGFA
    from factorflow.posterior.mixing import effective_sizes, rank_rhat

    with tempfile.TemporaryDirectory() as folder:
        dataset = factorflow.write_dataset(Path(folder, "data.zarr"), views, kinds)
        options = {"n_factors": n_factors, "n_draws": draws, "chains": chains}
        fit = factorflow.fit(dataset, SparseGFA(**options), seed=seed, progress=False)
        silent = not any(finding.kind == "mixing" for finding in fit.findings)
        found: dict[str, Any] = {"factors": int(fit.scores().shape[-1]), "silent": silent}
        aligned = fit.to_arviz()["posterior"]
        highest = 1.0
        for kind in KINDS:
            named = [n for n in aligned.data_vars if n == kind or n in {f"{kind}_{v}" for v in views}]
            x = [aligned[n].values.reshape(chains, draws, -1) for n in named]
            if not x:
                continue
            entries = np.concatenate(x, axis=2)
            with np.errstate(invalid="ignore", divide="ignore"):  # loadings that are 0 in every draw
                found[kind] = round(float(np.nanmin(effective_sizes(entries))))
                highest = max(highest, float(np.nanmax(rank_rhat(entries))))
    return found | {"highest R-hat": round(highest, 4)}


def rule() -> dict[str, Any]:
    """Return how often R-hat of independent chains, and of one that is off, is called high."""
    from factorflow.posterior.mixing import effective_sizes, rank_rhat
    from factorflow.posterior.mixing_findings import HIGH_RHAT, _high_rhat

    out = {}
    for chains, draws, alike in RULE:
        rows = []
        for seed in range(RUNS):
            noise = np.random.default_rng(seed).normal(size=(chains, draws + 200, ENTRIES))
            x = lfilter([1.0], [1.0, -alike], noise, axis=1)[:, 200:]
            r_hat, bound = rank_rhat(x), _high_rhat(effective_sizes(x, within_chains=True), chains)
            x[0] += OFF * x.std()
            off = rank_rhat(x)
            rows.append(
                [
                    (r_hat > HIGH_RHAT).any(),
                    (r_hat > bound).any(),
                    *((off > b).mean() for b in (HIGH_RHAT, bound)),
                ]
            )
        shares = np.round(np.mean(rows, axis=0), 3).tolist()
        names = ("some above 1.01", "some above the bound", "off: above 1.01", "off: above the bound")
        out[f"rule: {chains} x {draws}, correlation {alike:g}"] = dict(zip(names, shares, strict=True))
    return out


def main() -> None:
    """Run the sets, or the rule; print and write what they gave."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--label", default="now")
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--binary", action="store_true")
    parser.add_argument("--features", type=int, help="of wide data instead")
    parser.add_argument("--first", type=int, default=2000)
    parser.add_argument("--sets", type=int, default=6)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--rule", action="store_true", help="of independent draws instead")
    options = parser.parse_args()
    logging.getLogger("factorflow").setLevel(logging.ERROR)
    table = json.loads(options.out.read_text()) if options.out.exists() else {}
    table["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
    if options.rule:
        table |= rule()
    else:
        data = f"{options.samples} samples{', one view binary' if options.binary else ''}"
        data += f" x {options.features}" if options.features else ""
        key = f"{options.label}: {data}, {options.chains} x {options.draws}"
        table[key] = {}
        for seed in range(options.first, options.first + options.sets):
            if options.features:
                given = *wide(options.samples, options.features, seed), seed
            else:
                given = *simulated(options.samples, seed, options.binary), seed
            found = run(*given, options.draws, options.chains, 8 if options.features else 6)
            table[key][str(seed)] = found
            print(key, seed, found, flush=True)
    options.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
