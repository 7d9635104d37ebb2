"""Compile plain scalar functions for the CPU or for CUDA, from one source.

Scalar functions (`factorflow.kernels.scalar`, and ``kernels/`` of a family) are ordinary Python. Numba
compiles a function, not what it calls; `compile_scalar` therefore copies a function so that its names
stand for compiled copies of the functions it calls, and compiles the copy. Nothing is compiled (and
Numba is not imported) before the first call.

Machine code is cached on disk, in ``NUMBA_CACHE_DIR`` where it is set; where no folder can be written it is
compiled in every process. Numba's cache looks at a function's
own file only, so the stamp here covers every file of the shared kernels and of the family's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Literal, TypeVar

import numpy as np

from factorflow.core.garbage import rare_collection

Target = Literal["cpu", "cuda"]
F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V")

INNER: Mapping[str, Any] = {
    "forceinline": True,
    "cache": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
"""Options of a function that only compiled ones call: no entry from Python, no file in the cache, no copy.

Left to itself the compiler may keep it as a function. A process that compiles then calls what was compiled
alone, one that reads its caller from the cache the copy beside it, which was optimised once more: the last
bits of their sums differ.
"""


NO_PLACE = (
    "no folder that can be written for compiled code: it is compiled in every process, which takes long"
)
"""Warning where nothing can be cached."""


@cache
def _watch_compilations() -> None:
    """From now on collect garbage less often while Numba compiles; free the lock of a loop where it fails."""
    from numba.core.event import Listener, register

    class Compilation(Listener):
        def on_start(self, event: Any) -> None:
            rare_collection.__enter__()

        def on_end(self, event: Any) -> None:
            rare_collection.__exit__()
            dispatcher = event.data["dispatcher"]
            if tuple(event.data["args"]) not in dispatcher.overloads:  # `is_failed` of an event is never true
                getattr(dispatcher._cache, "unlock", int)()

    register("numba:compile", Compilation())


def jit(function: Callable[..., Any], **chosen: Any) -> Callable[..., Any]:
    """Compile with `numba.njit`, cached on disk if possible."""
    from numba import njit

    _watch_compilations()
    alone = chosen.pop("vectors_first", False)
    if INNER.items() <= chosen.items():
        from factorflow.kernels.linked import LinkedCompiler, OptimisedCompiler

        compiler = OptimisedCompiler if alone else LinkedCompiler
        return njit(pipeline_class=compiler, **chosen)(function)  # type: ignore[no-any-return]
    cached = chosen.pop("cache", False)
    compiled: Any = njit(**chosen)(function)
    if cached:
        from factorflow.kernels.shared_cache import SharedCache

        try:
            compiled._cache = SharedCache(function, stamp(function.__module__))
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            _log_compilation()
    return compiled  # type: ignore[no-any-return]


@cache
def _log_compilation() -> None:
    import logging

    remedy = "Set NUMBA_CACHE_DIR to a folder that can be written."
    logging.getLogger("factorflow").warning("There is %s. %s", NO_PLACE, remedy)


def options(**choices: Any) -> Callable[[F], F]:
    """Decorate a scalar function with options of `numba.njit` (``forceinline``, ``fastmath``), CPU only.

    ``vectors_first`` asks for a function to be optimised before it comes into its callers, for loops that
    become vectors only there.
    ``stand_in`` is a function that was compiled for the CPU otherwise, and takes the place of this one there.
    """

    def mark(function: F) -> F:
        function.__dict__["compile_options"] = choices
        return function

    return mark


def stamp(module: str) -> tuple[float, int]:
    """Return a stand-in for (modification time, size): a digest of all sources that a kernel may come from.

    Those are the shared kernels and, for a module of a family, the files beside it.
    """
    return digest_of_kernels(Path(str(sys.modules[module].__file__)).parent)


@cache
def digest_of_kernels(folder: Path) -> tuple[float, int]:
    """Return the digest for the modules of a folder."""
    digest = sha256()
    for path in sorted({*Path(__file__).parent.rglob("*.py"), *folder.glob("*.py")}):
        digest.update(path.read_bytes())
    return float(int(digest.hexdigest()[:12], 16)), 0


def _names(code: CodeType) -> set[str]:
    nested = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*nested)


def twin(function: Callable[..., Any], stand_in: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a copy of a function in which ``stand_in`` of each global it names stands in its place."""
    assert isinstance(function, FunctionType)
    namespace = dict(function.__globals__)
    for name in _names(function.__code__) & namespace.keys():
        namespace[name] = stand_in(namespace[name])
    return FunctionType(function.__code__, namespace, function.__name__, function.__defaults__)


def is_scalar(value: Any) -> bool:
    """Return whether a value is a plain function of a module in a package called ``kernels``."""
    return isinstance(value, FunctionType) and "kernels" in value.__module__.split(".")[:-1]


def _zero(*arguments):  # type: ignore[no-untyped-def]
    """Stand for a function that is not called."""
    return 0.0


def read_only_view(value: V) -> V:
    """Return an array as a view that cannot be written: loops are compiled anew for those that can."""
    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.flags.writeable = False
    return view


@cache
def compile_scalar(
    function: Callable[..., Any],
    target: Target = "cpu",
    *,
    inner: bool = False,
    omit: frozenset[Callable[..., Any]] = frozenset(),
) -> Callable[..., Any]:
    """Return a scalar function compiled for a target, together with all it calls.

    Parameters
    ----------
    function : callable
        A plain function of a module in a package called ``kernels``.
    target : {"cpu", "cuda"}
        "cpu": `numba.njit` that releases the interpreter lock; "cuda": a device function.
    omit : frozenset of callables
        Functions named in branches that the caller's arguments never take: they are not compiled, and 0.0
        stands in their place.
    """
    marked = function.__dict__.get("compile_options", {})
    if target == "cpu" and "stand_in" in marked:
        return marked["stand_in"]  # type: ignore[no-any-return]

    def stand_in(value: Any) -> Any:
        if not is_scalar(value):
            return value
        return compile_scalar(_zero if value in omit else value, target, inner=True, omit=omit)

    copy = twin(function, stand_in)
    if omit and not inner:  # the cache tells functions apart by their name and code
        copy.__qualname__ = "_".join([copy.__name__, "without", *sorted(f.__name__ for f in omit)])
    if target == "cuda":
        from numba import cuda

        return cuda.jit(device=True)(copy)  # type: ignore[no-any-return]
    chosen = {"cache": True, "fastmath": {"contract"}, **marked}
    if inner:
        chosen |= INNER
    return jit(copy, nogil=True, error_model="numpy", **chosen)
