"""State of the identity/attribute model: globals, local state and statistics.

Shapes: D features of a view, P identities, Q attributes, K = P Q columns of the loadings (attribute q of
identity p is p Q + q), B frames of a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64

from factorflow.models.contract import Array, Gather, wide
from factorflow.models.identity_attribute.dynamics import Dynamics


@dataclass(frozen=True)
class Standardisation:
    """Location and scale of the features of a view.

    Parameters
    ----------
    location, scale : array
        Subtracted from the values, then divided by; one scale for all features of a view.
    """

    location: Float64[np.ndarray, " D"]
    scale: Float64[np.ndarray, " D"]


@dataclass(frozen=True)
class Weights:
    """q of the loadings and of the noise of a view.

    Parameters
    ----------
    mean, variance : array
        Of w_kpq.
    shape, rate : array
        d' and e' of rho_k.
    shift : array
        m_k: what is there when no identity is, from the location.
    """

    mean: Float64[np.ndarray, "D K"]
    variance: Float64[np.ndarray, "D K"]
    shape: Float64[np.ndarray, " D"]
    rate: Float64[np.ndarray, " D"]
    shift: Float64[np.ndarray, " D"]

    @property
    def precision(self) -> Float64[np.ndarray, " D"]:
        """E rho."""
        return np.asarray(self.shape / self.rate)


@dataclass(frozen=True)
class Globals:
    """Global variables.

    Parameters
    ----------
    relevance : array
        gamma: precision of the prior of each column of the loadings.
    transition : array
        u': Dirichlet parameters of the rows of T.
    dynamics : array
        eta', f', g', h' of q(lambda).
    expected : Dynamics
        Expectations that follow from them.
    edges : Gather
        First and last frames of the blocks.
    boundary : Gather
        What a scan over all blocks found on both sides of each.
    unit : array
        What attributes are measured in: an M-step may choose another one. `Frames` and `Chains` have that of
        the iteration which they are of (`in_unit`).
    missing : array
        Share of what q(lambda) rests on that no data have told; 0 before that is looked at (`missing`).
    uncertain : mapping of str to array
        By view, the share of the noise of a feature that is uncertainty of x = a b; empty before that.
    """

    fixed: Mapping[str, Standardisation] = field(metadata=wide())
    weights: Mapping[str, Weights] = field(metadata=wide())
    relevance: Float64[np.ndarray, " K"]
    transition: Float64[np.ndarray, "2 2"]
    dynamics: Float64[np.ndarray, "4 K"]
    expected: Dynamics
    edges: Gather
    boundary: Gather
    unit: Float64[np.ndarray, " K"]
    missing: Float64[np.ndarray, " K"]
    uncertain: Mapping[str, Float64[np.ndarray, " D"]] = field(default_factory=dict, metadata=wide())


@dataclass(frozen=True)
class Frames:
    """q(b_tp, a_tp) of frames, of every identity by itself (equation 20).

    Parameters
    ----------
    present : array
        Q(b_tp = 1).
    on, off : array
        Mean of a_tp where b_tp is 1 and where it is 0.
    entropy : array
        Of all b of a frame.
    unit : array
        What attributes are measured in.
    """

    present: Float64[Array, "B P"]
    on: Float64[Array, "B K"]
    off: Float64[Array, "B K"]
    entropy: Float64[Array, " B"]
    unit: Float64[Array, " K"]


@dataclass(frozen=True)
class Halves:
    """Frames of a block: a sweep changes one half of them, and hands on the other as it is.

    Parameters
    ----------
    even, odd : Frames
        Even and odd frames of their sequences, each in order, in units of their own.
    """

    even: Frames
    odd: Frames


@dataclass(frozen=True)
class Track:
    """q(b_1:T,p) and q(a_1:T,p) of one identity (equation 19): what one frame and its predecessor share.

    Parameters
    ----------
    present, joint, earlier : array
        Q(b_t = 1), Q(b_t-1 = 1, b_t = 1) and Q(b_t-1 = 1); the latter two are 0 in first frames.
    present_entropy, mean_entropy : array
        Their sums over a block are those of all b, and all a, given the frame before it.
    mean, covariance : array
        Of a_t.
    cross : array
        E a_t a_t-1 of each attribute; 0 in first frames.
    """

    present: Float64[Array, " B"]
    joint: Float64[Array, " B"]
    earlier: Float64[Array, " B"]
    present_entropy: Float64[Array, " B"]
    mean_entropy: Float64[Array, " B"]
    mean: Float64[Array, "B Q"]
    covariance: Float64[Array, "B Q Q"]
    cross: Float64[Array, "B Q"]


@dataclass(frozen=True)
class Chains:
    """The posterior that keeps the correlations between frames (equation 19).

    Parameters
    ----------
    activity : array
        E a b of all identities.
    residual : array
        Of complete data: E W' rho y. Where entries are missing: y - E W a b of those that are not.
    evidence : array
        Of the identity that is updated: E W' rho (y - part of all others).
    unit : array
        What attributes are measured in.
    """

    tracks: tuple[Track, ...]
    activity: Float64[Array, "B K"]
    residual: Float64[Array, "B _"]
    evidence: Float64[Array, "B Q"]
    unit: Float64[Array, " K"]


@dataclass(frozen=True)
class Edge:
    """What the neighbour of a block needs of its first and of its last frame: Q(b = 1) and E a."""

    first_present: Array
    last_present: Array
    first_mean: Array
    last_mean: Array


@dataclass(frozen=True)
class ViewStats:
    """Sums over frames of the entries of a view; x = a b.

    Parameters
    ----------
    n, total, squares : array
        Observed entries, sums of y and of y^2.
    active : array
        Sum of E x over the frames in which a feature is observed.
    cross : array
        r: sum of y E x.
    second : array or None
        R: sum of E x x', packed, where frames of single features may be missing; else `Stats.second` has it.
    """

    n: Float64[np.ndarray, " D"]
    total: Float64[np.ndarray, " D"]
    squares: Float64[np.ndarray, " D"]
    active: Float64[np.ndarray, "D K"]
    cross: Float64[np.ndarray, "D K"]
    second: Float64[np.ndarray, "D pairs"] | None


@dataclass(frozen=True)
class Moments:
    """Sums over frames and identities that no view enters.

    Parameters
    ----------
    pairs : array
        Expected transitions of b, [from, to], over all identities.
    starts : array
        Expected b = 0 and b = 1 in first frames, over all identities.
    first, current, previous : array
        E a^2 in first frames, in all others, and in all that are not the last one.
    cross : array
        E a_t a_t-1.
    n_first, n_pairs : float
        First frames; pairs of neighbouring frames.
    entropy : float
        Of q(A, B).
    """

    pairs: Float64[np.ndarray, "2 2"]
    starts: Float64[np.ndarray, " 2"]
    first: Float64[np.ndarray, " K"]
    current: Float64[np.ndarray, " K"]
    previous: Float64[np.ndarray, " K"]
    cross: Float64[np.ndarray, " K"]
    n_first: float
    n_pairs: float
    entropy: float


@dataclass(frozen=True)
class Stats:
    """Sufficient statistics of the M-step.

    Parameters
    ----------
    second : mapping of str to array
        R of the views of which frames are missing whole or not at all.
    """

    views: Mapping[str, ViewStats] = field(metadata=wide())
    second: Mapping[str, Float64[np.ndarray, "K K"]]
    moments: Moments
    edges: Gather
