"""Rows that agree in all variables become one, and nothing of their likelihood is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm, poisson

from factorflow.data import Dataset, write_table
from factorflow.data.tables import merge as merging
from factorflow.data.tables.merge import CellCodes

N = 500


@pytest.fixture
def table(rng: np.random.Generator) -> pd.DataFrame:
    """500 rows of at most 5 x 4 x 3 cells, in no order."""
    return pd.DataFrame(
        {
            "site": rng.choice(list("abcde"), N),
            "year": rng.integers(2000, 2004, N),
            "sex": rng.choice(["f", "m", "u"], N),
            "count": rng.poisson(3.0, N),
            "y": 20.0 + rng.standard_normal(N),
            "effort": np.exp(rng.standard_normal(N)),
            "shift": rng.standard_normal(N),
        }
    )


def columns(dataset: Dataset) -> dict[str, np.ndarray]:
    return {name: dataset.values(name).reshape(dataset.n_rows) for name in dataset.views}


def cells(dataset: Dataset) -> dict[tuple[str, ...], dict[str, float]]:
    """Return what every row has besides its levels, by these."""
    values, variables = columns(dataset), dataset.design.variables
    labels = [dataset.features(name)[values.pop(name)] for name in variables]
    rows = zip(*labels, strict=True)
    return {row: {name: float(v[i]) for name, v in values.items()} for i, row in enumerate(rows)}


def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the table into many runs, and these into many ranges."""
    monkeypatch.setattr(merging, "RUN_ROWS", 23)
    monkeypatch.setattr(merging, "MERGE_ROWS", 40)


