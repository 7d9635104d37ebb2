"""The run record: what is written comes back, and what counts is told from what does not."""

from __future__ import annotations

from typing import Any

import pytest

from factorflow.errors import InputError
from factorflow.posterior.record import Identity, RunRecord
from factorflow.settings import ResumeOptions, RunOptions

ENVIRONMENT = {"factorflow": "1.2", "numpy": "2.0"}


def begun(config: dict[str, Any] | None = None, fingerprint: str = "f", **options: Any) -> RunRecord:
    config = {"model": "m", "views": ["a"], "tol": 1e-3, "names": None} if config is None else config
    return RunRecord.begin("/data.zarr", fingerprint, config, RunOptions(**options), ENVIRONMENT)


OPTIONS = {
    "seed": 3,
    "holdout": 0.25,
    "executor": "tcp://host:1",
    "workers": 2,
    "memory_limit": "1GB",
    "max_iter": 9,
    "max_minutes": 1.5,
    "checkpoint_every": 7,
}


def test_attributes_and_json_come_back() -> None:
    record = begun(**OPTIONS).ended("complete", "[converged]", 8)
    attributes = record.attributes()
    assert all(isinstance(value, str | int | float | None) for value in attributes.values())
    assert attributes["seed"] == 3
    assert attributes["status"] == "complete"
    assert RunRecord.of_attributes({**attributes, "of others": "{"}) == record
    assert RunRecord.model_validate_json(record.model_dump_json()) == record


def test_every_option_is_part_of_the_identity_or_may_change() -> None:
    """An option added to `RunOptions` must be sorted into one of the two."""
    assert set(RunOptions.model_fields) - set(ResumeOptions.model_fields) <= set(Identity.model_fields)
    assert not set(Identity.model_fields) & set(ResumeOptions.model_fields)


def test_damaged_attributes_are_named() -> None:
    attributes = begun().attributes()
    for name, value in (("seed", "three"), ("status", "lost"), ("config", "[1]"), ("max_iter", -1)):
        with pytest.raises(InputError, match=f"attribute {name}"):
            RunRecord.of_attributes({**attributes, name: value})
    del attributes["fingerprint"]
    with pytest.raises(InputError, match="fingerprint"):
        RunRecord.of_attributes(attributes)


def test_differences_name_what_counts() -> None:
    here = begun(seed=1).identity
    assert begun(seed=1, executor="dask", max_iter=3, workers=2).identity == here
    other = begun({"model": "m", "views": ["b"], "tol": 1e-3, "names": None}, seed=2).identity
    assert here.differences(other) == {"seed": (1, 2), "config": ({"views": ["a"]}, {"views": ["b"]})}
    assert here.differences(begun(fingerprint="g", seed=1).identity) == {"fingerprint": ("f", "g")}


@pytest.mark.parametrize(
    ("limit", "reason", "n_iterations", "asked", "answers"),
    [
        (None, "converged", 8, None, True),
        (None, "converged", 8, 8, True),
        (None, "converged", 8, 7, False),  # it would have been stopped before
        (10, "converged", 8, 20, True),
        (8, "max_iter", 8, 8, True),
        (8, "max_iter", 8, 9, False),  # it would have gone on
        (8, "max_iter", 8, None, False),
        (None, "max_iter", 8, 50, True),  # the model's own limit
        (20, "max_iter", 8, None, True),
    ],
)
def test_a_result_answers_for_a_run(
    limit: int | None, reason: str, n_iterations: int, asked: int | None, answers: bool
) -> None:
    complete = begun(max_iter=limit).ended("complete", reason, n_iterations)
    assert complete.answers(begun(max_iter=asked, executor="threads")) is answers
    assert not complete.answers(begun(max_iter=asked, seed=1))
    assert not complete.ended("partial", reason, n_iterations).answers(begun(max_iter=asked))


def test_going_on_keeps_what_decides_the_result() -> None:
    record = begun(**OPTIONS)
    again = record.run_options(ResumeOptions(executor="threads"))
    assert (again.seed, again.holdout, again.device) == (3, 0.25, "cpu")
    assert (again.executor, again.workers, again.max_iter) == ("threads", None, 9)
    assert record.run_options(ResumeOptions(max_iter=50)).max_iter == 50
