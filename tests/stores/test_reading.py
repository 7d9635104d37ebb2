"""Datasets and posteriors in an object store: what is read there is what is read from a disk, or an error."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from contract_tools import assert_same_bits

import factorflow
from factorflow.engine.source import READ_AHEAD, Source
from factorflow.errors import InputError, RunError
from factorflow.storage import checksums, remote
from factorflow.storage.remote import RemotePath
from factorflow.storage.verified_store import VerifiedStore

KEY, SECRET = "an-access-key", "a-secret-that-nobody-may-see"
CONFIG = {"model": "sparse_gfa", "n_factors": 2, "max_iter": 6, "drop": 0}


def values(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    y = rng.standard_normal((160, 2)) @ rng.standard_normal((2, 6)) + rng.standard_normal((160, 6))
    y[3, 2] = np.nan
    return y.astype(np.float32)


def written(path: Path, seed: int = 1, **options: Any) -> Any:
    counts = np.random.default_rng(seed).poisson(0.05, (160, 5)).astype(float)
    counts[5, 1] = np.nan
    views, kinds = {"y": values(seed), "n": counts}, {"n": "poisson"}
    groups = ["a", "b"] * 80
    layout = {"n": "sparse"}
    return factorflow.write_dataset(
        path, views, kinds, groups=groups, block_rows=32, layout=layout, **options
    )


@pytest.fixture
def local(tmp_path: Path) -> Any:
    return written(tmp_path / "d.zarr")


@pytest.fixture
def there(local: Any, bucket: Any) -> str:
    return str(bucket.copy(local.path, "some/d.zarr"))


@pytest.mark.thorough
def test_a_dataset_is_the_one_on_the_disk(local: Any, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = factorflow.open_dataset(there)
    assert (str(found.path), found.fingerprint) == (there, local.fingerprint)
    for number in range(local.n_blocks):
        for view, expected in local.block(number).data.items():
            np.testing.assert_array_equal(found.block(number).data[view], expected)
    np.testing.assert_array_equal(found.obs["group"], local.obs["group"])
    np.testing.assert_array_equal(found.tree["y/values"].values, local.tree["y/values"].values)
    found.verify()
    again = pickle.loads(pickle.dumps(found))
    assert again.fingerprint == found.fingerprint


@pytest.mark.thorough
def test_tiles_of_a_block_are_read_at_once(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("factorflow.data.store.layout.CHUNK_BYTES", 32 * 2 * 4)
    y = np.random.default_rng(0).standard_normal((100, 39)).astype(np.float32)
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"y": y}, block_rows=32)
    assert data.manifest.views[0].tile == 2
    found = factorflow.open_dataset(bucket.copy(data.path, "d.zarr"))
    np.testing.assert_array_equal(found.values("y"), y)


@pytest.mark.thorough
@pytest.mark.parametrize("executor", ["local", "threads"])
def test_a_fit_has_the_same_bits(executor: str, local: Any, there: str) -> None:
    options: dict[str, Any] = {"executor": executor, "holdout": 0.1, "progress": False}
    from_disk = factorflow.fit(local, CONFIG, **options)
    from_store = factorflow.fit(there, CONFIG, **options)
    assert_same_bits(from_store, from_disk)
    assert from_store.run["dataset"] == there


@pytest.mark.slow
def test_workers_open_it_themselves(local: Any, there: str) -> None:
    from_store = factorflow.fit(there, CONFIG, executor="dask", workers=2, progress=False)
    assert_same_bits(from_store, factorflow.fit(local, CONFIG, progress=False))


def test_no_credentials_are_pickled(there: str) -> None:
    data, store = factorflow.open_dataset(there), VerifiedStore(there)
    data.block(0)
    for pickled in map(pickle.dumps, (data, store, data.checksums)):
        assert SECRET.encode() not in pickled
        assert KEY.encode() not in pickled
    assert pickle.loads(pickle.dumps(store)) == store


@pytest.mark.thorough
def test_requests_are_under_way_at_a_time(
    bucket: Any, proxy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of a wide block, and two blocks ahead of the one that is worked on."""
    monkeypatch.setattr("factorflow.data.store.layout.CHUNK_BYTES", 32 * 4 * 4)
    y = np.random.default_rng(0).standard_normal((200, 40)).astype(np.float32)
    local = factorflow.write_dataset(tmp_path / "d.zarr", {"y": y}, block_rows=32)
    found = factorflow.open_dataset(bucket.copy(local.path, "d.zarr"))
    proxy.gather = remote.CONCURRENCY
    np.testing.assert_array_equal(found.block(0).data["y"], y[:32])
    assert proxy.most == remote.CONCURRENCY < local.manifest.n_blocks * 10
    proxy.gather = remote.CONCURRENCY + 1
    source = Source(found, ("y",), None, 0)
    for number, block in enumerate(source.stream(range(local.n_blocks))):
        np.testing.assert_array_equal(block.data["y"], local.block(number).data["y"])
    assert READ_AHEAD * remote.CONCURRENCY >= proxy.most > remote.CONCURRENCY


