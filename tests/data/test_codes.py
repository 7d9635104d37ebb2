"""Numbers that probably stand for missing entries are named at ingest; those of real measurements are not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from factorflow.data import DataWarning, write_dataset

RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(3, (60, 10))
BINARY = (RNG.random((60, 10)) < 0.4).astype(int)
SCALE = RNG.integers(1, 6, (60, 10))


def with_entries(values: Any, value: float, n: int = 1) -> Any:
    """Return the values with ``n`` of them replaced, the first of sample 7 and feature 4."""
    values = values.copy()
    values[7, 4] = value
    values.flat[85 : 85 + 13 * (n - 1) : 13] = value
    return values


def said_of(values: Any, path: Path, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        write_dataset(path, values, overwrite=True, **options)
    return [str(w.message) for w in caught if issubclass(w.category, DataWarning)]


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("value", [-1, -3])
@pytest.mark.parametrize("values", [COUNTS, BINARY], ids=["counts", "binary"])
def test_one_negative_number_makes_a_view_gaussian(
    values: Any, value: int, in_file: bool, tmp_path: Path
) -> None:
    frame = pd.DataFrame(with_entries(values, value), [f"s{i}" for i in range(60)]).add_prefix("f")
    form: Any = {"x": frame}
    if in_file:
        frame.to_csv(tmp_path / "x.csv")
        form = tmp_path / "x.csv"
    (said,) = said_of(form, tmp_path / "d")
    assert f"{value} of sample 's7', feature 'f4': it is modelled as gaussian" in said
    assert f"na_values=[{value}]" in said
    assert not said_of(form, tmp_path / "d", na_values=value)
    chosen = said_of(form, tmp_path / "d", likelihoods={"x": "gaussian"})
    assert not [text for text in chosen if "modelled as" in text]


CODES = {
    "-1 among counts": (with_entries(COUNTS, -1, 30), -1),
    "-1 among amounts": (with_entries(RNG.uniform(3, 30, (60, 10)), -1.0), -1),
    "99 on a scale": (with_entries(SCALE, 99), 99),
    "-8 on a scale": (with_entries(SCALE, -8, 30), -8),
    "-77.5": (with_entries(RNG.normal(size=(60, 10)), -77.5, 2), -77.5),
}


@pytest.mark.parametrize("case", CODES)
def test_far_from_all_others(case: str, tmp_path: Path) -> None:
    values, code = CODES[case]
    n = int((values == code).sum())
    told = [text for text in said_of({"x": values}, tmp_path / "d") if f"na_values=[{code}]" in text]
    assert f"{n} {'entry' if n == 1 else 'entries'} of {code} in" in told[0]
    assert not said_of({"x": values}, tmp_path / "d", na_values=code)


@pytest.mark.parametrize("case", ["-1 among amounts", "99 on a scale"])
def test_far_from_all_others_in_metadata(case: str, tmp_path: Path) -> None:
    values, code = CODES[case]
    obs = pd.DataFrame({"a": values[:, 4], "b": 1000 * np.arange(60)})
    (said,) = said_of({"x": COUNTS}, tmp_path / "d", obs=obs)
    assert f"obs: 1 entry of {code} in 'a'" in said


RIGHT = {
    "copy numbers": RNG.choice([-2, -1, 0, 1, 2], (60, 10)),
    "losses": RNG.choice([-2, 0, 1], (60, 10), p=[0.05, 0.9, 0.05]),
    "signs": RNG.choice([-1, 1], (60, 10)),
    "rounded": np.round(RNG.normal(0, 2, (60, 10))),
    "rare counts": with_entries(RNG.negative_binomial(0.3, 0.02, (60, 10)), 99),
    "constant column": np.where(np.arange(10) == 4, 1e9, RNG.normal(size=(60, 10))),
    "few entries": np.tile([[0], [1], [2**20]], 2),
    "normal": RNG.normal(size=(60, 10)),
    "sparse": with_entries(np.where(RNG.random((60, 10)) < 0.05, 1, 0), 3, 3),
}


@pytest.mark.parametrize("case", RIGHT)
def test_right_as_they_are(case: str, tmp_path: Path) -> None:
    assert not [text for text in said_of({"x": RIGHT[case]}, tmp_path / "d") if "constant (" not in text]
