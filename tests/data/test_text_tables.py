"""Text tables: their dialect, one strict rule for the fields of a row, names, missing entries."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from factorflow.data import Dataset, open_dataset, write_dataset
from factorflow.data.ingest import tables
from factorflow.data.ingest.checks import DataWarning
from factorflow.data.ingest.metadata import read_metadata
from factorflow.errors import InputError, RunError
from factorflow.settings import MatrixOptions

N = 12
NAMES = [f"s{i}" for i in range(N)]
VALUES = np.random.default_rng(0).normal(size=(N, 3)).round(3)
FRAME = pd.DataFrame(VALUES, NAMES, ["a", "b", "c"])


def text_of(frame: pd.DataFrame, **options: Any) -> str:
    return str(frame.to_csv(**options))


def ingest(folder: Path, text: str, name: str = "t.csv", **options: Any) -> Dataset:
    path = folder / name
    path.write_bytes(text.encode("cp1252" if "encoding" in options else "utf-8"))
    return write_dataset(folder / "d.zarr", path, overwrite=True, **options)


def holds_frame(dataset: Dataset, view: str = "t") -> None:
    np.testing.assert_array_equal(dataset.values(view), VALUES.astype(np.float32))
    assert dataset.features(view).tolist() == ["a", "b", "c"]
    assert dataset.obs_names.tolist() == NAMES


def rows(line: str) -> str:
    """Lines made from a pattern of the row's number and value."""
    return "".join(line.format(i, i % 3, i / 4) + "\n" for i in range(N))


HEADERS = {
    "comma in a name, semicolons, decimal commas": (
        "id;age;sex (0=m, 1=f);bmi\n" + rows("P{0};{0};{1};{0},5"),
        ["age", "sex (0=m, 1=f)", "bmi"],
    ),
    "commas in names, tabs": (
        "id\tPC(16:0,18:1)\tPC(18:0,20:4)\n" + rows("P{0}\t{0}\t{0}.5"),
        ["PC(16:0,18:1)", "PC(18:0,20:4)"],
    ),
    "vertical bars": ("id|a|b\n" + rows("P{0}|{0}|{1}.5"), ["a", "b"]),
    "one feature, as R writes it": ("a\n" + rows("P{0};{0},0"), ["a"]),
    "blanks, as write.table of R": ('"a" "b"\n' + rows('"P{0}" {0} {1}.5'), ["a", "b"]),
    "single quotes": ("'id','a, b','c'\n" + rows("'P{0}',{0},{1}.5"), ["a, b", "c"]),
    "blanks behind commas": ("id, a, b\n" + rows("P{0}, {0}, {1}.5"), ["a", "b"]),
    "Excel's first line": ("sep=;\nid;a;b\n" + rows("P{0};{0};{1},5"), ["a", "b"]),
    "comment lines": ("# by us, in 2024\n\n# more\nid,a,b\n" + rows("P{0},{0},{1}.5"), ["a", "b"]),
    "a header behind #": ("# from BIOM\n#OTU ID\ta\tb\n" + rows("P{0}\t{0}\t{1}.5"), ["a", "b"]),
    "trailing separators in the rows": ("id,a,b\n" + rows("P{0},{0},{1}.5,"), ["a", "b"]),
    "trailing separators everywhere": ("id,a,b,,\n" + rows("P{0},{0},{1}.5,,"), ["a", "b"]),
    "a trailing separator in the header": ("id,a,b,\n" + rows("P{0},{0},{1}.5"), ["a", "b"]),
    "line ends of old Macs": (
        "id,a,b\n".replace("\n", "\r") + rows("P{0},{0},1").replace("\n", "\r"),
        ["a", "b"],
    ),
}


@pytest.mark.parametrize("case", HEADERS)
def test_dialects(tmp_path: Path, case: str) -> None:
    text, features = HEADERS[case]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*the column of the row names is called")
        warnings.filterwarnings("ignore", ".*is constant|.*features in rows")
        dataset = ingest(tmp_path, text)
    assert dataset.features("t").tolist() == features
    assert dataset.obs_names.tolist() == [f"P{i}" for i in range(N)]
    np.testing.assert_array_equal(dataset.values("t")[:, 0], np.arange(N, dtype=np.float32))


def test_trailing_separators_or_row_names(tmp_path: Path) -> None:
    """One field more is a row name, unless it is empty in every row, the last one too."""
    almost = "a,b\n" + rows("P{0},{0},{1}.5").replace("P3,3,0.5", "P3,3,")
    assert ingest(tmp_path, almost).features("t").tolist() == ["a", "b"]
    late = (
        "g1,g2\n" + "".join(f"P{i},{i % 9},\n" for i in range(1500)) + "x,1,7\n"
    )  # beyond what is looked at
    with pytest.warns(DataWarning, match="is constant .'g2'"):
        assert ingest(tmp_path, late).obs_names[-1] == "x"
    every = "id,a\n" + "".join(f"P{i},{i},\n" for i in range(1500))
    assert ingest(tmp_path, every).features("t").tolist() == ["a"]


