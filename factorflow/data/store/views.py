"""Writing the views of a store, one block of rows after the other, and the small arrays beside them."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.kinds import guess as guess_kind
from factorflow.data.ingest import checks
from factorflow.data.ingest.missing import warn_of_codes, warn_of_negatives
from factorflow.data.store.column_types import encode
from factorflow.data.store.extremes import Outlier
from factorflow.data.store.fingerprint import digest_column, digest_names
from factorflow.data.store.layout import FEATURE_METADATA, ViewEntry
from factorflow.data.store.layout_choice import choose_layout, may_be_sparse
from factorflow.data.store.moments import LevelCounts, Survey
from factorflow.data.store.names import node_names
from factorflow.data.store.rows import LABEL_CHUNK, RowNames
from factorflow.data.store.view_arrays import DenseArrays, SparseArrays
from factorflow.data.store.view_source import ViewSource
from factorflow.errors import FactorflowError, InputError, pluralize
from factorflow.kernels.sparse_rows import SparseRows
from factorflow.storage.checksums import ChecksumManifest
from factorflow.storage.location import Location

if TYPE_CHECKING:
    import pandas as pd

COMPRESSED_BELOW = 0.1
"""Dense views with at most this share of non-zeros are compressed."""

MOST_NAMED = 20
"""Outliers of a view that the manifest names."""


def prepare(
    view: ViewSource, names: RowNames, block_rows: int, drop_empty: bool
) -> tuple[ViewSource, Survey | None]:
    """Read a view once before it is written, where its type on disk cannot be known otherwise."""
    kind_is_final = view.kind is not None and not (view.kind.by_size or drop_empty or view.layout == "sparse")
    if (kind_is_final and not may_be_sparse(view, min(block_rows, names.n_rows))) or (
        view.kind is not None and view.kind.coded
    ):
        return view, None
    rounding = view.kind is None or view.kind.rounded
    survey = Survey(view.features.size, rounding=rounding, signed_zeros=view.layout != "dense")
    split = deepcopy(view.split)  # what is counted beside belongs to the rows that are written
    for start in range(0, names.n_rows, block_rows):
        stop = min(start + block_rows, names.n_rows)
        if split is None and (rows := view.read_valid_entries(start, stop)) is not None:
            survey.update_by_entries(rows)
            continue
        values = view.read(start, stop)
        if split is not None:
            values, _ = split(values, start, names, view.features, view.name)
        checks.check_values(view.name, view.kind, values, start, names, view.features)
        survey.update(values)
    if view.kind is None:
        view = replace(view, kind=guess_kind(survey), likelihood_from="guessed")
    empty = survey.n_observed == 0
    if drop_empty and empty.any() and not empty.all():
        checks.warn(
            f"view {view.name!r}: {pluralize(int(empty.sum()), 'feature')} without any observed value left "
            f"out ({checks.join_names(view.features[empty])})"
        )
        columns, read = np.flatnonzero(~empty), view.read
        about = None if view.about is None else view.about.iloc[columns]
        view = replace(
            view,
            features=view.features[columns],
            read=lambda start, stop: read(start, stop)[:, columns],
            split=None if view.split is None else view.split.select(columns),
            about=about,
        )
    return view, survey


class ViewWriter:
    """One view being written."""

    def __init__(
        self, root: Any, source: ViewSource, names: RowNames, block_rows: int, survey: Survey | None
    ) -> None:
        assert source.kind is not None  # prepare has settled it
        self.source, self.names, self.block_rows = source, names, block_rows
        self.kind = source.kind
        n_features = source.features.size
        self.survey = (
            LevelCounts(n_features) if self.kind.coded else Survey(n_features, rounding=self.kind.rounded)
        )
        largest = None if survey is None else float(survey.maximum.max())
        self.dtype = self.kind.storage_dtype(n_features - 1 if self.kind.coded else largest)
        self.compressed = False
        if self.kind.is_values:
            probe = self._probe() if survey is None else survey
            self.compressed = probe.density <= COMPRESSED_BELOW
            if self.kind.rounded and probe.needs_double:
                self.dtype = np.dtype(np.float64)
        self.layout = choose_layout(source, survey, self.dtype, block_rows)
        self.most = 0 if survey is None else survey.most_nonzero
        self.patterned = survey is not None and survey.scattered
        self.group = root.create_group(source.name)
        self.arrays = self._begin()

    def _begin(self) -> DenseArrays | SparseArrays:
        """Return new arrays for the values."""
        n_features, n_rows = self.source.features.size, self.names.n_rows
        if self.layout == "sparse":
            sizes = n_rows, n_features, self.block_rows, self.most
            return SparseArrays(self.group, self.kind, self.dtype, *sizes, self.patterned)
        aux = "" if self.source.split is None else self.source.split.aux
        return DenseArrays(
            self.group, self.kind, self.dtype, n_rows, n_features, self.block_rows, self.compressed, aux
        )

    def _probe(self) -> Survey:
        """Return statistics of the first, middle and last block."""
        n_rows, survey = self.names.n_rows, Survey(self.source.features.size)
        n_blocks = -(-n_rows // self.block_rows)
        for number in sorted({0, n_blocks // 2, n_blocks - 1}):
            start = number * self.block_rows
            survey.update(self.source.read(start, min(start + self.block_rows, n_rows)))
        return survey

    def write(self, number: int) -> NDArray[np.bool_]:
        """Write one block; return which of its rows have an observed entry, (B,)."""
        source, start = self.source, number * self.block_rows
        stop = min(start + self.block_rows, self.names.n_rows)
        if isinstance(self.arrays, SparseArrays) and isinstance(self.survey, Survey):
            if (rows := source.read_valid_entries(start, stop)) is not None:
                return self._write_entries(number, rows)
        values = source.read(start, stop)
        if source.split is not None:
            assert isinstance(self.arrays, DenseArrays)  # see `choose_layout`
            values, aux = source.split(values, start, self.names, source.features, source.name)
            self.arrays.write_aux(number, source.split.aux, aux)
        checks.check_values(source.name, self.kind, values, start, self.names, source.features)
        if isinstance(self.survey, Survey) and self.kind.rounded and values.dtype != self.dtype:
            self.survey.note_rounding(values)
            values = values.astype(self.dtype)
        missing = self.survey.update(values)
        self.arrays.write(number, self.kind.encode(values, missing, self.dtype), missing)
        if missing is None:
            return np.full(len(values), True)
        return np.asarray(~missing.reshape(len(values), -1).all(axis=1))

    def _write_entries(self, number: int, rows: SparseRows) -> NDArray[np.bool_]:
        """Write one block by its entries, all of them valid."""
        assert isinstance(self.arrays, SparseArrays)  # see `write`
        assert isinstance(self.survey, Survey)
        if self.kind.rounded and rows.dtype != self.dtype:
            self.survey.note_rounding_by_entries(rows)
            rows = replace(rows, entries=rows.entries.astype(self.dtype))
        self.survey.update_by_entries(rows)
        entries = self.kind.encode(rows.entries, None, self.dtype)
        self.arrays.write_entries(number, replace(rows, entries=entries).stored())
        return ~rows.absent

    def _write_in_double(self) -> None:
        """Write the view again in double precision: the blocks that were looked at did not show the need."""
        self.dtype, self.survey = np.dtype(np.float64), Survey(self.source.features.size)
        self.arrays = self._begin()
        for number in range(-(-self.names.n_rows // self.block_rows)):
            self.write(number)

    def _outliers(self, survey: Survey) -> list[Outlier]:
        """Return single entries far from all others of their feature, and warn of them."""
        if not self.kind.is_values:
            return []
        outliers = [
            Outlier(str(self.names.part(row, row + 1)[0]), str(self.source.features[feature]), *numbers)
            for row, feature, *numbers in survey.alone()
        ]
        checks.warn_of_outliers(self.source.name, outliers)
        return outliers

    def _columns(self, places: NDArray[np.intp]) -> Iterator[NDArray[Any]]:
        """Yield the raw values of some features, a block at a time."""
        n_rows = self.names.n_rows
        for start in range(0, n_rows, self.block_rows):
            stop = min(start + self.block_rows, n_rows)
            rows = self.source.read_valid_entries(start, stop)
            yield (
                self.source.read(start, stop)[:, places]
                if rows is None
                else rows.select(places).to_array(np.nan)
            )

    def finish(self) -> tuple[ViewEntry, str, str, str]:
        """Check the whole view, write what lies beside its values, return its entry and digests."""
        if isinstance(self.survey, Survey) and self.dtype == np.float32 and self.survey.needs_double:
            self._write_in_double()
        source, survey, recoded, arrays = self.source, self.survey, dict[str, int](), self.arrays
        arrays.finish()
        if source.split is not None:
            source.split.check(source.name, source.features)
            source = replace(source, default_likelihood=source.split.complete(source.default_likelihood))
        outliers, location, largest = list[Outlier](), tuple[float, ...](), 0.0
        if isinstance(survey, LevelCounts):
            checks.check_levels(source.name, survey, source.features)
            beside = survey.finish()
        else:
            checks.check_survey(source.name, self.kind, survey, source.features)
            low, high = survey.minimum, survey.maximum
            reported = set[float]()
            if (self.kind.name, source.likelihood_from) == ("gaussian", "guessed"):
                reported = warn_of_negatives(source.name, self.names, source.features, survey, self._columns)
            warn_of_codes(
                f"view {source.name!r}", source.features, low, high, self._columns, reported=reported
            )
            recoded = self.kind.recoded(survey)
            outliers = self._outliers(survey)
            location = survey.location if self.kind.rounded else ()
            largest = float(high.max()) if self.kind.by_size else 0.0
            beside = survey.finish(halved=bool(recoded))
            if self.layout == "sparse":
                beside["n_nonzero"] = survey.n_nonzero_by_feature
        write_array(self.group, "feature", source.features, ("feature",))
        for name, array in beside.items():
            write_array(self.group, name, array, ("feature",))
        columns = {}
        if source.about is not None:
            columns = write_columns(self.group, FEATURE_METADATA, source.about, "feature")
        self.group.attrs.update(
            {"likelihood": self.kind.name, "likelihood_from": source.likelihood_from, "recoded": recoded}
        )
        entry = ViewEntry(
            name=source.name,
            likelihood=self.kind.name,  # type: ignore[arg-type]
            n_features=source.features.size,
            missing=survey.missing,  # type: ignore[arg-type]
            dtype=self.dtype.name,
            tile=arrays.tile,
            compressed=arrays.compressed,
            masked=arrays.masked and self.layout == "dense",
            likelihood_from=source.likelihood_from,
            n_missing=survey.n_missing,
            n_missing_samples=survey.n_absent,
            recoded=recoded,
            outliers=tuple(outliers[:MOST_NAMED]),
            read_as=source.read_as,
            location=location,
            largest=largest,
            default_likelihood=source.default_likelihood,
            aux="" if source.split is None else source.split.aux,
            layout=self.layout,
            block_entries=arrays.block_entries,
            n_patterns=arrays.n_patterns,
            var_columns={name: array for name, (array, *_) in columns.items()},
            var_types={name: type_ for name, (*_, type_) in columns.items() if type_ is not None},
        )
        mask = arrays.digests["observed"].hex() if arrays.masked else ""
        mask += arrays.digests[entry.aux].hex() if entry.aux else ""
        return entry, digest_names(source.features), arrays.digests["values"].hex(), mask


def write_columns(
    parent: Any, folder: str, frame: pd.DataFrame, dim: str
) -> dict[str, tuple[str, str, dict[str, Any] | None]]:
    """Write the columns of a table into a group; return name of the array, digest and type of each."""
    group, names = parent.create_group(folder), node_names(map(str, frame.columns))
    records = dict[str, tuple[str, str, dict[str, Any] | None]]()
    for column in frame.columns:
        (values, type_), name = encode(frame[column]), str(column)
        write_array(group, names[name], values, (dim,), long_name=name)
        records[name] = names[name], digest_column(values), type_
    return records


def write_array(group: Any, name: str, values: Any, dims: tuple[str, ...], **attributes: Any) -> None:
    """Write a small array, whole; names become Zarr strings."""
    from zarr.codecs import Crc32cCodec, ZstdCodec

    values = np.asarray(values)
    text = values.dtype.kind in "OUST"
    array = group.create_array(
        name,
        shape=values.shape,
        chunks=tuple(min(max(size, 1), LABEL_CHUNK) for size in values.shape),
        dtype="string" if text else values.dtype,
        compressors=[ZstdCodec(level=1), Crc32cCodec()],
        dimension_names=dims,
        attributes=attributes,
        config={"write_empty_chunks": True},
    )
    for start in range(0, values.shape[0], LABEL_CHUNK):
        part = values[start : start + LABEL_CHUNK]
        array[start : start + LABEL_CHUNK] = part.astype(object) if text else part


def read_array(path: Location, name: str, checksums: ChecksumManifest, rows: Any = ...) -> NDArray[Any]:
    """Read what `write_array` wrote, whole or some rows of it; text as NumPy strings.

    Raises
    ------
    InputError
        When it is damaged or not there.
    """
    from factorflow.storage.verified_store import open_array

    try:
        values = np.asarray(open_array(path, name, checksums)[rows])
    except FactorflowError:
        raise
    except (KeyError, ValueError, RuntimeError, OSError) as error:
        raise InputError(
            f"array {path / name}",
            str(error),
            "an array with the checksum it was written with",
            checksums.remedy,
        ) from error
    return np.asarray(values.astype(object), dtype=str) if values.dtype.kind in "OTU" else values
