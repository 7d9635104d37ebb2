"""What a run shows in Prefect: progress, bound, factors, links."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.artifacts import (
    create_image_artifact,
    create_link_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from factorflow.engine.events import CheckpointWritten, Event, IterationDone, RunFinished, RunStarted
from factorflow.errors import counted

if TYPE_CHECKING:
    from factorflow.surface import Posterior

__all__ = ["RunWatcher", "publish_bound", "publish_factors", "publish_report"]

EVERY_SECONDS = 5.0
"""Between two updates of the progress artifact: one costs about 25 ms."""


class RunWatcher:
    """Listens to a run: prints where to look and keeps a progress artifact up to date."""

    def __init__(self) -> None:
        self._artifact: UUID | None = None
        self._max_iter = 1
        self._shown = 0.0

    def __call__(self, event: Event) -> None:
        """Take note of one event."""
        match event:
            case RunStarted():
                self._start(event)
            case IterationDone():
                self._show(
                    event.iteration, f"{event.stage}: bound {event.objective:.8g}", every=EVERY_SECONDS
                )
            case CheckpointWritten():
                print(f"checkpoint after iteration {event.iteration}")
            case RunFinished():
                ended = f"{event.reason} after {counted(event.iterations, 'iteration')}"
                print(f"{ended}, {event.seconds:.1f} s")
                self._show(self._max_iter, ended)
            case _:
                pass

    def _start(self, event: RunStarted) -> None:
        self._max_iter = max(event.max_iter, 1)
        if event.dashboard is not None:
            print(f"Dask dashboard: {event.dashboard}", flush=True)
            create_link_artifact(event.dashboard, "Dask dashboard", key="dask-dashboard")
        created: Any = create_progress_artifact(0.0, key="progress", description="Iterations")
        self._artifact = created

    def _show(self, iteration: int, text: str, every: float = 0.0) -> None:
        now = time.monotonic()
        if self._artifact is None or now - self._shown < every:
            return
        self._shown = now
        update_progress_artifact(self._artifact, 100.0 * min(1.0, iteration / self._max_iter), text)


def publish_bound(posterior: Posterior) -> None:
    """Publish the curve of the bound."""
    from matplotlib.figure import Figure

    objective = posterior.trace["objective"]
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(objective["iteration"], objective.transpose("iteration", ...))  # one line for each chain
    axes.set_xlabel("iteration")
    axes.set_ylabel("objective (nats)")
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    picture = base64.b64encode(buffer.getvalue()).decode()
    create_image_artifact(
        f"data:image/png;base64,{picture}", key="bound", description="Objective by iteration"
    )


def publish_factors(factors: Sequence[Mapping[str, Any]]) -> None:
    """Publish the table of factors: variance explained by view (percent), and their top features."""
    rows = []
    for factor in factors:
        row = {"factor": factor["factor"]}
        row |= {view: round(100 * share, 2) for view, share in factor.get("variance_explained", {}).items()}
        row |= {f"top of {view}": ", ".join(top) for view, top in factor.get("top_features", {}).items()}
        rows.append(row)
    create_table_artifact(rows, key="factors", description="Variance explained (%) and top features")


def publish_report(path: Path) -> None:
    """Publish a link to the report."""
    create_link_artifact(path.as_uri(), "Report", key="report")
