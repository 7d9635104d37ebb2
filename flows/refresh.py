"""The recurring flow: bring results up to date with their source, or find that there is nothing to do."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.fit import fit
from flows.parameters import ModelChoice, Out, RunOptions, Source, SourceOptions, default_model

__all__ = ["refresh"]


@flow(name="refresh", log_prints=True)
def refresh(
    source: Source,
    out: Out,
    model: ModelChoice = default_model(),  # noqa: B008  Prefect shows the default in its form
    run: RunOptions = RunOptions(),  # noqa: B008
    source_options: SourceOptions = SourceOptions(),  # noqa: B008
) -> dict[str, Any]:
    """Ingest if the source has changed, fit if the dataset or the settings have, then summarise and report.

    Parameters
    ----------
    source, out, model, run, source_options
        As for `flows.fit.fit`.

    Returns
    -------
    dict
        What was done, and the paths of posterior, summary and report.
    """
    outcome: dict[str, Any] = fit.fn(source, out, model, run, source_options, overwrite=True)
    print(f"{out}: {outcome['done']}")
    return outcome
