"""Datasets that are put into an object store: all of it, or nothing that opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorflow
from factorflow.errors import InputError, RunError
from factorflow.storage.publish import upload
from factorflow.storage.remote import RemotePath

Y = np.random.default_rng(0).standard_normal((100, 6)).astype(np.float32)


def write(url: str, y: Any = Y, **options: Any) -> Any:
    return factorflow.write_dataset(url, {"y": y}, block_rows=32, **options)


@pytest.mark.thorough
def test_a_dataset_is_written_as_on_a_disk(bucket: Any, tmp_path: Path) -> None:
    local = write(str(tmp_path / "d.zarr"))
    found = write(bucket.url("d.zarr"))
    assert found.fingerprint == local.fingerprint
    names = {str(file.relative_to(local.path)) for file in local.path.rglob("*") if file.is_file()}
    assert set(bucket.keys()) == {f"d.zarr/{name}" for name in names}
    found.verify()
    factorflow.simulate("sparse_gfa", bucket.url("s.zarr"), n_samples=40).verify()


def test_what_is_there_is_kept_unless_it_may_be_replaced(bucket: Any, tmp_path: Path) -> None:
    url = bucket.url("d.zarr")
    first = write(url)
    with pytest.raises(InputError, match="overwrite=True"):
        write(url, Y + 1)
    again = factorflow.open_dataset(url)
    assert again.fingerprint == first.fingerprint
    other = write(url, Y[:, :4] + 1, overwrite=True)
    other.verify()
    with pytest.raises(InputError, match="replaced while it was in use"):
        first.block(0)
    bucket.put("mine/notes.txt", b"keep me")
    with pytest.raises(InputError, match="It is not a factorflow result"):
        write(bucket.url("mine"), overwrite=True)
    with pytest.raises(InputError, match="that is not within"):
        write(f"{url}/inner.zarr")
    assert "mine/notes.txt" in bucket.keys()


def test_the_root_goes_first_and_comes_last(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a reader of the old dataset notices before any chunk of it is another one's."""
    write(bucket.url("d.zarr"))
    seen: list[bool] = []
    put = RemotePath.put

    def looked(self: RemotePath, content: bytes, *, new: bool = False) -> None:
        if "/d.zarr/" in self.url:
            seen.append("d.zarr/zarr.json" in bucket.keys("d.zarr"))
            assert new == self.url.endswith("/d.zarr/zarr.json"), "only the root is conditional"
        put(self, content, new=new)

    monkeypatch.setattr(RemotePath, "put", looked)
    write(bucket.url("d.zarr"), Y + 1, overwrite=True)
    assert len(seen) > 10
    assert not any(seen)


@pytest.mark.parametrize("error", [OSError("cut"), KeyboardInterrupt()])
@pytest.mark.parametrize("replaces", [False, True])
def test_an_upload_that_is_cut_short(
    replaces: bool, error: BaseException, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket.url("d.zarr")
    if replaces:
        write(url)
    put = RemotePath.put

    def cut(self: RemotePath, content: bytes, *, new: bool = False) -> None:
        if self.url.endswith("y/values/c/1/0"):
            raise error
        put(self, content, new=new)

    with monkeypatch.context() as patch:
        patch.setattr(RemotePath, "put", cut)
        with pytest.raises((RunError, KeyboardInterrupt)) as caught:
            write(url, Y + 1, overwrite=replaces)
    if isinstance(caught.value, RunError):
        assert "nothing that opens is there" in str(caught.value)
        assert ("What was there before is gone" in str(caught.value)) == replaces
    assert bucket.keys() == []
    write(url).verify()


def test_one_writer(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one writes, a second is refused; so it is after a kill, and told what to remove."""
    put, refused = RemotePath.put, list[str]()

    def second(self: RemotePath, content: bytes, *, new: bool = False) -> None:
        if self.url.endswith("y/values/c/1/0") and not refused:
            refused.append("")
            with pytest.raises(InputError) as caught:
                upload(Path(), RemotePath(bucket.url("d.zarr")), replace=True)
            refused[0] = str(caught.value)
        put(self, content, new=new)

    with monkeypatch.context() as patch:
        patch.setattr(RemotePath, "put", second)
        write(bucket.url("d.zarr"))
    assert "a name without another writer" in refused[0]
    assert f"remove the object {bucket.url('d.zarr.writing')}" in refused[0]
    bucket.put("e.zarr.writing", json.dumps({"host": "h", "process": 7, "since": "then"}).encode())
    with pytest.raises(InputError, match="process 7 on h does"):
        write(bucket.url("e.zarr"))
    bucket.delete("e.zarr.writing")
    write(bucket.url("e.zarr")).verify()


def test_a_root_that_appeared_meanwhile_stays(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a writer who took no notice of the other: the last step is refused."""
    put = RemotePath.put

    def late(self: RemotePath, content: bytes, *, new: bool = False) -> None:
        if self.url.endswith("/d.zarr/zarr.json"):
            bucket.put("d.zarr/zarr.json", b"{}")
        put(self, content, new=new)

    monkeypatch.setattr(RemotePath, "put", late)
    with pytest.raises(RunError, match="Another process put it there meanwhile"):
        write(bucket.url("d.zarr"))
    assert bucket.get("d.zarr/zarr.json") == b"{}"


def test_an_answer_that_is_lost(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is sent again finds what it put itself."""
    put = RemotePath.put

    def twice(self: RemotePath, content: bytes, *, new: bool = False) -> None:
        put(self, content, new=new)
        put(self, content, new=new)

    monkeypatch.setattr(RemotePath, "put", twice)
    write(bucket.url("d.zarr")).verify()
    assert "d.zarr.writing" not in bucket.keys()


@pytest.mark.parametrize("room", [0, 1, 2, 9])
def test_a_full_bucket(room: int, bucket: Any, proxy: Any) -> None:
    """A claim does not fit, before the dataset is made or after it; the first object; one of the others."""
    proxy.room = room
    with pytest.raises(RunError, match=r"s3://\S+ is full \(XMinioStorageFull\). Free some space") as caught:
        write(bucket.url("d.zarr"))
    assert "as-sent" not in str(caught.value)
    assert bucket.keys() == []
    proxy.room = 10**6
    write(bucket.url("d.zarr")).verify()


def test_credentials_that_may_not_delete(bucket: Any, proxy: Any) -> None:
    """They are refused before anything is put, and the right is named."""
    proxy.refused, proxy.room, proxy.refusal = {"POST", "DELETE"}, 0, (403, "AccessDenied")
    url = bucket.url("d.zarr")
    with pytest.raises(InputError, match=r"refused \(AccessDenied\): .*delete s3:\S+ \(s3:DeleteObject\)"):
        write(url, iter(()))  # nothing is read
    assert bucket.keys() == []
    proxy.room = 10**6
    write(url).verify()
