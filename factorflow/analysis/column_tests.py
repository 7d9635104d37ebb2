"""The tests of one column of sample metadata: which suits it, alone and beside other columns."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.levels import DATE, DURATION
from factorflow.data.store.column_types import without_arrow
from factorflow.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

MIN_GROUP = 3
"""Samples that a category must have to take part in a test."""

FEW_LEVELS = 12
"""Whole numbers with at most this many distinct values are codes of categories."""

MAX_LEVELS = 0.5
"""Text columns with more distinct values than this share of the samples are names, not categories."""

NO_TEST = float("nan"), 1.0
"""Statistic and p-value of scores that do not vary."""

EXACT = 1 << 53
"""The largest integer up to which float64 tells all apart."""

OBJECTS_OF_NUMBERS = "decimal", "floating", "integer", "mixed-integer-float"
"""What pandas calls columns of objects that hold numbers, and nothing else but what is missing."""

ROUNDING = 1e-10
"""A column of which the adjustment leaves less than this share of its squares is determined by it."""


def test_of(values: NDArray[Any]) -> Any:
    """Return the test that suits a column, a function of scores; None when no test does."""
    from scipy.stats import kruskal, spearmanr

    if values.dtype.kind in "iuf" and not is_code(values):
        observed = np.isfinite(values.astype(float))
        if observed.sum() < MIN_GROUP or np.ptp(values[observed]) == 0:
            return None

        def by_rank(scores: NDArray[Any]) -> dict[str, Any]:
            mine = scores[observed]
            statistic, p_value = spearmanr(mine, values[observed]) if np.ptp(mine) > 0 else NO_TEST
            return {
                "test": "spearman",
                "n": int(observed.sum()),
                "statistic": float(statistic),
                "effect": float(statistic),
                "p_value": float(p_value),
            }

        return by_rank
    text = np.where(_present_mask(values), np.array([str(value) for value in values.tolist()]), "")
    levels, counts = np.unique(text, return_counts=True)
    usable = [level for level, count in zip(levels, counts, strict=True) if level and count >= MIN_GROUP]
    if len(usable) < 2 or len(levels) > MAX_LEVELS * len(text):
        return None

    def by_category(scores: NDArray[Any]) -> dict[str, Any]:
        groups = [scores[text == level] for level in usable]
        n = sum(len(group) for group in groups)
        statistic, p_value = kruskal(*groups) if np.ptp(np.concatenate(groups)) > 0 else NO_TEST
        return {
            "test": "kruskal-wallis",
            "n": n,
            "statistic": float(statistic),
            "effect": float(statistic) / (n - 1),
            "p_value": float(p_value),
        }

    return by_category


def as_numbers(column: pd.Series[Any]) -> NDArray[Any]:
    """Return numbers, dates and durations as float64, all else as objects, None where missing.

    Dates and durations may be text.
    """
    import pandas as pd

    column = without_arrow(column)
    kind = getattr(column.dtype, "kind", "O")
    if kind in "iu" and column.notna().any():
        low, high = int(column.min()), int(column.max())
        if max(high, -low) > EXACT and high - low < 1 << 63:  # told apart as float64; all have 64 bits
            column = column - column.min()
    if kind in "iuf":
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.start_time
    if kind == "O":
        if holds_numbers(column):
            return column.astype("Float64").to_numpy(np.float64, na_value=np.nan)
        column = _read_times(column)
    if getattr(column.dtype, "kind", "O") not in "mM":
        plain = column.astype(object)
        return plain.where(plain.notna(), None).to_numpy(dtype=object)
    return np.asarray((column - column.min()) / pd.Timedelta(1, "s"), dtype=np.float64)


def holds_numbers(column: pd.Series[Any]) -> bool:
    """Return whether a column of objects holds numbers, and nothing else but what is missing."""
    import pandas as pd

    return pd.api.types.infer_dtype(column, skipna=True) in OBJECTS_OF_NUMBERS


def _read_times(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column of text as dates or durations if every entry is one."""
    import pandas as pd

    as_objects = column.astype(object)
    as_objects = as_objects[as_objects.notna() & (as_objects != "")]
    texts = [value for value in as_objects if isinstance(value, str)]
    dates = [value for value in as_objects if isinstance(value, datetime.date)]
    if len(as_objects) > max(len(texts), len(dates)) or not len(as_objects):
        return column
    try:
        if dates:
            return pd.to_datetime(as_objects, utc=True).reindex(column.index)
        if all(DATE.fullmatch(text) for text in texts):
            return pd.to_datetime(as_objects, format="ISO8601", utc=True).reindex(column.index)
        if all(DURATION.fullmatch(text) for text in texts):
            return pd.to_timedelta(as_objects).reindex(column.index)
    except ValueError:  # 2020-13-01
        pass
    return column


def is_code(values: NDArray[Any]) -> bool:
    """Return whether numbers look like codes of a few categories, with samples enough for tests."""
    observed = values[np.isfinite(values.astype(float))]
    n_levels = len(np.unique(observed))
    few = n_levels <= FEW_LEVELS and n_levels * MIN_GROUP <= len(observed)
    return few and bool((observed == np.round(observed)).all())


