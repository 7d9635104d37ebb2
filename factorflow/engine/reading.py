"""Counters of bytes read from datasets and kept in memory, for Prometheus.

Workers of Dask serve these numbers with their own at ``/metrics`` of their dashboards; the endpoint of a run
(`factorflow.engine.observers`) those of the process in which it was begun.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any


class Reading:
    """Blocks and bytes read since the process started.

    Parameters
    ----------
    kept : callable
        Returns the number of blocks that are kept in memory, and their bytes.
    """

    def __init__(self, count_cached: Callable[[], tuple[int, int]]) -> None:
        self._kept = count_cached
        self._lock = threading.Lock()
        self.blocks = self.bytes = 0

    def add(self, n_bytes: int) -> None:
        """Count one block."""
        with self._lock:
            self.blocks, self.bytes = self.blocks + 1, self.bytes + n_bytes

    def collect(self) -> Iterator[Any]:
        """Yield the numbers (the interface of a collector of prometheus_client)."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        blocks, n_bytes = self._kept()
        text = "read by this process, from disk or a store"
        yield CounterMetricFamily("factorflow_read_blocks", f"Blocks {text}.", value=self.blocks)
        yield CounterMetricFamily("factorflow_read_bytes", f"Bytes of the blocks {text}.", value=self.bytes)
        yield GaugeMetricFamily("factorflow_kept_blocks", "Blocks that this process keeps.", value=blocks)
        yield GaugeMetricFamily("factorflow_kept_bytes", "Bytes of the blocks that it keeps.", value=n_bytes)


def announce(reading: Reading) -> None:
    """Add the numbers to those that a worker of Dask serves; do nothing in a process that serves none."""
    if "distributed.http.worker.prometheus.core" in sys.modules:
        _register(reading)


@cache
def _register(reading: Reading) -> None:
    from prometheus_client import REGISTRY

    REGISTRY.register(reading)
