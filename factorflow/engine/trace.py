"""The trace of a run: values reported by iterations, thinned to a bounded length."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from factorflow.engine.plan import Record

TRACE_ROWS = 10_000
"""Rows of a kind, beyond which every second one goes."""

Row = tuple[str, int, bool, float, list[dict[str, float]]]


@dataclass
class _Rows:
    """Rows of one kind in the order of the run: every `stride`-th of those that came."""

    rows: list[Row] = field(default_factory=list)
    stride: int = 1
    came: int = 0

    def add(self, row: Row) -> None:
        if self.came % self.stride == 0:
            self.rows.append(row)
        self.came += 1
        if len(self.rows) > TRACE_ROWS:
            self.rows = self.rows[::2]
            self.stride *= 2


class Trace:
    """The kept rows of values reported by iterations.

    Draws are all kept. Of the other iterations, those that report an objective and those that do not
    (between two evaluations) are thinned each by itself, by halves, whenever there are more than
    `TRACE_ROWS` of them: which rows stay follows from the number of iterations alone. The last one is
    always there.
    """

    def __init__(self) -> None:
        self._draws: list[Row] = []
        self._reports, self._others = _Rows(), _Rows()
        self._last: Row | None = None

    def append(self, record: Record, seconds: float) -> None:
        """Add one iteration."""
        row: Row = (record.stage, record.counted, record.kept, seconds, list(record.infos))
        self._last = row
        if record.kept:
            self._draws.append(row)
        elif all(math.isfinite(info.get("objective", math.nan)) for info in record.infos):
            self._reports.add(row)
        else:
            self._others.add(row)

    @property
    def last_iteration(self) -> int:
        """The number of the last iteration; 0 before the first."""
        return self._last[1] if self._last else 0

    @property
    def last_seconds(self) -> float:
        """When it was done, in seconds since the run began."""
        return self._last[3] if self._last else 0.0

    def columns(self) -> dict[str, list[Any]]:
        """Return the rows in order, as columns: stage, iteration, kept, seconds, infos (one a chain)."""
        rows = {row[1]: row for row in (*self._draws, *self._reports.rows, *self._others.rows)}
        if self._last:
            rows[self._last[1]] = self._last
        ordered = [rows[number] for number in sorted(rows)]
        names = ("stage", "iteration", "kept", "seconds", "infos")
        return {name: [row[i] for row in ordered] for i, name in enumerate(names)}

    def state(self) -> dict[str, Any]:
        """Return the trace as plain values, for a checkpoint."""
        kinds = {"reports": self._reports, "others": self._others}
        thinned = {name: [kind.rows, kind.stride, kind.came] for name, kind in kinds.items()}
        return {"draws": self._draws, "last": self._last, **thinned}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Trace:
        """Return the trace whose `state` this was."""
        trace = cls()
        trace._draws = [_row(row) for row in state["draws"]]
        trace._last = _row(state["last"]) if state["last"] else None
        for kind, name in ((trace._reports, "reports"), (trace._others, "others")):
            rows, kind.stride, kind.came = state[name]
            kind.rows = [_row(row) for row in rows]
        return trace


def _row(values: list[Any]) -> Row:
    stage, iteration, is_draw, seconds, infos = values
    return stage, iteration, is_draw, seconds, infos
