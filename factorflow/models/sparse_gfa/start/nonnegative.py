"""From scores about a mean of 0 to scores that are 0 or positive: signs of factors, and where their 0 lies.

In the warm-up scores are normal, and entries are about their means. Behind its varimax rotation scores are
white: those of parts that are independent of each other are what was simulated, but for sign and place. With
z -> z + c, b -> b - W c no predictor changes.

- Signs are those that loadings want, where some may not be negative; else scores are skewed to the right.
- With intercepts c puts all but few of the scores of a factor above 0. Without, b is 0 in data units, and c
  follows from it: W c is the mean of the features, by non-negative least squares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.kernels.linalg import diagonal
from factorflow.models.contract import Array, Block, Info, Step, Sweep
from factorflow.models.sparse_gfa.projection import project_scores
from factorflow.models.sparse_gfa.pseudo_data import PreparedGlobals, expected_scores
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Globals, Local
from factorflow.models.sparse_gfa.stored_scores import rotated_scores, scores_or_blank
from factorflow.models.sparse_gfa.weights import Weights, expected_weights, sum_pairs, transformed_weights

BELOW = 0.02
"""Share of the scores of a factor that may lie below 0 where the fit begins: errors put some there."""
EDGES = np.linspace(-6.0, 6.0, 241)
"""Of the classes that white scores are counted in, to know where the lowest are."""


@dataclass(frozen=True)
class ScoreSums:
    """Sums over the scores of a block: powers 1 to 3 of E z, and numbers of them by class (`EDGES`)."""

    powers: Float64[np.ndarray, "3 K"]
    classes: Float64[np.ndarray, "E K"]


@dataclass(frozen=True)
class ShiftSweep(Sweep[Globals, Local, ScoreSums]):
    """One pass over the scores of the warm-up, which the sparse stage begins with."""

    settings: Settings
    name: ClassVar[str] = "shift"

    def prepare(self, globals_: Globals) -> PreparedGlobals:
        """Return the globals with tables that all blocks read."""
        return PreparedGlobals(self.settings.warm_up, globals_)

    def map(
        self, block: Block, local: Local | None, prepared: PreparedGlobals, step: Step
    ) -> tuple[Local, ScoreSums]:
        """Return independent scores of a block that have no prior of 0, and what they add up."""
        warm, globals_ = self.settings.warm_up, prepared.globals_
        local = scores_or_blank(warm, block, rotated_scores(local, globals_), globals_)
        new = project_scores(warm, block, local, prepared)
        mean, spread = expected_scores(new)
        variance = np.broadcast_to(diagonal(spread, mean.shape[1]), mean.shape).copy()
        class_of = np.searchsorted(EDGES, mean.T)
        classes = np.stack([np.bincount(one, minlength=len(EDGES) + 1) for one in list(class_of)], axis=1)
        powers = np.stack([(mean**n).sum(axis=0) for n in (1, 2, 3)])
        return replace(new, mean=mean, variance=variance, inclusion=np.ones(mean.shape)), ScoreSums(
            powers, classes.astype(np.float64)
        )

    def update(self, globals_: Globals, stats: ScoreSums, step: Step) -> tuple[Globals, Info]:
        """Turn factors, and put the 0 of their scores where it is."""
        settings, n = self.settings, float(self.settings.n_rows)
        mean, square, cube = stats.powers / n
        sign = np.ones(len(mean))
        if all(view.prior.signed for view in settings.views):
            sign = np.where(cube - 3.0 * mean * square + 2.0 * mean**3 < 0.0, -1.0, 1.0)
        shift = -_lowest(stats.classes, sign)
        weights = {name: transformed_weights(w, np.diag(sign)) for name, w in globals_.weights.items()}
        levels = {
            view.name: globals_.fixed[view.name].location / globals_.fixed[view.name].scale
            for view in settings.views
            if view.is_scaled and not settings.intercepts
        }
        if levels:
            shift = _parts_of_means(settings, weights, levels) - sign * mean
        views = dict(globals_.views)
        for name, mine in weights.items():
            coefficients = mine.coefficients.copy()
            moved = expected_weights(mine)[0] @ shift
            if name in levels:
                coefficients[:, 0] = -levels[name]
            elif settings.intercepts:
                coefficients[:, 0] -= moved
            weights[name] = replace(mine, coefficients=coefficients)
            views[name] = replace(
                views[name], pairs=sum_pairs(weights[name], settings.precision(name, weights[name]))
            )
        new = replace(
            globals_,
            weights=weights,
            views=views,
            scores=replace(globals_.scores, mean=sign * mean + shift),
            change=replace(globals_.change, transform=np.diag(sign), shift=shift),
        )
        observed = sum(float(fixed.count.sum()) for fixed in globals_.fixed.values())
        return new, {"objective": 0.0, "observed": observed}


def _lowest(classes: Float64[Array, "E K"], sign: Float64[Array, " K"]) -> Float64[Array, " K"]:
    """Return what a share `BELOW` of the scores of each factor lies under, after changes of sign."""
    turned = np.where(sign > 0.0, classes, classes[::-1])
    share = np.cumsum(turned, axis=0) / turned.sum(axis=0)
    return EDGES[np.minimum((share > BELOW).argmax(axis=0), len(EDGES) - 1)]


def _parts_of_means(
    settings: Settings, weights: dict[str, Weights], levels: dict[str, Float64[Array, " D"]]
) -> Float64[Array, " K"]:
    """Return non-negative means of scores that make up the means of features without intercepts."""
    from scipy.optimize import nnls

    size = {name: np.sqrt(settings.information(name, weights[name])) for name in levels}
    loadings = np.concatenate([size[name][:, None] * expected_weights(weights[name])[0] for name in levels])
    return np.asarray(nnls(loadings, np.concatenate([size[name] * levels[name] for name in levels]))[0])
