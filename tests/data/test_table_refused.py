"""What a table may not be: refused by column and row, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from factorflow.data import DataWarning, write_table
from factorflow.data.tables.sources import open_table
from factorflow.errors import InputError

FRAME = pd.DataFrame(
    {
        "count": [3, 0, 2, 5, 1, 1, 0, 2],
        "y": [0.5, 1.5, -2.0, 0.1, 0.3, 2.2, 0.0, 1.0],
        "site": list("aabbccaa"),
        "year": [1, 2, 1, 2, 1, 2, 1, 2],
        "hours": [1.0, 2.0, 0.5, 1.0, 1.0, 4.0, 1.0, 1.0],
        "depth": [0.5, 1.0, 2.5, 1.0, 0.5, 2.5, 1.0, 0.5],
    }
)


def changed(column: str, row: int, value: Any) -> pd.DataFrame:
    frame = FRAME.astype({column: object if isinstance(value, str) else float})
    frame.loc[row, column] = value
    return frame


REFUSED: dict[str, tuple[Any, str, dict[str, Any], str]] = {
    "missing column": (
        FRAME,
        "count ~ site + yaer",
        {},
        "formula = yaer: expected columns among count, y, site",
    ),
    "missing response column": (FRAME, "n ~ site", {}, "formula = n: expected columns among"),
    "no response": (
        changed("count", 2, np.nan),
        "count ~ site",
        {"missing_response": "refuse"},
        "column 'count' of the table, row 3 = missing: expected an entry.*missing_response='drop'",
    ),
    "no exposure": (
        changed("hours", 4, np.nan),
        "count ~ site + offset(log(hours))",
        {"missing_response": "refuse"},
        "column 'hours' of the table, row 5 = missing",
    ),
    "no label": (
        FRAME.assign(site=[*"aabbcc", None, "a"]),
        "count ~ site + year",
        {"missing_levels": "refuse"},
        "column 'site' of the table, row 7 = missing: .*missing_levels='drop'",
    ),
    "negative count": (
        changed("count", 1, -1),
        "count ~ site",
        {"likelihood": "poisson"},
        r"column 'count' of the table, row 2 = -1.0: expected counts.*likelihood 'normal'",
    ),
    "fractional count": (
        changed("count", 5, 1.5),
        "count ~ site",
        {"likelihood": "poisson"},
        r"column 'count' of the table, row 6 = 1.5: expected counts",
    ),
    "infinite response": (
        changed("y", 3, np.inf),
        "y ~ site",
        {},
        "'y' of the table, row 4 = inf: expected a fin",
    ),
    "too large a response": (changed("y", 3, 1e39), "y ~ site + year", {}, "finite number"),
    "zero exposure": (
        changed("hours", 2, 0.0),
        "count ~ site + offset(log(hours))",
        {},
        "column 'hours' of the table, row 3 = 0.0: expected a number above 0",
    ),
    "negative exposure": (
        changed("hours", 2, -3.0),
        "count ~ site + offset(log(hours))",
        {},
        "row 3 = -3.0: expected a number above 0",
    ),
    "log exposure too large": (
        changed("hours", 2, 800.0),
        "count ~ site + offset(hours)",
        {},
        r"offset\(hours\) = 800.0: .*offset\(log\(hours\)\)",
    ),
    "one level": (FRAME.assign(site="a"), "count ~ site + year", {}, "variable 'site' = a single level"),
    "a level for every row": (
        FRAME.assign(row=range(8)),
        "count ~ row + site",
        {},
        "variable 'row' = 8 levels in 8 rows .*It is used as row names",
    ),
    "measurements as levels": (
        FRAME,
        "count ~ site + depth",
        {},
        r"variable 'depth' = '0.5', '2.5': .*x is 1 .*linear\(1, depth\).*C\(depth\)",
    ),
    "negative x": (
        changed("depth", 6, -0.5),
        "count ~ site + linear(1, depth)",
        {},
        "column 'depth' of the table, row 7 = -0.5: expected a number >= 0",
    ),
    "text as a response": (changed("count", 2, "many"), "count ~ site", {}, "column 'count' of the table"),
    "dates as a response": (
        FRAME.assign(count=pd.Timestamp("2020-01-01")),
        "count ~ site",
        {},
        "column 'count' of the table = it holds datetime64",
    ),
    "text in Arrow": (
        pa.table({"y": ["1", "2"], "a": ["x", "y"]}),
        "y ~ a",
        {},
        "'y' of the table = it holds string",
    ),
    "all missing": (
        FRAME.assign(count=np.nan),
        "count ~ site",
        {},
        "8 rows, 8 of them with something missing",
    ),
    "no label at all": (
        FRAME.assign(site=None),
        "count ~ site + year",
        {"missing_levels": "drop"},
        "8 rows, 8 of them with something missing",
    ),
    "a level called missing": (
        FRAME.assign(site=["missing", None, *"aabbaa"]),
        "count ~ site + year",
        {},
        "labels of 'site' = missing: .*missing_levels='drop'",
    ),
    "two columns of one name": (
        pd.concat([FRAME, FRAME[["site"]]], axis=1),
        "count ~ site",
        {},
        "columns = site: expected every name once",
    ),
    "likelihood": (
        FRAME,
        "count ~ site",
        {"likelihood": "bernoulli"},
        "likelihood = bernoulli: expected one of poisson",
    ),
    "policy": (
        FRAME,
        "count ~ site",
        {"missing_levels": "ignore"},
        "missing_levels = ignore: expected 'level', 'drop' or 'refuse'",
    ),
    "other policy": (FRAME, "count ~ site", {"missing_response": "level"}, "missing_response = level"),
    "part": (FRAME, "count ~ site", {"part": "rest"}, "part = rest: expected 'both', 'kept' or 'held out'"),
    "part without a share": (
        FRAME,
        "count ~ site",
        {"part": "held out"},
        "part = held out: expected a share",
    ),
    "share": (FRAME, "count ~ site", {"holdout": 2.0}, "holdout = 2.0"),
    "source": (3, "count ~ site", {}, "source = an object of type int"),
    "no file": (
        "nowhere.csv",
        "count ~ site",
        {},
        "source = nowhere.csv: expected a file or folder that exists",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    source, formula, options, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        write_table(tmp_path / "d", source, formula, **options)
    assert not list(tmp_path.iterdir())


FILES = {
    "text": ("t.csv", "count,site\n1,a\nmany,b\n2,b\n", "column .count. of .*, line 3 = many: .*a number"),
    "ragged": ("t.csv", "count,site\n1,a\n1,b,c\n2,b\n", "line 3 of .*t.csv = 3 fields: expected 2"),
    "encoding": ("t.csv", "count,sité\n1,a\n".encode("latin-1"), "file .*t.csv"),
    "parquet": ("t.parquet", "no parquet", "file .*t.parquet"),
    "feather": ("t.feather", "no feather", "file .*t.feather"),
    "kind": ("t.xlsx", "x", "source = .*t.xlsx: expected a file of a known kind"),
    "empty": ("t.csv", "count,site\n", "0 rows"),
}


@pytest.mark.parametrize("case", FILES)
def test_files(tmp_path: Path, case: str) -> None:
    name, content, message = FILES[case]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message):
        write_table(tmp_path / "d", path, "count ~ site")
    assert list(tmp_path.iterdir()) == [path]


def test_rows_are_counted_file_by_file(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "1.csv", index=False)
    changed("count", 5, 0.5).to_csv(tmp_path / "2.csv", index=False)
    with pytest.raises(InputError, match=r"column 'count' of .*2.csv, row 6 = 0.5"):
        write_table(tmp_path / "d", [tmp_path / "1.csv", tmp_path / "2.csv"], "count ~ site", "poisson")
    FRAME[["count"]].to_csv(tmp_path / "2.csv", index=False)
    with pytest.raises(InputError, match=r"columns of .*2.csv = no site: expected the columns of .*1.csv"):
        write_table(tmp_path / "d", [tmp_path / "1.csv", tmp_path / "2.csv"], "count ~ site")


def test_a_folder_without_tables(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("none")
    with pytest.raises(InputError, match="a folder with tables"):
        write_table(tmp_path / "d", tmp_path, "count ~ site")


def test_rows_that_are_left_out_are_counted(tmp_path: Path) -> None:
    frame = changed("count", 2, np.nan)
    frame.loc[4, "hours"] = np.nan
    frame.loc[2, "site"] = None
    with pytest.warns(DataWarning, match="2 of 8 rows left out"):
        dataset = write_table(tmp_path / "a", frame, "count ~ site + year + offset(log(hours))", merge=False)
    assert (dataset.design.n_table_rows, dataset.design.n_dropped, dataset.n_rows) == (8, 2, 6)
    np.testing.assert_array_equal(dataset.values("count")[:, 0], [3, 0, 5, 1, 0, 2])
    assert dataset.features("site").tolist() == ["a", "b", "c"]


def test_what_is_left_out_is_not_looked_at(tmp_path: Path) -> None:
    """A row without a response may have any exposure."""
    frame = changed("count", 2, np.nan)
    frame.loc[2, "hours"] = -1.0
    with pytest.warns(DataWarning, match="1 of 8 rows"):
        write_table(tmp_path / "a", frame, "count ~ site + offset(log(hours))")


@pytest.mark.thorough
def test_whole_numbers_are_levels_in_any_type(tmp_path: Path) -> None:
    for number, year in enumerate(
        (FRAME["year"], FRAME["year"].astype(float), FRAME["year"].astype(str) + ".0")
    ):
        dataset = write_table(tmp_path / str(number), FRAME.assign(year=year), "count ~ site + year")
        assert dataset.features("year").tolist() == ["1", "2"]


def test_measurements_may_be_levels_where_it_is_said(tmp_path: Path) -> None:
    dataset = write_table(tmp_path / "a", FRAME, "count ~ site + C(depth)")
    assert dataset.features("depth").tolist() == ["0.5", "1", "2.5"]
    cut = FRAME.assign(depth=pd.Categorical(FRAME["depth"]))
    assert write_table(tmp_path / "b", cut, "count ~ site + depth").features("depth").tolist() == [
        "0.5",
        "1",
        "2.5",
    ]


def test_likelihood_is_guessed(tmp_path: Path) -> None:
    for number, (response, kind) in enumerate({"count": "poisson", "y": "gaussian"}.items()):
        view = write_table(tmp_path / str(number), FRAME, f"{response} ~ site").manifest.views[0]
        assert (view.likelihood, view.likelihood_from) == (kind, "guessed")
    view = write_table(tmp_path / "said", FRAME, "count ~ site", "normal").manifest.views[0]
    assert (view.likelihood, view.likelihood_from) == ("gaussian", "given")


def test_groups_of_columns(tmp_path: Path) -> None:
    dataset = write_table(tmp_path / "a", FRAME, "count ~ site + linear(1, depth) + linear(hours, year)")
    assert dataset.design.linear == ("depth", "hours_year")
    assert dataset.features("depth").tolist() == ["1", "depth"]
    np.testing.assert_array_equal(dataset.values("depth"), np.stack([np.ones(8), FRAME["depth"]], axis=1))
    np.testing.assert_array_equal(dataset.values("hours_year"), FRAME[["hours", "year"]])
    assert dataset.n_rows == 8


def test_a_list_that_is_not_of_paths_alone() -> None:
    with pytest.raises(InputError, match="source = an object of type list"):
        open_table(["a.csv", 3])
