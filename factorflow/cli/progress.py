"""One progress bar: bound, iteration, time left."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from factorflow.engine.events import Event, IterationDone, OnEvent, RunFinished, RunStarted, StageEntered

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(visible: bool | None = None) -> Iterator[OnEvent]:
    """Give a listener for `factorflow.fit` that draws a bar on stderr.

    Parameters
    ----------
    visible : bool, optional
        By default only on a terminal.
    """
    shown = sys.stderr.isatty() if visible is None else visible
    if not shown:
        yield _ignore
        return
    bar = _Bar()
    try:
        yield bar
    finally:
        bar.close()


class _Bar:
    def __init__(self) -> None:
        self._bar: Any = None

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                from tqdm.auto import tqdm

                if event.dashboard:
                    tqdm.write(f"Dask dashboard: {event.dashboard}", file=sys.stderr)
                done = event.resumed_from or 0
                self.close()
                self._bar = tqdm(
                    total=event.max_iter, initial=done, unit="it", dynamic_ncols=True, file=sys.stderr
                )
            case StageEntered():
                self._bar.set_description(event.stage)
            case IterationDone():
                gain = "" if event.gain is None else f", gain {event.gain:.1e}"
                self._bar.set_postfix_str(f"bound {event.objective:.6g}{gain}", refresh=False)
                self._bar.update(event.iteration - self._bar.n)
            case RunFinished():
                self._bar.set_description(event.reason)
            case _:
                pass

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _ignore(event: Event) -> None:
    """Watch nothing."""
