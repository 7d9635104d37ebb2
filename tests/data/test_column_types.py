"""Columns of sample metadata come back with the types they were given with, from datasets and posteriors."""

from __future__ import annotations

import datetime
import decimal
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import factorflow as ff
from factorflow.data.store.column_types import decode, encode

N = 24
IDS = [f"s{i:02d}" for i in range(N)]
DAYS = pd.date_range("2020-01-01", periods=N, freq="36h")

NEW_TEXT = pd.StringDtype(na_value=np.nan) if "na_value" in signature(pd.StringDtype).parameters else "string"


def with_gap(values: Any) -> Any:
    found = pd.Series(values).copy()
    found[3] = None
    return found.array


COLUMNS: dict[str, Any] = {
    "dates": DAYS,
    "dates with a gap": with_gap(DAYS),
    "zoned": with_gap(DAYS.tz_localize("Europe/Berlin")),
    "clocks go back": pd.date_range("2020-10-24 20:00", periods=N, freq="h", tz="Europe/Berlin"),
    "seconds": np.array(["3020-01-01"] * N, "datetime64[s]"),
    "nanoseconds": pd.to_datetime(np.arange(N) + 1, unit="ns"),
    "days": with_gap(np.array([datetime.date(2020, 1, 1 + i) for i in range(N)], dtype=object)),
    "decimals": with_gap(np.array([decimal.Decimal(f"{i}.10") for i in range(N)], dtype=object)),
    "clock": with_gap(np.array([datetime.time(i, 5, 0, 7) for i in range(N)], dtype=object)),
    "durations": with_gap(pd.to_timedelta(np.arange(N) * 0.7 - 3, unit="D")),
    "levels": pd.Categorical(["b", "a"] * (N // 2), categories=["c", "b", "a"]),
    "ordered": with_gap(pd.Categorical(["I", "III"] * (N // 2), ["I", "II", "III"], ordered=True)),
    "plain levels": with_gap(pd.Categorical(["x", "y"] * (N // 2))),
    "numbers as levels": pd.Categorical([2, 10, 3] * (N // 3)),
    "truths as levels": pd.Categorical([True, False] * (N // 2)),
    "dates as levels": pd.Categorical(DAYS[:3].append([DAYS[:3]] * 7)),
    "cut": pd.cut(np.arange(N), 4),
    "intervals": with_gap(pd.arrays.IntervalArray.from_breaks(np.arange(N + 1.0), closed="left")),
    "quarters": with_gap(pd.period_range("2020Q1", periods=N, freq="Q")),
    "truths": np.arange(N) % 2 == 0,
    "truths with a gap": with_gap(pd.array([True, False] * (N // 2), dtype="boolean")),
    "nullable truths": pd.array([True, False] * (N // 2), dtype="boolean"),
    "integers": np.arange(N, dtype=np.int16),
    "nullable": with_gap(pd.array(range(N), dtype="Int32")),
    "nullable without a gap": pd.array(range(N), dtype="UInt8"),
    "identifiers": with_gap(pd.array(range(2**60 + 1, 2**60 + 1 + N), dtype="Int64")),
    "no integers": pd.array([None] * N, dtype="Int64"),
    "no truths": pd.array([None] * N, dtype="boolean"),
    "no dates": pd.to_datetime([None] * N),
    "no text": np.array([None] * N, dtype=object),
    "large": with_gap(pd.array(range(2**64 - N, 2**64), dtype="UInt64")),
    "large without a gap": np.arange(2**64 - N, 2**64, dtype=np.uint64),
    "floats": with_gap(pd.array(np.linspace(0, 1, N), dtype="Float64")),
    "text": np.array(["a", "b"] * (N // 2), dtype=object),
    "text with a gap": with_gap(np.array(["a", "b"] * (N // 2), dtype=object)),
    "empty text": np.array(["a", ""] * (N // 2), dtype=object),
    "strings": with_gap(pd.array(["a", "b"] * (N // 2), dtype="string")),
    "strings of pandas 3": with_gap(pd.array(["a", "b"] * (N // 2), dtype=NEW_TEXT)),
    "arrow": with_gap(pd.array(range(N), dtype="int64[pyarrow]")),
    "arrow's dates": with_gap(pd.Series(DAYS).astype("timestamp[us][pyarrow]")),
}
OBS = pd.DataFrame(COLUMNS, index=pd.Index(IDS, name="obs"))


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_comes_back(name: str) -> None:
    values, record = encode(OBS[name])
    assert values.dtype.kind in "biufO"
    found = pd.Series(decode(values, record), index=OBS.index, name=name)
    pd.testing.assert_series_equal(found, OBS[name])
    some = pd.Series(decode(values[:2], record), index=OBS.index[:2], name=name)
    if name != "plain levels":  # whose levels the values tell
        pd.testing.assert_series_equal(some, OBS[name][:2])


@pytest.mark.thorough
@pytest.mark.parametrize("out", [False, True])
def test_datasets_and_posteriors_keep_types(tmp_path: Path, out: bool) -> None:
    values = pd.DataFrame(np.random.default_rng(0).normal(size=(N, 4)), index=IDS)
    data = ff.write_dataset(tmp_path / "d.zarr", {"x": values}, obs=OBS)
    pd.testing.assert_frame_equal(data.obs, OBS)
    data.verify()
    model = ff.models.SparseGFA(n_factors=1, max_iter=2, warmup_iter=1, drop=0)
    posterior = ff.fit(data, model, out=tmp_path / "p.zarr" if out else None, progress=False)
    pd.testing.assert_frame_equal(posterior.sample_metadata(), OBS)
    posterior.save(tmp_path / "q.zarr")
    pd.testing.assert_frame_equal(ff.open_posterior(tmp_path / "q.zarr").sample_metadata(), OBS)
    for node in posterior.tree.subtree:
        for variable in node.variables.values():
            assert {type(value) for value in variable.attrs.values()} <= {str, int, float}
    with pytest.warns(UserWarning, match="columns not tested: 'seconds', 'clock', 'intervals'"):
        found = posterior.associate()
    tests = dict(zip(found["column"], found["test"], strict=True))
    for name in ("dates with a gap", "durations", "quarters", "days", "arrow's dates", "decimals"):
        assert tests[name] == "spearman"
    assert tests["truths with a gap"] == tests["ordered"] == "kruskal-wallis"
    assert {*tests} | {*found.attrs["not_tested"]} == {*OBS}


def test_tables_have_types(tmp_path: Path) -> None:
    """Text tables and Parquet: dates, durations, truth values and integers with gaps."""
    names = ["dates with a gap", "durations", "truths with a gap", "nullable", "identifiers", "integers"]
    OBS[names].to_csv(tmp_path / "o.csv")
    OBS[names].to_parquet(tmp_path / "o.parquet")
    values = pd.DataFrame(np.random.default_rng(0).normal(size=(N, 4)), index=IDS)
    for file in ("o.csv", "o.parquet"):
        obs = ff.write_dataset(tmp_path / "d", {"x": values}, obs=tmp_path / file, overwrite=True).obs
        kinds = [obs[name].dtype.kind for name in ("dates with a gap", "durations", "truths with a gap")]
        assert kinds == ["M", "m", "b"]
        pd.testing.assert_series_equal(obs["durations"], OBS["durations"], check_dtype=False)
        assert obs["identifiers"].dropna().map(str).tolist() == OBS["identifiers"].dropna().map(str).tolist()
    assert obs["nullable"].dtype == "Int32"
    assert obs["identifiers"].dtype == "Int64"


def test_a_time_soon_after_midnight_is_a_time() -> None:
    times = pd.to_datetime(["2020-01-01 00:00:05", "2020-01-01 00:00:00.5", "2020-01-02"], format="mixed")
    values, _ = encode(pd.Series(times))
    assert values.tolist() == ["2020-01-01 00:00:05", "2020-01-01 00:00:00.500000", "2020-01-02"]


def test_codes_are_looked_for_in_nullable_integers(tmp_path: Path) -> None:
    ages = pd.array([-9, *range(1, N)], dtype="Int64")
    with pytest.warns(ff.data.DataWarning, match="-9"):
        ff.write_dataset(
            tmp_path / "d", {"x": np.random.default_rng(0).normal(size=(N, 4))}, obs={"age": ages}
        )


def test_levels_of_one_text_are_text() -> None:
    values, record = encode(pd.Series(pd.Categorical([1, "1", 1])))
    assert (values.tolist(), record) == (["1", "1", "1"], None)


@pytest.mark.parametrize(
    ("values", "of", "expected"),
    [
        (["a", None, "b"], pa.dictionary(pa.int32(), pa.string()), pd.Categorical(["a", None, "b"])),
        ([decimal.Decimal("1.10"), None], pa.decimal128(9, 2), [decimal.Decimal("1.10"), None]),
        ([[1, 2], None], pa.list_(pa.int8()), ["[1 2]", None]),
    ],
)
def test_types_of_arrow_that_pandas_cannot_name(values: Any, of: Any, expected: Any) -> None:
    """The values come back, with their gaps, as another type."""
    column = pd.Series(pd.arrays.ArrowExtensionArray(pa.array(values, of)))
    pd.testing.assert_series_equal(pd.Series(decode(*encode(column))), pd.Series(expected))


def test_long_doubles_are_double_precision() -> None:
    values, record = encode(pd.Series(np.arange(3, dtype=np.longdouble)))
    assert (values.dtype, values.tolist(), record) == (np.float64, [0.0, 1.0, 2.0], None)


def test_a_record_that_is_not_known_is_no_failure() -> None:
    """Of a later version, or a zone that this machine does not have."""
    values = np.array(["2020-01-01 00:00:00+01:00"], dtype=object)
    assert decode(values, {"type": "color"}) is values
    assert decode(values, {"type": "datetime", "unit": "ns", "zone": "Mars/Olympus"}) is values
