"""Processes that die before a step of what they do to the disk."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["STEPS", "Died", "failing"]

STEPS = ("rename", "replace", "fsync", "mkdir", "rmdir", "unlink")
"""What is done to a disk: a process may die before each."""


class Died(BaseException):
    """The process is gone: nothing that would be done to the disk after it is done."""


@contextmanager
def failing(number: int, error: BaseException) -> Iterator[list[str]]:
    """Count what is done to the disk; the step of that number, and all after it, are not done."""
    done: list[str] = []
    lock = threading.Lock()

    def counted(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def do(*args: Any, **kwargs: Any) -> Any:
            with lock:
                done.append(name)
                if len(done) > number:
                    raise error
            return step(*args, **kwargs)

        return do

    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, counted(name, getattr(os, name)))
        yield done
