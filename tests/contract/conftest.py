"""The contract suite: every registered model enters by existing.

A family takes part with ``example()`` and ``example_data`` of its configuration. BayesianPCA, beside this
file, is written against the guide in ``docs/add-a-model.md`` and takes part like the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import bayesian_pca  # noqa: F401  (registers itself)
import pytest

import factorflow
from factorflow.models.contract import ModelConfig
from factorflow.models.registry import registered


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "family" in metafunc.fixturenames:
        metafunc.parametrize("family", sorted(registered()))


@pytest.fixture
def config(family: str) -> ModelConfig:
    """The example configuration of a family."""
    return registered()[family].example()


@pytest.fixture(scope="session")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Make (once) the example dataset of a family: 97 rows in blocks of 32, some entries missing."""
    made: dict[tuple[Any, ...], Any] = {}

    def dataset(family: str, n_samples: int = 97, block_rows: int = 32, missing: float = 0.1) -> Any:
        key = (family, n_samples, block_rows, missing)
        if key not in made:
            kind = registered()[family]
            path = tmp_path_factory.mktemp(family) / "data.zarr"
            made[key] = factorflow.simulate(
                kind.simulator,
                path,
                n_samples=n_samples,
                block_rows=block_rows,
                missing=missing,
                seed=7,
                **kind.example_data,
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
