"""How a run is made, apart from its model: the settings that Python, command line and flows share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from factorflow.errors import InputError, OptionError
from factorflow.shape import HoldoutUnit

__all__ = [
    "SELECTION",
    "MatrixOptions",
    "Options",
    "RefreshOptions",
    "ResumeOptions",
    "RunOptions",
    "TableOptions",
    "TrialOptions",
    "describe",
    "parse_config",
]


class Options(BaseModel):
    """Base of all that a user sets by name: unknown names and values out of bounds are an `OptionError`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    of: ClassVar[str] = "these options"
    """What takes the options, as Python names it; said in errors."""

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise _refusal(type(self), error) from None

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        """Return the schema of a form: descriptions say the bounds, which forms check and do not show."""
        schema = handler(core_schema)
        described = handler.resolve_ref_schema(schema)
        described["description"] = (cls.__doc__ or "").split("\n\n")[0].strip()
        for field in described.get("properties", {}).values():
            if any(f'"{sign}":' in json.dumps(field) for sign in _SIGNS):
                field["description"] = f"{field.get('description', '')} ({values_of(field, {})})".strip()
        return schema


B = TypeVar("B", bound=Options)


class ResumeOptions(Options):
    """What may change when a run goes on: where it works, and its budgets."""

    of = "factorflow.resume"

    executor: str = Field(
        default="local",
        description="local, threads, dask (a cluster of its own), or an address such as tcp://host:8786.",
    )
    workers: int | None = Field(
        default=None, ge=1, description="Threads or worker processes to start; all cores when left out."
    )
    memory_limit: str | None = Field(default=None, description="Memory of each worker, such as 4GB.")
    max_iter: int | None = Field(default=None, ge=1, description="Iterations at most.")
    max_minutes: float | None = Field(default=None, gt=0, description="Wall-clock minutes at most.")
    checkpoint_every: int = Field(default=50, ge=1, description="Iterations between two checkpoints.")

    @field_validator("memory_limit", mode="before")
    @classmethod
    def _as_text(cls, limit: Any) -> Any:
        """Return bytes given as a number as text."""
        return str(limit) if isinstance(limit, int) else limit


class TrialOptions(ResumeOptions):
    """What the runs of a selection share."""

    of = "factorflow.workflow.select.select"

    device: Literal["cpu", "cuda"] = Field(default="cpu", description="Where blocks are worked on.")
    holdout: float = Field(
        default=0.0, ge=0, lt=1, description="Share of the observed entries to hide and score."
    )
    holdout_unit: HoldoutUnit = Field(
        default="entry", description="What is hidden together: single entries, whole rows or whole sequences."
    )


class RunOptions(TrialOptions):
    """All settings of one run."""

    of = "factorflow.fit"

    seed: int = Field(default=0, ge=0, lt=2**63, description="Key of all random numbers.")


class MatrixOptions(Options):
    """How files of samples x features become a dataset (`factorflow.write_dataset`)."""

    of = "factorflow.write_dataset"

    obs: str | None = Field(default=None, description="Table of sample metadata: CSV, TSV or Parquet.")
    groups: str | None = Field(default=None, description="Metadata column of the sample groups.")
    sequences: str | None = Field(default=None, description="Metadata column of the sequences.")
    sample_column: str | None = Field(default=None, description="Column of tables with the sample names.")
    layer: str | None = Field(default=None, description="Of AnnData and MuData: a layer instead of X.")
    obsm: list[str] = Field(
        default_factory=list,
        description="Of AnnData: matrices of obsm that are views as well, by their keys.",
    )
    highly_variable: bool = Field(
        default=False, description="Of AnnData and MuData: only highly variable features."
    )
    drop_empty_features: bool = Field(default=False, description="Leave out features without any value.")


class TableOptions(Options):
    """How a long table becomes a dataset (`factorflow.write_table`)."""

    of = "factorflow.write_table"

    formula: str = Field(description="Of the table: 'count ~ site + year + offset(log(effort))'.")
    likelihood: Literal["poisson", "normal", "gaussian"] | None = Field(
        default=None, description="Of the response; left out: counts are poisson, all else is normal."
    )
    missing_response: Literal["drop", "refuse"] = Field(
        default="drop", description="Rows without a response or another number."
    )
    missing_levels: Literal["level", "drop", "refuse"] = Field(
        default="level", description="Rows without a label; level: one of their own."
    )
    merge: bool = Field(default=True, description="Make one of the rows that agree in all variables.")
    grid: bool = Field(default=False, description="Combinations that are not in the table count 0.")
    holdout: float = Field(
        default=0.0, ge=0, lt=1, description="Share of the rows that is held out before any are merged."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Which rows are held out.")


class RefreshOptions(Options):
    """When a recurring run fits again, what it begins with, what it keeps, what is called drift."""

    of = "factorflow.workflow.refresh.refresh"

    refit_growth: float = Field(
        default=0.0,
        ge=0,
        description="Share by which the rows must have grown since the last fit for another one; rows that "
        "grew by less are projected on it. 0: every change of the data is fitted.",
    )
    refit_days: float | None = Field(
        default=None,
        gt=0,
        description="Days since the last fit after which any change of the data is fitted.",
    )
    warm: bool = Field(
        default=True,
        description="Begin with the factors of the last fit, which keep their order, signs and names, where "
        "the model can and the features are the same.",
    )
    keep: int = Field(
        default=5, ge=1, description="Posteriors that are kept; the last one and its fit always are."
    )
    drift_loadings: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="A factor has drifted when 1 - |correlation| of its loadings with those of the last fit "
        "is above this.",
    )
    drift_means: float = Field(
        default=0.5,
        gt=0,
        description="A feature has drifted when its mean moved by more than so many standard deviations.",
    )
    drift_score: float = Field(
        default=0.1,
        ge=0,
        description="A view has drifted when its held-out log-likelihood fell by more than this, in nats an "
        "entry.",
    )


