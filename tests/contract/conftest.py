"""The contract suite: every registered model enters by existing.

A family takes part with every case in ``examples()`` of its configuration. The families beside this file are
written against the guide in ``docs/add-a-model.md`` and take part like the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import bayesian_pca  # noqa: F401  (they register themselves)
import pytest
import sequence_model  # noqa: F401
import stochastic_model  # noqa: F401
import table_model  # noqa: F401

import factorflow
from factorflow.models.contract import Example, ModelConfig
from factorflow.models.registry import registered


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "family" in metafunc.fixturenames:
        cases = [f"{name}:{word}" for name, kind in registered().items() for word in kind.examples()]
        metafunc.parametrize("family", cases)


def example(family: str) -> Example:
    """Return a case of a family: "sparse_gfa:groups"."""
    name, _, word = family.partition(":")
    return registered()[name].examples()[word]


@pytest.fixture
def config(family: str) -> ModelConfig:
    """The configuration of a case."""
    return example(family).config


@pytest.fixture(scope="session")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Make (once) the dataset of a case: 97 rows in blocks of 32, some entries missing."""
    made: dict[tuple[Any, ...], Any] = {}

    def dataset(family: str, n_samples: int = 97, block_rows: int = 32, missing: float = 0.1) -> Any:
        key = (family, n_samples, block_rows, missing)
        if key not in made:
            case = example(family)
            path = tmp_path_factory.mktemp(family.replace(":", "-")) / "data.zarr"
            made[key] = factorflow.simulate(
                case.simulator,
                path,
                n_samples=n_samples,
                block_rows=block_rows,
                missing=missing,
                seed=7,
                **case.data,
            )
        return made[key]

    return dataset


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Three single-threaded worker processes."""
    from factorflow.engine.executors.dask import local_cluster

    client, owned = local_cluster(3, "1GiB")
    yield client
    for thing in owned:
        thing.close()
