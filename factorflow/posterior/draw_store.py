"""The draws in the store of a resumed run: their number, and whether they are complete.

While a run lasts its store has no manifest of checksums (`factorflow.storage.checksums`). A checkpoint
notes what it relies on instead: the draws so far, and the metadata of their arrays but for the sizes that
the end of a run cuts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from factorflow.errors import InputError, OptionText
from factorflow.storage.checksums import chunk_damage, chunks_of, signature

REMEDY = OptionText("The draws before the checkpoint are lost: run anew with {overwrite}.", overwrite=True)


def note_draws(path: str | os.PathLike[str], n_draws: int, n_sets: int) -> dict[str, Any]:
    """Return the entry of a checkpoint about the draws on disk.

    Parameters
    ----------
    n_draws, n_sets : int
        Draws, and sets of globals, of each chain so far.
    """
    sizes = {"draw": n_draws, "set": n_sets}
    metadata = {name: _metadata_of(Path(path), name, sizes) for name in _members(Path(path))}
    return {"sizes": sizes, "metadata": {name: signature(what) for name, what in metadata.items() if what}}


def check_draws(path: str | os.PathLike[str], noted: Mapping[str, Any]) -> None:
    """Refuse to resume unless all draws are present and intact.

    Raises
    ------
    InputError
        Naming the first file that is missing or changed.
    """
    for name, noted_metadata in noted["metadata"].items():
        file = Path(path, name, "zarr.json")
        what = _metadata_of(Path(path), name, noted["sizes"])
        if what is None or signature(what) != noted_metadata:
            raise InputError(f"file {file}", "another one", "that of the checkpoint", REMEDY)
        metadata = json.loads(file.read_bytes())
        if not set(metadata.get("dimension_names") or []) & set(noted["sizes"]):
            continue
        chunks, size = chunks_of(name, metadata, noted["sizes"])
        for chunk in (Path(path, chunk) for chunk in chunks):
            damage = chunk_damage(chunk.read_bytes(), size) if chunk.exists() else "is missing"
            if damage:
                raise InputError(f"file {chunk}", damage, "an intact chunk of the draws", REMEDY)


def make_room(path: str | os.PathLike[str], n_draws: int, n_sets: int) -> None:
    """Lengthen the arrays of draws again that the end of a run has cut, which was killed after that."""
    resize(path, n_draws, n_sets, grow=True)


def resize(path: str | os.PathLike[str], n_draws: int, n_sets: int, *, grow: bool) -> None:
    """Shorten (or lengthen) every array along its draws, and along its sets of globals."""
    import zarr

    from factorflow.storage.verified_store import DurableStore

    lengths = {"draw": n_draws, "set": n_sets}
    for name in _members(Path(path)):
        metadata = json.loads(Path(path, name, "zarr.json").read_bytes())
        shape = metadata.get("shape", ())
        names = metadata.get("dimension_names") or (None,) * len(shape)
        sizes = tuple(lengths.get(dim, old) for dim, old in zip(names, shape, strict=True))
        longer = any(new > old for new, old in zip(sizes, shape, strict=True))
        if sizes != tuple(shape) and longer == grow:
            zarr.open_array(DurableStore(path), path=name, mode="r+", zarr_format=3).resize(sizes)


def _members(path: Path) -> list[str]:
    """Return the arrays of a store, and the groups they are in, the root among them."""
    files = [path / "zarr.json", *path.glob("*/zarr.json"), *path.glob("*/*/zarr.json")]
    return sorted(str(file.parent.relative_to(path)) for file in files)


def _metadata_of(path: Path, name: str, sizes: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the fixed part of the metadata of a group or array; None if unreadable."""
    try:
        metadata: dict[str, Any] = json.loads((path / name / "zarr.json").read_text(encoding="utf-8"))
        if metadata["node_type"] != "array":
            selected = {key: metadata[key] for key in ("zarr_format", "node_type")}
            return {**selected, "structure": metadata["attributes"].get("structure")}
        dims = metadata.get("dimension_names") or [None] * len(metadata["shape"])
        shape = [None if dim in sizes else size for dim, size in zip(dims, metadata["shape"], strict=True)]
        return {**metadata, "shape": shape}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
