"""Loops of a first fit are compiled by a second process while the first imports, reads and compiles others.

Which ones a family says in ``kernels/ahead.py`` of its folder: ``loops(model)`` returns them, in the order in
which they are compiled, of a model as a user gives it. That file imports no more than this one, and is run
without its family. Two processes that need the same loop at the same time wait for each other
(`factorflow.kernels.shared_cache`).
"""

from __future__ import annotations

import atexit
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib import import_module, metadata
from pathlib import Path
from runpy import run_path
from types import ModuleType
from typing import Any, NamedTuple

from factorflow.kernels.compile import compile_scalar, digest_of_kernels

MODELS = Path(__file__).parents[1] / "models"


class Loop(NamedTuple):
    """A loop and the types of its arguments.

    Types are separated by spaces: NumPy's character, the number of dimensions of a C-contiguous array, and
    "r" where it cannot be written; ``l*2`` is a tuple of two. ``omit`` are names of the same module
    (`compile_scalar`).
    """

    module: str
    name: str
    types: str
    omit: tuple[str, ...] = ()

    def compiled(self) -> tuple[Any, tuple[Any, ...]]:
        """Return the function that Numba compiles, and the types."""
        module = import_module(self.module)
        function = getattr(module, self.name)
        if not hasattr(function, "py_func"):
            omit = {"omit": frozenset(getattr(module, name) for name in self.omit)} if self.omit else {}
            function = compile_scalar(function, **omit)  # as its callers have it
        return function, tuple(map(_numba_type, self.types.split()))


def _numba_type(text: str) -> Any:
    import numba
    import numpy as np

    match = re.fullmatch(r"(.)(?:\*(\d+)|(\d)(r?))?", text)
    assert match is not None
    kind, size, dimensions, fixed = match.groups()
    number = numba.from_dtype(np.dtype(kind))
    if size:
        return numba.types.UniTuple(number, int(size))
    return numba.types.Array(number, int(dimensions), "C", readonly=bool(fixed)) if dimensions else number


def loops_of(model: Mapping[str, Any]) -> tuple[str, list[Loop]]:
    """Return the folder of a model's family, and its loops.

    Parameters
    ----------
    model : mapping
        Options by name; those that are not there are as by default.
    """
    for source in MODELS.glob("*/kernels/ahead.py"):
        family = source.parents[1].name
        if f"{model.get('model')}_".startswith(f"{family}_"):
            return family, list(run_path(str(source))["loops"](model))
    return "", []


def start(model: Mapping[str, Any]) -> subprocess.Popen[bytes] | None:
    """Start a process that compiles the loops of a model, where none has done so.

    It ends with this one at the latest.
    """
    family, loops = loops_of(model)
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).parent / "__pycache__")
    if not loops or not sys.executable:
        return None
    versions = (
        metadata.version("numba"),
        sys.implementation.cache_tag,
        digest_of_kernels(MODELS / family / "kernels"),
    )
    done = folder / f"compiled-{sha256(repr((versions, loops)).encode()).hexdigest()[:16]}"
    if done.exists():
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            return None
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, family, json.dumps(loops), str(done)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:  # what is not compiled ahead is compiled when it is needed
        return None
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def compile_loops(family: str, loops: Sequence[Loop]) -> None:
    """Compile loops, in a process that imports nothing of their family but what they are in."""
    package = ModuleType(f"factorflow.models.{family}")
    package.__path__ = [str(MODELS / family)]
    sys.modules[package.__name__] = package
    for loop in loops:
        function, types = loop.compiled()
        function.compile(types)


if __name__ == "__main__":
    compile_loops(sys.argv[1], [Loop(*loop) for loop in json.loads(sys.argv[2])])
    Path(sys.argv[3]).touch()
