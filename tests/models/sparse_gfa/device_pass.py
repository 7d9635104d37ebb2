"""Passes of sparse GFA over a block on a device beside the host's.

On Numba's simulator with NUMBA_ENABLE_CUDASIM=1. Prints, for each case named, the largest difference of any
array, relative to its largest entry.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

import factorflow
from factorflow.core.trees import freeze, restrict
from factorflow.models.contract import Step
from factorflow.models.sparse_gfa import SparseGFA
from factorflow.models.sparse_gfa.kernels import cuda as gfa_cuda

sys.path.insert(0, str(Path(__file__).parents[1]))
from devices import difference, fits, placed, watched

CASES = {
    "mixed": (("gaussian", "bernoulli", "poisson"), "scattered", {}),
    "complete": (("gaussian", "gaussian"), "none", {}),
    "bound, samples absent": (("gaussian", "bernoulli"), "samples", {"bound": True}),
    "negative binomial": (("poisson",), "scattered", {"likelihoods": "negative_binomial", "bound": False}),
    "sample noise": (("gaussian", "bernoulli"), "scattered", {"noise": "both"}),
    "groups": (("gaussian", "poisson"), "scattered", {"groups": 2, "grouped_noise": True}),
    "draws": (("gaussian", "bernoulli"), "scattered", {"n_draws": 2, "n_burn_in": 0}),
    "draws by Metropolis steps": (
        ("poisson", "gaussian", "poisson"),
        "scattered",
        {"n_draws": 2, "n_burn_in": 0, "likelihoods": {"v0": "negative_binomial", "v1": "student_t"}},
    ),
    "spikes on scores": (("gaussian", "bernoulli"), "none", {"scores": "spike"}),
}


def run(problem) -> float:
    """Take a model through all its stages, and every map of it to the device as well."""
    block, model = problem.block, problem.model
    there = replace(block, data={name: placed(y.copy()) for name, y in block.data.items()})
    worst, local, globals_ = 0.0, None, model.init(Step(0))
    for stage in model.stages():
        globals_ = freeze(globals_ if stage.enter is None else stage.enter(globals_))
        for tick in range(min(stage.max_iter, 3)):
            step = Step(0, 0, tick, stage.name, tick)
            for sweep in stage.sweeps:
                given = sweep.prepare(freeze(sweep.send(globals_)))
                new, stats = sweep.map(block, local, given, step)
                worst = max(worst, difference(sweep.map(there, local, given, step), (new, stats)))
                local = freeze(new)
                if sweep.axes():
                    parts, sums = {}, {}
                    for axis, length in sweep.axes().items():
                        mine = restrict(stats, axis, slice(0, length))
                        parts[axis], sums[axis] = sweep.features(axis, range(length), globals_, mine, step)
                    globals_ = freeze(sweep.assemble(globals_, stats, parts, sums, step)[0])
                else:
                    globals_ = freeze(sweep.update(globals_, stats, step)[0])
    given = model.prepare(globals_)
    found = model.rows(there, local, given, Step(0))
    return max(worst, difference(found, model.rows(block, local, given, Step(0))))


def fit_on_both(tools) -> float:
    """Fit with device="cuda" and on the host, with held-out entries; compare all variables and scores."""
    likelihoods = ("gaussian", "bernoulli", "poisson")
    views = tools.make_views(likelihoods, "scattered", n_rows=48)
    views["v1"] = np.where(views["v1"] < 0, np.nan, views["v1"])
    config = SparseGFA(n_factors=2, warmup_iter=2, max_iter=2, drop=0.0)
    with tempfile.TemporaryDirectory() as folder:
        kinds = dict(zip(views, likelihoods, strict=True))
        data = factorflow.write_dataset(Path(folder) / "d.zarr", views, kinds, block_rows=16)
        return fits(data, config, holdout=0.1)


def main() -> None:
    """Print the differences of the cases named, and what was called on the device."""
    path = Path(__file__).with_name("conftest.py")
    spec = importlib.util.spec_from_file_location("tools", path)
    tools = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tools)
    used, found = watched(gfa_cuda), {}
    for name in sys.argv[1:]:
        if name == "fit":
            found["fit, float32"] = fit_on_both(tools)
            continue
        likelihoods, missing, options = CASES[name]
        for dtype in (np.float32, np.float64):
            found[f"{name}, {np.dtype(dtype)}"] = run(
                tools.Problem(likelihoods, missing, dtype=dtype, **options)
            )
    print(json.dumps({"differences": found, "used": sorted(used)}))


if __name__ == "__main__":
    main()
