"""Passes of sparse GFA over a block on a simulated device beside the host's; run with NUMBA_ENABLE_CUDASIM=1.

The arrays of the device are NumPy arrays in disguise which, as those of CuPy do, refuse to meet arrays of the
host. Prints, for each case named, the largest difference of any array, relative to its largest entry.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import array_api_compat.numpy as numpy_namespace
import numpy as np

import factorflow
from factorflow.kernels import device, linalg, special
from factorflow.models.contract import Step
from factorflow.models.sparse_gfa import SparseGFA
from factorflow.models.sparse_gfa.kernels import cuda as gfa_cuda
from factorflow.trees import arrays, freeze

CASES = {
    "mixed": (("gaussian", "bernoulli", "poisson"), "scattered", {}),
    "complete": (("gaussian", "gaussian"), "none", {}),
    "boehning, samples absent": (("gaussian", "bernoulli"), "samples", {"bernoulli": "boehning"}),
    "sample noise": (("gaussian", "bernoulli"), "scattered", {"noise": "both"}),
    "groups": (("gaussian", "poisson"), "scattered", {"groups": 2, "grouped_noise": True}),
    "spikes on scores": (("gaussian", "bernoulli"), "none", {"scores_prior": "spike"}),
}


class OnDevice(np.ndarray):
    """An array that refuses to meet plain arrays, but has the values of one."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        options = {name: _plain(value) for name, value in options.items()}
        return _placed(getattr(ufunc, method)(*map(_plain, inputs), **options))

    def __array_function__(self, function, types, arguments, options):
        return _placed(function(*_plain(arguments), **_plain(options)))

    def __getitem__(self, index):
        return _placed(np.asarray(self)[_plain(index)])

    def get(self):
        return np.array(self, subok=False)


def _plain(value):
    """Return what NumPy is to work on, refusing arrays of the host."""
    if isinstance(value, OnDevice):
        return np.asarray(value)
    if isinstance(value, np.ndarray):
        raise TypeError("an array of the host meets one of the device")
    if isinstance(value, (tuple, list)):
        return type(value)(map(_plain, value))
    return {name: _plain(v) for name, v in value.items()} if isinstance(value, dict) else value


def _placed(value):
    if isinstance(value, tuple):
        return tuple(map(_placed, value))
    return np.asarray(value).view(OnDevice) if isinstance(value, (np.ndarray, np.floating)) else value


class Namespace:
    """NumPy's array-API namespace, creating arrays on the device."""

    def __init__(self, module=numpy_namespace):
        self._module = module

    def __getattr__(self, name):
        value = getattr(self._module, name)
        if isinstance(value, ModuleType):
            return Namespace(value)
        if isinstance(value, type) or not callable(value):
            return value
        return lambda *arguments, **options: _placed(value(*arguments, **options))


def pretend() -> None:
    """Make the kernels take `OnDevice` for arrays of a device."""

    def namespace(array):
        return Namespace() if isinstance(array, OnDevice) else numpy_namespace

    gfa_cuda.MAX_BLOCKS = 1  # some threads have several entries
    device.on_device = lambda array: isinstance(array, OnDevice)
    device.namespace = linalg.array_namespace = special.array_namespace = namespace
    for name in gfa_cuda.__all__:
        if name != "MarkedGaps":
            setattr(gfa_cuda, name, _counted(name, getattr(gfa_cuda, name)))


USED: set[str] = set()


def _counted(name, function):
    def call(*arguments):
        USED.add(name)
        return function(*arguments)

    return call


def difference(found, expected) -> float:
    """Return the largest difference of two trees of arrays and terms; arrays must lie on the host."""
    worst = 0.0
    for a, b in zip(leaves(found), leaves(expected), strict=True):
        assert not isinstance(a, OnDevice)
        assert a.shape == b.shape
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))  # scores that a likelihood does not have
        a, b = np.nan_to_num(a), np.nan_to_num(b)
        scale = np.abs(b).max(initial=0.0)
        worst = max(worst, np.abs(a - b).max(initial=0.0) / (scale if scale > 0 else 1.0))
    return float(worst)


def leaves(tree):
    terms = [np.array(getattr(part, "free", 0.0)) for part in tree] if isinstance(tree, tuple) else []
    return [*arrays(tree), *terms]


def run(problem) -> float:
    """Take a model through all its stages, and every map of it to the device as well."""
    block, model = problem.block, problem.model
    there = replace(block, data={name: _placed(y.copy()) for name, y in block.data.items()})
    worst, local, globals_ = 0.0, None, model.init(Step(0))
    for stage in model.stages():
        globals_ = freeze(globals_ if stage.enter is None else stage.enter(globals_))
        for tick in range(min(stage.max_iter, 3)):
            (sweep,), step = stage.sweeps, Step(0, 0, tick, stage.name, tick)
            given = sweep.prepare(globals_)
            new, stats = sweep.map(block, local, given, step)
            worst = max(worst, difference(sweep.map(there, local, given, step), (new, stats)))
            local = freeze(new)
            if sweep.axes():
                problem.globals_, problem.sparse, problem.count = globals_, sweep.sparse, tick
                globals_ = freeze(problem.update(stats)[0])
            else:
                globals_ = freeze(sweep.update(globals_, stats, step)[0])
    given = model.prepare(globals_)
    found = model.rows(there, local, given, Step(0))
    return max(worst, difference(found, model.rows(block, local, given, Step(0))))


def fit_on_both(tools) -> float:
    """Fit with device="cuda" and on the host, with held-out entries; compare all variables and scores."""
    cupy = ModuleType("cupy")
    cupy.ndarray = type("ndarray", (), {})
    cupy.asarray = lambda values: _placed(np.array(values))
    cupy.cuda = SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=lambda: 1))
    sys.modules["cupy"] = cupy
    likelihoods = ("gaussian", "bernoulli", "poisson")
    views = tools.make_views(likelihoods, "scattered", n_rows=48)
    views["v1"] = np.where(views["v1"] < 0, np.nan, views["v1"])
    config = SparseGFA(n_factors=2, warmup_iter=2, max_iter=2, drop=0.0)
    with tempfile.TemporaryDirectory() as folder:
        kinds = dict(zip(views, likelihoods, strict=True))
        data = factorflow.write_dataset(Path(folder) / "d.zarr", views, kinds, block_rows=16)
        runs = [factorflow.fit(data, config, holdout=0.1, device=where) for where in ("cuda", "cpu")]
    found, expected = (
        tuple(
            np.asarray(values)
            for group in ("variational", "holdout")
            for values in run.tree[group].to_dataset().data_vars.values()
            if values.dtype.kind == "f"
        )
        for run in runs
    )
    return difference(found, expected)


def main() -> None:
    """Print the differences of the cases named, and what was called on the device."""
    path = Path(__file__).with_name("conftest.py")
    spec = importlib.util.spec_from_file_location("tools", path)
    tools = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tools)
    pretend()
    found = {}
    for name in sys.argv[1:]:
        if name == "fit":
            found["fit, float32"] = fit_on_both(tools)
            continue
        likelihoods, missing, options = CASES[name]
        for dtype in (np.float32, np.float64):
            found[f"{name}, {np.dtype(dtype)}"] = run(
                tools.Problem(likelihoods, missing, dtype=dtype, **options)
            )
    print(json.dumps({"differences": found, "used": sorted(USED)}))


if __name__ == "__main__":
    main()
