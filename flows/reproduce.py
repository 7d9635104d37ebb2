"""A published experiment run anew: ``factorflow reproduce`` as a flow, its scores as artifacts."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from prefect import flow, task
from prefect.artifacts import create_link_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

__all__ = ["reproduce"]


@task(cache_policy=NO_CACHE)
def run_experiment(what: str, out: str, data: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Run a module of `factorflow.reproduce`."""
    found: dict[str, Any] = import_module(f"factorflow.reproduce.{what}").reproduce(
        out, data, **options, report=print
    )
    return found


@flow(name="reproduce", log_prints=True)
def reproduce(
    out: str,
    data: str | None = None,
    what: Literal["probit", "molten"] = "probit",
    options: dict[str, Any] = {},  # noqa: B006  Prefect copies it
) -> dict[str, Any]:
    """Run a published experiment anew.

    Parameters
    ----------
    out : str
        Folder for numbers and figures.
    data : str, optional
        Data to run it on as well. Probit: a CSV file of zeros and ones, or a folder with ``binary/*.csv``;
        molten: one of counts, or a folder of them.
    what : str
        The experiment.
    options : dict
        Of ``reproduce`` in that module of `factorflow.reproduce`, such as ``{"splits": 1}``.

    Returns
    -------
    dict
        What it returns: scores by set of data, model and number of factors.
    """
    found = run_experiment(what, out, data, options)
    for name, result in found.items():
        key = f"{what}-{name}".replace("_", "-").lower()
        create_table_artifact(_rows(result), key=key, description=f"Scores on {name}")
    for figure in sorted(Path(out).glob(f"{what}-*.png")):
        create_link_artifact(figure.resolve().as_uri(), figure.stem, key=figure.stem)
    return found


def _rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the scores of one set of data as rows of a table."""
    if "scores" in result:
        rows: list[dict[str, Any]] = result["scores"]
        return rows
    return [
        {"components": k, "bound": row["bound"], "left": row["n_left"], "held out": row["held_out"]}
        for k, row in result["components"].items()
    ] + [{"components": "main effects", "bound": None, "left": None, "held out": result["glm"]}]
