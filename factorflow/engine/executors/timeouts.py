"""Scheduler calls with timeouts: most calls of a Dask client wait forever for a frozen machine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from factorflow.errors import RunError

if TYPE_CHECKING:
    from distributed import Client

ANSWER_SECONDS = 60.0
"""A scheduler and its workers that are there answer a call in less."""

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a call, or raise after a timeout; the call continues in a thread.

    Raises
    ------
    TimeoutError
        If it does not return in time.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="factorflow-scheduler-call", daemon=True).start()
    return answer.result(timeout=seconds)


def address_of(client: Client) -> str:
    """Return the address of a client's scheduler."""
    return str(client.scheduler.address) if client.scheduler is not None else repr(client)


def scheduler_lost_error(address: str, what: str) -> RunError:
    """Return the error of a run whose scheduler is gone, or silent."""
    remedy = "Start a scheduler and workers anew, at that address or another"
    return RunError(f"the Dask scheduler at {address} {what}. {remedy}")
