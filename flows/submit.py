"""Submit a run to a Prefect server: ``python -m flows.submit fit/fit --param source=... --param out=...``."""

from __future__ import annotations

import flows.prepare  # noqa: F401  before Prefect

# isort: split
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound

from factorflow.cli.application import serve
from factorflow.cli.options import assignments, value_of
from factorflow.cli.output import command
from factorflow.errors import InputError
from flows.fit import naming_server
from flows.serve import ServableFlow, check_running_server
from flows.submission import CheckedFlow


def submit(deployment: str, parameters: Mapping[str, Any]) -> FlowRun:
    """Make a run of a deployment, if a run would take its parameters.

    Parameters
    ----------
    deployment : str
        ``FLOW/NAME``, as in ``fit/fit``.
    parameters : mapping
        As JSON has them; the others are those of the deployment.

    Raises
    ------
    InputError
        If there is no such deployment, or a parameter is wrong: option, value and bound are named, and no run
        is made.
    """
    name = deployment.partition("/")[0]
    if name not in [flow.value for flow in ServableFlow]:
        expected = f"FLOW/NAME of a flow {', '.join(ServableFlow)}"
        raise InputError("deployment", deployment, expected, "`prefect deployment ls` lists them.")
    flow: CheckedFlow[..., Any] = getattr(import_module(f"flows.{name}"), name)
    with get_client(sync_client=True) as client:
        try:
            declared = client.read_deployment_by_name(deployment)
        except (ObjectNotFound, ValueError) as error:
            expected, remedy = "a deployment of the server", "`prefect deployment ls` lists them."
            raise InputError("deployment", deployment, expected, remedy) from error
    flow.check({**declared.parameters, **parameters})
    run = run_deployment(declared.id, parameters=dict(parameters), timeout=0, as_subflow=False)
    assert isinstance(run, FlowRun)  # nothing to await outside of a loop
    return run


def main(
    deployment: Annotated[str, typer.Argument(help="FLOW/NAME, such as fit/fit.")],
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", help="NAME=VALUE, a parameter; text, or JSON. As often as needed."),
    ] = None,
) -> dict[str, Any]:
    """Submit a run of a deployment to a Prefect server; wrong parameters are refused before it is made."""
    values = {name: value_of(text) for name, text in assignments("param", param or []).items()}
    check_running_server()
    with naming_server():
        run = submit(deployment, values)
    return {"submitted": deployment, "run": run.name, "id": str(run.id)}


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command(app)(main)
    serve(app)
