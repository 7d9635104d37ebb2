"""Memory check before a run: the needs of a model are measured on a few synthetic rows.

The stages are gone through once, each sweep on a block of noise; local state, statistics and globals are
weighed leaf by leaf. Of the temporary arrays of `Sweep.map` and of the update an upper bound is enough for
most runs. For those that would not fit by it, `trace_scratch` measures them in a process of its own:
tracemalloc is of all threads of a process, and switching it on crashes Python where compiled loops of another
thread allocate meanwhile.

A worker maps blocks, and then merges: statistics of the groups beside its own, at the root also those of all,
of which new globals are made. It takes what the more expensive of the two does.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from factorflow.core.block import AUX_DTYPES, SIZES, Block, Meta, ViewMeta
from factorflow.core.covariates import COVARIATES
from factorflow.core.places import PLACES
from factorflow.core.trees import find_gathers, freeze, map_leaves, multiply, narrow, nbytes, restrict
from factorflow.engine.executors.local import Executor, LocalExecutor
from factorflow.engine.feature_runs import Run, cut_features, update_globals
from factorflow.engine.memory_limits import Footprint, check_memory, local_must_spill
from factorflow.engine.memory_limits import required_bytes as required_bytes  # the estimate, beside `measure`
from factorflow.engine.plan import FEATURE_RUN
from factorflow.errors import InputError
from factorflow.kernels.random import Step
from factorflow.kernels.sparse_rows import SparseRows
from factorflow.models.contract import Model, Stage, Sweep

ROWS = 64
"""Made-up rows that a model is tried on."""

TRACED_ROWS = (32, 64)
"""Made-up rows that a model is traced on: two numbers tell what grows with the rows from what does not."""

REPEATED = 2
"""Passes of a preparation that ends by what its passes gain: the others are like the second."""

BOUND = 16
"""Temporary arrays of `Sweep.map` at most, in sizes of what they are made of (measured: up to 10)."""

BOUND_UPDATE = 4
"""Temporary arrays of an update at most, in sizes of statistics and globals (measured: up to 2.3)."""


CHILD = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from factorflow.engine import memory
memory._answer(pickle.load(sys.stdin.buffer))
"""

MEASURED = 64
"""Models of this process that need not be tried again: fits of one model to one shape, with other seeds."""


@dataclass
class _Weights:
    """The largest of each kind that a trial met, in bytes, and the globals at its end."""

    local: int = 0
    statistics: int = 0
    globals_: int = 0
    kept: _CountingCache = field(default_factory=lambda: _CountingCache())
    last: Any = None


class _CountingCache:
    """A block cache that only counts bytes."""

    def __init__(self) -> None:
        self.sizes: dict[Hashable, int] = {}

    def once(self, name: Hashable, arguments: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        value = make()
        self.sizes[name] = nbytes(value)
        return value


def measure(model: Model[Any, Any], *, fitting: bool = True) -> Footprint:
    """Measure the memory of a model on synthetic rows.

    A model that cannot take them is not measured: a warning says why, and no run of it is refused.

    Parameters
    ----------
    fitting : bool
        Whether a fit is to come: then what the model refuses (InputError) is raised. A projection may lack
        what only a fit reads, such as a file of scores to start from: it is then not measured.
    """
    key = _identity(model)
    if key not in _measured:
        try:
            with np.errstate(all="ignore"):
                footprint = _bound_temporaries(model)
        except InputError:
            if fitting:
                raise
            return Footprint(0, 0, 0)
        except Exception as error:  # whatever a model raises on noise
            _warn(repr(error))
            return Footprint(0, 0, 0)
        if len(_measured) >= MEASURED:
            _measured.clear()
        _measured[key] = footprint
    return _measured[key]


def trace_scratch(model: Model[Any, Any], footprint: Footprint) -> Footprint:
    """Return a footprint with the temporary arrays as measured, in a process of its own.

    That takes some seconds. Where the process fails, a warning says why, and they are taken for nothing.
    """
    import cloudpickle

    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=pickle.dumps(sys.path) + cloudpickle.dumps(model),
        capture_output=True,
        check=False,
    )
    try:
        low, high, update, run = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        _warn((done.stderr.decode(errors="replace").strip() or f"exit {done.returncode}").splitlines()[-1])
        return replace(footprint, scratch=0, scratch_per_row=0, update=0, update_run=0)
    per_row = max(0, high - low) // (TRACED_ROWS[1] - TRACED_ROWS[0])
    traced = replace(
        footprint,
        scratch=max(0, low - TRACED_ROWS[0] * per_row),
        scratch_per_row=per_row,
        update=update,
        update_run=run,
    )
    _measured[_identity(model)] = traced
    return traced


