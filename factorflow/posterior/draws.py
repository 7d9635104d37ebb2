"""Draws from a variational distribution, on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.errors import InputError
from factorflow.kernels.linalg import unpack
from factorflow.kernels.random import Step
from factorflow.kernels.sites import DRAWS

if TYPE_CHECKING:
    import xarray as xr

    from factorflow.posterior.stored_posterior import StoredPosterior


def check_seed(seed: int) -> None:
    """Refuse a seed that is not an integer of 64 bits."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 64:
        raise InputError("seed", seed, "an integer from 0 to 2^64 - 1", "For example 0.")


def with_draws(posterior: StoredPosterior, n_draws: int, seed: int) -> xr.DataTree:
    """Return the tree of a posterior with a group ``posterior``: draws of all that has a variance beside it.

    Entries are independent in the draws: correlations between factors, where a model keeps them, are not
    recorded. Where there is an inclusion probability too, an entry is 0 with one minus that probability.
    Covariates that are not known are drawn together with the scores of their sample.

    Raises
    ------
    InputError
        For a sampler, which has draws of its own.
    """
    import xarray as xr

    if posterior.kind != "variational":
        raise InputError("posterior", posterior.kind, "a variational one", "A sampler has draws of its own.")
    if n_draws < 1:
        raise InputError("n_draws", n_draws, "at least 1", "For example 100.")
    check_seed(seed)
    group = posterior.tree["variational"]
    names = [str(name) for name in group.data_vars if partner(str(name), "variance") in group.data_vars]
    variables, positive = {}, {variable.name for variable in posterior.model.table if variable.positive}
    for i, name in enumerate(names):
        spike = partner(name, "inclusion")
        inclusion = posterior.variable(spike) if spike in group.data_vars else None
        variance = posterior.variable(partner(name, "variance"))
        key = n_draws, seed, i
        try:
            mean = posterior.variable(name)
            values = _draw(mean, variance, inclusion, key, positive=name in positive)
        except MemoryError as error:
            raise InputError("n_draws", n_draws, "draws that fit in memory", f"{error}.") from error
        variables[name] = (("chain", "draw", *group[name].dims), values)
    if "scores_covariance" in group.data_vars:
        scores = variables["scores"][1]
        covariates = _with_covariates(posterior, scores, (n_draws, seed, len(names)), "scores" in positive)
        names.append("covariates")
        variables["covariates"] = (("chain", "draw", *group["covariates"].dims), covariates)
    coords: dict[Any, Any] = {"chain": [0], "draw": np.arange(n_draws)}
    used = {dim for name in names for dim in group[name].dims}
    coords |= {dim: group.coords[dim].values for dim in group.coords if dim in used}
    dataset = xr.Dataset(variables, coords=coords, attrs={**group.attrs, "inference_method": "variational"})
    groups = {node.path: node.to_dataset(inherit=False) for node in posterior.tree.subtree}
    return xr.DataTree.from_dict(groups | {"/posterior": dataset})


def partner(name: str, kind: str) -> str:
    """Return the variable that belongs to another: loadings_variance_rna, inclusion_rna to loadings_rna."""
    what, _, view = name.partition("_")
    if kind == "inclusion":
        return f"inclusion_{view}" if what == "loadings" else f"{name}_inclusion"
    return f"{what}_{kind}_{view}" if view else f"{what}_{kind}"


def _with_covariates(
    posterior: StoredPosterior, scores: NDArray[Any], key: tuple[int, int, int], positive: bool
) -> NDArray[Any]:
    """Return draws of the covariates (1, n_draws, N, P), and draw the scores beside unknown ones with these.

    Scores that may not be negative are independent of them, and stay.
    """
    n_draws, seed, number = key
    packed = np.asarray(posterior.variable("scores_covariance").values, float)
    means = [np.asarray(posterior.variable(name).values, float) for name in ("scores", "covariates")]
    rows, k = np.flatnonzero(packed.any(axis=1)), means[0].shape[1]
    size, basis = np.linalg.eigh(unpack(packed[rows], k + means[1].shape[1]))
    root = basis * np.sqrt(np.maximum(size, 0.0))[:, None, :]
    out = np.tile(means[1], (1, n_draws, 1, 1))
    for draw in range(n_draws):
        normals = Step(seed, 0, draw).normal(DRAWS[2 * number], rows, root.shape[1])
        moved = (root @ normals[:, :, None])[:, :, 0]
        out[0, draw, rows] += moved[:, k:]
        if not positive:
            scores[0, draw, rows] = means[0][rows] + moved[:, :k]
    return out


def _entries(centre: NDArray[Any]) -> tuple[int, int]:
    """Return the numbers that noise is keyed by, and the words that each takes."""
    return (len(centre), int(np.prod(centre.shape[1:]))) if centre.ndim else (1, 1)


def _draw(
    mean: xr.DataArray,
    variance: xr.DataArray,
    inclusion: xr.DataArray | None,
    key: tuple[int, int, int],
    *,
    positive: bool,
) -> NDArray[Any]:
    """Return draws (1, n_draws, ...) of independent normals or Gammas, or of spikes and slabs of these.

    Moments are those of the posterior. ``key`` holds the number of draws, the seed and the number of the
    variable, which takes two noise sites.
    """
    n_draws, seed, number = key
    site, spikes = DRAWS[2 * number], DRAWS[2 * number + 1]
    centre, spread = np.asarray(mean.values, float), np.asarray(variance.values, float)
    share = np.ones_like(centre) if inclusion is None else np.asarray(inclusion.values, float)
    safe = np.maximum(share, 1e-12)
    slab = centre / safe
    squared = spread
    if inclusion is not None or not positive:
        squared = np.maximum((spread + centre**2) / safe - slab**2, 0.0)
    n, words = _entries(centre)
    out = np.empty((1, n_draws, *centre.shape))
    for draw in range(n_draws):
        step = Step(seed, 0, draw)
        if positive:
            uniform = step.uniform(site, np.arange(n), words).reshape(centre.shape)
            out[0, draw] = _gamma(slab, squared, uniform)
        else:
            noise = step.normal(site, np.arange(n), words).reshape(centre.shape)
            out[0, draw] = slab + np.sqrt(squared) * noise
        if inclusion is not None:
            uniform = step.uniform(spikes, np.arange(n), words).reshape(centre.shape)
            out[0, draw] *= uniform < share
    return out


def _gamma(mean: NDArray[Any], variance: NDArray[Any], uniform: NDArray[Any]) -> NDArray[Any]:
    """Return draws of Gammas by inversion; the mean where that is all there is."""
    from scipy.special import gammaincinv

    is_point = (variance <= 0.0) | (mean <= 0.0)
    shape = mean**2 / np.where(is_point, 1.0, variance)
    scale = variance / np.where(is_point, 1.0, mean)
    return np.where(is_point, mean, gammaincinv(shape, uniform) * scale)
