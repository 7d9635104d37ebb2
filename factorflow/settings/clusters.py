"""The setting of a cluster, as in prefect-dask: a class, its arguments, and bounds of adaptive scaling."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from factorflow.errors import InputError
from factorflow.settings.base import Options
from factorflow.settings.reading import read_yaml

EXAMPLE = json.dumps(
    {
        "class": "dask_jobqueue.SLURMCluster",
        "kwargs": {"cores": 1, "memory": "4GB", "walltime": "02:00:00", "account": "lab"},
        "adapt": {"minimum": 2, "maximum": 16},
    }
)

ADDRESS = r"[a-z]+://\S+"
"""Expected form of the address of a scheduler."""

DURATION = r"^\s*(\d*\.?\d+\s*[A-Za-z]+|(\d+-)?\d+:[0-5]\d(:[0-5]\d)?)\s*$"
"""Pattern of times, for schemas; `seconds_of` knows the units."""

BOUNDS = {
    "type": "object",
    "properties": {
        "minimum": {"type": "integer", "minimum": 0},
        "maximum": {"type": "integer", "minimum": 1},
    },
    "allOf": [
        {
            "if": {"required": ["minimum"], "properties": {"minimum": {"const": n}}},
            "then": {"properties": {"maximum": {"minimum": n}}},
        }
        for n in range(2, 65)
    ],
}
"""The schema of the number of workers that a cluster adapts to.

A schema compares no two values: the maximum has a bound for each minimum up to 64.
"""

_CLOCK = re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d+):(?P<minutes>[0-5]\d)(?::(?P<seconds>[0-5]\d))?")


def bytes_of(parameter: str, limit: str | int | None) -> int | None:
    """Return an amount of memory in bytes."""
    if limit is None:
        return None
    from dask.utils import parse_bytes

    try:
        n_bytes = int(parse_bytes(limit))
    except ValueError:
        n_bytes = 0
    if n_bytes <= 0:
        raise InputError(parameter, limit, "bytes, or text such as '4GB'", "Correct it.")
    return n_bytes


def seconds_of(parameter: str, duration: str) -> int:
    """Return a duration in seconds: ``2h``, ``90 minutes``, ``02:00:00`` or ``1-12:00:00`` (with days)."""
    if clock := _CLOCK.fullmatch(duration.strip()):
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        n_seconds = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    else:
        from dask.utils import parse_timedelta

        try:
            n_seconds = int(parse_timedelta(duration, default=False))
        except (KeyError, TypeError, ValueError):
            n_seconds = 0
    if n_seconds <= 0:
        expected = "a time, such as '2h', '90 minutes' or '02:00:00'"
        raise InputError(parameter, duration, expected, "Correct it.")
    return n_seconds


class ClusterSetting(Options):
    """A cluster that is started for a run, or the address of one that is running."""

    of = "factorflow.settings.clusters.ClusterSetting"
    model_config = ConfigDict(serialize_by_alias=True)

    class_name: str | None = Field(
        default=None,
        alias="class",
        description="Class of a Dask cluster, package.module.Class: dask_jobqueue.SLURMCluster, "
        "dask_kubernetes.operator.KubeCluster, dask_gateway.GatewayCluster, dask_cuda.LocalCUDACluster.",
    )
    kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="Arguments of the class by name; no secrets: those belong into Dask's configuration.",
    )
    adapt: Annotated[dict[str, Any], WithJsonSchema(BOUNDS)] | None = Field(
        default=None,
        description="Bounds of the number of workers, {minimum: 2, maximum: 16}, and other arguments of the "
        "cluster's adapt(); equal bounds replace jobs that are lost. Left out: the workers of kwargs, else "
        "as many as `workers`.",
    )
    address: Annotated[str, WithJsonSchema({"type": "string", "pattern": f"^{ADDRESS}$"})] | None = Field(
        default=None,
        description="Instead of a class: the scheduler of a running cluster, tcp://host:8786 or "
        "tls://host:8786.",
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        description="Workers that are going to be there at most: the data are cut for so many. Left out: "
        "the maximum of adapt, else those that are there.",
    )
    share: int = Field(
        default=1,
        ge=1,
        description="Runs that work there at the same time: each plans with its share of memory.",
    )
    wait: Annotated[str, WithJsonSchema({"type": "string", "pattern": DURATION})] | None = Field(
        default=None,
        description="Time to wait for the first worker; left out: 1h for a class, 60 s for an address.",
    )

    @model_validator(mode="after")
    def _check(self) -> ClusterSetting:
        if (self.class_name is None) == (self.address is None):
            both = "neither" if self.address is None else "both"
            raise InputError("cluster", both, f"either class or address, such as {EXAMPLE}", "Correct it.")
        if self.address is not None:
            check_address(self.address)
            for name, value in (("kwargs", self.kwargs), ("adapt", self.adapt)):
                if value:
                    raise InputError(name, value, "None with an address", "Leave it out.")
        if self.wait is not None:
            seconds_of("wait", self.wait)
        if self.adapt is not None:
            _check_bounds(self.adapt)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        """Return the schema of a form, in which one of class and address is needed, and not both."""
        schema = super().__get_pydantic_json_schema__(core_schema, handler)
        absent, text = {"type": "null"}, {"type": "string"}
        has_class = {"required": ["class"], "properties": {"class": text}}
        described = handler.resolve_ref_schema(schema)
        described |= {
            "if": has_class,
            "then": {"properties": {"address": absent}},
            "else": {"required": ["address"], "properties": {"address": text}},
        }
        return schema

    @property
    def n_workers(self) -> int:
        """Workers that are going to be there at most; 0: those that are there."""
        return self.workers or (self.adapt or {}).get("maximum", 0)


def _check_bounds(adapt: Mapping[str, Any]) -> None:
    """Refuse bounds that are none: the data are cut for the maximum."""
    minimum, maximum = adapt.get("minimum", 0), adapt.get("maximum")
    for name, value, least in (("minimum", minimum, 0), ("maximum", maximum, 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"adapt: {name}", value, f"an integer >= {least}", "Correct it.")
    if minimum > maximum:
        raise InputError("adapt: minimum", minimum, f"at most maximum ({maximum})", "Correct one of the two.")


def read_cluster(value: Any) -> Any:
    """Parse a setting given as text: JSON, or the path of a YAML or JSON file.

    The file may hold the setting itself, or a mapping with the setting as its ``cluster``.

    Raises
    ------
    InputError
        If it cannot be read.
    """
    if not isinstance(value, str):
        return value
    text = value
    if not value.lstrip().startswith("{"):
        try:
            text = Path(value).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            expected = f"JSON, such as {EXAMPLE}, or a readable YAML or JSON file ({error})"
            raise InputError("cluster", value, expected, "Correct it.") from error
    try:
        content = read_yaml(text)
    except ValueError as error:
        raise InputError("cluster", value, f"YAML or JSON ({error})", "Correct it.") from error
    if isinstance(content, Mapping) and set(content) == {"cluster"}:
        content = content["cluster"]
    if not isinstance(content, Mapping):
        raise InputError("cluster", value, f"a mapping, such as {EXAMPLE}", "Correct it.")
    return dict(content)


Cluster = Annotated[ClusterSetting, BeforeValidator(read_cluster)]
"""The setting, as options have it: a mapping, or text (`read_cluster`)."""


def check_address(address: str) -> None:
    """Check the address of a scheduler."""
    if not re.fullmatch(ADDRESS, address):
        expected = "the address of a Dask scheduler, such as tcp://host:8786"
        raise InputError("address", address, expected, "Correct it.")
