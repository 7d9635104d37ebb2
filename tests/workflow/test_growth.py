"""Text tables that grew: their new rows are appended, to the dataset that all rows together make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from factorflow import open_dataset, write_dataset
from factorflow.data.ingest import append
from factorflow.data.ingest.append import append_rows
from factorflow.errors import InputError
from factorflow.settings import SourceOptions
from factorflow.workflow import growth, pipeline
from factorflow.workflow.folder import Folder

rng = np.random.default_rng(3)
VALUES = {
    "genes": rng.standard_normal((300, 5)).astype(np.float32),
    "marks": rng.integers(0, 2, (300, 4)).astype(np.float32),
    "counts": rng.poisson(3.0, (300, 3)).astype(np.float32),
}
VALUES["genes"][rng.random((300, 5)) < 0.1] = np.nan
VALUES["marks"][rng.random((300, 4)) < 0.1] = np.nan


def text(view: str, start: int, stop: int, named: bool = True) -> str:
    """Rows of a view as lines of a table."""
    lines = []
    for i in range(start, stop):
        values = ["" if np.isnan(v) else repr(float(v)) for v in VALUES[view][i]]
        lines.append(",".join([f"s{i}", *values] if named else values))
    return "".join(f"{line}\n" for line in lines)


def header(view: str, named: bool = True) -> str:
    names = [f"{view}{d}" for d in range(VALUES[view].shape[1])]
    return ",".join(["sample", *names] if named else names) + "\n"


def write(folder: Path, n: int, named: bool = True) -> Path:
    folder.mkdir(exist_ok=True)
    for view in VALUES:
        (folder / f"{view}.csv").write_text(header(view, named) + text(view, 0, n, named))
    return folder


@pytest.fixture
def appended(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each growth was appended, in order."""
    found: list[bool] = []
    real = growth.append_growth

    def told(*given: Any) -> Any:
        dataset, why = real(*given)
        assert (dataset is None) == bool(why)
        found.append(dataset is not None)
        return dataset, why

    monkeypatch.setattr(pipeline, "append_growth", told)
    return found


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*cannot be sample names")
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("first", "then"), [(40, 41), (100, 300), (256, 290)])
def test_rows_appended_make_the_dataset_of_all(
    tmp_path: Path, appended: list[bool], named: bool, first: int, then: int
) -> None:
    """Equal fingerprints: shapes, names, kinds, checksums; and equal moments. Nothing is left behind."""
    source, folder = write(tmp_path / "in", first, named), Folder.at(tmp_path / "out")
    pipeline.ingest(source, folder)
    assert pipeline.ingest(source, folder)[1] is False
    write(source, then, named)
    grown, changed = pipeline.ingest(source, folder)
    assert changed
    assert named is False or appended == [True]  # a few rows without names may look as if they had some
    whole = write_dataset(tmp_path / "whole.zarr", source)
    assert grown.fingerprint == whole.fingerprint
    for view in VALUES:
        for name, values in whole.moments(view).items():
            np.testing.assert_allclose(grown.moments(view)[name], values, rtol=1e-6)
    assert sorted(path.name for path in folder.path.iterdir()) == ["dataset.zarr", "source.json"]
    assert pipeline.ingest(source, folder)[1] is False


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def other_value(path: Path) -> list[str]:
    lines = lines_of(path)
    return [*lines[:2], "s1,9.0,9.0,9.0", *lines[3:]]


def other_column(path: Path) -> list[str]:
    return [f"{line},{i % 3 if i else 'more'}" for i, line in enumerate(lines_of(path))]


def other_kind(path: Path) -> list[str]:
    return [*lines_of(path)[:-1], "s79,0.5,1.0,2.0"]


@pytest.mark.parametrize(
    "change", [other_value, other_column, other_kind], ids=lambda change: change.__name__
)
def test_all_else_is_ingested_anew(tmp_path: Path, appended: list[bool], change: Any) -> None:
    source, folder = write(tmp_path / "in", 50), Folder.at(tmp_path / "out")
    pipeline.ingest(source, folder)
    path = write(source, 80) / "counts.csv"
    path.write_text("".join(f"{line}\n" for line in change(path)))
    dataset, _ = pipeline.ingest(source, folder)
    assert dataset.fingerprint == write_dataset(tmp_path / "whole.zarr", source).fingerprint
    assert appended == [False]
    said = "the new rows do not fit: " if change is other_kind else "counts.csv did more than grow"
    assert said in folder.ingested()


