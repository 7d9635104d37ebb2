"""Counts as 10x Genomics writes them: folders with matrix.mtx, and .h5 files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.extras import require
from factorflow.data.ingest import annotated
from factorflow.data.ingest.checks import readable, usable_name
from factorflow.data.ingest.market import transposed_market
from factorflow.data.ingest.reading import Contents, Reading
from factorflow.data.ingest.sources import Source, labels, read_type
from factorflow.data.ingest.sparse import from_parts
from factorflow.data.ingest.text_files import open_text
from factorflow.errors import InputError

MODALITIES = {"Gene Expression": "rna", "Antibody Capture": "prot", "Peaks": "atac"}
"""Views of the types of features, named as muon names them."""

_FEATURES, _BARCODES = ("features.tsv", "genes.tsv"), ("barcodes.tsv",)


def is_10x_folder(folder: Path) -> bool:
    """Whether a folder holds one matrix of 10x Genomics."""
    return len(_matrices(folder)) == 1


def open_10x_folder(folder: Path, view: str, reading: Reading) -> Contents:
    """Return the counts of a folder with matrix.mtx, features.tsv (or genes.tsv) and barcodes.tsv."""
    path = _matrices(folder)[0]
    prefix = _prefix(folder)
    rows = transposed_market(path, reading.spool)
    features = _lines(folder, _tables(folder, prefix, _FEATURES), rows.shape[1])
    barcodes = _lines(folder, _tables(folder, prefix, _BARCODES), rows.shape[0])
    ids = [line[0] for line in features]
    descriptions = {
        name: [line[place] if len(line) > place else "" for line in features]
        for place, name in enumerate(("gene_name", "feature_type"), start=1)
    }
    return _split_by_type(rows, [line[0] for line in barcodes], ids, descriptions, view, reading), None


def open_10x_h5(path: Path, view: str, reading: Reading) -> Contents:
    """Return the counts of an .h5 file of Cell Ranger; they stay on disk. AnnData may end so, too."""
    file = reading.opened.enter_context(require("h5py", "reads HDF5 files").File(path, "r"))
    if annotated.is_annotated(file):
        return annotated.from_group(file, path, view, reading)
    return _from_file(file, path, view, reading), None


def _from_file(file: Any, path: Path, view: str, reading: Reading) -> dict[str, Source]:
    inside = {name: set(node) for name, node in file.items() if hasattr(node, "keys")}
    groups = [name for name, members in inside.items() if {"barcodes", "indptr"} <= members]
    if len(groups) != 1:
        raise InputError(
            f"file {path}",
            f"groups {', '.join(file) or 'none'}",
            "an .h5 of Cell Ranger with one matrix",
            "Write it as .h5ad, or give the matrix as an array.",
        )
    group = file[groups[0]]
    n_features, n_barcodes = (int(size) for size in group["shape"][:])
    rows = from_parts(
        group["data"],
        group["indices"],
        group["indptr"],
        (n_barcodes, n_features),  # columns of features x barcodes are rows of the view
        "csr",
        f"array {groups[0]!r} of {path}",
        reading.spool,
    )
    of_version_3 = "features" in group
    about = group["features"] if of_version_3 else group
    ids = _texts(about["id" if of_version_3 else "genes"])
    columns = {"gene_name": "name" if of_version_3 else "gene_names"}
    columns |= {"feature_type": "feature_type", "genome": "genome"}
    descriptions = {name: _texts(about[key]) for name, key in columns.items() if key in about}
    barcodes = _texts(group["barcodes"])
    for what, names, size in (("features", ids, n_features), ("barcodes", barcodes, n_barcodes)):
        if len(names) != size:
            raise InputError(
                f"{what} of {path}", f"{len(names)} names", f"{size}, as the matrix has", "Copy it again."
            )
    return _split_by_type(rows, barcodes, ids, descriptions, view, reading)


def _split_by_type(
    rows: Any,
    barcodes: list[str],
    ids: list[str],
    descriptions: dict[str, list[str]],
    view: str,
    reading: Reading,
) -> dict[str, Source]:
    """Return one view for every type of features, with the metadata of its features."""
    import pandas as pd

    samples, features = labels(barcodes), labels(ids)
    types = descriptions.get("feature_type", [""] * len(ids))
    about = pd.DataFrame({name: texts for name, texts in descriptions.items() if any(texts)}, index=features)
    names = {kind: MODALITIES.get(kind, usable_name(kind)) for kind in dict.fromkeys(types)}
    if len(names) == 1:
        names = dict.fromkeys(names, view)
    by_type: dict[str, Source] = {}
    for kind, name in names.items():
        marked: NDArray[np.bool_] = np.array([own == kind for own in types])
        source = Source(rows, samples, features, dtype=read_type(reading.kinds(name)))
        source.about, source.barcodes = about if about.shape[1] else None, True
        by_type[name] = (source if marked.all() else replace(source, marked=marked)).select()
    return by_type


def _matrices(folder: Path) -> list[Path]:
    """Return the matrices in a folder; files that are shared have a prefix."""
    return [path for end in ("", ".gz") for path in sorted(folder.glob(f"*matrix.mtx{end}"))]


def companion_files(folder: Path) -> list[Path]:
    """Return the files that belong to the matrix of 10x Genomics in a folder, if there is one."""
    if not is_10x_folder(folder):
        return []
    prefix = _prefix(folder)
    return [*_matrices(folder), *_tables(folder, prefix, _FEATURES), *_tables(folder, prefix, _BARCODES)]


def _prefix(folder: Path) -> str:
    name = _matrices(folder)[0].name
    return name[: name.index("matrix.mtx")]


def _tables(folder: Path, prefix: str, names: tuple[str, ...]) -> list[Path]:
    """Return where one of some tables may be."""
    return [folder / f"{prefix}{name}{end}" for name in names for end in ("", ".gz")]


def _lines(folder: Path, paths: list[Path], size: int) -> list[list[str]]:
    """Return the lines of one of some tables without a header."""
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        expected = f"{' or '.join(path.name for path in paths)} beside the matrix"
        raise InputError(f"folder {folder}", "no such file", expected, "Copy it there.")
    expected = "a text table encoded as UTF-8"
    with readable(f"file {path}", "Copy it again.", expected), open_text(path, "utf-8") as stream:
        lines = [line.rstrip("\r\n").split("\t") for line in stream]
    if len(lines) != size:
        raise InputError(
            f"file {path}", f"{len(lines)} lines", f"{size}, as the matrix has", "Copy both again."
        )
    return lines


def _texts(values: Any) -> list[str]:
    return [value.decode("utf-8") if isinstance(value, bytes) else str(value) for value in values[:]]
