"""An ingest is published at once or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from factorflow.data import open_dataset, write_dataset
from factorflow.errors import InputError, RunError
from factorflow.storage.local import check_space

Y = np.random.default_rng(5).standard_normal((200, 6))

SLOW = """
import signal, sys, time
import numpy as np
from factorflow.data import write_dataset

class Slow:
    shape, dtype = (6400, 50), np.dtype("float32")
    def __getitem__(self, rows):
        print("reading", rows.start, flush=True)
        time.sleep(0.02)
        return np.random.default_rng(rows.start).standard_normal((rows.stop - rows.start, 50))

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs of a shell
write_dataset(sys.argv[1], {"y": Slow()}, {"y": "gaussian"}, block_rows=32, overwrite=True)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("existing", "number"),
    [
        (True, signal.SIGKILL),
        (False, signal.SIGINT),
        pytest.param(False, signal.SIGKILL, marks=pytest.mark.thorough),
        pytest.param(True, signal.SIGINT, marks=pytest.mark.thorough),
    ],
)
def test_killed_ingest_leaves_nothing_that_opens(tmp_path: Path, existing: bool, number: int) -> None:
    target = tmp_path / "s"
    before = write_dataset(target, {"y": Y}).fingerprint if existing else None
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(target)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    while b"reading 640" not in process.stdout.readline():
        pass
    with pytest.raises(InputError, match="no other process writes"):
        write_dataset(target, {"y": Y}, overwrite=True)
    process.send_signal(number)
    process.wait()
    process.stdout.close()
    partial = tmp_path / "s.partial"
    assert partial.exists() is (number == signal.SIGKILL)
    for left in (partial, partial / "s"):
        with pytest.raises(InputError):
            open_dataset(left)
    if existing:
        dataset = open_dataset(target)
        assert dataset.fingerprint == before
        dataset.verify()
    else:
        with pytest.raises(InputError, match="does not exist"):
            open_dataset(target)
    after = write_dataset(target, {"y": Y}, overwrite=existing)  # the next ingest clears up
    np.testing.assert_array_equal(after.values("y"), Y.astype(np.float32))
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_killed_between_two_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a moment without any: the previous one is opened, and renamed back."""
    target = tmp_path / "s"
    before = write_dataset(target, {"y": Y})
    rename = os.rename

    def dies(source: Path, goal: Path) -> None:
        if goal == target:
            monkeypatch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(SystemExit))
            raise SystemExit
        rename(source, goal)

    monkeypatch.setattr(os, "rename", dies)
    with pytest.raises(SystemExit):
        write_dataset(target, {"y": Y + 1}, overwrite=True)
    monkeypatch.setattr(os, "rename", rename)
    assert not target.exists()
    assert open_dataset(target).fingerprint == before.fingerprint
    after = write_dataset(target, {"y": Y + 1}, overwrite=True)
    assert after.fingerprint != before.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_existing_output(tmp_path: Path) -> None:
    target = tmp_path / "s"
    first = write_dataset(target, {"y": Y})
    with pytest.raises(InputError, match="overwrite=True"):
        write_dataset(target, {"y": Y})
    with pytest.raises(InputError, match="finite"):
        write_dataset(target, {"y": np.where(Y > 2, np.inf, Y)}, overwrite=True)
    assert open_dataset(target).fingerprint == first.fingerprint
    second = write_dataset(target, {"y": Y + 1}, overwrite=True)
    assert open_dataset(target).fingerprint == second.fingerprint != first.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_never_overwrites_something_else(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("text")
    for name in ("home", "file"):
        with pytest.raises(InputError, match="not a factorflow result"):
            write_dataset(tmp_path / name, {"y": Y}, overwrite=True)
    assert (tmp_path / "home" / "letter.txt").exists()
    (tmp_path / "empty").mkdir()
    write_dataset(tmp_path / "empty", {"y": Y}, overwrite=True)


def test_unwritable_output(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(InputError, match="a path that can be written"):
        write_dataset(tmp_path / "file" / "s", {"y": Y})
    with pytest.raises(InputError, match="a path that can be written"):
        write_dataset("/proc/nothing/s", {"y": Y})


def test_failing_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("factorflow.data.ingest.ingest.write_store", full)
    with pytest.raises(RunError, match=r"s cannot be written: No space left .* bytes are free at"):
        write_dataset(tmp_path / "s", {"y": Y})
    assert list(tmp_path.iterdir()) == []


def test_space_is_checked_first(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"room for 1000000000\.00 GB"):
        check_space(tmp_path, 10**18)
    check_space(tmp_path, 1)


def test_unreadable_source_is_not_taken_for_the_output(tmp_path: Path) -> None:
    class Broken:
        shape, dtype = (10, 2), np.dtype("float32")

        def __getitem__(self, rows: slice) -> np.ndarray:
            raise OSError(5, "Input/output error", "tape.h5")

    with pytest.raises(InputError, match=r"tape\.h5"):
        write_dataset(tmp_path / "s", {"y": Broken()})


def test_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = write_dataset("s", {"y": Y})
    assert os.path.isabs(dataset.path)
    assert time.time() - dataset.path.stat().st_mtime < 600