RAGGED = {
    "more fields": (
        "20,benign,malignant\n" + rows("1.5,{0},{1},3,4,5"),
        "line 2 of .*t.csv = 6 fields: expected 3",
    ),
    "a short row": ("id,a,b\n" + rows("P{0},{0},1") + "P99,1\n", "line 14 of .*t.csv = 2 fields: expected 3"),
    "a row name in one row": ("a,b\n" + rows("{0},{1}") + "x,1,2\n", "line 14 of .* = 3 fields: expected 2"),
    "a title": ("Results of May\nid,a,b\n" + rows("P{0},{0},1"), "fields|columns separated"),
    "runs of blanks": ("  a   b\n" + rows("  {0}   {1}"), "separated by runs of blanks"),
    "an end": ("id,a,b\n" + rows("P{0},{0},1") + "# end\n", "line 14 of .*t.csv = 1 field:"),
    "a workbook": ("PK\x03\x04\x14\n", "an archive, or an Excel workbook"),
    "no-break spaces": ("id,a\n" + rows("P{0},\u00a0{0}"), "column 'a' of .*line 2 = "),
    "numbers on top": ("1239.5,0\n" + rows("{2},{0}"), "expected names of the features"),
}


@pytest.mark.parametrize("case", RAGGED)
def test_rows_of_another_length(tmp_path: Path, case: str) -> None:
    text, message = RAGGED[case]
    with pytest.raises(InputError, match=message):
        ingest(tmp_path, text)
    (tmp_path / "m.csv").write_text(text)
    if case not in ("numbers on top", "no-break spaces"):
        with pytest.raises(InputError, match=message.replace("t.csv", "m.csv")):
            read_metadata(tmp_path / "m.csv")


def test_wavelengths_are_names(tmp_path: Path) -> None:
    assert ingest(tmp_path, "id,400.5,401.0\n" + rows("P{0},{0},{1}.5")).features("t").tolist() == [
        "400.5",
        "401.0",
    ]
    with pytest.warns(DataWarning, match=r"numbers in the header \(150, 4, setosa"):
        ingest(tmp_path, "150,4,setosa\n" + rows("{2},{0},{1}"))


DECIMALS: dict[str, tuple[str, str | None, float | None]] = {
    "commas": ("id;a\n" + rows("P{0};{0},25"), None, 0.25),
    "commas that may be thousands": ("id;a\n" + rows("P{0};1{0},250"), None, None),
    "said to be commas": ("id;a\n" + rows("P{0};1{0},250"), ",", 10.25),
    "said to be points": ("id;a\n" + rows("P{0};{0},25"), ".", None),
    "quoted": ("id,a\n" + rows('P{0},"{0},25"'), None, 0.25),
}


@pytest.mark.parametrize("case", DECIMALS)
def test_decimal_marks(tmp_path: Path, case: str) -> None:
    text, decimal, first = DECIMALS[case]
    if first is None:
        with pytest.raises(InputError, match=r"column 'a' of .*, line 2 = .*Say decimal=','"):
            ingest(tmp_path, text, decimal=decimal)
    else:
        assert ingest(tmp_path, text, decimal=decimal).values("t")[0, 0] == first


@pytest.mark.parametrize("columns", ["a", "id,a", "a,b"])
def test_decimal_commas_are_no_separators(tmp_path: Path, columns: str) -> None:
    """A comma too many may be a decimal mark: rows of whole numbers are refused, unless R counted them."""
    n = columns.count(",") + 1
    text = columns + "\n" + "".join(f"{i},{i * 7 % 5}" + f",{i * 3 % 7}" * (n - 1) + "\n" for i in range(N))
    with pytest.raises(InputError, match=r"line 2 of .*: one comma may be a decimal mark.*Say sep=','"):
        ingest(tmp_path, text)
    assert ingest(tmp_path, text, sep=",").features("t").tolist() == columns.split(",")
    with pytest.raises(InputError, match="may be a decimal mark"):
        ingest(tmp_path, "a\n8,323e-01\n-4,595e-01\n")


def test_row_names_of_r_between_commas(tmp_path: Path) -> None:
    counted = "a,b\n" + "".join(f"{i + 1},{i % 3},{i}\n" for i in range(N))
    for text in (counted, "a\n" + rows('"{0}",{0}'), "a\n" + rows("{0},{0}.5")):
        assert ingest(tmp_path, text).features("t")[0] == "a"
    one = ingest(tmp_path, "a\n" + rows("{0},5"), sep=";", decimal=",", index_col=False)
    assert one.values("t").ravel()[:2].tolist() == [0.5, 1.5]


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "t.CSV.GZ": gzip.compress,
    "t.csv.bz2": bz2.compress,
    "t.csv.xz": lzma.compress,
    "t.csv.zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}


