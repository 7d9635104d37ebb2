"""The data that a model sees: the shape of a dataset (`Meta`) and blocks of its rows (`Block`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from jaxtyping import Float64, Int, Int32, Int64, Integer, Shaped

from factorflow.core.covariates import Column, Covariates
from factorflow.core.design import TableDesign
from factorflow.core.feature_sets import FeatureSets
from factorflow.core.kinds import KINDS, Kind
from factorflow.core.places import Places

Array = Any
"""A NumPy array, or one of another array-API namespace (CuPy, array-api-strict).

Annotations say type and shape: ``Float[Array, "B K"]``, with the letters of the docstrings; ``K1`` is K + 1,
``P`` and ``Q`` are lengths of packed matrices, ``#B`` is B or 1, ``*_`` any axes; one axis alone is written
with a space in front (``" K"``), which tells linters that it is no name. The tests check them
(``tests/conftest.py``): a letter stands for one size within a call, or among the fields of a dataclass.
"""

Likelihood = Literal["gaussian", "bernoulli", "poisson", "categorical", "covariate"]

Missing = Literal["none", "samples", "scattered"]

HoldoutUnit = Literal["entry", "row", "sequence", "count"]
"""Unit of hold-outs."""

AUX_DTYPES = {"censored": "int8", "trials": "uint32"}
"""Types of what lies beside the values of a view (`ViewMeta.aux`)."""

CODE_BYTES = 4
"""Bytes of a code in ``Block.columns``."""

ENTRY_READING_BYTES = 40
"""Bytes an entry takes while rows are read by them: compressed, decoded, and row numbers and sums of them."""

SPARSE_BELOW = 0.25
"""Share of entries that are not zero up to which a view is stored by these, and products take them alone:
above it dense products are faster."""

SIZES = "size_factors"
"""Name under which size factors of columns travel with a block, in ``Block.columns``."""

SAMPLE = "sample"
"""Prefix of the names of unnamed samples."""

T = TypeVar("T")


class Memory(Protocol):
    """The cache of arrays derived from the values of a block."""

    def once(self, name: Hashable, given: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Return the cached value of this name and these arguments, or compute it."""
        ...


