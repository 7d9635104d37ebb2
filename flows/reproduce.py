"""A published experiment run anew: ``factorflow reproduce`` as a flow, its scores as artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from prefect import flow, task
from prefect.artifacts import create_link_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

from factorflow.reproduce import probit

__all__ = ["reproduce"]


@task(cache_policy=NO_CACHE)
def run_probit(out: str, data: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Run the experiments of the probit factor models' source."""
    return probit.reproduce(out, data, **options, report=print)


@flow(name="reproduce", log_prints=True)
def reproduce(
    out: str,
    data: str | None = None,
    what: Literal["probit"] = "probit",
    options: dict[str, Any] = {},  # noqa: B006  Prefect copies it
) -> dict[str, Any]:
    """Run a published experiment anew.

    Parameters
    ----------
    out : str
        Folder for numbers and figures.
    data : str, optional
        Data to run it on as well: a CSV file of zeros and ones, or a folder with ``binary/*.csv``.
    what : str
        The experiment.
    options : dict
        Of `factorflow.reproduce.probit.reproduce`, such as ``{"splits": 1}``.

    Returns
    -------
    dict
        Scores by set, model and number of factors.
    """
    found = run_probit(out, data, options)
    for name, result in found.items():
        create_table_artifact(result["scores"], key=f"{what}-{name}", description=f"Scores on {name}")
    for figure in sorted(Path(out).glob(f"{what}-*.png")):
        create_link_artifact(figure.resolve().as_uri(), figure.stem, key=figure.stem)
    return found