@pytest.mark.parametrize("name", PACKED)
def test_compressed(tmp_path: Path, name: str) -> None:
    data = PACKED[name](text_of(FRAME).encode())
    (tmp_path / name).write_bytes(data)
    holds_frame(write_dataset(tmp_path / "d.zarr", tmp_path / name))
    (tmp_path / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match="a whole compressed table"):
        write_dataset(tmp_path / "e.zarr", tmp_path / name)


@pytest.mark.parametrize("start", [b"\x1f\x8b\x08\x00", b"PAR1", b"\xfd7zXZ\x00", b"\x89HDF\r\n", b"BZh91AY"])
def test_files_of_another_kind(tmp_path: Path, start: bytes) -> None:
    (tmp_path / "t.csv").write_bytes(start + b"\n")
    with pytest.raises(InputError, match="expected a text table. Give it the ending"):
        write_dataset(tmp_path / "d.zarr", tmp_path / "t.csv")


def test_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.csv.zip", "w") as archive:
        archive.writestr("anything.csv", text_of(FRAME))
    holds_frame(write_dataset(tmp_path / "d.zarr", tmp_path / "t.csv.zip"))
    with zipfile.ZipFile(tmp_path / "t.csv.zip", "a") as archive:
        archive.writestr("more.csv", "x")
    with pytest.raises(InputError, match="an archive of one table"):
        write_dataset(tmp_path / "e.zarr", tmp_path / "t.csv.zip")


def test_encodings(tmp_path: Path) -> None:
    named = FRAME.rename(columns={"a": "Größe"})
    for encoding in ("utf-8-sig", "utf-16"):  # found by their marks
        (tmp_path / "t.csv").write_bytes(text_of(named).encode(encoding))
        assert (
            write_dataset(tmp_path / "d.zarr", tmp_path / "t.csv", overwrite=True).features("t")[0] == "Größe"
        )
    (tmp_path / "t.csv").write_bytes(text_of(named).encode("utf-16-le"))  # without a mark
    with pytest.raises(InputError, match="bytes that are 0.*encoding='utf-16-le'"):
        write_dataset(tmp_path / "e.zarr", tmp_path / "t.csv")
    utf16 = write_dataset(tmp_path / "d.zarr", tmp_path / "t.csv", encoding="utf-16-le", overwrite=True)
    assert utf16.features("t")[0] == "Größe"
    (tmp_path / "t.csv").write_bytes(text_of(named).encode("cp1252"))
    with pytest.raises(InputError, match="encoding='cp1252'"):
        write_dataset(tmp_path / "e.zarr", tmp_path / "t.csv")
    assert ingest(tmp_path, text_of(named), encoding="cp1252").features("t")[0] == "Größe"
    (tmp_path / "t.csv").write_bytes(text_of(FRAME.rename({"s9": "Übung"})).encode("cp1252"))
    with pytest.raises(InputError, match="encoding='cp1252'"):  # of a name further down
        write_dataset(tmp_path / "e.zarr", tmp_path / "t.csv")
    with pytest.raises(InputError, match="encoding = klingon"):
        ingest(tmp_path, text_of(FRAME), encoding="klingon")


