"""Fits by entries have the memory that is asked for: a 20th more is enough, a tenth less is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from contract_tools import assert_same_bits

import factorflow
from factorflow.data.sample_tables import model_meta
from factorflow.engine.executors.local_cluster import local_cluster
from factorflow.engine.memory import measure, trace_scratch
from factorflow.engine.memory_limits import required_bytes
from factorflow.errors import InputError
from factorflow.models import PoissonFactors, SparseGFA

pytestmark = pytest.mark.filterwarnings("ignore::factorflow.data.DataWarning")

MODELS = {
    "gfa": SparseGFA(views=("log",), n_factors=16, warmup_iter=2, max_iter=3),
    "poisson_factors": PoissonFactors(views=("rna",), n_factors=16, settling_iter=2, max_iter=2),
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Blocks of which dense rows take 20 MiB, and their entries 0.6."""
    rng = np.random.default_rng(0)
    counts = sp.random_array((4096, 5000), density=0.05, rng=rng, format="csr")
    counts.data = rng.integers(1, 4, counts.data.size).astype(np.float32)
    path = tmp_path_factory.mktemp("sparse") / "d.zarr"
    factorflow.write_dataset(
        path, {"rna": counts}, {"rna": "poisson"}, layout={"rna": "sparse"}, block_rows=1024
    )
    return factorflow.add_view(path, "log", of="rna", transform="log1p")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "n_workers"),
    [("gfa", 1), pytest.param("gfa", 3, marks=pytest.mark.slow), ("poisson_factors", 2)],
)
def test_workers_have_the_memory_that_is_asked_for(name: str, n_workers: int, dataset: Any) -> None:
    config = MODELS[name]
    model = config.build(model_meta(dataset, config))
    assert model.meta.sparse_views == config.views
    need = required_bytes(model.meta, trace_scratch(model, measure(model)), n_workers, 1, 1 << 40, n_workers)
    alone = factorflow.fit(dataset, config, progress=False)
    client, owned = local_cluster(n_workers, int(1.05 * need / 0.95))
    try:
        fitted = factorflow.fit(dataset, config, executor=client, workers=n_workers, progress=False)
        assert_same_bits(fitted, alone)
    finally:
        for part in owned:
            part.close()
    client, owned = local_cluster(1, int(0.9 * need / 0.95))
    try:
        with pytest.raises(InputError, match="memory_limit"):
            factorflow.fit(dataset, config, executor=client, workers=n_workers, progress=False)
    finally:
        for part in owned:
            part.close()
