"""``python -m flows.serve``: what is made without a server, and a run of a served flow on one."""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from zoneinfo import ZoneInfo

import pytest
import typer
from typer.testing import CliRunner

from factorflow.cli.output import command
from factorflow.errors import InputError

ROOT = Path(__file__).parents[2]

GIVEN = {"source": "cohort.csv", "out": "runs/cohort"}


@pytest.mark.thorough
def test_all_flows_are_served_without_parameters() -> None:
    from flows.serve import deployments

    made = deployments(None, {})
    assert [f"{each.flow_name}/{each.name}" for each in made] == [
        "fit/served", "refresh/served", "select/served",
    ]  # fmt: skip
    assert [each.entrypoint for each in made] == [
        "flows.fit.fit", "flows.refresh.refresh", "flows.select.select",
    ]  # fmt: skip
    assert all(not each.schedules and not each.parameters and not each.work_pool_name for each in made)


@pytest.mark.parametrize(
    ("asked", "zone", "shown", "clock"),
    [
        ({"cron": "0 3 * * *"}, "Europe/Berlin", {"cron": "0 3 * * *"}, {"03:00"}),
        ({"cron": "@daily"}, None, {"cron": "@daily"}, {"00:00"}),
        ({"every": "6h"}, "UTC", {"cron": "0 */6 * * *"}, {"00:00", "06:00", "12:00", "18:00"}),
        ({"every": "24h"}, "Europe/Berlin", {"cron": "0 0 * * *"}, {"00:00"}),
        ({"every": "7h"}, "UTC", {"interval": 25200.0}, None),
    ],
)
def test_a_schedule(
    asked: dict[str, str], zone: str | None, shown: dict[str, str], clock: set[str] | None
) -> None:
    from flows.serve import deployments, next_runs, schedule_of

    schedule = schedule_of(asked.get("cron"), asked.get("every"), zone)
    assert schedule is not None
    (made,) = deployments("refresh", GIVEN | {"rule": {"keep": 3}}, schedule, "nightly")
    assert (made.flow_name, made.name) == ("refresh", "nightly")
    assert made.parameters == GIVEN | {"rule": {"keep": 3}}
    assert made.schedules is not None
    (only,) = made.schedules
    found = only.schedule.model_dump(mode="json")
    assert shown.items() <= found.items()
    assert found["timezone"] == (zone or "UTC")
    assert only.active is not False
    assert made.concurrency_limit == 1
    hours = {when.split()[1] for when in next_runs(schedule, 4)}
    assert clock is None or hours == clock


@pytest.mark.parametrize("every", ["10m", "1h", "2h", "6h", "8h", "12h", "24h"])
@pytest.mark.parametrize("month", [1, 7])
def test_from_midnight_in_summer_too(every: str, month: int) -> None:
    from prefect.server.schemas.schedules import CronSchedule

    from flows.serve import schedule_of

    schedule, zone = schedule_of(None, every, "Europe/Berlin"), ZoneInfo("Europe/Berlin")
    assert schedule is not None
    assert schedule.cron is not None
    start = datetime(2026, month, 9, 23, 59, tzinfo=zone)
    dates = CronSchedule(cron=schedule.cron, timezone=schedule.timezone).get_dates(1, start=start)
    assert [date.astimezone(zone).strftime("%H:%M") for date in asyncio.run(dates)] == ["00:00"]


