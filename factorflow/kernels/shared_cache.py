"""Numba's cache of compiled code, where processes that need the same loop wait for the one that compiles it.

Importing this module imports numba.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from typing import Any

from numba.core.caching import FunctionCache

WAIT_SECONDS = 60.0
"""A loop that another process has been compiling for so long is compiled here as well."""


class SharedCache(FunctionCache):
    """The cache of one function.

    Numba holds its lock of the process from `load_overload` to `save_overload`: threads are in turn already.
    Where it fails to compile there is no `save_overload`, but an event (`factorflow.kernels.compile.jit`).

    Parameters
    ----------
    function : callable
        What is compiled.
    stamp : (float, int)
        Stands for time and size of its source (`factorflow.kernels.compile.stamp`).
    """

    def __init__(self, function: Callable[..., Any], stamp: tuple[float, int]) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = stamp
        self._descriptor: int | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what is compiled for a signature, by another process just now if need be, or None."""
        compiled = super().load_overload(sig, target_context)
        if compiled is None and self._descriptor is None:
            self._lock()
            compiled = super().load_overload(sig, target_context)
            if compiled is not None:
                self.unlock()
        return compiled

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled for a signature."""
        try:
            super().save_overload(sig, data)
        finally:
            self.unlock()

    def _lock(self) -> None:
        """Take the lock of the function, which ends with its process."""
        self._impl.locator.ensure_cache_path()
        self._descriptor = os.open(f"{self._cache_file._index_path}.lock", os.O_RDWR | os.O_CREAT, 0o666)
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:  # a file system without locks
                return
            else:
                return

    def unlock(self) -> None:
        """Let others compile the function, or read what was compiled."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
