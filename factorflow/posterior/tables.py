"""Predictions of the rows of a new table, by a model that was fitted to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.core.block import without_values
from factorflow.errors import InputError
from factorflow.posterior.prediction import Predictor

if TYPE_CHECKING:
    import xarray as xr

    from factorflow.posterior.stored_posterior import StoredPosterior


def predict_table(posterior: StoredPosterior, source: Any) -> xr.Dataset:
    """Return ``mean`` and ``sd`` of the rows of a table, (obs,), in its order (`Posterior.predict`).

    Parameters
    ----------
    posterior : StoredPosterior
        Of a dataset that `factorflow.write_table` made.

    Raises
    ------
    InputError
        When the model was fitted to something else, or explains rows by what it learned of each of them.
    """
    import xarray as xr

    from factorflow.data.tables.encode import encode_blocks

    design = posterior.meta.design
    if design is None:
        raise InputError(
            "view",
            f"an object of type {type(source).__name__}" if not isinstance(source, str) else source,
            f"one of {', '.join(posterior.views)}",
            "Tables are predicted by models of a dataset that write_table made.",
        )
    predictor = Predictor(posterior, design.response)
    views_there = [view for view in design.variables if view in posterior.views]
    levels = {view: posterior.features(view).tolist() for view in views_there}
    means, sds = [np.zeros(0)], [np.zeros(0)]
    for block in encode_blocks(source, design, levels):
        mean, sd = predictor.of_block(without_values(block, posterior.meta))
        means.append(mean[:, 0])
        sds.append(sd[:, 0])
    labels = np.asarray(source.index) if hasattr(source, "iloc") else np.arange(sum(map(len, means)))
    variables = {
        "mean": ("obs", np.concatenate(means), {"long_name": "Expected value, on the data scale."}),
        "sd": ("obs", np.concatenate(sds), {"long_name": "Standard deviation of a new observation."}),
    }
    return xr.Dataset(variables, coords={"obs": labels})
