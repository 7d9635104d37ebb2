"""`Dataset`: an opened multi-view store, its sizes and names, and blocks of its values."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.block import Block, Meta
from factorflow.core.design import TableDesign
from factorflow.core.leaves import freeze
from factorflow.data.store.chunks import DenseView
from factorflow.data.store.layout import ATTRIBUTES, ViewEntry
from factorflow.data.store.stored_views import StoredViews
from factorflow.errors import InputError
from factorflow.kernels.sparse_rows import SparseRows
from factorflow.storage.location import as_location
from factorflow.storage.publish import current_version
from factorflow.storage.remote import RemotePath

if TYPE_CHECKING:
    from factorflow.data.holdout import Holdout

StrArray = NDArray[np.str_]


def open_dataset(path: str | os.PathLike[str] | RemotePath) -> Dataset:
    """Open the multi-view store at ``path``; no values are read.

    Parameters
    ----------
    path : path-like, or URL
        Directory that `write_dataset` or `simulate` made, or where it lies in an object store
        (``s3://bucket/name``; ``docs/object-stores.md``).

    Returns
    -------
    Dataset

    Raises
    ------
    InputError
        When there is no factorflow dataset at ``path``, or one of another schema version.

    Examples
    --------
    >>> dataset = factorflow.open_dataset("cohort.zarr")
    >>> dataset.n_rows, list(dataset.views)
    (80, ['rna', 'mutations'])
    """
    dataset = Dataset(str(current_version(as_location(path, "dataset"))))
    dataset.manifest  # noqa: B018  read now, so that a wrong path fails here
    return dataset


class Dataset(StoredViews):
    """A multi-view dataset on disk or in an object store, read block by block.

    Safe to use from several threads, and cheap to pickle: only the path and the fingerprint travel, and the
    copy opens the store when it is first used, refusing one whose content has changed.

    Parameters
    ----------
    path : str
        Absolute path of the store, or its URL.
    fingerprint : str, optional
        The fingerprint it must have.

    Examples
    --------
    >>> dataset.n_rows, dataset.obs_names[:2].tolist()
    (80, ['patient0', 'patient1'])
    >>> {view.name: (view.likelihood, view.n_features) for view in dataset.views.values()}
    {'rna': ('gaussian', 30), 'mutations': ('bernoulli', 20)}
    """

    @property
    def design(self) -> TableDesign | None:
        """Roles of the views of a table by its formula (`factorflow.write_table`); None for other data."""
        return self.manifest.design

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes of the values of every view in memory (as blocks hold them)."""
        return {v.name: self.n_rows * v.kind.row_bytes(v.n_features) for v in self.manifest.views}

    def meta(self, views: Iterable[str] | None = None, holdout: Holdout | None = None) -> Meta:
        """Return the shape of the dataset as models see it.

        Parameters
        ----------
        views : iterable of str, optional
            The views to model; all when left out. The order is always the dataset's.
        holdout : Holdout, optional
            With it, any entry of any view of values may be missing, or any row.

        Returns
        -------
        Meta

        Raises
        ------
        InputError
            When a view does not exist, none is left, or the hold-out hides nothing or everything.
        """
        if holdout is not None:
            holdout.check(self.n_rows, self.n_sequences)
        return self.manifest.meta(self._selection(views), holdout)

    # Values

    def read(
        self,
        number: int,
        views: Iterable[str] | None = None,
        holdout: Holdout | None = None,
        sparse: Collection[str] = (),
    ) -> tuple[Block, dict[str, NDArray[Any]]]:
        """Read one block of rows, and the truth of what is held out of it.

        Parameters
        ----------
        number : int
            0 ... n_blocks - 1.
        views : iterable of str, optional
            The views to read; all when left out.
        holdout : Holdout, optional
            Entries of views of values that are to look missing, listed in ``Block.hidden``; or the counts
            that are to be split.
        sparse : collection of str
            Views whose rows are `SparseRows`; those of others are dense.

        Returns
        -------
        block : Block
            What models see.
        truth : dict of str to (H,) array
            Values of the held-out entries, or parts of counts, by view, in the order of ``Block.hidden``.

        Raises
        ------
        InputError
            When a chunk is damaged, or there is no such block or view.
        """
        start, n_rows = self._span(number)
        data: dict[str, Any] = {}
        hidden: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {}
        truth: dict[str, NDArray[Any]] = {}
        selected = self._selection(views)
        with self._consistent_read():
            codes = {name: self._codes(name, start, start + n_rows) for name in self.code_names}
            blocks = {entry.name: self._rows(entry, number, sparse) for entry in selected}
        for entry in selected:
            values = blocks.pop(entry.name)
            if holdout is not None and holdout.concerns(entry.kind):
                place, sequence = (self._index[entry.name], start, self.n_rows), codes.get("sequence")
                values, where, truth[entry.name] = holdout.take(values, entry.kind, *place, sequence)
                hidden[entry.name] = where
                _set_read_only(*where, truth[entry.name])
            data[entry.name] = values
            if entry.aux:
                data[entry.meta.aux_key] = self._aux_arrays[entry.name].block(number)
        data = freeze(data)
        _set_read_only(*codes.values())
        joins_before, joins_after = (
            bool(self.joined[number]),
            bool(self.joined[number + 1 : number + 2].any()),
        )
        return Block(
            number, start, n_rows, self.n_blocks, data, hidden, codes, joins_before, joins_after
        ), truth

    def block(self, number: int, views: Iterable[str] | None = None, holdout: Holdout | None = None) -> Block:
        """Read one block of rows as models see it: `read` without the truth.

        Parameters
        ----------
        number, views, holdout
            As for `read`.

        Returns
        -------
        Block

        Raises
        ------
        InputError
            When a chunk is damaged, or there is no such block or view.

        Examples
        --------
        >>> block = dataset.block(0, ["rna"])
        >>> block.n_rows, block.data["rna"].dtype
        (80, dtype('float32'))
        """
        return self.read(number, views, holdout)[0]

    def values(self, view: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return values of a view, as blocks hold them.

        Parameters
        ----------
        view : str
            Name of the view.
        start, stop : int, optional
            Rows; all when left out.

        Returns
        -------
        (stop - start, D) array
            Of a categorical view codes (stop - start,).

        Raises
        ------
        InputError
            When a chunk is damaged, or there is no such view.

        Examples
        --------
        >>> dataset.values("mutations", stop=10).shape
        (10, 20)
        """
        opened = self.opened_view(view)
        first, last, _ = slice(start, stop).indices(self.n_rows)
        with self._consistent_read():
            return opened.part(first, last)

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """The ``attributes`` given to `write_dataset`: plain values and arrays."""
        if ATTRIBUTES not in self.checksums.contents or ATTRIBUTES in self._index:  # an older one's view
            return {}
        plain = {str(name): value for name, value in self.tree[ATTRIBUTES].attrs.items()}
        arrays = [node for node in self.checksums.contents if node.startswith(f"{ATTRIBUTES}/")]
        return plain | {node.removeprefix(f"{ATTRIBUTES}/"): self.read_array(node) for node in arrays}

    # Representations

    def describe(self) -> dict[str, Any]:
        """Return sizes, likelihoods, missing entries and the block grid as plain values.

        Returns
        -------
        dict
            As JSON has it.

        Examples
        --------
        >>> dataset.describe()["n_samples"], dataset.describe()["n_blocks"]
        (80, 1)
        """
        from factorflow.data.store.describe import describe

        return describe(self.path, self.manifest, self.nbytes, self.attributes)

    def __repr__(self) -> str:
        from factorflow.data.store.describe import as_text

        return as_text(self.describe())

    def _repr_html_(self) -> str:
        from factorflow.data.store.describe import as_html

        return as_html(self.describe())

    # Inner parts

    def _rows(self, entry: ViewEntry, number: int, sparse: Collection[str]) -> Any:
        """Return the rows of a view in a block: dense, or by their entries."""
        opened = self.opened_view(entry.name)
        if entry.name not in sparse:
            return opened.block(number)
        if entry.block_entries and not isinstance(opened, DenseView):
            return opened.rows(number)
        values = opened.block(number)
        observed = entry.kind.observed(values)
        counts = np.where(observed, values, 0).astype(entry.dtype)
        return SparseRows.from_dense(counts, None if observed.all() else ~observed, listed=True)

    def _selection(self, views: Iterable[str] | None) -> tuple[ViewEntry, ...]:
        if views is None:
            return self.manifest.views
        names = {self._entry(view).name for view in ([views] if isinstance(views, str) else views)}
        if not names:
            raise InputError("views", (), "at least one view", "Leave it out for all views.")
        return tuple(entry for entry in self.manifest.views if entry.name in names)

    def _span(self, number: int) -> tuple[int, int]:
        if not 0 <= number < self.n_blocks:
            raise InputError("block", number, f"0 to {self.n_blocks - 1}", "Blocks are numbered from 0.")
        start = number * self.block_rows
        return start, min(self.block_rows, self.n_rows - start)


def _set_read_only(*arrays: NDArray[Any]) -> None:
    """Make arrays read-only."""
    for array in arrays:
        array.flags.writeable = False
