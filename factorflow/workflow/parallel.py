"""Concurrent runs in threads of this process, on the workers of one cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from factorflow.engine.events import OnEvent

T = TypeVar("T")
R = TypeVar("R")


class Stop:
    """Stops the runs of other threads: interrupts reach only the main thread."""

    def __init__(self) -> None:
        self._requested = Event()

    def request(self) -> None:
        """End the runs after the iterations in hand."""
        self._requested.set()

    def listener(self, on_event: OnEvent | None = None) -> OnEvent:
        """Return the listener of a run that is to end when it is asked for."""

        def listen(event: Any) -> None:
            if on_event is not None:
                on_event(event)
            self.check()

        return listen

    def check(self) -> None:
        """Raise KeyboardInterrupt if the runs are to end."""
        if self._requested.is_set():
            raise KeyboardInterrupt


def run_in_parallel(run: Callable[[T, OnEvent], R], items: Sequence[T], parallel: int) -> list[R]:
    """Return the results of runs in the order of items; a failure or interruption stops all.

    Parameters
    ----------
    run : callable
        (item, listener of the run).
    """
    stop = Stop()

    def run_one(item: T) -> R:
        stop.check()  # one that had its turn after another failed does not begin
        try:
            return run(item, stop.listener())
        except BaseException:
            stop.request()
            raise

    with ThreadPoolExecutor(parallel, thread_name_prefix="factorflow-run") as pool:
        futures = [pool.submit(run_one, item) for item in items]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            failed = [future for future in futures if future.done() and future.exception() is not None]
            failed.sort(key=lambda future: isinstance(future.exception(), KeyboardInterrupt))  # stopped by it
            return [future.result() for future in failed or futures]
        except BaseException:
            stop.request()
            for future in futures:
                future.cancel()
            raise
