"""The flows without a Prefect worker: ``python -m flows.serve`` offers and runs them in one process."""

from __future__ import annotations

import flows.prepare  # noqa: F401  before Prefect

# isort: split
import asyncio
import warnings
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from importlib import import_module
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer
from prefect import serve as serve_deployments
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.deployments.runner import RunnerDeployment
from prefect.schedules import Cron, Interval, Schedule
from prefect.server.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.settings import PREFECT_API_URL
from prefect.types.entrypoint import EntrypointType

from factorflow.cli.application import serve as run_commands
from factorflow.cli.options import assignments, value_of
from factorflow.cli.output import command
from factorflow.errors import InputError
from factorflow.settings.clusters import seconds_of
from flows.fit import check_server, naming_server
from flows.submission import CheckedFlow

LEAST_SECONDS = 60
"""Between two runs of a schedule."""


class ServableFlow(StrEnum):
    """The flows that can be served."""

    FIT = "fit"
    REFRESH = "refresh"
    SELECT = "select"


def deployments(
    flow: str | None,
    parameters: Mapping[str, Any],
    schedule: Schedule | None = None,
    name: str = "served",
) -> list[RunnerDeployment]:
    """Return the deployments to serve: one flow, or all of them.

    Parameters
    ----------
    flow : str or None
        Which flow; None: all, without parameters and schedule.
    parameters : mapping
        Its parameters, as JSON has them: what every run has that is not given others.
    schedule : Schedule, optional
        When it runs by itself.
    name : str
        Name of the deployments: ``refresh/served``.

    Raises
    ------
    InputError
        If a parameter is unknown, out of its bounds, or needed by a schedule; or there is no one flow to have
        them.
    """
    if not name or "/" in name or "%" in name:
        raise InputError("name", name, "a name without / and %", "Choose another one.")
    if flow is None:
        options = dict.fromkeys(parameters, "param")
        if schedule is not None:
            options[schedule.cron or str(schedule.interval)] = "cron" if schedule.cron else "every"
        for value, option in options.items():
            expected = f"a flow: {', '.join(ServableFlow)}"
            raise InputError(option, value, expected, "Name one, before the options.")
        return [_deployment(each, {}, None, name) for each in ServableFlow]
    return [_deployment(ServableFlow(flow), parameters, schedule, name)]


def schedule_of(cron: str | None, every: str | None, timezone: str | None) -> Schedule | None:
    """Return a schedule; None if neither ``cron`` nor ``every`` is given.

    Parameters
    ----------
    cron : str or None
        Five fields (minute, hour, day, month, day of the week), or ``@daily`` and the like.
    every : str or None
        Time between two runs, such as ``6h``. Minutes of which an hour, and hours of which a day is a whole
        number are counted from midnight by the clock, in summer and winter; others by elapsed time from
        midnight on 1 January 2024 in the time zone. So it does not matter when the process was started.
    timezone : str or None
        IANA name, such as ``Europe/Berlin``; None: UTC.

    Raises
    ------
    InputError
        If both are given, one is no schedule or would never run, or the time zone is not known.
    """
    if cron is not None and every is not None:
        raise InputError("every", every, f"None with cron ({cron})", "Leave one of the two out.")
    zone = _zone("UTC" if timezone is None else timezone)
    if cron is not None:
        fields = len(cron.split())
        try:
            if fields != 5 and not cron.startswith("@"):
                raise ValueError(f"there are {fields} fields")
            if not asyncio.run(CronSchedule(cron=cron, timezone=zone.key).get_dates(1)):
                raise ValueError("there is no such day")
        except ValueError as error:
            why = str(error.errors()[0]["msg"]) if hasattr(error, "errors") else str(error)
            expected = f"minute, hour, day, month and day of the week ({why})"
            raise InputError("cron", cron, expected, 'Every night at 3:00: "0 3 * * *".') from error
        return Cron(cron, timezone=zone.key)
    if every is not None:
        seconds = seconds_of("every", every)
        if seconds < LEAST_SECONDS:
            raise InputError("every", every, "a minute or more", "Give a longer time, such as 6h.")
        if (by_the_clock := _cron_of(seconds)) is not None:
            return Cron(by_the_clock, timezone=zone.key)
        return Interval(
            timedelta(seconds=seconds), anchor_date=datetime(2024, 1, 1, tzinfo=zone), timezone=zone.key
        )
    if timezone is not None:
        raise InputError("timezone", timezone, "cron or every", "Give cron or every as well.")
    return None


