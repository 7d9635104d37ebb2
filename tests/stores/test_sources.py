"""Sources in an object store: what they make is what the same files of a disk make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow
from factorflow.errors import InputError
from factorflow.storage import remote
from factorflow.storage.download import remote_fingerprint
from factorflow.storage.remote import RemotePath
from factorflow.workflow import pipeline
from factorflow.workflow.folder import Folder

Y = np.random.default_rng(0).standard_normal((60, 4))
FRAME = pd.DataFrame(Y, [f"s{i}" for i in range(60)], [f"g{d}" for d in range(4)])


def csv(n: int = 60) -> bytes:
    return FRAME.iloc[:n].to_csv(index_label="sample").encode()


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "folder", "named"])
def test_a_source_is_that_of_the_disk(kind: str, bucket: Any, tmp_path: Path) -> None:
    made = tmp_path / f"rna.{kind}"
    obs = {}
    if kind == "parquet":
        FRAME.to_parquet(made)
    elif kind == "npz":
        np.savez(made, rna=Y, dna=Y[:, :2])
    elif kind == "folder":
        made.mkdir()
        (made / "rna.csv").write_bytes(csv())
        (made / "dna.csv").write_bytes(csv())
    else:
        made = tmp_path / "rna.csv"
        made.write_bytes(csv())
    local: Any = str(made)
    if made.is_dir():
        bucket.copy(made, f"some/{made.name}")
    else:
        bucket.put(f"some/{made.name}", made.read_bytes())
    there: Any = bucket.url(f"some/{made.name}")
    if kind == "named":
        other = pd.DataFrame(Y, FRAME.index)
        local, there = {"a": local, "b": other}, {"a": there, "b": other}
        table = "sample,site\n" + "".join(f"s{i},{i % 3}\n" for i in range(60))
        (tmp_path / "obs.csv").write_text(table)
        bucket.put("obs.csv", table.encode())
        obs = {"obs": bucket.url("obs.csv")}
    expected = factorflow.write_dataset(
        tmp_path / "a.zarr", local, **({"obs": tmp_path / "obs.csv"} if obs else {})
    )
    found = factorflow.write_dataset(tmp_path / "b.zarr", there, **obs)
    assert found.fingerprint == expected.fingerprint
    assert {file.name for file in (tmp_path / "b.zarr").iterdir()} == {
        file.name for file in (tmp_path / "a.zarr").iterdir()
    }


@pytest.mark.parametrize("several", [False, True])
def test_a_long_table(several: bool, bucket: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    table = pd.DataFrame({"count": [3, 0, 2, 5], "site": list("aabb"), "year": [1, 2, 1, 1]})
    table.to_csv(tmp_path / "t.csv", index=False)
    bucket.put("t.csv", (tmp_path / "t.csv").read_bytes())
    local, there = str(tmp_path / "t.csv"), bucket.url("t.csv")
    sources: Any = ([local, local], [there, local]) if several else (local, there)
    made = [
        factorflow.write_table(tmp_path / f"{number}.zarr", source, "count ~ site + year")
        for number, source in enumerate(sources)
    ]
    assert made[0].fingerprint == made[1].fingerprint


def test_an_object_comes_in_pieces_of_one_version(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "RANGE_BYTES", 100)
    content = np.random.default_rng(1).bytes(1234)
    bucket.put("x.bin", content)
    RemotePath(bucket.url("x.bin")).download(tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == content
    bucket.put("empty", b"")
    RemotePath(bucket.url("empty")).download(tmp_path / "empty")
    assert (tmp_path / "empty").read_bytes() == b""
    real, asked = remote.map_concurrently, []

    def replaced(_: bool, function: Any, items: Any) -> Any:
        def each(item: Any) -> Any:
            if asked:
                bucket.put("x.bin", content[::-1])
            asked.append(item)
            return function(item)

        return real(False, each, items)

    monkeypatch.setattr(remote, "map_concurrently", replaced)
    with pytest.raises(InputError, match=r"x\.bin: expected an object that stays as it is"):
        RemotePath(bucket.url("x.bin")).download(tmp_path / "x")


def test_errors_name_the_object(bucket: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"views = s3://\S+/none\.csv: expected a file or folder"):
        factorflow.write_dataset(tmp_path / "d.zarr", bucket.url("none.csv"))
    bucket.put("bad.npz", b"nothing of that kind")
    with pytest.raises(InputError) as caught:
        factorflow.write_dataset(tmp_path / "d.zarr", bucket.url("bad.npz"))
    assert bucket.url("bad.npz") in str(caught.value)
    assert "factorflow-source" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == []


@pytest.mark.parametrize("remote", [False, True])
def test_a_source_is_read_again_when_it_has_changed(
    remote: bool, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what a text table grew by is appended, to a dataset on a disk and in the store."""
    appended, real = list[bool](), pipeline.append_growth

    def told(*given: Any) -> Any:
        found = real(*given)
        appended.append(found[0] is not None)
        return found

    monkeypatch.setattr(pipeline, "append_growth", told)
    bucket.put("y.csv", csv(40))
    source = bucket.url("y.csv")
    out = Folder.at(bucket.url("out") if remote else tmp_path / "out")
    before = remote_fingerprint(RemotePath(source))
    made, changed = pipeline.ingest(source, out)
    assert (made.n_rows, changed, str(made.path)) == (40, True, str(out.dataset))
    assert pipeline.ingest(source, out)[1] is False
    bucket.put("y.csv", csv(60))
    assert remote_fingerprint(RemotePath(source)) != before
    made, changed = pipeline.ingest(source, out)
    assert (made.n_rows, changed) == (60, True)
    made.verify()
    whole = factorflow.write_dataset(tmp_path / "whole.zarr", source)
    assert made.fingerprint == whole.fingerprint
    assert appended == [True]


def test_several_files_of_a_view(bucket: Any, tmp_path: Path) -> None:
    FRAME.iloc[:20].to_csv(tmp_path / "one.csv", index_label="sample")
    FRAME.iloc[20:].to_csv(tmp_path / "two.csv", index_label="sample")
    for name in ("one.csv", "two.csv"):
        bucket.put(name, (tmp_path / name).read_bytes())
    urls = [bucket.url("one.csv"), bucket.url("two.csv")]
    dataset = factorflow.write_dataset(tmp_path / "a.zarr", {"rna": urls})
    assert dataset.obs["file"].tolist() == ["one.csv"] * 20 + ["two.csv"] * (len(FRAME) - 20)
    np.testing.assert_array_equal(dataset.values("rna"), FRAME.to_numpy(np.float32))
