"""A posterior for ArviZ: aligned draws and, on request, the log-likelihood of every observed entry.

The log-likelihood of an entry under a draw is that of its predictive distribution with the draw in the place
of what is uncertain: of a sampler one draw of globals and factors, of a variational posterior one draw from q
with the variances of what was drawn set to 0. What has no draws stays as predictions have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from factorflow.errors import InputError
from factorflow.posterior.draws import partner
from factorflow.posterior.labels import as_slice, names_of_rows
from factorflow.posterior.prediction import Predictor
from factorflow.posterior.predictive import log_density

if TYPE_CHECKING:
    import xarray as xr

    from factorflow.posterior.stored_posterior import StoredPosterior

MOST_BYTES = 4 << 30
"""Largest pointwise log-likelihood that is computed: ArviZ copies it several times."""

TIE = 1e-9
"""Nats by which equal draws are told apart: Pareto smoothing fails where many draws of the tail are equal, as
under a loading that is 0 in many draws."""

KEPT = ("sample_stats", "constant_data")
"""Groups that are taken along as they are."""


def arviz_tree(
    posterior: StoredPosterior, views: Sequence[str], rows: NDArray[np.intp], *, samples: bool
) -> xr.DataTree:
    """Return the tree of a posterior for ArviZ (`Posterior.to_arviz`).

    Parameters
    ----------
    posterior : StoredPosterior
        Of a sampler, or a variational one with draws from q.
    samples : bool
        Whether draws of variables of the samples are taken along.

    Raises
    ------
    InputError
        Without draws, or when the log-likelihood would be too large.
    """
    import xarray as xr

    _check_draws(posterior)
    draws = posterior.tree["posterior"]
    names = [
        str(name)
        for name, variable in draws.data_vars.items()
        if {"chain", "draw"} <= set(variable.dims) and (samples or "obs" not in variable.dims)
        if variable.size  # without factors many are empty, of which ArviZ can tell nothing
    ]
    aligned = posterior.kind == "monte carlo"
    arrays = {name: posterior.draws(name) if aligned else draws[name].load() for name in names}
    groups = {"posterior": xr.Dataset(arrays, attrs=draws.attrs)}
    groups |= {name: posterior.tree[name].to_dataset() for name in KEPT if name in posterior.tree.children}
    by_view = [_log_likelihood(posterior, view, rows) for view in views]
    for place, group in enumerate(("log_likelihood", "observed_data")):
        if by_view:
            groups[group] = xr.merge([parts[place] for parts in by_view]).assign_attrs(draws.attrs)
    tree = xr.DataTree.from_dict(groups)
    tree.attrs.update(posterior.tree.attrs)
    return tree


def _check_draws(posterior: StoredPosterior) -> None:
    if posterior.kind == "variational" and "posterior" not in posterior.tree.children:
        raise InputError(
            "posterior",
            "variational",
            "one with draws",
            "Draw from it first: posterior.sample(n_draws=500).to_arviz().",
        )
    posterior.check_draws()


def _log_likelihood(
    posterior: StoredPosterior, view: str, rows: NDArray[np.intp]
) -> tuple[xr.Dataset, xr.Dataset]:
    """Return log p of the shown entries of a view under every draw, and the entries."""
    import xarray as xr

    drawn_posterior, entry = _DrawnPosterior(posterior, view), f"entry_{view}"
    blocks = _visible_entries(posterior, view, rows)
    n_entries = sum(len(values) for _, _, values in blocks)
    if 8 * drawn_posterior.n_chains * drawn_posterior.n_draws * n_entries > MOST_BYTES:
        draws = f"{drawn_posterior.n_chains} x {drawn_posterior.n_draws} draws"
        raise InputError(
            "log_likelihood",
            f"{n_entries:,} entries of {view} under {draws}",
            f"at most {MOST_BYTES >> 30} GiB in all",
            "Select fewer samples with start and stop.",
        )
    out = np.empty((drawn_posterior.n_chains, drawn_posterior.n_draws, n_entries))
    first = 0
    for mine, where, values in blocks:
        out[:, :, first : first + len(values)] = drawn_posterior.entry_log_likelihood(mine, where, values)
        first += len(values)
    out -= _tie_breaks(drawn_posterior.n_chains, drawn_posterior.n_draws)[:, :, None]
    numbers = np.concatenate([mine[where[0]] for mine, where, _ in blocks])
    features = np.concatenate([where[1] for _, where, _ in blocks])
    names = np.asarray(posterior.features(view), dtype=object)[features]
    coords = {f"obs_{view}": (entry, names_of_rows(posterior, numbers)), f"feature_{view}": (entry, names)}
    dims = ("chain", "draw", entry)
    chains = {"chain": np.arange(drawn_posterior.n_chains), "draw": np.arange(drawn_posterior.n_draws)}
    observed = np.concatenate([values for _, _, values in blocks])
    return (
        xr.Dataset({view: xr.Variable(dims, out, {"long_name": "log p(y), nats"})}, coords=coords | chains),
        xr.Dataset({view: (entry, observed)}, coords=coords),
    )


def _tie_breaks(n_chains: int, n_draws: int) -> Float64[np.ndarray, "C M"]:
    """Return an amount below some 20 `TIE` for every draw, distributed as an exponential variable."""
    golden = 0.5 * (np.sqrt(5.0) - 1.0)
    even = np.mod(golden * np.arange(1, n_chains * n_draws + 1), 1.0)
    return np.asarray(-TIE * np.log1p(-even)).reshape(n_chains, n_draws)


Piece = tuple[NDArray[np.intp], tuple[NDArray[Any], NDArray[Any]], NDArray[Any]]


def _visible_entries(posterior: StoredPosterior, view: str, rows: NDArray[np.intp]) -> list[Piece]:
    """Return the entries that the model saw, block by block: rows, places among them, values."""
    from factorflow.data import Holdout

    dataset = posterior.data
    holdout = Holdout.of(posterior.run, dataset.design)
    number = rows // dataset.block_rows
    pieces = []
    for block_number in np.unique(number):
        mine = rows[number == block_number]
        block = dataset.block(int(block_number), [view], holdout)
        y, observed = dataset.views[view].kind.fill_missing(block.data[view][mine - block.start])
        row, feature = np.nonzero(observed)
        pieces.append((mine, (row, feature), np.asarray(y[row, feature], float)))
    return pieces


class _DrawnPosterior:
    """Predictions of a view under one draw at a time."""

    def __init__(self, posterior: StoredPosterior, view: str) -> None:
        self.posterior, self.view = posterior, view
        self._predictor = Predictor(posterior, view)
        self._drawn = posterior.tree["posterior"].to_dataset()
        self._sampled = posterior.kind == "monte carlo"
        self.n_chains, self.n_draws = self._drawn.sizes["chain"], self._drawn.sizes["draw"]
        kinds = ("variance", "covariance")
        self._spreads = {partner(str(name), kind) for name in self._drawn.data_vars for kind in kinds}
        table = posterior.model.table
        of_rows = [v for v in table if v.rows]
        self._rows = [v.name for v in of_rows if v.draws or v.of_data or not self._sampled]
        if self._sampled and of_rows and not any(v.draws for v in of_rows):
            raise InputError(
                "log_likelihood",
                posterior.run["config"].get("model"),
                "a run that stored the draws of the factors",
                "Fit with {store_factors}.",
                store_factors=True,
            )
        self._record = {v.name: self._values(v.name, None) for v in table if not v.rows}

    def entry_log_likelihood(
        self, rows: NDArray[np.intp], where: tuple[NDArray[Any], NDArray[Any]], values: NDArray[Any]
    ) -> Float64[np.ndarray, "C M E"]:
        """Return log p of some entries of some rows under all draws (C chains, M draws, E entries)."""
        model, view = self.posterior.model, self.view
        likelihood = model.likelihood(view)
        block = self._predictor.block(rows)
        roles = {role: of_rows[where[0]] for role, of_rows in model.row_roles(block, view).items()}
        local = {name: self._values(name, rows) for name in self._rows}
        out = np.empty((self.n_chains, self.n_draws, len(values)))
        for chain, draw in np.ndindex(self.n_chains, self.n_draws):
            one = self._one(local, chain, draw), self._one(self._record, chain, draw)
            predictive = model.predictive(block, *one, view)
            if predictive is not None:
                out[chain, draw] = predictive.at(where).log_density(values)
                continue
            mean, sd = model.predict(block, *one, view)
            out[chain, draw] = log_density(likelihood, values, mean[where], sd[where], roles)
        return out

    def _values(self, name: str, rows: NDArray[np.intp] | None) -> NDArray[Any]:
        """Return the draws of a variable; without draws what is stored, or no variance of what was drawn."""
        array = self._drawn[name] if name in self._drawn else self.posterior.array(name)
        values = np.asarray((array if rows is None else array.isel(obs=as_slice(rows))).values)
        return np.zeros_like(values) if name in self._spreads and name not in self._drawn else values

    def _one(
        self, hidden_values: Mapping[str, NDArray[Any]], chain: int, draw: int
    ) -> dict[str, NDArray[Any]]:
        """Return variables at one draw as predictions take them: of a sampler with (chain, draw) in front."""
        place: tuple[Any, Any] = chain, draw
        if self._sampled:
            place = slice(chain, chain + 1), slice(draw, draw + 1)
        return {
            name: values[place] if name in self._drawn else values for name, values in hidden_values.items()
        }
