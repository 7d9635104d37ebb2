"""Whatever file of a dataset, a posterior or a run is damaged: an error names it, or no number changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract_tools import Crash, arrays, fails_after
from fault_tools import CASES, RUNS, Case, same_bytes

import factorflow
from factorflow.errors import FactorflowError, InputError, RunError

Damage = Callable[[Path], None]


def delete(file: Path) -> None:
    file.unlink()


def shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def flip(share: float) -> Damage:
    """Return what flips one bit of a file, so far into it."""

    def damage(file: Path) -> None:
        content = bytearray(file.read_bytes())
        if content:
            content[min(int(share * len(content)), len(content) - 1)] ^= 1 << int(share * 8999) % 8
            file.write_bytes(content)

    return damage


def edit(file: Path) -> None:
    """Change the first number in a JSON document that a person could have changed; else flip a bit."""
    if file.suffix != ".json":
        return flip(0.5)(file)
    document = json.loads(file.read_text())
    digits = json.dumps(document)
    for place, letter in enumerate(digits):
        if letter in "123456789":
            changed = digits[:place] + ("7" if letter != "7" else "3") + digits[place + 1 :]
            file.write_text(changed)
            return None
    return flip(0.5)(file)


DAMAGES = {
    "deleted": delete,
    "shortened": shorten,
    "emptied": empty,
    "edited": edit,
    **{f"bit at {share}": flip(share) for share in (0.1, 0.9)},
}
TO_RUNS = ("deleted", "edited")
"""What is done to files of a run: each is a fit."""

OFTEN = {"probit": (), "sparse_gfa": pytest.mark.thorough}
"""Whose posteriors are damaged always, or by CI: draws, and means of q; those of others hold nothing else."""

LONG = "identity_attribute"
"""Whose runs are damaged by the slow tests alone: each takes a second, and keeps what the others keep."""

MANY = {"deleted": delete, **{f"bit at {i / 64}": flip(i / 64) for i in range(64)}}
FLIPS = 2
"""Bits of each file that the slow tests flip, one after the other, others in each file."""

some = pytest.mark.parametrize(
    "damages",
    [DAMAGES, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
    ids=["some", "many"],
)


def files_of(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file() and file.name != "writable")


def kinds(files: list[Path], places: Sequence[float]) -> list[Path]:
    """Return files of each place in the tree: the first, a middle one, the last."""
    groups: dict[Any, list[Path]] = {}
    for file in files:
        place = [part for part in file.parts if not part.isdigit()]
        groups.setdefault((tuple(place)), []).append(file)
    return sorted({group[int(share * (len(group) - 1))] for group in groups.values() for share in places})


def damaged(
    folder: Path,
    look: Callable[[Path], dict[str, Any]],
    expected: dict[str, Any],
    damages: dict[str, Damage],
) -> Iterator[str]:
    """Damage the files of a folder one after the other; yield what was silently wrong, or not named."""
    places = (0.0, 0.5, 1.0) if damages is MANY else (0.5,)
    for number, target in enumerate(kinds(files_of(folder), places)):
        here = list(damages.items())
        # One after the other: each kind of damage meets each kind of file in time.
        if damages is MANY:
            here = here[:1] + [here[1 + (29 * number + 31 * i) % (len(here) - 1)] for i in range(FLIPS)]
        else:
            here = here[number % len(here) :][:1]
        for name, damage in here:
            before = target.read_bytes()
            damage(target)
            what = f"{target.relative_to(folder)} {name}"
            try:
                found = look(folder)
            except FactorflowError as error:
                if str(target.parent) not in str(error):
                    yield f"{what}: not named: {error}"
            except Exception as error:
                yield f"{what}: {type(error).__name__}: {error}"
            else:
                if not same_bytes(found, expected):
                    yield f"{what}: other numbers"
            target.write_bytes(before)


def dataset_contents(path: Path) -> dict[str, Any]:
    """Return all that can be read of a dataset."""
    dataset = factorflow.open_dataset(path)
    found: dict[str, Any] = {
        "names": dataset.obs_names,
        "obs": dataset.obs.to_numpy(),
        "joined": dataset.joined,
    }
    for number in range(dataset.n_blocks):
        block = dataset.block(number)
        found |= {f"{number} {view}": values for view, values in block.data.items()}
        found |= {f"{number} {name}": values for name, values in block.columns.items()}
    for view in dataset.views:
        found |= {f"{view} {name}": values for name, values in dataset.moments(view).items()}
        found[f"{view} names"] = dataset.features(view)
    for node in dataset.tree.subtree:
        for name, variable in node.to_dataset(inherit=False).variables.items():
            found[f"{node.path}/{name}"] = variable.values
    return found


def posterior_contents(path: Path) -> dict[str, Any]:
    """Return all that can be read of a posterior."""
    posterior = factorflow.open_posterior(path)
    record = posterior.record.model_dump_json()
    return {**arrays(posterior.load()), "record": np.array(record), "meta": np.array(str(posterior.meta))}


@pytest.fixture(scope="module")
def rich_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with everything a dataset may have."""
    import pandas as pd

    rng = np.random.default_rng(3)
    rna = rng.standard_normal((80, 5)).astype(np.float32)
    rna[3, 2] = np.nan
    mutations = (rng.random((80, 4)) < 0.4).astype(float)
    mutations[7] = np.nan
    path = tmp_path_factory.mktemp("rich") / "d.zarr"
    views = {"rna": rna, "mutations": mutations, "counts": rng.poisson(0.1, (80, 20)).astype(float)}
    factorflow.write_dataset(
        path, views, {"mutations": "bernoulli"}, block_rows=32, layout={"counts": "sparse"},
        samples=[f"s{i}" for i in range(80)], groups=["a", "b"] * 40, sequences=np.repeat(["x", "y"], 40),
        obs=pd.DataFrame({"age": np.zeros(80), "sex": ["m", ""] * 40}),
    )  # fmt: skip
    return path


