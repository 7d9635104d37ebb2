"""Linear groups: variables of which a row has all levels at once, weighted by numbers x >= 0.

The factor of a row is a sum, and of counts y_n p_nl is shared out over its terms::

    phi_nl = sum_d x_nd lambda_dl,   rho_nl with sum_d x_nd exp(E log lambda_dl) in the place of a factor
    q(lambda_dl) = Gamma(a + sum_n y_n p_nl x_nd exp(E log lambda_dl) / sum_k x_nk exp(E log lambda_kl),
                         <b_l> + sum_n x_nd t_n <xi_n> F_nl)

which for one-hot x is what a categorical variable has. To the compiled loops a linear group is a variable of
which every row of a block has a level of its own: the factors of the rows lie behind the tables of all
variables, and what the loops add up by row is then shared out over the levels here.

A row in which one of the numbers is missing has weight 1 of the missing level, and 0 of all others.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Float64

from factorflow.errors import InputError
from factorflow.models.contract import Block
from factorflow.models.molten.settings import Settings

Weights = Mapping[str, Float64[np.ndarray, "B D"]]
Table = Float[np.ndarray, "D W"]


def group_weights(settings: Settings, block: Block) -> dict[str, Float64[np.ndarray, "B D"]]:
    """Return the weights of the levels of each linear group in the rows of a block; the missing level last.

    Raises
    ------
    InputError
        When one is negative where rates are to be positive, or infinite.
    """
    weights = {}
    for name in settings.roles.linear:
        x = np.asarray(block.data[name], dtype=np.float64)
        bad = np.asarray(np.isinf(x))
        if settings.likelihood == "poisson":
            bad = bad | (x < 0.0)
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise InputError(
                f"view {name!r}, row {block.start + row + 1}, column {column + 1}",
                float(x[row, column]),
                "a finite number >= 0: the weight of a level of a linear group",
                "Shift or rescale the column.",
            )
        missing = np.asarray(np.isnan(x).any(axis=1))
        weights[name] = np.column_stack([np.where(missing[:, None], 0.0, x), missing])
    return weights


def check_counts_reachable(block: Block, groups: Weights, y: Float64[np.ndarray, " B"]) -> None:
    """Refuse a count above 0 where all weights of a group are 0: its rate is 0, whatever the factors."""
    for name, x in groups.items():
        bad = (y > 0) & ~(x > 0).any(axis=1)
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(
                f"view {name!r}, row {block.start + row + 1}",
                f"0 in every column, beside a count of {y[row]:g}",
                "a weight above 0 where something was counted",
                "Add a column of ones, as in linear(1, x), or choose {additive}.",
                additive=True,
            )


def find_constant_columns(settings: Settings, name: str, n_columns: int) -> Bool[np.ndarray, " K"]:
    """Return the columns in which nothing of a group is learned: the additive parts of other variables."""
    return np.asarray(~settings.free(name, range(1), n_columns)[0])


def _factors_of_rows(
    settings: Settings, name: str, x: Float64[np.ndarray, "B D"], table: Table, n_columns: int
) -> Float64[np.ndarray, "B W"]:
    """Return the factors of a group in the rows of a block, given the table of its levels."""
    out = x @ table
    constant = np.flatnonzero(find_constant_columns(settings, name, n_columns))
    out[:, constant] = table[0, constant]
    return np.asarray(out)


def append_group_factors(settings: Settings, groups: Weights, table: Table, n_columns: int) -> Table:
    """Return the tables of all variables with the factors of the rows in each linear group behind them."""
    parts = [
        _factors_of_rows(settings, name, x, table[settings.place(name)], n_columns)
        for name, x in groups.items()
    ]
    return _append_rows(table, parts)


def append_group_logs(
    settings: Settings, groups: Weights, table: Table, n_columns: int, lowest: float
) -> tuple[Table, Float64[np.ndarray, " B"]]:
    """Return the same of exp(E log lambda), each row over its largest, and the logarithms of those.

    ``lowest`` is the least logarithm that a factor above 0 may have.
    """
    parts, shift = [], np.zeros(len(next(iter(groups.values()), ())))
    for name, x in groups.items():
        factors = _factors_of_rows(settings, name, x, table[settings.place(name)], n_columns)
        largest = factors.max(axis=1, keepdims=True)
        largest[largest == 0.0] = 1.0
        parts.append(np.where(factors > 0.0, np.maximum(factors / largest, np.exp(lowest)), 0.0))
        shift += np.log(largest[:, 0])
    return _append_rows(table, parts), shift


def _append_rows(table: Table, parts: list[Float64[np.ndarray, "B W"]]) -> Table:
    """Return parts behind a table; of its type and as writable, so that loops are compiled once for both."""
    if not parts:
        return table
    out = np.concatenate([table, *parts], dtype=table.dtype)
    out.flags.writeable = table.flags.writeable
    return out


def sum_by_level(
    settings: Settings, name: str, x: Float64[np.ndarray, "B D"], sums: Table, n_columns: int
) -> Table:
    """Return sums over rows, each counting for a level with its weight, given what is added up by row.

    Where nothing is learned all rows count, once, for the first level.
    """
    out = x.T @ sums
    constant = np.flatnonzero(find_constant_columns(settings, name, n_columns))
    out[:, constant] = 0.0
    out[0, constant] = sums[:, constant].sum(axis=0)
    return np.asarray(out)


def distribute_over_levels(
    settings: Settings, groups: Weights, table: Table, sums: Table, n_columns: int
) -> None:
    """Distribute sums of y p by row over the levels of each linear group, in place.

    ``table`` as for `append_group_factors`.
    """
    first = settings.starts[-1] + 1
    for name, x in groups.items():
        place, part = settings.place(name), sums[first : first + len(x)]
        factors = _factors_of_rows(settings, name, x, table[place], n_columns)
        ratio = np.divide(part, factors, out=np.zeros_like(part), where=factors > 0.0)
        sums[place] = table[place] * sum_by_level(settings, name, x, ratio, n_columns)
        first += len(x)
