"""The client's side of a run: submit rounds ahead, read one record each, checkpoint, stop."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any

from factorflow.engine.checkpoint import MANIFEST, Checkpoints
from factorflow.engine.decide import cut_short, first_state
from factorflow.engine.draws import DrawStore
from factorflow.engine.events import CheckpointWritten, GroupsChanged, IterationDone, OnEvent, StageEntered
from factorflow.engine.executors.local import Executor, Handle, StalledError
from factorflow.engine.group_trial import GroupTrial, overlapping, regroup
from factorflow.engine.plan import Plan, Record, State
from factorflow.engine.rounds import Rounds
from factorflow.engine.submissions import Budget, Round
from factorflow.engine.trace import Trace
from factorflow.errors import InputError, RunError, thread_limit_errors
from factorflow.posterior.draw_store import note_draws
from factorflow.posterior.globals import sets_after
from factorflow.storage.local import IncrementalSync, describe

AT_ONCE_SECONDS = 0.25
"""Rounds that take less in all are submitted, and their records read, at once (`Executor.rounds_at_once`).

What scheduler and client do for a graph and for a result they do once then, in time that the workers have for
themselves. Rounds that take longer do not: an iteration is reported when it is done, and what is computed
ahead of its record takes memory.
"""


class Loop:
    """Drives a plan on an executor until it is finished.

    Parameters
    ----------
    checkpoints : Checkpoints or None
        Where to write; None: nowhere (a short run in this process).
    """

    def __init__(
        self,
        plan: Plan,
        executor: Executor,
        budget: Budget,
        checkpoints: Checkpoints | None,
        draws: DrawStore | None,
        on_event: OnEvent,
    ) -> None:
        self.plan, self.executor, self.budget = plan, executor, budget
        self.checkpoints, self.draws, self.on_event = checkpoints, draws, on_event
        self.groups = executor.cut(plan.model.meta.n_blocks)
        self._tasks = Rounds(executor, self.groups, plan)
        tried = plan.may_join and executor.joins_groups and len(self.groups) > 1
        self._trial = GroupTrial(self.groups) if tried else None
        self.trace = Trace()
        self.reason = ""
        self.plan_handle = executor.constant(plan)
        self._n_reported = 0
        self._pending: deque[Round] = deque()
        self._submission, self._at_once = 0, 1
        self._begun = self._last = self._read_at = time.perf_counter()
        self._round_seconds = 0.0
        self._saved = (self._begun, 0)
        self._written = None if plan.draws_path is None else IncrementalSync(Path(plan.draws_path))
        self._stage = ""
        self._iteration_complete = False
        self._sends = {stage.name: stage.sends for stage in plan.stages}
        self.counted = self._n_draws = 0

    def start(self) -> None:
        """Begin at the beginning."""
        self.state: Handle = self.executor.submit("start", first_state, self.plan_handle, group=0)
        self.locals: list[Handle] = [None] * len(self.groups)

    def resume(self, manifest: dict[str, Any]) -> None:
        """Resume from a checkpoint."""
        self._load(manifest)
        self._begun -= self.trace.last_seconds

    def first_globals(self) -> Any:
        """Return the globals of the first chain as they are now."""
        return self.executor.result(self.executor.submit("globals", first_globals, self.state, group=0))

    def _load(self, manifest: dict[str, Any]) -> None:
        assert self.checkpoints is not None
        self.locals, self.state = self.checkpoints.load(
            self.executor, self.plan_handle, self.groups, manifest
        )
        self.trace = Trace.from_state(self.checkpoints.read_trace(manifest))
        self.counted = self.trace.last_iteration
        self._n_draws = manifest["drawn"]["sizes"]["draw"] if manifest["drawn"] else 0
        self._saved = (time.perf_counter(), self.counted)

    def run(self) -> BaseException | None:
        """Run to the end; return the interrupt that ended the run early, once it has ended in order.

        Raises
        ------
        RunError
            If a task fails, or the cluster is lost.
        """
        interrupted: BaseException | None = None
        try:
            with self.error_context():
                self._with_restarts(self._rounds)
        except Exception:
            raise
        except BaseException as interrupt:  # KeyboardInterrupt, SystemExit, Prefect's TerminationSignal
            if not self.counted:
                raise
            interrupted = interrupt
            self._with_restarts(lambda: self._finish_early("interrupted"))
        self._keep_local()
        return interrupted

    def _with_restarts(self, work: Callable[[], None]) -> None:
        """Call a function; if the run stalls, restart from the last checkpoint or the start."""
        while True:
            try:
                return work()
            except StalledError as stalled:
                text = f"{stalled}. The run resumes from the last checkpoint, or from the start"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
                self._restart()

    def _restart(self) -> None:
        self.executor.restart()
        self._pending.clear()
        self._at_once, self._iteration_complete = 1, False
        if self.draws is not None:
            self.draws.forget()
        self.plan_handle = self.executor.constant(self.plan)
        if self.checkpoints is not None and (self.checkpoints.directory / MANIFEST).exists():
            self._load(self.checkpoints.read_manifest())
        else:
            self.trace, self.counted, self._n_draws = Trace(), 0, 0
            self.start()

    @contextmanager
    def error_context(self, where: str = "") -> Iterator[None]:
        """Wrap an error that ends the run: where it happened and what can be resumed."""
        try:
            with thread_limit_errors():
                yield
        except InputError as error:
            error.add_note(self._describe_remains())
            raise
        except FloatingPointError as error:
            self._refuse_outliers(error)
            raise self._run_error(where, error) from error
        except Exception as error:
            raise self._run_error(where, error) from error

    def _run_error(self, where: str, error: Exception) -> RunError:
        where = where or f"in stage {self._stage!r}, iteration {self.counted}"
        what = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
        return RunError(
            f"the run failed {where}: {what.removesuffix('.')}. {self._describe_remains()}", resume=True
        )

    def _refuse_outliers(self, error: Exception) -> None:
        """Refuse data with entries that stand alone, of which numbers became too large."""
        source = self.plan.source
        for entry in source.original.manifest.views:
            if entry.name in source.views and entry.outliers:
                raise InputError(
                    f"values of view {entry.name!r}",
                    "; ".join(map(str, entry.outliers)),
                    "no entry so far from all others of its feature that the fit loses its precision",
                    "Correct it or leave it empty, and ingest again.",
                ) from error

    def _rounds(self) -> None:
        finished = False
        while not finished:
            while not self._pending or self._n_lookahead() < self.executor.look_ahead:
                self._submit(self._at_once)
            finished = self._read()
            if finished:
                self._pending.clear()
            elif self._out_of_time():
                self._finish_early("max_minutes")
                return
            elif self._checkpoint_due():
                finished = self._complete_iteration()
                if not finished:
                    self._checkpoint()
            elif self._trial is not None:
                groups = self._trial.choose(self._round_seconds, len(self._pending))
                if groups is not None:
                    self._change_groups(groups)

    def _keep_local(self) -> None:
        """Have the local state of each group as a handle."""
        self.locals = self._tasks.keep_local(self.plan_handle, self.locals)

    def _change_groups(self, groups: list[range]) -> None:
        """Cut the blocks otherwise from the next round on."""
        self._keep_local()
        self.locals = [
            self.executor.submit(
                "regroup", regroup, group, overlapping(group, self.groups, self.locals), group=i
            )
            for i, group in enumerate(groups)
        ]
        self.groups, self._tasks = groups, Rounds(self.executor, groups, self.plan)
        self.on_event(GroupsChanged(len(groups), self.seconds))

    def _n_lookahead(self) -> int:
        """Return how many rounds were submitted behind those that are read next."""
        return sum(r.submission != self._pending[0].submission for r in self._pending)

    def _submit(self, n_rounds: int = 1) -> None:
        """Submit some rounds, one behind the other."""
        # Of the last record's stage: a round of another one works with either.
        sends = self._sends.get(self._stage, self.plan.stages[0].sends)
        with self.executor.together():
            state, locals_ = self._tasks.submit(self.plan_handle, self.state, self.locals, sends, n_rounds)
            records = self.executor.submit("record", attrgetter("records"), state, group=0)
        # At once and last: an interrupt before this line leaves them as if they had never been submitted.
        self.locals, self.state = locals_, state
        kept = None if self.draws is None else state  # then it is one round
        self._pending.extend(Round(self._submission, kept, records) for _ in range(n_rounds))
        self._submission += 1

    def _fetch_records(self) -> None:
        """Wait for the records of the oldest rounds, those that were submitted at once."""
        rounds = [r for r in self._pending if r.submission == self._pending[0].submission]
        records = self.executor.result(rounds[0].records)
        now, last, n = time.perf_counter(), self._last, len(rounds)
        for i, (round_, record) in enumerate(zip_longest(rounds, records)):
            round_.result = record, last + (now - last) * (i + 1) / n
        self._last = now
        short = int(AT_ONCE_SECONDS * n / max(now - last, 1e-9))
        most = self.executor.rounds_at_once if self.draws is None else 1  # or many states wait for records
        self._at_once = max(1, min(most, short))

    def _read(self) -> bool:
        """Read the oldest record; return whether the run is finished."""
        if self._pending[0].result is None:  # it stays there until then: an interrupt may come while waiting
            self._fetch_records()
        done = self._pending.popleft()
        assert done.result is not None
        record, when = done.result
        if record is None:
            return True
        seconds = when - self._begun
        self._round_seconds, self._read_at = when - self._read_at, when
        entered, self._stage = record.stage != self._stage, record.stage
        self._iteration_complete = record.iteration_done
        self.reason = record.reason or self.reason
        counts = record.iteration_done and record.counts
        if counts:
            self.counted = record.counted
            self.trace.append(record, seconds)
        self._n_draws = record.draws
        if record.kept and self.draws is not None:
            self.draws.add(self.executor, self.plan_handle, done.state, record.draws - 1)
        if entered:
            self.on_event(StageEntered(record.stage, seconds))
        if counts and record.counted > self._n_reported:  # not those that are done again
            self._n_reported = record.counted
            self.on_event(_iteration(record, seconds))
        return record.finished

    def _complete_iteration(self) -> bool:
        """Read all that was submitted and go on to the end of an iteration; return whether finished."""
        finished = False
        while self._pending or not (self._iteration_complete or finished):
            if not self._pending:
                self._submit()
            finished = self._read() or finished
        return finished

    def _finish_early(self, reason: str) -> None:
        """End the counted stages here, keep a checkpoint, and run the closing stages."""
        if self._complete_iteration():
            return
        self._checkpoint()
        self.state = self.executor.submit(
            "cut_short", cut_short, self.plan_handle, self.state, reason, group=0
        )
        self.reason = reason
        finished = self.executor.result(
            self.executor.submit("stage", attrgetter("stage"), self.state)
        ) >= len(self.plan.stages)
        while not finished:
            self._submit()
            finished = self._read()
        self.reason = reason

    def _out_of_time(self) -> bool:
        limit = self.budget.max_minutes
        return limit is not None and self.counted > 0 and time.perf_counter() - self._begun >= 60 * limit

    def _checkpoint_due(self) -> bool:
        if self.checkpoints is None or not self._iteration_complete or self.reason == "max_iter":
            return False  # what ends a run that is short of iterations can be resumed with more of them
        when, counted = self._saved
        late = time.perf_counter() - when >= 60 * self.budget.checkpoint_minutes
        return self.counted > counted and (self.counted - counted >= self.budget.checkpoint_every or late)

    def _checkpoint(self) -> None:
        """Write the state and go on from what was written, so that the past can be forgotten."""
        if self.checkpoints is None:
            return
        draws = self._flush_draws()
        self._keep_local()
        self.locals, self.state, path = self.checkpoints.write(
            self.executor, self.plan_handle, self.groups, self.locals, self.state, self.trace.state(), draws
        )
        self._saved = (time.perf_counter(), self.counted)
        self.on_event(CheckpointWritten(str(path), self.counted, time.perf_counter() - self._begun))

    def _flush_draws(self) -> dict[str, Any] | None:
        """Write all draws so far, and return their entry in the checkpoint."""
        plan = self.plan
        if self.draws is None or self._written is None or plan.draws_path is None:
            return None
        self.draws.flush(self.executor, self.plan_handle)
        try:
            self._written.sync()
        except OSError as error:
            text = f"the draws in {plan.draws_path} cannot be written: {describe(error, plan.draws_path)}"
            raise RunError(text) from error
        return note_draws(
            plan.draws_path, self._n_draws, sets_after(self._n_draws, plan.n_draws, plan.n_chains)
        )

    @property
    def seconds(self) -> float:
        """Wall-clock time since the run began."""
        return time.perf_counter() - self._begun

    def _describe_remains(self) -> str:
        """Describe what a failed run leaves on disk."""
        if self.checkpoints is None or not (self.checkpoints.directory / MANIFEST).exists():
            return "There is no checkpoint yet: nothing was kept."
        return f"The last checkpoint is in {self.checkpoints.directory}: go on with {{resume}}."


def first_globals(state: State) -> Any:
    """Return the globals of the first chain."""
    return state.globals_[0]


def _iteration(record: Record, seconds: float) -> IterationDone:
    names: Sequence[str] = list(record.infos[0])
    info = {name: tuple(chain[name] for chain in record.infos) for name in names}
    objective = info.get("objective", (float("nan"),))
    return IterationDone(
        record.stage, record.counted, sum(objective) / len(objective), record.gain, seconds, info
    )
