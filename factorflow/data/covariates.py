"""Covariates from the sample metadata of a dataset, how they are coded; columns that are read with blocks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from factorflow.core.covariates import Column, Covariates, Term
from factorflow.core.places import Places
from factorflow.data.ingest.checks import join_names, warn
from factorflow.data.ingest.levels import text_of
from factorflow.data.store.fingerprint import digest_column, digest_names
from factorflow.errors import InputError
from factorflow.kernels.linalg import pack

if TYPE_CHECKING:
    import pandas as pd

    from factorflow.data.store.dataset import Dataset

AT_ONCE = 1 << 16
"""Rows that are coded at a time."""

C = TypeVar("C", Covariates, Places, Covariates | Places)

_UNDERSTOOD = "columns of the sample metadata, C(column), and products of them"


@dataclass(frozen=True)
class CodedColumns:
    """Columns of the sample metadata as numbers, read with the blocks of a run.

    Parameters
    ----------
    code : Covariates or Places
        Which columns, and what numbers they become.
    table : mapping of str to (N,) array or None
        The columns, where they are not the dataset's own.
    known : bool
        Whether they are known; else they are NaN, and what is computed with them is integrated over them.
    """

    code: Covariates | Places
    table: Mapping[str, NDArray[Any]] | None = None
    known: bool = True

    @cached_property
    def digest(self) -> str:
        """Of what it reads: equal where the numbers are."""
        parts = [repr(self.code), str(self.known)]
        parts += [f"{name} {digest_column(values)}" for name, values in (self.table or {}).items()]
        return digest_names(parts)

    def read(
        self, dataset: Any, start: int = 0, stop: int | None = None, *, known: bool = False
    ) -> NDArray[np.float64]:
        """Return the numbers of some rows, (stop - start, P); ``known``: NaN where covariates are missing."""
        if not self.known:
            return np.full((len(range(dataset.n_rows)[start:stop]), len(self.code)), np.nan)
        encode = self.code.encode_known if known and isinstance(self.code, Covariates) else self.code.encode
        if self.table is not None:
            return encode({name: values[start:stop] for name, values in self.table.items()})
        names = [column.name for column in self.code.sources]
        return encode(prepare_columns(self.code.sources, dataset.obs_columns(names, start, stop)))


def prepare_columns(columns: Sequence[Column], table: Any) -> dict[str, NDArray[Any]]:
    """Return the columns of a table as `Covariates.encode` and `Places.encode` take them."""
    return {
        c.name: labels_of(table[c.name]) if c.levels else numbers_of(c.name, table[c.name]) for c in columns
    }


def code_covariates(
    dataset: Dataset, specification: str | Sequence[str], option: str = "covariates", most_levels: int = 60
) -> Covariates:
    """Return how columns of the sample metadata are coded for a fit.

    Parameters
    ----------
    specification : str or sequence of str
        Names of columns, or a formula: ``~ age + batch + age:sex``; ``C(batch)`` are categories even if they
        are numbers.
    most_levels : int
        Levels that a category may have (`ModelConfig.most_levels`).

    Raises
    ------
    InputError
        When there is no such column, one does not vary, or has too many levels.
    """
    terms, forced = _terms(specification, option)
    columns = {}
    for name in dict.fromkeys(column for term in terms for column in term):
        columns[name] = _coded_column(dataset, name, option, most_levels, categories=name in forced)
    covariates = Covariates(tuple(columns.values()), tuple(map(Term, terms)))
    total, products = np.zeros(len(covariates)), np.zeros((len(covariates), len(covariates)))
    for part in _parts(dataset, covariates):
        total += part.sum(axis=0)
    means = np.split(total / dataset.n_rows, np.flatnonzero(np.diff(covariates.groups)) + 1)
    covariates = replace(
        covariates, terms=tuple(Term(t, tuple(m.tolist())) for t, m in zip(terms, means, strict=True))
    )
    n_observed = np.zeros(len(covariates))
    for part in _parts(dataset, covariates, known=True):
        n_observed += (~np.isnan(part)).sum(axis=0)
        part = np.nan_to_num(part)
        products += part.T @ part
    covariates = replace(covariates, second=tuple(pack(products / dataset.n_rows).tolist()))
    if n_observed.min() == dataset.n_rows:
        return covariates
    return replace(covariates, incomplete=True, observed=tuple((n_observed / dataset.n_rows).tolist()))


def with_digests(code: C, dataset: Dataset) -> C:
    """Return what is coded as it is, with the digests of the columns of a dataset."""
    if isinstance(code, Places):
        values = CodedColumns(code).read(dataset)
        return replace(code, digests=tuple(digest_column(column) for column in values.T))
    table = prepare_columns(code.columns, dataset.obs_columns([column.name for column in code.columns]))
    columns = tuple(replace(c, digest=digest_column(table[c.name])) for c in code.columns)
    return replace(code, columns=columns).with_missing(table)


def _parts(dataset: Dataset, covariates: Covariates, *, known: bool = False) -> Iterator[NDArray[np.float64]]:
    for start in range(0, dataset.n_rows, AT_ONCE):
        stop = min(start + AT_ONCE, dataset.n_rows)
        yield CodedColumns(covariates).read(dataset, start, stop, known=known)


def projected_columns(
    code: Covariates | Places | None, dataset: Dataset, source: Any = None
) -> CodedColumns | None:
    """Return what new samples are given, or where they lie.

    Parameters
    ----------
    source : DataFrame, path, False or None
        Their columns by sample name; None: those of the dataset's metadata; False, or columns that are not
        there: unknown.

    Raises
    ------
    InputError
        When a sample has no row.
    """
    if code is None:
        return None
    names = [column.name for column in code.sources]
    if source is False or (source is None and not set(names) <= set(dataset.column_names)):
        code = replace(code, incomplete=True) if isinstance(code, Covariates) else code
        return CodedColumns(code, known=False)
    rows = dataset.obs_columns(names) if source is None else rows_by_sample(dataset, source, names)
    if isinstance(code, Covariates):
        for column in code.columns:
            warn_of_levels(column, rows[column.name])
    if source is None:
        return CodedColumns(with_digests(code, dataset))
    table = prepare_columns(code.sources, rows)
    return CodedColumns(code.with_missing(table) if isinstance(code, Covariates) else code, table)


def warn_of_levels(column: Column, values: Any) -> None:
    """Warn of levels of new samples that the fit did not know: a typing error, or a new batch."""
    if column.levels:
        unknown = sorted(set(labels_of(values).tolist()) - {"", *column.levels})
        if unknown:
            warn(
                f"{join_names(unknown)} of column {column.name} not among the levels of the fit "
                f"({join_names(column.levels)}): taken for not known"
            )


def warn_of_groups(places: Places, labels: Sequence[str] | None, of: str) -> None:
    """Warn of new samples of which courses by group say nothing: their group is not known, or has none.

    Parameters
    ----------
    labels : sequence of str, or None
        Names of their groups; None: they have none.
    of : str
        What has no groups, in words.
    """
    if not places.groups:
        return
    unknown = sorted(set(labels or ()) - {*places.groups, ""})
    if labels is None or unknown:
        who = f"of {join_names(unknown)}, not among the groups of the fit" if unknown else "without a group"
        why = f"each group ({join_names(places.groups)}) has a course of its own"
        warn(f"{of}: {', '.join(places.columns)} says nothing of samples {who}, since {why}")


def rows_by_sample(dataset: Dataset, source: Any, names: Sequence[str]) -> Any:
    """Return the rows of a table, a frame or a file, in the order of the samples.

    Raises
    ------
    InputError
        When it lacks a column or a sample, or has one twice.
    """
    if isinstance(source, str | os.PathLike):
        from factorflow.data.ingest.metadata import read_metadata

        source = read_metadata(Path(source), "covariates", samples=dataset.obs_names)
    lacking = [name for name in names if name not in source.columns]
    if lacking:
        raise InputError(
            "covariates", f"no column {lacking[0]}", f"columns {', '.join(names)}", "Add it, or use False."
        )
    if source.index.has_duplicates:
        twice = str(source.index[source.index.duplicated()][0])
        raise InputError("covariates", f"two rows {twice}", "every sample once", "Leave one of them out.")
    absent = [name for name in dataset.obs_names.tolist() if name not in source.index]
    if absent:
        raise InputError("covariates", f"no row {absent[0]}", "a row for each sample", "Index it by sample.")
    return source.loc[dataset.obs_names.tolist()]


def _terms(specification: str | Sequence[str], option: str) -> tuple[list[tuple[str, ...]], set[str]]:
    """Return the columns of each term, and those that are categories whatever they hold."""
    if isinstance(specification, str) and "~" in specification:
        return _of_formula(specification, option)
    names = (
        [name.strip() for name in specification.split(",")]
        if isinstance(specification, str)
        else list(specification)
    )
    terms, forced = [], set()
    for name in filter(None, names):
        match = re.fullmatch(r"C\((.+)\)", name)
        terms.append((match[1] if match else name,))
        forced |= {match[1]} if match else set()
    if not terms:
        raise InputError(option, specification, "names of columns, or a formula", "Leave it out for none.")
    return list(dict.fromkeys(terms)), forced


def _of_formula(formula: str, option: str) -> tuple[list[tuple[str, ...]], set[str]]:
    from formulaic.parser import DefaultFormulaParser

    remedy = "For example '~ age + batch + age:sex'."
    try:
        left, _, right = formula.partition("~")
        parsed = DefaultFormulaParser(include_intercept=False).get_terms(right)
        factors = [[(f.expr, f.eval_method.value) for f in term.factors] for term in parsed]
    except Exception as error:  # formulaic raises what it comes across
        first = (str(error).splitlines() or [""])[0]
        raise InputError(option, formula, f"a formula of {_UNDERSTOOD} ({first})", remedy) from error
    if left.strip():
        raise InputError(option, formula, "a formula without a response", remedy)
    terms, forced = [], set()
    for term in factors:
        names = []
        for expr, method in term:
            match = re.fullmatch(r"C\(`?([^`]+)`?\)", expr)
            if method == "literal":
                continue
            if match is None and method != "lookup":
                raise InputError(option, expr, _UNDERSTOOD, "Make a column of it, and name that.")
            names.append(match[1] if match else expr)
            forced |= {match[1]} if match else set()
        if names:
            terms.append(tuple(names))
    if not terms:
        raise InputError(option, formula, f"a formula of {_UNDERSTOOD}", remedy)
    return list(dict.fromkeys(terms)), forced


def check_columns(dataset: Dataset, columns: Sequence[str], option: str) -> None:
    """Refuse columns that the sample metadata do not have."""
    available = list(dataset.column_names)
    for name in columns:
        if name not in available:
            near = get_close_matches(name, available, n=1)
            expected = f"columns of the sample metadata: {', '.join(available) or 'there are none'}"
            remedy = f"Did you mean {near[0]}?" if near else "Write the dataset with {obs}, which has them."
            raise InputError(option, name, expected, remedy, **({} if near else {"obs": ...}))


def _coded_column(dataset: Dataset, name: str, option: str, most_levels: int, *, categories: bool) -> Column:
    if name not in dataset.column_names and re.search(r"[-+*:/^|]", name):
        raise InputError(
            option, name, "columns of the sample metadata, or a formula", f"As a formula: '~ {name}'."
        )
    check_columns(dataset, [name], option)
    values = dataset.obs_columns([name])[name]
    numbers = None if categories else plain_numbers(values)
    if numbers is not None:
        finite = numbers[np.isfinite(numbers)]
        if not finite.size or not finite.std() > 0.0:
            raise InputError(option, name, "a column that differs between samples", "Leave it out.")
        return Column(name, float(finite.mean()), float(finite.std()), digest=digest_column(numbers))
    labels = labels_of(values)
    levels = tuple(sorted(set(labels.tolist()) - {""}))
    if len(levels) < 2:
        raise InputError(option, name, "a column that differs between samples", "Leave it out.")
    if len(levels) > most_levels:
        raise InputError(
            option,
            f"{name}, of {len(levels)} levels",
            f"categories of at most {most_levels} levels",
            "Join levels, or leave it out: it would have a coefficient for every level and feature. "
            "Intercepts of the scores (random_intercepts) may have 600 levels.",
        )
    return Column(name, levels=levels, digest=digest_column(labels))


def plain_times(values: Any) -> pd.Series[Any] | None:
    """Return dates, in UTC without a zone, and durations; None of what is neither."""
    import pandas as pd

    series = pd.Series(values)
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        return series if series.dt.tz is None else series.dt.tz_convert("UTC").dt.tz_localize(None)
    return series if pd.api.types.is_timedelta64_dtype(series.dtype) else None


def plain_numbers(values: Any) -> NDArray[np.float64] | None:
    """Return numbers, days of dates and durations; None of what is none of these."""
    import pandas as pd

    series, times, kinds = pd.Series(values), plain_times(values), pd.api.types
    if times is not None:
        days = times - pd.Timestamp(0) if kinds.is_datetime64_dtype(times.dtype) else times
        return np.asarray(days.dt.total_seconds() / 86400.0, np.float64)
    if kinds.is_bool_dtype(series.dtype) or not kinds.is_numeric_dtype(series.dtype):
        return None
    return series.to_numpy(np.float64, na_value=np.nan)


def numbers_of(name: str, values: Any) -> NDArray[np.float64]:
    """Return a column of the sample metadata as numbers."""
    numbers = plain_numbers(values)
    if numbers is None:
        raise InputError(
            f"column {name} of the sample metadata",
            str(np.asarray(values)[0]) if len(values) else "text",
            "numbers, dates or durations",
            "Correct the column: pandas.to_datetime makes dates of text.",
        )
    return numbers


def labels_of(values: Any) -> NDArray[np.str_]:
    """Return categories as text, "" where missing."""
    import pandas as pd

    series = pd.Series(values)
    text = [text_of(value) if present else "" for value, present in zip(series, series.notna(), strict=True)]
    return np.asarray(text, dtype=str)
