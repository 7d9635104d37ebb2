"""Arrays of a device: of one that is there, or of none, in Numba's simulator (NUMBA_ENABLE_CUDASIM=1).

Those of the simulator are NumPy arrays in disguise which, as those of CuPy do, refuse to meet arrays of the
host.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace

import array_api_compat.numpy as numpy_namespace
import numpy as np

import factorflow
from factorflow.core.trees import arrays
from factorflow.kernels import device, linalg, special

BOTH = {special.__name__}
"""Modules that convert what they get, and have a way of their own for arrays of CuPy."""
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"


class OnDevice(np.ndarray):
    """An array that refuses to meet plain arrays, but has the values of one."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        options = {name: _plain(value) for name, value in options.items()}
        return placed(getattr(ufunc, method)(*map(_plain, inputs), **options))

    def __array_function__(self, function, types, arguments, options):
        return placed(function(*_plain(arguments), **_plain(options)))

    def __getitem__(self, index):
        return placed(self.view(np.ndarray)[_plain(index)])

    def setflags(self, write=None, align=None, uic=None):
        """Change nothing: those of CuPy cannot be made read-only."""

    def get(self):
        return np.array(self, subok=False)


def _plain(value):
    """Return what NumPy is to work on, refusing arrays of the host."""
    if isinstance(value, OnDevice):
        return value.view(np.ndarray)
    if isinstance(value, np.ndarray):
        raise TypeError("an array of the host meets one of the device")
    if isinstance(value, (tuple, list)):
        return type(value)(map(_plain, value))
    return {name: _plain(v) for name, v in value.items()} if isinstance(value, dict) else value


def placed(value):
    """Return a value on the device."""
    if isinstance(value, tuple):
        return tuple(map(placed, value))
    if not SIMULATED:
        import cupy

        return cupy.asarray(value)
    return np.asarray(value).view(OnDevice) if isinstance(value, (np.ndarray, np.floating)) else value


class Namespace:
    """NumPy's array-API namespace, creating arrays on the device."""

    def __init__(self, module=numpy_namespace):
        self._module = module

    def asarray(self, values, dtype=None, copy=None):
        there = isinstance(values, OnDevice)
        copy = copy if there else True  # on the way to the device always
        return placed(np.array(np.asarray(values), dtype=dtype, copy=copy))

    def __getattr__(self, name):
        value = getattr(self._module, name)
        if isinstance(value, ModuleType):
            return Namespace(value)
        if isinstance(value, type) or not callable(value):
            return value
        return lambda *arguments, **options: placed(value(*arguments, **options))


def watched(kernels: ModuleType) -> set[str]:
    """Return which kernels of a family are called; on the simulator they take `OnDevice`."""
    used: set[str] = set()

    def counted(name, function):
        def call(*arguments):
            used.add(name)
            return function(*arguments)

        return call

    if SIMULATED:
        pretend()
    for name in kernels.__all__:
        if not isinstance(getattr(kernels, name), type):
            setattr(kernels, name, counted(name, getattr(kernels, name)))
    return used


def pretend() -> None:
    """Put `OnDevice` in the place of CuPy's arrays."""

    def namespace(array):
        return Namespace() if isinstance(array, OnDevice) else numpy_namespace

    cupy = ModuleType("cupy")
    cupy.ndarray = type("ndarray", (), {})
    cupy.asarray = lambda values: placed(np.array(values))
    cupy.cuda = SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=lambda: 1))
    sys.modules["cupy"] = cupy
    np.asarray = explicit(np.asarray)
    device.on_device = lambda array: isinstance(array, OnDevice)
    device.namespace = linalg.namespace = special.namespace = namespace
    for name, module in list(sys.modules.items()):
        if name.startswith("factorflow.likelihoods."):
            for function in {"namespace", "on_device"} & vars(module).keys():
                setattr(module, function, getattr(device, function))


def explicit(convert):
    """Return a conversion to arrays of the host which, as with CuPy's, refuses those of a device."""

    def converted(values, *arguments, **options):
        asks = sys._getframe(1).f_globals["__name__"]
        if isinstance(values, OnDevice) and asks.startswith("factorflow.") and asks not in BOTH:
            raise TypeError(f"{asks} converts an array of the device without saying so")
        return convert(values, *arguments, **options)

    return converted


def difference(found, expected) -> float:
    """Return the largest difference of two trees of arrays and terms; arrays must lie on the host."""
    worst = 0.0
    for a, b in zip(leaves(found), leaves(expected), strict=True):
        assert not isinstance(a, OnDevice)
        assert isinstance(a, (np.ndarray, np.generic))
        assert a.shape == b.shape
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))  # scores that a likelihood does not have
        a, b = np.nan_to_num(a), np.nan_to_num(b)
        scale = np.abs(b).max(initial=0.0)
        worst = max(worst, np.abs(a - b).max(initial=0.0) / (scale if scale > 0 else 1.0))
    return float(worst)


def leaves(tree):
    terms = [np.array(getattr(part, "free", 0.0)) for part in tree] if isinstance(tree, tuple) else []
    return [*arrays(tree), *terms]


def fits(data, config, **options) -> float:
    """Fit with device="cuda" and on the host; return the largest difference of all variables and scores."""
    runs = [factorflow.fit(data, config, device=where, **options) for where in ("cuda", "cpu")]
    found, expected = (
        tuple(
            np.asarray(values)
            for group in ("variational", "holdout")
            if group in run.tree
            for values in run.tree[group].to_dataset().data_vars.values()
            if values.dtype.kind == "f"
        )
        for run in runs
    )
    return difference(found, expected)
