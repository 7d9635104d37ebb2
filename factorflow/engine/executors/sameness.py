"""Workers whose versions or processors differ compute nothing: their results would not have equal bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from distributed import Client, WorkerPlugin

from factorflow.engine.executors.asking import address_of
from factorflow.engine.executors.environment import environment
from factorflow.errors import InputError

if TYPE_CHECKING:
    from distributed import Worker

__all__ = ["SameEnvironment", "check_environments", "refuse"]

REMEDY = "Install the same environment everywhere; `factorflow doctor --executor ADDRESS` compares them."

_refused: list[InputError] = []
"""On a worker: why it computes nothing of the run, if so."""


class SameEnvironment(WorkerPlugin):
    """Lets a worker whose versions differ fail the first task that it is given, instead of computing it.

    Dask sets a worker up before it takes tasks, also one that joins later: the comparison is made once for a
    process, and no result of other bits gets into a run or its checkpoints. The run ends, rather than going
    on without the worker: Dask cannot keep the tasks of one run from one worker, and to close it would take
    it from others, or have it started again for ever.

    Parameters
    ----------
    expected : dict of str to str
        What `environment` returns on every worker.
    """

    def __init__(self, expected: dict[str, str]) -> None:
        self._expected = expected

    def setup(self, worker: Worker) -> None:
        """Compare; done again (another run), it is the new comparison that counts."""
        found = environment()
        self.teardown(worker)
        differing = _differences(found, self._expected, worker.address)
        if differing:
            _refused.append(_other_bits(differing))

    def teardown(self, worker: Worker) -> None:
        """Forget what was found."""
        _refused.clear()


def check_environments(client: Client) -> dict[str, str]:
    """Compare the versions of workers and client; return those of any worker, with its type of processor.

    Raises
    ------
    InputError
        Naming each difference.
    """
    here = environment()
    try:
        found = client.run(environment, on_error="return")
        there: dict[str, Mapping[str, str]] = {}
        for worker, environment_ in found.items():
            if isinstance(environment_, OSError):  # it has left meanwhile
                continue
            if isinstance(environment_, BaseException):
                raise environment_
            there[worker] = environment_
    except (ImportError, AttributeError, ModuleNotFoundError) as error:
        raise InputError(
            "executor",
            address_of(client),
            f"workers with factorflow {here['factorflow']} installed ({error})",
            "Install the same factorflow on every worker.",
        ) from error
    versions = {name: value for name, value in here.items() if name != "processor"}
    differing = sorted(text for w, found in there.items() for text in _differences(found, versions, w))
    processors = {e.get("processor", "") for e in there.values()}
    if len(processors) > 1:
        differing += sorted(f"processor {e.get('processor')} on {w}" for w, e in there.items())
    if differing:
        raise _other_bits(differing)
    return versions | {"processor": "".join(processors)}


def _differences(found: Mapping[str, str], expected: Mapping[str, str], worker: str) -> list[str]:
    return [
        f"{name} {found.get(name)} on {worker}, {value} {'elsewhere' if name == 'processor' else 'here'}"
        for name, value in expected.items()
        if found.get(name) != value
    ]


def _other_bits(differing: list[str]) -> InputError:
    expected = "the same versions and processor type on all workers (else results would not have equal bits)"
    return InputError("executor", "; ".join(differing), expected, REMEDY)


def refuse() -> None:
    """Raise on a worker of other versions than those of the run.

    Raises
    ------
    InputError
        Naming each difference.
    """
    if _refused:
        raise _refused[0]
