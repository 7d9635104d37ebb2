"""Messages of a Prefect server on drift, failure and crash: ``python -m flows.notify deploy/notify.yaml``.

The address that they go to is taken from the environment (FACTORFLOW_NOTIFY_URL), since it is a secret.
"""

from __future__ import annotations

import flows.prepare  # noqa: F401  before Prefect

# isort: split
import os
import sys
from pathlib import Path
from typing import Any

from prefect.blocks.notifications import SlackWebhook
from prefect.client.orchestration import get_client
from prefect.events.schemas.automations import AutomationCore
from pydantic import SecretStr

from factorflow.errors import InputError
from factorflow.settings import read_yaml

BLOCK = "factorflow-notify"
URL = "FACTORFLOW_NOTIFY_URL"


def automations(text: str, block: str) -> list[AutomationCore]:
    """Return the automations of a file, which notify by a block.

    Parameters
    ----------
    text : str
        Of deploy/notify.yaml.
    block : str
        Identifier of the block.
    """
    documents: list[dict[str, Any]] = read_yaml(text)
    for automation in documents:
        for action in automation["actions"]:
            action["block_document_id"] = block
    return [AutomationCore.model_validate(automation) for automation in documents]


def notify(text: str, url: str) -> list[str]:
    """Make the block and the automations, or restore them from the file; return their names.

    Parameters
    ----------
    text : str
        Of deploy/notify.yaml.
    url : str
        Address of a Slack webhook, or any other that Apprise knows.

    Raises
    ------
    InputError
        If there is no such address.
    """
    from apprise import Apprise

    if not url or not Apprise().add(url):
        remedy = (
            "Correct it: https://hooks.slack.com/services/..., or mailtos://USER:PASSWORD@HOST?to=ADDRESS."
        )
        value = "not set" if not url else "an address that Apprise does not know"
        raise InputError(URL, value, "where messages go", remedy)
    saved: Any = SlackWebhook(url=SecretStr(url)).save(
        BLOCK, overwrite=True
    )  # a block for every such address
    created = automations(text, str(saved))
    with get_client(sync_client=True) as client:
        there = {one.name: one.id for one in client.read_automations()}
        for automation in created:
            if automation.name in there:
                client.delete_automation(there[automation.name])
            client.create_automation(automation)
    return [automation.name for automation in created]


if __name__ == "__main__":
    try:
        print("\n".join(notify(Path(sys.argv[1]).read_text(encoding="utf-8"), os.environ.get(URL, ""))))
    except InputError as error:
        sys.exit(str(error))
