"""Trees as bytes: the same bits again, damage noticed, nothing run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from factorflow.core.flatten import allow_package, flatten, unflatten
from factorflow.storage.serialize import MAGIC, dumps, loads


@dataclass(frozen=True)
class Inner:
    values: Any


@dataclass(frozen=True)
class Outer:
    parts: dict[str, Inner]
    numbers: tuple[Any, ...] = ()
    none: None = None
    text: str = ""
    more: Any = field(default=None)


allow_package(__name__)

TREE = Outer(
    {"a": Inner(np.arange(6.0).reshape(2, 3)), "b": Inner(np.zeros((0, 4), np.float32))},
    (1, 2.5, True, np.float32(0.1), np.int64(1 << 60), float("nan"), -0.0),
    text="ä/b",
    more=(np.asfortranarray(np.eye(3)), np.array(7), np.array(["x", "yz"]), np.array([True, False])),
)


def bits(tree: Any) -> Any:
    structure, leaves = flatten(tree)
    return structure, [(leaf.dtype, leaf.shape, leaf.tobytes()) for leaf in leaves]


def test_same_bits_again() -> None:
    again = loads(dumps(TREE))
    assert bits(again) == bits(TREE)
    assert [type(number) for number in again.numbers] == [type(number) for number in TREE.numbers]
    assert dumps(again) == dumps(TREE)


def test_every_changed_bit_is_noticed() -> None:
    data = dumps(TREE)
    for place in range(0, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        with pytest.raises(ValueError, match="checksum"):
            loads(bytes(changed))
    for end in (0, 5, len(MAGIC), len(MAGIC) + 4, len(data) - 1):
        with pytest.raises(ValueError, match="checksum"):
            loads(data[:end])


@pytest.mark.parametrize("value", [object(), np.array([object()]), {1: 2.0}, lambda: None])
def test_what_the_contract_does_not_allow_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        dumps(Inner(value))


@pytest.mark.parametrize(
    "where",
    [
        "os:system",
        "antigravity:Anything",
        "subprocess:Popen",
        "distributed.core:Status",
        "factorflow.core.trees:flatten",
        "__main__:No",
    ],
)
def test_nothing_but_dataclasses_of_loaded_packages_is_made(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a file asks for."""
    data = dumps(Inner(1.0))
    structure = {"class": where, "fields": {"values": {"leaf": "float"}}}
    monkeypatch.setattr("factorflow.storage.serialize.flatten", lambda tree: (structure, flatten(tree)[1]))
    asked = dumps(Inner(1.0))
    assert asked != data
    assert json.dumps(structure).encode() in asked
    with pytest.raises(ValueError, match="dataclass|neither of factorflow"):
        loads(asked)


def test_classes_of_a_script_are_found_by_those_given(monkeypatch: pytest.MonkeyPatch) -> None:
    data = dumps(Inner(np.ones(3)))
    monkeypatch.setattr(Inner, "__module__", "a_script")
    given = dumps(Inner(np.ones(3)))
    assert given != data
    with pytest.raises(ValueError, match="neither of factorflow"):
        loads(given)
    assert loads(given, {"a_script:Inner": Inner}).values.tolist() == [1.0, 1.0, 1.0]


def test_a_dataclass_of_another_loaded_package_is_refused() -> None:
    """One that could be made: fields and all."""
    structure = {"class": "zarr.core.common:ZarrFormat", "fields": {}}
    with pytest.raises(ValueError, match="zarr.core.common:ZarrFormat is neither of factorflow"):
        unflatten(structure, [])
    inner = {"class": f"{__name__}:Inner", "fields": {"values": {"leaf": "float"}}}
    assert unflatten(inner, [1.0]) == Inner(1.0)