SELECTION = TrialOptions(holdout=0.1)
"""Options of the runs of a selection where nothing else is said."""


def parse_config(kind: type[B], settings: Mapping[str, Any]) -> B:
    """Return a configuration made from settings.

    Raises
    ------
    OptionError
        For unknown names and values out of range, naming the first of them.
    """
    wrong = [key for key in settings if not isinstance(key, str)]
    if wrong:
        raise InputError(f"options of {kind.of}", wrong[0], "names that are text", "Quote the name.")
    return kind(**settings)


def describe(kind: type[Options]) -> list[dict[str, str]]:
    """Return what there is to know of each option.

    Returns
    -------
    list of dict
        ``option``, ``values`` (type, choices and bounds, in words), ``default`` (as JSON; "needed" without
        one) and ``description``.
    """
    schema = kind.model_json_schema()
    return [
        {
            "option": name,
            "values": values_of(field, schema.get("$defs", {})),
            "default": json.dumps(field["default"]) if "default" in field else "needed",
            "description": str(kind.model_fields[name].description or ""),
        }
        for name, field in schema["properties"].items()
        if "const" not in field  # the name of a family: it is chosen, not set
    ]


def values_of(field: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """Return what a field of a JSON schema may be, in words.

    Parameters
    ----------
    field : mapping
        The schema of the field.
    known : mapping
        Schemas that it may refer to.
    """
    if "$ref" in field:
        return values_of(known[str(field["$ref"]).rpartition("/")[2]], known)
    for key in ("anyOf", "oneOf"):
        if key in field:
            return " or ".join(dict.fromkeys(values_of(part, known) for part in field[key]))
    choices = field.get("enum", [field["const"]] if "const" in field else [])
    if choices:
        return " or ".join(map(str, choices))
    if "prefixItems" in field:
        return f"[{', '.join(values_of(part, known) for part in field['prefixItems'])}]"
    kind = str(field.get("type", "any value"))
    if kind == "array":
        return f"list of: {values_of(field.get('items', {}), known)}"
    bounds = [f"{sign} {field[name]}" for name, sign in _SIGNS.items() if name in field]
    return " ".join([_TYPES.get(kind, kind), *([" and ".join(bounds)] if bounds else [])])


_SIGNS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_TYPES = {"integer": "whole number", "string": "text", "boolean": "true or false", "null": "null",
          "object": "names with values"}  # fmt: skip


def _refusal(kind: type[Options], error: ValidationError) -> InputError:
    """Return the first thing that is wrong with the options, in words."""
    first = error.errors()[0]
    if isinstance(cause := first.get("ctx", {}).get("error"), InputError):
        return cause
    parts = [str(part) for part in first["loc"]]
    key = next((part for part in parts if part in kind.model_fields), parts[0] if parts else "options")
    value, known = first.get("input"), tuple(kind.model_fields)
    if first["type"] == "extra_forbidden":
        return OptionError(key, value, f"an option of {kind.of}", kind.of, known)
    if first["type"] == "missing":
        return OptionError(key, "nothing", "a value: it has no default", kind.of, known)
    return OptionError(key, value, _expected(first, error, key), kind.of, known)


_BOUNDS = {"greater_than_equal": "from {ge} on", "greater_than": "greater than {gt}",
           "less_than_equal": "up to {le}", "less_than": "less than {lt}"}  # fmt: skip
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "string": "text",
          "tuple": "a list", "list": "a list", "dict": "names with values"}  # fmt: skip


def _expected(first: Any, error: ValidationError, key: str) -> str:
    """Return what pydantic expected, in words; of a choice between types each of them."""
    same = [e for e in error.errors() if key in map(str, e["loc"])]
    said = dict.fromkeys(_in_words(e) for e in same)
    return " or ".join(said) if said else _in_words(first)


def _in_words(error: Any) -> str:
    kind = str(error["type"])
    if kind in _BOUNDS:
        return "a number " + _BOUNDS[kind].format(**error["ctx"])
    if kind in {"too_short", "too_long"}:
        limits = error["ctx"]
        size = limits.get("min_length", limits.get("max_length"))
        return f"a list of {size} at {'least' if kind == 'too_short' else 'most'}"
    if kind == "int_from_float":
        return "a whole number"
    word = kind.removesuffix("_type").removesuffix("_parsing")
    if word in _KINDS:
        return _KINDS[word]
    return str(error["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
