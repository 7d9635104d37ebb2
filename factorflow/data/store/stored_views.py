"""Views of a store: features, moments, and values by blocks of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.block import ViewMeta
from factorflow.data.store.chunks import ChunkedArray, DenseView, aux_array, open_dense
from factorflow.data.store.column_types import decode
from factorflow.data.store.derived import DerivedView, Transform
from factorflow.data.store.layout import FEATURE_METADATA, ViewEntry
from factorflow.data.store.quality import quality, variability
from factorflow.data.store.samples import StoredSamples
from factorflow.data.store.sparse import SparseView
from factorflow.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

MOMENTS = ("n_observed", "mean", "variance", "min", "max")
COUNTED = ("n_observed",)
"""What lies beside the values of a view, for every feature; and beside codes, for every level."""

StrArray = NDArray[np.str_]


class StoredViews(StoredSamples):
    """The views of an opened store.

    Parameters
    ----------
    path : str
        Absolute path of the store, or its URL.
    fingerprint : str, optional
        The fingerprint it must have.
    """

    @cached_property
    def views(self) -> dict[str, ViewMeta]:
        """The views in order: name to likelihood, width and kind of missing entries."""
        return {entry.name: entry.meta for entry in self.manifest.views}

    def features(self, view: str) -> StrArray:
        """Return the names of the features of a view.

        Parameters
        ----------
        view : str
            Name of the view.

        Returns
        -------
        (D,) array of str

        Raises
        ------
        InputError
            When there is no such view.

        Examples
        --------
        >>> dataset.features("rna")[:3].tolist()
        ['gene0', 'gene1', 'gene2']
        """
        self._entry(view)
        return self.read_array(f"{view}/feature")

    def feature_metadata(self, view: str) -> pd.DataFrame:
        """Return the metadata of the features of a view, as ``var`` of AnnData or files of 10x have them.

        Parameters
        ----------
        view : str
            Name of the view.

        Returns
        -------
        DataFrame
            By feature; without columns where the view came with none.

        Raises
        ------
        InputError
            When there is no such view.
        """
        import pandas as pd

        entry = self._entry(view)
        folder = f"{entry.of or entry.name}/{FEATURE_METADATA}"
        columns = {
            name: decode(self.read_array(f"{folder}/{array}"), entry.var_types.get(name))
            for name, array in entry.var_columns.items()
        }
        opened = self.opened_view(view)
        if isinstance(opened, DerivedView) and opened.columns is not None:
            columns = {name: values[opened.columns] for name, values in columns.items()}
        return pd.DataFrame(columns, index=pd.Index(self.features(view), name="feature"))

    def moments(self, view: str, *names: str) -> dict[str, NDArray[Any]]:
        """Return moments of every feature of a view, as they were when the dataset was written.

        Parameters
        ----------
        view : str
            Name of the view.
        *names : {"n_observed", "mean", "variance", "min", "max"}
            Which; all when left out. A categorical view has n_observed alone: the samples of each level.

        Returns
        -------
        dict of str to (D,) array
            By name.

        Raises
        ------
        InputError
            When there is no such view, or it has no such moment.

        Examples
        --------
        >>> dataset.moments("rna", "n_observed")["n_observed"][:3]
        array([79, 80, 80])
        """
        available = COUNTED if self._entry(view).kind.coded else MOMENTS
        if unknown := [name for name in names if name not in available]:
            expected = f"moments of view {view!r}: {', '.join(available)}"
            raise InputError("names", ", ".join(map(str, unknown)), expected, "Leave them out for all.")
        return {name: self.read_array(f"{view}/{name}") for name in names or available}

    def qc(self, sets: Mapping[str, str | Sequence[str]] | None = None) -> pd.DataFrame:
        """Return measures of the quality of each sample, from the views of counts.

        Parameters
        ----------
        sets : mapping of str to str or sequence of str, optional
            Sets of features: their names, or what these begin with, such as ``{"mt": "MT-"}``. A set that has
            none of the names is looked for in the text columns of the metadata, such as the symbols of genes.

        Returns
        -------
        DataFrame
            By sample, ``<view>_total_counts``, ``<view>_n_features`` (those with a count) and
            ``<view>_pct_<set>``, the percentage of the counts that is in a set; NaN of samples that a view
            lacks.

        Raises
        ------
        InputError
            When no view has counts, or none of the features of a set.
        """
        return quality(self, sets)

    def highly_variable(
        self, view: str, n: int = 2000, batch: str | None = None, by: str = "excess_variance"
    ) -> pd.DataFrame:
        """Return how variable the features of a view of counts are, from one pass.

        Counts are divided by the total of their sample, in units of the mean of the totals. What exceeds the
        variance of Poisson counts is no noise of counting.

        Parameters
        ----------
        view : str
            Name of the view.
        n : int
            Features to mark.
        batch : str, optional
            Column of the metadata; moments are those within its batches, so that differences between them do
            not count.
        by : {"excess_variance", "deviance"}
            What features are ranked by: variance beyond that of Poisson counts, or the Poisson deviance from
            a constant rate in each batch.

        Returns
        -------
        DataFrame
            By feature, ``mean``, ``variance``, ``excess_variance``, ``deviance``, ``rank`` from 1 on, and
            ``highly_variable``.

        Raises
        ------
        InputError
            When there is no such view of counts, or no such column.
        """
        return variability(self, view, n, batch, by)

    def opened_view(self, view: str) -> DenseView | SparseView | DerivedView:
        """Return the values of a view, to be read by blocks of rows without a look at the hold-out.

        Parameters
        ----------
        view : str
            Name of the view.

        Returns
        -------
        DenseView, SparseView or DerivedView
            With methods ``block(number)`` and ``part(first, last)``.

        Raises
        ------
        InputError
            When there is no such view.
        """
        if view not in self._opened_views:
            self._opened_views[view] = self._open_view(self._entry(view))
        return self._opened_views[view]

    @cached_property
    def _opened_views(self) -> dict[str, DenseView | SparseView | DerivedView]:
        return {}

    def _open_view(self, entry: ViewEntry) -> DenseView | SparseView | DerivedView:
        if entry.layout == "derived":

            def read(name: str) -> NDArray[Any] | None:
                node = f"{entry.name}/{name}"
                return self.read_array(node) if node in self.checksums.contents else None

            return DerivedView(self.opened_view(entry.of), Transform(**entry.transform), read)
        opener = SparseView.open if entry.layout == "sparse" else open_dense
        return opener(str(self.path), self.manifest, entry)

    @cached_property
    def _aux_arrays(self) -> dict[str, ChunkedArray]:
        return {v.name: aux_array(str(self.path), self.manifest, v) for v in self.manifest.views if v.aux}

    @cached_property
    def _index(self) -> Mapping[str, int]:
        return {entry.name: index for index, entry in enumerate(self.manifest.views)}

    def _entry(self, view: str) -> ViewEntry:
        if view not in self._index:
            raise InputError(
                "view",
                view,
                f"one of {', '.join(self._index)}",
                f"These are the views of the dataset at {self.path}.",
            )
        return self.manifest.views[self._index[view]]
