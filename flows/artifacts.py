"""Artifacts in Prefect: progress, objective, factors, the report.

The keys of artifacts name what they show, the dataset and the run, so that runs of other data, or to other
folders, do not take each other's place.
"""

from __future__ import annotations

import flows.prepare  # noqa: F401  before Prefect

# isort: split
import base64
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from factorflow.core.markdown import code_block, escape
from factorflow.engine.events import CheckpointWritten, Event, IterationDone, RunFinished, RunStarted
from factorflow.engine.progress import Silence
from factorflow.errors import pluralize
from factorflow.storage.location import Location, as_location
from factorflow.storage.remote import RemotePath

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from factorflow.api import Posterior

EVERY_SECONDS = 5.0
"""Between two updates of the progress artifact: one costs about 25 ms."""

WIDTH, COLOURS = 560, 24
"""Pixels and colours of pictures in pages: 5 to 10 KB each. The report has them in full."""


@dataclass(frozen=True)
class Label:
    """The label of artifacts: dataset and run.

    Parameters
    ----------
    dataset : str
        Name of the source.
    run : str
        The folder of the results, and the one it is in.
    """

    dataset: str
    run: str

    @classmethod
    def of(cls, source: str | Path, out: str | Path) -> Label:
        """Return the label of a run of a source to a folder (or posterior)."""
        return cls(
            Path(source).name.partition(".")[0], "/".join(str(as_location(out, "out")).split("/")[-2:])
        )

    def key(self, what: str) -> str:
        """Return the key of an artifact: lower-case letters, digits and dashes, as Prefect wants it."""
        return re.sub(r"[^a-z0-9]+", "-", f"{what}-{self.dataset}-{self.run}".lower()).strip("-")

    def __str__(self) -> str:
        return f"{self.dataset}, {self.run}"

    def as_markdown(self) -> str:
        """Return the label as markdown."""
        return escape(self)


class RunWatcher:
    """Listens to a run: prints where to look and how to go on, and keeps a progress artifact up to date.

    While nothing is heard of the run it says so once a minute.

    Parameters
    ----------
    label : Label
        What the artifacts are named by.
    """

    def __init__(self, label: Label) -> None:
        self._label = label
        self._artifact: UUID | None = None
        self._dashboard: str | None = None
        self._max_iter = 1
        self._shown = 0.0
        self._silence = Silence(print)

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        self._silence(event)
        match event:
            case RunStarted():
                self._start(event)
            case IterationDone():
                self._show(
                    event.iteration, f"{event.stage}: bound {event.objective:.8g}", every=EVERY_SECONDS
                )
            case CheckpointWritten():
                how = f"; to go on from it: {event.resume}" if event.resume else ""
                print(f"checkpoint after iteration {event.iteration}{how}")
            case RunFinished():
                ended = f"{event.reason} after {pluralize(event.iterations, 'iteration')}"
                print(f"{ended}, {event.seconds:.1f} s")
                self._show(self._max_iter, ended)
            case _:
                pass

    def close(self) -> None:
        """Update the link to the dashboard when the run has ended."""
        self._silence.close()
        if self._dashboard is not None:
            self._link(
                "The run is over. The page is gone with it, if the run had a cluster of its own.", "over"
            )
            self._dashboard = None

    def _start(self, event: RunStarted) -> None:
        self._max_iter = max(event.max_iter, 1)
        if event.dashboard is not None:
            print(f"Dask dashboard: {event.dashboard}", flush=True)
            self._dashboard = event.dashboard
            self._link(f"While {self._label.as_markdown()} is running.", "running")
        created: Any = create_progress_artifact(
            0.0, key=self._label.key("progress"), description=f"Iterations: {self._label.as_markdown()}"
        )
        self._artifact = created

    def _link(self, description: str, state: str) -> None:
        assert self._dashboard is not None
        create_link_artifact(
            self._dashboard,
            f"Dask dashboard ({state})",
            key=self._label.key("dask-dashboard"),
            description=description,
        )

    def _show(self, iteration: int, text: str, every: float = 0.0) -> None:
        now = time.monotonic()
        if self._artifact is None or now - self._shown < every:
            return
        self._shown = now
        update_progress_artifact(
            self._artifact,
            100.0 * min(1.0, iteration / self._max_iter),
            f"{self._label.as_markdown()}: {text}",
        )


def publish_objective(posterior: Posterior, label: Label) -> None:
    """Publish the curve of the objective."""
    from factorflow.report import plot_trace

    picture = _picture(_draw_svg(plot_trace, posterior))
    publish_picture(picture, label.key("objective"), f"Objective: {label.as_markdown()}")


def publish_picture(address: str, key: str, description: str) -> None:
    """Publish a picture; on a page of Prefect's for images its whole address would stand beside it."""
    create_markdown_artifact(f"![{description}]({address})", key=key, description=description)


def publish_factors(factors: Sequence[Mapping[str, Any]], label: Label) -> None:
    """Publish the table of factors: variance explained by view (percent), and their top features."""
    rows = []
    for factor in factors:
        row = {"factor": escape(factor["factor"])}
        row |= {
            view: "" if share is None else round(100 * share, 2)  # None: the view was not measured
            for view, share in factor.get("variance_explained", {}).items()
        }
        row |= {
            f"top of {view}": escape(", ".join(top)) for view, top in factor.get("top_features", {}).items()
        }
        rows.append(row)
    description = f"Variance explained (%) and top features: {label.as_markdown()}"
    create_table_artifact(rows, key=label.key("factors"), description=description)


def publish_report(posterior: Posterior, path: Location | None, label: Label) -> None:
    """Publish the results to be read in Prefect: what a posterior prints, and its main figures.

    Prefect's pages cannot open files of a worker, so the report itself is named by its path only.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    path : Path, Remote or None
        Its report, an HTML file, if there is one.
    label : Label
        What the artifact is named by.
    """
    text = [f"# {label.as_markdown()}", code_block(repr(posterior))]
    for title, figure in _figures(posterior):
        text += [f"## {title}", f"![{title}]({_picture(figure)})"]
    if path is not None:
        where = "" if isinstance(path, RemotePath) else " on the disk of the worker"
        text.append(f"The whole report, one HTML file{where}: {escape(path)}")
    description = f"Results: {label.as_markdown()}"
    create_markdown_artifact("\n\n".join(text), key=label.key("report"), description=description)


def _figures(posterior: Posterior) -> list[tuple[str, Figure]]:
    """Return the most informative small figures of a posterior."""
    from factorflow.report import plot_trace, plot_variance_explained

    figures: list[tuple[str, Callable[..., Any]]] = [("Objective", plot_trace)]
    if posterior.has("variance_explained") and posterior.factors:
        figures.insert(0, ("Variance explained", plot_variance_explained))
    return [(title, _draw_svg(plot, posterior)) for title, plot in figures]


def _draw_svg(plot: Callable[..., Any], posterior: Posterior) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    plot(posterior, ax=figure.subplots())
    return figure


def picture_of(path: Location) -> str:
    """Return a PNG file as an address that holds a small copy of it."""
    return _small(BytesIO(path.read_bytes()))


def _picture(figure: Figure) -> str:
    """Return a figure as an address that holds it."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=WIDTH / figure.get_figwidth())
    return _small(buffer)


def _small(png: BytesIO) -> str:
    """Return a picture with few pixels and colours: a page holds it whole, and each version of it is kept."""
    from PIL import Image

    with Image.open(png) as image:
        image.thumbnail((WIDTH, WIDTH))
        buffer = BytesIO()
        image.convert("RGB").quantize(COLOURS).save(buffer, format="png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
