"""Eight workers that merge in a tree: the same bits, within the memory that was asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from contract_tools import assert_same_bits

import factorflow
from factorflow.engine.executors.local_cluster import local_cluster
from factorflow.engine.memory import measure, trace_scratch
from factorflow.engine.memory_limits import required_bytes
from factorflow.errors import InputError
from factorflow.models import SparseGFA

pytestmark = pytest.mark.slow
WORKERS = 8


def test_eight_workers_have_the_memory_that_is_asked_for(tmp_path: Path) -> None:
    """With a 20th more the fit has the bits of one process; with a tenth less it is refused."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(512, 3)) @ rng.normal(size=(3, 2500)) + rng.normal(size=(512, 2500))).astype("f4")
    x[rng.random(x.shape) < 0.1] = np.nan
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"x": x}, block_rows=16)
    config = SparseGFA(n_factors=20, warmup_iter=3, max_iter=4)
    model = config.build(data.meta(config.views))
    footprint = trace_scratch(model, measure(model))
    need = required_bytes(data.meta(config.views), footprint, WORKERS, 1, 1 << 40, WORKERS)
    alone = factorflow.fit(data, config, progress=False)
    client, owned = local_cluster(WORKERS, int(1.05 * need / 0.95))
    try:
        assert_same_bits(factorflow.fit(data, config, executor=client, progress=False), alone)
    finally:
        for part in owned:
            part.close()
    client, owned = local_cluster(1, int(0.9 * need / 0.95))
    try:
        with pytest.raises(InputError, match=r"95% of \d+ MiB, beyond which Dask"):
            factorflow.fit(data, config, executor=client, workers=WORKERS, progress=False)
    finally:
        for part in owned:
            part.close()
