"""Kinds of views: validation, storage, encoding and masking of their entries.

A view holds values that a model explains (gaussian, bernoulli, poisson), or inputs that it is given: a
categorical variable, whose levels are the features of its axis, or covariates (exposure, offset, time, dose).
Everything that follows from the kind alone is decided here; what a likelihood means stays with the models.

| kind | role | in a `Block` | missing there | on disk | missing there |
|---|---|---|---|---|---|
| gaussian | values | (B, D) as on disk | NaN | float32; float64 where that rounds off too much | NaN |
| bernoulli | values | (B, D) int8, 0 and 1 | -1 | int8 | 0, and False in a mask |
| poisson | values | (B, D) float32 | NaN | the smallest of uint8, uint16, uint32 | 0, and False in a mask |
| categorical | input | (B,) int32, codes of levels | -1 | the smallest of int8, int16, int32 | -1 |
| covariate | input | (B, D) float64 | NaN | float64 | NaN |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from factorflow.errors import InputError

LARGEST_COUNT = 2**32 - 1
"""Largest count that can be stored."""


LARGEST = float(np.finfo(np.float32).max)
"""Largest size of a measurement: kernels work in single precision."""

LEAST_ENTRY = 4
"""Bytes that an entry is taken to need at work: those of the float32 that kernels make of it."""


class ValueSummary(Protocol):
    """Summary statistics of all values of a view; (D,) arrays over its features."""

    n_observed: NDArray[np.int64]
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    integers: bool

    @property
    def n_zero(self) -> int:
        """Observed entries equal to zero."""
        ...


@dataclass(frozen=True)
class Kind:
    """A kind of view.

    Parameters
    ----------
    name : str
        As in `ViewMeta.likelihood`.
    role : {"values", "input"}
        What a model explains, or what it is given. Only values can be held out.
    missing : float
        What stands for a missing entry in a block.
    raw : str
        Type of a block as a source hands it over, before it is encoded (of values: float32 where that holds
        the type of the source); missing entries as in a block (NaN in that of an integer type).
    """

    name: str
    role: Literal["values", "input"]
    dtype: str
    missing: float
    raw: str
    fits: str

    coded: ClassVar[bool] = False
    """Whether a block holds one code a row, (B,), that says which of the view's features it has."""

    masked: ClassVar[bool] = False
    """Whether missing entries are told on disk by a mask beside the values."""

    rounded: ClassVar[bool] = False
    """Whether values are stored in single precision, or in double where they differ too little for that."""

    by_size: ClassVar[bool] = False
    """Whether the type on disk depends on the largest value: a view is then read before it is written."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return _kind_by_name, (self.name,)  # a copy would not be equal: NaN is not

    @property
    def is_values(self) -> bool:
        """Whether it is explained by models, and may be held out."""
        return self.role == "values"

    # In a block

    @property
    def entry_bytes(self) -> int:
        """Bytes of an entry in a block."""
        return np.dtype(self.dtype).itemsize

    def shape(self, n_rows: int, n_features: int) -> tuple[int, ...]:
        """Return the shape of ``n_rows`` rows of a view: (B, D), or (B,) of codes."""
        return (n_rows,) if self.coded else (n_rows, n_features)

    def row_entries(self, n_features: int) -> int:
        """Return the entries of a row in a block."""
        return 1 if self.coded else n_features

    def row_bytes(self, n_features: int) -> int:
        """Return the bytes of a row in a block."""
        return self.entry_bytes * self.row_entries(n_features)

    def work_bytes(self, n_features: int) -> int:
        """Return the bytes per row that determine the size of blocks: at least four per entry."""
        return max(LEAST_ENTRY, self.entry_bytes) * self.row_entries(n_features)

    def blank(self, n_rows: int, n_features: int) -> NDArray[Any]:
        """Return rows in which every entry is missing, as a block holds them."""
        return np.full(self.shape(n_rows, n_features), self.missing, self.dtype)

    def reindex(self, values: Any, ours: Any, theirs: Any, n_features: int) -> NDArray[Any]:
        """Return rows with the features in another order; what they lack is missing.

        Parameters
        ----------
        values : (B, D') or (B,) array
            As a block holds them.
        ours, theirs : (J,) int arrays
            Of the features that are on both sides, the positions wanted and those in ``values``.
        n_features : int
            Features wanted (D).
        """
        out = np.full(self.shape(len(values), n_features), self.missing, values.dtype)
        out[:, ours] = values[:, theirs]
        return out

    def observed(self, values: Any) -> Any:
        """Return where the entries of a block are observed, a bool array of its shape and namespace."""
        return values == values if np.dtype(self.dtype).kind == "f" else values >= 0

    def fill_missing(self, values: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the values of a block with 0 where they are missing, and 1.0 where they are not."""
        observed = self.observed(values)
        return np.where(observed, values, 0.0).astype(np.float64), observed.astype(np.float64)

    # On its way to disk and back

    def storage_dtype(self, largest: float | None = None) -> np.dtype[Any]:
        """Return the type on disk, given the largest value (`by_size`) or code."""
        return np.dtype(self.dtype)

    def in_block(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type of an entry in a block, given that on disk."""
        return stored if self.rounded else np.dtype(self.dtype)

    def encode(self, values: Any, missing: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a raw block as it is stored; ``missing``: where its entries are, None: nowhere."""
        return np.ascontiguousarray(values, dtype=dtype)

    def decode(self, stored: NDArray[Any], observed: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        """Return what was stored as a block holds it, C-contiguous; ``stored`` may be changed.

        Parameters
        ----------
        stored : (B, D) or (B,) array
            Of the type on disk.
        observed : (B, D) bool array, optional
            The mask; None: all are.
        """
        values = stored.astype(self.in_block(stored.dtype), copy=False)
        if observed is not None:
            values[~observed] = self.missing
        return values

    def recoded(self, survey: ValueSummary) -> dict[str, int]:
        """Return values that are recoded on disk: text of the value to its code."""
        return {}

    # What fits

    def invalid(self, values: Any) -> NDArray[np.bool_] | None:
        """Return where the values of a raw block are refused; None: nowhere."""
        if not values.size or max(-values.min(), values.max()) <= LARGEST:  # False of NaN
            return None
        infinite = np.abs(values) > LARGEST
        return infinite if infinite.any() else None

    def conflicts(self, survey: ValueSummary) -> str | None:
        """Return values that fit one by one, but not together, in words; None: there are none."""
        return None

    def guessed(self, survey: ValueSummary) -> bool:
        """Whether finite values without a given likelihood look like this kind."""
        return False


@dataclass(frozen=True)
class _Gaussian(Kind):
    rounded = True


@dataclass(frozen=True)
class _Bernoulli(Kind):
    masked = True

    def in_block(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type of an entry in a block, given that on disk."""
        return stored if self.rounded else np.dtype(self.dtype)

    def encode(self, values: Any, missing: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
        return np.asarray(values > 0, dtype=dtype)

    def recoded(self, survey: ValueSummary) -> dict[str, int]:
        return {"-1": 0} if survey.minimum.min() < 0 else {}

    def invalid(self, values: Any) -> NDArray[np.bool_] | None:
        bad = ~((values == 0) | (np.abs(values) == 1) | np.isnan(values))
        return bad if bad.any() else None

    def conflicts(self, survey: ValueSummary) -> str | None:
        return "-1, 0 and 1" if survey.minimum.min() < 0 and survey.n_zero > 0 else None

    def guessed(self, survey: ValueSummary) -> bool:
        low, high = _range(survey)
        signs = low == -1 and high == 1 and survey.n_zero == 0
        return survey.integers and ((low >= 0 and high <= 1) or signs)


@dataclass(frozen=True)
class _Poisson(Kind):
    masked = True
    by_size = True

    def storage_dtype(self, largest: float | None = None) -> np.dtype[Any]:
        if largest is None:
            raise ValueError("the type on disk of counts needs the largest of them")
        return np.min_scalar_type(int(max(0.0, largest)))

    def in_block(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type of an entry in a block, given that on disk."""
        return stored if self.rounded else np.dtype(self.dtype)

    def encode(self, values: Any, missing: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
        return np.asarray(values if missing is None else np.where(missing, 0, values), dtype=dtype)

    def invalid(self, values: Any) -> NDArray[np.bool_] | None:
        with np.errstate(invalid="ignore"):
            whole = (np.floor(values) == values) & (values >= 0) & (values <= LARGEST_COUNT)
        bad = ~(whole | np.isnan(values))
        return bad if bad.any() else None

    def guessed(self, survey: ValueSummary) -> bool:
        low, high = _range(survey)
        return survey.integers and 0 <= low and high <= LARGEST_COUNT


@dataclass(frozen=True)
class _Categorical(Kind):
    coded = True

    def storage_dtype(self, largest: float | None = None) -> np.dtype[Any]:
        if largest is None:
            raise ValueError("the type on disk of codes needs the largest of them")
        return next(t for t in map(np.dtype, ("int8", "int16", "int32")) if largest <= np.iinfo(t).max)

    def invalid(self, values: Any) -> NDArray[np.bool_] | None:
        return None  # codes are made at ingest

    def reindex(self, values: Any, ours: Any, theirs: Any, n_features: int) -> NDArray[Any]:
        """Return codes of the levels wanted; one that is not among them is missing."""
        size = max(int(values.max(initial=-1)), int(theirs.max(initial=-1))) + 2
        new_codes = np.full(size, self.missing, values.dtype)
        new_codes[theirs] = ours  # a missing code finds the last one
        return np.asarray(new_codes[values])


def _range(survey: ValueSummary) -> tuple[float, float]:
    """Return the smallest and the largest observed value; NaN where there is none."""
    some = survey.n_observed > 0
    if not some.any():
        return np.nan, np.nan
    return float(survey.minimum[some].min()), float(survey.maximum[some].max())


def _kind_by_name(name: str) -> Kind:
    return KINDS[name]


_COUNTS = f"whole numbers from 0 to {LARGEST_COUNT}, NaN where an entry is missing"

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        _Gaussian("gaussian", "values", "float32", np.nan, "float64", "finite numbers"),
        _Bernoulli(
            "bernoulli",
            "values",
            "int8",
            -1,
            "float64",
            "0 and 1 (or -1 and 1), NaN where an entry is missing",
        ),
        _Poisson("poisson", "values", "float32", np.nan, "float64", _COUNTS),
        _Categorical("categorical", "input", "int32", -1, "int32", "one label a sample: text or numbers"),
        Kind("covariate", "input", "float64", np.nan, "float64", "finite numbers"),
    )
}
"""Every kind by its name."""

VALUES = tuple(name for name, kind in KINDS.items() if kind.is_values)
"""Names of the kinds that models explain: likelihoods."""

INPUTS = tuple(name for name, kind in KINDS.items() if not kind.is_values)
"""Names of the kinds that models are given."""


def kind_of(view: str, name: str) -> Kind:
    """Return the kind of a view by name."""
    if name not in KINDS:
        raise InputError(
            f"likelihood of view {view!r}",
            name,
            f"one of {', '.join(KINDS)}",
            "Leave it out to have it guessed.",
        )
    return KINDS[name]


def guess(survey: ValueSummary) -> Kind:
    """Return the kind that values suggest: two values, whole numbers from 0 on, or any numbers."""
    candidates = (KINDS["bernoulli"], KINDS["poisson"])
    return next((kind for kind in candidates if kind.guessed(survey)), KINDS["gaussian"])
