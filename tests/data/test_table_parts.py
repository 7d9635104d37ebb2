"""Parts of a table, grids, and new rows coded with the levels of a dataset."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import poisson
from table_model import ProductTable

from factorflow import fit
from factorflow.data import Dataset, DataWarning, Holdout, open_dataset, write_table
from factorflow.data.tables import assemble
from factorflow.data.tables.encode import encode_blocks
from factorflow.errors import InputError

N = 600
FORMULA = "count ~ site + year + offset(log(effort))"


@pytest.fixture
def table(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "site": rng.choice(list("abcde"), N),
            "year": rng.integers(2000, 2004, N),
            "count": rng.poisson(3.0, N),
            "effort": np.exp(rng.standard_normal(N)),
            "depth": rng.gamma(1.0, 1.0, N),
        }
    )


def levels_of(dataset: Dataset) -> dict[str, list[str]]:
    return {view: dataset.features(view).tolist() for view in dataset.design.variables}


# Parts


def test_two_parts_make_the_whole(tmp_path: Path, table: pd.DataFrame) -> None:
    """Rows are held out one by one, before any are merged: a cell has rows in both parts."""
    kept = write_table(tmp_path / "a", table, FORMULA, holdout=0.3, seed=4, part="kept")
    rest = write_table(
        tmp_path / "b", table, FORMULA, holdout=0.3, seed=4, part="held out", like=kept, merge=False
    )
    assert kept.values("count").sum() + rest.values("count").sum() == table["count"].sum()
    assert kept.design.n_held_out == rest.n_rows
    assert rest.design.n_held_out == N - rest.n_rows
    assert 0.2 < rest.n_rows / N < 0.4
    assert kept.n_rows == 20
    assert levels_of(rest) == levels_of(kept)


@pytest.mark.thorough
def test_parts_do_not_depend_on_the_form_of_the_source(
    tmp_path: Path, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("factorflow.data.ingest.text.BLOCK_BYTES", 1000)
    table.to_csv(tmp_path / "t.csv", index=False)
    options: dict[str, Any] = {"holdout": 0.3, "seed": 4}
    one = write_table(tmp_path / "a", table, FORMULA, **options)
    two = write_table(tmp_path / "b", tmp_path / "t.csv", FORMULA, **options)
    other = write_table(tmp_path / "c", table, FORMULA, **options | {"seed": 5})
    assert one.fingerprint == two.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("formula", "kind"),
    [
        (FORMULA, "poisson"),
        ("count ~ site + year", "poisson"),
        ("depth ~ site + year + offset(effort)", "normal"),
    ],
)
@pytest.mark.parametrize("merge", [False, True])
def test_rows_held_out_come_last(
    tmp_path: Path, table: pd.DataFrame, formula: str, kind: str, merge: bool
) -> None:
    """One by one, behind the cells of the others; in blocks they look missing, whatever their number."""
    options: dict[str, Any] = {"holdout": 0.3, "seed": 4}
    both = write_table(tmp_path / "a", table, formula, kind, merge=merge, block_rows=32, **options)
    kept = write_table(tmp_path / "b", table, formula, kind, merge=merge, part="kept", **options)
    rest = write_table(
        tmp_path / "c", table, formula, kind, merge=False, part="held out", like=kept, **options
    )
    first = both.design.first_held_out
    assert (first, both.n_rows - first) == (kept.n_rows, rest.n_rows)
    assert kept.design.first_held_out is rest.design.first_held_out is None
    alone = {"exposure": 1.0, "weight": 1.0, "within": 0.0}
    for view in both.views:
        np.testing.assert_array_equal(both.values(view, 0, first), kept.values(view))
        expected = rest.values(view) if view in rest.views else np.full((rest.n_rows, 1), alone[view])
        np.testing.assert_array_equal(both.values(view, first), expected)
    hidden, truth = [], []
    for number in range(both.n_blocks):
        block, values = both.read(number, holdout=Holdout.of({"holdout": 0.0}, both.design))
        rows, columns = block.hidden[both.design.response]
        assert np.isnan(block.data[both.design.response][rows]).all()
        assert not columns.any()
        hidden.append(block.start + rows)
        truth.append(values[both.design.response])
    assert np.concatenate(hidden).tolist() == list(range(first, both.n_rows))
    np.testing.assert_array_equal(np.concatenate(truth), rest.values(rest.design.response)[:, 0])


def test_more_may_be_held_out(tmp_path: Path, table: pd.DataFrame) -> None:
    """Entries or rows that a fit hides besides are those of any dataset of that many rows."""
    dataset = write_table(tmp_path / "a", table, FORMULA, merge=False, holdout=0.3, block_rows=64)
    first = dataset.design.first_held_out
    for unit in ("entry", "row"):
        settings = {"holdout": 0.2, "holdout_unit": unit, "seed": 1}
        hidden = Holdout.of(settings, dataset.design)
        plain = Holdout.of(settings)
        for number in range(dataset.n_blocks):
            rows = dataset.block(number, holdout=hidden).hidden["count"][0] + number * 64
            other = dataset.block(number, holdout=plain).hidden["count"][0] + number * 64
            np.testing.assert_array_equal(rows[rows < first], other[other < first])
            stored = range(max(first, number * 64), min(N, number * 64 + 64))
            assert rows[rows >= first].tolist() == list(stored)


def test_a_fit_scores_the_rows_that_were_held_out(tmp_path: Path, table: pd.DataFrame) -> None:
    """Their responses change the scores and nothing else."""
    dataset = write_table(tmp_path / "a", table, FORMULA, holdout=0.3)
    model = ProductTable(n_components=2, max_iter=3)
    first = fit(dataset, model)
    scores = first.holdout_scores()
    assert scores["n_entries"].tolist() == [dataset.design.n_held_out]
    hides = Holdout(0.3, 0, "row").rows(0, N)
    other = table.assign(count=np.where(hides, table["count"] + 1, table["count"]))
    changed = fit(write_table(tmp_path / "b", other, FORMULA, holdout=0.3), model)
    np.testing.assert_array_equal(changed.loadings("site"), first.loadings("site"))
    assert changed.holdout_scores()["log_likelihood"].iloc[0] != scores["log_likelihood"].iloc[0]


def test_levels_of_another_dataset(tmp_path: Path, table: pd.DataFrame) -> None:
    first = write_table(tmp_path / "a", table[table["site"] != "e"], FORMULA)
    with pytest.warns(DataWarning, match="variable 'site': 1 level that the dataset did not have .'e'"):
        second = write_table(tmp_path / "b", table, FORMULA, like=tmp_path / "a", merge=False)
    assert levels_of(second) == levels_of(first)
    np.testing.assert_array_equal(second.values("site") < 0, table["site"] == "e")


# Grids


@pytest.fixture
def seen(rng: np.random.Generator) -> pd.DataFrame:
    """Counts of all 5 x 4 x 3 combinations, with an exposure of each site and of each year."""
    cells = pd.DataFrame(
        itertools.product("abcde", range(2000, 2004), ["f", "m", "u"]), columns=["site", "year", "sex"]
    )
    hours = dict(zip("abcde", [1.0, 2.0, 0.5, 3.0, 1.5], strict=True))
    return cells.assign(
        count=rng.poisson(1.0, len(cells)),
        hours=cells["site"].map(hours),
        nets=cells["site"].map({site: 4.0 if site == "b" else 1.0 for site in hours}),
        days=(cells["year"] - 1999) * 10.0,
    )


GRID = "count ~ site + year + sex + offset(log(hours)) + offset(log(days)) + offset(log(nets))"


def test_a_grid_keeps_its_likelihood(tmp_path: Path, seen: pd.DataFrame) -> None:
    """Of all cells, from those above 0 and the closed form of sum t m: whatever the components."""
    dataset = write_table(tmp_path / "d", seen, GRID, grid=True)
    design = dataset.design
    assert design.grid
    assert dataset.n_rows == (seen["count"] > 0).sum() < len(seen)
    components = [np.random.default_rng(i).gamma(1.0, 0.3, (n, 2)) for i, n in enumerate((5, 4, 3))]
    codes = [pd.Categorical(seen[name]).codes for name in ("site", "year", "sex")]
    rate = np.prod([c[k] for c, k in zip(components, codes, strict=True)], axis=0).sum(axis=1)
    single = poisson.logpmf(seen["count"], rate * seen["hours"] * seen["days"] * seen["nets"]).sum()

    t = {name: np.ones(dataset.views[name].n_features) for name in design.variables}
    t |= {name: np.array(values) for name, values in design.level_exposures}
    total = np.prod([t[v] @ c for v, c in zip(design.variables, components, strict=True)], axis=0).sum()
    assert design.exposure is None
    assert "exposure" not in dataset.views
    y = dataset.values("count")[:, 0]
    e = np.prod([t[v][dataset.values(v)] for v in design.variables], axis=0)
    m = np.prod(
        [c[dataset.values(v)] for v, c in zip(design.variables, components, strict=True)], axis=0
    ).sum(axis=1)
    above = (y * np.log(e * m)).sum() - np.log(
        np.array([float(np.prod(np.arange(1, k + 1))) for k in y])
    ).sum()
    assert above - total == pytest.approx(single, rel=1e-12)


def test_a_grid_from_what_was_seen_alone(
    tmp_path: Path, seen: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros, given or not, a cell in several rows, and the rows looked at together make no difference."""
    full = write_table(tmp_path / "a", seen, GRID, grid=True)
    monkeypatch.setattr(assemble, "PIECE_ROWS", 7)
    above = seen[seen["count"] > 0]
    events = above.loc[above.index.repeat(above["count"])].assign(count=1)
    for name, source in {"b": above, "c": events.sample(frac=1.0, random_state=0)}.items():
        found = write_table(tmp_path / name, source, GRID, grid=True)
        assert found.n_rows == full.n_rows
        assert found.design.level_exposures == full.design.level_exposures
        for view in full.views:
            np.testing.assert_array_equal(found.values(view), full.values(view))


