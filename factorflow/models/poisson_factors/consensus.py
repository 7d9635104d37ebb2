"""The last stage from what starts agree on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from factorflow.kernels.consensus import find_consensus
from factorflow.models.poisson_factors.settings import Settings
from factorflow.models.poisson_factors.start import choose, remember, start_programs
from factorflow.models.poisson_factors.state import Globals

CONSENSUS = "consensus"
"""Name of the start."""

LEAST = 1e-9
"""Share of a feature in a program at least."""


def start_from_consensus(settings: Settings, n_rows: int, globals_: Globals) -> Globals:
    """Return globals that begin with the consensus of all starts; their best where too few agree."""
    all_starts = remember(globals_)
    data = all_starts.data
    assert data is not None
    joined = np.concatenate(
        [np.swapaxes(all_starts.start_loadings[view.name], 1, 2) for view in settings.views], axis=2
    )
    agreement = find_consensus(joined / joined.sum(axis=2, keepdims=True), settings.n_factors)
    if len(agreement.programs) < settings.n_factors:
        return choose(globals_)
    level = sum(
        float((data.counts[view.name].sum(axis=0) / np.maximum(data.n_observed[view.name], 1.0)).sum())
        for view in settings.views
    )
    means = np.maximum(agreement.programs, LEAST).T * level / settings.n_factors
    edges = np.cumsum([0, *(view.n_features for view in settings.views)])
    beta = {view.name: means[a:b] for view, a, b in zip(settings.views, edges, edges[1:], strict=False)}
    return replace(all_starts, programs={CONSENSUS: start_programs(settings, data, n_rows, beta)})