COUNTS = pd.DataFrame(
    {"ACTB": 1000 + 37 * np.arange(N), "GAPDH": np.arange(N) ** 2 % 7, "TP53": np.arange(N) // 2}
)


def test_numbers_are_never_guessed_to_be_names(tmp_path: Path) -> None:
    COUNTS.to_csv(tmp_path / "t.csv", index=False)
    COUNTS.to_parquet(tmp_path / "t.parquet")
    with pytest.warns(DataWarning, match=r"'ACTB', holds whole numbers, each once.*index_col='ACTB'"):
        found = write_dataset(tmp_path / "a.zarr", tmp_path / "t.csv")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of_frame = write_dataset(tmp_path / "b.zarr", {"t": COUNTS})
        of_parquet = write_dataset(tmp_path / "c.zarr", tmp_path / "t.parquet")  # says that there is no index
        said = write_dataset(tmp_path / "d.zarr", tmp_path / "t.csv", index_col=False)
    assert {found.fingerprint, of_parquet.fingerprint, said.fingerprint} == {of_frame.fingerprint}
    assert found.manifest.views[0].read_as == "samples are numbered"
    for chosen in ("ACTB", 0):
        named = write_dataset(tmp_path / "n.zarr", tmp_path / "t.csv", index_col=chosen, overwrite=True)
        assert named.obs_names[:2].tolist() == ["1000", "1037"]
    assert "names: column 0, 'ACTB'" in repr(open_dataset(tmp_path / "n.zarr"))
    with pytest.raises(InputError, match="index_col = 3: expected a column of .*0 to 2"):
        write_dataset(tmp_path / "e.zarr", tmp_path / "t.csv", index_col=3)


@pytest.mark.parametrize("header", ["obs", "Sample", "sample_id", "ID", "cell", "barcode", ""])
def test_headers_of_names(tmp_path: Path, header: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        COUNTS.set_index("ACTB").to_csv(tmp_path / "t.csv", index_label=header)
        dataset = write_dataset(tmp_path / "d.zarr", tmp_path / "t.csv")
    assert dataset.features("t").tolist() == ["GAPDH", "TP53"]
    assert dataset.obs_names[0] == "1000"


def test_names_of_parquet(tmp_path: Path) -> None:
    COUNTS.iloc[::2].to_parquet(
        tmp_path / "t.parquet"
    )  # pandas stores this index as a range: rows are numbered
    assert write_dataset(tmp_path / "a.zarr", tmp_path / "t.parquet").features("t").size == 3
    COUNTS.set_index("ACTB").to_parquet(tmp_path / "t.parquet")
    assert write_dataset(tmp_path / "b.zarr", tmp_path / "t.parquet").obs_names[1] == "1037"
    dates = FRAME.set_axis(pd.date_range("2020-01-01", periods=N))
    dates.to_parquet(tmp_path / "t.parquet")
    dates.to_csv(tmp_path / "t.csv")
    forms = [{"t": dates}, tmp_path / "t.parquet", tmp_path / "t.csv"]
    made = [write_dataset(tmp_path / f"{i}.zarr", form) for i, form in enumerate(forms)]
    assert made[0].obs_names[0] == "2020-01-01"
    assert len({dataset.fingerprint for dataset in made}) == 1


@pytest.mark.parametrize("labels", [
    pd.date_range("2020-01-01", periods=3),
    pd.to_datetime(["2020-01-01 10:00", "2020-01-01 00:00", "2020-01-03 00:00"]),
    pd.to_datetime(["2020-01-01 10:00", "2020-01-01 00:00", "2020-01-03 00:00"]).tz_localize("UTC"),
    pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-03"]).tz_localize("UTC"),
    np.array([1.0, 2.5, 3.0]),
    np.array([1.0, 2.0, 3.0]),
    np.array([True, False, True]),
    np.array(["01", "02", "1.10"]),
], ids=["dates", "times", "zoned times", "zoned", "floats", "whole", "booleans", "identifiers"])  # fmt: skip
def test_labels_are_the_same_in_every_form(tmp_path: Path, labels: Any) -> None:
    frame = pd.DataFrame({"site": list(labels) * (N // 3)}, NAMES)
    frame.to_csv(tmp_path / "s.csv")
    frame.to_parquet(tmp_path / "s.parquet")
    found = []
    for form in (frame, tmp_path / "s.csv", tmp_path / "s.parquet"):
        views = {"t": FRAME, "site": form}
        dataset = write_dataset(
            tmp_path / "d.zarr",
            views,
            inputs={"site": "categorical"},
            obs=form,
            groups="site",
            overwrite=True,
        )
        obs = dataset.obs["site"]
        found.append((dataset.features("site").tolist(), dataset.groups, obs.dtype.kind, obs.tolist()))
    assert found[0] == found[1] == found[2]


def test_truth_values_with_gaps(tmp_path: Path) -> None:
    frame = pd.DataFrame({"sick": pd.array([True, None, False] * (N // 3), dtype="boolean")}, NAMES)
    frame.to_csv(tmp_path / "s.csv")
    frame.to_parquet(tmp_path / "s.parquet")
    for form in (frame, tmp_path / "s.csv", tmp_path / "s.parquet"):
        obs = write_dataset(tmp_path / "d.zarr", {"t": FRAME}, obs=form, overwrite=True).obs
        assert obs["sick"].dtype == "boolean"
        assert obs["sick"].tolist()[:3] == [True, pd.NA, False]


def obs_of(folder: Path, text: str, **options: Any) -> pd.DataFrame:
    (folder / "m.csv").write_text(text)
    return write_dataset(folder / "o.zarr", {"t": FRAME}, obs=folder / "m.csv", overwrite=True, **options).obs


METADATA = {
    "decimal commas": "id;age\n" + rows("s{0};{0},5"),
    "points for missing": "id,age\n" + rows("s{0},{0}.5").replace("s3,3.5", "s3,."),
    "a comment line": "# exported\nid,age\n" + rows("s{0},{0}.5"),
    "a comma in a name": "id;age;site (city, country)\n" + rows("s{0};{0}.5;A"),
    "trailing commas": "id,age\n" + rows("s{0},{0}.5,"),
}


@pytest.mark.parametrize("case", METADATA)
def test_dialects_of_metadata(tmp_path: Path, case: str) -> None:
    age = obs_of(tmp_path, METADATA[case])["age"].tolist()
    wanted = [i + 0.5 for i in range(N)]
    assert [x for x in age if x == x] == [
        x for i, x in enumerate(wanted) if i != 3 or case != "points for missing"
    ]


@pytest.mark.parametrize("ids", [
    [f"{i:03d}" for i in range(90, 90 + N)], [f"{i:03d}" for i in range(N)], [f"{i}.10" for i in range(N)]
])  # fmt: skip
def test_identifiers_stay_text(tmp_path: Path, ids: list[str]) -> None:
    FRAME.set_axis(ids).to_csv(tmp_path / "t.csv", index_label="id")
    pd.DataFrame({"id": ids, "plate": [f"{i:02d}" for i in range(N)], "age": range(N)}).to_csv(
        tmp_path / "m.csv", index=False
    )
    obs = write_dataset(tmp_path / "d.zarr", tmp_path / "t.csv", obs=tmp_path / "m.csv").obs
    assert obs["age"].tolist() == list(range(N))
    assert obs["plate"].iloc[0] == "00"


def test_levels_that_look_missing(tmp_path: Path) -> None:
    text = "id,drug,region\n" + rows("s{0},{1},{1}").replace(",0,0", ",None,NA").replace(",1,1", ",x,EU")
    with pytest.warns(DataWarning, match=r"'NA' in 'region' is taken as missing"):
        obs = obs_of(tmp_path, text)
    assert obs["drug"].tolist()[:2] == ["None", "x"]
    assert obs["region"].tolist()[:2] == [None, "EU"]
    with pytest.warns(DataWarning, match=r"'None' in 'dose' is taken as missing"):
        assert np.isnan(
            obs_of(tmp_path, "id,dose\n" + rows("s{0},{0}").replace("s3,3", "s3,None"))["dose"].iloc[3]
        )
    assert set(obs_of(tmp_path, "id,drug\n" + rows("s{0},None"))["drug"]) == {"None"}
    mostly = "id,age\n" + rows("s{0},{0}").replace("s3,3", "s3,unknown")
    with pytest.warns(
        DataWarning, match=r"column 'age' is text, since 'unknown' is no number \(1 of 12 entries\)"
    ):
        assert obs_of(tmp_path, mostly)["age"].dtype.kind == "O"
    assert np.isnan(obs_of(tmp_path, mostly, na_values={"obs": "unknown"})["age"].iloc[3])


def test_metadata_by_position(tmp_path: Path) -> None:
    """Numbers of the first column name the samples only where they are their names."""
    (tmp_path / "m.csv").write_text("age,dose\n" + rows("{0},{1}"))
    obs = write_dataset(tmp_path / "a.zarr", {"t": VALUES}, obs=tmp_path / "m.csv").obs
    assert obs["age"].tolist() == list(range(N))
    with pytest.raises(InputError, match="no column of sample names among 'age', 'dose'"):
        write_dataset(tmp_path / "b.zarr", {"t": FRAME}, obs=tmp_path / "m.csv")
    numbered = FRAME.set_axis([str(i) for i in range(N)])
    assert list(write_dataset(tmp_path / "c.zarr", {"t": numbered}, obs=tmp_path / "m.csv").obs) == ["dose"]


def test_options_for_metadata_alone(tmp_path: Path) -> None:
    """Where the views are in memory, options of tables are those of the metadata."""
    (tmp_path / "m.csv").write_bytes(("größe;id\n" + rows("{0},5;s{0}")).encode("cp1252"))
    options: dict[str, Any] = {"obs": tmp_path / "m.csv", "encoding": "cp1252"}
    obs = write_dataset(tmp_path / "a.zarr", {"t": FRAME}, index_col="id", **options).obs
    assert obs["größe"].tolist() == [i + 0.5 for i in range(N)]
    with pytest.raises(InputError, match="index_col = name: expected a column of .*m.csv: größe, id"):
        write_dataset(tmp_path / "b.zarr", {"t": FRAME}, index_col="name", **options)
    with pytest.raises(InputError, match="index_col = id: expected nothing"):
        write_dataset(tmp_path / "c.zarr", {"t": FRAME}, obs={"age": range(N)}, index_col="id")


@pytest.mark.parametrize("cell", ["1,25{0}", "{0},5", "1,00{0}.5"])
def test_numbers_with_another_mark_stay_text_with_a_warning(tmp_path: Path, cell: str) -> None:
    text = "id;n;x\n" + rows("s{0};" + cell + ";{0}.5")
    with pytest.warns(DataWarning, match="column 'n' is text, since .* has ',' in it"):
        assert obs_of(tmp_path, text)["n"].dtype.kind == "O"


def test_metadata_in_another_order(tmp_path: Path) -> None:
    """A frame whose rows are only counted is matched by position, if no column says otherwise."""
    meta = pd.DataFrame({"patient": NAMES[::-1], "age": range(N)})
    forms: list[Any] = [meta, meta.to_dict("list")]
    for given in forms:
        with pytest.raises(InputError, match=r"column 'patient' of obs = .*set_index\('patient'\)"):
            write_dataset(tmp_path / "a.zarr", {"t": FRAME}, obs=given)
    in_order = meta.iloc[::-1].reset_index(drop=True).assign(twin=NAMES[::-1])
    assert write_dataset(tmp_path / "b.zarr", {"t": FRAME}, obs=in_order).obs["age"].iloc[0] == N - 1
    few = meta.assign(patient=[*NAMES[:2], *(f"p{i}" for i in range(N - 2))])
    assert write_dataset(tmp_path / "c.zarr", {"t": FRAME}, obs=few).obs["age"].iloc[0] == 0


def test_a_part_of_a_counted_index_names_rows(tmp_path: Path) -> None:
    """Rows 2 to 9 of a frame are not rows 0 to 7 of another."""
    counted = FRAME.reset_index(drop=True)
    with pytest.raises(InputError, match="samples of view 't' = 10 rows without names"):
        write_dataset(tmp_path / "a.zarr", {"t": counted.iloc[:10], "u": counted.iloc[2:]})
    rest = counted.iloc[2:]
    rest.to_parquet(tmp_path / "t.parquet")
    meta = pd.DataFrame({"age": range(N), "batch": list("ab") * (N // 2)})
    batch: Any = meta["batch"]
    meta.iloc[1:].to_parquet(tmp_path / "m.parquet")
    for form, obs in (({"t": rest}, meta), (tmp_path / "t.parquet", tmp_path / "m.parquet")):
        dataset = write_dataset(
            tmp_path / "b.zarr", form, obs=meta.iloc[1:] if obs is meta else obs, overwrite=True
        )
        assert dataset.obs_names.tolist() == [str(i) for i in range(2, N)]
        assert dataset.obs["age"].tolist() == list(range(2, N))
    named = write_dataset(tmp_path / "c.zarr", {"t": rest}, groups=batch.iloc[1:])
    assert named.obs["group"].iloc[0] == "a"
    for given in ({"obs": meta.iloc[2:]}, {"groups": batch.iloc[2:]}):  # of which rows is not known
        with pytest.raises(InputError, match="index of obs|no label for"):
            write_dataset(tmp_path / "d.zarr", {"t": rest.to_numpy()}, **given)


@pytest.mark.parametrize("header", ["id", "anything"])
def test_names_in_a_column_of_a_frame(tmp_path: Path, header: str) -> None:
    """A frame that only counts its rows has its names where a file of it has them."""
    for names in (NAMES, range(5, 5 + N)) if header == "id" else (NAMES,):
        frame = FRAME.set_axis(list(names)).reset_index(names=header)
        frame.to_csv(tmp_path / "t.csv", index=False)
        frame.to_parquet(tmp_path / "t.parquet")
        forms: list[Any] = [{"t": frame}, {"t": pa.table(frame)}, tmp_path / "t.csv", tmp_path / "t.parquet"]
        made = set()
        for form in forms:
            dataset = write_dataset(tmp_path / "d", form, overwrite=True)
            assert dataset.obs_names[0] == str(names[0])
            assert dataset.manifest.views[0].read_as == f"names: column {header!r}"
            made.add(dataset.fingerprint)
        assert len(made) == 1
    labels = pd.DataFrame({header: NAMES[::-1], "site": list("ab") * (N // 2)})
    dataset = write_dataset(tmp_path / "e", {"t": FRAME, "s": labels}, inputs={"s": "categorical"})
    assert dataset.block(0).data["s"][:2].tolist() == [1, 0]


def test_names_of_views_that_have_some(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="features of view 't' = 'c', where the view has 'a'"):
        write_dataset(tmp_path / "a.zarr", {"t": FRAME}, features={"t": ["c", "b", "a"]})
    with pytest.raises(
        InputError, match=r"samples of view 't' = 's11', where the view has 's0' \(number 1\)"
    ):
        write_dataset(tmp_path / "a.zarr", {"t": FRAME}, samples={"t": NAMES[::-1]})
    gap = FRAME.set_axis(pd.Index(pd.array([*NAMES[1:], None], dtype="string")))
    with pytest.raises(InputError, match="sample names of view 't' = none for number 12 of 12"):
        write_dataset(tmp_path / "a.zarr", {"t": gap})
    as_bytes = FRAME.set_axis([name.encode() for name in NAMES])  # as HDF5 has them
    assert write_dataset(tmp_path / "a.zarr", {"t": as_bytes}).obs_names[0] == "s0"


def test_leading_zeros_are_names(tmp_path: Path) -> None:
    dataset = ingest(tmp_path, "patient,a\n" + "".join(f"{i:03d},{i % 5}.5\n" for i in range(N)))
    assert dataset.obs_names[1] == "001"


def test_spellings(tmp_path: Path) -> None:
    meta = pd.DataFrame({"age": range(N)}, ["S0", "s1 ", "s2\u00a0", *NAMES[3:]])
    with pytest.warns(DataWarning, match=r"obs lacks 3 of 12.*spelling alone: 's0' and 'S0', 's1' and 's1 '"):
        write_dataset(tmp_path / "a.zarr", {"t": FRAME}, obs=meta)
    with pytest.raises(InputError, match="Only the spelling differs: 's0' and 'S0'"):
        write_dataset(tmp_path / "b.zarr", {"t": FRAME}, obs=meta.set_axis([name.upper() for name in NAMES]))
    with pytest.warns(
        DataWarning, match=r"1 sample of view 't' and of view 'u' differ in case.*'s3' and 'S3'"
    ):
        write_dataset(tmp_path / "c.zarr", {"t": FRAME, "u": FRAME.rename({"s3": "S3"})})


def test_transposed(tmp_path: Path) -> None:
    FRAME.T.to_csv(tmp_path / "t.csv", index_label="Geneid")
    FRAME.T.to_parquet(tmp_path / "t.parquet")
    with pytest.warns(DataWarning, match="'Geneid': if features are in rows, say transpose=True"):
        write_dataset(tmp_path / "a.zarr", tmp_path / "t.csv")
    forms: list[Any] = [tmp_path / "t.csv", tmp_path / "t.parquet", {"t": FRAME.T}]
    for form in forms:
        holds_frame(write_dataset(tmp_path / "d.zarr", form, transpose=True, overwrite=True))
    dataset = write_dataset(tmp_path / "b.zarr", {"t": FRAME.T, "u": FRAME}, transpose="t")
    np.testing.assert_array_equal(dataset.values("t"), dataset.values("u"))
    with pytest.warns(DataWarning, match=r"transpose=\['t'\]|view 'u' has no sample in common"):
        write_dataset(tmp_path / "c.zarr", {"t": FRAME.T, "u": FRAME})
    with pytest.raises(InputError, match="transpose = v: expected views among t"):
        write_dataset(tmp_path / "e.zarr", {"t": FRAME.T}, transpose=["v"])


def test_numbers_that_name_features(tmp_path: Path) -> None:
    """With features in rows, a first column called so holds their names."""
    text = "gene,101,102,103\n7157,1,2,3\n672,2,3,7\n"
    (tmp_path / "t.csv").write_text(text)
    for form in (tmp_path / "t.csv", {"t": pd.read_csv(tmp_path / "t.csv")}):
        dataset = write_dataset(tmp_path / "d", form, transpose=True, overwrite=True)
        assert dataset.features("t").tolist() == ["7157", "672"]
        assert dataset.obs_names.tolist() == ["101", "102", "103"]


@pytest.mark.parametrize("code", [-2147483648, -9, 999, -999])
def test_codes_of_missing_entries(tmp_path: Path, code: int) -> None:
    rng = np.random.default_rng(0)
    values = rng.poisson(3, (40, 5)).astype("int32")
    where = rng.random(values.shape) < 0.1
    coded = np.where(where, code, values)
    with pytest.warns(DataWarning, match=rf"{where.sum()} entries of {code} in .*na_values=\[{code}\]"):
        write_dataset(tmp_path / "a.zarr", {"x": coded})
    wanted = write_dataset(tmp_path / "b.zarr", {"x": np.where(where, np.nan, values)})
    pd.DataFrame(coded).add_prefix("feature").to_csv(tmp_path / "x.csv", index=False)
    for form in ({"x": coded}, tmp_path / "x.csv"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = write_dataset(tmp_path / "c.zarr", form, na_values=code, overwrite=True)
        assert found.fingerprint == wanted.fingerprint
    one = write_dataset(tmp_path / "d.zarr", {"x": coded, "y": values}, na_values={"x": [code]})
    assert one.views["y"].missing == "none"
    with pytest.warns(DataWarning, match=rf"obs: 1 entry of {code} in 'age'"):
        write_dataset(tmp_path / "e.zarr", {"x": values}, obs={"age": [code, *range(39)]})


def test_codes_in_metadata_of_every_form(tmp_path: Path) -> None:
    meta = pd.DataFrame({"age": [-9, *range(N - 1)], "sex": ["?", *"mf" * (N // 2)][:N], "x": 1.5}, NAMES)
    meta.to_csv(tmp_path / "m.csv")
    meta.to_parquet(tmp_path / "m.parquet")
    forms: list[Any] = [meta, meta.to_dict("list"), tmp_path / "m.csv", tmp_path / "m.parquet"]
    for form in [*forms, meta.astype({"age": "Int64", "sex": "category"})]:
        for codes in ([-9, "?"], {"obs": [-9, "?"]}):
            obs = write_dataset(tmp_path / "d", {"t": FRAME}, obs=form, na_values=codes, overwrite=True).obs
            assert obs["age"].isna().tolist()[:2] == [True, False]
            assert obs["sex"].isna().tolist()[:2] == [True, False]
            assert obs["sex"].iloc[1] == "m"
            assert obs["age"].iloc[1] == 0
            assert obs["x"].iloc[0] == 1.5


@pytest.mark.parametrize("dtype", ["Int64", "UInt64", "int64[pyarrow]"])
def test_long_integers_with_gaps_keep_their_digits(dtype: str, tmp_path: Path) -> None:
    """720575940631797001 is no float64 number; 1 and 2 are, and stay numbers."""
    ids = [None, *(720575940631797000 + i for i in range(1, N))]
    obs = pd.DataFrame({"id": pd.array(ids, dtype=dtype)}, NAMES)  # type: ignore[call-overload]
    obs["age"] = pd.array([None, *range(1, N)], dtype=dtype)  # type: ignore[call-overload]
    obs["site"] = pd.array(range(N), dtype=dtype)  # type: ignore[call-overload]
    obs.to_csv(tmp_path / "o.csv")
    obs.to_parquet(tmp_path / "o.parquet")
    named = pa.Table.from_pandas(obs.reset_index(), preserve_index=False)
    whole = obs.iloc[1:].astype({"id": "int64"})  # a sample is missing
    for form in (obs, tmp_path / "o.csv", tmp_path / "o.parquet", named, whole):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            found = write_dataset(tmp_path / "d", {"t": FRAME}, obs=form, overwrite=True).obs
        assert [str(number) for number in found["id"][1:]] == [str(number) for number in ids[1:]]
        assert found["age"].iloc[1] == 1
        assert found["id"].isna().sum() == found["age"].isna().sum() == 1
        if form is obs:
            assert found.dtypes.tolist() == obs.dtypes.tolist()
        assert found["site"].iloc[-1] == N - 1


def test_groups_and_levels_spelled_differently(tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match="groups differ in case or blanks alone .'A' and 'a ', 'A' and 'a'"):
        write_dataset(tmp_path / "a", {"t": FRAME}, groups=["A", "a ", "a"] * (N // 3))
    views = {"t": FRAME, "k": pd.Series(["x", "X"] * (N // 2), NAMES)}
    with pytest.warns(DataWarning, match="levels of view 'k' differ in case or blanks alone .'X' and 'x'"):
        write_dataset(tmp_path / "b", views, inputs={"k": "categorical"})


def test_arrays_that_may_be_transposed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"If features are in rows, say transpose=\['u'\]"):
        write_dataset(tmp_path / "a", {"t": VALUES, "u": np.ones((4, N))})


def test_texts_for_missing_entries(tmp_path: Path) -> None:
    text = text_of(FRAME).replace(f"{VALUES[2, 1]}", "ND")
    with pytest.raises(InputError, match=r"column 'b' of .*, line 4 = ND.*na_values="):
        ingest(tmp_path, text)
    assert np.argwhere(np.isnan(ingest(tmp_path, text, na_values="ND").values("t"))).tolist() == [[2, 1]]
    labels = np.array(["a", "b", "?"] * (N // 3), dtype=object)
    views = {"t": VALUES, "site": labels}
    dataset = write_dataset(tmp_path / "s.zarr", views, inputs={"site": "categorical"}, na_values=["?"])
    assert dataset.features("site").tolist() == ["a", "b"]


def test_unknown_options(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Did you mean overwrite"):
        write_dataset(tmp_path / "d.zarr", {"t": FRAME}, overwrit=True)
    assert MatrixOptions(index_col=0, na_values=-9).model_dump(exclude_defaults=True) == {
        "index_col": "0",
        "na_values": ["-9"],
    }
    with pytest.raises(InputError, match="sep = ab: expected one character"):
        write_dataset(tmp_path / "d.zarr", {"t": FRAME}, sep="ab")


class FullDisk(io.RawIOBase):
    """A file on a disk that is full."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_not_blamed_on_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FRAME.to_csv(tmp_path / "t.csv")
    opened = Path.open

    def full(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        return FullDisk() if path.suffix == ".values" else opened(path, mode, *args, **options)

    monkeypatch.setattr(tables.Path, "open", full)
    with pytest.raises(RunError, match=r"d\.zarr cannot be written: No space left on device"):
        write_dataset(tmp_path / "d.zarr", tmp_path / "t.csv")


@pytest.mark.parametrize("other", ["p1", "P 1", "P1 ", "P1\xa0", "P1\u200b"])
@pytest.mark.parametrize("what", ["sample", "feature"])
def test_names_of_one_view_spelled_differently(tmp_path: Path, what: str, other: str) -> None:
    axis = "index" if what == "sample" else "columns"
    names = list(getattr(FRAME, axis))
    frame = FRAME.set_axis(["P1", *names[1:-1], other], axis=axis)
    said = f"{what} names of view 't' differ in case or blanks alone ({'P1'!r} and {other!r})"
    with pytest.warns(DataWarning, match=re.escape(said)):
        write_dataset(tmp_path / "a", {"t": frame})