@dataclass(frozen=True)
class Adjustment:
    """Columns whose effects are taken out of scores and columns before these are compared.

    Parameters
    ----------
    known : (N,) bool array
        Samples with a value in all of them.
    covariates : tuple of (N,) array
        As `as_numbers` returns them.
    blocks : (N,) int array, or None
        Number of the block of each sample.
    """

    known: NDArray[np.bool_]
    covariates: tuple[NDArray[Any], ...]
    blocks: NDArray[np.int64] | None

    @classmethod
    def of(cls, table: pd.DataFrame, adjust: Sequence[str], blocks: str | None) -> Adjustment:
        """Return that for columns of a table."""
        import pandas as pd

        covariates = tuple(as_numbers(table[name]) for name in adjust)
        complete = np.ones(len(table), bool)
        for values in covariates:
            complete &= _present_mask(values)
        codes = None
        if blocks is not None:
            codes = np.asarray(pd.factorize(table[blocks])[0], np.int64)
            complete &= _present_mask(as_numbers(table[blocks]))
        if complete.sum() <= MIN_GROUP:
            expected = f"more than {MIN_GROUP} samples with a value in all of them"
            raise InputError("adjust, blocks", f"{complete.sum()} samples", expected, "Leave one out.")
        return cls(complete, covariates, codes)

    def design(self, observed: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return ranks of numbers, and indicators of categories, (n, Q), among some of the samples."""
        from scipy.stats import rankdata

        parts = [np.empty((int(observed.sum()), 0))]
        for values in self.covariates:
            own, is_number = values[observed], values.dtype.kind in "iuf" and not is_code(values)
            parts.append(rankdata(own)[:, None] if is_number else _indicators(own, _present_mask(own)))
        return np.hstack(parts)

    def test_of(self, values: NDArray[Any]) -> Any:
        """Return the test that suits a column, a function of scores; None when no test does."""
        from scipy.stats import f, rankdata
        from scipy.stats import t as student

        observed = _present_mask(values) & self.known
        is_number = values.dtype.kind in "iuf" and not is_code(values)
        if is_number:
            own = rankdata(values[observed])[:, None]
        else:
            if test_of(values) is None:
                return None
            levels, counts = np.unique([str(value) for value in values[observed]], return_counts=True)
            usable = set(levels[counts >= MIN_GROUP])
            observed &= np.array([str(value) in usable for value in values.tolist()])
            own = _indicators(values[observed], np.ones(int(observed.sum()), bool))
        basis, n_taken = self._basis(observed)
        left = self._without(own, basis, observed)
        scale = np.maximum((own - own.mean(0)) ** 2, 0).sum()
        rank = int((np.linalg.svd(left, compute_uv=False) ** 2 > ROUNDING * max(scale, 1.0)).sum())
        n_free = len(left) - n_taken - rank
        if not rank or n_free < 1:
            return None

        def compare(scores: NDArray[Any]) -> dict[str, Any]:
            ranks = self._without(rankdata(scores[observed])[:, None], basis, observed)[:, 0]
            whole = float(ranks @ ranks)
            fitted = left @ np.linalg.lstsq(left, ranks, rcond=None)[0]
            share = min(float(fitted @ ranks) / whole, 1.0) if whole > 0 else 0.0
            result = {"n": int(observed.sum())}
            with np.errstate(divide="ignore"):
                ratio = float(np.divide(share / rank, (1.0 - share) / n_free))
            if is_number:
                effect = float(np.sign(left[:, 0] @ ranks) * np.sqrt(share))
                statistic = float(np.sign(effect) * np.sqrt(ratio))
                p_value = float(2.0 * student.sf(abs(statistic), n_free))
                return {
                    "test": "partial spearman",
                    **result,
                    "statistic": statistic,
                    "effect": effect,
                    "p_value": p_value,
                }
            return {
                "test": "rank ancova",
                **result,
                "statistic": ratio,
                "effect": share,
                "p_value": float(f.sf(ratio, rank, n_free)),
            }

        return compare

    def _basis(self, observed: NDArray[np.bool_]) -> tuple[NDArray[np.float64], int]:
        """Return an orthonormal basis of the design less the means of blocks, and the degrees of both."""
        centered = _center(self.design(observed), None if self.blocks is None else self.blocks[observed])
        left, size, _ = np.linalg.svd(centered, full_matrices=False)
        independent = size > 1e-9 * max(float(size.max(initial=0.0)), 1e-300)
        n_means = 1 if self.blocks is None else len(np.unique(self.blocks[observed]))
        return left[:, independent], n_means + int(independent.sum())

    def _without(self, values: NDArray[Any], basis: Any, observed: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return what the adjustment leaves of columns."""
        centered = _center(values, None if self.blocks is None else self.blocks[observed])
        return np.asarray(centered - basis @ (basis.T @ centered))


def _center(values: NDArray[Any], blocks: NDArray[np.int64] | None) -> NDArray[np.float64]:
    """Return columns less their means, or those within blocks."""
    if blocks is None:
        return np.asarray(values - values.mean(axis=0))
    codes = np.unique(blocks, return_inverse=True)[1]
    sums = np.zeros((codes.max(initial=-1) + 1, values.shape[1]))
    np.add.at(sums, codes, values)
    return np.asarray(values - (sums / np.bincount(codes)[:, None])[codes])


def _indicators(values: NDArray[Any], observed: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return a column of zeros and ones for each level but the first; 0 where there is none."""
    text = np.array(
        [str(value) if there else "" for value, there in zip(values.tolist(), observed, strict=True)]
    )
    levels = np.unique(text[observed])
    return np.asarray(text[:, None] == levels[None, 1:], np.float64)


def _present_mask(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which entries of what `as_numbers` returns are there."""
    if values.dtype.kind in "iuf":
        return np.asarray(np.isfinite(values.astype(float)))
    return np.array([value is not None and value != "" for value in values.tolist()], bool)