def _answer(model: Model[Any, Any]) -> None:
    """Print the traced peak: the entry point of the process that `trace_scratch` starts."""
    warnings.simplefilter("ignore")
    tracers = [_Tracer() for _ in TRACED_ROWS]
    for n_rows, tracer in zip(TRACED_ROWS, tracers, strict=True):
        with np.errstate(all="ignore"):
            _try(model, n_rows, tracer.map, tracer.update)
    print(json.dumps([*(tracer.peak for tracer in tracers), tracers[-1].update_peak, tracers[-1].run_peak]))


def _warn(reason: str) -> None:
    warnings.warn(f"the memory of this model could not be measured: {reason}", stacklevel=3)


def _bound_temporaries(model: Model[Any, Any]) -> Footprint:
    """Return the memory of a model, with an upper bound for temporary arrays."""
    measured, meta = _try(model, ROWS), model.meta
    n_factors = len(model.coords(measured.last).get("factor", ()))
    entries = sum(1 if view.kind.coded else view.n_features for view in meta.views)
    local = -(-measured.local // ROWS)
    update = BOUND_UPDATE * (measured.statistics + measured.globals_)
    axes = [n for stage in model.stages() for sweep in stage.all_sweeps for n in sweep.axes().values()]
    longest = max(axes, default=0)
    return Footprint(
        local_per_row=local,
        statistics=measured.statistics,
        globals_=measured.globals_,
        scratch=BOUND * (measured.statistics + measured.globals_),
        scratch_per_row=BOUND * (8 * (entries + n_factors**2) + local),
        kept_per_row=sum(measured.kept.sizes.values()) // ROWS,
        update=update,
        update_run=update * FEATURE_RUN // longest if longest > FEATURE_RUN else 0,
    )


_measured: dict[Hashable, Footprint] = {}


def _identity(model: Model[Any, Any]) -> Hashable:
    """Return a cache key of a model: its values and its class, which a notebook may redefine."""
    sweeps = tuple(type(sweep) for stage in model.stages() for sweep in stage.all_sweeps)
    return type(model), sweeps, hashlib.blake2b(pickle.dumps(model)).digest()


class _Tracer:
    """Maps and updates, traced: for a process that does nothing else."""

    def __init__(self) -> None:
        self.peak = self.update_peak = self.run_peak = 0

    def map(
        self, sweep: Sweep[Any, Any, Any], block: Block, local: Any, globals_: Any, step: Step
    ) -> tuple[Any, Any]:
        """Map a block; its peak is that of a second time: the first compiles, for minutes if it is traced."""
        sweep.map(block, local, sweep.prepare(globals_), step)
        prepared = sweep.prepare(globals_)  # anew: what it makes at its first use is made in every iteration
        peak, result = _trace_peak(sweep.map, block, local, prepared, step)
        self.peak = max(self.peak, peak)
        return result[0], result[1]

    def update(self, sweep: Sweep[Any, Any, Any], globals_: Any, stats: Any, step: Step) -> Any:
        """Update the globals, as the root does after a first time, which compiles."""
        after = _update_sample(sweep, globals_, stats, step)
        peak, _ = _trace_peak(update_globals, sweep, globals_, stats, {}, step, 1)
        self.update_peak = max(self.update_peak, peak)
        for run in _longest_runs(sweep):
            cut = restrict(stats, run.axis, slice(run.index.start, run.index.stop))
            peak, _ = _trace_peak(sweep.features, run.axis, run.index, globals_, cut, step)
            self.run_peak = max(self.run_peak, peak)
        return after


def _trace_peak(function: Callable[..., Any], *args: Any) -> tuple[int, Any]:
    """Return the peak of what a function allocates, and its result."""
    tracemalloc.start()
    try:
        result = function(*args)
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()


def _map(sweep: Sweep[Any, Any, Any], block: Block, local: Any, globals_: Any, step: Step) -> tuple[Any, Any]:
    return sweep.map(block, local, sweep.prepare(globals_), step)


def _longest_runs(sweep: Sweep[Any, Any, Any]) -> list[Run]:
    """Return the first run of features of each axis."""
    first: dict[str, Run] = {}
    for run in cut_features(sweep.axes()):
        first.setdefault(run.axis, run)
    return list(first.values())


def _update_sample(sweep: Sweep[Any, Any, Any], globals_: Any, stats: Any, step: Step) -> Any:
    """Return the globals after a sweep; one run of each feature axis is updated, as a sample."""
    carried = sweep.carry(globals_, stats, step)
    if not sweep.axes():
        return sweep.update(carried, stats, step)[0]
    parts, sums = {}, {}
    for run in _longest_runs(sweep):
        cut = restrict(stats, run.axis, slice(run.index.start, run.index.stop))
        part, sums[run.axis] = sweep.features(run.axis, run.index, globals_, cut, step)
        where = np.arange(sweep.axes()[run.axis]) % len(run.index)
        parts[run.axis] = (
            part
            if len(where) == len(run.index)
            else map_leaves(partial(np.take, indices=where, axis=0), part)
        )
    return sweep.assemble(carried, narrow(stats), parts, sums, step)[0]


def _try(
    model: Model[Any, Any],
    n_rows: int,
    apply: Callable[..., tuple[Any, Any]] = _map,
    update: Callable[..., Any] = _update_sample,
) -> _Weights:
    """Go through the stages, one block of noise for all: those that count once, preparations to their end.

    Where that depends on the data, it is taken for `REPEATED` passes.
    """
    meta = model.meta
    weights = _Weights()
    block = _made_up(meta, n_rows, weights.kept)
    globals_, local = freeze(model.init(Step(0))), None
    for stage in model.stages():
        if stage.enter is not None and stage.max_iter:
            globals_ = freeze(stage.enter(globals_))
        for count in range(_passes(stage)):
            step = Step(0, 0, count, stage.name, count)
            for sweep in stage.all_sweeps:
                new, stats = map(freeze, apply(sweep, block, local, globals_, step))
                weights.statistics = max(weights.statistics, _gathered_bytes(stats, meta))
                try:
                    after = freeze(
                        update(sweep, globals_, freeze(multiply(stats, meta.n_rows / n_rows)), step)
                    )
                except np.linalg.LinAlgError:  # noise of fewer rows than factors: a matrix without an inverse
                    after = globals_
                if sweep is not stage.evaluate:
                    local, globals_ = new, after
                weights.local = max(weights.local, nbytes(local))
                weights.globals_ = max(weights.globals_, _gathered_bytes(globals_, meta))
    weights.last = globals_
    return weights


def _passes(stage: Stage[Any]) -> int:
    most = stage.max_iter if stage.tol is None else REPEATED
    return min(1 if stage.counts else most, stage.max_iter)


def _gathered_bytes(tree: Any, meta: Meta) -> int:
    """Return the bytes of globals or statistics, gathered from all blocks instead of the one of the trial."""
    return nbytes(tree) + (meta.n_blocks - 1) * sum(map(nbytes, find_gathers(tree)))


def _made_up(meta: Meta, n_rows: int, memory: _CountingCache) -> Block:
    """Return a block of noise in the shape of the data, half of the optional entries missing."""
    generator = np.random.default_rng(0)
    data: dict[str, Any] = {}
    for view in meta.views:
        kind, shape = view.kind, view.kind.shape(n_rows, view.n_features)
        wide = np.dtype(np.float64 if view.location else kind.dtype)
        values = np.asarray(_noise(generator, view, shape) + view.about(), dtype=wide)
        by_entries = view.name in meta.sparse_views
        if view.missing == "scattered" and not (by_entries and view.n_patterns):
            missing = generator.random(shape) < 0.5
            if len(shape) == 2 and shape[1] > 1:  # models may refuse rows of which nothing is known
                missing[np.arange(n_rows), np.arange(n_rows) % shape[1]] = False
            values[missing] = kind.missing
        data[view.name] = values
        if by_entries:
            data[view.name] = _made_up_entries(generator, view, values, meta.block_rows)
        if view.aux:
            data[view.aux_key] = np.full(shape, view.aux == "trials", AUX_DTYPES[view.aux])
    columns: dict[str, Any] = {"group": np.zeros(n_rows, np.int32)} if meta.groups else {}
    if meta.n_sequences:
        columns |= {"sequence": np.zeros(n_rows, np.int32), "time": np.arange(n_rows, dtype=np.int32)}
    if meta.covariates is not None:
        columns[COVARIATES] = meta.covariates.sample(generator, n_rows)
    if meta.sizes:
        columns[SIZES] = np.ones((n_rows, len(meta.sizes)))
    if meta.score_inputs:
        columns[PLACES] = np.hstack([one.sample(generator, n_rows) for one in meta.score_inputs])
    return Block(0, 0, n_rows, 1, freeze(data), {}, freeze(columns), memory=memory)


def _made_up_entries(
    generator: np.random.Generator, view: ViewMeta, values: Any, block_rows: int
) -> SparseRows:
    """Return noise with as many entries that are not zero as the fullest block has.

    Where features are missing together, every other row lacks half of them.
    """
    unknown, half, code = ~view.kind.observed(values), view.n_features // 2, None
    patterns = np.arange(view.n_features)[None] < half
    if view.n_patterns:
        values[1::2, :half], code = 0, np.arange(len(values), dtype=np.uint8) % 2
    if view.block_entries:
        values[generator.random(values.shape) * block_rows * view.n_features >= view.block_entries] = 0
    entries = np.where(unknown, 0, values).astype(np.uint8 if view.kind.by_size else view.kind.dtype)
    return replace(SparseRows.from_dense(entries, unknown, listed=True), row_pattern=code, patterns=patterns)


def _noise(generator: np.random.Generator, view: ViewMeta, shape: tuple[int, ...]) -> Any:
    if view.kind.coded:
        return generator.integers(0, view.n_features, shape)
    if view.likelihood in {"bernoulli", "poisson"}:  # what every likelihood of counts takes
        return generator.integers(0, 2, shape)
    return generator.uniform(0.25, 0.75, shape)  # what likelihoods of numbers take, of positive ones, too


def fit_into_memory(
    model: Model[Any, Any], footprint: Footprint, n_groups: int, executor: Executor
) -> tuple[Footprint, int]:
    """Return the memory of a run, traced if it may not fit, and the budget of the block cache.

    Blocks are kept in what is left; here the threads that update features have all of the memory.
    """
    meta, limit, room = model.meta, executor.memory_bytes, executor.cache_bytes
    here = isinstance(executor, LocalExecutor)
    n_threads = 1 if here else executor.n_root_threads
    cached = min(room, -(-meta.n_rows // n_groups) * (meta.row_bytes + footprint.kept_per_row))
    need = required_bytes(meta, footprint, n_groups, model.n_chains, limit, n_threads)
    if need + (0 if here else cached) > limit:
        footprint = trace_scratch(model, footprint)
        need = required_bytes(meta, footprint, n_groups, model.n_chains, limit, n_threads)
    check_memory(meta, footprint, n_groups, model.n_chains, limit, n_threads, executor.memory_note)
    return footprint, min(room, (n_groups if here else 1) * (limit - need))


def fits_one_group(model: Model[Any, Any], footprint: Footprint, executor: Executor) -> bool:
    """Return whether one worker has the memory for all blocks, and nothing of it goes to disk."""
    meta, n_chains, limit = model.meta, model.n_chains, executor.memory_bytes
    if local_must_spill(meta, footprint, 1, n_chains, limit):
        return False
    need = required_bytes(meta, footprint, 1, n_chains, limit, executor.n_root_threads)
    return need + meta.n_rows * (meta.row_bytes + footprint.kept_per_row) <= limit
