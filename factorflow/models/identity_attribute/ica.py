"""Initial loadings: principal components, independent components, pairs by their energy.

Hyvaerinen (1999), IEEE Transactions on Neural Networks 10, 626-634: the fixed-point iteration, with symmetric
decorrelation. Sources of one identity come and go together, so that their squares are correlated. What
that leaves open, a rotation within each identity, follows from their autocorrelations: Tong, Liu, Soon and
Huang (1991), IEEE Transactions on Circuits and Systems 38, 499-509.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int

RANK = 1e-9
"""Components with less than this share of the largest variance are taken for none."""


def whiten(
    rows: Float64[np.ndarray, "n D"], n_components: int
) -> tuple[Float64[np.ndarray, "n r"], Float64[np.ndarray, "D r"]]:
    """Return principal components of variance 1, and what maps them to the rows.

    Parameters
    ----------
    rows : array
        Centred.
    n_components : int
        Components at most; fewer where the rows have a lower rank.
    """
    n, d = rows.shape
    wide = d > n
    values, vectors = np.linalg.eigh((rows @ rows.T if wide else rows.T @ rows) / n)
    order = np.argsort(values)[::-1][:n_components]
    order = order[values[order] > RANK * max(values.max(), 1e-300)]
    size, basis = np.sqrt(values[order]), vectors[:, order]
    if wide:
        basis = rows.T @ basis / (size * np.sqrt(n))
    return rows @ basis / size, basis * size


def fast_ica(
    white: Float64[np.ndarray, "n r"],
    rotation: Float64[np.ndarray, "r r"],
    max_iter: int = 100,
    tol: float = 1e-4,
) -> Float64[np.ndarray, "r r"]:
    """Return the rotation R such that ``white @ R`` has columns as independent as possible (log cosh).

    Parameters
    ----------
    white : array
        White rows.
    rotation : array
        Where to begin: any regular matrix.
    max_iter : int
        Iterations at most: sources of one identity may rotate among themselves for ever.
    tol : float
        Change of the directions that ends them.
    """
    now = _decorrelate(rotation)
    for _ in range(max_iter):
        bent = np.tanh(white @ now)
        new = _decorrelate(white.T @ bent / len(white) - now * (1.0 - bent**2).mean(axis=0))
        change = np.max(np.abs(np.abs(np.einsum("ij,ij->j", new, now)) - 1.0))
        now = new
        if change < tol:
            break
    return now


def _decorrelate(matrix: Float64[np.ndarray, "r r"]) -> Float64[np.ndarray, "r r"]:
    left, _, right = np.linalg.svd(matrix)
    return np.asarray(left @ right)


def energy_groups(sources: Float64[np.ndarray, "n r"], size: int) -> Int[np.ndarray, " r"]:
    """Return the sources in an order in which groups of so many have correlated energies.

    Greedily: of the sources that are left the two with the highest correlation of their squares, then those
    with the highest mean correlation to the group.
    """
    squares = sources**2 - (sources**2).mean(axis=0)
    norm = np.sqrt((squares**2).sum(axis=0))
    norm[norm == 0.0] = np.inf  # energy that never changes, as that of two frames, tells nothing
    related = squares.T @ squares / np.outer(norm, norm)
    np.fill_diagonal(related, -np.inf)
    left, order = list(range(len(related))), []
    while left:
        group = [left[0]]
        if size > 1 and len(left) > 1:
            among = related[np.ix_(left, left)]
            i, j = np.unravel_index(int(among.argmax()), among.shape)
            group = [left[i], left[j]]
        while len(group) < min(size, len(left)):
            remaining = [k for k in left if k not in group]
            group.append(remaining[int(related[np.ix_(remaining, group)].mean(axis=1).argmax())])
        order += group
        left = [k for k in left if k not in group]
    return np.array(order)


def separate_in_time(
    sources: Float64[np.ndarray, "n r"], beside: Float64[np.ndarray, "n r"], size: int
) -> Float64[np.ndarray, "r r"]:
    """Return a rotation within each group of sources, after which they do not foretell one another.

    Parameters
    ----------
    sources, beside : arrays
        In some frames and in ones next to them; groups side by side.
    """
    rank = sources.shape[1]
    turn = np.zeros((rank, rank))
    for start in range(0, rank, size):
        own = slice(start, min(start + size, rank))
        lagged = sources[:, own].T @ beside[:, own]
        turn[own, own] = np.linalg.eigh(lagged + lagged.T)[1]
    return turn
