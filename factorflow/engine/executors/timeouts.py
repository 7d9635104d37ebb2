"""A Dask client whose scheduler may be frozen or gone: calls with timeouts, its end, its address."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

from factorflow.errors import RunError

if TYPE_CHECKING:
    from distributed import Client

ANSWER_SECONDS = 60.0
"""A scheduler and its workers that are there answer a call in less."""

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a call, or raise after a timeout; the call continues in a thread."""
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


def workers_of(client: Client) -> dict[str, dict[str, Any]]:
    """Return the scheduler's record of each worker, by address.

    Asked of the scheduler: what `Client.scheduler_info` returns may be the client's regular look at it, which
    comes in between and has no workers. OSError: it does not answer, or the client is closed.
    """
    if client.scheduler is None:
        raise OSError("the client is closed")
    identity: dict[str, Any] = client.sync(client.scheduler.identity, n_workers=-1)
    return dict(identity["workers"])


def scheduler_lost_error(address: str, what: str) -> RunError:
    """Return the error of a run whose scheduler is gone, or silent."""
    remedy = "Start a scheduler and workers anew, at that address or another"
    return RunError(f"the Dask scheduler at {address} {what}. {remedy}")


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, asyncio.CancelledError)


def close_client(client: Client) -> None:
    """Close a client, without waiting for a scheduler that does not answer."""
    if client.status != "running":  # it tries to reconnect, and would log the end of that with a traceback
        logging.getLogger("distributed.client").addFilter(_is_no_cancellation)
    with suppress(OSError, TimeoutError):
        client.close()


def dashboard_of(client: Client) -> str | None:
    """Return the address of the dashboard; None where there is none, or its template has unknown names."""
    with suppress(KeyError, IndexError, ValueError, AttributeError):  # of str.format with `dashboard.link`
        return cast("str | None", client.dashboard_link)
    return None
