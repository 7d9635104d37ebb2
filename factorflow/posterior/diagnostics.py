"""Convergence of a sampler, by arviz-stats, on draws with their factors aligned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from factorflow.posterior.stored_posterior import StoredPosterior


def diagnostics(posterior: StoredPosterior) -> pd.DataFrame:
    """Return ``r_hat``, ``ess_bulk`` and ``ess_tail`` of every entry of the draws of the global variables.

    R-hat is rank-normalised and split (Vehtari et al. 2021), over chains whose factors are aligned.

    Raises
    ------
    InputError
        For a variational posterior: R-hat says nothing about it.
    """
    import arviz_stats
    import pandas as pd
    import xarray as xr

    if posterior.kind == "variational":
        raise InputError(
            "posterior",
            "variational",
            "one of a sampler",
            "A variational posterior has no chains: look at its trace (in the report) and held-out scores.",
        )
    draws = posterior.tree["posterior"]
    names = [
        str(name)
        for name, variable in draws.data_vars.items()
        if {"chain", "draw"} <= set(variable.dims) and "obs" not in variable.dims
    ]
    stats_of: Any = arviz_stats
    data = xr.Dataset({name: posterior.draws(name) for name in names})
    with np.errstate(invalid="ignore", divide="ignore"):  # entries that never change have no R-hat
        stats = {
            "r_hat": stats_of.rhat(data, sample_dims=["chain", "draw"]),
            "ess_bulk": stats_of.ess(data, sample_dims=["chain", "draw"], method="bulk"),
            "ess_tail": stats_of.ess(data, sample_dims=["chain", "draw"], method="tail"),
        }
    parts = []
    for name in names:
        columns = {key: value[name] for key, value in stats.items()}
        if columns["r_hat"].ndim:
            table = pd.DataFrame({key: value.to_series() for key, value in columns.items()})
            table.index = pd.Index(
                [f"{name}[{', '.join(map(str, k if isinstance(k, tuple) else (k,)))}]" for k in table.index]
            )
        else:
            table = pd.DataFrame({key: [float(value)] for key, value in columns.items()}, index=[name])
        parts.append(table)
    return pd.concat(parts).rename_axis("variable")
