"""A view that is fitted by its entries: the same bits whatever the cut and the executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contract_tools import Cut, assert_same_found, on_workers, plan_of, run_plan

import factorflow
from factorflow.models import SparseGFA

pytestmark = pytest.mark.filterwarnings("ignore:.*without a value in any view")
CONFIG = SparseGFA(views=("log",), n_factors=3, max_iter=6, warmup_iter=2)


@pytest.fixture(scope="module", params=["all features", "files"])
def counts(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Logarithms of counts of which one in six is not 0, in four blocks, the last one short.

    Some rows of "files" lack features, and some all of them.
    """
    rng = np.random.default_rng(3)
    rate = rng.gamma(0.5, 1.0, (97, 2)) @ (0.1 + rng.gamma(0.3, 1.0, (2, 30)))
    values = rng.poisson(rate * 0.25 / rate.mean()).astype(float)
    if request.param == "files":
        values[20:60, :7] = values[60:, 25:] = values[50:53] = np.nan
    path = tmp_path_factory.mktemp("entries") / "d"
    factorflow.write_dataset(
        path, {"counts": values}, {"counts": "poisson"}, block_rows=32, layout={"counts": "sparse"}
    )
    return factorflow.add_view(path, "log", of="counts", transform="log1p")


@pytest.mark.thorough
def test_cuts_and_workers(cluster: Any, counts: Any) -> None:
    plan = plan_of(counts, CONFIG)
    assert plan.model.meta.sparse_views == ("log",)
    one = run_plan(plan)
    for executor in (Cut(1), Cut(1, 3), Cut(1, 2, 3), on_workers(cluster, 2), on_workers(cluster, 3)):
        assert_same_found(run_plan(plan_of(counts, CONFIG), executor), one)
