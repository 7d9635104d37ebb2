"""Rounds that were submitted, and for how long more are."""

from __future__ import annotations

from dataclasses import dataclass

from factorflow.engine.executors.local import Handle
from factorflow.engine.plan import Record


@dataclass(frozen=True)
class Budget:
    """When to stop and when to write.

    Parameters
    ----------
    max_minutes : float or None
        Wall-clock time; the iteration in hand is completed.
    """

    max_minutes: float | None = None
    checkpoint_every: int = 50
    checkpoint_minutes: float = 10.0


@dataclass(eq=False)
class Round:
    """A round that was submitted, and is not yet read.

    Parameters
    ----------
    submission : int
        Number of the submission: rounds that share it are read together.
    state : Handle, or None
        The state after it, which draws are taken from; of a run without any it is not held back.
    records : Handle
        Of all rounds of the submission, a tuple: fewer where the run ends before.
    result : (Record or None, float), or None
        What the record says, and when it was done; None until it was asked for.
    """

    submission: int
    state: Handle
    records: Handle
    result: tuple[Record | None, float] | None = None
