"""The Dask executor: one task per worker and round, on a local cluster, an address, a client or a cluster."""

from __future__ import annotations

import itertools
import operator
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import uuid4
from weakref import WeakSet

from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.task_spec import List, Task
from distributed import CancelledError, Client, Future, KilledWorker, Security, performance_report

from factorflow.engine.executors.assignment import assign_groups, cut_aligned
from factorflow.engine.executors.environment import Environment, compare_environments
from factorflow.engine.executors.liveness import LOOK_SECONDS, Watch
from factorflow.engine.executors.local import Function, Handle, StalledError, available_memory
from factorflow.engine.executors.timeouts import (
    ANSWER_SECONDS,
    address_of,
    close_client,
    dashboard_of,
    scheduler_lost_error,
    within,
    workers_of,
)
from factorflow.engine.executors.worker_info import (
    WorkerInfo,
    job_lines,
    missing_paths,
    usable_share,
    worker_info,
)
from factorflow.engine.executors.worker_tasks import call, identity, leave_pool, reference
from factorflow.errors import FactorflowError, InputError, RunError

CACHE_SHARE = 0.2
"""Share of a worker's memory limit that is spent on keeping blocks."""

WAIT_SECONDS = 60.0
"""Time that the first worker of a cluster has to come, where nothing else is said."""

FOLLOW_SECONDS = 5.0
"""Between two looks at who has left and joined."""

CONNECTION_LOST = "scheduler-connection-lost"
"""Dask's name of the reason why all futures of a client are cancelled at once."""

_executor_numbers = itertools.count()
"""Executors of this process so far: those that share a cluster begin with workers of their own."""


