"""The globals of a fitted model, as a projection takes them: one set, or some draws of each chain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from factorflow.core.trees import nbytes
from factorflow.models.contract import Model, Stage
from factorflow.posterior.globals import StoredGlobals

HELD_BYTES = 64 << 20
"""Of a set of globals that is held until another is asked for. Each task of each iteration asks, and reading
costs a small set far more than its bytes; of a large one it is a small part, and memory is dear."""


@dataclass(frozen=True)
class FixedGlobals:
    """Globals that a run takes as they are.

    Parameters
    ----------
    draws : tuple of int
        Which of the stored sets are taken, one after the other: of each chain the same ones.
    """

    stored: StoredGlobals
    draws: tuple[int, ...]
    iterations: int
    _held: dict[int, tuple[int, Any]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return FixedGlobals, (
            self.stored,
            self.draws,
            self.iterations,
        )  # what is held is read again elsewhere

    def stage(self, model: Model[Any, Any]) -> Stage[Any]:
        """Return the stage of the run: for a sampler every set ends in a draw."""
        return Stage(
            "projection",
            model.projection(),
            self.iterations * len(self.draws),
            keep=any(stage.keep for stage in model.stages()),
            thin=self.iterations,
        )

    def globals_(self, chain: int, iteration: int) -> Any:
        """Return the globals of one chain in an iteration."""
        draw = self.draws[min(iteration // self.iterations, len(self.draws) - 1)]
        number, cached = self._held.get(chain, (None, None))
        if number != draw:
            cached = self.stored.read(chain, draw)
            if nbytes(cached) <= HELD_BYTES:
                self._held[chain] = draw, cached
        return cached
