"""The report of a posterior, with the fields of its identities as pictures."""

from __future__ import annotations

import os
from functools import partial
from html import escape
from typing import TYPE_CHECKING

from examples.patches.figures import plot_fields, plot_pairs
from examples.patches.pairs import compare_pairs, describe_pairs, kept_identities
from examples.patches.transform import PatchTransform
from factorflow import report
from factorflow.errors import InputError
from factorflow.report.svg import draw_figure
from factorflow.storage.location import Location
from factorflow.storage.remote import RemotePath

if TYPE_CHECKING:
    import pandas as pd

    from factorflow.api import Posterior

__all__ = ["write_report"]

N_IDENTITIES = 16
"""Identities whose fields are drawn."""

NOTE = "<p class='note'>{}</p>"


def write_report(posterior: Posterior, path: str | os.PathLike[str] | RemotePath) -> Location:
    """Write the report of a posterior, with the fields of its identities where its data are patches.

    Parameters
    ----------
    posterior : Posterior
        Of a model of identities and attributes.
    path : path or URL
        As for `factorflow.report.write_report`.

    Returns
    -------
    Path or Remote
    """
    return report.write_report(posterior, path, fields_section(posterior))


def fields_section(posterior: Posterior) -> dict[str, str]:
    """Return the fields of identities and how alike those of one are, with controls; {}: there are none."""
    if posterior.run["status"] == "projected" or not posterior.has("present"):
        return {}  # the components of other patches are not those of the fit
    try:
        transform = PatchTransform.of(posterior.dataset)
    except InputError:  # the dataset has moved, or is another one
        return {}
    if transform.view not in posterior.loaded_views:
        return {}
    loadings = posterior.loadings(transform.view)
    kept = [int(p) + 1 for p in kept_identities(loadings)]
    if not kept:
        return {}
    n_attributes = loadings.sizes["attribute"]
    draw = partial(plot_fields, loadings, transform, kept[:N_IDENTITIES])
    content = [
        NOTE.format(
            "A column for each identity, its attributes one below the other; lines are along the bars of "
            "fitted Gabor functions."
        ),
        draw_figure(draw, 0.7 + 0.6 * n_attributes),
    ]
    if 1 < n_attributes <= len(kept):
        medians = compare_pairs(loadings, transform)
        pairs = partial(plot_pairs, describe_pairs(loadings, transform), medians)
        content += [
            NOTE.format(
                "Medians over identities, beside controls: the learned fields paired at random, and weights "
                "that are noise. A fit from a random start is a third one (compare_pairs). Orientations and "
                "phases in degrees; phase modulation is 0 in quadrature; r2 of the worse Gabor fit."
            ),
            _table(medians),
            draw_figure(pairs, 3.0, width=6.2),
        ]
    return {f"Fields of {transform.view}": "\n".join(content)}


def _table(medians: pd.DataFrame) -> str:
    columns = {
        "n": ("n", "{:.0f}"),
        "orientation_difference": ("difference of orientation", "{:.0f}"),
        "phase_modulation": ("phase modulation", "{:.2f}"),
        "phase_difference": ("difference of phase", "{:.0f}"),
        "r2": ("r2", "{:.2f}"),
    }
    head = "".join(f"<th>{words}</th>" for words in ("fields", *(words for words, _ in columns.values())))
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td>{escape(cell)}</td>"
            for cell in (str(name), *(form.format(row[key]) for key, (_, form) in columns.items()))
        )
        + "</tr>"
        for name, row in medians.iterrows()
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'
