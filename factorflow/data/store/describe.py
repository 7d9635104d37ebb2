"""Descriptions of a dataset: as plain values, text and HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from html import escape
from typing import Any

import numpy as np

from factorflow.data.store.extremes import Outlier
from factorflow.data.store.layout import Manifest
from factorflow.errors import pluralize
from factorflow.likelihoods import get_likelihood
from factorflow.storage.location import Location

_COLUMNS = ("view", "likelihood", "features", "missing entries", "samples without", "stored as")


def describe(
    path: Location, manifest: Manifest, nbytes: Mapping[str, int], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return sizes, likelihoods, missing entries and the block grid as plain values."""
    views = [
        {
            "name": v.name,
            "likelihood": v.likelihood,
            "likelihood_from": v.likelihood_from,
            "default_likelihood": v.default_likelihood,
            "aux": v.aux,
            "n_features": v.n_features,
            "missing": v.missing,
            "missing_percent": round(
                100.0 * v.n_missing / (manifest.n_rows * v.kind.row_entries(v.n_features)), 4
            ),
            "n_missing_samples": v.n_missing_samples,
            "dtype": v.dtype,
            "compressed": v.compressed,
            "layout": v.layout,
            "of": v.of,
            "transform": v.transform,
            "recoded": v.recoded,
            "outliers": [asdict(outlier) for outlier in v.outliers],
            "read_as": v.read_as,
            "nbytes": nbytes[v.name],
        }
        for v in manifest.views
    ]
    return {
        "path": str(path),
        "n_samples": manifest.n_rows,
        "n_blocks": manifest.n_blocks,
        "block_rows": manifest.block_rows,
        "views": views,
        "groups": list(manifest.groups),
        "n_sequences": manifest.n_sequences,
        "obs_columns": list(manifest.obs_columns),
        "nbytes": sum(nbytes.values()),
        "fingerprint": manifest.fingerprint,
        "created_by": manifest.created_by,
        "design": None if manifest.design is None else asdict(manifest.design),
        "attributes": {
            name: f"array {value.shape}" if isinstance(value, np.ndarray) else value
            for name, value in attributes.items()
        },
    }


def _rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            v["name"],
            (get_likelihood(v["default_likelihood"]).label if v["default_likelihood"] else v["likelihood"])
            + (" (guessed)" if v["likelihood_from"] == "guessed" else ""),
            f"{v['n_features']:,}",
            _missing(v),
            f"{v['n_missing_samples']:,}",
            _storage_type(v),
        )
        for v in facts["views"]
    ]


def _storage_type(view: dict[str, Any]) -> str:
    """Return how the values of a view lie on disk."""
    if view["layout"] == "derived":
        return "computed"
    how = " sparse" if view["layout"] == "sparse" else " zstd" if view["compressed"] else ""
    return f"{view['dtype']}{how}"


def _missing(view: dict[str, Any]) -> str:
    if view["missing"] == "none":
        return "none"
    percent = view["missing_percent"]
    return ("< 0.1" if percent < 0.1 else f"{percent:.1f}") + f" % {view['missing']}"


def _head(facts: dict[str, Any]) -> str:
    parts = [pluralize(facts["n_samples"], "sample"), pluralize(len(facts["views"]), "view")]
    parts += [pluralize(len(facts["groups"]), "group")] if facts["groups"] else []
    parts += [pluralize(facts["n_sequences"], "sequence")] if facts["n_sequences"] else []
    return ", ".join(parts)


def _storage_lines(facts: dict[str, Any]) -> list[str]:
    """Return how the dataset is stored, and its fingerprint."""
    blocks = f"{pluralize(facts['n_blocks'], 'block')} of {pluralize(facts['block_rows'], 'row')}"
    return [f"  stored in {blocks}, {_size(facts['nbytes'])}; fingerprint {facts['fingerprint'][:12]}"]


def _table(facts: dict[str, Any]) -> list[str]:
    """Return how the rows of a table were used; empty for other datasets."""
    design = facts["design"]
    if design is None:
        return []
    left = ("n_dropped", "incomplete"), ("n_held_out", "held out"), ("n_merged", "merged")
    parts = [f"{design[key]:,} {words}" for key, words in left if design[key]]
    rows = pluralize(design["n_table_rows"], "row") + (f" ({', '.join(parts)})" if parts else "")
    grid = ", cells that are not here count 0" if design["grid"] else ""
    return [f"  table {design['formula']}: {rows}{grid}"]


def _read_as(facts: dict[str, Any]) -> list[str]:
    """Return the detected dialects of the files of views, equal ones in one line."""
    views_by_text: dict[str, list[str]] = {}
    for view in facts["views"]:
        if view["read_as"]:
            views_by_text.setdefault(view["read_as"], []).append(view["name"])
    return [f"  read {', '.join(views)}: {how}" for how, views in views_by_text.items()]


def _attributes(facts: dict[str, Any]) -> list[str]:
    """Return the attributes of the dataset by name."""
    names = ", ".join(facts["attributes"])
    return [f"  attributes: {names}"] if names else []


def _guesses(facts: dict[str, Any]) -> list[str]:
    """Return which views were taken for counts, unasked, and where the choice is explained."""
    counts = [
        v["name"] for v in facts["views"] if (v["likelihood"], v["likelihood_from"]) == ("poisson", "guessed")
    ]
    if not counts:
        return []
    return [
        f"  counts guessed: {', '.join(counts)}; see docs/ingest.md for the choice of a likelihood, and "
        'likelihoods="negative_binomial" of a fit where counts vary much'
    ]


def _outliers(facts: dict[str, Any]) -> list[str]:
    """Return the outlying entries."""
    return [
        f"  far from all others: {v['name']}: {Outlier(**outlier)}"
        for v in facts["views"]
        for outlier in v["outliers"]
    ]


def _size(n_bytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} B"


def as_text(facts: dict[str, Any]) -> str:
    """Return a description as a table for a terminal."""
    rows = [_COLUMNS, *_rows(facts)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    lines = [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    head = [f"Dataset {facts['path']}", f"  {_head(facts)}"]
    notes = (*_read_as(facts), *_guesses(facts), *_outliers(facts), *_storage_lines(facts))
    return "\n".join([*head, *_table(facts), *_attributes(facts), *lines, *notes])


def as_html(facts: dict[str, Any]) -> str:
    """Return a description as a table for a notebook."""
    head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in _COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in _rows(facts)
    )
    more = (*_table(facts), *_attributes(facts), *_read_as(facts), *_guesses(facts), *_outliers(facts))
    more = (*more, *_storage_lines(facts))
    table = "".join(f"<br>{escape(line.strip())}" for line in more)
    return (
        f"<div><strong>Dataset</strong> {escape(facts['path'])}<br>{escape(_head(facts))}{table}"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