@pytest.mark.parametrize("change", ["shorter", "as long"])
def test_a_file_that_did_not_grow_is_read_anew(tmp_path: Path, appended: list[bool], change: str) -> None:
    """Rows that went are gone, and other values of the same length are read."""
    source, folder = tmp_path / "genes.csv", Folder.at(tmp_path / "out")
    source.write_text(header("genes") + text("genes", 0, 50))
    pipeline.ingest(source, folder)
    whole = source.read_text()
    lines = whole.splitlines(keepends=True)
    first, _, rest = lines[-1].partition(",")
    turned = f"{first},{'9' if rest[0] != '9' else '8'}{rest[1:]}"
    source.write_text("".join(lines[:-20] if change == "shorter" else [*lines[:-1], turned]))
    assert (len(source.read_text()) == len(whole)) is (change == "as long")
    dataset, changed = pipeline.ingest(source, folder)
    assert (changed, appended) == (True, [False])
    assert dataset.fingerprint == write_dataset(tmp_path / "whole.zarr", source).fingerprint
    assert folder.ingested().endswith("genes.csv did more than grow at the end.")


@pytest.mark.filterwarnings("ignore:.*no line break at its end")
def test_a_last_line_that_was_not_complete_is_read_again(tmp_path: Path, appended: list[bool]) -> None:
    source, folder = write(tmp_path / "in", 50), Folder.at(tmp_path / "out")
    path = source / "counts.csv"
    path.write_text(path.read_text().rstrip("0\n"))
    pipeline.ingest(source, folder)
    write(source, 80)
    dataset, _ = pipeline.ingest(source, folder)
    assert dataset.fingerprint == write_dataset(tmp_path / "whole.zarr", source).fingerprint
    assert appended == [False]


def test_another_file_is_another_view(tmp_path: Path, appended: list[bool]) -> None:
    source, folder = write(tmp_path / "in", 50), Folder.at(tmp_path / "out")
    pipeline.ingest(source, folder)
    (write(source, 80) / "more.csv").write_text(header("counts") + text("counts", 0, 80))
    assert "more" in pipeline.ingest(source, folder)[0].views
    assert appended == [False]
    assert folder.ingested().endswith("80 rows: the files are others: more.csv.")


def test_a_sample_that_comes_twice_is_refused(tmp_path: Path) -> None:
    source, folder = write(tmp_path / "in", 50), Folder.at(tmp_path / "out")
    pipeline.ingest(source, folder)
    path = write(source, 80) / "genes.csv"
    path.write_text(path.read_text().replace("s78,", "s3,"))
    with pytest.raises(InputError, match="s3"):
        pipeline.ingest(source, folder)
    assert open_dataset(folder.dataset).n_rows == 50


def test_a_file_by_itself_and_other_options(tmp_path: Path, appended: list[bool]) -> None:
    source, folder = tmp_path / "genes.csv", Folder.at(tmp_path / "out")
    source.write_text(header("genes") + text("genes", 0, 50))
    pipeline.ingest(source, folder)
    source.write_text(header("genes") + text("genes", 0, 60))
    assert folder.ingested() == ""
    assert pipeline.ingest(source, folder)[0].n_rows == 60
    assert appended == [True]
    assert folder.ingested() == "The new rows of the source were appended: 60 rows now."
    source.write_text(header("genes") + text("genes", 0, 70))
    pipeline.ingest(source, folder, SourceOptions(likelihoods={"genes": "gaussian"}))
    assert appended == [True]
    assert folder.ingested().endswith("70 rows: it was read in another way.")
    held = json.loads(folder.source_record.read_text())["files"]["genes.csv"]
    assert held[0] == source.stat().st_size


