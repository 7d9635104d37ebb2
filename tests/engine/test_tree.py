"""The merge tree: every cut gives the same bits, with and without absent blocks."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import FrozenInstanceError, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from dask.sizeof import sizeof
from hypothesis import given
from hypothesis import strategies as st

from factorflow.core.trees import add, align_arrays, freeze, join, narrow, replace, restrict
from factorflow.engine.executors.assignment import LONGER, cut_aligned
from factorflow.engine.tasks import Group, RemoteGroup, merge_nodes
from factorflow.engine.tree import (
    FAN_IN,
    MOST_NODES,
    Node,
    Tree,
    feature_shares,
    merge_steps,
    n_nodes,
    relay_parents,
)
from factorflow.models.contract import Gather, wide


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


def _received(groups: list[range]) -> tuple[int, int]:
    """Return the nodes that come to the root, and the most that come to another worker."""
    runs, where = list(groups), list(range(len(groups)))
    most = 0
    for step in merge_steps(groups):
        for merge in step:
            most = max(most, sum(n_nodes(runs[i]) for i in merge.run if where[i] != merge.group))
        runs = [range(runs[merge.run[0]].start, runs[merge.run[-1]].stop) for merge in step]
        where = [merge.group for merge in step]
    return sum(n_nodes(run) for run, group in zip(runs, where, strict=True) if group), most


@given(st.integers(1, 300), st.integers(1, 80))
def test_groups_are_nearly_equal(n_blocks: int, n_groups: int) -> None:
    groups = cut_aligned(n_blocks, n_groups)
    mean = n_blocks / min(n_blocks, n_groups)
    assert [n for group in groups for n in group] == list(range(n_blocks))
    assert len(groups) == min(n_blocks, n_groups)
    assert 0 < min(map(len, groups))
    assert max(map(len, groups)) <= max(np.ceil(mean), mean * (1 + LONGER))


def test_groups_are_cut_where_few_subtrees_end() -> None:
    assert cut_aligned(64, 4) == [range(0, 16), range(16, 32), range(32, 48), range(48, 64)]
    assert cut_aligned(16, 3) == [range(0, 4), range(4, 10), range(10, 16)]
    assert [group.start for group in cut_aligned(1024, 12)][1:7] == [88, 168, 256, 344, 424, 512]


@pytest.mark.parametrize("fan_in", [2, 3, 4, 8])
@pytest.mark.parametrize("n_groups", [1, 2, 3, 5, 8, 12, 17, 40])
def test_merges_in_steps_give_the_same_bits(
    fan_in: int, n_groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On workers that have one merge each, beside the first that they merge."""
    monkeypatch.setattr("factorflow.engine.tree.FAN_IN", fan_in)
    values = _values(40, {3, 17, 39})
    groups = cut_aligned(40, n_groups)
    sent: list[Any] = []
    for number, group in enumerate(groups):
        tree = Tree()
        for block in group:
            tree.add(block, values[block])
        sent.append((Group if number % 2 else RemoteGroup)(nodes=(tree.nodes(hand_over=True),) * 2))
    steps = merge_steps(groups)
    for step in steps:
        assert all(1 <= len(merge.run) <= fan_in for merge in step)
        assert [i for merge in step for i in merge.run] == list(range(len(sent)))
        sent = [merge_nodes([sent[i] for i in merge.run]) for merge in step]
    if steps and fan_in > 2:  # by twos one may be left alone, which is then merged with nothing
        places = [merge.group for step in steps for merge in step]
        assert len(set(places) - {0}) == len(places)
        assert max(places) < n_groups
    assert len(sent) <= fan_in
    for chain in range(2):
        root = Tree()
        for part in sent:
            root.feed(part[chain] if isinstance(part, tuple) else part.nodes[chain])
        assert root.total().tobytes() == _total(values).tobytes()


def test_what_came_from_others_is_not_written_to() -> None:
    nodes = [(Node(0, i, np.ones(3)),) for i in range(4)]
    merged = merge_nodes([(n,) for n in nodes])
    assert merged is not None
    assert merged[0][0].value.tolist() == [4.0] * 3
    assert not merged[0][0].value.flags.writeable
    assert all(node.value.tolist() == [1.0] * 3 for (node,) in nodes)


def test_nothing_is_merged_after_the_end() -> None:
    assert merge_nodes([None, RemoteGroup(None), Group()]) is None


@pytest.mark.parametrize(
    ("n_blocks", "n_groups", "root", "others"),
    [(64, 3, 7, 0), (64, 8, 2, 3), (64, 16, 4, 3), (1024, 12, 4, 7), (1024, 1000, 4, 4), (4096, 256, 4, 4)],
)
def test_no_worker_receives_more_than_a_few_nodes(
    n_blocks: int, n_groups: int, root: int, others: int
) -> None:
    assert _received(cut_aligned(n_blocks, n_groups)) == (root, others)


@given(st.integers(3, 400), st.integers(3, 80))
def test_no_merge_has_many_nodes(n_blocks: int, n_groups: int) -> None:
    """But those of two neighbours it has whatever they are."""
    runs = cut_aligned(n_blocks, n_groups)
    for step in merge_steps(runs):
        for merge in step:
            assert len(merge.run) <= 2 or sum(n_nodes(runs[i]) for i in merge.run) <= MOST_NODES
        runs = [range(runs[merge.run[0]].start, runs[merge.run[-1]].stop) for merge in step]
    assert len(runs) <= 2 or sum(map(n_nodes, runs)) <= MOST_NODES


@given(st.integers(1, 3000), st.integers(1, 300))
def test_messages_are_as_few_whatever_the_number_of_workers(n_blocks: int, n_groups: int) -> None:
    """Of a few nodes each: at most two of each level of the tree."""
    assert max(_received(cut_aligned(n_blocks, n_groups))) <= FAN_IN * 2 * n_blocks.bit_length()


def test_dask_is_told_what_statistics_take() -> None:
    """Its counters of what is kept and what travels are of these."""
    node = Node(0, 0, np.zeros(1000))
    groups = Group(nodes=((node,),)), Group({0: (np.zeros(1000),)})
    for value in (((node,),), RemoteGroup(((node,),)), *groups):
        assert 8000 <= sizeof(value) < 9000


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
    found = align_arrays([{"a": (odd, 1.0, None, "text")}, values])
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


def test_relays() -> None:
    """No worker sends a large state to more than four others; a small one all fetch from the root."""
    assert relay_parents(1, 1 << 30) == []
    for n in (5, 9):  # as deep as it is wide
        assert set(relay_parents(n, 1 << 30)) == {0}
    for n in (16, 100, 1000):
        assert set(relay_parents(n, 1000)) == {0}
        parents = relay_parents(n, 1 << 24)
        assert len(parents) == n - 1
        assert max(Counter(parents).values()) == 4
        assert all(parent < group for group, parent in enumerate(parents, start=1))


def test_shares_of_features() -> None:
    """Of wide statistics and many groups alone; fewer bytes one behind the other than the tasks cost."""
    hundred = cut_aligned(1024, 128)
    assert feature_shares(hundred, 1 << 20, 72) == 0
    assert feature_shares(hundred[:1], 1 << 28, 72) == 0
    assert feature_shares(hundred[:2], 1 << 28, 72) == 2
    assert 2 < feature_shares(hundred, 1 << 28, 72) < 12
    assert feature_shares(hundred, 1 << 28, 3) == 3
