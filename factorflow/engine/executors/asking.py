"""Questions to a scheduler that may never answer: each has an end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from distributed import Client, Security
from distributed.core import rpc

from factorflow.errors import RunError

__all__ = ["ANSWER_SECONDS", "address_of", "check_answers", "lost", "within"]

ANSWER_SECONDS = 60.0
"""A scheduler and its workers that are there answer a question in less."""

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return what a call returns; it goes on in a thread that nobody waits for if that takes too long.

    Most questions of a Dask client wait for ever for a scheduler whose machine is frozen, or cut off.

    Raises
    ------
    TimeoutError
        If it does not return in time.
    """
    answer: Future[T] = Future()

    def ask() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="factorflow-asks", daemon=True).start()
    return answer.result(timeout=seconds)


def check_answers(address: str, security: Security | None, seconds: float) -> None:
    """Ask a scheduler who it is: a client's own timeout is for its connection, not for an answer.

    Raises
    ------
    OSError, TimeoutError, ValueError, TypeError
        If there is none.
    """
    arguments = security.get_connection_args("client") if security is not None else {}

    async def ask() -> None:
        scheduler = rpc(address, connection_args=arguments, timeout=seconds)
        try:
            await asyncio.wait_for(scheduler.identity(n_workers=0), seconds)
        except TimeoutError:
            raise TimeoutError(f"no answer within {seconds:.0f} s") from None
        finally:
            await scheduler.close_rpc()

    within(seconds + 5, lambda: asyncio.run(ask()))  # a notebook has a loop of its own in this thread


def address_of(client: Client) -> str:
    """Return the address of a client's scheduler."""
    return str(client.scheduler.address) if client.scheduler is not None else repr(client)


def lost(address: str, what: str) -> RunError:
    """Return the error of a run whose scheduler is gone, or silent."""
    remedy = "Start a scheduler and workers anew, at that address or another"
    return RunError(f"the Dask scheduler at {address} {what}. {remedy}")