def _cron_of(seconds: float) -> str | None:
    """Return the schedule of runs from midnight on, by the clock; None where no day is whole times as long.

    An interval would count elapsed time: from a midnight in winter on, runs of the summer come an hour late.
    """
    minutes = seconds / 60
    if minutes < 60 and 60 % minutes == 0 and minutes.is_integer():
        return f"*/{minutes:.0f} * * * *"
    hours = minutes / 60
    if hours.is_integer() and hours <= 24 and 24 % hours == 0:
        return "0 0 * * *" if hours == 24 else f"0 */{hours:.0f} * * *"
    return None


def next_runs(schedule: Schedule, number: int = 2) -> list[str]:
    """Return when the next runs are."""
    if schedule.cron is not None:
        dates = CronSchedule(cron=schedule.cron, timezone=schedule.timezone).get_dates(number)
    else:
        assert schedule.interval is not None
        assert schedule.anchor_date is not None
        dates = IntervalSchedule(
            interval=schedule.interval, anchor_date=schedule.anchor_date, timezone=schedule.timezone
        ).get_dates(number)
    zone = ZoneInfo(schedule.timezone or "UTC")
    return [date.astimezone(zone).strftime("%Y-%m-%d %H:%M %Z") for date in asyncio.run(dates)]


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        expected = "the IANA name of a time zone, such as Europe/Berlin or UTC"
        raise InputError("timezone", name, expected, "Correct it.") from error


def _deployment(
    which: ServableFlow, parameters: Mapping[str, Any], schedule: Schedule | None, name: str
) -> RunnerDeployment:
    flow: CheckedFlow[..., Any] = getattr(import_module(f"flows.{which}"), which)
    flow.check(parameters, whole=schedule is not None)
    one = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)
    deployment = flow.to_deployment(
        name,
        parameters=dict(parameters),
        schedule=schedule,
        paused=False,  # one that was stopped is paused
        concurrency_limit=one if schedule is not None else None,
        tags=["factorflow"],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    assert isinstance(deployment, RunnerDeployment)
    return deployment


def check_running_server() -> None:
    """Ask the server: one that a flow would start itself runs no schedules, and nobody else could reach it.

    Raises
    ------
    InputError
        If none is set, or it does not answer.
    """
    remedy = (
        "Start it: `prefect server start`. Then here: `export PREFECT_API_URL=http://127.0.0.1:4200/api`."
    )
    address = PREFECT_API_URL.value()
    expected = "the address of a running Prefect server"
    if not address:
        raise InputError("PREFECT_API_URL", "not set", expected, remedy)
    check_server()
    with get_client(sync_client=True) as client:
        if (error := client.api_healthcheck()) is not None:
            raise InputError("PREFECT_API_URL", str(address), f"{expected} ({type(error).__name__})", remedy)


def main(
    flow: Annotated[ServableFlow | None, typer.Argument(help="The flow; all of them when left out.")] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param", "-p", help="NAME=VALUE, a parameter of its runs; text, or JSON. As often as needed."
        ),
    ] = None,
    cron: Annotated[
        str | None, typer.Option(help='When it runs: "0 3 * * *" is every night at 3:00.')
    ] = None,
    every: Annotated[
        str | None, typer.Option(help="Or: time between two runs, such as 6h, from midnight on.")
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="Time zone of the schedule, such as Europe/Berlin; UTC when left out.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the deployment.")] = "served",
    limit: Annotated[int, typer.Option(min=1, help="Runs at the same time; others wait.")] = 1,
) -> dict[str, Any]:
    """Serve flows to a Prefect server: run them here, when asked for or on a schedule, until interrupted."""
    values = {key: value_of(text) for key, text in assignments("param", param or []).items()}
    schedule = schedule_of(cron, every, timezone)
    served = deployments(None if flow is None else flow.value, values, schedule, name)
    check_running_server()
    names = [f"{each.flow_name}/{each.name}" for each in served]
    print(f"serving {', '.join(names)} at {PREFECT_API_URL.value()}; Ctrl-C ends it", flush=True)
    if schedule is not None:
        print(f"next runs: {', '.join(next_runs(schedule))}", flush=True)
    # Prefect's answer to SIGTERM; what it asks for is done.
    warnings.filterwarnings("ignore", "coroutine 'Runner.astop' was never awaited", RuntimeWarning)
    with naming_server():
        serve_deployments(*served, limit=limit, print_starting_message=False)
    return {"served": names}


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command(app)(main)
    run_commands(app)
