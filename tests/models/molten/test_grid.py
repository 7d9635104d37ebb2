"""A complete grid whose exposure is a product over levels: rows with y = 0 need not be there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from factorflow.models import MoltenPoisson
from factorflow.models.contract import Block

SIZES = (6, 4, 3)


@pytest.mark.parametrize("additive", [False, True])
def test_zeros_of_a_grid_need_no_rows(additive: bool, tools: Any) -> None:
    """The same start, updates and bound as with all of them, and the same predictions."""
    rng = np.random.default_rng(0)
    x = np.stack(np.meshgrid(*map(np.arange, SIZES), indexing="ij"), axis=-1).reshape(-1, 3)
    t = [rng.uniform(0.3, 2.0, SIZES[0]), np.ones(SIZES[1]), rng.uniform(0.3, 2.0, SIZES[2])]
    exposure = np.prod([t[g][x[:, g]] for g in range(3)], axis=0)
    y = rng.poisson(0.7 * exposure * rng.gamma(1.0, 1.0, len(x)))
    y[x[:, 0] == 2] = 0  # a level without any row is there all the same
    config = MoltenPoisson(n_components=2, n_starts=1, additive=additive)
    meta, blocks = tools.table(x, y, "poisson", exposure=exposure)
    some = y > 0
    assert some.mean() < 0.6
    whole = config.build(meta)
    sparse_meta = replace(meta, n_rows=int(some.sum()), views=meta.views[:-1])
    _, sparse_blocks = tools.table(x[some], y[some], "poisson")
    model = config.build(sparse_meta)
    roles = replace(model.settings.roles, level_exposures=(("a", tuple(t[0])), ("c", tuple(t[2]))))
    sparse = replace(model, settings=replace(model.settings, roles=roles))
    both = []
    for fitted, rows in ((whole, blocks), (sparse, sparse_blocks)):
        globals_, _ = tools.round_of(fitted.stages()[0].sweeps[0], rows, fitted.init(tools.step))
        for _ in range(5):
            for sweep in fitted.stages()[-1].sweeps:
                globals_, info = tools.round_of(sweep, rows, globals_)
        both.append((globals_, info["objective"]))
    assert both[0][1] == pytest.approx(both[1][1], rel=1e-10)
    for name in "abc":
        np.testing.assert_allclose(both[0][0].levels[name].one, both[1][0].levels[name].one, rtol=1e-8)
        np.testing.assert_allclose(both[0][0].levels[name].two, both[1][0].levels[name].two, rtol=1e-8)
    record = whole.record(both[0][0])
    data = {name: x[:, g].astype(np.int32) for g, name in enumerate("abc")}
    wanted = whole.predict(Block(0, 0, len(x), 1, data | {"exposure": exposure[:, None]}), {}, record, "y")
    found = sparse.predict(Block(0, 0, len(x), 1, data), {}, sparse.record(both[1][0]), "y")
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
