"""The globals of a fitted model, as a projection takes them: one set, or some draws of each chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from factorflow.models.contract import Model, Stage
from factorflow.posterior.globals import StoredGlobals

__all__ = ["Fixed"]


@dataclass(frozen=True)
class Fixed:
    """Globals that a run takes as they are.

    Parameters
    ----------
    stored : StoredGlobals
        Where they are.
    draws : tuple of int
        Which of the stored sets are taken, one after the other: of each chain the same ones.
    iterations : int
        Iterations for each of them, at most.
    """

    stored: StoredGlobals
    draws: tuple[int, ...]
    iterations: int

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
        return self.stored.read(chain, self.draws[min(iteration // self.iterations, len(self.draws) - 1)])
