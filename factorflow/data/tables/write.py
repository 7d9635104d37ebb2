"""Write a dataset from a long table and a formula."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.kinds import KINDS, Kind
from factorflow.data.holdout import Holdout
from factorflow.data.ingest import checks
from factorflow.data.ingest.dialect import TableFormat
from factorflow.data.ingest.missing import MissingCodes
from factorflow.data.store.dataset import Dataset, open_dataset
from factorflow.data.store.layout import choose_block_rows, read_manifest
from factorflow.data.store.rows import Columns, RowNames
from factorflow.data.store.view_source import is_long_table
from factorflow.data.store.writer import write_store
from factorflow.data.tables.assemble import Table, TableViews
from factorflow.data.tables.columns import FileColumn
from factorflow.data.tables.formula import Terms, parse
from factorflow.data.tables.labels import Levels, resolve_levels, warn_unknown
from factorflow.data.tables.names import Names, name_views
from factorflow.data.tables.sources import open_table
from factorflow.data.tables.spool import Part, Rules, SpooledTable, spool
from factorflow.errors import InputError, pluralize
from factorflow.settings import TableOptions, document_options, parse_config
from factorflow.storage.download import as_local_source
from factorflow.storage.local import check_space
from factorflow.storage.location import as_location
from factorflow.storage.publish import new_directory

PIECE_ROWS = 2**20
"""Rows looked at together once they are on disk."""

LIKELIHOODS = {"poisson": "poisson", "normal": "gaussian", "gaussian": "gaussian"}
"""Kinds of the response by what they are called."""


@document_options(TableOptions)
def write_table(
    path: str | os.PathLike[str],
    source: Any,
    formula: str,
    likelihood: str | None = None,
    *,
    missing_response: str = "drop",
    missing_levels: str = "level",
    merge: bool = True,
    grid: bool = False,
    levels: Mapping[str, Sequence[str]] | None = None,
    like: Dataset | str | os.PathLike[str] | None = None,
    holdout: float = 0.0,
    part: Part = "both",
    seed: int = 0,
    block_rows: int | None = None,
    overwrite: bool = False,
    sep: str | None = None,
    decimal: str | None = None,
    na_values: Any = None,
    encoding: str | None = None,
) -> Dataset:
    """Write a long table as a dataset, in bounded memory, and open it.

    The response becomes a view of one feature, each variable of the formula a categorical view whose levels
    are its features, an exposure the covariate ``exposure``; ``Dataset.design`` tells which is which. Of two
    datasets of one table, the rows kept and the rows held out, write the second with ``like=`` the first.

    Parameters
    ----------
    path : path-like, or URL
        Directory to make.
    source : path, URL, DataFrame, Arrow table or stream
        A CSV, TSV, Parquet or Arrow file, a folder or a list of them; a pandas DataFrame; a pyarrow Table or
        RecordBatchReader, or what offers an Arrow stream. Read once, in pieces.
    <options>
    likelihood : {"poisson", "normal"}, optional
        Of the response; left out: counts are poisson, all else is normal.
    levels : mapping of str to sequence of str, optional
        Levels of variables in an order of their own. By default that of a pandas Categorical or an Arrow
        dictionary, else sorted, by value where all are numbers.
    overwrite : bool
        Replace a dataset that lies at ``path``, once the new one is complete.

    Returns
    -------
    Dataset

    Raises
    ------
    InputError
        When something cannot be used as it is; nothing is left at ``path`` then.

    Warns
    -----
    DataWarning
        Of rows that were left out, names that were adapted, labels that are unknown.

    Examples
    --------
    >>> import pandas as pd, tempfile, factorflow.data
    >>> table = pd.DataFrame({"count": [3, 0, 2, 5], "site": list("aabb"), "year": [1, 2, 1, 1]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dataset = factorflow.data.write_table(f"{folder}/toy", table, "count ~ site + year")
    ...     dataset.n_rows, dataset.features("site").tolist(), dataset.design.n_merged
    (3, ['a', 'b'], 1)
    """
    terms = parse(formula)
    policies = {"missing_response": missing_response, "missing_levels": missing_levels, "part": part}
    parse_config(TableOptions, {"formula": formula, "holdout": holdout, "seed": seed, **policies})
    table_format = TableFormat(None, sep, decimal, encoding, _codes(na_values))
    rules = _rules(likelihood, missing_response, missing_levels, holdout, part, seed)
    template = open_dataset(like) if isinstance(like, str | os.PathLike) else like
    names = name_views(terms)
    _check_levels(terms, levels or {})
    target = as_location(path)
    with (
        new_directory(target, overwrite, read_manifest, "of the table") as partial,
        as_local_source(source, partial) as files,
    ):
        opened, folder = open_table(files, table_format), partial / "spool"
        spooled = spool(opened, terms, rules, folder)
        kind = rules.kind or KINDS["poisson" if spooled.counts else "gaussian"]
        column_levels = _resolve_levels(terms, names, spooled, opened.ordered, levels or {}, template)
        table = Table(terms, names, spooled, column_levels, kind, rules.kind is None)
        if template is None:
            table.check()
        _warn(spooled, column_levels)
        if grid:
            _check_grid(terms, rules, kind, template)
            built = table.build_grid(folder)
        elif merge and not terms.linear:
            built = table.build_cells(folder)
        else:
            built = table.build_rows()
        _write(partial, table.append_held_out(built), block_rows)
        shutil.rmtree(folder, ignore_errors=True)
    return open_dataset(target)


def _codes(na_values: Any) -> tuple[str, ...]:
    """Return the codes of missing entries as text."""
    if isinstance(na_values, Mapping):
        expected = "numbers and texts that stand for a missing entry, the same in all columns"
        raise InputError(
            "na_values", na_values, expected, "For example {na_values}.", na_values=[-9, "unknown"]
        )
    return MissingCodes(na_values).texts("table")


def _write(partial: Path, built: TableViews, block_rows: int | None) -> None:
    if built.n_rows < 2:
        raise InputError(
            "rows", built.n_rows, "at least 2 that differ", "Check the table and which rows are left out."
        )
    row_bytes = sum(view.work_bytes for view in built.views)
    check_space(partial, built.n_rows * row_bytes)
    rows = choose_block_rows(built.n_rows, row_bytes, block_rows, table=is_long_table(built.views))
    write_store(partial, built.views, Columns(RowNames(built.n_rows)), rows, design=built.design)


def _rules(
    likelihood: str | None, missing_response: str, missing_levels: str, holdout: float, part: Part, seed: int
) -> Rules:
    if likelihood not in (None, *LIKELIHOODS):
        expected = f"one of {', '.join(LIKELIHOODS)}"
        raise InputError("likelihood", likelihood, expected, "Choose one of them, or leave it out.")
    if part == "held out" and not holdout:
        expected = "a share of rows that are held out"
        raise InputError("part", part, expected, "Give it, for example {holdout}.", holdout=0.1)
    kind = None if likelihood is None else KINDS[LIKELIHOODS[likelihood]]
    hidden = Holdout(holdout, seed, "row") if holdout else None
    return Rules(kind, missing_response, missing_levels, hidden, part)


def _check_grid(terms: Terms, rules: Rules, kind: Kind, template: Dataset | None) -> None:
    conflicts = {
        "a normal response": kind.name != "poisson",
        "linear(...)": bool(terms.linear),
        "rows held out": rules.holdout is not None,
        "levels of another dataset": template is not None,
    }
    if any(conflicts.values()):
        raise InputError(
            "grid",
            " and ".join(name for name, is_set in conflicts.items() if is_set),
            "counts of cells of categorical variables, all of them",
            "Write the table with all its rows, 0 included, and without {grid}.",
            grid=True,
        )


def _check_levels(terms: Terms, levels: Mapping[str, Sequence[str]]) -> None:
    if not isinstance(levels, Mapping) or any(name not in terms.variables for name in levels):
        expected = f"a mapping of variables among {', '.join(terms.variables)} to levels"
        raise InputError("levels", levels, expected, "Check the names.")


def _resolve_levels(
    terms: Terms,
    names: Names,
    spooled: SpooledTable,
    ordered: Callable[[str], bool],
    levels: Mapping[str, Sequence[str]],
    template: Dataset | None,
) -> dict[str, Levels]:
    """Return the levels of every variable, by column."""
    resolved = {}
    for column in terms.variables:
        template_levels = None if template is None else template.features(names.variables[column]).tolist()
        texts = list(spooled.labels[column].where)
        resolved[column] = resolve_levels(
            column,
            texts,
            _find_used_labels(spooled.codes[column], len(texts)),
            ordered=ordered(column),
            forced=column in terms.forced,
            gaps=column in spooled.gaps,
            chosen_levels=[str(level) for level in levels[column]] if column in levels else None,
            template_levels=template_levels,
        )
    return resolved


def _find_used_labels(codes: FileColumn, n_labels: int) -> NDArray[np.bool_]:
    """Return which labels some row has, (P,): those of rows that were left out have none."""
    used = np.zeros(n_labels + 1, bool)
    for start in range(0, codes.size, PIECE_ROWS):
        used[codes[start : start + PIECE_ROWS]] = True
    return used[:-1]


def _warn(spooled: SpooledTable, levels: Mapping[str, Levels]) -> None:
    """Warn of rows that were left out, and of labels that another dataset lacks."""
    if spooled.n_dropped:
        rows = pluralize(spooled.n_table_rows, "row")
        checks.warn(f"{spooled.n_dropped} of {rows} left out: something is missing")
    for column, column_levels in levels.items():
        if column_levels.unknown:
            warn_unknown(column, column_levels.unknown)
