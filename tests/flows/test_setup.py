"""What `deploy/setup.sh` says of differences; `test_deployment` runs it again."""

from __future__ import annotations

import importlib
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
