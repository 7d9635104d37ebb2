"""One table in every form it may come in: the same dataset."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from factorflow.data import write_table
from factorflow.data.tables import files, pieces, sources
from factorflow.errors import InputError

FORMULA = "count ~ site + year + offset(log(effort))"
N = 400


@pytest.fixture
def frame() -> pd.DataFrame:
    """Missing responses, missing labels, whole numbers with gaps, and text of several lines elsewhere."""
    rng = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "note": ["plain", *['a,\n"b"'] * (N - 1)],
            "site": rng.choice(["x y", "é", "b", None], N, p=[0.3, 0.3, 0.3, 0.1]),
            "count": np.where(rng.random(N) < 0.1, np.nan, rng.poisson(4.0, N)),
            "year": np.where(rng.random(N) < 0.1, np.nan, rng.choice([9, 10, 2000], N)),
            "effort": rng.choice([0.5, 1.25, 3.0], N),
        }
    )


def arrow(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False)


def write_csv(frame: pd.DataFrame, folder: Path, name: str = "t.csv", **options: Any) -> Path:
    frame.to_csv(folder / name, index=False, **options)
    return folder / name


def write_r(frame: pd.DataFrame, folder: Path) -> Path:
    """As write.table() of R: row names without a header."""
    text = frame.to_csv(sep="\t", na_rep="NA")
    (folder / "t.tsv").write_text(text.removeprefix("\t"))
    return folder / "t.tsv"


def write_parquet(frame: pd.DataFrame, folder: Path) -> Path:
    pa.parquet.write_table(arrow(frame), folder / "t.parquet", row_group_size=37)
    return folder / "t.parquet"


def write_arrow(frame: pd.DataFrame, folder: Path) -> Path:
    with pa.ipc.new_stream(folder / "t.arrow", arrow(frame).schema) as out:
        out.write_table(arrow(frame), max_chunksize=50)
    return folder / "t.arrow"


def write_feather(frame: pd.DataFrame, folder: Path) -> Path:
    pa.feather.write_feather(arrow(frame), folder / "t.feather", chunksize=50)
    return folder / "t.feather"


def write_folder(frame: pd.DataFrame, folder: Path) -> Path:
    (folder / "parts" / "b").mkdir(parents=True)
    write_csv(frame[:100], folder / "parts", "a.csv")
    write_parquet(frame[100:300], folder / "parts" / "b")
    write_csv(frame[300:], folder / "parts", "c.tsv", sep="\t")
    (folder / "parts" / "readme.md").write_text("no table")
    return folder / "parts"


def write_gzip(frame: pd.DataFrame, folder: Path) -> Path:
    with gzip.open(folder / "t.csv.gz", "wt", encoding="utf-8") as out:
        frame.to_csv(out, index=False, sep=";")
    return folder / "t.csv.gz"


FORMS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "csv": write_csv,
    "quoted csv": lambda frame, folder: write_csv(frame, folder, quoting=1),
    "csv of two": lambda frame, folder: [
        write_csv(frame[:7], folder, "1.csv"),
        write_csv(frame[7:], folder, "2.csv"),
    ],
    "gzip, semicolons": write_gzip,
    "as R writes it": write_r,
    "parquet": write_parquet,
    "arrow stream": write_arrow,
    "feather": write_feather,
    "folder": write_folder,
    "table": lambda frame, folder: arrow(frame),
    "reader": lambda frame, folder: arrow(frame).to_reader(max_chunksize=33),
    "nullable": lambda frame, folder: frame.convert_dtypes(),
    "objects": lambda frame, folder: frame.astype(object),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:.*rows left out")
def test_the_same_dataset(
    tmp_path: Path, frame: pd.DataFrame, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = write_table(tmp_path / "frame", frame, FORMULA)
    assert expected.features("site").tolist() == ["b", "x y", "é", "missing"]
    assert expected.features("year").tolist() == ["9", "10", "2000", "missing"]
    assert expected.design.n_dropped == frame["count"].isna().sum()
    monkeypatch.setattr("factorflow.data.ingest.text.BLOCK_BYTES", 1000)
    for module in (files, pieces, sources):
        monkeypatch.setattr(module, "PIECE_ROWS", 29)
    found = write_table(tmp_path / "other", FORMS[form](frame, tmp_path), FORMULA)
    assert found.fingerprint == expected.fingerprint
    found.verify()
    assert not list(tmp_path.glob("other/spool*"))


def test_a_categorical_keeps_its_order(tmp_path: Path, frame: pd.DataFrame) -> None:
    frame = frame.dropna().copy()
    frame["site"] = pd.Categorical(frame["site"], ["é", "b", "x y"])
    table = arrow(frame)
    assert pa.types.is_dictionary(table.schema.field("site").type)
    chunks = pa.concat_tables([table[:10], table[10:]])
    pa.feather.write_feather(table, tmp_path / "t.feather")
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=30)
    files = (tmp_path / "t.feather", tmp_path / "t.parquet")
    for number, source in enumerate((frame, table, chunks, *files)):
        dataset = write_table(tmp_path / f"{number}", source, FORMULA, merge=False)
        assert dataset.features("site").tolist() == ["é", "b", "x y"]
        assert dataset.features("site")[dataset.values("site")].tolist() == frame["site"].tolist()


def test_text_and_codes_as_they_are_said(tmp_path: Path) -> None:
    """Separator, decimal mark, encoding, and what is missing: -9 of a frame as of a file."""
    frame = pd.DataFrame(
        {"y": [1.25, -9, 2.5, 3.25] * 5, "ort": ["Köln", "Bonn", "?", "Köln"] * 5, "when": [1, -9, 2, 1] * 5}
    )
    frame.to_csv(tmp_path / "t.csv", sep=":", decimal=",", encoding="cp1252", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    how: dict[str, Any] = {"sep": ":", "decimal": ",", "encoding": "cp1252"}
    found = []
    for number, (source, given) in enumerate(
        [(tmp_path / "t.csv", how), (tmp_path / "t.parquet", {}), (frame, {})]
    ):
        with pytest.warns(UserWarning, match="5 of 20 rows left out"):
            dataset = write_table(
                tmp_path / str(number), source, "y ~ ort + when", na_values=[-9, "?"], **given
            )
        assert (
            dataset.features("ort").tolist() == ["Bonn", "Köln", "missing"][-dataset.features("ort").size :]
        )
        found.append(dataset.fingerprint)
    assert len(set(found)) == 1
    with pytest.raises(InputError, match="na_values = .*the same in all columns"):
        write_table(tmp_path / "x", frame, "y ~ ort", na_values={"y": -9})


def test_labels_of_text_are_those_of_a_frame(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "y": [1, 2, 3, 5] * 3,
            "day": pd.to_datetime(["2020-01-01", "2020-01-02"] * 6),
            "wet": [True, False, False] * 4,
            "site": ["a", "b", "c"] * 4,
        }
    )
    text = frame.to_csv(index=False, date_format="%Y-%m-%d 00:00:00").replace("True", "TRUE")
    (tmp_path / "t.csv").write_text(text.replace("False", "FALSE").replace(",a", ", a").replace(",b", ",b "))
    formula = "y ~ day + wet + site"
    one, other = (
        write_table(tmp_path / "a", frame, formula),
        write_table(tmp_path / "b", tmp_path / "t.csv", formula),
    )
    assert one.fingerprint == other.fingerprint
    frame["site"] = ["a", "A", "c"] * 4
    with pytest.warns(
        UserWarning, match="levels of variable 'site' differ in case or blanks alone .*'A' and 'a'"
    ):
        write_table(tmp_path / "c", frame, formula)


def test_levels_without_a_row(tmp_path: Path, frame: pd.DataFrame) -> None:
    """Those of a Categorical stay, with a warning; of others there are none, whatever was left out."""
    frame = frame.dropna().copy()
    gone = pd.concat([frame, frame[:1].assign(site="only here", count=np.nan)])
    with pytest.warns(UserWarning, match="1 of .* rows left out"):
        dataset = write_table(tmp_path / "a", gone, FORMULA)
    assert dataset.features("site").tolist() == ["b", "x y", "é"]
    frame["site"] = pd.Categorical(frame["site"], ["é", "b", "new", "x y"])
    with pytest.warns(UserWarning, match="1 level without a sample"):
        dataset = write_table(tmp_path / "b", frame, FORMULA)
    assert dataset.features("site").tolist() == ["é", "b", "new", "x y"]


def test_given_levels(tmp_path: Path, frame: pd.DataFrame) -> None:
    frame = frame.dropna().copy()
    dataset = write_table(tmp_path / "a", frame, FORMULA, levels={"year": [2000, 9, 10]})
    assert dataset.features("year").tolist() == ["2000", "9", "10"]
    with pytest.raises(InputError, match="labels of 'year' = '2000': expected levels among '9', '10'"):
        write_table(tmp_path / "b", frame, FORMULA, levels={"year": [9, 10]})
    with pytest.raises(InputError, match="levels = .*expected a mapping of variables among site, year"):
        write_table(tmp_path / "b", frame, FORMULA, levels={"yaer": [9, 10]})


def test_codes_take_the_smallest_type(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    few, many = rng.permutation(np.repeat(np.arange(100), 4)), rng.permutation(np.repeat(np.arange(200), 2))
    frame = pd.DataFrame({"few": few, "many": many, "y": rng.poisson(2.0, 400)})
    views = {
        view.name: view.dtype for view in write_table(tmp_path / "d", frame, "y ~ few + many").manifest.views
    }
    assert views == {"y": "uint8", "few": "int8", "many": "int16", "exposure": "float64"}


def test_names_that_views_cannot_have(tmp_path: Path, frame: pd.DataFrame) -> None:
    frame = frame.dropna().rename(columns={"site": "group", "year": "sampling year", "count": "weight"})
    with pytest.warns(UserWarning, match="becomes the view"):
        dataset = write_table(tmp_path / "d", frame, "weight ~ group + `sampling year`")
    assert dataset.design.response == "view_weight"
    assert dataset.design.variables == ("view_group", "sampling_year")


@pytest.mark.data
@pytest.mark.parametrize(
    ("file", "formula", "n_rows"),
    [
        ("hair_eye_color.csv", "count ~ Hair + Eye + Sex", 32),
        ("mass_insurance_exposure.csv", "count ~ District + Group + Age + offset(log(exposure))", 64),
        ("mass_housing.csv", "count ~ Sat + Infl + Type + Cont", 72),
        ("vegan_mite.csv", "count ~ site + species", 2450),
        ("statsmodels_randhie_binned.csv.gz", "count ~ C(coins) + idp + lpi_bin + health", None),
    ],
)
def test_real_tables(tmp_path: Path, data_folder: Path, file: str, formula: str, n_rows: int | None) -> None:
    frame = pd.read_csv(data_folder / "tables" / file)
    dataset = write_table(tmp_path / "d", data_folder / "tables" / file, formula, "poisson")
    dataset.verify()
    assert dataset.values("count").sum() == frame["count"].sum()
    assert dataset.n_rows == (n_rows or len(frame.drop_duplicates(["coins", "idp", "lpi_bin", "health"])))
    assert dataset.design.n_table_rows == len(frame)
