"""Writing at once: whatever happens on the way, a path holds the old content or the new, never less."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import dying
import pytest
from dying import Died, failing

from factorflow.errors import InputError, RunError
from factorflow.storage import local
from factorflow.storage import publish as publishing
from factorflow.storage.local import Lock, atomic_write
from factorflow.storage.publish import current_version, new_directory, new_file, publish, write_file


def write_folder(path: Path, text: str) -> None:
    with new_directory(path, overwrite=True, recognise=lambda _: None) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "text").write_text(text)


def move_folder(path: Path, text: str) -> None:
    """Put a folder that was made elsewhere on the disk in its place."""
    built = path.parent / "built"
    if built.exists():
        shutil.rmtree(built)
    (built / "inner").mkdir(parents=True)
    (built / "inner" / "text").write_text(text)
    publish(built, path)


def read(path: Path) -> str | None:
    found = current_version(path)
    assert isinstance(found, Path)
    path = found
    file = path / "inner" / "text" if path.is_dir() else path
    return file.read_text() if path.exists() else None


WRITERS: dict[str, Callable[[Path, str], None]] = {
    "folder": write_folder,
    "moved folder": move_folder,
    "file": write_file,
}


def steps_of(write: Callable[[Path, str], None], path: Path) -> int:
    """Return how many steps it takes to write over ``path``."""
    with failing(10**9, Died()) as done:
        write(path, "counted")
    return len(done)


def raised(function: Callable[[], None]) -> Exception | None:
    try:
        function()
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize("kind", WRITERS)
def test_killed_at_every_step(kind: str, existing: bool, tmp_path: Path) -> None:
    write = WRITERS[kind]
    write(tmp_path / "counted", "before")
    n_steps = steps_of(write, tmp_path / "counted")
    assert n_steps >= 5
    seen = set()
    for number in range(n_steps):
        path = tmp_path / str(number) / "p"
        path.parent.mkdir()
        if existing:
            write(path, "old")
        with failing(number, Died()), suppress(Died):  # there are fewer steps without anything to replace
            write(path, "new")
        seen.add(read(path))
        assert read(path) in ({"old", "new"} if existing else {None, "new"}), f"step {number}"
        write(path, "newer")
        assert read(path) == "newer"
        assert [p.name for p in path.parent.iterdir()] == ["p"], f"step {number}"
    assert seen == ({"old", "new"} if existing else {None, "new"})


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
import dying
import test_publish

number = int(sys.argv[2])
done = []
def counted(step):
    def do(*args, **kwargs):
        done.append(step)
        if len(done) > number:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*args, **kwargs)
    return do
for name in dying.STEPS:
    setattr(os, name, counted(getattr(os, name)))
test_publish.write_folder(Path(sys.argv[1]), "new")
"""


