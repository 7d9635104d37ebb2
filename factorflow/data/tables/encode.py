"""New rows of a table, coded with the levels of a dataset that a model was fitted to."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.block import Block
from factorflow.core.design import TableDesign
from factorflow.core.kinds import KINDS
from factorflow.data.store.dataset import Dataset, open_dataset
from factorflow.data.tables.formula import Linear, Offset, Terms, parse
from factorflow.data.tables.labels import MISSING_LEVEL, as_text, tidy, warn_unknown
from factorflow.data.tables.names import Names, name_views
from factorflow.data.tables.pieces import Piece
from factorflow.data.tables.sources import open_table
from factorflow.errors import InputError

BLOCK_ROWS = 65536
"""Rows of a block."""

Arrays = dict[str, NDArray[Any]]


def encode_blocks(
    source: Any, design: TableDesign, levels: Mapping[str, Sequence[str]], block_rows: int = BLOCK_ROWS
) -> Iterator[Block]:
    """Yield the rows of a table as blocks of a dataset's views, in the order of the table.

    A level that the dataset does not have, and a label that is missing, get the code -1 (the latter that of
    the level "missing" where there is one). Once all rows have passed, a warning names the levels.

    Parameters
    ----------
    source : Dataset, path, DataFrame, Arrow table or stream
        A dataset of the same views, or what `factorflow.write_table` takes. The response may be left out of
        a table: it is NaN then.
    levels : mapping of str to sequence of str
        Levels of that dataset by categorical view; views that are not among them are left out.
    block_rows : int
        Rows of a block of a table; a dataset keeps its own.

    Yields
    ------
    Block
        With the views of the fitted dataset; a row stands for itself (weight 1, within 0, exposure 1 where
        the formula has none).

    Raises
    ------
    InputError
        When a column or view is missing, or an exposure is negative.
    """
    unseen: dict[str, dict[str, None]] = {view: {} for view in design.variables if view in levels}
    if isinstance(source, str | os.PathLike) and (Path(source) / "zarr.json").is_file():
        source = open_dataset(source)
    if isinstance(source, Dataset):
        yield from _encode_dataset(source, design, levels, unseen)
    else:
        yield from _encode_table(source, design, levels, unseen, block_rows)
    for view, labels in unseen.items():
        if labels:
            warn_unknown(view, list(labels))


def _encode_table(
    source: Any,
    design: TableDesign,
    levels: Mapping[str, Sequence[str]],
    unseen: dict[str, dict[str, None]],
    block_rows: int,
) -> Iterator[Block]:
    terms, opened = parse(design.formula), open_table(source)
    names = name_views(terms, quiet=True)
    terms = replace(terms, variables=tuple(c for c, view in names.variables.items() if view in levels))
    if design.grid:  # levels have their exposures already
        terms = replace(terms, offsets=())
    numbers = list(terms.numbers)
    opened.check([*terms.variables, *numbers])
    if terms.response in opened.columns:
        numbers.append(terms.response)
    where = {view: {name: code for code, name in enumerate(levels[view])} for view in unseen}

    def parts() -> Iterator[Arrays]:
        for piece in opened.read(terms.variables, numbers):
            yield _part(piece, terms, names, design, where, unseen, terms.response in numbers)

    start = 0
    for number, data in enumerate(_split_blocks(parts(), block_rows)):
        n_rows = len(next(iter(data.values())))
        yield _block(number, start, n_rows, data)
        start += n_rows


def _part(
    piece: Piece,
    terms: Terms,
    names: Names,
    design: TableDesign,
    where: Mapping[str, Mapping[str, int]],
    unseen: dict[str, dict[str, None]],
    responds: bool,
) -> Arrays:
    """Return the views of a piece."""
    y = piece.numbers(terms.response) if responds else np.full(piece.n_rows, np.nan)
    data: Arrays = {names.response: y.astype(np.float32)[:, None]}
    for column in terms.variables:
        view = names.variables[column]
        codes, labels = piece.labels(column)
        data[view] = _encode(codes, [as_text(label) for label in labels], where[view], unseen[view])
    for group, view in names.linear.items():
        data[view] = _group(piece, group)
    if design.exposure is not None:
        data[design.exposure] = _product([_exposure(piece, offset) for offset in terms.offsets], piece.n_rows)
    if design.offset is not None:
        data[design.offset] = np.sum([_offset(piece, offset) for offset in terms.offsets], axis=0)[:, None]
    return data | _read_default(design, piece.n_rows)


def _read_default(design: TableDesign, n_rows: int) -> Arrays:
    """Return the covariates of rows that were not merged."""
    roles = ((design.weight, 1.0), (design.within, 0.0))
    return {view: np.full((n_rows, 1), value) for view, value in roles if view is not None}


def _encode(
    codes: NDArray[Any], labels: Sequence[str], where: Mapping[str, int], unseen: dict[str, None]
) -> NDArray[np.int32]:
    """Return codes of the levels of a dataset, given those of a piece."""
    resolved = []
    used = np.bincount(codes + 1, minlength=len(labels) + 1)[1:] > 0
    for label, some in zip(labels, used, strict=True):
        code = where.get(label, where.get(tidy(label), -1)) if label else where.get(MISSING_LEVEL, -1)
        if code < 0 and label and some:
            unseen.setdefault(label)
        resolved.append(code)
    return np.asarray(np.array([*resolved, where.get(MISSING_LEVEL, -1)], np.int32)[codes])


def _group(piece: Piece, group: Linear) -> NDArray[np.float64]:
    columns = [np.ones(piece.n_rows) if c is None else piece.numbers(c) for c in group.columns]
    return np.stack(columns, axis=1)


def _product(exposures: list[NDArray[np.float64]], n_rows: int) -> NDArray[np.float64]:
    return np.asarray(np.prod([np.ones(n_rows), *exposures], axis=0))[:, None]


def _read_offsets(piece: Piece, offset: Offset) -> NDArray[np.float64]:
    """Return the numbers of an exposure or offset, with a warning where some are missing."""
    values = piece.numbers(offset.column)
    if np.isnan(values).any():
        text = f"column {offset.column!r}: rows without a number are taken to have exposure 1, or offset 0"
        warnings.warn(text, stacklevel=2)
    return values


def _exposure(piece: Piece, offset: Offset) -> NDArray[np.float64]:
    values = _read_offsets(piece, offset)
    if not offset.log:
        return np.exp(values)
    if (values < 0).any():
        row = int(np.argmax(values < 0))
        raise InputError(
            f"column {offset.column!r} of {piece.where}, row {piece.first + row + 1}",
            float(values[row]),
            "an exposure >= 0",
            "Correct it.",
        )
    return values


def _offset(piece: Piece, offset: Offset) -> NDArray[np.float64]:
    values = _read_offsets(piece, offset)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(values) if offset.log else values


def _split_blocks(parts: Iterator[Arrays], block_rows: int) -> Iterator[Arrays]:
    """Yield the same rows, so many at a time."""
    pending: list[Arrays] = []
    n_kept = 0
    for part in parts:
        pending.append(part)
        n_kept += len(next(iter(part.values())))
        while n_kept >= block_rows:
            joined = {name: np.concatenate([piece[name] for piece in pending]) for name in part}
            yield {name: values[:block_rows] for name, values in joined.items()}
            pending = [{name: values[block_rows:] for name, values in joined.items()}]
            n_kept -= block_rows
    if n_kept:
        yield {name: np.concatenate([piece[name] for piece in pending]) for name in pending[0]}


def _encode_dataset(
    dataset: Dataset,
    design: TableDesign,
    levels: Mapping[str, Sequence[str]],
    unseen: dict[str, dict[str, None]],
) -> Iterator[Block]:
    roles = [view for view in (design.exposure, design.offset, *design.linear) if view is not None]
    absent = [view for view in (*unseen, *roles) if view not in dataset.views]
    if absent and not (absent == [design.exposure] and not parse(design.formula).offsets):
        raise InputError(
            f"views of {dataset.path}",
            f"no {', '.join(absent)}",
            "those of the dataset that was fitted",
            "Add them.",
        )
    places = {view: _places(dataset, view, levels[view], unseen[view]) for view in unseen}
    for number in range(dataset.n_blocks):
        block = dataset.block(number)
        data: Arrays = {design.response: np.full((block.n_rows, 1), np.nan, np.float32)}
        data |= {view: block.data[view] for view in (design.response, *roles) if view in block.data}
        for view, (ours, theirs) in places.items():
            codes = block.data[view]
            matched = KINDS["categorical"].reindex(codes, ours, theirs, len(levels[view]))
            data[view] = np.ascontiguousarray(matched, np.int32)
        if design.exposure is not None and design.exposure not in data:
            data[design.exposure] = np.ones((block.n_rows, 1))
        for view, array in _read_default(design, block.n_rows).items():
            data[view] = block.data.get(view, array)
        yield _block(number, block.start, block.n_rows, data)


def _places(
    dataset: Dataset, view: str, levels: Sequence[str], unseen: dict[str, None]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the levels that are on both sides: their codes here, and in the dataset."""
    where = {name: code for code, name in enumerate(levels)}
    theirs, used = dataset.features(view).tolist(), dataset.moments(view)["n_observed"] > 0
    both = [(where[name], code) for code, name in enumerate(theirs) if name in where]
    unseen |= dict.fromkeys(
        name for name, some in zip(theirs, used, strict=True) if some and name not in where
    )
    ours, codes = np.array(both, np.intp).reshape(-1, 2).T
    return ours, codes


def _block(number: int, start: int, n_rows: int, data: Arrays) -> Block:
    for name, array in data.items():
        data[name] = np.ascontiguousarray(array)
        data[name].flags.writeable = False
    return Block(number, start, n_rows, number + 1, data)
