"""Results of an identity/attribute model: variables, intervals and predictions, on the data scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Bool, Float64

from factorflow.core.trees import map_leaves
from factorflow.kernels import device
from factorflow.models.contract import Array, Block, Variable
from factorflow.models.identity_attribute.chain_updates import product_moments, rescale_chains
from factorflow.models.identity_attribute.dynamics import quantiles, temper_dynamics
from factorflow.models.identity_attribute.frame_statistics import compute_covariances, conditional_covariances
from factorflow.models.identity_attribute.frame_updates import (
    compute_means,
    initialize_frames,
    rescale_frames,
)
from factorflow.models.identity_attribute.settings import Settings
from factorflow.models.identity_attribute.state import Chains, Globals, Halves
from factorflow.models.identity_attribute.tables import Tables

BOUNDS = {"lower": 0.025, "upper": 0.975}
"""Labels of the ends of intervals, and the probability below them."""

_SHARES = np.array(list(BOUNDS.values()))


@dataclass(frozen=True)
class Rows:
    """Posterior moments of the frames of a block; x = a b.

    Parameters
    ----------
    present : array
        Q(b = 1).
    attributes, variance : array
        Mean and variance of a.
    activity, covariance : array
        Mean of x, and its covariance within each identity.
    """

    present: Float64[np.ndarray, "B P"]
    attributes: Float64[np.ndarray, "B P Q"]
    variance: Float64[np.ndarray, "B P Q"]
    activity: Float64[np.ndarray, "B P Q"]
    covariance: Float64[np.ndarray, "B P Q Q"]


def compute_rows(settings: Settings, block: Block, local: Halves | Chains | None, tables: Tables) -> Rows:
    """Return posterior moments of the frames of a block."""
    c, block, local = settings.hyper, device.block_on_host(block), map_leaves(device.on_host, local)
    shape = block.n_rows, c.n_identities, c.n_attributes
    if isinstance(local, Chains):
        local = rescale_chains(local, tables)
        x, covariance = product_moments(local.tracks)
        present = np.stack([t.present for t in local.tracks], axis=1)
        a = np.stack([t.mean for t in local.tracks], axis=1)
        variance = np.stack([np.einsum("tqq->tq", t.covariance) for t in local.tracks], axis=1)
        return Rows(present, a, variance, x.reshape(shape), covariance)
    now = rescale_frames(settings, block, local or initialize_frames(settings, block, tables), tables)
    observed = settings.observed(block, tables.location, tables.scale)
    place = settings.place(block)
    covariances = conditional_covariances(observed, place, tables)
    x, a = (part.reshape(shape) for part in compute_means(now))
    b, on, off = now.present[:, :, None], now.on.reshape(shape), now.off.reshape(shape)
    inner = np.einsum("mpqq->mpq", covariances.inverse)[covariances.which]
    alone = (1.0 / tables.precision)[place].reshape(shape)
    variance = b * inner + (1.0 - b) * alone + b * (1.0 - b) * (on - off) ** 2
    return Rows(now.present, a, variance, x, compute_covariances(now, covariances))


def variables(settings: Settings) -> tuple[Variable, ...]:
    """Return the table of variables."""
    p, q = settings.hyper.n_identities, settings.hyper.n_attributes
    column = ("identity", "attribute")

    def by_column(values: Float64[np.ndarray, "... K"]) -> Float64[np.ndarray, "... P Q"]:
        return values.reshape(*values.shape[:-1], p, q)

    out = [
        Variable(
            "transition",
            ("state", "next_state"),
            "T, mean",
            lambda g: g.transition / g.transition.sum(axis=1, keepdims=True),
        ),
        Variable(
            "transition_counts", ("state", "next_state"), "u': its Dirichlet rows", lambda g: g.transition
        ),
        Variable(
            "transition_interval", ("state", "next_state", "bound"), "T, 95 % interval", _transition_bounds
        ),
        Variable("dynamics", column, "lambda, mean: autocorrelation", lambda g: by_column(g.expected.mean)),
        Variable(
            "dynamics_variance", column, "lambda, variance of q", lambda g: by_column(g.expected.variance)
        ),
        Variable(
            "dynamics_interval",
            (*column, "bound"),
            "lambda, 95 % interval, of as much as the data tell",
            lambda g: quantiles(temper_dynamics(g.dynamics, g.missing), _SHARES).reshape(p, q, 2),
        ),
        Variable(
            "dynamics_missing",
            column,
            "share of what q(lambda) rests on that no data tell; 0: not known, of frames one by one",
            lambda g: by_column(g.missing),
        ),
        Variable(
            "dynamics_parameters",
            ("parameter", *column),
            "eta', f', g', h' of q(lambda)",
            lambda g: by_column(g.dynamics),
        ),
        Variable(
            "relevance",
            column,
            "gamma: precision of the prior of the loadings, values scaled to variance 1",
            lambda g: by_column(g.relevance),
        ),
    ]
    for view in settings.views:
        out += _view_variables(view.name, by_column)
    rows = partial(Variable, rows=True)
    return (
        *out,
        rows("present", ("obs", "identity"), "Q(b = 1)", lambda r: r.present),
        rows("attributes", ("obs", *column), "a, mean", lambda r: r.attributes),
        rows("attributes_variance", ("obs", *column), "a, variance", lambda r: r.variance),
        rows("activity", ("obs", *column), "x = a b, mean", lambda r: r.activity),
        rows(
            "activity_covariance",
            ("obs", *column, "other_attribute"),
            "covariance of x within an identity",
            lambda r: r.covariance,
        ),
    )


def _view_variables(view: str, by_column: Callable[[Array], Array]) -> list[Variable]:
    """Return the variables of a view."""
    feature = f"feature_{view}"
    column = (feature, "identity", "attribute")

    def scale(g: Globals) -> Float64[np.ndarray, " D"]:
        return g.fixed[view].scale

    def missing(g: Globals) -> Float64[np.ndarray, " D"]:
        return np.asarray(1.0 - (1.0 - g.uncertain.get(view, np.zeros(len(scale(g))))) ** 2)

    def bounds(g: Globals) -> Float64[np.ndarray, "D 2"]:
        from scipy.special import gammaincinv

        w = g.weights[view]
        share = 1.0 - missing(g)
        return np.asarray(
            gammaincinv((share * w.shape)[:, None], _SHARES) / (share * w.rate * scale(g) ** 2)[:, None]
        )

    def of(name: str, power: int) -> Callable[[Globals], Array]:
        return lambda g: by_column(getattr(g.weights[view], name) * scale(g)[:, None] ** power)

    return [
        Variable(f"loadings_{view}", column, "w, mean", of("mean", 1)),
        Variable(f"loadings_variance_{view}", column, "w, variance", of("variance", 2)),
        Variable(
            f"intercept_{view}",
            (feature,),
            "m: the values where no identity is present",
            lambda g: g.fixed[view].location + scale(g) * g.weights[view].shift,
        ),
        Variable(
            f"precision_{view}",
            (feature,),
            "rho, mean: precision of the noise",
            lambda g: g.weights[view].precision / scale(g) ** 2,
            positive=True,
        ),
        Variable(
            f"precision_variance_{view}",
            (feature,),
            "rho, variance",
            lambda g: g.weights[view].shape / (g.weights[view].rate * scale(g) ** 2) ** 2,
        ),
        Variable(
            f"precision_interval_{view}",
            (feature, "bound"),
            "rho, 95 % interval, of as much as the data tell",
            bounds,
        ),
        Variable(
            f"precision_missing_{view}",
            (feature,),
            "share of what q(rho) rests on that no data tell; 0: not known, of frames one by one",
            missing,
        ),
        Variable(
            f"residual_variance_{view}",
            (feature,),
            "E 1 / rho: variance of the noise",
            lambda g: g.weights[view].rate / np.maximum(g.weights[view].shape - 1.0, 1e-3) * scale(g) ** 2,
        ),
    ]


def _transition_bounds(g: Globals) -> Float64[np.ndarray, "2 2 2"]:
    from scipy.special import betaincinv

    own, other = g.transition, g.transition[:, ::-1]
    return np.asarray(betaincinv(own[:, :, None], other[:, :, None], _SHARES))


def predict(
    rows: Mapping[str, Array], record: Mapping[str, Array], view: str
) -> tuple[Float64[np.ndarray, "B D"], Float64[np.ndarray, "B D"]]:
    """Return mean and standard deviation of new observations of the given frames of a view."""
    x, covariance = rows["activity"], rows["activity_covariance"]
    weights, variance = record[f"loadings_{view}"], record[f"loadings_variance_{view}"]
    n, d = len(x), len(weights)
    mean = record[f"intercept_{view}"] + x.reshape(n, -1) @ weights.reshape(d, -1).T
    pairs = weights[:, :, :, None] * weights[:, :, None, :]
    spread = covariance.reshape(n, -1) @ pairs.reshape(d, -1).T
    second = np.einsum("npqq->npq", covariance) + x**2
    spread += second.reshape(n, -1) @ variance.reshape(d, -1).T
    return mean, np.sqrt(np.maximum(spread, 0.0) + record[f"residual_variance_{view}"])


def one_step(
    settings: Settings,
    record: Mapping[str, Array],
    values: Mapping[str, Float64[np.ndarray, "n D"]],
    first: Bool[np.ndarray, " n"],
    rounds: int = 10,
) -> dict[str, Array]:
    """Return what is predicted of each frame from the frames of its sequence before it.

    Parameters
    ----------
    record : mapping of str to array
        The stored variables that have no rows.
    values : mapping of str to array
        Frames of each view in order, NaN where missing.
    first : array
        Whether a sequence begins; at the first row one does in any case.
    rounds : int
        Updates of all identities in a frame, once it is seen.

    Returns
    -------
    dict
        ``present`` (n, P); ``mean_<view>`` and ``sd_<view>`` (n, D) of a new observation; ``log_density``
        (n,), a lower bound of log p(y_t | y_1 ... y_t-1) with the parameters at their means.
    """
    from factorflow.kernels.compile import compile_scalar
    from factorflow.models.identity_attribute.kernels.filtering import filter_frames

    c, n = settings.hyper, len(first)

    def concatenate(name: str) -> Array:
        return settings.concatenate_views({v.name: record[f"{name}_{v.name}"] for v in settings.views})

    location = concatenate("intercept")
    y = np.concatenate([values[view.name] for view in settings.views], axis=1) - location
    observed = np.isfinite(y).astype(np.float64)
    dynamics = np.ascontiguousarray(record["dynamics"])
    present, density = np.empty((n, c.n_identities)), np.empty(n)
    mean = np.empty((n, c.n_identities, c.n_attributes))
    covariance = np.empty((*mean.shape, c.n_attributes))
    compile_scalar(filter_frames)(
        np.where(observed > 0, y, 0.0),
        observed,
        np.ascontiguousarray(first),
        np.ascontiguousarray(concatenate("loadings")),
        np.ascontiguousarray(concatenate("loadings_variance")),
        np.ascontiguousarray(concatenate("precision")),
        np.ascontiguousarray(record["transition"]),
        c.initial,
        c.variance,
        dynamics,
        dynamics**2 + record["dynamics_variance"],
        rounds,
        present,
        mean,
        covariance,
        density,
    )
    b = present[:, :, None]
    spread = b[..., None] * (covariance + (1.0 - b)[..., None] * mean[..., None] * mean[:, :, None, :])
    rows = {"activity": b * mean, "activity_covariance": spread}
    out: dict[str, Array] = {"present": present, "log_density": density}
    for view in settings.views:
        out[f"mean_{view.name}"], out[f"sd_{view.name}"] = predict(rows, record, view.name)
    return out
