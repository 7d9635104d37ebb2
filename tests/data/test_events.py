"""Times to an event at ingest: columns time and event become one feature of times, some of them censored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow
from factorflow.errors import InputError
from factorflow.likelihoods import get_likelihood
from factorflow.likelihoods.survival import Survival, baseline_hazard, event_intervals


def frame(n: int = 100) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    names = [f"p{i}" for i in range(n)]
    times = pd.DataFrame({"event": rng.random(n) < 0.7, "time": rng.exponential(size=n)}, index=names)
    times["event"] = times["event"].astype(object)
    times.iloc[5] = None
    times.loc["p7", "time"] = 0.0
    return times


def write(path: Path, times: Any, **options: Any) -> Any:
    n = len(times)
    names = list(getattr(times, "index", [f"p{i}" for i in range(n)]))
    rna = pd.DataFrame(np.random.default_rng(1).standard_normal((n, 4)), index=names)
    views = {"rna": rna, "death": times}
    options = {"likelihoods": {"death": "survival"}, "overwrite": True, "block_rows": 16, **options}
    return factorflow.write_dataset(path / "d.zarr", views, **options)


def stored(data: Any) -> tuple[np.ndarray, np.ndarray]:
    parts = [data.block(i).data for i in range(data.n_blocks)]
    return tuple(np.concatenate([part[key] for part in parts])[:, 0] for key in ("death", "death/censored"))  # type: ignore[return-value]


def test_columns_of_any_order_or_a_file_or_without_names(tmp_path: Path) -> None:
    times = frame()
    data = write(tmp_path, times)
    assert list(data.features("death")) == ["time"]
    assert "survival" in str(data)
    assert "hazards" not in str(data)
    time, censored = stored(data)
    expected = times["time"].to_numpy(float)
    np.testing.assert_allclose(time, expected, rtol=1e-6)
    event = times["event"].to_numpy() == 1
    np.testing.assert_array_equal(censored, np.where(np.isnan(expected), 0, ~event))
    times.to_csv(tmp_path / "death.csv")
    plain = np.column_stack([expected, times["event"].astype(float)])
    for other in (tmp_path / "death.csv", plain):
        if isinstance(other, Path):
            rna = pd.DataFrame(np.arange(400.0).reshape(100, 4), index=times.index)
            views: Any = {"rna": rna, "death": other}
            again = factorflow.write_dataset(
                tmp_path / "e.zarr", views, {"death": "survival"}, block_rows=16, overwrite=True
            )
        else:
            again = write(tmp_path, other, samples={"death": list(times.index)})
        for a, b in zip(stored(again), (time, censored), strict=True):
            np.testing.assert_array_equal(a, b)


def test_intervals_and_hazards_are_those_of_all_rows(tmp_path: Path) -> None:
    data, n = write(tmp_path, frame()), 100
    time, censored = stored(data)
    seen = ~np.isnan(time)
    time, event = time[seen].astype(np.float64), 1.0 - censored[seen]
    density = get_likelihood(data.views["death"].default_likelihood)
    assert isinstance(density, Survival)
    edges = event_intervals(time, event)
    assert len(edges) == 4
    np.testing.assert_allclose(density.edges[1:], edges, rtol=1e-6)
    np.testing.assert_allclose(np.exp(density.log_hazards), baseline_hazard(edges, time, event), rtol=1e-5)
    start = density.start(time, 1.0 - event)
    assert abs(start.sum()) < 0.6  # half an event is added
    assert n * 0.6 < n - (~seen).sum()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"time": -1.0}, "time of sample 'p3', view 'death' = -1.0: expected a time of 0 or more"),
        ({"event": 2.0}, "event of sample 'p3', view 'death' = 2.0: expected 1 where the event was seen"),
        ({"event": np.nan}, "event of sample 'p3', view 'death' = nan"),
    ],
)
def test_entries_that_are_no_times_or_events_are_refused(
    change: dict[str, float], match: str, tmp_path: Path
) -> None:
    times = frame().astype(float)
    times.loc["p3", list(change)] = list(change.values())
    with pytest.raises(InputError, match=match):
        write(tmp_path, times)


def test_other_columns_and_limits_are_refused(tmp_path: Path) -> None:
    times = frame().astype(float)
    with pytest.raises(InputError, match=r"a view of event, months: expected columns time and event"):
        write(tmp_path, times.rename(columns={"time": "months"}))
    with pytest.raises(InputError, match="survival with limits or trials"):
        write(tmp_path, times, limits={"death": (0.1, None)})


def test_all_censored_can_be_written_and_not_fitted(tmp_path: Path) -> None:
    """Samples to be predicted may be so."""
    data = write(tmp_path, frame().astype(float).assign(event=0.0).dropna())
    with pytest.raises(InputError, match="survival for view death: .* with an event at least"):
        factorflow.fit(data, n_factors=2, progress=False)
    plain = factorflow.write_dataset(tmp_path / "p", {"rna": np.random.default_rng(0).random((50, 3))})
    with pytest.raises(InputError, match="written as survival, with an event at least"):
        factorflow.fit(plain, n_factors=2, likelihoods="survival", progress=False)
