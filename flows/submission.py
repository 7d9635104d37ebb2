"""Flows whose parameters are checked as a whole before a run is made of them.

A Prefect server compares the parameters of a run with the schema of its deployment, value by value. What that
cannot say (options of a grid by the family of the model, one bound beside another) is checked by the models
of options: where a flow is called, served (`flows.serve`) and submitted (`flows.submit`).
"""

from __future__ import annotations

import flows.prepare  # noqa: F401  before Prefect

# isort: split
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, get_type_hints

from prefect import Flow
from prefect.utilities.callables import get_call_parameters
from pydantic import TypeAdapter, ValidationError

from factorflow.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")

Check = Callable[[Mapping[str, Any]], object]
"""Raises InputError for parameters, by name, that do not fit together."""


class CheckedFlow(Flow[P, R]):
    """A flow that refuses wrong parameters before Prefect makes a run."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Check the parameters, and run the flow."""
        of_prefect = {name: kwargs.pop(name) for name in ("return_state", "wait_for") if name in kwargs}
        self.check(get_call_parameters(self.fn, args, kwargs))
        return super().__call__(*args, **kwargs, **of_prefect)

    def validate_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters with their types, as Prefect does at the start of a run."""
        typed = super().validate_parameters(parameters)
        check_together(self, typed)
        return typed

    def check(self, parameters: Mapping[str, Any], *, whole: bool = True) -> None:
        """Refuse parameters that a run would refuse.

        Parameters
        ----------
        parameters : mapping
            As Python or JSON has them.
        whole : bool
            Whether all that have no default must be there.

        Raises
        ------
        InputError
            Naming the parameter, or the option in it.
        """
        declared = inspect.signature(self.fn).parameters
        for name in parameters.keys() - declared.keys():
            raise InputError(
                "param", name, f"a parameter of {self.name}: {', '.join(declared)}", "Correct it."
            )
        missing = [name for name, p in declared.items() if p.default is p.empty and name not in parameters]
        if whole and missing:
            expected, remedy = f"{', '.join(missing)} too", [f"--param {n}=..." for n in missing]
            raise InputError(
                "param", ", ".join(parameters) or "nothing", expected, f"Add {' '.join(remedy)}."
            )
        hints = get_type_hints(self.fn, include_extras=True)
        typed = {name: p.default for name, p in declared.items() if p.default is not p.empty}
        for name, value in parameters.items():
            try:
                typed[name] = TypeAdapter(hints[name]).validate_python(value)
            except ValidationError as error:
                raise _refusal(name, error) from None
        check_together(self, typed)


def checked_flow(name: str, together: Check | None = None) -> Callable[[Callable[P, R]], CheckedFlow[P, R]]:
    """Make a flow of a function (a decorator).

    Parameters
    ----------
    name : str
        Of the flow.
    together : callable, optional
        What its parameters have to be together; it may be given a part of them.
    """

    def decorate(function: Callable[P, R]) -> CheckedFlow[P, R]:
        function.__dict__["check_together"] = together
        return CheckedFlow(function, name=name, log_prints=True)

    return decorate


def check_together(flow: Flow[..., Any], typed: Mapping[str, Any]) -> None:
    """Refuse parameters that do not fit together (InputError)."""
    if (check := flow.fn.__dict__.get("check_together")) is not None:
        check(typed)


def _refusal(name: str, error: ValidationError) -> InputError:
    """Return the first of the errors in a parameter."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return InputError(f"{name}.{cause.parameter}", cause.value, cause.expected, "Correct it.")
    where = ".".join([name, *(str(part) for part in first["loc"])])
    return InputError(where, first["input"], first["msg"][:1].lower() + first["msg"][1:], "Correct it.")