@pytest.mark.parametrize(
    ("cron", "every", "zone", "parameter"),
    [
        ("0 3 * *", None, None, "cron"),
        ("0 3 * * * *", None, None, "cron"),
        ("61 3 * * *", None, None, "cron"),
        ("0 0 30 2 *", None, None, "cron"),  # the 30th of February
        ("", None, None, "cron"),
        ("0 3 * * *", "6h", None, "every"),
        (None, "soon", None, "every"),
        (None, "5s", None, "every"),
        ("0 3 * * *", None, "Europe/Berln", "timezone"),
        ("0 3 * * *", None, "../etc/passwd", "timezone"),
        ("0 3 * * *", None, "", "timezone"),
        (None, None, "Europe/Berlin", "timezone"),
    ],
)
def test_no_schedule(cron: str | None, every: str | None, zone: str | None, parameter: str) -> None:
    from flows.serve import schedule_of

    with pytest.raises(InputError) as caught:
        schedule_of(cron, every, zone)
    assert caught.value.parameter == parameter
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("flow", "given", "cron", "parameter"),
    [
        (None, GIVEN, None, "param"),
        (None, {}, "0 3 * * *", "cron"),
        ("refresh", {"source": "a.csv"}, "0 3 * * *", "param"),
        ("refresh", GIVEN | {"sourc": 1}, None, "param"),
        ("refresh", GIVEN | {"run": {"seed": "x"}}, None, "run.seed"),
        ("fit", {"model": {"model": "sparse_gfa", "n_factors": -1}}, None, "model.n_factors"),
        ("select", {"grid": 5}, None, "grid"),
        ("select", {"grid": {"n_factors": [3, 0]}}, None, "n_factors"),
        ("select", {"grid": {"n_factors": [3]}, "model": {"model": "identity_attribute"}}, None, "n_factors"),
        ("fit", {"run": {"memory_limit": "many"}}, None, "run.memory_limit"),
    ],
)
def test_parameters_that_a_run_would_refuse(
    flow: str | None, given: dict[str, Any], cron: str | None, parameter: str
) -> None:
    from flows.serve import deployments, schedule_of

    with pytest.raises(InputError) as caught:
        deployments(flow, given, schedule_of(cron, None, None))
    assert caught.value.parameter == parameter


@pytest.mark.thorough
@pytest.mark.parametrize("address", [None, "http://127.0.0.1:9/api"])
def test_no_server(address: str | None) -> None:
    """A flow started directly would start one; a schedule needs one that stays."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from flows.serve import main

    app = typer.Typer()
    command(app)(main)
    settings = {} if address is None else {PREFECT_API_URL: address}
    with temporary_settings(settings, restore_defaults={PREFECT_API_URL}):
        done = CliRunner().invoke(app, ["--json"])
    assert done.exit_code == 2, done.stderr
    error = json.loads(done.stdout)["error"]
    assert (error["parameter"], error["value"]) == ("PREFECT_API_URL", address or "not set")
    assert "prefect server start" in error["remedy"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_of_a_served_flow(processes: Any, api_url: str, tmp_path: Path, tools: Any) -> None:
    """Asked for by another process; the schedule is there, and is paused when serving ends."""
    processes.environment["PREFECT_API_URL"] = api_url
    out = tmp_path / "out"
    given = {
        "source": "examples/multiple_features.npz",
        "out": str(out),
        "model": json.dumps({"model": "sparse_gfa", "n_factors": 2}),
        "run": json.dumps({"executor": "local", "max_iter": 3}),
    }
    words = [f"--param={name}={value}" for name, value in given.items()]
    when = ["--cron", "0 3 1 1 *", "--timezone", "Europe/Berlin", "--name", "yearly"]
    process = processes.start(["python", "-m", "flows.serve", "refresh", *when, *words])

    address = f"{api_url}/deployments/name/refresh/yearly"

    def inspected() -> dict[str, Any]:
        with urlopen(address, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    tools.wait_for(lambda: "next runs: " in processes.logs(), "the serving process")
    tools.wait_for(lambda: tools.answers(address), "the deployment")
    (schedule,) = inspected()["schedules"]
    assert schedule["active"]
    assert schedule["schedule"] == {"cron": "0 3 1 1 *", "timezone": "Europe/Berlin", "day_or": True}
    run = ["prefect", "deployment", "run", "refresh/yearly", "--watch", "--watch-timeout=300"]
    shown = processes.run(run, timeout=400)
    assert (out / "report.html").exists(), f"{shown}\n{processes.logs()}"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) in (0, 130), processes.logs()
    assert inspected()["paused"]
