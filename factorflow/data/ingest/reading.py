"""The protocol of readers: their options and what they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from factorflow.data.ingest.checks import join_names, usable_name, warn
from factorflow.data.ingest.dialect import TableFormat
from factorflow.data.ingest.missing import NO_CODES, MissingCodes
from factorflow.data.ingest.sources import KindOf, Source
from factorflow.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Contents = tuple[dict[str, Source], "pd.DataFrame | None"]
"""The views of a container by name, and the sample metadata in it."""


class Reader(Protocol):
    """A reader of files of one format."""

    def __call__(self, path: Path, view: str, reading: Reading) -> Contents:
        """Return the contents of a file; a single view without a name is called ``view``."""
        ...


@dataclass(frozen=True)
class AnnDataOptions:
    """Options for AnnData (or each modality of MuData): what becomes a view.

    Parameters
    ----------
    layer : str, mapping of str to str, or None
        The layer that is taken instead of X, of all views or by view; "raw": ``.raw``.
    obsm : tuple of str
        Matrices beside X that are views as well, named by their keys.
    highly_variable : bool or tuple of str
        Only the features that ``var["highly_variable"]`` marks: of all views that mark some, or of these.
    spatial : str or None
        Key of obsm of the places of the samples, columns x, y (and z) of the metadata; None: "spatial", where
        there is one.
    """

    layer: str | Mapping[str, str] | None = None
    obsm: tuple[str, ...] = ()
    highly_variable: bool | tuple[str, ...] = False
    spatial: str | None = None


@dataclass(frozen=True)
class Reading:
    """How files are read.

    Parameters
    ----------
    spool : Path
        Directory for what has to be unpacked.
    format : TableFormat
        How text tables are laid out, as far as it was said.
    kinds : callable
        Name of a view to its kind, where it was said.
    opened : ExitStack
        Closes what readers leave open, for rows to be read from it.
    join : str
        Which features of a view of several files: "outer", of any of them, or "inner", of all.
    transpose : callable
        Name of a view to whether its features are in rows.
    name : str or None
        Name that the user gives the view, where the file may call it otherwise.
    seen : dict of str to bool
        Views of AnnData that were met, and whether some of their features are marked as highly variable.
    tables : list of str
        Views of text tables and Parquet files that were met.
    groups : list of Series
        Groups of the samples, by name, that came with the values.
    """

    spool: Path
    format: TableFormat
    kinds: KindOf
    opened: ExitStack
    annotated: AnnDataOptions = AnnDataOptions()
    join: str = "outer"
    transpose: Callable[[str], bool] = lambda view: False
    codes: MissingCodes = NO_CODES
    name: str | None = None
    seen: dict[str, bool] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    groups: list[pd.Series[Any]] = field(default_factory=list)

    def layer(self, view: str) -> str | None:
        """Return the layer that is taken of a view; None: X."""
        layer = self.annotated.layer
        if layer is None or isinstance(layer, str):
            return layer
        name = self.name or view
        return layer.get(name, layer.get(usable_name(name)))

    def wants_marked(self, view: str) -> bool:
        """Whether a view is to have highly variable features only."""
        views = self.annotated.highly_variable
        if isinstance(views, bool):
            return views
        return not {self.name or view, usable_name(self.name or view)}.isdisjoint(views)

    def is_named(self, view: str) -> bool:
        """Whether highly variable features were requested for this view by its name."""
        return not isinstance(self.annotated.highly_variable, bool) and self.wants_marked(view)

    def check_used(self, *, has_metadata_table: bool) -> None:
        """Refuse options for AnnData or tables if no source is one."""
        for name, value in (
            self.format.set_options().items() if not (self.tables or has_metadata_table) else ()
        ):
            expected = "nothing: it is for text tables and Parquet files, and no view is one"
            raise InputError(name, value, expected, "Leave it out.")
        for name, value in vars(self.annotated).items():
            if value and not self.seen:
                raise InputError(name, value, "None: no view is AnnData or MuData", "Leave it out.")
        layer, marked = self.annotated.layer, self.annotated.highly_variable
        self._check_views("layer", () if layer is None or isinstance(layer, str) else tuple(layer))
        self._check_views("highly_variable", () if isinstance(marked, bool) else marked)
        if marked is True:
            self._check_marks()

    def _check_views(self, parameter: str, names: tuple[str, ...]) -> None:
        view_names = {*self.seen, *map(usable_name, self.seen)}
        unknown = [name for name in names if name not in view_names]
        if unknown:
            expected = f"views of AnnData or MuData ({', '.join(self.seen)})"
            raise InputError(parameter, ", ".join(unknown), expected, "Check the names.")

    def _check_marks(self) -> None:
        """Warn of views without marked features, of which all are taken."""
        unmarked = [view for view, marked in self.seen.items() if not marked]
        if len(unmarked) == len(self.seen):
            raise InputError(
                "highly_variable",
                True,
                "features that are marked in var['highly_variable']",
                "Mark them (scanpy.pp.highly_variable_genes), or leave it out for all features.",
            )
        if unmarked:
            warn(f"all features are taken of {join_names(unmarked)}: there is no var['highly_variable']")
