"""The table of variables of a model, and what follows from it: results, draws, sums over samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np

from factorflow.core.block import Array, Block
from factorflow.kernels.random import Step

G = TypeVar("G")
L = TypeVar("L")

AVERAGES = "averages"
"""Group of a sampler's posterior for what has chains and no draws: means over the draws of a chain, or its
last draw. ArviZ takes every variable of the group ``posterior`` for draws."""


@dataclass(frozen=True)
class Variable:
    """One row of a model's table of variables: it names, computes and documents a posterior array.

    Parameters
    ----------
    name : str
        Name in the posterior. Shared by all families where the meaning is the same: ``scores``,
        ``scores_variance``, ``loadings_<view>``, ``loadings_variance_<view>``, ``inclusion_<view>``,
        ``intercept_<view>``, ``variance_explained``.
    dims : tuple of str
        From ``obs``, ``factor``, ``view``, ``group``, ``feature_<view>``, and those of `Model.coords`; the
        engine puts ``chain`` in front of every variable of a sampler, and ``draw`` behind it for draws.
    doc : str
        One line of prose, with the symbol in the model's equations.
    value : callable
        Of the globals; with ``rows`` of what `Model.finish` made of a block; with ``draws`` of its local
        state.
    group : str
        Group of the posterior: left out, "variational" or, of a sampler, "posterior" for draws and
        `AVERAGES` for what has none.
    rows : bool
        Whether its leading dimension is ``obs``: computed block by block.
    draws : bool
        With ``rows``: stored at every kept iteration instead of once at the end.
    of_data : bool
        With ``rows``: known of the samples from their data, the same under every draw.
    dtype : str
        Type on disk.
    positive : bool
        Of a mean that has a variance beside it: whether draws of it are of a Gamma, not of a normal.
    sums : callable, optional
        Of a variable without ``rows`` that describes the samples of a fit: (block, its variables with
        ``rows``, globals) to sums over the block, from which a projection describes its own samples.
    of_sums : callable, optional
        (globals, sums over all blocks) to the variable of a projection.
    """

    name: str
    dims: tuple[str, ...]
    doc: str
    value: Callable[[Any], Array]
    group: str = ""
    rows: bool = False
    draws: bool = False
    of_data: bool = False
    dtype: str = "float64"
    positive: bool = False
    sums: Callable[[Block, Mapping[str, Array], Any], Any] | None = None
    of_sums: Callable[[Any, Any], Array] | None = None


class VariableTable(Generic[G, L]):
    """The part of a model that evaluates its table of variables."""

    kind: ClassVar[Literal["variational", "monte carlo"]]

    def variables(self) -> tuple[Variable, ...]:
        """Return the table of variables.

        Returns
        -------
        tuple of Variable
        """
        raise NotImplementedError

    def finish(self, block: Block, local: L | None, globals_: Any, step: Step) -> Any:
        """Return the input of the sample-sized variables, at the end of a run.

        Parameters
        ----------
        block : Block
            The rows (B of them).
        local : L or None
            Local state of the block.
        globals_ : object
            What `prepare` made of the globals.
        step : Step
            Source of noise.

        Returns
        -------
        object
            The argument of ``Variable.value`` for variables with ``rows``; by default the local state.
        """
        return local

    @property
    def table(self) -> tuple[Variable, ...]:
        """The table of variables, each with the group of the posterior that it is in."""
        main = "posterior" if self.kind == "monte carlo" else "variational"
        averaged = AVERAGES if self.kind == "monte carlo" else main
        groups = ((v, averaged if v.rows and not v.draws else main) for v in self.variables())
        return tuple(replace(v, group=v.group or place) for v, place in groups)

    def lead(self, variable: Variable) -> tuple[str, ...]:
        """Return the dimensions in front of a variable: none, or ``chain``, or ``chain`` and ``draw``.

        Parameters
        ----------
        variable : Variable
            A row of the table.

        Returns
        -------
        tuple of str
        """
        if self.kind != "monte carlo":
            return ()
        return ("chain",) if variable.rows and not variable.draws else ("chain", "draw")

    def record(self, globals_: G) -> dict[str, Array]:
        """Return the variables of the globals: the result, or one draw.

        Parameters
        ----------
        globals_ : G
            The globals, whole.

        Returns
        -------
        dict of str to array
            By variable without ``rows``.
        """
        return {v.name: _cast_variable(v, globals_) for v in self.variables() if not v.rows}

    def sums(self, block: Block, rows: Mapping[str, Array], globals_: G) -> tuple[Any, ...]:
        """Return what the variables that describe samples add up over a block of new ones.

        Parameters
        ----------
        block : Block
            The rows.
        rows : mapping of str to array
            The block's variables with ``rows``.
        globals_ : G
            The globals, whole.

        Returns
        -------
        tuple
            An entry for each function ``Variable.sums``; empty where there is none.
        """
        return tuple(sums(block, rows, globals_) for sums in _summations(self.variables()))

    def describe(self, globals_: G, sums: tuple[Any, ...]) -> dict[str, Array]:
        """Return the variables that describe new samples, from their sums over all blocks.

        Parameters
        ----------
        globals_ : G
            The globals, whole.
        sums : tuple
            What `sums` returns, added up over all blocks.

        Returns
        -------
        dict of str to array
            By variable.
        """
        table = self.variables()
        sums_by_variable = dict(zip(_summations(table), sums, strict=True))
        return {
            v.name: np.asarray(v.of_sums(globals_, sums_by_variable[v.sums]), dtype=v.dtype)
            for v in table
            if v.sums is not None and v.of_sums is not None
        }

    def rows(self, block: Block, local: L | None, globals_: Any, step: Step) -> dict[str, Array]:
        """Return the variables of the rows of a block, at the end of a run.

        Parameters
        ----------
        block : Block
            The rows (B of them).
        local : L or None
            Local state of the block.
        globals_ : object
            What `prepare` made of the globals.
        step : Step
            Source of noise.

        Returns
        -------
        dict of str to (B, ...) array
            By variable with ``rows`` and without ``draws``.
        """
        values = self.finish(block, local, globals_, step)
        return {v.name: _cast_variable(v, values) for v in self.variables() if v.rows and not v.draws}

    def draw(self, local: L | None) -> dict[str, Array]:
        """Return the draws of the rows of a block at a kept iteration.

        Parameters
        ----------
        local : L or None
            Local state of the block.

        Returns
        -------
        dict of str to (B, ...) array
            By variable with ``draws``.
        """
        return {v.name: _cast_variable(v, local) for v in self.variables() if v.draws}


def _summations(table: Sequence[Variable]) -> tuple[Any, ...]:
    """Return the ways in which variables add up what describes samples, each once: some share one."""
    return tuple(dict.fromkeys(v.sums for v in table if v.sums is not None))


def _cast_variable(variable: Variable, value: Any) -> Array:
    """Cast a variable to its stored type, so that predictions agree before and after storage."""
    return np.asarray(variable.value(value), dtype=variable.dtype)
