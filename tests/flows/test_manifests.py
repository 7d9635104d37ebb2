"""The files of deploy/ and docker-compose.yml: they can be read, and hold what the pages say of them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = sorted(
    [ROOT / "docker-compose.yml", *(ROOT / "deploy").rglob("*.yaml"), *(ROOT / "deploy").rglob("*.json")]
)
KUBERNETES = ROOT / "deploy" / "kubernetes"


@cache
def documents(path: Path) -> list[Any]:
    return [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one is not None]


def objects() -> list[dict[str, Any]]:
    """All objects of Kubernetes."""
    return [one for path in sorted(KUBERNETES.glob("*.yaml")) for one in documents(path) if "kind" in one]


def named(kind: str, name: str) -> dict[str, Any]:
    (found,) = (one for one in objects() if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


def template() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((KUBERNETES / "base-job-template.json").read_text(encoding="utf-8"))
    return found


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the pods of all files, by name."""
    for one in objects():
        spec = one["spec"] if "spec" in one else {}
        if one["kind"] == "DaskCluster":
            yield "dask-worker", spec["worker"]["spec"]
            yield "dask-scheduler", spec["scheduler"]["spec"]
        elif "template" in spec:
            yield one["metadata"]["name"], spec["template"]["spec"]
    yield "run", template()["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]


PODS = dict(pods())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_can_be_read(path: Path) -> None:
    found = documents(path)
    assert found
    assert all(isinstance(one, dict | list) for one in found)


@pytest.mark.parametrize("path", sorted((ROOT / "deploy").glob("*.sh")), ids=lambda path: path.name)
def test_scripts_can_be_read(path: Path) -> None:
    subprocess.run(["sh", "-n", str(path)], check=True)


def test_kubernetes_has_all_parts() -> None:
    prefect = {"postgres", "prefect-server", "prefect-setup", "prefect-worker", "run"}
    assert set(PODS) == {"dask-worker", "dask-scheduler", *prefect}
    assert all(one["metadata"]["namespace"] == "factorflow" for one in objects())


@pytest.mark.parametrize("name", PODS)
def test_pods_are_limited_and_closed(name: str) -> None:
    pod = PODS[name]
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in pod["containers"]:
        limits, requests = (container["resources"][kind] for kind in ("limits", "requests"))
        assert set(limits) == set(requests) == {"cpu", "memory"}
        closed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert container["securityContext"] == closed


def test_images_have_one_tag() -> None:
    images = {container["image"] for pod in PODS.values() for container in pod["containers"]}
    images = {image.replace("{{ image }}", default("image")) for image in images}
    assert images == {"factorflow:0.1.0", "postgres:17.6-bookworm"}
    texts = [path.read_text(encoding="utf-8") for path in KUBERNETES.iterdir()]
    assert not any(":latest" in text for text in texts)


def default(name: str) -> str:
    return str(template()["variables"]["properties"][name]["default"])


def test_no_password_is_written() -> None:
    """Those that are needed come from secrets, which the pages make; of the object store if there is one."""
    secrets = set()
    for pod in PODS.values():
        for container in pod["containers"]:
            for variable in container.get("env", ()):
                if "valueFrom" in variable:
                    given = variable["valueFrom"]["secretKeyRef"]
                    secrets.add((given["name"], given["key"]))
                else:
                    assert "PASSWORD" not in variable["name"]
                    assert not variable["name"].endswith("AUTH_STRING")
    assert secrets == {("factorflow-prefect", "postgres-password"), ("factorflow-prefect", "auth")}
    for name in ("dask-worker", "dask-scheduler", "run"):
        (source,) = PODS[name]["containers"][0]["envFrom"]
        assert source["secretRef"] == {"name": "factorflow-store", "optional": True}
    page = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    for name, key in secrets:
        assert re.search(rf"secret generic {name} .*--from-literal={key}=", page)
    assert "secret generic factorflow-store " in page


def variables(pod: str) -> dict[str, Any]:
    container = PODS[pod]["containers"][0]
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def test_the_api_asks_for_a_password() -> None:
    secret = {"secretKeyRef": {"name": "factorflow-prefect", "key": "auth"}}
    assert variables("prefect-server")["PREFECT_SERVER_API_AUTH_STRING"] == secret
    for pod in ("prefect-setup", "prefect-worker"):
        assert variables(pod)["PREFECT_API_AUTH_STRING"] == secret
    worker = "PREFECT_INTEGRATIONS_KUBERNETES_WORKER_API_AUTH_STRING_SECRET"
    assert variables("prefect-worker")[f"{worker}_NAME"] == "factorflow-prefect"  # jobs get it from there
    assert variables("prefect-worker")[f"{worker}_KEY"] == "auth"


def test_compose_asks_for_a_password() -> None:
    services = documents(ROOT / "docker-compose.yml")[0]["services"]
    password = "factorflow:${PREFECT_PASSWORD:?choose a password}"
    assert services["prefect-server"]["environment"]["PREFECT_SERVER_API_AUTH_STRING"] == password
    for name in ("prefect-setup", "prefect-worker"):
        assert services[name]["environment"]["PREFECT_API_AUTH_STRING"] == password


def test_runs_share_the_memory_of_the_dask_workers() -> None:
    """As many as the Prefect worker starts at a time, in both."""
    services = documents(ROOT / "docker-compose.yml")[0]["services"]
    command = services["prefect-worker"]["command"]
    limit = command[command.index("--limit") + 1]
    assert services["prefect-worker"]["environment"]["DASK_FACTORFLOW__SHARE"] == limit
    arguments = PODS["prefect-worker"]["containers"][0]["args"]
    assert arguments[arguments.index("--limit") + 1] == default("share")
    assert variables("run")["DASK_FACTORFLOW__SHARE"] == "{{ share }}"


def test_dashboards_are_linked_as_browsers_see_them() -> None:
    """Not by names that only containers and pods resolve; the ports are those that are published."""
    services = documents(ROOT / "docker-compose.yml")[0]["services"]
    link = services["prefect-worker"]["environment"]["DASK_DISTRIBUTED__DASHBOARD__LINK"]
    assert link == "${DASK_PUBLIC_URL:-http://localhost:8787}/status"
    assert services["dask-scheduler"]["ports"] == ["127.0.0.1:8787:8787"]
    pages = services["prefect-server"]["environment"]["PREFECT_SERVER_UI_API_URL"]
    assert pages == "${PREFECT_PUBLIC_URL:-http://localhost:4200}/api"
    assert services["prefect-server"]["ports"] == ["127.0.0.1:4200:4200"]
    assert variables("run")["DASK_DISTRIBUTED__DASHBOARD__LINK"] == "{{ dashboard }}"
    assert default("dashboard") == "http://localhost:8787/status"
    page = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    assert "port-forward service/factorflow-scheduler 8787" in page
    assert "port-forward service/prefect-server 4200" in page


def test_settings_of_prefect_exist() -> None:
    from prefect import settings

    services = documents(ROOT / "docker-compose.yml")[0]["services"]
    used = {name for service in services.values() for name in service.get("environment", {})}
    used |= {name for pod in ("prefect-server", "prefect-setup", "prefect-worker") for name in variables(pod)}
    used = {name for name in used if name.startswith("PREFECT_") and "_INTEGRATIONS_" not in name}
    assert len(used) >= 5
    assert [name for name in used if not hasattr(settings, name)] == []


def test_the_template_of_jobs_is_whole() -> None:
    """What it fills in is declared, what is declared is filled in, and what Prefect asks for is there."""
    found = template()
    declared = set(found["variables"]["properties"])
    text = json.dumps(found["job_configuration"])
    assert set(re.findall(r"\{\{ (\w+) \}\}", text)) == declared
    assert all(one["description"] for one in found["variables"]["properties"].values())
    manifest = found["job_configuration"]["job_manifest"]
    pod = manifest["spec"]["template"]["spec"]
    assert (manifest["apiVersion"], manifest["kind"]) == ("batch/v1", "Job")
    assert (pod["parallelism"], pod["completions"], pod["restartPolicy"]) == (
        1,
        1,
        "Never",
    )  # prefect-kubernetes
    assert pod["containers"][0]["name"] == "prefect-job"
    setup = PODS["prefect-setup"]["containers"][0]["args"]
    file = "deploy/kubernetes/base-job-template.json"
    assert setup == ["sh", "deploy/setup.sh", "tcp://factorflow-scheduler:8786", file]


def test_the_setup_makes_a_pool_of_kubernetes(tmp_path: Path) -> None:
    """With a template; else one of processes. A program that stands for Prefect's writes what it is asked."""
    log = tmp_path / "log"
    for name in ("prefect", "python"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {log}\n')
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    for arguments in (["tcp://s:8786", "deploy/kubernetes/base-job-template.json"], []):
        subprocess.run(["sh", str(ROOT / "deploy/setup.sh"), *arguments], env=environment, check=True)
    pools = [line for line in log.read_text().splitlines() if "work-pool create" in line]
    assert "--type kubernetes --base-job-template deploy/kubernetes/base-job-template.json" in pools[0]
    assert "--type process" in pools[1]


def labels(name: str) -> dict[str, str]:
    """Labels of a pod; the operator's own of those of Dask."""
    if name.startswith("dask-"):
        return {"dask.org/component": name.removeprefix("dask-")}
    if name == "run":
        spec = template()["job_configuration"]["job_manifest"]["spec"]
        return dict(spec["template"]["metadata"]["labels"])
    (one,) = (o for o in objects() if o["metadata"]["name"] == name and "template" in o.get("spec", {}))
    return dict(one["spec"]["template"]["metadata"]["labels"])


def selects(selector: dict[str, Any], name: str) -> bool:
    has = labels(name)
    return all(has.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        has.get(one["key"]) in one["values"] for one in selector.get("matchExpressions", [])
    )


def reaches(source: str, target: str, port: int) -> bool:
    """Whether the network policies let one pod reach a port of another."""
    policies = [one["spec"] for one in objects() if one["kind"] == "NetworkPolicy"]
    applied = [policy for policy in policies if selects(policy["podSelector"], target)]
    assert applied  # a pod without any policy is open to all
    for policy in applied:
        for rule in policy.get("ingress", []):
            peers = [peer["podSelector"] for peer in rule["from"] if "podSelector" in peer]
            ports = {one["port"] for one in rule.get("ports", [{"port": port}])}
            if port in ports and any(selects(peer, source) for peer in peers):
                return True
    return False


def test_policies_let_through_what_is_needed_and_nothing_else() -> None:
    allowed = {
        ("prefect-server", "postgres", 5432),
        ("prefect-setup", "prefect-server", 4200),
        ("prefect-worker", "prefect-server", 4200),
        ("run", "prefect-server", 4200),
        ("run", "dask-scheduler", 8786),
        ("run", "dask-scheduler", 8787),
        ("dask-worker", "dask-scheduler", 8786),
        ("dask-worker", "dask-scheduler", 8787),
        *(
            (source, "dask-worker", port)
            for source in ("dask-worker", "dask-scheduler")
            for port in (8786, 4200, 8787, 5432)
        ),
    }
    ports = (5432, 4200, 8786, 8787)
    found = {(a, b, port) for a in PODS for b in PODS for port in ports if a != b or a == "dask-worker"
             if reaches(a, b, port)}  # fmt: skip
    assert found == allowed


def test_the_worker_may_do_what_jobs_need() -> None:
    rules = named("Role", "prefect-worker")["rules"]
    verbs = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert {("jobs", "create"), ("jobs", "delete"), ("pods", "watch"), ("pods/log", "get")} <= verbs
    assert not {resource for resource, _ in verbs} & {"secrets", "*"}
    assert PODS["prefect-worker"]["serviceAccountName"] == "prefect-worker"
    assert PODS["run"]["automountServiceAccountToken"] is False


def test_alerts_ask_for_numbers_that_there_are() -> None:
    from factorflow.engine.observers import GAUGES

    groups = documents(ROOT / "deploy" / "prometheus-alerts.yaml")[0]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 6
    known = {f"factorflow_{name}" for name in GAUGES}
    known |= {f"dask_scheduler_{name}" for name in ("workers", "clients")}
    page = (ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
    for rule in rules:
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        used = set(re.findall(r"\b(?:factorflow|dask)_\w+", rule["expr"])) | set(
            re.findall(r"\bup\b", rule["expr"])
        )
        assert used - {"up"} <= known
        assert used
        assert rule["alert"] in page
        for job in re.findall(r'job="([^"]+)"', rule["expr"]):
            assert f"job_name: {job}" in page
