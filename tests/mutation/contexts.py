"""A plugin of pytest that tells coverage which test file runs, and sums how long each takes (`run.py map`).

Of the contract suite, whose tests every family takes part in, each case of each test counts by itself.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from coverage import Coverage

BY_CASE = "tests/contract/"

_seconds: Counter[str] = Counter()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Count the lines of a test, its fixtures among them, for its file."""
    name, begin = item.nodeid, process_time()
    if not name.startswith(BY_CASE):
        name = name.partition("::")[0]
    current = Coverage.current()
    if current is not None:
        current.switch_context(name)
    result = yield
    _seconds[name] += process_time() - begin
    return result


def pytest_sessionfinish() -> None:
    """Write the seconds of processor time of each file."""
    Path(os.environ["SECONDS_OF_TESTS"]).write_text(json.dumps(_seconds))
