"""Names of arrays for names of columns, which may hold what no store can have in the name of a node."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

MOST_BYTES = 200
"""Of a name: file systems take 255, and some add endings of their own."""


def node_names(names: Iterable[str], reserved: Iterable[str] = ()) -> dict[str, str]:
    """Return a name of a node for each name: itself, where stores can have it, else as near as possible.

    Two of them differ in more than case and the way accents are written, which some file systems ignore.

    Parameters
    ----------
    names : iterable of str
        In order: where two would be alike, the first keeps its own.
    """
    used, nodes = {_normalise_name(name) for name in reserved}, dict[str, str]()
    for name in names:
        node = "".join(c if c.isalnum() or c in "_-. " else "_" for c in name)
        node = node.encode("utf-8")[:MOST_BYTES].decode("utf-8", "ignore").strip(" .") or "column"
        if node.startswith("__") or node.casefold() == "zarr.json":  # kept by Zarr for itself
            node = "column" + node
        nodes[name] = free_name(node, used)
        used.add(_normalise_name(nodes[name]))
    return nodes


def free_name(name: str, used: set[str]) -> str:
    """Return a name with as many underscores appended as make it unique."""
    while _normalise_name(name) in used:
        name += "_"
    return name


def _normalise_name(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()
