"""Small runs, made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from contract_tools import arrays
from fault_tools import Case

import factorflow
from factorflow.models.registry import registered


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Give a case of a family ("probit:default"): its data, and what a run that nothing happens to finds."""
    made: dict[str, Case] = {}

    def find(name: str) -> Case:
        if name not in made:
            family, _, word = name.partition(":")
            example = registered()[family].examples()[word]
            settings: dict[str, Any] = {"n_samples": 70, "block_rows": 32, "missing": 0.1, **example.data}
            path = tmp_path_factory.mktemp(family) / "data.zarr"
            dataset = factorflow.simulate(example.simulator, path, seed=7, **settings)
            case = Case(dataset, example.config, {})
            made[name] = Case(dataset, example.config, arrays(case.fit(path.parent / "expected.zarr").load()))
        return made[name]

    return find
