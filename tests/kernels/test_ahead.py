"""Loops that a second process compiles are those that a fit needs, and are compiled once."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba.core.errors import TypingError

import factorflow
from factorflow.engine.executors import launch
from factorflow.errors import InputError
from factorflow.kernels import ahead
from factorflow.kernels.ahead import Loop, loops_of
from factorflow.kernels.compile import jit
from factorflow.kernels.scalar import normal
from factorflow.models.registry import registered_models

CASES: dict[str, dict[str, Any]] = {
    "sparse_gfa": {"missing": 0.1, "views": {"a": ("gaussian", 7), "b": ("bernoulli", 6)}},
    "probit": {},
    "identity_attribute": {},
    "molten_poisson": {},
}
"""Settings of the data of the last example of each family that names loops."""


@pytest.mark.parametrize("family", CASES)
def test_loops_have_the_types_that_a_fit_needs(family: str, tmp_path: Path) -> None:
    example = list(registered_models()[family].examples().values())[-1]
    simulator = "sparse_gfa" if family == "sparse_gfa" else example.simulator
    settings = {**({} if family == "sparse_gfa" else example.data), **CASES[family]}
    config: Any = (
        {"model": family, "n_factors": 2, "max_iter": 3} if family == "sparse_gfa" else example.config
    )
    data = factorflow.simulate(simulator, tmp_path / "d.zarr", 40, seed=1, **settings)
    factorflow.fit(data, config, progress=False)
    _, loops = loops_of(config if isinstance(config, dict) else config.model_dump())
    assert loops
    for loop in loops:
        function, types = loop.compiled()
        assert types in function.overloads, loop


def test_other_models_have_none() -> None:
    assert loops_of({"model": "my_family"}) == ("", [])
    assert loops_of({"model": "molten_normal"}) == ("molten", [])
    assert loops_of({}) == ("", [])


@pytest.mark.thorough
def test_one_process_compiles_for_all_that_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    process = ahead.start({"model": "probit"})
    assert process is not None
    assert process.wait(60) == 0
    assert [path.name.split("-")[0] for path in tmp_path.rglob("*.nbc")] == ["loadings.loop_features"]
    assert ahead.start({"model": "probit"}) is None


@pytest.mark.parametrize(
    ("executor", "cores", "starts"), [("local", 2, 1), ("local", 1, 0), ("tcp://a:1", 2, 0)]
)
def test_where_it_is_started(executor: str, cores: int, starts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[Any] = []
    monkeypatch.setattr(ahead, "start", models.append)
    monkeypatch.setattr(launch, "n_cores", lambda: cores)
    launch.compile_ahead(executor, {"model": "probit"})
    assert len(models) == starts


def test_options_are_looked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[Any] = []
    monkeypatch.setattr(ahead, "start", models.append)
    monkeypatch.setattr(launch, "n_cores", lambda: 2)
    for options, started in (({"n_factors": 0}, 0), ({"n_factors": 2}, 1)):
        with pytest.raises(InputError, match="views" if started else "n_factors"):
            factorflow.fit({}, {"model": "sparse_gfa", **options}, progress=False)
        assert len(models) == started


COMPILE = """
import sys, time
from pathlib import Path
from factorflow.kernels.compile import compile_scalar
from factorflow.kernels.scalar import normal
function = compile_scalar(normal.log_ndtr)
Path(sys.argv[1], sys.argv[2]).touch()
while len(list(Path(sys.argv[1]).iterdir())) < 2:
    time.sleep(0.001)
function(-0.5)
print(sum(function.stats.cache_misses.values()))
"""


@pytest.mark.thorough
def test_processes_that_need_a_loop_at_the_same_time_compile_it_once(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", COMPILE, str(tmp_path / "here"), name], env=env, stdout=subprocess.PIPE
        )
        for name in "ab"
    ]
    assert sum(int(process.communicate(timeout=60)[0]) for process in both) == 1


def test_a_loop_that_cannot_be_compiled_leaves_no_lock() -> None:
    """Others would wait for it until the process ends."""

    def add_text(x):  # type: ignore[no-untyped-def]
        return x + "text"

    add_text.__module__ = normal.__name__  # whose folder its stamp is of
    compiled = jit(add_text, cache=True)
    for _ in range(2):
        with pytest.raises(TypingError):
            compiled(1.0)
        with open(f"{compiled._cache._cache_file._index_path}.lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_types_are_written_as_numpy_has_them() -> None:
    loop = Loop("factorflow.kernels.scalar.normal", "log_ndtr", "d l*3 ?1 f2r")
    assert [str(kind) for kind in loop.compiled()[1]] == [
        "float64",
        "UniTuple(int64 x 3)",
        "array(bool, 1d, C)",
        "readonly array(float32, 2d, C)",
    ]
