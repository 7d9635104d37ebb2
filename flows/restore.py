"""Restore deployments from a file: ``python -m flows.restore deploy/prefect.yaml``.

`prefect deploy` writes parameters, schedules, description and tags as they are declared. It leaves
schedules that are not declared: those are deleted here. What differs is said.
"""

from __future__ import annotations

import flows.prepare  # noqa: F401  before Prefect

# isort: split
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound

from factorflow.settings import read_yaml

EXECUTOR = "{{ $FACTORFLOW_EXECUTOR }}"
KINDS = ("cron", "interval", "rrule")


def read_deployments(text: str, executor: str) -> dict[str, dict[str, Any]]:
    """Return the deployments of a file by name: parameters and schedules, those by their slugs."""
    deployments = {}
    for deployment in read_yaml(text.replace(EXECUTOR, executor))["deployments"]:
        module, _, function = str(deployment["entrypoint"]).replace(":", ".").rpartition(".")
        deployments[f"{function}/{deployment['name']}"] = {
            "parameters": deployment.get("parameters", {}),
            "schedules": {one["slug"]: one for one in deployment.get("schedules", [])},
        }
    return deployments


def differences(name: str, declared: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Return a line for each difference between a deployment as it is declared, and as the server has it.

    Parameters
    ----------
    name : str
        Of the deployment, ``refresh/nightly``.
    declared : mapping
        As `read_deployments` returns it.
    there : mapping
        As the API of Prefect returns it.
    """
    lines = [f"{name} was paused"] if there["paused"] else []
    for key in sorted({*declared["parameters"], *there["parameters"]}):
        before, after = (deployment["parameters"].get(key, "left out") for deployment in (there, declared))
        if before != after:
            lines.append(f"{name}: {key} was {before}, is {after}")
    for schedule in there["schedules"]:
        slug, when = schedule["slug"], _when(schedule["schedule"])
        if slug not in declared["schedules"]:
            lines.append(f"{name}: schedule {slug or 'without a slug'} ({when}) is not declared: deleted")
            continue
        ours = declared["schedules"][slug]
        if when != _when(ours):
            lines.append(f"{name}: schedule {slug} was {when}, is {_when(ours)}")
        if schedule["active"] != ours.get("active", True):
            state = "on" if schedule["active"] else "off"
            lines.append(f"{name}: schedule {slug} was {state}, is {'off' if state == 'on' else 'on'}")
    removed = declared["schedules"].keys() - {schedule["slug"] for schedule in there["schedules"]}
    return [*lines, *(f"{name}: schedule {slug} was not there" for slug in sorted(removed))]


def _when(schedule: Mapping[str, Any]) -> str:
    """Return when a schedule runs, in a form that the file and the server share."""
    kind = next(kind for kind in KINDS if schedule.get(kind) is not None)
    when = f"{float(schedule[kind]):g} s" if kind == "interval" else str(schedule[kind])
    return f"{when} {schedule.get('timezone') or 'UTC'}"


def main(file: str) -> None:
    """Print differences from a file, and delete schedules that it does not declare."""
    text = Path(file).read_text(encoding="utf-8")
    with get_client(sync_client=True) as client:
        for name, declared in read_deployments(text, os.environ.get("FACTORFLOW_EXECUTOR", "dask")).items():
            try:
                deployment = client.read_deployment_by_name(name)
            except ObjectNotFound:
                continue
            for line in differences(name, declared, deployment.model_dump(mode="json")):
                print(line)
            for schedule in deployment.schedules:
                if schedule.slug not in declared["schedules"]:
                    client.delete_deployment_schedule(deployment.id, schedule.id)


if __name__ == "__main__":
    main(sys.argv[1])
