"""Draws of the globals: written by workers as they come, a fixed number at a time."""

from __future__ import annotations

from collections.abc import Sequence

from factorflow.engine.executors.local import Executor, Handle
from factorflow.engine.plan import Plan, State
from factorflow.posterior.globals import sets_after, sets_every, write_globals
from factorflow.posterior.store import write_draws


class DrawStore:
    """Collects the states that are draws and has them written in whole chunks.

    Parameters
    ----------
    chunk : int
        Draws in a chunk: one writer at a time ever touches it.
    """

    def __init__(self, path: str, chunk: int) -> None:
        self.path, self.chunk = path, chunk
        self._waiting: list[tuple[int, Handle]] = []
        self._writing: list[Handle] = []

    def add(self, executor: Executor, plan: Handle, state: Handle, number: int) -> None:
        """Add a draw; a completed chunk is written in the background."""
        self._waiting.append((number, state))
        if (number + 1) % self.chunk == 0:
            self._write(executor, plan)

    def flush(self, executor: Executor, plan: Handle) -> None:
        """Write the remaining draws and wait until all are on disk."""
        self._write(executor, plan)
        executor.result(self._writing)
        self._writing = []

    def forget(self) -> None:
        """Drop unwritten draws: the run returns to an earlier state and repeats them."""
        self._waiting, self._writing = [], []

    def _write(self, executor: Executor, plan: Handle) -> None:
        if not self._waiting:
            return
        executor.result(self._writing)  # the chunk before this may be the same one, begun before a checkpoint
        first = self._waiting[0][0]
        states = [state for _, state in self._waiting]
        self._writing = [
            executor.submit("write_draws", write_states, plan, self.path, first, states, group=0)
        ]
        self._waiting = []


def write_states(plan: Plan, path: str, first: int, states: Sequence[State]) -> int:
    """Write consecutive draws of every chain; doing it again writes the same bytes."""
    import numpy as np

    variables = [v for v in plan.model.table if not v.rows]
    every = sets_every(plan.n_draws, plan.n_chains)
    stored = [i for i in range(len(states)) if (first + i) % every == 0] if plan.fixed is None else []
    chains = range(plan.n_chains)
    if stored:
        sets = [[states[i].globals_[chain] for i in stored] for chain in chains]
        n_sets = sets_after(plan.n_draws, plan.n_draws, plan.n_chains)
        write_globals(path, (first + stored[0]) // every, n_sets, sets)
    draws = [[plan.model.record(state.globals_[chain]) for state in states] for chain in chains]
    for variable in variables:
        values = np.stack([np.stack([draw[variable.name] for draw in chain]) for chain in draws])
        write_draws(path, variable, first, values)
    return len(states)


def draw_chunk(globals_bytes: int) -> int:
    """Return the draws in a chunk: as many as make 32 MB, at most 64.

    A power of two, as the draws in a file are, so that either holds the other whole.
    """
    most = max(1, min(64, (32 << 20) // max(1, globals_bytes)))
    return 1 << (most.bit_length() - 1)