@pytest.mark.thorough
def test_a_posterior_is_the_one_on_the_disk(local: Any, there: str, bucket: Any, tmp_path: Path) -> None:
    from factorflow.report import write_report

    fitted = factorflow.fit(there, CONFIG, out=tmp_path / "p.zarr", progress=False)
    url = bucket.copy(tmp_path / "p.zarr", "p.zarr")
    found = factorflow.open_posterior(url)
    found.verify()
    np.testing.assert_array_equal(found.scores(), fitted.scores())
    np.testing.assert_array_equal(found.predict("y")["mean"], fitted.predict("y")["mean"])
    assert found.summary() == fitted.summary()
    write_report(found, tmp_path / "r.html")
    assert there in (tmp_path / "r.html").read_text()


@pytest.mark.thorough
def test_a_posterior_is_projected_and_begun_with(local: Any, there: str, bucket: Any, tmp_path: Path) -> None:
    fitted = factorflow.fit(there, CONFIG, out=tmp_path / "p.zarr", progress=False)
    url = bucket.copy(tmp_path / "p.zarr", "p.zarr")
    found = factorflow.open_posterior(url)
    assert_same_bits(found.project(there, progress=False), fitted.project(local, progress=False))
    warm = {"warm_start": url, "progress": False}
    assert_same_bits(factorflow.fit(there, CONFIG, **warm), factorflow.fit(local, CONFIG, **warm))


def test_a_damaged_and_a_vanished_chunk_are_named(there: str, bucket: Any) -> None:
    key = "some/d.zarr/y/values/c/1/0"
    content = bucket.get(key)
    bucket.put(key, content[:8] + bytes([content[8] ^ 1]) + content[9:])
    found = factorflow.open_dataset(there)
    found.block(0)
    for read in (lambda: found.block(1), found.verify):
        with pytest.raises(InputError, match=r"s3://\S*/some/d\.zarr/y/values/c/1/0 = checksum mismatch"):
            read()
    bucket.delete(key)
    with pytest.raises(InputError, match=r"y/values/c/1/0 = No such object.*restore the file"):
        found.block(1)
    with pytest.raises(InputError, match=r"y/values/c/1/0 = is missing"):
        found.verify()


@pytest.mark.parametrize("name", ["y/feature/c/0", "y/feature/zarr.json", "zarr.json"])
def test_other_objects_are_checked_as_well(name: str, there: str, bucket: Any) -> None:
    content = bucket.get(f"some/d.zarr/{name}")
    bucket.put(f"some/d.zarr/{name}", content[:-6] + b" " + content[-6:])
    with pytest.raises(InputError, match=r"d\.zarr"):
        factorflow.open_dataset(there).features("y")
    bucket.delete(f"some/d.zarr/{name}")
    with pytest.raises(InputError, match=r"d\.zarr"):
        factorflow.open_dataset(there).features("y")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["variational/scores/c/0/0", "variational/scores/zarr.json", "zarr.json"])
