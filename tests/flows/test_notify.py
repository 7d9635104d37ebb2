"""Messages on drift, failure and crash: the automations, and one that arrives."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from factorflow.errors import InputError

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")  # Apprise
FILE = (ROOT / "deploy" / "notify.yaml").read_text(encoding="utf-8")


def test_drift_failure_and_crash() -> None:
    from prefect.events.schemas.automations import EventTrigger, Posture
    from prefect.server.events.actions import SendNotification

    from flows.notify import automations

    block = str(uuid4())
    expected = set()
    for automation in automations(FILE, block):
        assert automation.enabled
        assert isinstance(automation.trigger, EventTrigger)
        assert automation.trigger.posture == Posture.Reactive
        expected |= automation.trigger.expect
        (action,) = automation.actions
        assert str(action.block_document_id) == block  # type: ignore[union-attr]
        SendNotification.model_validate(action.model_dump(mode="json"))  # its templates can be read
    assert expected == {
        "factorflow.refresh.drifted",
        *(f"prefect.flow-run.{state}" for state in ("Failed", "TimedOut", "Crashed")),
    }


def test_runs_have_the_tag_that_is_matched() -> None:
    import yaml

    deployments = yaml.safe_load((ROOT / "deploy" / "prefect.yaml").read_text())["deployments"]
    tags = {tag for one in deployments for tag in one["tags"]}
    assert tags == {"factorflow"}
    assert FILE.count("prefect.resource.id: prefect.tag.factorflow") == 2


@pytest.mark.parametrize("url", ["", "nonsense", "nope://x"])
def test_an_address_that_is_none(url: str) -> None:
    from flows.notify import notify

    with pytest.raises(InputError, match="FACTORFLOW_NOTIFY_URL"):
        notify(FILE, url)


@pytest.mark.parametrize("url", ["https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
                                 "mailtos://user:password@smtp.example.org?to=you@example.org"])  # fmt: skip
def test_the_addresses_of_the_docs_are_known(url: str) -> None:
    from apprise import Apprise

    assert Apprise().add(url)


@pytest.fixture
def inbox() -> Iterator[tuple[str, list[Any], threading.Event]]:
    """Address of a server that keeps what is sent to it."""
    kept: list[Any] = []
    arrived = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            arrived.set()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"json://127.0.0.1:{server.server_port}/", kept, arrived
        server.shutdown()
        thread.join()


@pytest.mark.thorough
def test_a_message_arrives(prefect_api: str, inbox: tuple[str, list[Any], threading.Event]) -> None:
    from prefect.client.orchestration import get_client
    from prefect.events import emit_event

    from flows.notify import notify

    url, kept, arrived = inbox
    names = ["factorflow drift", "factorflow failure", "factorflow crash"]
    assert notify(FILE, url) == names
    assert notify(FILE, url) == names
    with get_client(sync_client=True) as client:
        there = [one.name for one in client.read_automations() if one.name in names]
    assert sorted(there) == sorted(names)  # none twice
    resource = {"prefect.resource.id": "factorflow.results.cohort", "prefect.resource.name": "cohort, runs/a"}
    payload = {"alerts": ["Factor1 is gone."], "report": "runs/a/report.html"}
    for _ in range(20):  # the server takes a moment to know its automations
        emit_event("factorflow.refresh.drifted", resource, payload=payload)
        if arrived.wait(3):
            break
    assert kept[0]["title"] == "Drift: cohort, runs/a"
    assert "- Factor1 is gone." in kept[0]["message"]
    assert "runs/a/report.html" in kept[0]["message"]