def test_a_grid_without_exposure(tmp_path: Path, seen: pd.DataFrame) -> None:
    dataset = write_table(tmp_path / "d", seen, "count ~ site + year + sex", grid=True)
    assert dataset.design.level_exposures == ()


def test_nothing_is_held_out_of_a_grid(tmp_path: Path, seen: pd.DataFrame) -> None:
    """Hidden cells would all count more than 0, and sums over all cells would still have them as 0."""
    dataset = write_table(tmp_path / "d", seen, GRID, grid=True)
    with pytest.raises(InputError, match="holdout = 0.1: expected no hold-out for a grid"):
        fit(dataset, ProductTable(n_components=2), holdout=0.1)


def test_new_rows_of_a_grid(tmp_path: Path, seen: pd.DataFrame) -> None:
    """Their exposures follow from their levels: no column is asked for."""
    dataset = write_table(tmp_path / "d", seen, GRID, grid=True)
    data = gather(encode_blocks(seen[["site", "year", "sex"]], dataset.design, levels_of(dataset)))
    assert set(data) == {"count", "site", "year", "sex"}
    np.testing.assert_array_equal(data["site"], pd.Categorical(seen["site"]).codes)


@pytest.mark.parametrize(
    ("formula", "options", "message"),
    [
        (GRID, {"likelihood": "normal"}, "grid = a normal response"),
        (GRID, {"holdout": 0.5}, "grid = rows held out"),
        ("count ~ site + linear(1, days)", {}, r"grid = linear\(...\)"),
        (
            "count ~ site + year + offset(log(both))",
            {},
            "exposure 'both' = one that differs.*several offsets",
        ),
        ("none ~ site + year", {}, "column 'none' = only 0"),
    ],
)
def test_what_is_no_grid(
    tmp_path: Path, seen: pd.DataFrame, formula: str, options: dict[str, Any], message: str
) -> None:
    source = seen.assign(both=seen["hours"] * seen["days"], none=0)
    with pytest.raises(InputError, match=message):
        write_table(tmp_path / "d", source, formula, grid=True, **options)
    assert not list(tmp_path.iterdir())