@pytest.mark.parametrize("number", [0, 2, 5, 7, 8, 9, 11])
def test_killed_for_real(number: int, tmp_path: Path) -> None:
    path = tmp_path / "p"
    write_folder(path, "old")
    folders = str(Path(__file__).parent), str(Path(dying.__file__).parent)
    command = [sys.executable, "-c", KILLED, str(path), str(number), *folders]
    killed = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert killed.returncode == -9, killed.stderr
    assert read(path) in {"old", "new"}
    write_folder(path, "newer")
    assert read(path) == "newer"
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_killed_between_two_renames_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one moment at which nothing is at the path."""
    path = tmp_path / "p"
    write_folder(path, "old")
    empty = 0
    for number in range(steps_of(write_folder, path)):
        write_folder(path, "old")
        with failing(number, Died()), pytest.raises(Died):
            write_folder(path, "new")
        empty += not path.exists()
        assert read(path) in {"old", "new"}
    assert empty > 0


def test_content_is_on_the_disk_before_its_name(tmp_path: Path) -> None:
    for write, n_parts in ((write_folder, 3), (write_file, 1)):
        write(tmp_path / write.__name__, "old")
        with failing(10**9, Died()) as done:
            write(tmp_path / write.__name__, "new")
        moves = [i for i, step in enumerate(done) if step in {"rename", "replace"}]
        last = moves[-1]
        assert done[:last].count("fsync") == n_parts
        assert "fsync" in done[last:]  # of the folder that has the name


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES])
@pytest.mark.parametrize("kind", WRITERS)
def test_errors_of_the_disk_name_the_path(kind: str, number: int, tmp_path: Path) -> None:
    write, path = WRITERS[kind], tmp_path / "p"
    write(path, "old")
    for step in range(steps_of(write, tmp_path / "counted")):
        write(path, "old")
        with failing(step, OSError(number, os.strerror(number))):
            caught = raised(lambda: write(path, "new"))
        if caught is None:  # what was left over could not be removed
            assert read(path) == "new"
        elif kind == "moved folder" and isinstance(caught, OSError):
            assert step < 4  # of the test's own part of it
        else:
            full = number in {errno.ENOSPC, errno.EDQUOT}
            assert isinstance(caught, RunError if full else InputError)
            assert str(path) in str(caught)
            assert os.strerror(number) in str(caught)
            assert ("bytes are free" in str(caught)) is (number == errno.ENOSPC)
        assert read(path) in {"old", "new"}
    write(path, "newer")
    assert [p.name for p in tmp_path.iterdir() if p.name != "counted"] == ["p"]


def test_an_error_in_the_body_leaves_nothing(tmp_path: Path) -> None:
    write_folder(tmp_path / "p", "old")
    with suppress(ZeroDivisionError), new_directory(tmp_path / "p", True, lambda _: None) as folder:
        (folder / "half").touch()
        raise ZeroDivisionError
    with suppress(ZeroDivisionError), new_file(tmp_path / "f") as file:
        file.touch()
        raise ZeroDivisionError
    assert [p.name for p in tmp_path.iterdir()] == ["p"]
    assert read(tmp_path / "p") == "old"


HOLDS = """
import sys
from pathlib import Path
from factorflow.storage.publish import new_directory, new_file
opened = new_file(sys.argv[1]) if sys.argv[2] == "file" else new_directory(sys.argv[1], True, print)
with opened as built:
    print("writing", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_one_writer(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "p"
    command = [sys.executable, "-c", HOLDS, str(path), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"writing\n"
        with pytest.raises(InputError, match="no other process writes") as caught:
            WRITERS[kind](path, "second")
        assert str(path) in str(caught.value)
        first.kill()
    WRITERS[kind](path, "third")
    assert read(path) == "third"
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_one_writer_within_a_process(tmp_path: Path) -> None:
    with new_directory(tmp_path / "p", True, print), pytest.raises(InputError, match="no other process"):
        write_folder(tmp_path / "p", "second")
    with new_file(tmp_path / "f") as file:
        file.touch()
        with pytest.raises(InputError, match="no other process"):
            write_file(tmp_path / "f", "second")
    assert read(tmp_path / "f") == ""


def test_a_lock_of_a_removed_folder_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder removes the folder and lets go after the next one opened it: that one makes it anew."""
    file, flock = tmp_path / "p.partial" / "lock", local.fcntl.flock
    asked = []

    def removed_meanwhile(descriptor: int, how: int) -> None:
        if not asked:
            file.unlink()
            file.parent.rmdir()
        asked.append(how)
        flock(descriptor, how)

    monkeypatch.setattr(local.fcntl, "flock", removed_meanwhile)
    lock = Lock(file, tmp_path / "p")
    assert len(asked) == 2
    with pytest.raises(InputError):
        Lock(file, tmp_path / "p")
    lock.close()


def test_the_lock_is_on_a_file_opened_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS locks those on its server; a lock on a folder is known to one host."""
    locked, flock = [], local.fcntl.flock

    def looked(descriptor: int, how: int) -> None:
        writable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        locked.append(writable and stat.S_ISREG(os.fstat(descriptor).st_mode))
        flock(descriptor, how)

    monkeypatch.setattr(local.fcntl, "flock", looked)
    write_folder(tmp_path / "p", "new")
    assert locked == [True]


@pytest.mark.parametrize("kind", WRITERS)
def test_a_simple_file_system(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No locks, no fsync of folders."""
    fsync = os.fsync

    def no_folders(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    def refuses(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(local.fcntl, "flock", refuses)
    monkeypatch.setattr(os, "fsync", no_folders)
    for text in ("old", "new"):
        WRITERS[kind](tmp_path / "p", text)
        assert read(tmp_path / "p") == text
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_the_previous_version_is_opened_while_a_writer_is_between_two_renames(tmp_path: Path) -> None:
    path = tmp_path / "p"
    write_folder(path, "old")
    lock = Lock(tmp_path / "p.partial" / "lock", path)
    path.rename(tmp_path / "p.previous")
    assert read(path) == "old"
    assert not path.exists()
    lock.close()
    assert read(path) == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_the_previous_version_is_opened_where_it_cannot_be_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that is read only."""
    path = tmp_path / "p"
    write_folder(tmp_path / "p.previous", "old")

    def refuses(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "mkdir", refuses)
    assert read(path) == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["p.previous"]


@pytest.mark.parametrize("killed", [False, True])
def test_a_previous_version_of_someone_else_is_left_alone(killed: bool, tmp_path: Path) -> None:
    """A copy that a user has called so, also where a writer was killed before it renamed anything."""
    write_folder(tmp_path / "p", "old")
    (tmp_path / "p.previous").mkdir()
    (tmp_path / "p.previous" / "letter").write_text("dear")
    if killed:
        (tmp_path / "p.partial").mkdir()
        (tmp_path / "p.partial" / "lock").touch()
    for _ in range(2):
        with pytest.raises(InputError, match=r"p\.previous: expected a path that does not exist"):
            write_folder(tmp_path / "p", "new")
    assert read(tmp_path / "p") == "old"
    assert (tmp_path / "p.previous" / "letter").read_text() == "dear"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p", "p.previous"]


def test_a_previous_version_that_cannot_be_deleted_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, where a reader has files of it open: the next writer deletes it."""
    path, delete = tmp_path / "p", publishing.delete
    write_folder(path, "old")

    def busy(target: Path) -> None:
        if target.name == "p.previous":
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        delete(target)

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "delete", busy)
        write_folder(path, "new")
        assert read(path) == "new"
        with pytest.raises(InputError, match="Directory not empty"):
            write_folder(path, "newer")
    assert read(path) == "new"
    write_folder(path, "newest")
    assert read(path) == "newest"
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_there_is_no_current_version(tmp_path: Path) -> None:
    current_version(tmp_path / "no" / "such" / "path")
    (tmp_path / "p.partial").mkdir()
    current_version(tmp_path / "p")
    current_version("/")
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("kind", WRITERS)
def test_a_folder_of_someone_else_is_left_alone(kind: str, tmp_path: Path) -> None:
    (tmp_path / "p.partial").mkdir()
    (tmp_path / "p.partial" / "letter").write_text("dear")
    with pytest.raises(InputError, match="something else"):
        WRITERS[kind](tmp_path / "p", "new")
    assert (tmp_path / "p.partial" / "letter").read_text() == "dear"
    shutil.rmtree(tmp_path / "p.partial")
    (tmp_path / "p.partial").write_text("dear")
    with pytest.raises(InputError, match="a path that can be written"):
        WRITERS[kind](tmp_path / "p", "new")


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_link_stays_a_link(kind: str, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "p").symlink_to(tmp_path / "disk" / "really")
    for text in ("old", "new"):
        WRITERS[kind](tmp_path / "p", text)
        assert read(tmp_path / "p") == text
    assert (tmp_path / "p").is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["disk", "p"]
    assert [p.name for p in (tmp_path / "disk").iterdir()] == ["really"]


def test_scratch_files_may_have_several_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def another_first(source: Any, target: Any) -> None:
        monkeypatch.setattr(os, "replace", replace)
        atomic_write(target, b"same")
        replace(source, target)

    monkeypatch.setattr(os, "replace", another_first)
    atomic_write(tmp_path / "f", b"same")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"same"


def test_no_folder_for_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        write_file(tmp_path / "no" / "f", "text")
    (tmp_path / "taken").mkdir()
    with pytest.raises(InputError, match="taken"):
        write_file(tmp_path / "taken", "text")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


def test_an_error_between_two_renames_is_undone_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rename = tmp_path / "p", os.rename
    write_folder(path, "old")

    def fails(source: Any, goal: Any) -> None:
        if source == tmp_path / "p.partial" / "p":
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        rename(source, goal)

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(RunError, match="Disk quota exceeded"):
        write_folder(path, "new")
    assert (path / "inner" / "text").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_the_next_writer_puts_back_before_it_clears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill between two renames, without a look at the path: what was there is not cleared away."""

    def fails(*_: Any) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    (tmp_path / "p.partial").mkdir()
    (tmp_path / "p.partial" / "lock").touch()
    (tmp_path / "p.previous").mkdir()
    monkeypatch.setattr(publishing, "_put_in_place", fails)
    with pytest.raises(RunError, match="Disk quota exceeded"):
        move_folder(tmp_path / "p", "new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["built", "p"]


def test_a_linked_workshop_is_refused(tmp_path: Path) -> None:
    """What is made beside a path must be on its disk; a link to nowhere must not be waited for."""
    (tmp_path / "elsewhere").mkdir()
    for goal in ("elsewhere", "nowhere"):
        (tmp_path / "p.partial").symlink_to(tmp_path / goal)
        with pytest.raises(InputError, match="a path that can be written"):
            write_folder(tmp_path / "p", "new")
        (tmp_path / "p.partial").unlink()


def test_a_scratch_file_appears_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="No space left"):
        atomic_write(tmp_path / "f", b"half")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_removed_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder ends between our making sure that it is there and opening it."""
    folder, opening, removed = tmp_path / "p.partial", os.open, []

    def removed_meanwhile(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if path == folder / "lock" and not removed:
            removed.append(folder.rmdir())
        return opening(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", removed_meanwhile)
    write_folder(tmp_path / "p", "new")
    assert read(tmp_path / "p") == "new"
    assert removed


def test_only_what_is_new_is_synced_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, fsync = list[str](), local._fsync
    monkeypatch.setattr(
        local, "_fsync", lambda path: (synced.append(os.path.relpath(path, tmp_path)), fsync(path))
    )
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "a").write_text("a")
    ahead = time.time() + 3600
    for path in (inner / "a", inner, tmp_path):
        os.utime(path, (ahead, ahead))
    folder = local.IncrementalSync(tmp_path)

    def newly_synced() -> list[str]:
        synced.clear()
        folder.sync()
        return sorted(synced)

    assert newly_synced() == [".", "inner", "inner/a"]
    assert newly_synced() == []
    (inner / "b").write_text("written after the clock was set back by an hour")
    assert newly_synced() == ["inner", "inner/b"]
    os.utime(inner / "b", (0, 0))
    assert newly_synced() == []
    atomic_write(inner / "a", b"b", durable=True)  # a new file of the same name, length and age
    os.utime(inner / "a", (ahead, ahead))
    assert newly_synced() == ["inner", "inner/a"]
    (inner / "b").unlink()
    assert newly_synced() == []


def test_a_file_that_is_replaced_is_synced_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(local, "sync", synced.append)
    atomic_write(tmp_path / "f", b"1")
    assert synced == []
    atomic_write(tmp_path / "f", b"2")
    atomic_write(tmp_path / "g", b"2", durable=True)
    assert len(synced) == 2


@pytest.mark.parametrize("growing", [True, False])
def test_what_is_deep_in_a_folder_is_brought_to_the_disk(
    growing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c" / "0").mkdir(parents=True)
    (tmp_path / "c" / "0" / "1").write_text("1")
    synced, fsync = set[str](), local._fsync
    monkeypatch.setattr(local, "_fsync", lambda path: (synced.add(path), fsync(path)))
    local.IncrementalSync(tmp_path).sync() if growing else local.sync(tmp_path)
    assert synced == {str(tmp_path / name) for name in (".", "c", "c/0", "c/0/1")}