@dataclass(frozen=True)
class Block:
    """One block of rows (samples, frames), as every kernel receives it.

    Types and missing entries are those of the view's kind (`factorflow.core.kinds`): float32 (float64 of
    Gaussian views far from 0) with NaN where an entry is missing, int8 with -1 for Bernoulli views; inputs
    are int32 codes with -1 (categorical) and float64 with NaN (covariate). Held-out entries look missing. All
    arrays are C-contiguous and read-only.

    Parameters
    ----------
    number : int
        Position of the block in the grid, 0 ... n_blocks - 1.
    start : int
        Global index of its first row.
    n_rows : int
        Rows in this block (B below); the last block may have fewer than the others.
    n_blocks : int
        Blocks in the whole grid.
    data : mapping of str to (B, D) array
        Values per view; of a categorical one codes (B,). Counts, for a model that asks for them by their
        entries, `factorflow.kernels.sparse_rows.SparseRows`.
    hidden : mapping of str to ((H,) int32 array, (H,) int32 array)
        Rows (within the block) and features of the held-out entries per view of values, in row-major order;
        of a view whose counts are split (`factorflow.data.thinning`), those of which the rest is scored.
    columns : mapping of str to (B,) array
        Per-row codes that travel along: ``group``, ``sequence``, ``time`` (where the dataset has them);
        numbers (B, P) of `Meta.covariates`, and those that scores are functions of, side by side: `places`,
        `levels`, `score_covariates`; as ``covariates`` and ``places``, NaN where they are not known; and
        size factors (B, J) of `Meta.sizes`, as ``size_factors``.
    from_before : bool
        Whether the first row goes on the last sequence of the block before.
    into_next : bool
        Whether the sequence of the last row goes on in the next block.
    memory : Memory or None
        Of the engine, for `once`.
    """

    number: int
    start: int
    n_rows: int
    n_blocks: int
    data: Mapping[str, Any]
    hidden: Mapping[str, tuple[Int32[Array, " H"], Int32[Array, " H"]]] = field(default_factory=dict)
    columns: Mapping[str, Shaped[Array, "B ..."]] = field(default_factory=dict)
    from_before: bool = False
    into_next: bool = False
    memory: Memory | None = field(default=None, compare=False, repr=False)

    @property
    def rows(self) -> Int64[Array, " B"]:
        """Global numbers of the rows."""
        return np.arange(self.start, self.start + self.n_rows)

    def once(self, name: Hashable, given: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Return a value derived from the block and ``given``, cached if possible.

        The engine keeps it as long as it keeps the block, where both fit into the memory for that.

        Parameters
        ----------
        name : hashable
            What it is.
        given : tuple of arrays and plain values
            What besides the block it follows from: made anew where they differ.
        make : callable
            Makes it.

        Returns
        -------
        object
            What ``make`` returned.
        """
        return make() if self.memory is None else self.memory.once(name, given, make)


@dataclass(frozen=True)
class ViewMeta:
    """A view without its values.

    Parameters
    ----------
    name : str
        Name of the view.
    likelihood : {"gaussian", "bernoulli", "poisson", "categorical", "covariate"}
        Name of its kind: how its values are distributed given the factors, or which input it is.
    n_features : int
        Features in the view (D): columns, or the levels of a categorical variable.
    missing : {"none", "samples", "scattered"}
        "none": complete; "samples": only whole rows are missing; "scattered": any entry may be
        (always so when entries are held out).
    location : tuple of float
        Means of features so far from 0 that sums of squares about 0 would lose their digits, 0 of others;
        empty where there are none.
    largest : float
        Of counts and levels, the largest; 0: not known.
    default_likelihood : str
        Likelihood of fits that name none, as the dataset was written with; empty: that of the kind.
    aux : {"", "censored", "trials"}
        What lies beside the values with a number for each entry (`AUX_DTYPES`), in ``Block.data`` under
        `aux_key`: -1 or 1 where a value is a limit that the entry lies below or above, else 0; numbers of
        trials, 0 where the entry is missing.
    reading_bytes : int
        What reading a block takes besides its values: of a view that is stored sparse, its arrays.
    block_entries : int
        Of a view that can be read by its entries that are not zero, those of the fullest block; 0 of others.
    n_patterns : int
        Of such a view, sets of features that rows lack together where no others are missing; 0: there are
        none, or entries are missing one by one.
    """

    name: str
    likelihood: Likelihood
    n_features: int
    missing: Missing
    location: tuple[float, ...] = field(default=(), compare=False, repr=False)
    largest: float = field(default=0.0, compare=False, repr=False)
    default_likelihood: str = ""
    aux: str = ""
    reading_bytes: int = field(default=0, compare=False, repr=False)
    block_entries: int = field(default=0, compare=False, repr=False)
    n_patterns: int = field(default=0, compare=False, repr=False)

    @property
    def aux_key(self) -> str:
        """Key of ``Block.data`` that `aux` has."""
        return f"{self.name}/{self.aux}"

    def is_sparse(self, block_rows: int) -> bool:
        """Return whether reading and multiplying rows by their entries takes less than dense.

        Parameters
        ----------
        block_rows : int
            Rows of a block.

        Returns
        -------
        bool
        """
        return 0 < self.block_entries <= SPARSE_BELOW * block_rows * self.n_features

    def about(self) -> Float64[np.ndarray, " D"] | float:
        """Return the location to subtract from entries before summing squares.

        Returns
        -------
        (D,) array or float
            `location`, or 0.
        """
        return np.array(self.location) if self.location else 0.0

    @property
    def kind(self) -> Kind:
        """The kind of the view, by its likelihood: types, missing entries, masks."""
        return KINDS[self.likelihood]


@dataclass(frozen=True)
class Meta:
    """The shape of a dataset, known before any value is read.

    Parameters
    ----------
    n_rows, n_blocks, block_rows : int
        Samples, blocks, and rows in every block but possibly the last (a power of two).
    views : tuple of ViewMeta
        The views that are modelled, in the dataset's order.
    groups : tuple of str
        Names of the sample groups; the code in ``Block.columns["group"]`` indexes them. Empty: no groups.
    n_sequences : int
        Sequences the rows are cut into; 0 when the rows are exchangeable.
    group_sizes : tuple of int
        Samples of each group; empty: not known, or no groups.
    design : TableDesign or None
        Roles of the views of a table; None: of other datasets.
    covariates : Covariates or None
        What a model is given of each sample besides; None: nothing.
    feature_sets : FeatureSets or None
        Sets of features that a model is given; None: none.
    places : Places or None
        Where the samples lie, for scores that are functions of that; None: not asked for.
    levels : Places or None
        Levels that have an intercept of the scores; None: not asked for.
    score_covariates : Covariates or None
        What the scores are linear in; None: nothing.
    sizes : tuple of Column
        Columns of the sample metadata that are size factors.
    sparse_views : tuple of str
        Views whose rows are `factorflow.kernels.sparse_rows.SparseRows` in a block.
    chosen : mapping of str to tuple of int
        Positions of the features that a model is fitted to, of views of which it is not all.
    """

    n_rows: int
    n_blocks: int
    block_rows: int
    views: tuple[ViewMeta, ...]
    groups: tuple[str, ...] = ()
    n_sequences: int = 0
    group_sizes: tuple[int, ...] = ()
    design: TableDesign | None = None
    covariates: Covariates | None = None
    feature_sets: FeatureSets | None = field(default=None, repr=False)
    places: Places | None = None
    levels: Places | None = None
    score_covariates: Covariates | None = None
    sizes: tuple[Column, ...] = ()
    sparse_views: tuple[str, ...] = ()
    chosen: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)

    @property
    def score_inputs(self) -> tuple[Places | Covariates, ...]:
        """What scores are functions of, in the order of ``Block.columns["places"]``."""
        return tuple(one for one in (self.places, self.levels, self.score_covariates) if one is not None)

    @property
    def value_views(self) -> tuple[ViewMeta, ...]:
        """The views that the model explains."""
        return tuple(view for view in self.views if view.kind.is_values)

    @property
    def input_views(self) -> tuple[ViewMeta, ...]:
        """The views of inputs: categorical variables and covariates."""
        return tuple(view for view in self.views if not view.kind.is_values)

    def numbers(self, view: str) -> range:
        """Return the numbers of the features of a view among those of all views: keys of their noise.

        Parameters
        ----------
        view : str
            Name of the view.

        Returns
        -------
        range

        Raises
        ------
        KeyError
            When there is no such view.
        """
        before = 0
        for other in self.views:
            if other.name == view:
                return range(before, before + other.n_features)
            before += other.n_features
        raise KeyError(view)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a block: entries of all views, and the codes that travel along."""
        codes = CODE_BYTES * (bool(self.groups) + 2 * bool(self.n_sequences))
        codes += 8 * (len(self.covariates or ()) + sum(map(len, self.score_inputs)) + len(self.sizes))
        aux = sum(np.dtype(AUX_DTYPES[v.aux]).itemsize * v.n_features for v in self.views if v.aux)
        return codes + aux + sum(map(self._row_bytes, self.views))

    def _row_bytes(self, view: ViewMeta) -> int:
        """Return the bytes of a row of a view; by entries the mean of the fullest block."""
        if view.name in self.sparse_views and view.block_entries:
            column = 2 if view.n_features <= 1 << 16 else 4
            each = column + view.kind.storage_dtype(view.largest).itemsize
            return 4 - (-view.block_entries * each // self.block_rows)
        return view.kind.row_bytes(view.n_features)

    @property
    def reading_bytes(self) -> int:
        """What reading a block takes besides its values."""
        return sum(
            ENTRY_READING_BYTES * view.block_entries if view.name in self.sparse_views else view.reading_bytes
            for view in self.views
        )


def without_values(block: Block, meta: Meta) -> Block:
    """Return a block with only the inputs of predictions: codes and covariates."""
    inputs = {view.name for view in meta.input_views} | {view.aux_key for view in meta.views if view.aux}
    return replace(block, data={name: array for name, array in block.data.items() if name in inputs})


def sample_names(rows: Integer[Array, " N"] | Sequence[int]) -> Shaped[np.ndarray, " N"]:
    """Return the names of unnamed samples by their numbers: ``sample0``, ``sample1``, ..."""
    return np.char.add(SAMPLE, np.asarray(rows).astype(str))


def sample_numbers(names: Sequence[str], n_rows: int) -> Int[np.ndarray, " M"]:
    """Return the numbers of unnamed samples by their names; -1 for a name that none of them has."""
    texts = [str(name).removeprefix(SAMPLE) for name in names]
    numbers = np.array([int(text) if text.isascii() and text.isdigit() else -1 for text in texts], np.int64)
    exists = (0 <= numbers) & (numbers < n_rows) & (sample_names(numbers) == np.asarray(names, dtype=str))
    return np.where(exists, numbers, -1)
