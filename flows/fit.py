"""The main flow: ingest if needed, fit, summarise, report. ``python -m flows.fit SOURCE --out FOLDER``."""

from __future__ import annotations

import flows.prepare  # noqa: F401  before Prefect

# isort: split
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_DATABASE_CONNECTION_URL,
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
)

from factorflow.cli import options
from factorflow.cli.application import serve
from factorflow.cli.options import ModelOptions, Results
from factorflow.cli.output import DisplayedResult, command, without_findings
from factorflow.cli.prefect_server import check_prefect
from factorflow.errors import InputError
from factorflow.models import configure
from factorflow.storage.location import is_remote, source_not_found
from factorflow.workflow.folder import Folder, Outcome
from flows import tasks
from flows.artifacts import Label
from flows.parameters import (
    ModelChoice,
    Out,
    Overwrite,
    Reading,
    Run,
    RunOptions,
    Source,
    SourceOptions,
    default_model,
)
from flows.submission import checked_flow


@checked_flow("fit")
def fit(
    source: Source,
    out: Out,
    model: ModelChoice = default_model(),  # noqa: B008  Prefect shows the default in its form
    run: Run = RunOptions(),  # noqa: B008
    source_options: Reading = SourceOptions(),  # noqa: B008
    overwrite: Overwrite = False,
) -> dict[str, Any]:
    """Fit a model to a dataset, or to what can be ingested as one.

    Parameters
    ----------
    source : str
        A dataset, or a file or folder that `factorflow.write_dataset` accepts; or a long table, whose formula
        is among ``source_options``.
    out : str
        Folder for dataset, posterior, summary and report.
    model : ModelConfig
        Configuration of the model.
    run : RunOptions
        Seed, executor, budgets, hold-out.
    source_options : SourceOptions
        How the source is read.
    overwrite : bool
        Replace the posterior of another run in ``out``.

    Returns
    -------
    dict
        Paths of posterior, summary and report; what is to be known of the posterior.
    """
    folder, label = Folder.at(out), Label.of(source, out)
    dataset, ingested = tasks.ingest(source, folder, source_options)
    fitted = tasks.fit(dataset, folder, model, run, overwrite, label)
    if not folder.is_current(folder.summary):
        tasks.summarise(folder, label)
    if not folder.is_current(folder.report):
        tasks.publish(folder, label)
    tasks.log_findings(folder.findings())
    return Outcome(ingested, fitted, folder).describe()


def main(
    source: options.Source,
    out: Results,
    model: ModelOptions,
    run: RunOptions,
    source_options: SourceOptions,
    overwrite: options.Overwrite = False,
) -> DisplayedResult:
    """Ingest if needed, fit, summarise and report, as a Prefect flow."""
    if not is_remote(str(source)) and not Path(source).exists():  # before a server is started
        raise source_not_found(source, "source")
    with naming_server():
        result = fit(
            source=str(source),
            out=str(out),
            model=configure(model.values()),
            run=run,
            source_options=source_options,
            overwrite=overwrite,
        )
    return without_findings(result)  # they are in the log of the flow


def check_server() -> None:
    """Refuse settings of Prefect that no flow could run with, of the environment or of a profile."""
    server_settings = (
        PREFECT_API_URL,
        PREFECT_API_AUTH_STRING,
        PREFECT_HOME,
        PREFECT_API_DATABASE_CONNECTION_URL,
    )
    values = (getattr(setting.value(), "get_secret_value", setting.value)() for setting in server_settings)
    texts = (None if value is None else str(value) for value in values)
    check_prefect(*texts, starts_server=PREFECT_SERVER_ALLOW_EPHEMERAL_MODE.value())


@contextmanager
def naming_server() -> Iterator[None]:
    """Say of a Prefect server that does not answer, or cannot be started, which setting is wrong."""
    check_server()
    try:
        yield
    except RuntimeError as error:
        if str(error).startswith("Timed out while attempting to connect to ephemeral"):
            raise InputError(
                "PREFECT_HOME",
                str(PREFECT_HOME.value()),
                "a folder in which Prefect can start a server",
                "See the messages above; set PREFECT_HOME to an empty folder, or start a server (`prefect "
                "server start`) and set PREFECT_API_URL. Where the disk, or the database, is slow, raise "
                "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.",
            ) from error
        if not str(error).startswith("Failed to reach API"):
            raise
        raise InputError(
            "PREFECT_API_URL",
            str(PREFECT_API_URL.value()),
            "the address of a running Prefect server",
            "Start it (`prefect server start`), or take the setting away (`unset PREFECT_API_URL`, or in a "
            "profile `prefect config unset PREFECT_API_URL`): a flow then starts a server itself.",
        ) from error


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command(app)(main)
    serve(app)
