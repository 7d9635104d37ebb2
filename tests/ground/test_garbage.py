"""Garbage is collected less often while modules are imported; the end of a user's process is as ever."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import pytest

from factorflow.core.garbage import THRESHOLD, rare_collection
from factorflow.core.lazy_imports import on_first_use

ENDS = """
import factorflow, gc

class Cycle:
    def __init__(self):
        self.own = self
    def __del__(self):
        print("collected")

gc.disable()
Cycle()
"""


def test_of_periods_that_overlap_the_last_one_to_end_counts() -> None:
    before = gc.get_threshold()
    rare_collection.__enter__()
    rare_collection.__enter__()
    rare_collection.__exit__()
    assert gc.get_threshold() == (THRESHOLD, *before[1:])
    rare_collection.__exit__()
    assert gc.get_threshold() == before


def test_a_collector_that_is_off_stays_off() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with rare_collection:
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)


def test_while_a_name_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def find_spec(self: Any, *arguments: Any) -> None:
        seen.append(gc.get_threshold()[0])

    before = gc.get_threshold()
    monkeypatch.setattr(sys, "meta_path", [type("Finder", (), {"find_spec": find_spec})()])
    with pytest.raises(ModuleNotFoundError):
        on_first_use("factorflow", {"name": "not_there"})("name")
    assert seen == [THRESHOLD]
    assert gc.get_threshold() == before


def test_cycles_of_a_user_are_finalised_as_the_process_ends() -> None:
    """Else what a file in one of them has not yet written would be lost."""
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=True)
    assert done.stdout == "collected\n"
