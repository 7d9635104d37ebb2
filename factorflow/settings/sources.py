"""Options of `write_dataset`, `write_table`, `factorflow ingest` and the flows."""

from __future__ import annotations

from numbers import Integral
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator, model_validator

from factorflow.errors import InputError
from factorflow.settings.base import Options


def check_block_rows(n_rows: Any) -> int:
    """Return the rows of a block, a power of two."""
    if not isinstance(n_rows, Integral) or n_rows < 1 or n_rows & (n_rows - 1):
        remedy = "Leave it out to choose it from the width of the views."
        raise InputError("block_rows", n_rows, "a power of two", remedy)
    return int(n_rows)


BlockRows = Annotated[
    int,
    AfterValidator(check_block_rows),
    WithJsonSchema(
        {"type": "integer", "if": {}, "then": {"type": "integer", "enum": [2**n for n in range(41)]}}
    ),
]
"""Rows of a block; schemas know powers of two by name."""


class FileOptions(Options):
    """Options for the format of text tables and the blocks of the dataset."""

    sep: str | None = Field(
        default=None, description="Separator of text tables, as for pandas.read_csv; found when left out."
    )
    decimal: str | None = Field(
        default=None, description="Decimal mark of text tables, . or ,; found when left out."
    )
    na_values: list[str] = Field(
        default_factory=list,
        description="Numbers and texts that stand for a missing entry, such as -9 or unknown.",
    )
    encoding: str | None = Field(
        default=None,
        description="Encoding of text tables, such as cp1252; UTF-8 when left out, or UTF-16 where a byte "
        "order mark says so.",
    )
    block_rows: BlockRows | None = Field(
        default=None,
        description="Rows of a block, a power of two; chosen from the width of the views when left out.",
    )

    @field_validator("na_values", mode="before")
    @classmethod
    def _as_texts(cls, codes: Any) -> Any:
        """Return numbers as text, and one code as a list."""
        codes = [codes] if isinstance(codes, str | int | float) else codes
        return list(map(str, codes)) if isinstance(codes, list | tuple) else codes

    @field_validator("sep")
    @classmethod
    def _tab(cls, separator: str | None) -> str | None:
        """Return a tab where it is written as a shell or a form does."""
        return None if separator is None else separator.replace("\\t", "\t")


class MatrixOptions(FileOptions):
    """Options for files of samples x features (`factorflow.write_dataset`)."""

    of = "factorflow.write_dataset"

    obs: str | None = Field(default=None, description="Table of sample metadata: CSV, TSV or Parquet.")
    groups: str | None = Field(default=None, description="Metadata column of the sample groups.")
    sequences: str | None = Field(
        default=None,
        description="Metadata column of the sequences, whose rows are neighbours in order of time.",
    )
    layer: str | dict[str, str] | None = Field(
        default=None,
        description="Of AnnData and MuData: the layer that is modelled instead of X, or one by view; raw is "
        ".raw.",
    )
    index_col: str | None = Field(
        default=None,
        description="Column of tables with the sample names, by name or position; false: there is none. When "
        "left out the first column, if it is text, has no header, or is called obs, sample, sample_id, id, "
        "cell or barcode; in Parquet what pandas' metadata say.",
    )
    transpose: bool | list[str] = Field(
        default=False, description="Features are in rows and samples in columns, of all views or of these."
    )
    obsm: list[str] = Field(
        default_factory=list,
        description="Of AnnData: matrices of obsm that are views as well, named by their keys.",
    )
    spatial: str | None = Field(
        default=None,
        description="Of AnnData: key of obsm of the places of the samples, columns x, y (and z) of the "
        "metadata unless obs has them; left out: spatial, where there is one.",
    )
    highly_variable: bool | list[str] = Field(
        default=False,
        description="Of AnnData and MuData: only features that var['highly_variable'] marks, of these views "
        "or of all that mark some.",
    )
    join: Literal["outer", "inner"] = Field(
        default="outer",
        description="Of a view of several files: the features of any of them (outer; missing in the others) "
        "or of all (inner).",
    )
    inputs: dict[str, Literal["categorical", "covariate"]] | None = Field(
        default=None,
        description="Views that a model is given beside the values, by view: categorical (one label a "
        "sample) or covariate (numbers).",
        json_schema_extra={"flag": "input"},
    )
    layout: dict[str, Literal["auto", "dense", "sparse"]] | None = Field(
        default=None,
        description="How views are stored, by view: dense, sparse (only entries that are not zero), or "
        "auto: sparse for counts of which at most a quarter are not zero. Fits are the same.",
    )
    limits: dict[str, Any] | None = Field(
        default=None,
        description="Limits of detection by view: LOWER,UPPER (either may be empty), or a table by feature "
        "with columns lower and upper. Values at or beyond a limit are known to lie there, no more; fits "
        "take censored.",
    )
    trials: dict[str, Any] | None = Field(
        default=None,
        description="Numbers of trials by view, of which values are successes: an integer, a file like that "
        "of the view, or a layer of it. Fits take binomial.",
    )
    drop_empty_features: bool = Field(
        default=False,
        description="Leave out features without any value, and levels without a sample, instead of refusing "
        "them.",
    )

    @model_validator(mode="before")
    @classmethod
    def _position_as_text(cls, values: Any) -> Any:
        """Convert a position among the columns to text."""
        column = values.get("index_col") if isinstance(values, dict) else None
        return values | {"index_col": str(column).lower()} if isinstance(column, int) else values


