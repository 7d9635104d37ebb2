"""Threads that the task in hand may use, for what is large in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_allowed: ContextVar[int] = ContextVar("allowed", default=1)


@contextmanager
def allow_threads(n_threads: int) -> Iterator[None]:
    """Allow so many threads meanwhile, in all (a context manager)."""
    token = _allowed.set(n_threads)
    try:
        yield
    finally:
        _allowed.reset(token)


def allowed_threads() -> int:
    """Return how many threads are allowed; 1 in those that `map_in_threads` uses."""
    return _allowed.get()


def map_in_threads(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return the results of a function in order, computed in the threads that are allowed."""
    n_threads = min(_allowed.get(), len(items))
    if n_threads <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(n_threads, "factorflow-features") as pool:
        return list(pool.map(function, items))