def test_a_grid_has_levels_of_its_own(tmp_path: Path, seen: pd.DataFrame) -> None:
    dataset = write_table(tmp_path / "a", seen, GRID, grid=True)
    with pytest.raises(InputError, match="grid = levels of another dataset"):
        write_table(tmp_path / "b", seen, GRID, grid=True, like=dataset)


# New rows


def gather(blocks: Any) -> dict[str, np.ndarray]:
    found = list(blocks)
    assert [block.number for block in found] == list(range(len(found)))
    assert [block.start for block in found] == np.cumsum([0, *(b.n_rows for b in found)])[:-1].tolist()
    assert all(not array.flags.writeable for block in found for array in block.data.values())
    return {name: np.concatenate([block.data[name] for block in found]) for name in found[0].data}


@pytest.mark.parametrize("form", ["frame", "csv", "dataset", "path"])
def test_rows_keep_their_order_and_levels(tmp_path: Path, table: pd.DataFrame, form: str) -> None:
    dataset = write_table(tmp_path / "a", table, FORMULA)
    new = table.sample(200, random_state=3).reset_index(drop=True)
    new.to_csv(tmp_path / "t.csv", index=False)
    write_table(tmp_path / "b", new, FORMULA, merge=False)
    source = {"frame": new, "csv": tmp_path / "t.csv", "dataset": open_dataset(tmp_path / "b")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = gather(
            encode_blocks(source.get(form, str(tmp_path / "b")), dataset.design, levels_of(dataset), 64)
        )
    assert set(data) == {"count", "site", "year", "exposure"}
    assert np.array(dataset.features("site"))[data["site"]].tolist() == new["site"].tolist()
    assert np.array(dataset.features("year"))[data["year"]].tolist() == new["year"].astype(str).tolist()
    np.testing.assert_array_equal(data["count"], new[["count"]])
    np.testing.assert_array_equal(data["exposure"], new[["effort"]])
    assert {data[name].dtype.name for name in ("site", "year")} == {"int32"}


@pytest.mark.parametrize("form", ["frame", "dataset"])
def test_unseen_levels(tmp_path: Path, table: pd.DataFrame, form: str) -> None:
    """One warning a variable, when all is read; levels that no row has are not spoken of."""
    dataset = write_table(tmp_path / "a", table[table["site"].isin(["b", "d"])], FORMULA)
    new = table.assign(site=pd.Categorical(table["site"], [*"edcbaz"]))
    source: Any = new
    if form == "dataset":
        with pytest.warns(DataWarning, match="levels? without a sample"):
            source = write_table(tmp_path / "b", new, FORMULA, merge=False)
    with pytest.warns(DataWarning) as caught:
        data = gather(encode_blocks(source, dataset.design, levels_of(dataset), 64))
    (warning,) = caught
    assert "variable 'site': 3 levels that the dataset did not have ('e', 'c', 'a')" in str(warning.message)
    expected = table["site"].map({"b": 0, "d": 1}).fillna(-1)
    np.testing.assert_array_equal(data["site"], expected)


def test_missing_labels(tmp_path: Path, table: pd.DataFrame) -> None:
    gaps = table.assign(site=table["site"].where(table["site"] != "a"))
    told, new = gaps[~gaps["site"].isna()], gaps[:50]
    for number, (source, code) in enumerate(((gaps, 4), (told, -1))):
        dataset = write_table(tmp_path / str(number), source, FORMULA)
        data = gather(encode_blocks(new, dataset.design, levels_of(dataset)))
        np.testing.assert_array_equal(data["site"] == code, new["site"].isna())


def test_whole_numbers_of_any_type_find_their_level(tmp_path: Path, table: pd.DataFrame) -> None:
    dataset = write_table(tmp_path / "a", table, FORMULA)
    whole = gather(encode_blocks(table, dataset.design, levels_of(dataset)))["year"]
    for year in (table["year"].astype(float), table["year"].astype(str), table["year"].astype(str) + ".0"):
        found = gather(encode_blocks(table.assign(year=year), dataset.design, levels_of(dataset)))
        np.testing.assert_array_equal(found["year"], whole)


def test_a_new_row_stands_for_itself(tmp_path: Path, table: pd.DataFrame) -> None:
    """Exposure, weight and squares of merged rows are not asked of new ones; nor is the response."""
    counts = write_table(tmp_path / "a", table, "count ~ site + year")
    normal = write_table(tmp_path / "b", table, "effort ~ site + year + offset(depth)", "normal")
    new = table.drop(columns=["count", "effort"])[:9]
    data = gather(encode_blocks(new, counts.design, levels_of(counts)))
    assert (data["exposure"] == 1.0).all()
    assert np.isnan(data["count"]).all()
    data = gather(encode_blocks(new, normal.design, levels_of(normal)))
    assert (data["weight"] == 1.0).all()
    assert (data["within"] == 0.0).all()
    np.testing.assert_array_equal(data["offset"], new[["depth"]])


def test_groups_of_new_rows(tmp_path: Path, table: pd.DataFrame) -> None:
    dataset = write_table(tmp_path / "a", table, "count ~ site + linear(1, depth) + offset(effort)")
    data = gather(encode_blocks(table[:9], dataset.design, levels_of(dataset)))
    np.testing.assert_array_equal(data["depth"], dataset.values("depth", 0, 9))
    np.testing.assert_array_equal(data["exposure"], dataset.values("exposure", 0, 9))


def test_what_new_rows_lack(tmp_path: Path, table: pd.DataFrame) -> None:
    dataset = write_table(tmp_path / "a", table, FORMULA)
    with pytest.raises(InputError, match="formula = effort: expected columns among site, year"):
        gather(encode_blocks(table[["site", "year"]], dataset.design, levels_of(dataset)))
    with pytest.raises(InputError, match="column 'effort' of the table, row 1 = -1.0"):
        gather(encode_blocks(table.assign(effort=-1.0), dataset.design, levels_of(dataset)))
    other = write_table(tmp_path / "c", table, "count ~ site + year", merge=False)
    with pytest.raises(InputError, match="no exposure"):
        gather(encode_blocks(other, dataset.design, levels_of(dataset)))
