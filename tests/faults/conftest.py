"""Small runs, made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from contract_tools import arrays
from fault_tools import Case, example_of

import factorflow


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Give a case of a family ("probit:default"): its data, and what a run that nothing happens to finds."""
    made: dict[str, Case] = {}

    def find(name: str) -> Case:
        if name not in made:
            example, on_disk = example_of(name)
            settings: dict[str, Any] = {"n_samples": 70, "block_rows": 32, "missing": 0.1, **example.data}
            path = tmp_path_factory.mktemp("case") / "data.zarr"
            dataset = factorflow.simulate(example.simulator, path, seed=7, **settings)
            case = Case(dataset, example.config, {}, on_disk)
            expected = arrays(case.fit(path.parent / "expected.zarr").load())
            made[name] = replace(case, expected=expected)
        return made[name]

    return find
