"""Progress of a run: a bar in a terminal or notebook, elsewhere one line per minute.

A line comes also while nothing iterates (`Silence`): data are read, workers are waited for.

The lines are messages of the logger ``factorflow`` (level INFO): who configures `logging` decides where they
go; without any handler they go to stderr.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import copy_context
from typing import Any

from factorflow.engine.events import (
    CheckpointWritten,
    Event,
    GroupsChanged,
    IterationDone,
    OnEvent,
    RunFinished,
    RunStarted,
    StageEntered,
)
from factorflow.errors import thread_limit_errors

LOGGER = logging.getLogger("factorflow")

LINE_SECONDS = 60.0
"""Seconds from one line to the next where there is no bar."""

CLOCK_SECONDS = 1.0
"""Seconds from one look at the clock of a bar to the next."""

FIRST_PASS = "compiling kernels"
"""Note beside the progress until the first pass over the data is done."""

ONE_GROUP = "Iterations are short: one worker takes all blocks."
SEVERAL_GROUPS = "All workers share the blocks again: one alone takes longer."
"""What is said where the blocks are cut otherwise (`GroupsChanged`)."""

BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}, at most {remaining} left{postfix}]"

WORDS = {
    "moments": "reading the data",
    "components": "counting factors",
    "warm-up": "finding factors",
    "dense": "finding factors",
    "sparse": "refining",
    "starts": "trying starts",
    "pruned": "refining",
    "closing": "summing up",
}
"""Descriptions of stages by name; others are called by their name."""


def stage_words(name: str) -> str:
    """Return what a stage does in words: ``warm-up 2`` is "finding factors (start 2)"."""
    match = re.fullmatch(r"(best )?(.+?)(?: (\d+))?", name)
    if match is None or match[2] not in WORDS:
        return name
    start = " (best start)" if match[1] else f" (start {match[3]})" if match[3] else ""
    return f"{WORDS[match[2]]}{start}"


@contextmanager
def watching(progress: bool | None, on_event: OnEvent | None, doing: str = "preparing") -> Iterator[OnEvent]:
    """Yield the event listener of a run: the user's callback and the progress display.

    Parameters
    ----------
    progress : bool, optional
        Whether anything is shown; by default where the user listens to nothing.
    """
    show_progress = on_event is None if progress is None else progress
    if not show_progress:
        yield on_event or _ignore
        return
    with progress_bar(doing=doing) as bar:

        def both(event: Event) -> None:
            bar(event)
            if on_event is not None:
                on_event(event)

        yield both


@contextmanager
def progress_bar(bar: bool | None = None, doing: str = "preparing") -> Iterator[OnEvent]:
    """Give a listener for `factorflow.fit` that shows how far a run is.

    Parameters
    ----------
    bar : bool, optional
        Whether it is a bar on stderr, or lines; by default a bar in a terminal and in a notebook.
    """
    if not (_is_terminal() or _is_notebook() if bar is None else bar):
        lines = _Lines()
        with closing(Silence(say)) as silence:

            def listen(event: Event) -> None:
                silence(event)
                lines(event)

            yield listen
        return
    progress = _Bar(doing)
    try:
        yield progress
    finally:
        progress.close()


@contextmanager
def clock(doing: str) -> Iterator[None]:
    """Show in a terminal or notebook what is done and for how long, where nothing tells how far it is."""
    if not (_is_terminal() or _is_notebook()):
        yield
        return
    with closing(_Bar(doing)):
        yield


def _is_terminal() -> bool:
    """Whether stderr is a terminal: services have none, and some libraries put an object in its place."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # None or another object; closed
        return False


def _is_notebook() -> bool:
    """Whether this runs in the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


def say(message: str) -> None:
    """Log a line; print it to stderr if logging is not configured."""
    if LOGGER.hasHandlers():
        LOGGER.info("%s", message)
    elif sys.stderr is not None:
        tqdm = _tqdm()
        with suppress(OSError, ValueError):  # its reader is gone, or it is closed: no reason to end a run
            tqdm.write(f"{time.strftime('%H:%M:%S')} factorflow: {message}", file=sys.stderr)  # above a bar


def _tqdm() -> Any:
    """Return the bar of a terminal or notebook; of one without ipywidgets it is text, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm
    return tqdm


