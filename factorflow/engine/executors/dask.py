"""The Dask executor: one task per worker and round, on a cluster of its own, an address or a given Client."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from dask._task_spec import Task, parse_input
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import (
    CancelledError,
    Client,
    Future,
    Security,
    WorkerPlugin,
    performance_report,
)
from distributed.exceptions import WorkerStartTimeoutError

from factorflow.engine.executors.asking import ANSWER_SECONDS, address_of, lost, within
from factorflow.engine.executors.environment import ONE_THREAD
from factorflow.engine.executors.facts import Facts, facts_of
from factorflow.engine.executors.liveness import LOOK_SECONDS, Watch
from factorflow.engine.executors.local import Handle, available_memory, cut_evenly
from factorflow.engine.executors.places import placed
from factorflow.engine.executors.sameness import SameEnvironment, check_environments, refuse
from factorflow.errors import FactorflowError, InputError
from factorflow.trees import received

if TYPE_CHECKING:
    from distributed import Worker

__all__ = ["WAIT_SECONDS", "DaskExecutor"]

CACHE_SHARE = 0.2
"""Share of a worker's memory limit that is spent on keeping blocks."""

WAIT_SECONDS = 60.0
"""Time that the first worker of a cluster has to come, where nothing else is said."""

FOLLOW_SECONDS = 5.0
"""Between two looks at who has left and joined."""

CONNECTION_LOST = "scheduler-connection-lost"
"""Dask's name of the reason why all futures of a client are cancelled at once."""

_turns = itertools.count()
"""Executors of this process so far: those that share a cluster begin with workers of their own."""