class DerivedOptions(Options):
    """Options for a view that is computed from another (`factorflow.add_view`)."""

    of = "factorflow.add_view"

    transform: Literal["log1p", "binarize", "pearson"] = Field(
        description="log1p: log(1 + counts, scaled to a total of target_sum in every sample); binarize: "
        "whether there are any; pearson: residuals of a negative binomial given the totals of sample and "
        "feature."
    )
    target_sum: float = Field(default=1e4, gt=0, description="Total of a sample, for log1p.")
    max_value: float | None = Field(
        default=None,
        gt=0,
        description="Largest value: for log1p in standard deviations above the mean of a feature, none when "
        "left out; for pearson as it is, the root of the number of samples when left out.",
    )
    features: list[str] | None = Field(
        default=None,
        description="Features that the view has, by name; highly_variable alone: those that the metadata of "
        "features mark so, else the 2000 that vary most; all when left out. Totals are over all.",
    )
    batch: str | None = Field(
        default=None, description="Column of the metadata with batches, within which features vary."
    )


class TableOptions(FileOptions):
    """Options for a long table (`factorflow.write_table`)."""

    of = "factorflow.write_table"

    formula: str = Field(
        description="The source is a long table with this formula, such as "
        "'count ~ site + species + year + offset(log(effort))'; docs/tables.md has the terms."
    )
    missing_response: Literal["drop", "refuse"] = Field(
        default="drop", description="Of a long table: rows without a response, an offset or another number."
    )
    missing_levels: Literal["level", "drop", "refuse"] = Field(
        default="level",
        description="Of a long table: rows without a label of a variable; level: they get one of their own.",
    )
    merge: bool = Field(
        default=True,
        description="Of a long table: make one row of those that agree in all variables, which loses "
        "nothing; rows are then sorted by their levels. Tables with linear(...) are left as they are.",
    )
    grid: bool = Field(
        default=False,
        description="Of a long table: it stands for all combinations of the levels, and those that are not "
        "in it count 0. Counts alone; an exposure is a product of columns that each depend on one variable.",
    )
    like: str | None = Field(
        default=None,
        description="Of a long table: a dataset whose levels it is to have; other labels are taken as "
        "unknown, with a warning.",
    )
    holdout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Of a long table: share of the rows that is held out before any are merged.",
    )
    part: Literal["both", "kept", "held out"] = Field(
        default="both",
        description="Of a long table: which rows are written. both: those held out come last, and fits hold "
        "them out and score them.",
    )
    seed: int = Field(
        default=0,
        ge=0,
        lt=2**63,
        description="Of a long table: which rows are held out, the same for the same seed and share.",
    )

    @field_validator("part", mode="before")
    @classmethod
    def _with_blank(cls, part: Any) -> Any:
        return part.replace("-", " ") if isinstance(part, str) else part


class SourceOptions(TableOptions, MatrixOptions):
    """Options for any source: all of `factorflow ingest`."""

    of = "factorflow.settings.SourceOptions"

    likelihoods: Literal["poisson", "normal", "gaussian"] | dict[str, str | dict[str, str]] | None = Field(
        default=None,
        description="By view, or VIEW:FEATURE: gaussian, bernoulli or poisson values, or a "
        "categorical response; or a likelihood of values, which fits then take by default (gamma, "
        "ordinal, ...). What is left out is taken from the file or guessed. One alone is of the response of "
        "a long table.",
        json_schema_extra={"flag": "likelihood"},
    )
    formula: str | None = Field(  # type: ignore[assignment]  # needed of a long table alone
        default=None, description=TableOptions.model_fields["formula"].description
    )

    @field_validator("likelihoods", mode="before")
    @classmethod
    def _kinds(cls, kinds: Any) -> Any:
        """Check the names of likelihoods; errors name the view."""
        if isinstance(kinds, str) and kinds not in {"poisson", "normal", "gaussian"}:
            expected = "a mapping by view; or, for the response of a long table, poisson, normal or gaussian"
            raise InputError("likelihoods", kinds, expected, "Name the view, or correct it.")
        if not isinstance(kinds, dict):
            return kinds
        kinds_by_view: dict[str, Any] = {}
        for name, likelihood in kinds.items():
            view, colon, feature = str(name).partition(":")
            if not colon:
                kinds_by_view[view] = likelihood
            elif isinstance(by_feature := kinds_by_view.setdefault(view, {}), dict):
                by_feature[feature] = likelihood
        return kinds_by_view

    @model_validator(mode="after")
    def _check_table_options(self) -> SourceOptions:
        """Refuse options of long tables without a formula, and others beside one."""
        others: type[Options] = MatrixOptions
        expected, remedy = "nothing beside {formula}: it is for files of samples x features", "Leave it out."
        if self.formula is None:
            others, expected = TableOptions, "nothing: it is for long tables"
            remedy = "Leave it out, or give {formula} as well."
        options = self.model_dump(exclude_defaults=True)
        for name in sorted(options.keys() & others.model_fields.keys() - FileOptions.model_fields.keys()):
            raise InputError(name, options[name], expected, remedy, formula=self.formula or ...)
        kinds = self.likelihoods
        if self.formula is None and isinstance(kinds, str):
            expected = "a mapping by view (a single name is for the response of a long table)"
            raise InputError("likelihoods", kinds, expected, "Name the view.")
        if self.formula is not None and isinstance(kinds, dict) and len(kinds) > 1:
            raise InputError("likelihoods", kinds, "one: a table has one response", "Leave one.")
        return self

    def arguments(self) -> dict[str, Any]:
        """Return the given options as arguments of the function that writes the dataset.

        Returns
        -------
        dict of str to Any
            Of `write_table`, if there is a formula, else of `write_dataset`.
        """
        options = self.model_dump(exclude_defaults=True)
        if self.formula is not None and (likelihood := options.pop("likelihoods", None)):
            options["likelihood"] = likelihood if isinstance(likelihood, str) else [*likelihood.values()][0]
        return options
