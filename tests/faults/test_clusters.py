"""Random rounds of what happens to clusters: whatever it is, the result has the bits of a quiet run.

A run in a process of its own, on a scheduler and workers that nobody starts again; at random iterations one
thing or another happens to them, or to the run. What ends it is an error that names resuming, and resuming
finishes it.
"""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from contract_tools import arrays
from fault_tools import RUNS, Case, same_bytes
from processes import Processes, python

import factorflow

SCRIPT = """
import json, sys, time
import factorflow
from factorflow.models import configure
from fault_tools import Case
if __name__ == "__main__":
    dataset, config, on_disk, address, out = json.loads(sys.argv[1])
    def watch(event):
        print(type(event).__name__, flush=True)
        time.sleep(0.05)
    case = Case(factorflow.open_dataset(dataset), configure(config), {}, on_disk)
    case.fit(out, resume="auto", executor=address, on_event=watch)
"""

ROUNDS, OFTEN = 100, (1,)
"""Random rounds, and those of them that CI takes."""

ATTEMPTS = 6
"""Of a round at most: each begins where the one before has left off."""


class Misfortune:
    """What may happen in a round, by name; each leaves somebody to compute, or ends the run.

    Parameters
    ----------
    cluster : Processes
        Where the run computes.
    run : process
        The run.
    choice : Random
        Who meets it.
    """

    NAMES = ("lost", "replaced", "all replaced", "joined", "frozen", "scheduler", "client")

    def __init__(self, cluster: Processes, run: Any, choice: random.Random) -> None:
        self.cluster, self.run, self.choice = cluster, run, choice

    def happen(self, name: str) -> None:
        """Let it happen."""
        workers = self.cluster.workers
        if name == "lost" and len(workers) > 1:
            self.cluster.lose(self.choice.randrange(len(workers)))
        elif name in ("lost", "replaced"):
            self.cluster.lose(self.choice.randrange(len(workers)))
            workers.append(self.cluster.worker())
        elif name == "all replaced":
            number = len(workers)
            while workers:
                self.cluster.lose(0)
            workers.extend(self.cluster.worker() for _ in range(number))
        elif name == "joined":
            workers.append(self.cluster.worker())
        elif name == "frozen":
            frozen = self.choice.choice(workers)
            frozen.send_signal(signal.SIGSTOP)
            threading.Timer(1.5, frozen.send_signal, [signal.SIGCONT]).start()
        elif name == "scheduler":
            self.cluster.scheduler.kill()
        else:
            self.run.kill()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=pytest.mark.thorough if number in OFTEN else pytest.mark.slow)
        for number in range(ROUNDS)
    ],
)
def test_rounds(number: int, cases: Callable[[str], Case], tmp_path: Path) -> None:
    choice = random.Random(number)
    data = cases(RUNS[number % len(RUNS)])
    script = tmp_path / "fit.py"
    script.write_text(SCRIPT)
    out, told = tmp_path / "p.zarr", []
    for attempt in range(ATTEMPTS):
        with Processes(tmp_path, choice.randint(1, 3)) as cluster:
            # The last attempt is left alone.
            happens = {choice.randrange(14): choice.choice(Misfortune.NAMES) for _ in range(3 - attempt)}
            run = python(script, as_text(data, cluster.address, out))
            misfortune = Misfortune(cluster, run, choice)
            for event, _ in enumerate(iter(run.stdout.readline, "")):  # type: ignore[union-attr]
                if event in happens:
                    told.append(f"{attempt}.{event} {happens[event]}")
                    misfortune.happen(happens[event])
            _, error = run.communicate(timeout=200)
        if run.returncode == 0:
            break
        ended_it = {text.split(" ", 1)[1] for text in told if text.startswith(f"{attempt}.")}
        assert ended_it & {"scheduler", "client"}, (told, error[-1500:])
        assert "client" in ended_it or "resume" in error, (told, error[-1500:])
    assert run.returncode == 0, (told, error[-1500:])
    found = arrays(factorflow.open_posterior(out).load())
    assert same_bytes(found, data.expected), told


def as_text(data: Case, address: str, out: Path) -> str:
    """Return what a run is told."""
    config = data.config.model_dump(mode="json")
    return json.dumps([str(data.dataset.path), config, data.on_disk, address, str(out)])
