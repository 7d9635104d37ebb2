"""What comes out of sparse group factor analysis: closing pass, record, scores of samples, predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from factorflow.kernels import device
from factorflow.kernels.linalg import diagonal
from factorflow.kernels.special import softplus
from factorflow.models.contract import Array, Block, Info, Step, Sweep, Variable
from factorflow.models.sparse_gfa.groups import scatter_rows
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.pseudo import expected_scores
from factorflow.models.sparse_gfa.root import change_basis, select_factors
from factorflow.models.sparse_gfa.samples import apply_transform, by_noise_group, refresh
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.start import new_view
from factorflow.models.sparse_gfa.state import Explained, Fixed, Globals, Local, Weights, expected_weights

__all__ = ["ClosingSweep", "predict", "record", "restore", "rows", "variables"]

_PROJECTION_PASSES = 50
_CERTAIN = 1e6
"""Samples that restored parameters of the scores count for: E[log beta] and E[log psi] are then the
logarithms of the recorded means. With the means alone as counts a spike is never or always there."""


@dataclass(frozen=True)
class ClosingStats:
    """Sums of squares on the data scale: of the data by feature and group, and of residuals.

    ``count``, ``total``, ``squares`` (G, all features); ``residual`` (G, M, 2 + K): about the prediction by
    all factors, and by each alone.
    """

    count: Array
    total: Array
    squares: Array
    residual: Array


@dataclass(frozen=True)
class ClosingSweep(Sweep[Globals, Local, ClosingStats]):
    """Last pass: variance explained on the data scale, then factors in order and signs fixed.

    Factors are ordered by the share of the variance they explain, summed over views. The sign of each is
    such that its largest loading in absolute value, on the scale of the model, over all views is positive.
    """

    settings: Settings
    name: ClassVar[str] = "closing"

    def map(
        self, block: Block, local: Local | None, globals_: Globals, step: Step
    ) -> tuple[Local | None, ClosingStats]:
        """Add up residual sums of squares of the block."""
        settings = self.settings
        new = final_scores(settings, block, local, globals_)
        codes, scores = settings.group_codes(block), expected_scores(new)[0]
        residual = np.zeros((settings.n_groups, len(settings.views), 2 + globals_.n_factors))
        moments: list[list[Array]] = []
        for g in range(settings.n_groups):
            mine = slice(None) if settings.n_groups == 1 else codes == g
            parts = [np.zeros((3, 0))]
            for m, view in enumerate(settings.views):
                values = block.data[view.name]
                if settings.n_groups > 1:
                    values = values[device.beside(mine, values)]
                parts.append(np.stack(gfa.column_moments(values)))
                residual[g, m] = _residuals(settings, view.name, values, scores[mine], globals_)
            moments.append(list(np.concatenate(parts, axis=1)))
        count, total, squares = (np.stack(column) for column in zip(*moments, strict=True))
        return (new if settings.stateful else None), ClosingStats(count, total, squares, residual)

    def update(self, globals_: Globals, stats: ClosingStats, step: Step) -> tuple[Globals, Info]:
        """Put the factors in order and fix their signs."""
        settings = self.settings
        total = _total_squares(settings, stats)
        intercepts = stats.residual[:, :, -1:]
        # A factor explains what it takes from the residual of the intercepts: nothing, if it has no loadings.
        single = stats.residual[:, :, 1:-1] + (total[:, :, None] - intercepts)
        share = 1.0 - single.sum(axis=0) / np.maximum(total.sum(axis=0), 1e-300)[:, None]
        order = np.argsort(-share.sum(axis=0), kind="stable")
        ordered = select_factors(replace(globals_, transform=None), order)
        sign = _signs(settings, ordered)
        turned = change_basis(settings, ordered, np.diag(sign), np.diag(sign))
        explained = Explained(total, stats.residual[:, :, 0], single[:, :, order])
        return replace(turned, phase="update", explained=explained), {}


def _total_squares(settings: Settings, stats: ClosingStats) -> Array:
    """Return sums of squares about the mean of each feature over all samples, (G, M)."""
    mean = stats.total.sum(axis=0) / np.maximum(stats.count.sum(axis=0), 1.0)
    by_feature = stats.squares - 2.0 * mean * stats.total + stats.count * mean**2
    cuts = np.cumsum([0] + [view.n_features for view in settings.views])[:-1]
    return np.add.reduceat(by_feature, cuts, axis=1)


def _signs(settings: Settings, globals_: Globals) -> Array:
    stacked = np.concatenate([expected_weights(globals_.weights[v.name])[0] for v in settings.views])
    largest = stacked[np.abs(stacked).argmax(axis=0), np.arange(stacked.shape[1])]
    return np.where(largest < 0, -1.0, 1.0)


def _residuals(settings: Settings, name: str, values: Array, scores: Array, globals_: Globals) -> Array:
    """Return residual sums of squares about predictions by all factors, by each alone, by none, (2 + K,)."""
    fixed, weights = globals_.fixed[name], globals_.weights[name]
    loadings = expected_weights(weights)[0] * fixed.scale[:, None]
    intercept = weights.intercept * fixed.scale + fixed.reference
    ones = np.ones(len(intercept))
    none = np.zeros((len(loadings), 1))  # a factor without loadings stands for the intercepts alone
    scores, loadings = np.column_stack([scores, scores[:, :1]]), np.column_stack([loadings, none])
    return gfa.residual_squares(values, scores, loadings, intercept, ones, settings.view(name).likelihood)


def final_scores(settings: Settings, block: Block, local: Local | None, globals_: Globals) -> Local:
    """Return q(z) of a block given the globals; of samples not seen before, by repeated updates."""
    codes = settings.group_codes(block)
    before = apply_transform(local, globals_)
    globals_ = replace(globals_, transform=None, phase="update")
    passes = 1
    if settings.stateful and before is None:
        before, passes = _unknown(settings, block.n_rows, globals_.n_factors), _PROJECTION_PASSES
    for _ in range(passes):
        parts = by_noise_group(settings, block.data, codes, before)
        done = [(r, refresh(settings, data, c, old, globals_, g).local) for g, r, data, c, old in parts]
        after = done[0][1] if settings.n_noise_groups == 1 else scatter_rows(done, block.n_rows)
        if before is not None and np.abs(after.mean - before.mean).max(initial=0.0) < 1e-5:
            return after
        before = after
    return after


def _unknown(settings: Settings, n_rows: int, n_factors: int) -> Local:
    """Return q(z) of samples of which nothing is known."""
    shape, noise = (n_rows, n_factors), None
    if settings.sample_noise:
        noise = np.ones((n_rows, len(settings.views)))
    inclusion = np.ones(shape) if settings.scores_spike else None
    return Local(np.zeros(shape), np.ones(shape), inclusion, noise, noise)


def rows(settings: Settings, block: Block, local: Local | None, globals_: Globals) -> dict[str, Array]:
    """Return the variables with a row for each sample."""
    final = final_scores(settings, block, local, globals_)
    mean, spread = expected_scores(final)
    spread = diagonal(spread, mean.shape[1])
    out = {"scores": np.array(mean), "scores_variance": np.array(np.broadcast_to(spread, mean.shape))}
    if final.inclusion is not None:
        out["scores_inclusion"] = final.inclusion
    if final.noise_shape is not None:
        out["sample_precision"] = final.noise_shape / final.noise_rate
    if settings.n_noise_groups > 1:
        out["noise_group"] = settings.group_codes(block).astype(np.float64)
    return out


def variables(settings: Settings) -> tuple[Variable, ...]:
    """Return the table of variables."""
    by_group: tuple[str, ...] = ("group",) if settings.groups else ()
    table = [
        Variable("scores", ("obs", "factor"), "Expected score of a sample on a factor, E[z].", rows=True),
        Variable("scores_variance", ("obs", "factor"), "Variance of a score, Var z.", rows=True),
        Variable(
            "alpha", ("view", "factor"), "Precision of the loadings that are not 0, on the model's scale."
        ),
        Variable(
            "variance_explained",
            (*by_group, "view", "factor"),
            "Share of the variance of a view that a factor explains.",
        ),
        Variable("variance_explained_total", (*by_group, "view"), "Share that all factors explain together."),
        Variable("intercept_mean", ("view",), "Mean of the intercepts of a view, m, on the model's scale."),
        Variable("intercept_precision", ("view",), "Precision of the intercepts about it, lambda."),
    ]
    if settings.spike != "none":
        table.append(Variable("theta", ("view", "factor"), "Share of loadings that are not 0."))
    if settings.scores_prior != "normal":
        table.append(Variable("score_precision", (*by_group, "factor"), "Prior precision of scores, beta."))
    if settings.scores_spike:
        table.append(Variable("score_theta", (*by_group, "factor"), "Share of scores that are not 0, psi."))
        table.append(
            Variable("scores_inclusion", ("obs", "factor"), "Probability that a score is not 0.", rows=True)
        )
    if settings.sample_noise:
        table.append(
            Variable("sample_precision", ("obs", "view"), "Noise precision of a sample, rho.", rows=True)
        )
    if settings.n_noise_groups > 1:
        table.append(Variable("noise_group", ("obs",), "Group whose noise precision holds.", rows=True))
    for view in settings.views:
        table += _view_variables(settings, view.name)
    return tuple(table)


def _view_variables(settings: Settings, name: str) -> list[Variable]:
    feature = f"feature_{name}"
    table = [
        Variable(f"loadings_{name}", (feature, "factor"), "Expected loading in data units, E[w]."),
        Variable(f"loadings_variance_{name}", (feature, "factor"), "Variance of a loading, Var w."),
        Variable(
            f"intercept_{name}", (feature,), "Intercept in data units, b (with the mean subtracted first)."
        ),
        Variable(f"intercept_variance_{name}", (feature,), "Variance of the intercept, v_b."),
        Variable(f"scale_{name}", (feature,), "Data units in one unit of the model."),
    ]
    if settings.spike != "none":
        table.append(
            Variable(f"inclusion_{name}", (feature, "factor"), "Probability that a loading is not 0.")
        )
    if settings.view(name).likelihood == "gaussian" and settings.feature_noise:
        dims = ("group", feature) if settings.n_noise_groups > 1 else (feature,)
        table.append(Variable(f"noise_precision_{name}", dims, "Noise precision in data units, E[tau]."))
    return table


def record(settings: Settings, globals_: Globals) -> dict[str, Array]:
    """Return the variables without a row for each sample."""
    views = [globals_.views[v.name] for v in settings.views]
    explained, grouped = globals_.explained, bool(settings.groups)
    m, k = len(views), globals_.n_factors
    if explained is None:
        nothing = np.full((settings.n_groups, m, k), np.nan)
        share, everything = nothing, nothing[:, :, 0]
    else:
        total = np.maximum(explained.total, 1e-300)
        share, everything = 1.0 - explained.single / total[:, :, None], 1.0 - explained.residual / total
    out = {
        "alpha": np.stack([v.alpha for v in views]),
        "variance_explained": share if grouped else share[0],
        "variance_explained_total": everything if grouped else everything[0],
        "intercept_mean": np.array([v.intercept_mean for v in views]),
        "intercept_precision": np.array([v.intercept_shape / v.intercept_rate for v in views]),
    }
    if settings.spike != "none":
        out["theta"] = np.stack([v.theta_on / (v.theta_on + v.theta_off) for v in views])
    if settings.scores_prior != "normal":
        beta = globals_.beta_shape / globals_.beta_rate
        out["score_precision"] = beta if grouped else beta[0]
    if settings.scores_spike:
        psi = globals_.psi_on / (globals_.psi_on + globals_.psi_off)
        out["score_theta"] = psi if grouped else psi[0]
    for view in settings.views:
        out |= _view_record(settings, view.name, globals_)
    return out


def _view_record(settings: Settings, name: str, globals_: Globals) -> dict[str, Array]:
    weights, fixed = globals_.weights[name], globals_.fixed[name]
    mean, spread = expected_weights(weights)
    spread = diagonal(spread, mean.shape[1])
    scale = fixed.scale
    out = {
        f"loadings_{name}": mean * scale[:, None],
        f"loadings_variance_{name}": spread * scale[:, None] ** 2,
        f"intercept_{name}": weights.intercept * scale + fixed.reference,
        f"intercept_variance_{name}": weights.intercept_variance * scale**2,
        f"scale_{name}": scale,
    }
    if settings.spike != "none":
        ones = np.ones(mean.shape)
        out[f"inclusion_{name}"] = ones if weights.inclusion is None else weights.inclusion
    if weights.noise_shape is not None:
        precision = settings.precision(name, weights) / scale[:, None] ** 2
        out[f"noise_precision_{name}"] = precision[:, 0] if precision.shape[1] == 1 else precision.T.copy()
    return out


def restore(settings: Settings, variables: Mapping[str, Array]) -> Globals:
    """Return globals from recorded variables: good for scores of new samples and for predictions."""
    k = variables["alpha"].shape[1]
    ones = np.ones((settings.n_groups, k))
    fixed, weights, views = {}, {}, {}
    for m, view in enumerate(settings.views):
        fixed[view.name], weights[view.name] = _restore_view(settings, view.name, variables)
        fresh = new_view(settings, view.name, weights[view.name], fixed[view.name])
        views[view.name] = replace(
            fresh,
            alpha_shape=np.asarray(variables["alpha"][m]),
            intercept_mean=float(variables["intercept_mean"][m]),
            intercept_shape=float(variables["intercept_precision"][m]),
        )
        if settings.spike != "none":
            theta = np.asarray(variables["theta"][m])
            views[view.name] = replace(views[view.name], theta_on=theta, theta_off=1.0 - theta)
    beta = np.reshape(variables.get("score_precision", ones), ones.shape)
    psi = np.reshape(variables.get("score_theta", 0.5 * ones), ones.shape)
    return Globals(
        fixed,
        weights,
        views,
        {},
        _CERTAIN * beta,
        _CERTAIN * ones,
        _CERTAIN * psi,
        _CERTAIN * (1.0 - psi),
        np.eye(k),
        np.ones((len(views), k)),
        phase="update",
    )


def _restore_view(settings: Settings, name: str, variables: Mapping[str, Array]) -> tuple[Fixed, Weights]:
    scale = np.asarray(variables[f"scale_{name}"])
    mean = variables[f"loadings_{name}"] / scale[:, None]
    spread = variables[f"loadings_variance_{name}"] / scale[:, None] ** 2
    intercept = np.asarray(variables[f"intercept_{name}"])
    zero = np.zeros(len(scale))
    reference = zero
    if settings.view(name).likelihood == "gaussian":
        reference, intercept = intercept, zero
    noise = None
    if f"noise_precision_{name}" in variables:
        noise = np.atleast_2d(variables[f"noise_precision_{name}"]).T * scale[:, None] ** 2
    gamma = variables.get(f"inclusion_{name}")
    slab, variance = mean, spread
    if gamma is not None:
        gamma = np.asarray(gamma)
        safe = np.maximum(gamma, 1e-300)
        slab = mean / safe
        variance = np.maximum((spread + mean**2) / safe - slab**2, 0.0)
    ones = None if noise is None else np.ones_like(noise)
    weights = Weights(
        slab, variance, gamma, intercept, variables[f"intercept_variance_{name}"] / scale**2, noise, ones
    )
    nothing = np.zeros((len(scale), settings.n_noise_groups))
    return Fixed(reference, scale, reference, nothing, nothing, nothing), weights


def predict(
    settings: Settings, rows: Mapping[str, Array], record: Mapping[str, Array], name: str
) -> tuple[Array, Array]:
    """Return mean and standard deviation of new observations, (B, D) each, on the data scale.

    The variance of x = b + w'z has the parts of b, of z (as if scores were independent), and of w.
    """
    scores, uncertain = np.asarray(rows["scores"]), np.asarray(rows["scores_variance"])
    loadings, spread = np.asarray(record[f"loadings_{name}"]), np.asarray(record[f"loadings_variance_{name}"])
    x = scores @ loadings.T + record[f"intercept_{name}"]
    variance = (scores**2 + uncertain) @ spread.T + uncertain @ (loadings**2).T
    variance += record[f"intercept_variance_{name}"]
    likelihood = settings.view(name).likelihood
    if likelihood == "bernoulli":
        # E[sigma(x)] by MacKay's approximation
        mean = 1.0 / (1.0 + np.exp(-x / np.sqrt(1.0 + np.pi / 8.0 * variance)))
        return mean, np.sqrt(mean * (1.0 - mean))
    if likelihood == "poisson":
        slope = 1.0 / (1.0 + np.exp(-x))
        mean = softplus(x) + 0.5 * slope * (1.0 - slope) * variance
        return mean, np.sqrt(mean + slope**2 * variance)
    return x, np.sqrt(variance + 1.0 / _noise_precision(settings, rows, record, name))


def _noise_precision(
    settings: Settings, rows: Mapping[str, Array], record: Mapping[str, Array], name: str
) -> Array:
    """Return the expected noise precision of each entry, broadcastable to (B, D)."""
    precision = 1.0 / np.asarray(record[f"scale_{name}"]) ** 2
    if f"noise_precision_{name}" in record:
        precision = np.asarray(record[f"noise_precision_{name}"])
        if precision.ndim == 2:
            precision = precision[np.asarray(rows["noise_group"]).astype(int)]
    if "sample_precision" in rows:
        index = [view.name for view in settings.views].index(name)
        precision = precision * np.asarray(rows["sample_precision"])[:, index, None]
    return precision
