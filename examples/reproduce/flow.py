"""A published experiment run anew: ``python -m examples.reproduce`` as a flow, its scores as artifacts."""

from __future__ import annotations

import flows.prepare  # noqa: F401  before Prefect

# isort: split
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from examples.reproduce import working_on
from factorflow import settings
from flows.artifacts import Label, picture_of, publish_picture
from flows.parameters import FormField

__all__ = ["reproduce"]

GPLVM = ("bound", "held_out", "held_out_error")
IDENTITY = {
    "accuracy": "accuracy of b",
    "transition": "error of T",
    "dynamics": "error of lambda",
    "noise": "ratio of rho",
    "log_density": "log density of new frames",
}
"""Numbers in the tables of these experiments."""


@task(cache_policy=NO_CACHE)
def run_experiment(
    what: str, out: str, data: str | None, options: dict[str, Any], cluster: settings.Cluster | None = None
) -> dict[str, Any]:
    """Run a module of `examples.reproduce`."""
    run = import_module(f"examples.reproduce.{what}").reproduce
    with working_on(cluster, out):
        found: dict[str, Any] = run(out, data, **options, report=print)
    return found


@flow(name="reproduce", log_prints=True)
def reproduce(
    out: Annotated[str, FormField("Folder for numbers and figures.")],
    data: Annotated[
        str | None,
        FormField("CSV file, or folder of them, that it is run on as well: of what the experiment takes."),
    ] = None,
    what: Annotated[
        Literal["probit", "molten", "identity", "gplvm"], FormField("The experiment.")
    ] = "probit",
    options: Annotated[
        dict[str, Any], FormField('More of its settings, as JSON: `{"splits": 1}`; see its help in Python.')
    ] = {},  # noqa: B006  Prefect copies it
    cluster: Annotated[
        settings.Cluster | None, FormField("Where its fits work; left out: in the flow.")
    ] = None,
) -> dict[str, Any]:
    """Run a published experiment anew.

    Parameters
    ----------
    out : str
        Folder for numbers and figures.
    data : str, optional
        Data to run it on as well. Probit: a CSV file of zeros and ones, or a folder with ``binary/*.csv``;
        molten: one of counts, or a folder of them; gplvm: one of numbers; identity: none, it simulates.
    what : str
        The experiment.
    options : dict
        Of ``reproduce`` in that module of `examples.reproduce`, such as ``{"splits": 1}``.
    cluster : Cluster, optional
        Where its fits work, as of the other flows; they share it.

    Returns
    -------
    dict
        What it returns: scores by set of data, model and number of factors.
    """
    found = run_experiment(what, out, data, options, cluster)
    label = Label.of(what, out)
    for name, result in found.items():
        create_table_artifact(
            _rows(result), key=label.key(name), description=f"Scores on {name}: {label.as_markdown()}"
        )
    for figure in sorted(Path(out).glob(f"{what}-*.png")):
        shown = figure.stem.removeprefix(f"{what}-")
        publish_picture(picture_of(figure), label.key(f"figure-{shown}"), f"{shown}: {label.as_markdown()}")
    return found


def _rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the scores of one set of data as rows of a table."""
    if "scores" in result:  # probit
        rows: list[dict[str, Any]] = result["scores"]
        return rows
    if "families" in result:  # gplvm
        return [
            {"family": family} | {name.replace("_", " "): row[name] for name in GPLVM}
            for family, row in result["families"].items()
        ]
    if "components" not in result:  # identity
        ways = {way: row for way, row in result.items() if isinstance(row, dict)}
        return [
            {"way": way, "smallest cosine": min(row["cosines"]) if "cosines" in row else None}
            | {title: row.get(name) for name, title in IDENTITY.items()}
            for way, row in ways.items()
        ]
    return [  # molten
        {"components": k, "bound": row["bound"], "left": row["n_left"], "held out": row["held_out"]}
        for k, row in result["components"].items()
    ] + [{"components": "main effects", "bound": None, "left": None, "held out": result["glm"]}]
