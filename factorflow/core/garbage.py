"""The garbage collector where most new objects live on: imports, compilation, plans, results."""

from __future__ import annotations

import gc
from threading import RLock
from typing import Any

THRESHOLD = 250_000
"""New objects between two collections there (Python: 700)."""


class RareCollection:
    """Collects garbage less often within ``with``; where several overlap, until the last of them ends."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._depth = 0
        self._before = gc.get_threshold()

    def __enter__(self) -> None:
        with self._lock:
            if self._depth == 0:
                self._before = gc.get_threshold()
                if self._before[0]:  # else the collector is off
                    gc.set_threshold(THRESHOLD, *self._before[1:])
            self._depth += 1

    def __exit__(self, *error: Any) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                gc.set_threshold(*self._before)


rare_collection = RareCollection()
