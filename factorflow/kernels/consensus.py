"""Programs, or factors, that several starts agree on: nearest neighbours, clusters, medians.

The steps are those of cNMF: programs of all starts are distributions over the features, taken as vectors of
length 1. The distance of a program is its mean distance to its nearest neighbours, 0.3 of the number of
starts; those above a threshold are left out. K-means puts the others into groups, whose medians are the
consensus. The stability of a group is its mean silhouette: 1 where starts find the same program, about 0
where it lies between two.

Factors have no sign: their distance is that of the nearer of v and -v, k-means is that of v v', whose
products are squares of those of v, and in a group each has the sign in which it is like the others.

References
----------
Kotliar, Veres, ..., Sabeti (2019), eLife 8, e43803.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64, Int64

__all__ = ["NEAREST", "THRESHOLD", "Consensus", "find_consensus"]

NEAREST = 0.3
"""Neighbours that a distance is the mean of, as a share of the starts."""

THRESHOLD = 0.5
"""Distance above which a program is left out."""

RESTARTS, ITERATIONS = 10, 100
"""Runs of k-means, and its iterations."""


@dataclass(frozen=True)
class Consensus:
    """What starts agree on.

    Parameters
    ----------
    programs : array
        Medians of the groups, of programs scaled to sum to 1, (C, D).
    stability : array
        Mean silhouette of each group, (C,).
    labels : array
        Group of each program, -1 where it is left out, (S, K).
    distance : array
        Mean distance to the nearest neighbours, (S, K); NaN where a start has fewer.
    """

    programs: Float64[np.ndarray, "C D"]
    stability: Float64[np.ndarray, " C"]
    labels: Int64[np.ndarray, "S K"]
    distance: Float64[np.ndarray, "S K"]


def find_consensus(
    programs: Float[np.ndarray, "S K D"], n_groups: int, threshold: float = THRESHOLD, *, signed: bool = False
) -> Consensus:
    """Return the programs that starts agree on, those that most agree on first.

    Parameters
    ----------
    programs : array
        Of each start, distributions over the features; or loadings of either sign, NaN where a start has
        fewer factors.
    n_groups : int
        Groups wanted; fewer where fewer programs are left.
    threshold : float
        Distance above which a program is left out.
    """
    n_starts, n_programs, n_features = programs.shape
    every = np.asarray(programs, np.float64).reshape(n_starts * n_programs, n_features)
    available = np.flatnonzero(np.isfinite(every).all(axis=1) & every.any(axis=1))
    flat = every[available]
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    cosines = unit @ unit.T
    between = np.sqrt(np.maximum(2.0 - 2.0 * (np.abs(cosines) if signed else cosines), 0.0))
    np.fill_diagonal(between, 0.0)
    n_nearest = max(1, min(int(NEAREST * n_starts), len(flat) - 1))
    nearest = (
        np.sort(between, axis=1)[:, 1 : n_nearest + 1].mean(axis=1) if len(flat) > 1 else np.zeros(len(flat))
    )
    chosen = np.flatnonzero(nearest <= threshold)
    labels, distance = np.full(len(every), -1), np.full(len(every), np.nan)
    distance[available] = nearest
    consensus, stability = np.zeros((0, n_features)), np.zeros(0)
    if chosen.size:
        products = unit[chosen] @ unit[chosen].T
        groups = _cluster(products**2 if signed else products, min(n_groups, chosen.size))
        order = np.argsort(-np.bincount(groups), kind="stable")
        groups = np.argsort(order)[groups]
        labels[available[chosen]] = groups
        signs = _signs(products, groups) if signed else np.ones(chosen.size)
        members = flat[chosen] * signs[:, None]
        medians = np.stack([np.median(members[groups == g], axis=0) for g in range(len(order))])
        if signed:
            largest = np.take_along_axis(medians, np.abs(medians).argmax(axis=1)[:, None], axis=1)
            consensus = np.where(largest < 0.0, -medians, medians)
        else:
            consensus = medians / np.maximum(medians.sum(axis=1, keepdims=True), 1e-300)
        stability = _silhouettes(between[np.ix_(chosen, chosen)], groups)
    shape = n_starts, n_programs
    return Consensus(consensus, stability, labels.reshape(shape), distance.reshape(shape))


def _signs(
    products: Float64[np.ndarray, "N N"], groups: Int64[np.ndarray, " N"]
) -> Float64[np.ndarray, " N"]:
    """Return the sign of each factor in which it is like that of its group that is most like the others."""
    signs = np.ones(len(groups))
    for group in range(int(groups.max()) + 1):
        mine = np.flatnonzero(groups == group)
        own = products[np.ix_(mine, mine)]
        signs[mine] = np.where(own[np.abs(own).sum(axis=1).argmax()] < 0.0, -1.0, 1.0)
    return signs


def _cluster(products: Float64[np.ndarray, "N N"], n_groups: int) -> Int64[np.ndarray, " N"]:
    """Return the group of each point by k-means, of which none is empty, given the products of the points.

    Centres are means of points: nothing else is needed of these.
    """
    generator = np.random.default_rng(0)
    squares = np.diagonal(products)
    best, least = np.zeros(len(products), np.int64), np.inf
    for _ in range(RESTARTS):
        labels = _first_groups(products, squares, n_groups, generator)
        for _ in range(ITERATIONS):
            member = (labels[:, None] == np.arange(n_groups)).astype(float)
            member /= np.maximum(member.sum(axis=0), 1.0)
            cross = products @ member
            away = squares[:, None] - 2.0 * cross + (member * cross).sum(axis=0)
            after = away.argmin(axis=1)
            for group in np.flatnonzero(np.bincount(after, minlength=n_groups) == 0):
                own = np.take_along_axis(away, after[:, None], 1)[:, 0]
                shared = np.bincount(after, minlength=n_groups)[after] > 1
                after[np.where(shared, own, -1.0).argmax()] = group
            if (after == labels).all():
                break
            labels = after
        total = float(np.take_along_axis(away, labels[:, None], 1).sum())
        if total < least - 1e-12:
            best, least = labels, total
    return np.asarray(best, np.int64)


def _first_groups(
    products: Float64[np.ndarray, "N N"],
    squares: Float64[np.ndarray, " N"],
    n_groups: int,
    generator: np.random.Generator,
) -> Int64[np.ndarray, " N"]:
    """Return groups around points that lie far from each other (k-means++)."""
    centres = [int(generator.integers(len(squares)))]
    away = squares + squares[centres[0]] - 2.0 * products[:, centres[0]]
    distances = [away]
    while len(centres) < n_groups:
        weight = np.maximum(np.min(distances, axis=0), 0.0)
        weight[centres] = 0.0
        total = weight.sum()
        left = np.setdiff1d(np.arange(len(squares)), centres)
        new = int(generator.choice(len(squares), p=weight / total)) if total > 0.0 else int(left[0])
        centres.append(new)
        distances.append(squares + squares[new] - 2.0 * products[:, new])
    labels = np.argmin(distances, axis=0)
    labels[centres] = np.arange(n_groups)
    return np.asarray(labels)


def _silhouettes(
    between: Float64[np.ndarray, "N N"], groups: Int64[np.ndarray, " N"]
) -> Float64[np.ndarray, " C"]:
    """Return the mean silhouette of each group; 0 of one that is alone, or of a program."""
    n_groups = int(groups.max()) + 1
    sizes = np.bincount(groups, minlength=n_groups)
    member = (groups[:, None] == np.arange(n_groups)).astype(float)
    sums = between @ member
    rows = np.arange(len(groups))
    inside = sums[rows, groups] / np.maximum(sizes[groups] - 1, 1)
    others = sums / sizes
    others[rows, groups] = np.inf
    outside = others.min(axis=1)
    has_others = (sizes[groups] > 1) & np.isfinite(outside)
    width = np.maximum(inside, np.where(has_others, outside, 0.0))
    silhouette = np.where(
        has_others & (width > 0),
        (np.where(has_others, outside, 0.0) - inside) / np.maximum(width, 1e-300),
        0.0,
    )
    return np.asarray((silhouette @ member) / sizes)
