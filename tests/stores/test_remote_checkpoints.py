"""Checkpoints of runs to an object store: another machine goes on with them, and two do not mix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract_tools import assert_same_bits

import factorflow
from factorflow.engine.remote_checkpoints import RemoteCheckpoints
from factorflow.engine.run_directory import RunDirectory
from factorflow.errors import InputError, RunError
from factorflow.storage.location import as_location
from factorflow.storage.remote import RemotePath

GFA = {"model": "sparse_gfa", "n_factors": 2, "max_iter": 8, "drop": 0}
PROBIT = {"model": "probit", "n_factors": 2, "n_burn_in": 3, "n_draws": 6}
CASES = {
    "sweeps": (GFA, 5, "state.tree"),
    "local state on disk": ({**GFA, "warmup_iter": 2}, 5, "/local-00000000"),
    "draws": (PROBIT, 5, "posterior.zarr/"),
}
"""Configuration, iterations before the end, and what has to be among the objects by then."""


@pytest.fixture
def data(tmp_path: Path) -> Any:
    rng = np.random.default_rng(0)
    y = rng.standard_normal((120, 2)) @ rng.standard_normal((2, 6)) + rng.standard_normal((120, 6)) > 0
    views = {"y": y.astype(np.int8)}
    return factorflow.write_dataset(tmp_path / "d.zarr", views, {"y": "bernoulli"}, block_rows=32)


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call with the name of the machine that runs come from."""

    def machine(name: str) -> Path:
        monkeypatch.setenv("FACTORFLOW_RUNS", str(tmp_path / name))
        return tmp_path / name

    machine("first")
    return machine


class End:
    """Ends a run after so many iterations, and keeps their numbers."""

    def __init__(self, after: int = 10**6, error: BaseException | None = None) -> None:
        self.after, self.error, self.seen = after, error or ValueError("stop"), []

    def __call__(self, event: Any) -> None:
        if type(event).__name__ == "IterationDone":
            self.seen.append(event.iteration)
            if len(self.seen) == self.after:
                raise self.error


def fit(data: Any, out: Any = None, config: Any = GFA, **options: Any) -> Any:
    return factorflow.fit(data, config, out=out, **({"progress": False, "checkpoint_every": 2} | options))


def cut_off(data: Any, url: str, after: int = 5, **options: Any) -> None:
    """Begin a run, or go on with it, and end it after so many iterations."""
    with pytest.raises(RunError, match="stop"):
        fit(data, url, on_event=End(after), **options)


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_another_machine_goes_on(
    case: str, data: Any, bucket: Any, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, after, held = CASES[case]
    url, whole, end = bucket.url("p.zarr"), fit(data, config=config), End()
    if case != "sweeps":
        monkeypatch.setattr("factorflow.engine.run.local_must_spill", lambda *_: True)
    cut_off(data, url, after, config=config)
    assert any(held in key for key in bucket.keys("p.zarr.run"))
    first = RunDirectory(as_location(url)).path
    first.rename(first.with_name("gone"))  # what refers to the old place is not found
    second = at("second")
    found = factorflow.resume(url, progress=False, on_event=end)
    assert min(end.seen) > 1
    found.verify()
    assert_same_bits(found, whole)
    assert all(key.startswith("p.zarr/") for key in bucket.keys())
    assert list(second.iterdir()) == []


@pytest.mark.thorough
def test_back_on_the_first_machine(data: Any, bucket: Any, at: Any) -> None:
    """What the second machine found counts, not the older checkpoint on the disk of the first."""
    url, end = bucket.url("p.zarr"), End()
    cut_off(data, url, after=3)
    at("second")
    with pytest.raises(InputError, match=r"s3://\S+/p\.zarr\.run holds one"):
        fit(data, url)
    cut_off(data, url, after=4, resume=True)
    at("first")
    assert_same_bits(fit(data, url, resume="auto", on_event=end), fit(data))
    assert min(end.seen) > 4


@pytest.mark.thorough
def test_who_is_overtaken_ends(data: Any, bucket: Any, at: Any, tmp_path: Path) -> None:
    url, folder = bucket.url("p.zarr"), tmp_path / "second" / "p.run"

    def watch(event: Any) -> None:
        if type(event).__name__ == "IterationDone" and event.iteration == 3:
            other = RemoteCheckpoints(folder, as_location(url))
            assert other.download()
            other.take_over(resuming=True)

    with pytest.raises(RunError, match="was taken over by process"):
        fit(data, url, on_event=watch)
    assert "p.zarr.run/manifest.json" in bucket.keys()
    assert_same_bits(factorflow.resume(url, progress=False), fit(data))


@pytest.mark.thorough
def test_a_new_run_replaces_what_another_machine_left(data: Any, bucket: Any, at: Any) -> None:
    url = bucket.url("p.zarr")
    cut_off(data, url)
    at("second")
    assert_same_bits(fit(data, url, seed=1, overwrite=True), fit(data, seed=1))
    assert all(key.startswith("p.zarr/") for key in bucket.keys())


@pytest.mark.thorough
def test_a_store_that_is_away_costs_a_warning(data: Any, bucket: Any, at: Any, proxy: Any) -> None:
    def watch(event: Any) -> None:
        if type(event).__name__ == "IterationDone":
            proxy.room = 0 if event.iteration < 5 else 10**6

    with pytest.warns(RuntimeWarning, match=r"is in \S+ alone, it could not be put into s3:\S+/p.zarr.run"):
        found = fit(data, bucket.url("p.zarr"), on_event=watch)
    assert_same_bits(found, fit(data))


@pytest.mark.thorough
@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3, 4)), 2, 5])
def test_death_at_each_request(
    number: int, data: Any, bucket: Any, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the third checkpoint: each put before it, and the removal of the old one."""
    url, left = bucket.url("p.zarr"), number
    with monkeypatch.context() as patch:
        for name in ("put", "put_file", "unlink_within"):
            function = getattr(RemotePath, name)

            def counted(self: RemotePath, given: Any, *, _function: Any = function, **options: Any) -> None:
                nonlocal left
                if "p.zarr.run" in self.url and armed:
                    left -= 1
                    if left < 0:
                        raise KeyboardInterrupt
                _function(self, given, **options)

            patch.setattr(RemotePath, name, counted)
        armed = False

        def watch(event: Any) -> None:
            nonlocal armed
            armed = type(event).__name__ == "IterationDone" and event.iteration >= 5

        with pytest.raises(KeyboardInterrupt):
            fit(data, url, on_event=watch)
    at("second")
    assert_same_bits(factorflow.resume(url, progress=False), fit(data))


@pytest.mark.thorough
@pytest.mark.parametrize("damaged", [True, False])
def test_what_is_damaged_is_named(damaged: bool, data: Any, bucket: Any, at: Any) -> None:
    url = bucket.url("p.zarr")
    cut_off(data, url)
    key = next(key for key in bucket.keys("p.zarr.run") if key.endswith("state.tree"))
    if damaged:
        bucket.put(key, bucket.get(key)[:-1] + b"!")
    else:
        bucket.delete(key)
    at("second")
    with pytest.raises((InputError, RunError), match=r"state\.tree.*Run anew with overwrite=True"):
        factorflow.resume(url, progress=False)
