"""Parameters of the flows: pydantic models, so that Prefect checks them and draws a form for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from factorflow import settings
from factorflow.errors import InputError
from factorflow.models.registry import default_family, registered_models
from factorflow.settings import Options, SourceOptions

__all__ = [
    "Choice",
    "Families",
    "ModelChoice",
    "Out",
    "Overwrite",
    "Reading",
    "Run",
    "RunOptions",
    "FormField",
    "Source",
    "SourceOptions",
    "TrialOptions",
    "TrialRun",
    "Worded",
    "default_model",
]


@dataclass(frozen=True)
class Choice:
    """A choice in Prefect's form: ``anyOf``, since it supports no other kind."""

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        """Return the schema of the form."""
        schema = dict(handler(core_schema))
        if "oneOf" in schema:
            schema["anyOf"] = schema.pop("oneOf")
            schema.pop("discriminator", None)
        return schema


@dataclass(frozen=True)
class FormField(Choice):
    """The description of a parameter in Prefect's form, which ignores that of a ``Field``.

    Parameters
    ----------
    description : str
        What is said below its name.
    """

    description: str

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        """Return the schema of the form."""
        return {**super().__get_pydantic_json_schema__(core_schema, handler), "description": self.description}


@dataclass(frozen=True)
class DeclaredField(Choice):
    """A parameter as a model of options declares it: its values, bounds and description.

    Parameters
    ----------
    options : type
        The model.
    field : str
        Name of the field.
    """

    options: type[Options]
    field: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Return the schema of the field."""
        field = self.options.model_fields[self.field]
        bounded: Any = Annotated
        kind = bounded[field.annotation, *field.metadata] if field.metadata else field.annotation
        return handler.generate_schema(kind)

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        """Return the schema of the form."""
        description = self.options.model_json_schema()["properties"][self.field]["description"]
        return {**super().__get_pydantic_json_schema__(core_schema, handler), "description": description}


@dataclass(frozen=True)
class Families(FormField):
    """The choice of a family, validated by the schema of the named family.

    A choice alone is refused as a whole, "not valid under any of the given schemas". Here the choice takes
    any mapping, as JSON, and what names a family has to be valid under its schema: the error of a server has
    option and bound.
    """

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        """Return the schema of the form."""
        schemas = handler(core_schema)["discriminator"]["mapping"]
        names = sorted(schemas, key=lambda name: (name != default_family(), name))
        conditions: dict[str, Any] = {"properties": {"model": {"enum": names}}}
        for name in reversed(names):
            is_it = {"properties": {"model": {"const": name}}}
            conditions = {"if": is_it, "then": {"$ref": schemas[name]}, "else": conditions}
        form = super().__get_pydantic_json_schema__(core_schema, handler)
        return {**form, "anyOf": [*form["anyOf"], {"title": "as JSON", "type": "object"}], **conditions}


def _worded(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Validate a parameter; errors are those of factorflow, not pydantic's."""
    try:
        return check(value)
    except ValidationError as error:
        for detail in error.errors():
            if isinstance(cause := detail.get("ctx", {}).get("error"), InputError):
                words = {"message": str(cause), "error": cause}
                raise PydanticCustomError("input", "{message}", words) from None
        raise


Worded = WrapValidator(_worded)
"""Annotation of a parameter of a flow that is a group of options."""


def _with_family(value: Any) -> Any:
    """Return options with the name of their family: that which a flow fits when it is given none."""
    if not isinstance(value, Mapping):
        return value
    name = value.get("model", default_family())
    if name not in registered_models():
        raise InputError(
            "model", name, f"one of {', '.join(sorted(registered_models()))}", "Choose one of them."
        )
    return {**value, "model": name}


if TYPE_CHECKING:
    from factorflow.models.configuration import ModelConfig as ModelChoice
else:
    _families = sorted(registered_models().items(), key=lambda family: family[0] != default_family())
    ModelChoice = Annotated[
        reduce(or_, (family for _, family in _families)),
        Field(discriminator="model"),
        BeforeValidator(_with_family),
        Worded,
        Families("The family of models, and its options."),
    ]
    """Any configuration in `factorflow.models`; its ``model`` says which."""

Source = Annotated[
    str,
    FormField(
        "Path of the data, as the worker sees it: a dataset; a file or folder that `factorflow ingest` "
        "accepts (.npz, .csv, .tsv, .parquet, .h5ad, .h5mu, .zarr); or a long table, with its formula among "
        "the options of the source."
    ),
]

Out = Annotated[str, FormField("Folder for dataset, posterior, summary and report.")]

Overwrite = Annotated[bool, FormField("Replace the posterior of another run in the folder.")]


class RunOptions(settings.RunOptions):
    """How a run is made, apart from its model; a flow works on a Dask cluster of its own."""

    executor: settings.ExecutorName = Field(
        default="dask", description=settings.RunOptions.model_fields["executor"].description
    )


class TrialOptions(RunOptions):
    """How the runs of a selection are made: they hold entries out, also where other options are given."""

    holdout: float = Field(
        default=settings.SELECTION.holdout,
        gt=0,
        lt=1,
        description=settings.RunOptions.model_fields["holdout"].description,
    )


def _as_mapping(options: Any) -> Any:
    """Return options of runs as those that were given."""
    return options.model_dump(exclude_unset=True) if isinstance(options, RunOptions) else options


Run = Annotated[
    RunOptions, Worded, FormField("Where and for how long it runs, its seed, and what is held out.")
]

TrialRun = Annotated[
    TrialOptions,
    BeforeValidator(_as_mapping),
    Worded,
    FormField("Where and for how long each trial runs, and what is held out; its seed is not used."),
]

Reading = Annotated[SourceOptions, Worded, FormField("How the source is read; nothing of it for a dataset.")]


def default_model() -> Any:
    """Return the configuration that a flow uses when it is given none."""
    return registered_models()[default_family()]()
