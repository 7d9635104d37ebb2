"""Samples of a store: names, groups, sequences and metadata."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.block import sample_names
from factorflow.data.store.chunks import ChunkedArray
from factorflow.data.store.column_types import decode
from factorflow.data.store.names import free_name
from factorflow.data.store.opened_store import OpenedStore
from factorflow.data.store.rows import code_array
from factorflow.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

StrArray = NDArray[np.str_]


class StoredSamples(OpenedStore):
    """The samples of an opened store.

    Parameters
    ----------
    path : str
        Absolute path of the store, or its URL.
    fingerprint : str, optional
        The fingerprint it must have.
    """

    @property
    def n_rows(self) -> int:
        """Samples (rows, frames)."""
        return self.manifest.n_rows

    @property
    def n_blocks(self) -> int:
        """Blocks of rows."""
        return self.manifest.n_blocks

    @property
    def block_rows(self) -> int:
        """Rows in every block but possibly the last."""
        return self.manifest.block_rows

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the sample groups; empty: none."""
        return self.manifest.groups

    @property
    def n_sequences(self) -> int:
        """Sequences the rows are cut into; 0: the rows are exchangeable."""
        return self.manifest.n_sequences

    @property
    def named(self) -> bool:
        """Whether the samples were given names; else they are ``sample0``, ``sample1``, ..."""
        return self.manifest.named

    @cached_property
    def obs_names(self) -> StrArray:
        """Names of the samples, (N,)."""
        return self.names()

    def names(self, start: int = 0, stop: int | None = None) -> StrArray:
        """Return the names of some samples; no others are read.

        Parameters
        ----------
        start, stop : int, optional
            Rows; all when left out.

        Returns
        -------
        (stop - start,) array of str

        Examples
        --------
        >>> dataset.names(78).tolist()
        ['patient78', 'patient79']
        """
        first, last, _ = slice(start, stop).indices(self.n_rows)
        if not self.named:
            return sample_names(np.arange(first, last))
        return self.read_array("obs", slice(first, last))

    @cached_property
    def obs(self) -> pd.DataFrame:
        """Sample metadata by sample name, with ``group``, ``sequence`` and ``time`` where there are any.

        Columns are as they were given, with their types. One called ``group``, say, that says something else
        than ``groups`` keeps its name; the groups then are in ``group_`` (`code_columns`).
        """
        import pandas as pd

        return pd.DataFrame(self.obs_columns(), index=pd.Index(self.obs_names, name="obs"))

    @property
    def column_names(self) -> list[str]:
        """Names of the columns of `obs`."""
        return list(dict.fromkeys([*self.code_columns.values(), *self.manifest.obs_columns]))

    def obs_columns(
        self, names: Iterable[str] | None = None, start: int = 0, stop: int | None = None
    ) -> dict[str, Any]:
        """Return columns of `obs`, of some samples; no others are read.

        Parameters
        ----------
        names : iterable of str, optional
            Their names; all when left out.
        start, stop : int, optional
            Rows; all when left out.

        Returns
        -------
        dict of str to (stop - start,) array
            With their types.

        Raises
        ------
        InputError
            When there is no such column.
        """
        first, last, _ = slice(start, stop).indices(self.n_rows)
        codes = {column: name for name, column in self.code_columns.items()}
        columns: dict[str, Any] = {}
        for name in self.column_names if names is None else names:
            if name not in self.column_names:
                available = ", ".join(self.column_names) or "there are none"
                raise InputError("names", name, f"columns of the metadata: {available}", "Correct the name.")
            if name not in self.manifest.obs_columns:
                values = self.codes(codes[name], first, last)
                columns[name] = np.asarray(self.groups)[values] if codes[name] == "group" else values
            else:
                values = self.read_array(self.manifest.obs_columns[name], slice(first, last))
                columns[name] = decode(values, self.manifest.obs_types.get(name))
        return columns

    def stored_columns(self) -> dict[str, Any]:
        """Return the columns of `obs` as they are stored.

        Returns
        -------
        dict of str to (N,) array
            Numbers, truth values or text ("": missing) by column.
        """
        columns: dict[str, Any] = {}
        for name, column in self.code_columns.items():
            codes = self.codes(name)
            columns[column] = np.asarray(self.groups)[codes] if name == "group" else codes
        for name, array in self.manifest.obs_columns.items():
            columns[name] = self.read_array(array)
        return columns

    @property
    def code_names(self) -> tuple[str, ...]:
        """Codes that travel with every block, as there are any: group, sequence, time."""
        return ("group",) * bool(self.groups) + ("sequence", "time") * bool(self.n_sequences)

    @cached_property
    def code_columns(self) -> dict[str, str]:
        """Columns of the sample metadata in which the groups, sequences and times are, by `code_names`."""
        reserved = set(self.manifest.obs_columns)
        return {
            name: self.manifest.code_columns.get(name) or free_name(name, reserved)
            for name in self.code_names
        }

    def codes(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.int32]:
        """Return the codes of some samples; no others are read.

        Parameters
        ----------
        name : {"group", "sequence", "time"}
            Which code.
        start, stop : int, optional
            Rows; all when left out.

        Returns
        -------
        (stop - start,) int32 array

        Raises
        ------
        InputError
            When the dataset has no such code.
        """
        first, last, _ = slice(start, stop).indices(self.n_rows)
        with self._consistent_read():
            return self._codes(name, first, last)

    def _codes(self, name: str, first: int, last: int) -> NDArray[np.int32]:
        return self.code_array(name).part(first, last)

    @cached_property
    def joined(self) -> NDArray[np.bool_]:
        """Whether the first row of each block goes on the last sequence of the block before, (n_blocks,)."""
        return self.read_array("joined") if self.n_sequences else np.zeros(self.n_blocks, bool)

    def code_array(self, name: str) -> ChunkedArray:
        """Return the array of a code as it lies on disk.

        Parameters
        ----------
        name : {"group", "sequence", "time"}
            Which code.

        Returns
        -------
        ChunkedArray

        Raises
        ------
        InputError
            When the dataset has no such code.
        """
        if name not in self.code_names:
            raise InputError(
                "code", name, f"one of {', '.join(self.code_names) or 'none'}", "The dataset has no others."
            )
        return code_array(str(self.path), name, self.n_rows, self.block_rows)
