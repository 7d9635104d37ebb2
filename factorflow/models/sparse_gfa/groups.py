"""Rows of several noise groups in one block: taken apart, mapped, laid together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from jaxtyping import Float64, Integer

from factorflow.core.trees import replace, take
from factorflow.kernels import device
from factorflow.models.contract import Array, Block
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Local
from factorflow.models.sparse_gfa.statistics import FeatureStats, Stats

Part = tuple[int, Integer[Array, " P"], Block, Integer[Array, " P"], Local | None]


def by_noise_group(
    settings: Settings, block: Block, codes: Integer[Array, " B"], local: Local | None
) -> list[Part]:
    """Return the rows of each noise group present: its number, rows, entries, group codes, and old state."""
    if settings.n_noise_groups == 1:
        return [(0, np.arange(len(codes)), block, codes, local)]
    rows = [(g, np.flatnonzero(codes == g)) for g in range(settings.n_noise_groups)]
    return [(g, r, _rows_of(block, r), codes[r], take(local, r)) for g, r in rows if r.size]


def _rows_of(block: Block, index: Integer[Array, " P"]) -> Block:
    """Return some rows of a block, with nothing kept of them."""
    data = {name: x[device.move_beside(index, x)] for name, x in block.data.items()}
    columns = {name: codes[index] for name, codes in block.columns.items()}
    return replace(block, n_rows=len(index), data=data, hidden={}, columns=columns, memory=None)


def scatter_rows(parts: Sequence[tuple[Integer[Array, " P"], Local]], n_rows: int) -> Local:
    """Return the state of a whole block, given that of its parts with their rows."""
    out: dict[str, Array] = {}
    for f in fields(Local):
        first = getattr(parts[0][1], f.name)
        if first is None:
            continue
        whole = np.zeros((n_rows, first.shape[1]))
        for index, part in parts:
            whole[index] = getattr(part, f.name)
        out[f.name] = whole
    return replace(parts[0][1], **out)


def add_groups(parts: Sequence[tuple[int, Stats]], n_groups: int) -> Stats:
    """Return the statistics of a block, given those of the rows of each noise group."""
    total = parts[0][1]
    plain = {
        f.name: sum((getattr(s, f.name) for _, s in parts[1:]), getattr(total, f.name))
        for f in fields(Stats)
        if f.name not in {"features", "shared", "courses"} and getattr(total, f.name) is not None
    }
    features = {
        name: replace(
            first,
            **{
                f.name: _concatenate([(g, getattr(s.features[name], f.name)) for g, s in parts], n_groups)
                for f in fields(FeatureStats)
                if getattr(first, f.name) is not None
            },
        )
        for name, first in total.features.items()
    }
    shared = {
        name: _concatenate([(g, s.shared[name][None]) for g, s in parts], n_groups)[0]
        for name in total.shared
    }
    return replace(total, features=features, shared=shared, **plain)


def _concatenate(
    parts: Sequence[tuple[int, Float64[Array, "D 1 ..."]]], n_groups: int
) -> Float64[Array, "D {n_groups} ..."]:
    """Lay arrays of the groups side by side."""
    first = parts[0][1]
    out = np.zeros((first.shape[0], n_groups, *first.shape[2:]))
    for g, part in parts:
        out[:, g] = part[:, 0]
    return out
