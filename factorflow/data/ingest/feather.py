"""Feather and Arrow files, with the calls of a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

FEATHER = frozenset({".feather", ".arrow"})


class FeatherFile:
    """A Feather file (version 2, which is Arrow's own format), memory-mapped."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
        self.schema_arrow = self._reader.schema

    def iter_batches(self, size: int, columns: list[str] | None = None) -> Iterator[Any]:
        """Yield record batches of so many rows at most."""
        for number in range(self._reader.num_record_batches):
            batch = self._reader.get_batch(number)
            batch = batch if columns is None else batch.select(columns)
            for start in range(0, batch.num_rows, size):
                yield batch.slice(start, size)

    def read(self) -> Any:
        """Return the whole table."""
        return self._reader.read_all()
