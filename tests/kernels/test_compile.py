"""What is compiled has the same bits in every process."""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from numba import types
from numba.core import event
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.errors import TypingError

import factorflow
from factorflow.core.garbage import THRESHOLD
from factorflow.kernels.compile import INNER, compile_scalar, jit
from factorflow.kernels.scalar import normal
from factorflow.models.probit.kernels import trajectory

FIT = """
import hashlib, sys
from collections import Counter
import factorflow
from factorflow.models.registry import registered_models
from numba.core import event

class Compiled(event.Listener):
    depth, loops = 0, Counter()
    def on_start(self, what):
        function = what.data["dispatcher"].py_func
        self.loops[function.__module__ + "." + function.__qualname__] += self.depth == 0
        self.depth += 1
    def on_end(self, what):
        self.depth -= 1

compiled = Compiled()
event.register("numba:compile", compiled)

kind = registered_models()[sys.argv[1]]
case = list(kind.examples().values())[-1]
settings = {"n_samples": 70, "block_rows": 32, "missing": 0.1, **case.data}
data = factorflow.simulate(case.simulator, sys.argv[2], seed=7, overwrite=True, **settings)
posterior = factorflow.fit(data, case.config, seed=3, holdout=0.1)
digest = hashlib.sha256()
for node in posterior.tree.subtree:
    for name, variable in sorted(node.to_dataset(inherit=False).variables.items(), key=str):
        if variable.dtype != object and "seconds" not in str(name):
            digest.update(variable.values.tobytes())
print(digest.hexdigest(), compiled.loops.total(), *(loop for loop, n in compiled.loops.items() if n > 1))
"""


def loops() -> Iterator[tuple[str, Any]]:
    """Yield every compiled loop of the package."""
    for found in pkgutil.walk_packages(factorflow.__path__, "factorflow."):
        if ".kernels." in found.name and not found.name.endswith(".cuda"):
            module = importlib.import_module(found.name)
            for name, value in vars(module).items():
                if isinstance(value, Dispatcher) and value.py_func.__module__ == found.name:
                    yield f"{found.name}.{name}", value


def names(code: CodeType) -> set[str]:
    inside = [names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inside)


def test_what_loops_call_is_compiled_into_them() -> None:
    """Else a process that reads a loop from the cache finds other bits than the one that compiled it."""
    called = {
        f"{loop} calls {name}": value.targetoptions
        for loop, dispatcher in loops()
        for name in names(dispatcher.py_func.__code__)
        if isinstance(value := dispatcher.py_func.__globals__.get(name), Dispatcher)
    }
    assert called
    wrong = [
        pair
        for pair, options in called.items()
        if options.get("inline") != "always" and not options.get("forceinline")
    ]
    assert not wrong


def test_so_are_scalar_functions() -> None:
    options = compile_scalar(normal.log_ndtr, inner=True).targetoptions
    assert {name: options.get(name) for name in INNER if name != "cache"} == {
        name: value for name, value in INNER.items() if name != "cache"
    }


@pytest.mark.parametrize(
    "family",
    [
        pytest.param("molten_normal", marks=pytest.mark.thorough),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("sparse_gfa", "probit", "identity_attribute", "molten_poisson", "poisson_factors")
        ),
    ],
)
def test_a_process_that_compiles_and_one_that_does_not(family: str, tmp_path: Path) -> None:
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FIT, family, str(tmp_path / "d.zarr")]
    (first, n_loops, *again), (second, n_loops_again, *_) = (
        subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    )
    assert first == second
    assert int(n_loops) > 0
    assert int(n_loops_again) == 0
    assert not again, "loops compiled for several types of arrays"


def test_inner_functions_have_no_machine_code_of_their_own() -> None:
    """Else each has it, and again inside each of its callers."""
    inner = compile_scalar(normal.scaled_tail, inner=True)
    inner.compile((types.float64,))
    (compiled,) = inner.overloads.values()
    assert compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name) == 0
    alone = compile_scalar(normal.log_ndtr)
    assert alone(-0.5) == pytest.approx(normal.log_ndtr(-0.5), rel=1e-14)


@pytest.mark.parametrize("first", [True, False])
def test_inner_functions_are_optimised_before_they_are_linked_only_if_asked_for(first: bool) -> None:
    """Loops of the others become vectors once, in the loop that Python calls."""
    signature = (types.float64[::1], types.float64[::1], types.uint64)
    inner: Any = jit(trajectory._dot, fastmath=True, vectors_first=first, **INNER)
    inner.compile(signature)
    (compiled,) = inner.overloads.values()
    with global_compiler_lock:
        code = str(compiled.library._get_module_for_linking())
    assert (" x double>" in code) == first


def test_functions_that_are_omitted_are_not_compiled() -> None:
    omit = frozenset({normal._far_tail})
    draw = compile_scalar(normal.positive_tail, omit=omit)
    assert draw(0.2, 0.01, 0.005) == pytest.approx(normal.positive_tail(0.2, 0.01, 0.005), rel=1e-14)
    assert draw(-2.0 * normal.FAR, 0.5, 0.0) == 0.0
    assert draw.py_func.__qualname__ == "positive_tail_without__far_tail"  # a name of its own in the cache


class Noting(event.Listener):
    """Notes the threshold of the garbage collector as a compilation begins."""

    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    def on_start(self, event: Any) -> None:
        self.seen.append(gc.get_threshold()[0])

    def on_end(self, event: Any) -> None:
        """Note nothing."""


def test_garbage_is_looked_for_less_often_while_something_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a function and what it calls; afterwards as often as before, also where that fails."""
    seen = []

    def inner(x: Any) -> Any:
        return x + 1

    called = jit(inner)
    before = gc.get_threshold()
    listener = Noting(seen)
    event.register("numba:compile", listener)
    try:
        assert jit(lambda x: called(x) + 1)(1) == 3
        with pytest.raises(TypingError):
            jit(lambda x: x + "no number")(1)
    finally:
        event.unregister("numba:compile", listener)
    assert seen == [THRESHOLD] * 3
    assert gc.get_threshold() == before
