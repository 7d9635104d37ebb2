"""Event sinks of a run: a log of JSON lines, an endpoint for Prometheus, Dask's report."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from warnings import warn

from factorflow.core.extras import require
from factorflow.engine.events import (
    CheckpointWritten,
    Event,
    GroupsChanged,
    IterationDone,
    OnEvent,
    RunFinished,
    RunStarted,
    StageEntered,
)
from factorflow.engine.executors.local import Executor
from factorflow.engine.source import READING
from factorflow.errors import InputError, OptionText, UnusedWarning
from factorflow.settings import ResumeOptions


@contextmanager
def observers(
    options: ResumeOptions, run: str, model: str, executor: Executor, on_event: OnEvent
) -> Iterator[OnEvent]:
    """Return the listener of a run: the user's, and other requested ones.

    Parameters
    ----------
    run, model : str
        Name of the run, and of the family: said with each event.

    Raises
    ------
    InputError
        If a file cannot be written, or an address cannot be listened at.
    """
    listeners: list[Callable[[Event], None]] = []
    with ExitStack() as stack:
        if options.log_json is not None:
            listeners.append(stack.enter_context(_log(options.log_json, run, model)))
        if options.metrics is not None:
            listeners.append(stack.enter_context(_metrics(options.metrics, run, model)))
        if options.performance_report is not None:
            stack.enter_context(_write_report(options.performance_report, executor))

        def tell(event: Event) -> None:
            for listener in listeners:
                listener(event)
            on_event(event)

        yield tell if listeners else on_event


@contextmanager
def _log(path: str, run: str, model: str) -> Iterator[Callable[[Event], None]]:
    """Give a listener that appends one line an event to a file; one that is full does not end the run."""
    try:
        file = Path(path).expanduser().open("a", encoding="utf-8")
    except OSError as error:
        expected = f"a file that can be written ({error.strerror})"
        raise InputError("log_json", path, expected, "Make its folder, or choose another path.") from error
    writer = _Writer(file, path, {"run": run, "model": model})
    try:
        yield writer.tell
    except BaseException as error:
        writer.write("run_failed", {"error": f"{type(error).__name__}: {error}"})
        raise
    finally:
        writer.close()


class _Writer:
    def __init__(self, file: IO[str], path: str, common: Mapping[str, str]) -> None:
        self._file: IO[str] | None = file
        self._path, self._common = path, common
        self._stage = ""

    def tell(self, event: Event) -> None:
        fields = asdict(event)
        fields.pop("run", None)
        self._stage = fields.pop("stage", self._stage)
        self.write(_name(event), fields)

    def write(self, what: str, record: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "event": what, **self._common, "stage": self._stage or None, **record}
        try:
            self._file.write(json.dumps(_json_value(line), allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            warn(f"the log in {self._path} ends here: {error.strerror}", RuntimeWarning, stacklevel=4)
            self.close()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:  # what could not be written is said already
                return


def _name(event: Event) -> str:
    """Return the name of a kind of events: ``iteration_done``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(event).__name__).lower()


def _json_value(value: Any) -> Any:
    """Return a value for JSON: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


GAUGES = {
    "iterations": "Counted iterations so far.",
    "max_iterations": "Counted iterations at most.",
    "objective": "The bound, or the log joint density of a sampler (mean over chains), in nats.",
    "gain": "Increase of the objective per observed entry since the last iteration, in nats.",
    "iteration_seconds": "Wall-clock time of the last iteration.",
    "run_seconds": "Wall-clock time since the run began.",
    "checkpoint_iteration": "Counted iterations that are safe on disk.",
    "rows": "Samples.",
    "blocks": "Blocks of samples.",
    "groups": "Runs of blocks, one for each worker thread.",
    "finished": "1 once the run has ended in order.",
}
"""Metrics for Prometheus, each as ``factorflow_NAME`` with the labels run and model."""


@contextmanager
def _metrics(where: str, run: str, model: str) -> Iterator[Callable[[Event], None]]:
    """Give a listener that keeps numbers for Prometheus, which fetches them meanwhile."""
    require("prometheus_client", "serves the numbers of a run")
    from prometheus_client import CollectorRegistry, Gauge, start_http_server

    host, _, port = where.rpartition(":")
    registry = CollectorRegistry()
    gauges = {
        name: Gauge(f"factorflow_{name}", about, ("run", "model"), registry=registry)
        for name, about in GAUGES.items()
    }
    stage = Gauge(
        "factorflow_stage", "1 for the stage that runs.", ("run", "model", "stage"), registry=registry
    )
    registry.register(READING)
    try:
        server, thread = start_http_server(int(port), host or "127.0.0.1", registry)
    except OSError as error:
        expected = f"a port that is free, and an address of this machine ({error.strerror})"
        raise InputError("metrics", where, expected, "Choose another.") from error

    numbers = _Numbers()

    def tell(event: Event) -> None:
        if isinstance(event, StageEntered):
            stage.clear()
            stage.labels(run, model, event.stage).set(1)
        for name, value in numbers.of(event).items():
            gauges[name].labels(run, model).set(value)

    try:
        yield tell
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Numbers:
    """The numbers of an event."""

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None

    def of(self, event: Event) -> dict[str, float]:
        """Return the gauges that an event changes."""
        match event:
            case RunStarted():
                sizes = {"rows": event.n_rows, "blocks": event.n_blocks, "groups": event.n_groups}
                done = event.resumed_from or 0
                return {**sizes, "max_iterations": event.max_iter, "iterations": done, "finished": 0}
            case IterationDone():
                numbers = {
                    "iterations": event.iteration,
                    "objective": event.objective,
                    "run_seconds": event.seconds,
                }
                if event.gain is not None:
                    numbers["gain"] = event.gain
                if self._last is not None:
                    seconds, iteration = self._last
                    numbers["iteration_seconds"] = (event.seconds - seconds) / (event.iteration - iteration)
                self._last = event.seconds, event.iteration
                return numbers
            case GroupsChanged():
                return {"groups": event.n_groups}
            case CheckpointWritten():
                return {"checkpoint_iteration": event.iteration}
            case RunFinished():
                return {"finished": 1, "run_seconds": event.seconds, "iterations": event.iterations}
            case _:
                return {}


@contextmanager
def _write_report(path: str, executor: Executor) -> Iterator[None]:
    """Have Dask's report of the run written to a file, an HTML page."""
    record = getattr(executor, "performance", None)
    if record is None:
        text = OptionText("{performance_report} does nothing without Dask workers.", performance_report=path)
        warn(text, UnusedWarning, stacklevel=5)
        yield
        return
    file = Path(path).expanduser()
    try:
        file.touch()
    except OSError as error:
        expected = f"a file that can be written ({error.strerror})"
        remedy = "Make its folder, or choose another path."
        raise InputError("performance_report", path, expected, remedy) from error
    with record(file):
        yield