@pytest.mark.parametrize("small", [False, True])
def test_counts_and_exposures_are_summed(
    tmp_path: Path, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    if small:
        cut_small(monkeypatch)
    dataset = write_table(tmp_path / "d", table, "count ~ site + year + sex + offset(log(effort))")
    expected = table.astype({"year": str}).groupby(["site", "year", "sex"])[["count", "effort"]].sum()
    found = cells(dataset)
    assert len(found) == dataset.n_rows == len(expected)
    for key, row in expected.iterrows():
        assert found[key]["count"] == row["count"]
        assert found[key]["exposure"] == pytest.approx(row["effort"], rel=1e-14)
    design = dataset.design
    assert design.aggregated
    assert design.n_merged == N - len(expected)
    assert (design.exposure, design.weight, design.within) == ("exposure", None, None)


def test_rows_are_sorted_by_their_levels(tmp_path: Path, table: pd.DataFrame) -> None:
    values = columns(write_table(tmp_path / "d", table, "count ~ site + year + sex"))
    codes = list(zip(values["site"], values["year"], values["sex"], strict=True))
    assert codes == sorted(set(codes))


def test_cells_do_not_depend_on_how_the_sort_was_cut(
    tmp_path: Path, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    formula = "count ~ site + year + sex"
    whole = columns(write_table(tmp_path / "a", table, formula))
    cut_small(monkeypatch)
    cut = columns(write_table(tmp_path / "b", table, formula))
    for name, values in whole.items():
        np.testing.assert_array_equal(cut[name], values)


def test_exposures_are_summed_in_the_order_of_the_table(tmp_path: Path, table: pd.DataFrame) -> None:
    """To the last bit: a sort that does not keep the order of equal rows would change it."""
    dataset = write_table(tmp_path / "d", table, "count ~ site + sex + offset(log(effort))")
    sorted_ = table.sort_values(["site", "sex"], kind="stable")
    starts = np.flatnonzero(~sorted_.duplicated(["site", "sex"]))
    expected = np.add.reduceat(sorted_["effort"].to_numpy(), starts)
    np.testing.assert_array_equal(dataset.values("exposure")[:, 0], expected)


@pytest.mark.parametrize("exposure", ["", " + offset(log(effort))", " + offset(shift)"])
def test_likelihood_of_counts(
    tmp_path: Path, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, exposure: str
) -> None:
    """Whatever the rates: the constant of the design makes up for the rest."""
    cut_small(monkeypatch)
    dataset = write_table(tmp_path / "d", table, f"count ~ site + sex{exposure}")
    t = {"": 1.0, " + offset(shift)": np.exp(table["shift"])}.get(exposure, table["effort"])
    values = columns(dataset)
    rates = np.random.default_rng(2).gamma(2.0, 1.0, (5, 3))
    site, sex = (pd.Categorical(table[name]).codes for name in ("site", "sex"))
    single = poisson.logpmf(table["count"], t * rates[site, sex]).sum()
    merged = poisson.logpmf(values["count"], values["exposure"] * rates[values["site"], values["sex"]]).sum()
    assert merged + dataset.design.constant == pytest.approx(single, rel=1e-12)
    if not exposure:
        assert values["exposure"].sum() == N  # rows


@pytest.mark.parametrize("offset", ["", " + offset(shift)", " + offset(log(effort))"])
def test_likelihood_of_a_normal_response(
    tmp_path: Path, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, offset: str
) -> None:
    """``log p = n (log density constant) - (within + n (mean - offset - f)^2) / 2 s^2`` of a cell."""
    cut_small(monkeypatch)
    dataset = write_table(tmp_path / "d", table, f"y ~ site + sex{offset}", "normal")
    design, values = dataset.design, columns(dataset)
    assert (design.weight, design.within, design.offset) == ("weight", "within", "offset" if offset else None)
    mean = np.random.default_rng(2).normal(20.0, 1.0, (5, 3))
    site, sex = (pd.Categorical(table[name]).codes for name in ("site", "sex"))
    o = {"": 0.0, " + offset(shift)": table["shift"]}.get(offset, np.log(table["effort"]))
    single = norm.logpdf(table["y"], o + mean[site, sex], 0.7).sum()
    e = values["y"] - values.get("offset", 0.0) - mean[values["site"], values["sex"]]
    squares = values["within"] + values["weight"] * e**2
    merged = (values["weight"] * norm.logpdf(0.0, 0.0, 0.7) - squares / (2 * 0.7**2)).sum()
    assert merged == pytest.approx(single, rel=1e-6)  # responses are float32
    assert values["weight"].sum() == N
    assert design.constant == 0.0


def test_squares_survive_a_mean_far_from_zero(
    tmp_path: Path, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of squares less squares of sums would leave nothing of a variance of 1 at a mean of 1e8."""
    cut_small(monkeypatch)
    far = table.assign(y=table["y"] + 1e8)
    near, moved = (
        columns(write_table(tmp_path / str(i), t, "y ~ site + sex", "normal"))
        for i, t in enumerate((table, far))
    )
    np.testing.assert_allclose(moved["within"], near["within"], rtol=1e-6)


def test_without_equal_rows_there_is_nothing_to_tell(tmp_path: Path, table: pd.DataFrame) -> None:
    once = table.drop_duplicates(["site", "year", "sex"])
    for kind, response in (("poisson", "count"), ("normal", "y")):
        dataset = write_table(tmp_path / kind, once, f"{response} ~ site + year + sex", kind)
        assert set(dataset.views) == {response, "site", "year", "sex"}
        assert not dataset.design.aggregated
        assert dataset.design.constant == 0.0


def test_unmerged_rows_keep_their_order(tmp_path: Path, table: pd.DataFrame) -> None:
    formula = "count ~ site + year + offset(log(effort))"
    dataset = write_table(tmp_path / "d", table, formula, merge=False)
    values = columns(dataset)
    np.testing.assert_array_equal(values["count"], table["count"])
    np.testing.assert_array_equal(values["exposure"], table["effort"])
    assert dataset.features("site")[values["site"]].tolist() == table["site"].tolist()
    assert dataset.features("year")[values["year"]].tolist() == table["year"].astype(str).tolist()
    assert not dataset.design.aggregated


def test_more_cells_than_a_word_can_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven variables of 1000 levels: 10^21 combinations."""
    cut_small(monkeypatch)
    rng = np.random.default_rng(0)
    names = list("abcdefg")
    base = pd.DataFrame({name: rng.permutation(1000) for name in names})
    table = pd.concat([base, base.sample(300, random_state=1)]).assign(count=1)
    dataset = write_table(tmp_path / "d", table, "count ~ " + " + ".join(names))
    assert dataset.n_rows == 1000
    found = pd.DataFrame(columns(dataset))
    merged = table.groupby(names)["count"].sum().reset_index()
    pd.testing.assert_frame_equal(found[[*names, "count"]], merged, check_dtype=False)


@pytest.mark.parametrize("sizes", [(3,), (4, 5, 6), (10**6, 10**6, 10**6, 10**6), (10**9, 10**9, 2, 10**9)])
def test_packing_has_an_inverse(sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    packing = CellCodes.of(sizes)
    codes = [np.append(rng.integers(-1, n, 50), [-1, n - 1]).astype(np.int32) for n in sizes]
    words = packing.pack(codes)
    assert all((word >= 0).all() for word in words)
    for variable, code in enumerate(codes):
        np.testing.assert_array_equal(packing.unpack(words, variable), code)
