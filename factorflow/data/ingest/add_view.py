"""Views that are added to a dataset: computed from its counts whenever a block is read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.arguments import name_wrong_arguments
from factorflow.data.chosen_features import HIGHLY_VARIABLE, choose_features
from factorflow.data.ingest.checks import check_view_names
from factorflow.data.store.dataset import Dataset, open_dataset
from factorflow.data.store.derived import COLUMNS, COPIES, OF_FEATURES, DerivedView, Transform
from factorflow.data.store.layout import Manifest, ViewEntry
from factorflow.data.store.moments import Survey
from factorflow.data.store.views import write_array
from factorflow.errors import InputError, OptionText
from factorflow.settings import DerivedOptions, document_options, parse_config
from factorflow.storage.checksums import write_manifest
from factorflow.storage.local import disk_errors, sync

if TYPE_CHECKING:
    from collections.abc import Mapping


@name_wrong_arguments
@document_options(DerivedOptions)
def add_view(
    dataset: Dataset | str | os.PathLike[str],
    name: str,
    of: str,
    transform: str,
    target_sum: float = 1e4,
    max_value: float | None = None,
    features: str | list[str] | None = None,
    batch: str | None = None,
) -> Dataset:
    """Add a view that is computed from the counts of another, and open the dataset anew.

    No values are stored: blocks are computed when they are read. The fingerprint changes, and what has the
    dataset open reads it no longer. A kill leaves the dataset as it was, or with the view.

    Parameters
    ----------
    dataset : Dataset or path-like
        On a disk.
    name : str
        Name of the new view.
    of : str
        The view of counts that it is computed from.
    <options>

    Returns
    -------
    Dataset

    Raises
    ------
    InputError
        When there is a view of that name, the other one has no counts, or the dataset cannot be written to.
    RunError
        When the disk is full; the dataset is as it was.

    Examples
    --------
    >>> import numpy as np, tempfile, factorflow.data
    >>> counts = np.random.default_rng(0).poisson(0.5, (50, 40))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dataset = factorflow.data.write_dataset(f"{folder}/toy", {"rna": counts})
    ...     dataset = factorflow.data.add_view(dataset, "log", of="rna", transform="log1p")
    ...     dataset.views["log"].likelihood
    'gaussian'
    """
    arguments: dict[str, Any] = {"transform": transform, "target_sum": target_sum, "max_value": max_value}
    arguments |= {"features": [features] if isinstance(features, str) else features, "batch": batch}
    options = parse_config(DerivedOptions, arguments)
    opened = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    if not isinstance(opened.path, Path):
        expected = "a dataset on a disk"
        raise InputError("dataset", str(opened.path), expected, "Add the view before it is uploaded.")
    base = _counts_of(opened, name, of)
    transformation = Transform(options.transform, options.target_sum, _limit(options, opened.n_rows))
    if transformation.name == "binarize":
        transformation = Transform(transformation.name)
    whole = options.features is None and options.batch is None
    arrays = {} if whole else _columns(opened, of, options)
    if (of_features := _of_features(opened, base, transformation, arrays)) is not None:
        arrays[OF_FEATURES] = of_features
    survey = _survey(opened, base, transformation, arrays)
    own_features = opened.features(base.name)[arrays.get(COLUMNS, slice(None))]
    entry = _entry(opened, name, base, transformation, survey, own_features.size)
    with disk_errors(opened.path, "dataset"):
        _write(opened.path, opened.manifest, entry, own_features, survey, arrays)
    return open_dataset(opened.path)


def _columns(dataset: Dataset, of: str, options: DerivedOptions) -> dict[str, NDArray[Any]]:
    """Return the array with the positions of the features; none where they are all."""
    names: str | list[str] = options.features or []
    if names == [HIGHLY_VARIABLE]:
        names = HIGHLY_VARIABLE
    elif options.batch is not None:
        expected = "nothing without {features}: features vary within batches"
        text = OptionText(expected, features=HIGHLY_VARIABLE)
        raise InputError("batch", options.batch, text, "Leave it out.")
    chosen = choose_features(dataset, {of: names}, options.batch)
    return {COLUMNS: np.array(chosen[of], np.int32)} if of in chosen else {}


def _counts_of(dataset: Dataset, name: str, of: str) -> ViewEntry:
    """Return the view that another is to be computed from."""
    check_view_names([name])
    if name in dataset.views or (dataset.n_sequences and name == "time"):
        expected = f"none of {', '.join(dataset.views)}"
        raise InputError("name", name, expected, "Choose another name.")
    base = next((entry for entry in dataset.manifest.views if entry.name == of), None)
    counts = [e.name for e in dataset.manifest.views if e.kind.by_size and not e.aux]
    if base is None or base.name not in counts:
        expected = f"a view of counts ({', '.join(counts) or 'there is none'})"
        raise InputError("of", of, expected, "Name one of them.")
    return base


def _limit(options: DerivedOptions, n_rows: int) -> float | None:
    if options.transform == "pearson" and options.max_value is None:
        return float(np.sqrt(n_rows))
    if options.transform == "binarize" and options.max_value is not None:
        raise InputError("max_value", options.max_value, "nothing, for binarize", "Leave it out.")
    return options.max_value


def _of_features(
    dataset: Dataset, base: ViewEntry, transformation: Transform, arrays: Mapping[str, NDArray[Any]]
) -> NDArray[np.float64] | None:
    """Return what the transform needs of each feature, (D,)."""
    if transformation.name == "pearson":
        moments = dataset.moments(base.name, "n_observed", "mean")
        totals = moments["n_observed"] * moments["mean"]
        return np.asarray(totals / totals.sum())[arrays.get(COLUMNS, slice(None))]
    if transformation.name == "log1p" and transformation.max_value is not None:
        without = Transform(transformation.name, transformation.target_sum)
        survey = _survey(dataset, base, without, arrays)
        return np.asarray(survey.mean + transformation.max_value * np.sqrt(survey.variance))
    return None


def _survey(
    dataset: Dataset, base: ViewEntry, transformation: Transform, arrays: Mapping[str, NDArray[Any]]
) -> Survey:
    """Return statistics of the values."""
    view = DerivedView(dataset.opened_view(base.name), transformation, arrays.get)
    survey = Survey(base.n_features if view.columns is None else view.columns.size)
    by_entries = bool(base.block_entries) and transformation.has_zeros
    for number in range(dataset.n_blocks):
        if by_entries:
            survey.update_by_entries(view.rows(number).stored())
            continue
        values = view.block(number)
        survey.update(np.where(transformation.kind.observed(values), values, np.nan).astype(np.float32))
    return survey


def _entry(
    dataset: Dataset, name: str, base: ViewEntry, transformation: Transform, survey: Survey, n_features: int
) -> ViewEntry:
    """Return the view as the manifest has it."""
    block = dataset.block_rows * base.kind.row_bytes(base.n_features)
    return replace(
        base,
        name=name,
        n_features=n_features,
        likelihood=transformation.kind.name,  # type: ignore[arg-type]
        default_likelihood="",
        likelihood_from="given",
        missing=survey.missing,  # type: ignore[arg-type]
        dtype=transformation.kind.dtype,
        masked=False,
        compressed=False,
        recoded={},
        outliers=(),
        read_as=f"{transformation.name} of {base.name}",
        location=(),
        largest=0.0,
        layout="derived",
        of=base.name,
        transform=asdict(transformation),
        block_entries=survey.most_nonzero if base.block_entries and transformation.keeps_zeros else 0,
        derived_bytes=base.reading_bytes + COPIES * block,
    )


def _write(
    path: Path,
    manifest: Manifest,
    entry: ViewEntry,
    features: NDArray[np.str_],
    survey: Survey,
    arrays: Mapping[str, NDArray[Any]],
) -> None:
    """Write what lies beside the values, and then the manifest: it decides whether the view is there."""
    import zarr

    shutil.rmtree(path / entry.name, ignore_errors=True)  # what a killed attempt left
    group = zarr.open_group(str(path), mode="r+", zarr_format=3).create_group(entry.name)
    write_array(group, "feature", features, ("feature",))
    for array, values in {**survey.finish(), **arrays}.items():
        write_array(group, array, values, ("feature",))
    group.attrs.update({"likelihood": entry.likelihood, "of": entry.of, "transform": entry.transform})
    sync(path / entry.name)
    about: list[Any] = [
        manifest.fingerprint,
        {"name": entry.name, "of": entry.of, "transform": entry.transform},
    ]
    if COLUMNS in arrays:
        about.append(arrays[COLUMNS].tolist())
    fingerprint_text = json.dumps(about, sort_keys=True).encode()
    fingerprint = hashlib.sha256(fingerprint_text).hexdigest()
    grown = replace(manifest, views=(*manifest.views, entry), fingerprint=fingerprint)
    write_manifest(path, attributes=grown.attributes())
