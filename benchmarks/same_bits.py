"""Whether two versions of the package find the same bits: run it on both, and compare what it wrote.

    python benchmarks/same_bits.py --out before.json          # with the one version installed
    python benchmarks/same_bits.py --compare before.json      # with the other

Fits small simulated data with each family in the ways that take different paths through it, and writes a
digest of every array of each posterior. A comparison lists the arrays of the first version that the second
lacks or finds otherwise; arrays that only the second has do not count. What earlier versions had among the
draws of a sampler is looked for among its averages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import factorflow
from factorflow.models.variables import AVERAGES

GAUSSIAN = {"a": ("gaussian", 40), "b": ("gaussian", 25)}
MIXED = {"a": ("gaussian", 30), "b": ("bernoulli", 20), "c": ("poisson", 15)}

DATA: dict[str, tuple[str, dict[str, Any]]] = {
    "complete": ("sparse_gfa", {"views": GAUSSIAN, "n_factors": 3}),
    "scattered": ("sparse_gfa", {"views": GAUSSIAN, "n_factors": 3, "missing": 0.1}),
    "absent": ("sparse_gfa", {"views": GAUSSIAN, "n_factors": 3, "missing_samples": 0.1}),
    "mixed": ("sparse_gfa", {"views": MIXED, "n_factors": 3, "missing": 0.05}),
    "grouped": ("sparse_gfa", {"views": GAUSSIAN, "n_factors": 3, "groups": 3, "missing": 0.05}),
    "bits": ("binary", {"n_features": 24, "n_factors": 3}),
    "holes": ("binary", {"n_features": 24, "n_factors": 3, "missing": 0.1}),
}

SPARSE = {"model": "sparse_gfa", "n_factors": 5, "warmup_iter": 12, "max_iter": 30}
PROBIT = {"model": "probit", "n_factors": 3, "n_burn_in": 10, "n_draws": 20, "chains": 2}

RUNS: dict[str, tuple[str, dict[str, Any], float]] = {
    "gaussian": ("complete", SPARSE, 0.0),
    "gaussian, held out": ("complete", SPARSE, 0.1),
    "gaussian, single precision": ("scattered", SPARSE | {"precision": 32}, 0.0),
    "scattered": ("scattered", SPARSE, 0.1),
    "absent samples": ("absent", SPARSE, 0.0),
    "all likelihoods": ("mixed", SPARSE, 0.1),
    "bound": ("mixed", SPARSE | {"bound": True, "likelihoods": "negative_binomial"}, 0.0),
    "horseshoe": ("complete", SPARSE | {"loadings": "horseshoe"}, 0.0),
    "no spike": ("complete", SPARSE | {"loadings": "ard"}, 0.0),
    "random start": ("complete", SPARSE | {"start": "random"}, 0.0),
    "factorised": ("scattered", SPARSE | {"scores_posterior": "factorised"}, 0.0),
    "sample noise": ("complete", SPARSE | {"noise": "both"}, 0.0),
    "groups": ("grouped", SPARSE, 0.1),
    "grouped noise": ("grouped", SPARSE | {"grouped_noise": True, "scores": "spike"}, 0.0),
    "probit, nonnegative": ("bits", PROBIT, 0.1),
    "probit, spike and slab": ("holes", PROBIT | {"factors": "spike_slab", "store_factors": True}, 0.1),
    "probit, collapsed": ("bits", PROBIT | {"factors": "binary"}, 0.0),
    "probit, binary gibbs": ("holes", PROBIT | {"factors": "binary", "sampler": "gibbs"}, 0.0),
    "probit, hmc": ("holes", PROBIT | {"sampler": "hmc"}, 0.0),
    "probit, hmc spike and slab": ("bits", PROBIT | {"factors": "spike_slab", "sampler": "hmc"}, 0.0),
}


def digests(posterior: Any) -> dict[str, str]:
    """Return a digest of every array but the wall-clock times."""
    found = {}
    for node in posterior.tree.subtree:
        for name, variable in node.to_dataset(inherit=False).variables.items():
            if str(name).startswith("seconds"):
                continue
            values = variable.values
            content = repr(values.tolist()).encode() if values.dtype == object else values.tobytes()
            head = f"{values.dtype} {values.shape} ".encode()
            found[f"{node.path.strip('/')}/{name}"] = hashlib.sha256(head + content).hexdigest()[:16]
    return found


def moved(found: dict[str, str], array: str) -> list[str]:
    """Return the digests of the arrays of the same name in groups that the first version did not have."""
    name = array.rpartition("/")[2]
    return [found[place] for place in found if place == f"{AVERAGES}/{name}" and array not in found]


def main() -> int:
    """Run everything; write or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--only", default="", help="runs whose name contains this")
    arguments = parser.parse_args()
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        made = {
            name: factorflow.simulate(kind, f"{folder}/{name}", 200, seed=5, block_rows=64, **settings)
            for name, (kind, settings) in DATA.items()
        }
        for name, (data, config, holdout) in RUNS.items():
            if arguments.only in name:
                found[name] = digests(factorflow.fit(made[data], config, seed=3, holdout=holdout))
                print(f"{name}: {len(found[name])} arrays", file=sys.stderr)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1))
    if not arguments.compare:
        return 0
    before = {n: a for n, a in json.loads(arguments.compare.read_text()).items() if arguments.only in n}
    differing = [
        f"{run}: {array}"
        for run, arrays in before.items()
        for array, digest in arrays.items()
        if digest not in (found.get(run, {}).get(array), *moved(found.get(run, {}), array))
    ]
    n_arrays = sum(map(len, before.values()))
    print("\n".join(differing) or f"the same bits in {n_arrays} arrays of {len(before)} runs")
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
