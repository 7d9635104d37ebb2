"""Draws from q, by inversion and from spikes and slabs: their moments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from factorflow.errors import InputError
from factorflow.posterior.draws import _draw

MEAN, VARIANCE = np.array([[0.2, 1.0], [5.0, 3.0]]), np.array([[0.01, 4.0], [2.0, 0.0]])
N = 4000


def array(values: np.ndarray) -> xr.DataArray:
    return xr.DataArray(values, dims=("a", "b"))


def test_gamma_draws_have_the_moments() -> None:
    """And are above 0; what has no variance is what it is."""
    drawn = _draw(array(MEAN), array(VARIANCE), None, (N, 1, 0), positive=True)
    assert drawn.shape == (1, N, 2, 2)
    assert (drawn > 0.0).all()
    np.testing.assert_allclose(drawn[0].mean(axis=0), MEAN, atol=5.0 * np.sqrt(VARIANCE.max() / N))
    np.testing.assert_allclose(drawn[0].mean(axis=0), MEAN, rtol=0.16)
    np.testing.assert_allclose(drawn[0].var(axis=0), VARIANCE, rtol=0.25)
    assert (drawn[0, :, 1, 1] == MEAN[1, 1]).all()


@pytest.mark.parametrize("positive", [False, True])
def test_spikes_and_slabs_have_the_moments(positive: bool) -> None:
    """Of all draws; those that are not 0 are as many as are included."""
    share = np.array([[0.3, 0.9], [1.0, 0.5]])
    variance = np.array([[0.4, 4.0], [2.0, 12.0]])
    drawn = _draw(array(MEAN), array(variance), array(share), (N, 1, 0), positive=positive)[0]
    assert not positive or (drawn >= 0.0).all()
    np.testing.assert_allclose((drawn != 0.0).mean(axis=0), share, atol=0.04)
    np.testing.assert_allclose(drawn.mean(axis=0), MEAN, atol=5.0 * np.sqrt(variance.max() / N))
    np.testing.assert_allclose(drawn.var(axis=0), variance, rtol=0.25)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5])
def test_seeds_that_would_stand_for_others_are_refused(given: Any, seed: Any) -> None:
    """Keys are taken modulo 2^64."""
    with pytest.raises(InputError, match=f"seed = {seed}: expected an integer from 0"):
        given.posterior.sample(3, seed)