class DaskExecutor:
    """Runs tasks on the workers of a Dask cluster; workers may leave and join meanwhile.

    Nothing is registered on the cluster: each task compares its process with the run.

    Parameters
    ----------
    client : distributed.Client
        Connected to at least one worker, or to a scheduler that is going to have one.
    owned : tuple of closable
        What to close at the end, in this order (a client that was opened, a cluster that was started).
    workers : int
        Workers that are going to be there at most: the data are cut into as many groups as those have
        threads, whoever has come yet. 0: those that are there.
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
    joins_groups = True
    loses_results = True
    n_feature_tasks: int | None = None

    def __init__(
        self,
        client: Client,
        owned: tuple[Any, ...] = (),
        workers: int = 0,
        wait_seconds: float = WAIT_SECONDS,
        share: int = 1,
    ) -> None:
        self._client, self._owned = client, owned
        self.address = address_of(client)
        self.dashboard = dashboard_of(client)
        self._offset = next(_executor_numbers) % share / share
        self._run = uuid4().hex[:8]
        self._count = itertools.count()
        self._futures: WeakSet[Future[Any]] = WeakSet()
        self._graph: dict[Future[Any], MaterializedLayer] | None = None
        self._paths: tuple[str, ...] = ()
        self._preparing: list[Handle] = []
        self._watch = Watch(client, self.address)
        with ExitStack() as stack:
            leave_pool(stack)
            self._wait_for_workers(wait_seconds)
            self._environment: Environment = self._ask(lambda: compare_environments(client))
            info = self._ask(lambda: workers_of(client))
            shares = self._ask(lambda: client.run(usable_share, on_error="ignore"))
            self._watch.know(info)
            self._leaving = stack.pop_all()
        self._looked, self._known = time.monotonic(), set(info)
        slots = self._slots(info)
        threads = [worker["nthreads"] for worker in info.values()]
        self._n_groups = max(workers * max(threads), len(slots))
        self._addresses = assign_groups(self._n_groups, slots)
        hosts = [info[address]["host"] for address in slots]
        self.n_root_threads = hosts.count(hosts[0])
        limits = [int(worker["memory_limit"]) or available_memory() for worker in info.values()]
        self.cache_bytes = int(CACHE_SHARE * min(limits)) // share
        usable = min(shares.values(), default=1.0)
        whole = min(limit // n for limit, n in zip(limits, threads, strict=True)) // share
        self.memory_bytes = int(usable * whole)
        text = f" ({usable:.0%} of {whole / 2**20:.0f} MiB, beyond which Dask pauses or restarts it)"
        self.memory_note = text if usable < 1 else ""

    @property
    def security(self) -> Security:
        """The security settings for other connections to the scheduler."""
        return cast(Security, self._client.security)

    def worker_info(
        self, files: tuple[str, ...] = (), datasets: tuple[str, ...] = ()
    ) -> dict[str, WorkerInfo]:
        """Return `WorkerInfo` of each worker by address; paths as for `worker_info`."""
        return cast(dict[str, WorkerInfo], self._client.run(worker_info, files, datasets))

    def check_paths(self, *paths: str) -> None:
        """Refuse workers that do not see a path of this machine, now and when they join later."""
        self._paths = tuple(path for path in paths if "://" not in path)
        self._ask(self._check_paths)

    def _check_paths(self) -> None:
        replies = self._client.run(missing_paths, self._paths, on_error="return")
        for worker, reply in sorted(replies.items()):
            if isinstance(reply, tuple) and reply[1]:  # an error: it has left meanwhile
                expected = f"workers that see {reply[1][0]}: worker {worker} on host {reply[0]} does not"
                look = "`factorflow doctor --executor ADDRESS --folder FOLDER --dataset DATASET` looks."
                remedy = f"Mount it there under the same path; {look}"
                raise InputError("executor", self.address, expected, remedy)

    def cut(self, n_blocks: int) -> list[range]:
        """Return one run of blocks for each thread of each present or expected worker."""
        groups = cut_aligned(n_blocks, self._n_groups)
        if len(groups) != len(self._addresses):
            self._addresses = assign_groups(len(groups), self._slots(workers_of(self._client)))
        return groups

    def prepare(self, function: Callable[[int, int], None]) -> None:
        """Have each worker call a function meanwhile; it is sent once, and fails no run."""
        of_host: dict[str, list[str]] = {}
        for address, worker in sorted(self._ask(lambda: workers_of(self._client)).items()):
            of_host.setdefault(worker["host"], []).append(address)
        handle = self.constant(function)
        with self.together():
            self._preparing = [
                self._add("prepare", operator.call, (handle, number, len(beside)), workers=[address])
                for beside in of_host.values()
                for number, address in enumerate(beside)
            ]

    def constant(self, value: Any) -> Handle:
        """Return a future of a value; kept in the graph, so a lost worker does not lose it."""
        return self.submit("plan", identity, value)

    def submit(
        self, name: str, function: Function, *args: Any, group: int | None = None, urgent: bool = False
    ) -> Handle:
        """Submit a task; with a group, to the worker that holds it (any other if that one is gone).

        One that waits for no other has no worker of its own. Raises as `result`.
        """
        where: dict[str, Any] = {"priority": 1} if urgent else {}
        if group is not None:
            self._follow()
            pinned = [self._addresses[group % len(self._addresses)]]
            if List(*map(reference, args)).dependencies:  # others could wait for ever (`liveness`)
                where |= {"workers": pinned, "allow_other_workers": True}
        return self._add(name, function, args, **where)

    def _add(self, name: str, function: Function, args: tuple[Any, ...], **where: Any) -> Future[Any]:
        """Submit a task, or add it to those that are submitted together; ``where``: Dask's annotations."""
        key = f"{name}-{self._run}-{next(self._count)}"
        task = partial(call, self._environment, function)
        node = Task(key, task, *map(reference, args))
        future: Future[Any]
        if self._graph is not None:
            future = Future(key, self._client)  # before the graph is sent, as the client does
            self._graph[future] = MaterializedLayer({key: node}, annotations=where)
        else:
            with self._translate_error():
                future = self._client.submit(task, *args, key=key, pure=False, **where)
        self._futures.add(future)
        return future

    @contextmanager
    def together(self) -> Iterator[None]:
        """Submit tasks as one graph (a context manager): the scheduler's cost per graph dominates a round.

        Where that ends in an error, or an interrupt, nothing is sent.
        """
        graph: dict[Future[Any], MaterializedLayer] = {}  # held until then: what is released is forgotten
        self._graph = graph
        try:
            yield
        finally:
            self._graph = None
        layers = {str(future.key): layer for future, layer in graph.items()}
        with self._translate_error():
            layered = HighLevelGraph(layers, {key: set() for key in layers})
            # By its time: else, for 60 s, the first tasks of a later round go before the record of this one.
            self._client.get(layered, list(layers), sync=False, fifo_timeout=0)

    def result(self, handle: Handle) -> Any:
        """Wait for a result, or for each of a list of them.

        Raises
        ------
        InputError
            If a worker joined whose results would not have equal bits.
        RunError
            If nothing of the run can be computed any more, or the scheduler is gone.
        Stalled
            If it could be, and is not (`restart`).
        """
        with self._translate_error():
            self._watch.wait(handle, self._run)
            return within(self._watch.limit, lambda: self._client.gather(handle))

    def restart(self) -> None:
        """Cancel all tasks; later ones get new keys.

        Futures are released: of a chain `Client.cancel` can end the connection, since
        `Scheduler.stimulus_cancel` goes through the dependents of a task while it forgets them.
        """
        for future in list(self._futures):
            future.release()
        self._run = uuid4().hex[:8]
        self._looked = 0.0

    @contextmanager
    def _translate_error(self) -> Iterator[None]:
        """Raise the cause of an error of Dask, if it is known."""
        try:
            yield
        except (FactorflowError, StalledError):
            raise
        except Exception as error:
            if self._is_lost(error):
                raise scheduler_lost_error(self.address, "was lost") from error
            with suppress(OSError, TimeoutError):  # who does not answer cannot be asked
                within(LOOK_SECONDS, lambda: compare_environments(self._client))
            if isinstance(error, KilledWorker):
                self._watch.refuse_restarts(1)
            if isinstance(error, KilledWorker) and (lines := job_lines(self._client.cluster)):
                raise RunError(f"{error}.{lines}") from error
            raise

    def _is_lost(self, error: Exception) -> bool:
        """Return whether an error comes of a broken connection to the scheduler.

        A call can fail before the client has noticed, and changed its status: the scheduler is asked.
        """
        cancelled = isinstance(error, CancelledError) and getattr(error, "reason", "") == CONNECTION_LOST
        if cancelled or self._client.status != "running":
            return True
        try:
            within(LOOK_SECONDS, self._client.nthreads)
        except TimeoutError:  # it is there, and busy, or the client tries to reach it again
            pass
        except OSError:
            return True
        return self._client.status != "running"

    def _ask(self, question: Callable[[], Any], seconds: float = ANSWER_SECONDS) -> Any:
        """Return an answer of the scheduler, or of workers."""
        try:
            return within(seconds, question)
        except (OSError, TimeoutError) as error:
            raise scheduler_lost_error(self.address, "does not answer") from error

    def close(self) -> None:
        """Close what was opened for this run, the one also when the other cannot be."""
        self._preparing = []
        with ExitStack() as stack:
            stack.push(self._leaving)
            for part in reversed(self._owned):
                stack.callback(close_client if isinstance(part, Client) else type(part).close, part)

    @contextmanager
    def performance(self, path: Path) -> Iterator[None]:
        """Write Dask's performance report, a self-contained HTML page (a context manager)."""
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

    def _wait_for_workers(self, seconds: float) -> None:
        def come() -> bool:
            with suppress(TimeoutError):  # in time, and without a worker
                self._client.wait_for_workers(1, timeout=seconds)
            return bool(workers_of(self._client))

        if not self._ask(come, seconds + ANSWER_SECONDS):
            expected = f"a cluster with at least one worker within {seconds:.0f} s"
            remedy = "Start `dask worker`; if workers were requested, check queue, quota and image."
            remedy += job_lines(self._client.cluster)
            raise InputError("executor", self.address, expected, remedy)

    def _follow(self) -> None:
        """Reassign groups if workers have left or joined; refuse those of other bits or without the data."""
        if time.monotonic() - self._looked < FOLLOW_SECONDS:
            return
        self._looked = time.monotonic()
        with suppress(OSError, TimeoutError):  # a scheduler that is lost is met by who waits for a result
            info = within(LOOK_SECONDS, lambda: workers_of(self._client))
            self._watch.know(info)
            self._watch.refuse_restarts()
            if not info or set(info) == self._known:
                return
            if set(info) - self._known:
                within(ANSWER_SECONDS, lambda: compare_environments(self._client))
                within(ANSWER_SECONDS, self._check_paths)
            self._known = set(info)
            self._addresses = assign_groups(len(self._addresses), self._slots(info), self._addresses)

    def _slots(self, info: Mapping[str, Any]) -> list[str]:
        """Return the address of each worker, as often as it has threads; the first is that of this run."""
        slots = [address for address in sorted(info) for _ in range(info[address]["nthreads"])]
        first = int(self._offset * len(slots))
        return slots[first:] + slots[:first]