def parquet(path: Path, ends: list[int], change: float = 0.0) -> Path:
    """Write a table whose row groups end at these rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {f"genes{d}": VALUES["genes"][: ends[-1], d].copy() for d in range(5)}
    columns["genes0"][0] += change
    table = pa.table({"sample": [f"s{i}" for i in range(ends[-1])], **columns})
    with pq.ParquetWriter(path, table.schema) as out:
        for start, stop in zip([0, *ends[:-1]], ends, strict=True):
            out.write_table(table.slice(start, stop - start))
    return path


def test_row_groups_of_parquet_are_appended(tmp_path: Path, appended: list[bool]) -> None:
    """Those that are there stay as they are, byte for byte; else all is read anew."""
    source, folder = tmp_path / "genes.parquet", Folder.at(tmp_path / "out")
    pipeline.ingest(parquet(source, [30, 50]), folder)
    for ends, change, expected in (
        ([30, 50, 70, 90], 0.0, True),
        ([30, 50, 70, 100], 0.0, False),  # its last group has more rows
        ([30, 50, 70, 100], 1.0, False),
        ([30, 50, 70, 100, 130], 1.0, True),
    ):
        dataset, _ = pipeline.ingest(parquet(source, ends, change), folder)
        whole = write_dataset(tmp_path / "whole.zarr", source, overwrite=True)
        assert dataset.fingerprint == whole.fingerprint
        assert appended.pop() is expected
        assert ("were appended" in folder.ingested()) == expected


def test_what_is_no_such_table_says_so(tmp_path: Path, appended: list[bool]) -> None:
    source, folder = tmp_path / "genes.npz", Folder.at(tmp_path / "out")
    for n in (50, 60):
        np.savez(source, genes=VALUES["genes"][:n])
        assert pipeline.ingest(source, folder)[0].n_rows == n
    assert appended == [False]
    assert "60 rows: only text and Parquet tables can be read from where they ended." in folder.ingested()


def test_what_cannot_be_appended_is_refused(tmp_path: Path) -> None:
    views = {view: values[:50] for view, values in VALUES.items()}
    more = {view: values[50:60] for view, values in VALUES.items()}
    plain = write_dataset(tmp_path / "plain.zarr", views)
    assert append_rows(plain.path, more).n_rows == 60
    for changed, match in (
        ({**more, "other": more["genes"]}, "other"),
        ({"genes": more["genes"]}, "all of the dataset"),
        ({**more, "genes": more["genes"][:, :4]}, "5 features"),
    ):
        with pytest.raises(InputError, match=match):
            append_rows(plain.path, changed)
    grouped = write_dataset(tmp_path / "grouped.zarr", views, groups=["a", "b"] * 25)
    with pytest.raises(InputError, match="with groups"):
        append_rows(grouped.path, more)
    named = write_dataset(tmp_path / "named.zarr", views, samples=[f"s{i}" for i in range(50)])
    with pytest.raises(InputError, match="rows without names"):
        append_rows(named.path, more)
    frame = pd.DataFrame(np.arange(6.0).reshape(2, 3), ["a", "b"], ["x", "y", "z"])
    ordered = write_dataset(tmp_path / "ordered.zarr", {"genes": frame})
    with pytest.raises(InputError, match="the same, in another order"):
        append_rows(ordered.path, {"genes": frame.set_axis(["c", "d"])[["z", "y", "x"]]})
    assert append.__doc__


@pytest.mark.filterwarnings("ignore:.*no line break at its end")
def test_a_number_that_was_written_in_part_is_read_again(tmp_path: Path, appended: list[bool]) -> None:
    """Of one column the rest of a number would be a row of its own."""
    source, folder = tmp_path / "depth.csv", Folder.at(tmp_path / "out")
    options = SourceOptions(index_col=False)
    lines = ["depth", *(f"{value:.6f}" for value in VALUES["genes"][:50, 1] if value == value)]
    source.write_text("\n".join(lines) + "\n12.5")
    assert pipeline.ingest(source, folder, options)[0].n_rows == len(lines)
    source.write_text("\n".join(lines) + "\n12.53\n0.25\n")
    dataset, _ = pipeline.ingest(source, folder, options)
    assert dataset.n_rows == len(lines) + 1
    assert dataset.fingerprint == write_dataset(tmp_path / "whole.zarr", source, index_col=False).fingerprint
    assert appended == [False]
