"""Death, a full disk, a loss of power at any operation on files: nothing is lost, or silently wrong.

Each attempt runs in a process of its own (`faulty.py`), whose operations on files are counted by an audit
hook; at the n-th something happens. CI takes a spread of them, the slow tests all.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from contract_tools import Crash, arrays, fails_after
from fault_tools import CASES, RUNS, Case, same_bytes
from faulty import WRITERS

import factorflow
from factorflow.errors import RunError

SPREAD = 3
"""Moments that CI takes of each kind of attempt."""

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Done:
    """What came of an attempt."""

    returncode: int
    stdout: str
    stderr: str


Attempt = Callable[..., Done]


def child() -> subprocess.Popen[str]:
    """Start what makes attempts."""
    paths = [str(HERE), str(HERE.parent / "contract"), *sys.path]
    return subprocess.Popen(
        [sys.executable, str(HERE / "faulty.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def ask(process: subprocess.Popen[str], work: Path, what: str, fault: str, number: int, **given: Any) -> None:
    """Ask for an attempt; ``number`` is the operation at which the fault comes."""
    assert process.stdin is not None
    process.stdin.write(json.dumps([str(work), what, fault, number, given]) + "\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> Done:
    """Wait for what came of an attempt."""
    assert process.stdout is not None
    return Done(*json.loads(process.stdout.readline()))


@pytest.fixture(scope="module")
def attempt() -> Iterator[Attempt]:
    """Make an attempt in a child."""
    with child() as process:

        def make(work: Path, what: str, fault: str, number: int, **given: Any) -> Done:
            ask(process, work, what, fault, number, **given)
            return answer(process)

        yield make
        process.kill()


def given_to(case: Case) -> dict[str, Any]:
    """Return what a child is told of a case."""
    config = case.config.model_dump(mode="json")
    return {"dataset": str(case.dataset.path), "config": config, "on_disk": case.on_disk}


def attempts(
    attempt: Attempt,
    folder: Path,
    what: str,
    fault: str,
    every: bool,
    begun: Path | None = None,
    **given: Any,
) -> Iterator[tuple[Path, str]]:
    """Make attempts with a fault at one operation after another; yield where each was made, and what it said.

    What there is in ``begun`` is there before.
    """
    work = folder / "work"

    def made(*kind: Any) -> Done:
        shutil.rmtree(work, ignore_errors=True)
        if begun is not None:
            shutil.copytree(begun, work)
        return attempt(work, what, *kind, **given)

    counted = made("none", 0)
    assert counted.returncode == 0, counted.stderr
    total = int(counted.stdout.split("operations: ")[1])
    numbers = range(1, total + 1) if every else (1 + (total - 1) * i // (SPREAD - 1) for i in range(SPREAD))
    for number in numbers:
        done = made(fault, number)
        where = f"operation {number} of {total}: {done.stdout[-300:]}{done.stderr[-1500:]}"
        check_told(done, fault, work, where)
        yield work, where


FAULTS = ("death", "full", "power")

every = pytest.mark.parametrize(
    "every",
    [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])],
    ids=["some", "all"],
)


def in_turn(cases: Sequence[str]) -> Any:
    """Let the last case meet a death, the two before it another fault each in CI; the rest is slow."""
    turns = list(zip(reversed(cases), FAULTS, strict=False))
    marks = {turn: pytest.mark.thorough if number else () for number, turn in enumerate(turns)}
    return pytest.mark.parametrize(
        ("case", "fault"),
        [
            pytest.param(case, fault, marks=marks.get((case, fault), pytest.mark.slow))
            for case in cases
            for fault in FAULTS
        ],
    )


@pytest.mark.thorough
@every
@in_turn(RUNS)
def test_fit(
    case: str,
    fault: str,
    every: bool,
    cases: Callable[[str], Case],
    attempt: Attempt,
    tmp_path: Path,
) -> None:
    """The same command, given again, ends with the result of a run to which nothing happened."""
    data = cases(case)
    for work, where in attempts(attempt, tmp_path, "fit", fault, every, **given_to(data)):
        out = work / "p.zarr"
        if out.exists():
            assert same_bytes(arrays(factorflow.open_posterior(out).load()), data.expected), where
        found = data.fit(out, resume="auto")
        assert same_bytes(arrays(found.load()), data.expected), where
        assert [p.name for p in work.iterdir()] == ["p.zarr"], where


def in_places(places: Sequence[str]) -> Any:
    """Let the first case meet a death in CI, and all of them every fault in the slow tests."""
    first = places[0], FAULTS[0]
    return pytest.mark.parametrize(
        ("case", "fault"),
        [
            pytest.param(
                case, fault, marks=pytest.mark.thorough if (case, fault) == first else pytest.mark.slow
            )
            for case in places
            for fault in FAULTS
        ],
    )


@every
@in_places(RUNS)
def test_resume(
    case: str,
    fault: str,
    every: bool,
    cases: Callable[[str], Case],
    attempt: Attempt,
    tmp_path: Path,
) -> None:
    """A run that died is resumed, dies again, and is resumed with the bits of one that never died."""
    data = cases(case)
    begun = tmp_path / "begun"
    with pytest.raises(RunError, match="Crash"):
        data.fit(begun / "p.zarr", on_event=fails_after("CheckpointWritten", 1, Crash))
    for work, where in attempts(attempt, tmp_path, "resume", fault, every, begun, **given_to(data)):
        out = work / "p.zarr"
        if out.exists():
            assert same_bytes(arrays(factorflow.open_posterior(out).load()), data.expected), where
        assert same_bytes(arrays(data.resume(out).load()), data.expected), where
        assert [p.name for p in work.iterdir()] == ["p.zarr"], where


@every
@in_places(CASES)
def test_replace(
    case: str,
    fault: str,
    every: bool,
    cases: Callable[[str], Case],
    attempt: Attempt,
    tmp_path: Path,
) -> None:
    """A posterior is replaced by that of another seed: at the path is the old one or the new one, whole."""
    data = cases(case)
    begun = tmp_path / "begun"
    old = arrays(data.fit(begun / "p.zarr", seed=4).load())
    for work, where in attempts(attempt, tmp_path, "replace", fault, every, begun, **given_to(data)):
        found = arrays(factorflow.open_posterior(work / "p.zarr").load())
        assert same_bytes(found, old) or same_bytes(found, data.expected), where
        again = data.fit(work / "p.zarr", overwrite=True, resume="auto")
        assert same_bytes(arrays(again.load()), data.expected), where
        assert [p.name for p in work.iterdir()] == ["p.zarr"], where


@pytest.mark.thorough
@every
@in_turn(["sparse", "ingest", "overwrite"])
def test_ingest(case: str, fault: str, every: bool, attempt: Attempt, tmp_path: Path) -> None:
    """What is at the path is the old dataset or the new one, whole."""
    write = WRITERS[case]
    known = {write(tmp_path / f"seed {seed}", seed).fingerprint for seed in (1, 2)}
    for work, where in attempts(attempt, tmp_path, case, fault, every):
        if (work / "d.zarr" / "zarr.json").exists() or case == "overwrite":
            found = factorflow.open_dataset(work / "d.zarr")
            found.verify()
            assert found.fingerprint in known or (case == "sparse" and set(found.views) == {"cells"}), where
        write(work / "d.zarr", 2, overwrite=True).verify()
        assert [p.name for p in work.iterdir()] == ["d.zarr"], where


def check_told(done: Any, fault: str, work: Path, where: str) -> None:
    """A full disk is told by name, with what is free; nothing ends in a raw error."""
    if fault == "full" and done.returncode != 0:
        assert done.returncode == 3, where  # a FactorflowError
        assert "No space left" in done.stdout, where
        assert str(work) in done.stdout, where


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES[:1])
def test_two_writers(case: str, cases: Callable[[str], Case], tmp_path: Path) -> None:
    """Of two fits to one path that start at once, one ends and the other is refused, whoever is first."""
    data = cases(case)
    given = given_to(data)
    with child() as one, child() as other:
        for process in (one, other):
            ask(process, tmp_path / "work", "fit", "none", 0, **given)
        told = [answer(process) for process in (one, other)]
        for process in (one, other):
            process.kill()
    codes = sorted(done.returncode for done in told)
    said = "\n".join(f"{done.stdout}\n{done.stderr}" for done in told)
    assert codes in ([0, 0], [0, 3]), said  # both, where one came after the other had ended
    assert codes == [0, 0] or any("no other" in done.stdout for done in told), told
    out = tmp_path / "work" / "p.zarr"
    assert same_bytes(arrays(factorflow.open_posterior(out).load()), data.expected)
