"""The runs that are damaged, killed and cut off; a family takes part by existing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from factorflow.models.registry import registered_models

__all__ = ["CASES", "RUNS", "Case", "example_of", "memory", "same_bytes"]

ON_DISK = " on disk"
"""A case whose local state is files of the run."""


def cases_of_families() -> list[str]:
    """Return the first case of every family of the package that is installed, extras and all."""
    return [
        f"{name}:{word}"
        for name, kind in registered_models().items()
        if kind.__module__.startswith("factorflow.")
        for word in list(kind.examples())[:1]
    ]


def example_of(case: str) -> tuple[Any, bool]:
    """Return the example of a case, and whether its state is on disk."""
    family, _, word = case.removesuffix(ON_DISK).partition(":")
    return registered_models()[family].examples()[word], case.endswith(ON_DISK)


@contextmanager
def memory(on_disk: bool) -> Iterator[None]:
    """Leave no room for state in memory, if it is to be on disk."""
    with pytest.MonkeyPatch.context() as patch:
        if on_disk:
            patch.setattr("factorflow.engine.memory_limits.KEPT_SHARE", 0.0)
        yield


CASES = cases_of_families()

RUNS = [*CASES, "sparse_gfa:likelihoods" + ON_DISK]
"""Beside them one whose local state is on disk."""


@dataclass(frozen=True)
class Case:
    """A small run."""

    dataset: Any
    config: Any
    expected: dict[str, Any]
    on_disk: bool = False

    def fit(self, out: Path, **options: Any) -> Any:
        """Fit it to a path, with a checkpoint every two iterations."""
        import factorflow

        given = {"seed": 3, "holdout": 0.1, "checkpoint_every": 2, "max_iter": 5, **options}
        with memory(self.on_disk):
            return factorflow.fit(self.dataset, self.config, out=out, **given)

    def resume(self, out: Path) -> Any:
        """Go on with it."""
        import factorflow

        with memory(self.on_disk):
            return factorflow.resume(out)


def same_bytes(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Return whether two sets of arrays have equal names, types, shapes and bytes."""
    return found.keys() == expected.keys() and all(same(found[n], expected[n]) for n in found)


def same(left: Any, right: Any) -> bool:
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    if left.dtype == object:
        return bool(left.astype(str).tolist() == right.astype(str).tolist())
    return bool(left.tobytes() == right.tobytes())
