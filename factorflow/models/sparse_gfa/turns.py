"""Turns of two factors in their plane, z -> z R, by which a chain leaves mixtures of factors it began with.

The prior of z does not change, w and b of the two are integrated out, their s summed out: a Metropolis step
whose ratio is a sum over features (`kernels.turns`). Without it loadings that are 0 keep factors where they
are: chains that began with two factors mixed half and half stayed there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from factorflow.kernels.linalg import unpack
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Array, Step
from factorflow.models.sparse_gfa.drawn_sums import DrawnStats
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.trees import replace

__all__ = ["Turn", "tried_turn", "turned_scores"]

TURN_SITE = MODELS[12]
DECADES = 3.0
"""Half of the angles are uniform up to 45 degrees, past which names change; the others, log-uniform, go down
by so many powers of ten: the more features there are, the smaller are the angles that they allow."""


@dataclass(frozen=True)
class Turn:
    """A turn that a sweep tries: z_j becomes cos z_j + sin z_k, z_k becomes cos z_k - sin z_j.

    Parameters
    ----------
    plane : (int, int)
        j < k.
    cosine, sine : float
        Of the angle.
    log_uniform : float
        What log p has to gain, at least, for the turn to be taken.
    """

    plane: tuple[int, int]
    cosine: float
    sine: float
    log_uniform: float

    def matrix(self, n_factors: int) -> Float64[Array, "K K"]:
        """Return R of z -> z R, rows on the left."""
        (j, k), turned = self.plane, np.eye(n_factors)
        turned[j, j] = turned[k, k] = self.cosine
        turned[k, j], turned[j, k] = self.sine, -self.sine
        return turned


def tried_turn(settings: Settings, n_factors: int, step: Step) -> Turn | None:
    """Return the turn that a sweep tries; none of scores whose prior tells the factors apart."""
    if n_factors < 2 or settings.scores_prior != "normal":
        return None
    u = step.uniform(TURN_SITE, np.zeros(1, np.int64), 5)[0]
    j, k = int(u[0] * n_factors), int(u[1] * (n_factors - 1))
    k += k >= j
    size = 2.0 * abs(u[2] - 0.5)
    angle = 0.25 * np.pi * (size if u[3] < 0.5 else 10.0 ** (-DECADES * size)) * (1.0 if u[2] < 0.5 else -1.0)
    return Turn((min(j, k), max(j, k)), float(np.cos(angle)), float(np.sin(angle)), float(np.log(u[4])))


def turned_scores(stats: DrawnStats, turn: Turn) -> DrawnStats:
    """Return the sums over samples of the turned scores that draws of what they share need."""
    assert stats.first is not None
    k = stats.second.shape[1]
    r = turn.matrix(k)
    gram = unpack(stats.moments[None], k + 1)[0, :k, :k]
    return replace(stats, first=stats.first @ r, second=np.diag(r.T @ gram @ r)[None])
