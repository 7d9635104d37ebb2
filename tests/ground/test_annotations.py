"""The annotations of arrays are checked while tests run (``tests/conftest.py``), not only read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from jaxtyping import TypeCheckError

from factorflow.core.block import Block
from factorflow.kernels.linalg import congruence, unpack
from factorflow.models.probit.kernels.tables import FactorTables
from factorflow.models.probit.state import Globals
from factorflow.models.sparse_gfa.kernels.gaps import list_gaps

TABLES = FactorTables(np.zeros((2, 5)), np.zeros(5), np.zeros((2, 2)), np.zeros(2), 0, 0, 1.0, 9)


def test_fields_of_a_dataclass_agree_in_shape() -> None:
    with pytest.raises(TypeCheckError, match="offset"):
        replace(TABLES, offset=np.zeros(4))


def test_the_type_of_entries_counts() -> None:
    with pytest.raises(TypeCheckError, match="activity"):
        Globals({"a": np.zeros((5, 3))}, np.zeros(2, np.float32), 0.5, 1.0)


def test_arrays_inside_a_mapping_are_looked_at() -> None:
    with pytest.raises(TypeCheckError, match="hidden"):
        Block(0, 0, 3, 1, {"a": np.zeros((3, 2))}, {"a": (np.zeros(2, np.int32), np.zeros(1, np.int32))})


def test_fields_of_the_class_above_are_looked_at() -> None:
    with pytest.raises(TypeCheckError, match="missing"):
        replace(list_gaps(np.zeros((3, 2)), by_column=False), missing=np.zeros(4, np.int64))


def test_arguments_and_results_of_functions() -> None:
    assert unpack(np.zeros((4, 3)), 2).shape == (4, 2, 2)
    with pytest.raises(TypeCheckError, match="transform"):
        congruence(np.zeros((4, 3)), np.zeros(2))