class _Bar:
    """A bar that is there from the first second, its clock running while nothing iterates."""

    def __init__(self, doing: str) -> None:
        self._bar: Any = None
        self._lost = False
        self._passed = False
        self._ended = threading.Event()
        self._attempt(lambda: self._wait(doing))
        self._clock = threading.Thread(target=self._tick, name="factorflow-clock", daemon=True)
        with thread_limit_errors():
            self._clock.start()

    def __call__(self, event: Event) -> None:
        if not self._lost:
            self._attempt(lambda: self._draw(event))

    def close(self) -> None:
        self._ended.set()
        self._clock.join()
        if self._bar is not None and not self._lost:
            self._attempt(self._bar.close)

    def _tick(self) -> None:
        while not self._ended.wait(CLOCK_SECONDS):
            bar = self._bar
            if bar is not None and not self._lost:
                self._attempt(bar.refresh)

    def _attempt(self, draw: Callable[[], None]) -> None:
        """Draw, and never again once the terminal is gone: that is no reason to end a run."""
        try:
            draw()
        except (OSError, ValueError):
            self._lost = True
            if self._bar is not None:
                self._bar.disable = True

    def _wait(self, doing: str) -> None:
        self._bar = _tqdm()(desc=doing, bar_format="{desc} [{elapsed}]", leave=False, file=sys.stderr)

    def _draw(self, event: Event) -> None:
        match event:
            case RunStarted():
                tqdm = _tqdm()
                if event.dashboard:
                    tqdm.write(f"Dask dashboard: {event.dashboard}", file=sys.stderr)
                done = event.resumed_from or 0
                self._bar.close()
                self._passed = False
                self._bar = tqdm(
                    total=event.max_iter,
                    initial=done,
                    desc=FIRST_PASS,
                    bar_format=BAR,
                    dynamic_ncols=True,
                    file=sys.stderr,
                )
            case StageEntered():
                words = stage_words(event.stage)
                self._bar.set_description(words if self._passed else f"{words}, {FIRST_PASS}")
                self._passed = True
            case IterationDone():
                self._bar.set_description(stage_words(event.stage), refresh=False)
                self._bar.set_postfix_str(_format_bound(event), refresh=False)
                self._bar.update(event.iteration - self._bar.n)
            case GroupsChanged():
                _tqdm().write(ONE_GROUP if event.n_groups == 1 else SEVERAL_GROUPS, file=sys.stderr)
            case RunFinished():
                if event.reason == "converged":  # notebooks colour a bar that ends early as a failure
                    self._bar.total = self._bar.n
                self._bar.set_description(event.reason)
            case _:
                pass


class Silence:
    """Says once a minute how long nothing was heard of a run, in a thread of its own.

    Parameters
    ----------
    say : callable
        Shows a line; called in the context (`contextvars`) of whoever made this.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._heard, self._last, self._running = time.monotonic(), "the run was asked for", True
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._watch,), name="factorflow-silence", daemon=True
        )
        with thread_limit_errors():
            self._thread.start()

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        match event:
            case RunStarted():
                self._running, self._last = True, "the run began"
            case StageEntered():
                self._last = f"it began {stage_words(event.stage)}"
            case IterationDone():
                self._last = f"iteration {event.iteration}, {stage_words(event.stage)}"
            case CheckpointWritten():
                self._last = f"the checkpoint after iteration {event.iteration}"
            case RunFinished():
                self._running = False
        self._heard = time.monotonic()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        last_heard = self._heard
        while not self._ended.wait(max(last_heard, self._heard) + LINE_SECONDS - time.monotonic()):
            now = time.monotonic()
            if now - max(last_heard, self._heard) < LINE_SECONDS:  # something was heard meanwhile
                continue
            last_heard = now
            if self._running:
                self._say(f"{_minutes(now - self._heard)} since {self._last}")


class _Lines:
    def __init__(self) -> None:
        self._max_iter = 0
        self._first: tuple[float, int] | None = None
        self._said = 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._max_iter, self._first = event.max_iter, None
                if event.dashboard:
                    say(f"Dask dashboard: {event.dashboard}")
            case IterationDone():
                if self._first is None:
                    self._first, self._said = (event.seconds, event.iteration), event.seconds
                if event.seconds - self._said >= LINE_SECONDS:
                    self._said = event.seconds
                    say(self._line(event))
            case GroupsChanged():
                say(ONE_GROUP if event.n_groups == 1 else SEVERAL_GROUPS)
            case RunFinished():
                if event.seconds >= LINE_SECONDS:
                    what = f"{event.reason} after {event.iterations} iterations"
                    say(f"{what}, {_minutes(event.seconds)}")
            case _:
                pass

    def _line(self, event: IterationDone) -> str:
        bound = _format_bound(event)
        done = f"{event.stage}: iteration {event.iteration} of at most {self._max_iter}"
        done += f", {bound}" if bound else ""
        seconds, iteration = self._first or (0.0, 0)
        each = (event.seconds - seconds) / max(1, event.iteration - iteration)
        left = _minutes(each * (self._max_iter - event.iteration))
        return f"{done}, {_minutes(event.seconds)}, at most {left} left"


def _format_bound(event: IterationDone) -> str:
    if math.isnan(event.objective):  # of a projection
        return ""
    gain = "" if event.gain is None else f", gain {event.gain:.1e}"
    return f"bound {event.objective:.6g}{gain}"


def _minutes(seconds: float) -> str:
    """Return a duration in words."""
    if seconds < 5400:
        return f"{seconds / 60:.1f} minutes"
    return f"{seconds / 3600:.1f} hours"


def _ignore(event: Event) -> None:
    """Watch nothing."""
