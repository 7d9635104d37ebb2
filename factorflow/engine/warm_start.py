"""Warm starts: begin a run with the globals of an earlier fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.core.trees import Gather, map_gathers
from factorflow.errors import InputError
from factorflow.posterior.globals import StoredGlobals, n_sets

if TYPE_CHECKING:
    from factorflow.data import Dataset
    from factorflow.models.configuration import ModelConfig
    from factorflow.posterior.stored_posterior import StoredPosterior


@dataclass(frozen=True)
class Warm:
    """The globals that a run begins with, see `factorflow.models.contract.Model.warm`.

    Parameters
    ----------
    number : int
        Which of the stored sets is taken, of each chain.
    """

    stored: StoredGlobals
    number: int

    def globals_(self, chain: int) -> Any:
        """Return the globals of a chain without statistics gathered from the earlier data."""
        return map_gathers(self.stored.read(chain, self.number), lambda _: Gather.empty())


def warm_start(posterior: StoredPosterior, data: Dataset, config: ModelConfig) -> Warm:
    """Return the globals of a posterior as the start of a fit to other rows of the same features.

    Parameters
    ----------
    posterior : StoredPosterior
        The earlier fit; of a sampler its last stored draw is taken.

    Raises
    ------
    InputError
        When the two are of different models, groups or features.
    """
    identity = posterior.record.identity
    requested, fitted = config.model_dump(mode="json"), identity.config
    differing = [name for name in {**requested, **fitted} if requested.get(name) != fitted.get(name)]
    if differing:
        value = ", ".join(f"{name}={fitted.get(name)!r}" for name in differing)
        expected = ", ".join(f"{name}={requested.get(name)!r}" for name in differing)
        raise _warm_start_error(f"a fit with {value}", f"one of the same model: {expected}")
    meta = posterior.meta
    chosen = data.meta(config.views)
    if [(v.name, v.likelihood) for v in meta.views] != [(v.name, v.likelihood) for v in chosen.views]:
        raise _warm_start_error(_views(meta), f"one of the views of the data: {_views(chosen)}")
    for view in meta.views:
        ours, theirs = data.features(view.name), posterior.features(view.name)
        if not np.array_equal(np.asarray(ours, object), np.asarray(theirs, object)):
            raise _warm_start_error(
                f"a fit of {len(theirs)} features of view {view.name}",
                f"the {len(ours)} features of the data, of the same names in the same order",
            )
    if meta.groups != chosen.groups:
        raise _warm_start_error(f"a fit of groups {meta.groups}", f"the groups of the data: {chosen.groups}")
    stored, sets = StoredGlobals.of(posterior.tree, posterior.path), n_sets(posterior.tree)
    if not sets:
        raise _warm_start_error("a run that ended before its first draw", "a fit with draws")
    return Warm(stored, sets - 1)


def _views(meta: Any) -> str:
    return "a fit of " + ", ".join(f"{view.name} ({view.likelihood})" for view in meta.views)


def _warm_start_error(value: str, expected: str) -> InputError:
    return InputError("warm_start", value, expected, "Leave it out: the fit then starts anew.")