def test_a_damaged_posterior_does_not_open(name: str, local: Any, bucket: Any, tmp_path: Path) -> None:
    factorflow.fit(local, CONFIG, out=tmp_path / "p.zarr", progress=False)
    url = bucket.copy(tmp_path / "p.zarr", "p.zarr")
    bucket.delete(f"p.zarr/{name}")
    with pytest.raises(InputError, match=r"p\.zarr"):
        factorflow.open_posterior(url)


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["another", "none"])
def test_a_dataset_replaced_during_a_fit(
    what: str, there: str, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("factorflow.engine.run.kept_bytes", lambda *_: 0)
    other = written(tmp_path / "other.zarr", seed=2)

    def watch(event: Any) -> None:
        if type(event).__name__ == "IterationDone" and event.iteration == 3:
            if what == "none":
                bucket.delete("some/d.zarr/zarr.json")
            else:
                bucket.copy(other.path, "some/d.zarr")

    with pytest.raises(InputError, match=r"some/d\.zarr") as caught:
        factorflow.fit(there, CONFIG, on_event=watch)
    assert what == "none" or "replaced while it was in use" in str(caught.value)


def test_credentials_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent with them: it is not the network."""
    pytest.importorskip("obstore")
    key = tmp_path / "key.json"
    key.write_text('{"private_key": "a-secret-that-nobody-may-see"}')
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "x")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "!a-secret-that-nobody-may-see!")
    for url, file in (
        ("gs://b1/d.zarr", key),
        ("gs://b2/d.zarr", tmp_path / "none"),
        ("az://b3/d.zarr", key),
    ):
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        with pytest.raises(InputError, match=f"credentials for {url[:7]} = unreadable") as caught:
            factorflow.open_dataset(url)
        assert "GOOGLE_APPLICATION" in caught.value.remedy or "AZURE_STORAGE" in caught.value.remedy
        assert "nobody" not in str(caught.value)


def test_wrong_credentials(there: str, bucket: Any) -> None:
    """Corrected ones are read by the next request, also where no setting tells that they are others."""
    client = RemotePath(there)._client
    bucket.asks_for_rights("0")
    try:
        with pytest.raises(InputError, match=r"credentials for s3://\S+ = refused") as caught:
            factorflow.open_dataset(there)
    finally:
        bucket.asks_for_rights("inf")
    said = repr(caught.value) + repr(caught.value.__cause__)
    assert "AWS_SECRET_ACCESS_KEY" in said
    assert "an-access-key" not in said
    assert "a-secret" not in said
    assert RemotePath(there)._client is not client
    assert RemotePath(there)._client is RemotePath(there)._client


def test_no_bucket_no_dataset_no_server(there: str, bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for open_ in (factorflow.open_dataset, factorflow.open_posterior):
        with pytest.raises(InputError, match=r"bucket = s3://no-such-bucket: .*Create it"):
            open_("s3://no-such-bucket/d.zarr")
        with pytest.raises(InputError, match="It does not exist"):
            open_(bucket.url("some/other.zarr"))
        with pytest.raises(InputError, match="not a Zarr v3 group"):
            open_(bucket.url("some"))
    found = factorflow.open_dataset(there)
    right = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nobody listens there
    for read in (lambda: factorflow.open_dataset(there), lambda: found.block(1)):
        with pytest.raises(InputError, match=r"store s3://\S+ = no answer: .*Check the network"):
            read()
    monkeypatch.setenv("AWS_ENDPOINT_URL", right)  # corrected in the running session
    assert factorflow.open_dataset(there).fingerprint == found.fingerprint


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("refusal", "state"),
    [
        ((503, "SlowDown"), r"is busy \((SlowDown|503)\)"),
        pytest.param((429, "TooManyRequests"), r"is busy \((TooManyRequests|429)\)", marks=pytest.mark.slow),
        ((500, "InternalError"), r"has an error of its own \((InternalError|500)\)"),
    ],
)
def test_a_store_that_is_busy(
    refusal: Any, state: str, local: Any, there: str, bucket: Any, proxy: Any, tmp_path: Path
) -> None:
    """Exit code 1 after the retries: nothing is wrong with what was given, nor with what is stored."""
    factorflow.fit(local, CONFIG, out=tmp_path / "p.zarr", progress=False)
    found = (
        factorflow.open_dataset(there),
        factorflow.open_posterior(bucket.copy(tmp_path / "p.zarr", "p.zarr")),
    )
    proxy.refused, proxy.room, proxy.refusal = {"GET", "HEAD"}, 0, refusal
    for read in (
        lambda: factorflow.open_dataset(there),
        lambda: found[0].block(1),
        lambda: found[0].features("y"),
        lambda: found[1].scores(),
        lambda: factorflow.open_posterior(bucket.url("p.zarr")),
    ):
        with pytest.raises(RunError, match=rf"s3://\S+ {state}: .* when asked 1 time more") as caught:
            read()
        assert caught.value.exit_code == 1
    asked = proxy.room
    with pytest.raises(RunError):
        RemotePath(there).read()
    assert proxy.room == asked - 2, "once more, as it says"
    with pytest.raises(RunError, match=rf"the run failed .*{state}.*with those\. There is no"):
        factorflow.fit(found[0], CONFIG, progress=False)


def test_an_answer_without_a_text_to_expired_credentials(there: str, bucket: Any, proxy: Any) -> None:
    proxy.refused, proxy.room, proxy.refusal = {"HEAD"}, 0, (400, "ExpiredToken")
    with pytest.raises(
        InputError, match=r"credentials for s3://\S+ = refused \(400\).*may read .*s3:GetObject"
    ):
        RemotePath(there).exists()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3:/x/d.zarr", "takes a slash away"),
        (Path("s3://bucket/d.zarr"), "takes a slash away"),
        ("http://host/d.zarr", "http://host/d.zarr: expected a path, or s3://"),
        ("ftp://me:hidden@host/d.zarr", "ftp://...: expected a path, or s3://"),
        ("s3://me:hidden@bucket/d.zarr", "taken from the environment"),
        ("az://bucket/d.zarr?sig=hidden", "taken from the environment"),
        ("s3://bucket", "Name a bucket and what lies in it"),
        ("s3://bucket/", "Name a bucket and what lies in it"),
        ("s3://bucket/a//b", "Name a bucket and what lies in it"),
        ("s3://bucket/../b", "Name a bucket and what lies in it"),
    ],
)
def test_urls_that_are_refused(url: Any, said: str) -> None:
    pytest.importorskip("obstore")
    for open_ in (factorflow.open_dataset, factorflow.open_posterior):
        with pytest.raises(InputError) as caught:
            open_(url)
        assert said in str(caught.value)
        assert "hidden" not in str(caught.value)


def test_sources_of_other_kinds_are_refused(tmp_path: Path) -> None:
    for source in (Path("s3://bucket/y.csv"), "https://host/y.csv"):
        for write in (
            lambda source: factorflow.write_dataset(tmp_path / "d.zarr", source),
            lambda source: factorflow.write_dataset(tmp_path / "d.zarr", {"y": source}),
            lambda source: factorflow.write_table(tmp_path / "d.zarr", source, "n ~ a"),
        ):
            with pytest.raises(InputError, match="Copy it to a disk|copy it to a disk"):
                write(source)


def test_without_obstore_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(InputError, match=r"factorflow\[cloud\]"):
        factorflow.open_dataset("s3://bucket/d.zarr")


@pytest.mark.thorough
def test_the_command_line_takes_urls(there: str) -> None:
    command = [sys.executable, "-m", "factorflow", "inspect", there, "--verify"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert f"Dataset {there}" in done.stdout
    assert "Every checksum is right" in done.stdout


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Object at README.md")  # the model card
def test_a_posterior_of_many_views_opens_with_few_requests(
    proxy: Any, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for all metadata, one to list the chunks, one for the names of each dimension."""
    views = {f"v{i}": values(i) for i in range(6)}
    data = factorflow.write_dataset(tmp_path / "d.zarr", views, obs={"age": range(160)})
    local = factorflow.fit(data, CONFIG, out=tmp_path / "p.zarr", progress=False, holdout=0.1)
    there = bucket.copy(tmp_path / "p.zarr", "p.zarr")
    found = factorflow.open_posterior(there)
    assert proxy.served <= 25
    assert_same_bits(found, local)
    zarr.open_group(tmp_path / "p.zarr", mode="r+").create_group("own").attrs["note"] = "of a user"
    with pytest.warns(zarr.errors.ZarrUserWarning, match="Consolidated metadata"):
        zarr.consolidate_metadata(str(tmp_path / "p.zarr"))
    there = bucket.copy(tmp_path / "p.zarr", "q.zarr")
    monkeypatch.setattr(checksums, "_verified", {})
    before = proxy.served
    found = factorflow.open_posterior(there)
    assert proxy.served - before <= 25
    np.testing.assert_array_equal(found.scores(), local.scores())
