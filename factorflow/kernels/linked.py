"""A compiler of functions that only compiled ones call: without machine code of their own.

Numba makes machine code of such a function, and again of it in each function that calls it, up to the loop
that Python calls: only the last is run. Here a function is typed and optimised, so that its loops are vectors
before they come into their callers, and then linked: half the time for a loop whose calls are nested, and the
same bits. Importing this module imports numba.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class _LinkedLibrary(JITCodeLibrary):
    """Code of a function for linking only; none of it has an address."""

    @property
    def codegen(self) -> _LinkedLibrary:
        """Return what places the environment of a function, here this library."""
        return self

    def set_env(self, env_name: str, env: Any) -> None:
        """Do nothing: only messages of Python objects need an environment."""

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0: there is no machine code."""
        return 0

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class LinkedCompiler(Compiler):
    """Numba's compiler, for ``pipeline_class`` of `numba.njit`, without machine code."""

    def define_pipelines(self) -> Any:
        """Return Numba's passes; what they write goes to a library for linking only."""
        state = self.state
        state.library = _LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().define_pipelines()
