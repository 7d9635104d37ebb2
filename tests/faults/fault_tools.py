"""The runs that are damaged, killed and cut off; a family takes part by existing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorflow.models.registry import registered

__all__ = ["CASES", "Case", "same_bytes"]


def cases_of_families() -> list[str]:
    """Return the first case of every family of the package that is installed, extras and all."""
    return [
        f"{name}:{word}"
        for name, kind in registered().items()
        if kind.__module__.startswith("factorflow.")
        for word in list(kind.examples())[:1]
    ]


CASES = cases_of_families()


@dataclass(frozen=True)
class Case:
    """A small run."""

    dataset: Any
    config: Any
    expected: dict[str, Any]

    def fit(self, out: Path, **options: Any) -> Any:
        """Fit it to a path, with a checkpoint every two iterations."""
        import factorflow

        given = {"seed": 3, "holdout": 0.1, "checkpoint_every": 2, "max_iter": 5, **options}
        return factorflow.fit(self.dataset, self.config, out=out, **given)


def same_bytes(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Return whether two sets of arrays have equal names, types, shapes and bytes."""
    return found.keys() == expected.keys() and all(same(found[n], expected[n]) for n in found)


def same(left: Any, right: Any) -> bool:
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    if left.dtype == object:
        return bool(left.astype(str).tolist() == right.astype(str).tolist())
    return bool(left.tobytes() == right.tobytes())
