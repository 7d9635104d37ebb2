"""`deploy/setup.sh` run again: a Prefect server is put back to what `deploy/prefect.yaml` declares."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FILE = (ROOT / "deploy" / "prefect.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def restore() -> ModuleType:
    return importlib.import_module("flows.restore")


def on_server(wanted: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a deployment as the API returns it after it was made from the file."""
    schedules = [
        {
            "slug": slug,
            "active": one["active"],
            "schedule": {key: one[key] for key in ("cron", "interval", "timezone") if key in one},
        }
        for slug, one in wanted["schedules"].items()
    ]
    return {"paused": False, "parameters": wanted["parameters"], "schedules": schedules, **changes}


def test_what_is_declared_differs_in_nothing(restore: ModuleType) -> None:
    wanted = restore.read_deployments(FILE, "tcp://scheduler:8786")
    assert set(wanted) == {
        "fit/fit", "refresh/nightly", "select/choose-factors", "refresh/hourly", "reproduce/experiment",
    }  # fmt: skip
    assert wanted["fit/fit"]["parameters"]["run"] == {"executor": "tcp://scheduler:8786"}
    for name, one in wanted.items():
        assert restore.differences(name, one, on_server(one)) == []


def test_each_difference_is_said(restore: ModuleType) -> None:
    wanted = restore.read_deployments(FILE, "dask")["refresh/nightly"]
    parameters = {
        "source": "mine.csv",
        "overwrite": True,
        **{k: wanted["parameters"][k] for k in ("out", "run")},
    }
    schedule = {
        "slug": "nightly",
        "active": False,
        "schedule": {"cron": "0 5 * * *", "timezone": "Europe/Rome"},
    }
    mine = {"slug": None, "active": True, "schedule": {"interval": 3600.0, "timezone": None}}
    there = {"paused": True, "parameters": parameters, "schedules": [schedule, mine]}
    assert restore.differences("refresh/nightly", wanted, there) == [
        "refresh/nightly was paused",
        "refresh/nightly: overwrite was True, is left out",
        f"refresh/nightly: rule was left out, is {wanted['parameters']['rule']}",
        "refresh/nightly: source was mine.csv, is examples/multiple_features.npz",
        "refresh/nightly: schedule nightly was 0 5 * * * Europe/Rome, is 0 3 * * * UTC",
        "refresh/nightly: schedule nightly was off, is on",
        "refresh/nightly: schedule without a slug (3600 s UTC) is not declared: deleted",
    ]
    assert restore.differences("refresh/nightly", wanted, on_server(wanted, schedules=[])) == [
        "refresh/nightly: schedule nightly was not there"
    ]


def test_a_schedule_that_was_switched_on_is_off_again(restore: ModuleType) -> None:
    wanted = restore.read_deployments(FILE, "dask")["refresh/hourly"]
    there = on_server(wanted)
    there["schedules"][0]["active"] = True
    assert restore.differences("refresh/hourly", wanted, there) == [
        "refresh/hourly: schedule hourly was on, is off"
    ]


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_server_is_put_back(prefect_api: str, processes: Any) -> None:
    from prefect.client.orchestration import get_client

    def setup() -> str:
        done = subprocess.run(
            ["sh", "deploy/setup.sh"], cwd=ROOT, env=processes.env(PREFECT_API_URL=prefect_api),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    names = ["fit/fit", "refresh/nightly", "refresh/hourly"]

    def state() -> list[Any]:
        with get_client(sync_client=True) as client:
            found = [client.read_deployment_by_name(name) for name in names]
            pool = client.read_work_pool("factorflow")
        kept = {"parameters", "paused", "description", "tags", "enforce_parameter_schema", "job_variables"}
        known = [one.model_dump(mode="json", include=kept) for one in found]
        for one, deployment in zip(known, found, strict=True):
            one["schedules"] = [(s.slug, s.active, s.schedule) for s in deployment.schedules]
        return [pool.is_paused, *known]

    setup()
    before = state()
    with get_client(sync_client=True) as client:
        fit, nightly, hourly = (client.read_deployment_by_name(name) for name in names)
        edited = {"parameters": {"source": "mine.csv"}, "description": "x", "enforce_parameter_schema": False}
        client.request("PATCH", "/deployments/{id}", path_params={"id": nightly.id}, json=edited)
        for deployment, active in ((nightly, False), (hourly, True)):
            client.update_deployment_schedule(deployment.id, deployment.schedules[0].id, active=active)
        for deployment in (fit, nightly):
            added = [{"active": True, "schedule": {"cron": "0 6 * * *"}}]
            path = {"id": deployment.id}
            client.request("POST", "/deployments/{id}/schedules", path_params=path, json=added)
        client.pause_deployment(nightly.id)
    assert state() != before
    said = setup()
    assert state() == before
    for line in (
        "refresh/nightly was paused",
        "refresh/nightly: source was mine.csv, is examples/multiple_features.npz",
        "refresh/nightly: schedule nightly was off, is on",
        "refresh/hourly: schedule hourly was on, is off",
        "fit/fit: schedule without a slug (0 6 * * * UTC) is not declared: deleted",
    ):
        assert line in said
