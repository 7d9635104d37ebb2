"""A compiler of functions that only compiled ones call: without machine code of their own.

Numba optimises such a function and makes machine code of it, and again of it in each function that calls it,
up to the loop that Python calls: only the last is run. Here a function is typed, simplified and linked; the
loop that Python calls is optimised, once. Importing this module imports numba.
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

    def _optimize_final_module(self) -> None:
        """Simplify, as Numba does before it optimises."""
        passes, builder = self._codegen._module_pass_manager(
            loop_vectorize=False, slp_vectorize=False, opt=0, cost="cheap"
        )
        passes.run(self._final_module, builder)

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class _OptimisedLibrary(_LinkedLibrary):
    """Code whose loops are vectors before it is linked."""

    def _optimize_final_module(self) -> None:
        JITCodeLibrary._optimize_final_module(self)


class LinkedCompiler(Compiler):
    """Numba's compiler, for ``pipeline_class`` of `numba.njit`, without machine code."""

    library: type[_LinkedLibrary] = _LinkedLibrary

    def define_pipelines(self) -> Any:
        """Return Numba's passes; what they write goes to a library for linking only."""
        state = self.state
        state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().define_pipelines()


class OptimisedCompiler(LinkedCompiler):
    """The same for functions whose loops become vectors only where they stand alone."""

    library = _OptimisedLibrary