class DaskExecutor:
    """Runs tasks on the workers of a Dask cluster; workers may leave and join meanwhile.

    Parameters
    ----------
    client : distributed.Client
        Connected to at least one worker, or to a scheduler that is going to have one.
    owned : tuple of closable
        What to close at the end (a cluster that was started for this run, a client that was opened).
    feature_tasks : int
        Tasks that wide statistics are shared among; 0: the root updates them. For a root that has too little
        memory for the statistics of all features.
    threads : int
        Threads of all the workers that are going to be there at most: the data are cut into so many groups,
        whoever has come yet. 0: those that are there.
    wait_seconds : float
        Time to wait for the first worker.
    share : int
        Runs that are to work there at the same time: each has that part of the memory, and begins with
        another worker.

    Raises
    ------
    InputError
        If there is no worker, or the workers' versions differ.
    RunError
        If the scheduler does not answer.
    """

    look_ahead = 2
    rounds_at_once = 4

    def __init__(
        self,
        client: Client,
        owned: tuple[Any, ...] = (),
        feature_tasks: int = 0,
        threads: int = 0,
        wait_seconds: float = WAIT_SECONDS,
        share: int = 1,
    ) -> None:
        self._client, self._owned = client, owned
        self._together: dict[Future[Any], MaterializedLayer] | None = None
        self._turn = next(_turns) % share / share
        self._run = uuid4().hex[:8]
        self._count = itertools.count()
        self._watch = Watch(client, self._run)
        self._address = address_of(client)
        self.n_feature_tasks = feature_tasks
        self.loses_results = True
        self.dashboard = client.dashboard_link
        _wait_for_workers(client, wait_seconds)
        try:
            info = within(ANSWER_SECONDS, self._prepare)
        except (OSError, TimeoutError) as error:
            raise lost(self._address, "does not answer") from error
        self._looked, self._known = time.monotonic(), set(info)
        slots = self._slots(info)
        self._n_groups = max(threads, len(slots))
        self._places = placed(self._n_groups, slots)
        hosts = [info[address]["host"] for address in slots]
        self.n_root_threads = hosts.count(hosts[0])
        limits = [int(w["memory_limit"]) or available_memory() for w in info.values()]
        self.cache_bytes = int(CACHE_SHARE * min(limits)) // share
        each = [m // w["nthreads"] for m, w in zip(limits, info.values(), strict=True)]
        self.memory_bytes = min(each) // share

    def _prepare(self) -> dict[str, Any]:
        """Compare the workers with this process, and let those that join do it; return who is there."""
        expected = check_environments(self._client)
        self._client.register_plugin(SameEnvironment(expected), name="factorflow-same-environment")
        self._client.register_plugin(OneThread(), name="factorflow-one-thread")
        self._client.register_plugin(ErrorsOnce(), name="factorflow-errors-once")
        return self._workers()

    def facts(self, files: tuple[str, ...] = (), datasets: tuple[str, ...] = ()) -> dict[str, Facts]:
        """Return what is known of each worker, by address; paths as for `facts_of`."""
        found: dict[str, Facts] = self._client.run(facts_of, files, datasets)
        return found

    @property
    def address(self) -> str:
        """Address of the scheduler."""
        return self._address

    @property
    def security(self) -> Security:
        """What whoever else connects to the scheduler needs."""
        return cast(Security, self._client.security)

    def cut(self, n_blocks: int) -> list[range]:
        """Return one run of blocks for each thread of each worker that is there, or is going to be."""
        groups = cut_evenly(n_blocks, self._n_groups)
        if len(groups) != len(self._places):
            self._places = placed(len(groups), self._slots(self._workers()))
        return groups

    def constant(self, value: Any) -> Handle:
        """Return a future of a value; kept in the graph, so a lost worker does not lose it."""
        return self.submit("plan", _identity, value)

    def submit(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        group: int | None = None,
        urgent: bool = False,
    ) -> Handle:
        """Submit a task; with a group, to the worker that holds it (any other if that one is gone).

        Raises
        ------
        InputError
            If a worker joined whose results would not have equal bits.
        RunError
            If the scheduler is gone.
        """
        where: dict[str, Any] = {"priority": 1} if urgent else {}
        if group is not None:
            self._follow()
            where |= {"workers": [self._places[group % len(self._places)]], "allow_other_workers": True}
        key = f"{name}-{self._run}-{next(self._count)}"
        if self._together is not None:
            task = Task(key, _call, function, *(parse_input(arg) for arg in args))
            future: Future[Any] = Future(key, self._client)  # before the graph is sent, as the client does
            self._together[future] = MaterializedLayer({key: task}, annotations=where)
            return future
        try:
            return self._client.submit(_call, function, *args, key=key, pure=False, **where)
        except Exception as error:
            self._explain(error)
            raise

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send what is submitted meanwhile as one graph: what the scheduler does for each is most of a round.

        Where that ends in an error, or an interrupt, nothing is sent.
        """
        made: dict[Future[Any], MaterializedLayer] = {}  # held until then: what is released is forgotten
        self._together = made
        try:
            yield
        finally:
            self._together = None
        layers = {str(future.key): layer for future, layer in made.items()}
        try:
            self._client.get(HighLevelGraph(layers, {key: set() for key in layers}), list(layers), sync=False)
        except Exception as error:
            self._explain(error)
            raise

    def result(self, handle: Handle) -> Any:
        """Wait for a result, or for each of a list of them.

        Raises
        ------
        InputError
            If a worker joined whose results would not have equal bits.
        RunError
            If nothing of the run can be computed any more, or the scheduler is gone.
        """
        try:
            self._watch.wait(handle)
            return self._client.sync(self._client._gather, handle, callback_timeout=self._watch.limit)
        except Exception as error:
            self._explain(error)
            raise

    def _explain(self, error: Exception) -> None:
        """Raise what an error of Dask's comes from, where that can be told.

        Raises
        ------
        InputError
            If a worker has other versions than this process.
        RunError
            If the scheduler is gone.
        """
        if isinstance(error, FactorflowError):
            return
        gone = isinstance(error, CancelledError) and getattr(error, "reason", "") == CONNECTION_LOST
        if gone or self._client.status != "running":
            raise lost(self._address, "was lost") from error
        with suppress(OSError, TimeoutError):  # who does not answer cannot be asked
            within(LOOK_SECONDS, lambda: check_environments(self._client))

    def close(self) -> None:
        """Close what was opened for this run, the one also when the other cannot be."""
        with ExitStack() as stack:
            for thing in reversed(self._owned):
                stack.callback(_leave if isinstance(thing, Client) else type(thing).close, thing)

    @contextmanager
    def performance(self, path: Path) -> Iterator[None]:
        """Write Dask's report of what is computed meanwhile: an HTML page with scripts and data in itself."""
        report = performance_report(filename=str(path), mode="inline")
        with self._client.as_current():
            report.__enter__()
        try:
            yield
        finally:
            try:
                with self._client.as_current():
                    report.__exit__(*sys.exc_info())
            except Exception as error:  # a scheduler that is lost: the run has its own error
                warnings.warn(f"no report in {path}: {type(error).__name__}: {error}", stacklevel=4)

    def _workers(self) -> dict[str, Any]:
        """Return what the scheduler knows of each worker, by address."""
        return dict(self._client.scheduler_info(n_workers=-1).get("workers", {}))

    def _follow(self) -> None:
        """Place the groups anew where workers have left or joined since the last look.

        Raises
        ------
        InputError
            If one joined whose results would not have equal bits.
        """
        if time.monotonic() - self._looked < FOLLOW_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            info = within(LOOK_SECONDS, self._workers)
        except (OSError, TimeoutError):  # a scheduler that is lost is met by who waits for a result
            return
        if not info or set(info) == self._known:
            return
        if set(info) - self._known:
            with suppress(OSError, TimeoutError):  # the worker itself has looked too
                within(ANSWER_SECONDS, lambda: check_environments(self._client))
        self._known = set(info)
        self._places = placed(len(self._places), self._slots(info), self._places)

    def _slots(self, info: Mapping[str, Any]) -> list[str]:
        """Return the address of each worker, as often as it has threads; the first is that of this run."""
        slots = [address for address in sorted(info) for _ in range(info[address]["nthreads"])]
        first = int(self._turn * len(slots))
        return slots[first:] + slots[:first]


class OneThread(WorkerPlugin):
    """Gives each worker one BLAS and one Numba thread, once per process."""

    def setup(self, worker: Worker) -> None:
        """Limit the threads; called on every worker, also on those that join later."""
        from threadpoolctl import threadpool_limits

        os.environ.update(ONE_THREAD)
        self._limits = threadpool_limits(limits=1)


class ErrorsOnce(WorkerPlugin):
    """Keeps an error that says all there is to say out of the workers' logs: the run raises it."""

    def setup(self, worker: Worker) -> None:
        """Filter the worker's log; doing it again changes nothing."""
        logging.getLogger("distributed.worker").addFilter(_is_news)


def _call(function: Callable[..., Any], *args: Any) -> Any:
    """Run a function on a worker; its arguments may come from other workers.

    Raises
    ------
    InputError
        If the worker's versions are not those of the run.
    """
    refuse()
    return function(*(received(arg) for arg in args))


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line of a worker's log is anything but the failure of a task with an error of ours.

    A heartbeat that no scheduler answers stays, as a line without its traceback: a cluster that closes while
    a worker sends one leaves it, whatever the run's own end.
    """
    if str(record.msg).startswith("Failed to communicate with scheduler during heartbeat"):
        record.exc_info = None
    values = record.args if isinstance(record.args, tuple) else ()  # among them the exception's repr
    ours = any(str(value).startswith(("InputError(", "RunError(")) for value in values)
    return not (ours and str(record.msg).startswith("Compute Failed"))


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, asyncio.CancelledError)


def _wait_for_workers(client: Client, seconds: float) -> None:
    try:
        within(seconds + ANSWER_SECONDS, lambda: client.wait_for_workers(1, timeout=seconds))
    except OSError as error:
        if not isinstance(error, WorkerStartTimeoutError):  # TimeoutError, too, is an OSError
            raise lost(address_of(client), "does not answer") from error
        raise InputError(
            "executor",
            address_of(client),
            f"a cluster with at least one worker within {seconds:.0f} s",
            "Start `dask worker`; where workers are asked for: why does none come (queue, quota, image)?",
        ) from error


def _leave(client: Client) -> None:
    """Close a client; a scheduler that does not answer has nothing to be told."""
    if client.status != "running":  # it tries to reconnect, and would log the end of that with a traceback
        logging.getLogger("distributed.client").addFilter(_is_no_cancellation)
    with suppress(OSError, TimeoutError):
        client.close()


def _identity(value: Any) -> Any:
    return value
