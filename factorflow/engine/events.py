"""Events of a run: typed records, handed to ``on_event`` in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RunStarted:
    """A run begins (or goes on).

    Parameters
    ----------
    run : str
        Identifier, part of the names of its tasks.
    n_rows, n_blocks, n_groups : int
        Samples, blocks, and runs of blocks (one a worker).
    resumed_from : int or None
        Counted iterations already done when a checkpoint is resumed.
    """

    run: str
    n_rows: int
    n_blocks: int
    n_groups: int
    dashboard: str | None
    stages: tuple[str, ...]
    max_iter: int
    resumed_from: int | None = None


@dataclass(frozen=True)
class StageEntered:
    """A stage begins."""

    stage: str
    seconds: float


@dataclass(frozen=True)
class IterationDone:
    """One iteration of a counted stage is complete.

    Parameters
    ----------
    objective : float
        The bound in nats (mean over chains of the log joint density for samplers).
    gain : float or None
        Increase of the bound per observed entry (nats) since the last iteration of the stage.
    seconds : float
        Wall-clock time since the run started.
    info : mapping of str to tuple of float
        Everything else the model reports, one number per chain.
    """

    stage: str
    iteration: int
    objective: float
    gain: float | None
    seconds: float
    info: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointWritten:
    """The state is safe on disk: a run killed from now on resumes here.

    Parameters
    ----------
    seconds : float
        Wall-clock time since the run started.
    resume : str or None
        The command that goes on from it; None where the posterior is kept in memory.
    """

    path: str
    iteration: int
    seconds: float
    resume: str | None = None


@dataclass(frozen=True)
class GroupsChanged:
    """The blocks are cut into another number of groups: into one where several take longer, or back."""

    n_groups: int
    seconds: float


@dataclass(frozen=True)
class RunFinished:
    """The run ended; ``reason`` is "converged", "max_iter", "max_minutes" or "interrupted"."""

    reason: str
    iterations: int
    seconds: float
    path: str | None


Event = RunStarted | StageEntered | IterationDone | CheckpointWritten | GroupsChanged | RunFinished
OnEvent = Callable[[Event], None]
