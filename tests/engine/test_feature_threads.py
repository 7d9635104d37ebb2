"""What updates the globals may use the threads of the root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from factorflow.core.threads import allowed_threads
from factorflow.engine.feature_runs import update_globals


@dataclass(frozen=True)
class _Part:
    value: Any


class _Sweep:
    def axes(self) -> dict[str, int]:
        return {"feature_x": 3}

    def carry(self, before: Any, stats: Any, step: Any) -> Any:
        return before

    def features(self, axis: str, index: range, before: Any, stats: Any, step: Any) -> tuple[Any, Any]:
        return _Part(np.zeros(len(index))), _Part(np.zeros(1))

    def assemble(self, carried: Any, stats: Any, parts: Any, sums: Any, step: Any) -> Any:
        return allowed_threads(), {}


@pytest.mark.parametrize("n_threads", [1, 3])
def test_the_globals_are_assembled_by_all_threads_of_the_root(n_threads: int) -> None:
    sweep: Any = _Sweep()
    step: Any = None
    assert update_globals(sweep, None, _Part(0.0), {}, step, n_threads)[0] == n_threads
