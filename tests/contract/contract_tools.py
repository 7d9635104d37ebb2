"""Helpers of the contract suite: executors with a given cut, and comparison bit by bit."""

from __future__ import annotations

from typing import Any

from factorflow.engine.executors.local import LocalExecutor
from factorflow.trees import arrays as leaves

__all__ = ["Cut", "arrays", "assert_same_bits", "leaves"]


class Cut(LocalExecutor):
    """The local executor with a given cut into groups, look-ahead and number of feature tasks."""

    def __init__(self, *edges: int, look_ahead: int = 0, feature_tasks: int = 0) -> None:
        super().__init__()
        self.edges, self.look_ahead, self.n_feature_tasks = edges, look_ahead, feature_tasks

    def cut(self, n_blocks: int) -> list[range]:
        edges = sorted({0, *(e for e in self.edges if e < n_blocks), n_blocks})
        return [range(a, b) for a, b in zip(edges, edges[1:], strict=False)]


def arrays(posterior: Any) -> dict[str, Any]:
    """Return every array of a posterior but the wall-clock times."""
    found = {}
    for node in posterior.tree.subtree:
        for name, variable in node.to_dataset(inherit=False).variables.items():
            if not str(name).startswith("seconds"):
                found[f"{node.path}/{name}"] = variable.values
    return found


def assert_same_bits(left: Any, right: Any) -> None:
    """Assert that two posteriors have equal bytes in every array."""
    a, b = arrays(left), arrays(right)
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert a[name].shape == b[name].shape, name
        if a[name].dtype == object:
            assert a[name].tolist() == b[name].tolist(), name
        else:
            assert a[name].tobytes() == b[name].tobytes(), name
