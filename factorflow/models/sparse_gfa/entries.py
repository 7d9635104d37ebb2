"""The entries of a view in a block: as they are, in units of the model, centred."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Float64, Shaped

from factorflow.core.kinds import KINDS
from factorflow.kernels import device
from factorflow.kernels.sparse_rows import SparseRows
from factorflow.models.contract import Array, Block
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.settings import Settings, ViewSettings
from factorflow.models.sparse_gfa.size_factors import log_size_factors
from factorflow.models.sparse_gfa.state import Fixed


def centred(
    settings: Settings,
    block: Block,
    name: str,
    values: Shaped[Array, "B D"],
    reference: Float64[Array, " D"],
    scale: Float64[Array, " D"],
) -> Float[Array, "B D"]:
    """Return (values - reference) / scale of a view, 0 where entries are missing: kept with the block."""
    inverse, dtype = 1.0 / scale, settings.dtype
    return block.once(
        ("centred", name),
        (reference, inverse, dtype.str),
        lambda: gfa.centred(values, reference, inverse, dtype),
    )


def values_of(view: ViewSettings, block: Block, *, dense: bool = False) -> Shaped[Array, "B D"]:
    """Return the entries of a view in a block; an array if ``dense``."""
    values = block.data[view.name]
    if isinstance(values, SparseRows) and dense:
        return values.dense(KINDS[view.kind])
    return values


def aux_of(view: ViewSettings, block: Block) -> Shaped[Array, "B D"] | None:
    """Return what the entries of a view have beside their values; None: nothing that the likelihood reads."""
    return block.data[view.aux_key] if view.aux_key else None


def entries_of(
    view: ViewSettings, fixed: Fixed, values: Shaped[Array, "B D"], dtype: np.dtype[np.floating]
) -> Float[Array, "B D"]:
    """Return entries in units of the model, NaN where missing."""
    xp = device.namespace(values)
    if view.is_scaled:
        level, scale = (
            device.move_beside(part, values) for part in (view.level(fixed.reference), fixed.scale)
        )
        return ((values - level) / scale).astype(dtype)
    y = values.astype(dtype)
    if values.dtype.kind != "i":
        return y
    if device.on_device(values):
        return xp.where(values < 0, xp.asarray(np.nan, dtype=dtype), y)
    bits = y.view(f"i{dtype.itemsize}")
    bits |= -(values < 0).astype(bits.dtype)  # all of them: NaN, in a fifth of the time of `numpy.where`
    return y


def starting_values(settings: Settings, name: str, block: Block, fixed: Fixed | None) -> Shaped[Array, "B D"]:
    """Return the entries of a view as the principal components see them: of one noise variance.

    Counts are divided by the size factors of their rows.
    """
    view = settings.view(name)
    values = values_of(view, block)
    level = log_size_factors(view, fixed, block, values)
    if level is not None:
        values = values / device.move_beside(np.exp(level)[:, None].astype(values.dtype), values)
    values, aux = values.astype(np.float64) if view.location else values, aux_of(view, block)
    return view.density.start(values) if aux is None else view.density.start(values, aux)
