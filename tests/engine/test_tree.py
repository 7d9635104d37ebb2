"""The merge tree: every cut gives the same bits, with and without absent blocks."""

from __future__ import annotations

import itertools
from dataclasses import FrozenInstanceError, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorflow.engine.tree import Tree
from factorflow.models.contract import Gather, wide
from factorflow.trees import add, freeze, join, narrow, received, replace, restrict


def _values(n: int, absent: set[int] | None = None) -> list[Any]:
    rng = np.random.default_rng(n)
    return [None if i in (absent or set()) else freeze(rng.normal(size=3) * 10.0**i) for i in range(n)]


def _total(values: list[Any], edges: tuple[int, ...] = ()) -> Any:
    root = Tree()
    for a, b in itertools.pairwise((0, *edges, len(values))):
        tree = Tree()
        for number in range(a, b):
            tree.add(number, values[number])
        root.feed(tree.nodes(hand_over=True))
    return root.total()


@pytest.mark.parametrize("n", range(1, 10))
def test_every_cut_gives_the_same_bits(n: int) -> None:
    for absent in (set(), {0}, {n - 1}, {n // 2, n // 3}):
        values = _values(n, absent)
        whole = _total(values)
        for size in range(n):
            for edges in itertools.combinations(range(1, n), size):
                part = _total(values, edges)
                assert (part is None) == (whole is None)
                assert whole is None or part.tobytes() == whole.tobytes()


@given(st.integers(1, 300), st.lists(st.integers(1, 299), max_size=6))
def test_any_cut_of_many_blocks(n: int, edges: list[int]) -> None:
    values = _values(n % 40 + 1)
    cut = tuple(sorted({e for e in edges if e < len(values)}))
    assert _total(values, cut).tobytes() == _total(values).tobytes()


def test_a_run_returns_few_subtrees() -> None:
    tree = Tree()
    for number in range(3, 1000):
        tree.add(number, np.ones(1))
    nodes = tree.nodes()
    assert len(nodes) <= 20
    assert [n.start for n in nodes] == sorted(n.start for n in nodes)
    assert sum(1 << n.level for n in nodes) == 997


def test_blocks_are_not_written_to() -> None:
    values = _values(8)
    before = [v.tobytes() for v in values]
    _total(values)
    assert [v.tobytes() for v in values] == before


@dataclass(frozen=True)
class Stats:
    total: float
    wide_one: Any = field(metadata=wide("a"))
    wide_many: Any = field(metadata=wide())
    edges: Gather | None = None


def _stats(number: int) -> Stats:
    a = np.arange(6.0).reshape(3, 2) * number
    return Stats(1.0, a, {"a": a[:, 0], "b": a[:2, 1]}, Gather(np.array([number]), np.array([10.0 * number])))


def test_sums_of_dataclasses_and_gathered_edges() -> None:
    total = add(add(_stats(0), _stats(1)), _stats(2))
    assert total.total == 3.0
    assert total.wide_many["b"].tolist() == [3.0, 9.0]
    assert total.edges.numbers.tolist() == [0, 1, 2]
    assert total.edges.values.tolist() == [0.0, 10.0, 20.0]
    with pytest.raises(ValueError, match="keys"):
        add({"a": 1.0}, {"b": 1.0})


def test_cutting_and_joining_the_wide_part() -> None:
    stats = _stats(1)
    cuts = [restrict(stats, "a", slice(0, 2)), restrict(stats, "a", slice(2, 3))]
    assert cuts[0].wide_many.keys() == {"a"}
    assert restrict(stats, "b", slice(0, 1)).wide_one is None
    assert join([c.wide_one for c in cuts]).tolist() == stats.wide_one.tolist()
    assert narrow(stats).wide_many is None
    assert narrow(stats).total == 1.0


def test_frozen_arrays_are_contiguous_and_read_only() -> None:
    array = freeze({"x": np.ones((3, 4)).T})["x"]
    assert array.flags.c_contiguous
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 2


@pytest.mark.parametrize("offset", [1, 4])
def test_arrays_from_the_network_are_put_where_numpy_would(offset: int) -> None:
    """Sums over an array that begins at any byte have other bits."""
    values = np.arange(12.0).reshape(3, 4)
    buffer = np.empty(values.nbytes + 64, np.uint8)
    begin = -buffer.ctypes.data % 64 + offset
    odd = buffer[begin : begin + values.nbytes].view(float).reshape(3, 4)
    odd[...] = values
    odd.flags.writeable = False
    assert not odd.flags.aligned
    found = received([{"a": (odd, 1.0, None, "text")}, values])
    moved = found[0]["a"][0]
    assert moved.flags.aligned
    assert not moved.flags.writeable
    np.testing.assert_array_equal(moved, values)
    assert found[0]["a"][1:] == (1.0, None, "text")
    assert found[1] is values


@dataclass(frozen=True)
class Kept:
    """Fields of every kind, one with a default."""

    array: Any
    parts: dict[str, Any]
    others: tuple[Any, ...] = ()
    number: int = 0

    @cached_property
    def total(self) -> float:
        """What is remembered of the fields."""
        return float(np.sum(self.array))


@dataclass(frozen=True)
class Checked:
    """A class that refuses some values."""

    number: int

    def __post_init__(self) -> None:
        """Refuse negative numbers."""
        if self.number < 0:
            raise ValueError("negative")


def test_a_copy_with_other_values_is_that_of_the_standard_library() -> None:
    """Also where something was remembered, where a class looks at its values, and where a name is wrong."""
    one = Kept(np.arange(3.0), {"a": 1})
    for _ in range(2):
        two = replace(one, array=np.ones(2), number=4)
        assert isinstance(two, Kept)
        assert (two.number, two.others, two.total, one.number) == (4, (), 2.0, 0)
        assert two.parts is one.parts
        assert one.total == 3.0  # remembered from now on
    with pytest.raises(TypeError, match="nothing"):
        replace(one, nothing=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="nothing"):
        replace(two, nothing=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="negative"):
        replace(Checked(1), number=-1)
    with pytest.raises(FrozenInstanceError):
        replace(one, number=1).number = 2  # type: ignore[misc]


def test_what_is_frozen_stays_the_same() -> None:
    """So that freezing it again costs no more than looking; what is not is made anew, down to it."""
    frozen = freeze(Kept(np.ones(3), {"a": {"b": np.ones(2)}}, (np.ones(1), None)))
    assert freeze(frozen) is frozen
    other = replace(frozen, others=(frozen.others[0], np.ones((2, 3)).T))
    again = freeze(other)
    assert again is not other
    assert again.parts is frozen.parts
    assert again.others[0] is frozen.others[0]
    assert again.others[1].flags.c_contiguous
    assert not again.others[1].flags.writeable
    assert freeze(replace(frozen, parts={"a": np.ones((2, 3)).T})).parts["a"].flags.c_contiguous


def test_frozen_arrays_cannot_be_written() -> None:
    """Those in a field, in a tuple and strided ones: a lost task is computed again from what it was given."""
    found = freeze((np.zeros(3), {"a": np.zeros((4, 4)).T[1:]}))
    for array in (found[0], found[1]["a"]):
        assert array.flags.c_contiguous
        assert not array.flags.writeable