@pytest.mark.thorough
@some
def test_dataset(damages: dict[str, Damage], rich_dataset: Path) -> None:
    expected = dataset_contents(rich_dataset)
    wrong = list(damaged(rich_dataset, dataset_contents, expected, damages))
    assert not wrong, "\n".join(wrong)


@pytest.mark.thorough
@some
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=OFTEN.get(case.split(":")[0], pytest.mark.slow)) for case in CASES]
)
def test_posterior(
    case: str, damages: dict[str, Damage], cases: Callable[[str], Case], tmp_path: Path
) -> None:
    given = cases(case)
    out = tmp_path / "p.zarr"
    given.fit(out)
    expected = posterior_contents(out)
    wrong = list(damaged(out, posterior_contents, expected, damages))
    assert not wrong, "\n".join(wrong)


@pytest.mark.thorough
@some
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case.startswith(LONG) else ()) for case in RUNS]
)
def test_run(case: str, damages: dict[str, Damage], cases: Callable[[str], Case], tmp_path: Path) -> None:
    """A damaged checkpoint is refused, or the run ends as it would have ended."""
    given = cases(case)
    out = tmp_path / "p.zarr"
    with pytest.raises(RunError, match="Crash"):
        given.fit(out, on_event=fails_after("CheckpointWritten", 2, Crash))
    original = Path(f"{out}.run")
    if damages is not MANY:
        damages = {name: damages[name] for name in TO_RUNS}

    def resumed(run: Path) -> dict[str, Any]:
        again = tmp_path / "again"
        shutil.rmtree(again, ignore_errors=True)
        shutil.copytree(run, again / "p.zarr.run")
        try:
            return arrays(given.resume(again / "p.zarr"))
        except FactorflowError as error:
            raise RunError(str(error).replace(str(again), str(tmp_path))) from error

    wrong = list(damaged(original, resumed, given.expected, damages))
    assert not wrong, "\n".join(wrong)


def changed_digits(file: Path) -> Iterator[str]:
    """Change digits of a JSON document, sixteen spread over it, one at a time; yield what each was."""
    text = file.read_text()
    places = [place for place, letter in enumerate(text) if letter.isdigit()]
    for place in places[:: max(1, len(places) // 16)]:
        changed = text[:place] + ("7" if text[place] != "7" else "3") + text[place + 1 :]
        file.write_text(changed)
        yield f"{file.name}: ...{changed[max(0, place - 40) : place + 20]}"
    file.write_text(text)


@pytest.mark.thorough
def test_a_changed_digit_in_what_holds_the_checksums(
    rich_dataset: Path, cases: Callable[[str], Case], tmp_path: Path
) -> None:
    """Of a dataset, a posterior, a checkpoint: the file says of itself that it was changed."""
    out = tmp_path / "p.zarr"
    given = cases(CASES[0])
    given.fit(out)
    with pytest.raises(RunError, match="Crash"):
        given.fit(tmp_path / "q.zarr", on_event=fails_after("CheckpointWritten", 1, Crash))
    for file, use in (
        (rich_dataset / "zarr.json", lambda: factorflow.open_dataset(rich_dataset)),
        (out / "zarr.json", lambda: factorflow.open_posterior(out)),
        (tmp_path / "q.zarr.run" / "manifest.json", lambda: factorflow.resume(tmp_path / "q.zarr")),
    ):
        for what in changed_digits(file):
            with pytest.raises(InputError) as caught:
                pytest.fail(f"not noticed: {what} {use()!r:.60}")
            said = str(caught.value)
            assert "version" in said or (file.name in said and "checksum" in said), (what, said)
