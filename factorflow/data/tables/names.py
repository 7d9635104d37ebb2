"""Names of the views that the terms of a formula become."""

from __future__ import annotations

from dataclasses import dataclass

from factorflow.core.design import EXPOSURE, OFFSET, WEIGHT, WITHIN
from factorflow.data.ingest.checks import usable_name, warn
from factorflow.data.tables.formula import Linear, Terms


@dataclass(frozen=True)
class Names:
    """Names of views by their terms.

    Parameters
    ----------
    variables : dict of str to str
        Column of labels to its view, in the order of the formula.
    """

    response: str
    variables: dict[str, str]
    linear: dict[Linear, str]


def name_views(terms: Terms, *, quiet: bool = False) -> Names:
    """Return the views of a formula: columns keep their names where a view may have them.

    Names of the store (``group``, ``time``, ...) and of the roles (``exposure``, ...) are adapted, with a
    warning unless ``quiet``. A group of columns is called by their names, joined.
    """
    reserved = {EXPOSURE, OFFSET, WEIGHT, WITHIN}

    def view(preferred: str) -> str:
        name = usable_name(preferred)
        while name in reserved:
            name = f"view_{name}"
        reserved.add(name)
        if name != preferred and not quiet:
            warn(f"column {preferred!r} becomes the view {name!r}: views cannot have that name")
        return name

    response = view(terms.response)
    variables = {column: view(column) for column in terms.variables}
    linear = {
        group: view("_".join(usable_name(column) for column in group.columns if column is not None))
        for group in terms.linear
    }
    return Names(response, variables, linear)
