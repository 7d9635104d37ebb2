"""Roles of the views that the formula of a table became: `TableDesign`."""

from __future__ import annotations

from dataclasses import dataclass

EXPOSURE, OFFSET, WEIGHT, WITHIN = "exposure", "offset", "weight", "within"
"""Names of the covariates that a table has for these roles."""


@dataclass(frozen=True)
class TableDesign:
    """The roles of the views of a dataset that was made from a long table.

    Parameters
    ----------
    formula : str
        As it was given.
    response : str
        The view that is explained, of one feature; its likelihood is that of the response.
    variables : tuple of str
        The categorical views, in the order of the formula.
    linear : tuple of str
        The covariate views whose columns are the levels of a group, weighted by their values x >= 0.
    exposure : str or None
        The covariate view with the exposure (above 0) of every row; None: it is one (see ``grid``).
    offset : str or None
        The covariate view with what is added to the mean of a gaussian response; None: nothing is.
    weight, within : str or None
        Of merged rows of a gaussian response: how many rows a row stands for, and the sum of squares of
        their responses (less offset) around their mean, which is the response (less offset) of the row.
    aggregated : bool
        Whether some rows of the dataset stand for several rows of the table that agree in all variables.
        Counts and exposures are then sums over them.
    constant : float
        What the log likelihood of the rows of the table exceeds that of merged counts by, whatever the
        rates: sum of y log t - log y! over the former, less that over the latter.
    n_table_rows : int
        Rows of the table.
    n_dropped : int
        Of these, rows that were left out since something was missing.
    n_held_out : int
        Of these, rows that are held out, or of the other part (``holdout`` of `factorflow.write_table`).
    first_held_out : int or None
        Rows of the dataset from here on are held out of every fit, and scored at its end; None: none are.
    n_merged : int
        Of these, rows that went into another.
    grid : bool
        Whether the table stands for all combinations of levels, of which only those with a response above 0
        are rows of the dataset; the exposure of a cell is the product of the ``level_exposures``.
    level_exposures : tuple of (str, tuple of float)
        Of a grid, which has no exposure among its views: variables with an exposure of their own, and that of
        each level in order; of others it is one.
    """

    formula: str
    response: str
    variables: tuple[str, ...]
    linear: tuple[str, ...] = ()
    exposure: str | None = None
    offset: str | None = None
    weight: str | None = None
    within: str | None = None
    aggregated: bool = False
    constant: float = 0.0
    n_table_rows: int = 0
    n_dropped: int = 0
    n_held_out: int = 0
    first_held_out: int | None = None
    n_merged: int = 0
    grid: bool = False
    level_exposures: tuple[tuple[str, tuple[float, ...]], ...] = ()
