"""A linear group beside a Gaussian response: its levels meet in rows, and are updated one after the other.

With x the weights, F and S products over the other variables, sums over rows by pairs of levels d, c::

    h_dl = sum w x_d e F_l,  f_dl = sum w x_d F_l
    Q_dcl = sum w x_d x_c S_l,  C_dl,ck = sum w x_d x_c F_l F_k
    E phi^2 = (sum_d x_d m_dl)^2 + sum_d x_d^2 v_dl
    1 / v_dl = <tau_l> + <lambda> Q_ddl
    m_dl = <lambda> v_dl (h_dl - beta f_dl - sum_{k != l, c} C_dl,ck m_ck - sum_{c != d} Q_dcl m_cl)

For one-hot x all sums of d != c are 0, and what is left is that of a categorical variable (`measurements`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

from factorflow.models.molten.rows import Rows

_ENTRIES = 2**20
"""Products of weights and factors held at a time, about."""


@dataclass(frozen=True)
class GroupSums:
    """h, f, Q and C of a linear group."""

    linear: Float64[np.ndarray, "D S K"]
    plain: Float64[np.ndarray, "D S K"]
    square: Float64[np.ndarray, "D S E K"]
    cross: Float64[np.ndarray, "D S K E K"]


def group_sums(
    rows: Rows,
    own: int,
    x: Float64[np.ndarray, "B D"],
    e: Float64[np.ndarray, " B"],
    means: Float64[np.ndarray, "S A W"],
    squares: Float64[np.ndarray, "S A W"],
    n_columns: int,
) -> GroupSums:
    """Return the sums of a block for the group that is variable ``own``.

    Parameters
    ----------
    e : array
        Response less offset and mean.
    means, squares : array
        E mu and E mu^2 of all tables and rows (`groups.stacked`), starts one after the other.
    n_columns : int
        Columns that are used (K).
    """
    n_starts, d, k = len(means), x.shape[1], n_columns
    linear, plain = np.zeros((2, n_starts, d, k))
    square, cross = np.zeros((n_starts, k, d, d)), np.zeros((n_starts, d * k, d * k))
    step = max(1, _ENTRIES // (d * k))
    others = [g for g in range(rows.codes.shape[1]) if g != own]
    for start in range(0, len(e), step):
        part = slice(start, start + step)
        there, weighted = x[part], x[part] * rows.weight[part, None]
        for i in range(n_starts):
            f, s = (_product(table[i], rows.codes[part], others, k) for table in (means, squares))
            linear[i] += (weighted * e[part, None]).T @ f
            plain[i] += weighted.T @ f
            for component in range(k):
                square[i, component] += (weighted * s[:, component, None]).T @ there
            pairs = (there[:, :, None] * f[:, None, :]).reshape(len(f), d * k)
            cross[i] += (pairs * rows.weight[part, None]).T @ pairs
    return GroupSums(
        np.ascontiguousarray(np.moveaxis(linear, 1, 0)),
        np.ascontiguousarray(np.moveaxis(plain, 1, 0)),
        np.ascontiguousarray(np.transpose(square, (2, 0, 3, 1))),
        np.ascontiguousarray(np.moveaxis(cross.reshape(n_starts, d, k, d, k), 1, 0)),
    )


def _product(
    table: Float64[np.ndarray, "A W"], codes: np.ndarray, variables: list[int], n_columns: int
) -> Float64[np.ndarray, "B K"]:
    """Return the products of the rows of a table that the codes of some variables name."""
    out = table[codes[:, variables[0]], :n_columns]
    for g in variables[1:]:
        out = out * table[codes[:, g], :n_columns]
    return np.asarray(out)


def update_group(
    m: Float64[np.ndarray, "D S K"],
    h: Float64[np.ndarray, "D S K"],
    sums: GroupSums,
    free: Bool[np.ndarray, "D K"],
    tau: Float64[np.ndarray, "S K"],
    noise: Float64[np.ndarray, " S"],
) -> tuple[Float64[np.ndarray, "D S K"], Float64[np.ndarray, "D S K"]]:
    """Return means and variances of q(mu); ``h`` is h less beta f.

    Component by component and level by level, each given all others as they are then; where nothing is
    learned (``free``) means stay what they are.
    """
    square, cross, m = sums.square, sums.cross, np.array(m)
    v = 1.0 / (tau + noise[:, None] * np.einsum("dsdk->dsk", square))
    for l in range(m.shape[2]):  # noqa: E741
        for d in range(len(m)):
            apart = np.einsum("sek,esk->s", cross[d, :, l], m)
            apart += np.einsum("se,es->s", square[d, :, :, l] - cross[d, :, l, :, l], m[:, :, l])
            apart -= square[d, :, d, l] * m[d, :, l]
            new = noise * v[d, :, l] * (h[d, :, l] - apart)
            m[d, :, l] = new if free[d, l] else m[d, :, l]
    return m, v


def squares_of_group(
    m: Float64[np.ndarray, "D S K"], v: Float64[np.ndarray, "D S K"], sums: GroupSums, run: slice
) -> tuple[Float64[np.ndarray, " S"], Float64[np.ndarray, "S K"]]:
    """Return the sum over rows of E (sum_l phi F)^2, and by component that of (m F)^2: a run of levels' part.

    What a pair of levels adds is shared out between the two.
    """
    some, cross, square = m[run], sums.cross[run], sums.square[run]
    own = np.einsum("dsk,dskek,esk->sk", some, cross, m, optimize=True)
    between = np.einsum("dsk,dskej,esj->s", some, cross, m, optimize=True)
    within = np.einsum("dsk,dsek,esk->s", some, square, m, optimize=True)
    within += np.einsum("dsk,dsdk->s", v[run], square[:, :, run])
    return between + within - own.sum(axis=1), own
