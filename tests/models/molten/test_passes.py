"""The loops over rows against sums that NumPy takes row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

from factorflow.models import MoltenPoisson
from factorflow.models.molten import passes
from factorflow.models.molten.kernels import priors, row_scalars
from factorflow.models.molten.rows import blank_table, prepare_rows
from factorflow.models.molten.scales import best_scales

TABLES = {
    "long runs": (2, 2, 40),
    "short runs": (20, 30, 400),
    "two inner variables": (150, 160, 170),
    "one variable": (7,),
    "codes of 32 bits": (3, 70_000),
}


@pytest.mark.thorough
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("n_components", [3, 8])
@pytest.mark.parametrize("levels", TABLES.values(), ids=TABLES)
def test_sums_of_a_block(levels: tuple[int, ...], n_components: int, alike: bool, tools: Any) -> None:
    """Shares of all variables and products of each: of long and short runs, and what eight leave over."""
    rng, n = np.random.default_rng(5), 5003
    codes = np.column_stack([rng.integers(0, size, n) for size in levels])
    codes[0] = np.array(levels) - 1
    y = rng.poisson(0.8, n).astype(float)
    weight = np.ones(n) if alike else rng.gamma(2.0, 1.0, n)
    meta, (block,) = tools.table(codes, y, "poisson", **({} if alike else {"exposure": weight}))
    settings = MoltenPoisson(n_components=n_components).build(meta).settings
    rows, table = prepare_rows(settings, block), blank_table(settings, 1, n_components)[0]
    assert rows.runs is not None
    kinds = {x.dtype for x in rows.runs.inner.values()}
    assert kinds == {np.dtype(np.int32 if sum(levels) > 2**16 else np.uint16)}
    table[:-1, :n_components] = np.exp(-rng.gamma(1.0, 8.0, (len(table) - 1, n_components)))
    factors = [table[settings.starts[g] + codes[:, g]] for g in range(len(levels))]
    rho = np.prod(factors, axis=0)
    counts, fit = passes.shares(rows, table)
    assert fit == pytest.approx(y @ np.log(rho.sum(axis=1)), rel=1e-13)
    shares = rho * (y / rho.sum(axis=1))[:, None]
    for g, name in enumerate(settings.names):
        place = settings.place(name)
        found = passes.products(
            block, rows, rows.weight, table, (0, ((),) * len(levels)), g, range(*place.indices(1 << 30))
        )
        others = np.prod(
            [f for i, f in enumerate(factors) if i != g] or np.ones((1, n, table.shape[1])), axis=0
        )
        others[:, n_components:] = 0.0
        for sums, each in ((counts[place], shares), (found[:, :], weight[:, None] * others)):
            expected = np.zeros(sums.shape)
            np.add.at(expected, codes[:, g], each)
            np.testing.assert_allclose(
                sums[:, :n_components], expected[:, :n_components], rtol=1e-11, atol=1e-290
            )


def test_ratios_and_logarithms_of_eight_rows() -> None:
    """From one division, of numbers of any size; of a group that is not full the rest count for nothing."""

    @njit
    def both(y: Any, x: Any, each: Any) -> Any:
        fit, n_rows = row_scalars.zeros(), each.size
        for n in range(0, n_rows, 8):
            left = min(8, n_rows - n)
            weights, values = row_scalars.load_first(y, n, left), row_scalars.load_first(x, n, 8)
            fit = row_scalars.add_weighted_logs(fit, weights, values)
            row_scalars.store_scalars(each, n, row_scalars.divide(weights, values))
        return row_scalars.sum_scalars(fit)

    rng = np.random.default_rng(6)
    x = np.concatenate([np.exp(rng.uniform(-660, 660, 4000)), rng.uniform(0.5, 2.0, 4000), [1.0] * 8])
    y = rng.integers(1, 9, x.size).astype(np.float32)
    each = np.empty(x.size)
    assert both(y, x, each) == pytest.approx(y.astype(float) @ np.log(x), rel=1e-14, abs=1e-9)
    np.testing.assert_allclose(each, y / x, rtol=1e-15)
    for number in (1.0, np.nextafter(1.0, 2.0), np.sqrt(0.5), np.sqrt(2.0), 3.7, 1e-280):
        one, weights = np.full(8, number), np.ones(8, np.float32)
        assert both(weights, one, np.empty(8)) / 8 == pytest.approx(np.log(number), rel=1e-15, abs=1e-16)
        part = np.empty(8)[:3]
        assert both(weights, one, part) / 3 == pytest.approx(np.log(number), rel=1e-15, abs=1e-16)


def test_inverse_digamma_is_that_of_scipy() -> None:
    from scipy.special import digamma

    shape, found = 10.0 ** np.linspace(-2, 3, 200), np.empty(200)
    priors.inverse_digamma(digamma(shape), found)
    np.testing.assert_allclose(found, shape, rtol=1e-12)


def test_scales_of_equal_variables_are_one() -> None:
    np.testing.assert_allclose(best_scales(np.full((3, 1, 2), 4.0), np.full((3, 1, 2), 4.0)), 1.0, rtol=1e-14)
