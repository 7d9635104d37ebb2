"""What a run asks for is at least what it takes."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import bayesian_pca
import numpy as np
import pytest
import sequence_model
import stochastic_model

import factorflow
from factorflow.core.block import Meta, ViewMeta
from factorflow.core.trees import nbytes
from factorflow.engine import memory, memory_limits
from factorflow.engine import source as source_module
from factorflow.engine.executors.assignment import cut_aligned, max_merged_nodes
from factorflow.engine.executors.local import LocalExecutor
from factorflow.engine.memory import (
    Footprint,
    _CountingCache,
    _made_up,
    _try,
    fit_into_memory,
    measure,
    trace_scratch,
)
from factorflow.engine.memory_limits import (
    KEPT_ROUNDS,
    check_memory,
    keep_every,
    kept_bytes,
    local_must_spill,
    merge_bytes,
    required_bytes,
    sends_local,
)
from factorflow.engine.source import Source
from factorflow.engine.tasks import merge_nodes
from factorflow.engine.tree import Tree, merge_steps, n_nodes
from factorflow.errors import InputError
from factorflow.models import ProbitFactors, SparseGFA
from factorflow.models.contract import Step


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Half of the entries are missing: the lists of gaps are as long as they can be."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(512, 300)).astype(np.float32)
    values[rng.random(values.shape) < 0.5] = np.nan
    path = tmp_path_factory.mktemp("memory") / "d.zarr"
    return factorflow.write_dataset(path, {"v": values}, block_rows=64)


SMALL = Meta(100, 2, 64, (ViewMeta("v", "bernoulli", 20, "none"),))


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorflow.engine.memory._measured", {})


def test_a_model_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit of the same model to data of the same shape takes what is known; another one does not."""
    meta = Meta(97, 4, 32, (ViewMeta("a", "gaussian", 7, "none"),))
    first = measure(bayesian_pca.BayesianPCA().build(meta))
    wider = measure(bayesian_pca.BayesianPCA(n_factors=5).build(meta))
    monkeypatch.setattr("factorflow.engine.memory._try", lambda *_: pytest.fail("tried again"))
    assert measure(bayesian_pca.BayesianPCA().build(meta)) == first
    assert measure(bayesian_pca.BayesianPCA(n_factors=5).build(meta)) == wider != first


def test_preparations_that_converge_are_not_tried_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those of a fixed number of passes are."""
    seen: list[tuple[str, int]] = []

    def apply(sweep: Any, block: Any, local: Any, globals_: Any, step: Step) -> Any:
        seen.append((step.stage, step.count))
        return memory._map(sweep, block, local, globals_, step)

    model = SparseGFA(n_factors=5).build(SMALL)
    stages = [replace(s, max_iter=3) if s.name == "moments" else s for s in model.stages()]
    monkeypatch.setattr(type(model), "stages", lambda _: tuple(stages))
    memory._try(model, 32, apply)
    passes = {name: [count for stage, count in seen if stage == name] for name, _ in seen}
    assert passes["components"] == [0, 1]
    assert passes["moments"] == [0, 1, 2]
    assert passes["warm-up"] == [0]


def test_a_sweep_that_was_defined_anew_is_tried_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook: the same name, the same values, other code."""
    meta = Meta(97, 4, 32, (ViewMeta("a", "gaussian", 7, "none"),))
    first = measure(bayesian_pca.BayesianPCA().build(meta))
    known = bayesian_pca.Gibbs
    given = {"map": lambda self, *of: (np.zeros((of[0].n_rows, 9)), known.map(self, *of)[1])}
    edited = type("Gibbs", (known,), {**given, "__module__": known.__module__, "__qualname__": "Gibbs"})
    monkeypatch.setattr(bayesian_pca, "Gibbs", edited)
    assert measure(bayesian_pca.BayesianPCA().build(meta)).local_per_row == 9 * 8 != first.local_per_row


def test_what_is_measured_is_what_the_state_takes() -> None:
    """Of the family of the guide, counted by hand: K + 1 = 3 weights for each of 12 features."""
    meta = Meta(97, 4, 32, (ViewMeta("a", "gaussian", 7, "none"), ViewMeta("b", "gaussian", 5, "none")))
    footprint = measure(bayesian_pca.BayesianPCA().build(meta))
    assert footprint.local_per_row == 2 * 8
    assert footprint.statistics == 12 * (9 + 3 + 1 + 1) * 8
    assert footprint.globals_ == 12 * 3 * 8 + 3 * 8
    assert footprint.kept_per_row == 0
    traced = trace_scratch(bayesian_pca.BayesianPCA().build(meta), footprint)
    assert traced.scratch_per_row >= 2 * 2 * 8 + 12 * 8  # a precision and a row of residuals at least
    assert traced.scratch_per_row <= footprint.scratch_per_row
    assert footprint.globals_ <= traced.update  # the new ones at least
    zeros = dict.fromkeys(("scratch", "scratch_per_row", "update", "update_run"), 0)
    assert replace(traced, **zeros) == replace(footprint, **zeros)


def _peak(monkeypatch: pytest.MonkeyPatch, first: Callable[[Any], None]) -> int:
    """The peak of the model of the guide, with something done at the beginning of each map."""
    meta = Meta(97, 4, 32, (ViewMeta("a", "gaussian", 7, "none"),))
    usual = bayesian_pca.Gibbs.map

    def mapped(self: Any, block: Any, local: Any, given: Any, step: Any) -> Any:
        first(given)
        return usual(self, block, local, given[0], step)

    tracer = memory._Tracer()
    with monkeypatch.context() as patch:
        patch.setattr(bayesian_pca.Gibbs, "prepare", lambda self, globals_: (globals_, []))
        patch.setattr(bayesian_pca.Gibbs, "map", mapped)
        _try(bayesian_pca.BayesianPCA().build(meta), 64, tracer.map)
    return tracer.peak


def test_compiling_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a first call of a map leaves behind, modules and compiled code, is no block's."""
    calls: list[Any] = []
    compiling = _peak(monkeypatch, lambda _: calls.append(np.zeros(10**6) if not calls else None))
    assert compiling < 10**6


def test_what_is_made_at_its_first_use_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `Sweep.prepare` returns may hold tables that the first map fills: every iteration has its own."""
    assert _peak(monkeypatch, lambda given: given[1] or given[1].append(np.zeros(10**6))) >= 8 * 10**6


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["gaussian", "bernoulli"])
def test_what_is_traced_is_near_the_peak_of_a_block(kind: str) -> None:
    """And the bound is above it: of many factors, whose covariances take most."""
    meta = Meta(81920, 10, 8192, (ViewMeta("a", kind, 40, "scattered"),))
    model = SparseGFA(n_factors=40).build(meta)
    bound = measure(model)
    traced = trace_scratch(model, bound)
    tracer = memory._Tracer()
    _try(model, 8192, tracer.map, tracer.update)
    peak = replace(bound, scratch=tracer.peak, scratch_per_row=0, update=tracer.update_peak)
    needed, estimated, most = (required_bytes(meta, f, 1, 1, 1 << 40) for f in (peak, traced, bound))
    assert 1 / 1.5 < estimated / needed < 1.5
    assert needed < most


def test_only_a_run_that_may_not_fit_is_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=(64, 500))
    dataset = factorflow.write_dataset(tmp_path / "d.zarr", {"v": values})
    config = SparseGFA(n_factors=2, warmup_iter=1, max_iter=1)
    traced: list[Footprint] = []

    def trace(model: Any, footprint: Footprint) -> Footprint:
        traced.append(footprint)
        return replace(footprint, scratch=0, scratch_per_row=0)

    monkeypatch.setattr("factorflow.engine.memory.trace_scratch", trace)
    factorflow.fit(dataset, config, progress=False)
    assert not traced
    limit = required_bytes(dataset.meta(), measure(config.build(dataset.meta())), 1, 1, 1 << 40) - 1
    factorflow.fit(dataset, config, progress=False, memory_limit=limit)
    assert len(traced) == 1


def test_a_process_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bayesian_pca.BayesianPCA().build(Meta(97, 4, 32, (ViewMeta("a", "gaussian", 7, "none"),)))
    monkeypatch.setattr(memory, "CHILD", "raise SystemExit('no such luck')")
    with pytest.warns(UserWarning, match="could not be measured: no such luck"):
        assert trace_scratch(model, Footprint(1, 2, 3, 4, 5, 6, 7, 8)) == Footprint(1, 2, 3, 0, 0, 6)


THREADS = """
import sys, threading, tracemalloc
import factorflow as ff
def fit(k): ff.fit(sys.argv[1], ff.models.SparseGFA(n_factors=k), seed=k, progress=False, max_iter=10)
fit(4)  # what it imports and compiles takes long while it is traced
tracemalloc.start()
mine = bytes(1 << 20)
threads = [threading.Thread(target=fit, args=(k,)) for k in (1, 2, 3)]
[t.start() for t in threads]; [t.join() for t in threads]
assert tracemalloc.get_traced_memory()[0] >= len(mine)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("traces", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_fits_in_threads_of_a_program_that_traces_its_memory(tmp_path: Path, traces: bool) -> None:
    """Tracing that was switched on and off by each fit crashed Python, and ended the program's own."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(200, 2))
    views = {"x": scores @ rng.normal(size=(2, 12)), "y": (scores @ rng.normal(size=(2, 8)) > 0) * 1.0}
    factorflow.write_dataset(tmp_path / "d.zarr", views, likelihoods={"y": "bernoulli"})
    source = THREADS if traces else THREADS.replace("tracemalloc.start()", "").replace("assert", "#")
    run = subprocess.run([sys.executable, "-c", source, tmp_path / "d.zarr"], capture_output=True)
    assert run.returncode == 0, run.stderr.decode()


@pytest.mark.thorough
def test_a_model_of_a_script_is_traced(tmp_path: Path) -> None:
    """Its classes cannot be imported: they are sent whole."""
    source = Path(bayesian_pca.__file__).read_text(encoding="utf-8")
    script = tmp_path / "script.py"
    script.write_text(f"""{source}
from factorflow.engine.memory import measure, trace_scratch
from factorflow.models.contract import ViewMeta
model = BayesianPCA().build(Meta(97, 4, 32, (ViewMeta("a", "gaussian", 7, "none"),)))
assert trace_scratch(model, measure(model)).scratch_per_row > 0
""")
    run = subprocess.run([sys.executable, "-W", "error", script], capture_output=True)
    assert run.returncode == 0, run.stderr.decode()


def test_noise_that_gives_no_inverse_is_still_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On fewer made-up rows than factors an update may fail that does not on the data."""
    meta = Meta(97, 4, 32, (ViewMeta("a", "gaussian", 7, "none"),))
    before = measure(bayesian_pca.BayesianPCA().build(meta))

    def update(*_: Any) -> Any:
        raise np.linalg.LinAlgError("Singular matrix")

    monkeypatch.setattr(bayesian_pca.Gibbs, "update", update)
    monkeypatch.setattr("factorflow.engine.memory._measured", {})
    after = measure(bayesian_pca.BayesianPCA().build(meta))
    assert (after.statistics, after.globals_) == (before.statistics, before.globals_)


def test_what_is_gathered_is_counted_for_all_blocks() -> None:
    """Edges and summaries of the blocks lie side by side in the globals, and so they come up."""
    views = (ViewMeta("x", "gaussian", 6, "none"),)
    config = sequence_model.DriftingFactors()
    one, many = (measure(config.build(Meta(32 * n, n, 32, views, n_sequences=1))) for n in (1, 101))
    edge, number = 2 * 2 * 8, 8  # K = 2: m of the first and of the last frame, and which block
    sides = 2 * 2 * 8  # what lies before and behind, two numbers each
    assert many.globals_ - one.globals_ == 100 * (edge + number + sides + number)
    assert many.statistics > one.statistics


def test_an_evaluation_leaves_the_local_state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    meta = Meta(97, 4, 32, (ViewMeta("x", "gaussian", 6, "none"),))
    model = stochastic_model.StochasticFactors().build(meta)
    before = measure(model).local_per_row
    evaluate = stochastic_model.Evaluate.map
    heavy = lambda *given: (np.zeros(10**5), evaluate(*given)[1])  # noqa: E731
    monkeypatch.setattr(stochastic_model.Evaluate, "map", heavy)
    assert measure(model).local_per_row == before


def test_what_cannot_be_measured_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    meta = Meta(97, 4, 32, (ViewMeta("a", "gaussian", 7, "none"),))
    model = bayesian_pca.BayesianPCA().build(meta)
    monkeypatch.setattr(type(model), "init", lambda self, step: 1 / 0)
    with pytest.warns(UserWarning, match="could not be measured"):
        assert measure(model).statistics == 0


def test_what_follows_from_kept_blocks_is_counted_and_bounded(dataset: Any) -> None:
    config = SparseGFA(n_factors=2, warmup_iter=3, max_iter=2)
    footprint = measure(config.build(dataset.meta()))
    kept = 512 * footprint.kept_per_row
    made: dict[str, int] = {}

    def follow(source: Source) -> int:
        found = 0
        for block in source.stream(range(dataset.n_blocks)):
            for name in ("gaps", "more"):
                block.once(name, (), lambda: np.zeros(kept // dataset.n_blocks // 8 // 2))
                made[name] = made.get(name, 0) + 1
            memory = block.memory
            found += 0 if memory is None else sum(nbytes(value) for _, value in memory._made.values())
        return found

    assert kept > 2 * 512 * 300  # lists of gaps and centred values of all blocks
    ample = Source(dataset, ("v",), None, 1 << 24, 1 << 24)
    assert 0.9 * kept < follow(ample) <= kept
    source_module._CACHES.clear()
    short = Source(dataset, ("v",), None, 1 << 24, kept // 4)
    assert follow(short) <= kept // 4


def test_what_follows_takes_its_share_of_the_memory_for_blocks(dataset: Any) -> None:
    meta = dataset.meta()
    footprint = measure(SparseGFA(n_factors=2).build(meta))
    rows = kept_bytes(meta, footprint, 1 << 20) // meta.row_bytes
    assert 0.99 * 2**20 < rows * (meta.row_bytes + footprint.kept_per_row) <= 1 << 20


@pytest.mark.thorough
def test_a_limit_that_leaves_no_room_is_refused(tmp_path: Path) -> None:
    values = np.ones((4096, 500), np.float32)
    values[::2] = 2.5
    dataset = factorflow.write_dataset(tmp_path / "d.zarr", {"v": values})
    config = SparseGFA(n_factors=2, warmup_iter=1, max_iter=1)
    meta = dataset.meta()
    model = config.build(meta)
    need = required_bytes(meta, trace_scratch(model, measure(model)), 1, 1, 1 << 40)
    with pytest.raises(InputError, match="memory_limit"):
        factorflow.fit(dataset, config, memory_limit=need - (1 << 22))


def test_what_is_needed_grows_with_what_is_asked(dataset: Any) -> None:
    meta = dataset.meta()
    few, many = (measure(SparseGFA(n_factors=k).build(meta)) for k in (2, 8))
    assert required_bytes(meta, many, 1, 1, 1 << 40) > required_bytes(meta, few, 1, 1, 1 << 40)
    larger = replace(meta, block_rows=4 * meta.block_rows)
    grown = required_bytes(larger, few, 1, 1, 1 << 40) - required_bytes(meta, few, 1, 1, 1 << 40)
    assert grown >= 3 * meta.block_rows * (4 * meta.row_bytes + few.scratch_per_row)
    assert required_bytes(meta, few, 1, 4, 1 << 40) > required_bytes(meta, few, 1, 1, 1 << 40)


def test_local_state_that_outgrows_memory_goes_to_disk(tmp_path: Path) -> None:
    """Three copies of 10^8 rows of more than 40 bytes would not fit 1 GiB; a block's do."""
    x = (np.random.default_rng(0).random((64, 10)) < 0.5).astype(float)
    dataset = factorflow.write_dataset(tmp_path / "d.zarr", {"x": x}, {"x": "bernoulli"})
    meta = replace(dataset.meta(), n_rows=10**8, n_blocks=10**8 // 64)
    footprint = measure(ProbitFactors(factors="spike_slab", n_factors=20, average_scores=False).build(meta))
    assert 40 < footprint.local_per_row <= 3 + 4 * 20  # a bit and, where it is set, four bytes a factor
    assert local_must_spill(meta, footprint, 2, 1, 1 << 30)
    assert required_bytes(meta, footprint, 2, 1, 1 << 30) < 1 << 30
    assert not local_must_spill(meta, footprint, 2, 1, 1 << 40)
    assert required_bytes(meta, footprint, 2, 1, 1 << 40) > 3 * 40 * 10**8 / 2


MIB = 1 << 20


def test_what_is_needed_is_the_sum_of_its_parts() -> None:
    """By hand: 8 blocks of 1024 rows of 4 KiB; two read ahead, one on its way, one in hand."""
    meta = Meta(8000, 8, 1024, (ViewMeta("a", "gaussian", 1024, "none"),))
    alone = (320 + 4 * 4) * MIB
    huge = 1 << 40
    assert required_bytes(meta, Footprint(0, 0, 0), 1, 1, huge) == alone
    assert required_bytes(meta, Footprint(0, 0, 5), 1, 3, huge) == alone + 3 * 2 * 5
    assert required_bytes(meta, Footprint(0, 0, 0, 7, 11), 1, 1, huge) == alone + 7 + 11 * 1024
    # three sets of statistics, and one for each level of the tree over all blocks
    for n_groups in (1, 2, 3, 8):
        found = required_bytes(meta, Footprint(0, 1000, 0), n_groups, 2, huge)
        assert found == alone + 2 * 1000 * (3 + 4)
    # where that is more: the nodes that come to a merge, a sum, old globals, the update by two threads
    wide = replace(meta, views=(ViewMeta("a", "gaussian", 5000, "none"),))
    heavy = Footprint(0, 10**9, 10**8, 7, 11, update=10**10, update_run=10**6)
    for n_groups, nodes in ((1, 1), (2, 2), (3, 5), (4, 5), (8, 5)):
        assert max_merged_nodes(8, n_groups) == nodes
        merging = 2 * 10**9 * nodes + 10**9 + 2 * 10**8 + 10**10 + 10**6
        assert merge_bytes(wide, heavy, n_groups, 2, 2) == merging
        mapping = 4 * 5000 * 4096 + 7 + 11 * 1024 + 2 * 10**9 * 7 + 2 * 2 * 10**8
        assert required_bytes(wide, heavy, n_groups, 2, huge, 2) == 320 * MIB + max(mapping, merging)
    assert merge_bytes(wide, heavy, 3, 2, 99) == merge_bytes(wide, heavy, 3, 2, 3)  # as many as runs
    # three local states of a group of 8000 / 3 rows; of a block, where the group's are on disk
    assert required_bytes(meta, Footprint(10, 0, 0), 3, 2, huge) == alone + 2 * 3 * 10 * 2667
    low = 2 * 3 * 10 * 2667 * 4
    assert required_bytes(meta, Footprint(10, 0, 0), 3, 2, low) == alone + 2 * 3 * 10 * 2667
    assert required_bytes(meta, Footprint(10, 0, 0), 3, 2, low - 4) == alone + 2 * 3 * 10 * 1024


@pytest.mark.thorough
@pytest.mark.parametrize("n_blocks", [1, 7, 36, 64, 1000, 20000])
def test_no_less_is_asked_of_more_workers(n_blocks: int) -> None:
    """But for local state, of which each has its share: what comes to the root does not become less."""
    meta = Meta(16 * n_blocks, n_blocks, 16, (ViewMeta("a", "gaussian", 5000, "none"),))
    footprint = Footprint(0, 20 * MIB, 24 * MIB, 30 * MIB, 0, update=56 * MIB, update_run=22 * MIB)
    asked = [required_bytes(meta, footprint, n, 1, 1 << 60, n) for n in (*range(1, 80), 100, 1000, 10**4)]
    assert asked == sorted(asked)
    for n_groups in (2, 3, 12, 65, 100, 1000):
        needed = max(sum(n_nodes(r) for r in runs) for runs in _merges(cut_aligned(n_blocks, n_groups)))
        assert max_merged_nodes(n_blocks, n_groups) >= needed


def _merges(runs: list[range]) -> list[list[range]]:
    """Return the runs of blocks that each task merges."""
    found = []
    for step in merge_steps(runs):
        merged = [[runs[i] for i in merge.run] for merge in step]
        found += merged
        runs = [range(part[0].start, part[-1].stop) for part in merged]
    return [*found, runs]


def test_a_merge_makes_three_sums_at_most() -> None:
    """Traced: as far as the tree of a run of blocks that is cut anywhere goes."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        edges = [0, *sorted(rng.choice(np.arange(1, 200), 3, replace=False)), 200]
        sent = []
        for a, b in itertools.pairwise(edges):
            tree = Tree()
            for number in range(a, b):
                tree.add(number, None)
            sent.append(((*(replace(n, value=np.ones(10**5)) for n in tree.nodes()),),))
        peak, _ = memory._trace_peak(merge_nodes, sent)  # threads of tests before are traced, too
        assert peak < (memory_limits.MERGED + 0.5) * 8 * 10**5


def test_local_state_may_take_a_quarter() -> None:
    meta = Meta(8000, 9, 1024, (ViewMeta("a", "gaussian", 4, "none"),))
    local = 3 * 2667 * 2 * 10
    assert not local_must_spill(meta, Footprint(10, 0, 0), 3, 2, 4 * local)
    assert local_must_spill(meta, Footprint(10, 0, 0), 3, 2, 4 * local - 4)
    assert kept_bytes(meta, Footprint(0, 0, 0, kept_per_row=48), 6400) == 1600  # 16 of 64 bytes a row


def test_small_local_state_is_sent_where_memory_is_left() -> None:
    """Smaller than a set of statistics, or on disk; what came to a merge stays: 2 sets, 4 local states."""
    meta = Meta(8000, 8, 1024, (ViewMeta("a", "gaussian", 4, "none"),))
    small, huge = Footprint(10, 40001, 0), 1 << 40
    assert sends_local(meta, small, 2, 3, huge, 0)
    assert not sends_local(meta, replace(small, statistics=40000), 2, 3, huge, 0)
    assert not sends_local(meta, Footprint(0, 0, 0), 2, 3, huge, 0)  # not measured
    limit = required_bytes(meta, small, 2, 3, huge) + 7 + 3 * (2 * 40001 + 4 * 40000)
    assert sends_local(meta, small, 2, 3, limit, 7)
    assert not sends_local(meta, small, 2, 3, limit - 1, 7)
    large, limit = Footprint(10**5, 40000, 0), 1 << 31
    assert local_must_spill(meta, large, 2, 3, limit)
    assert sends_local(meta, large, 2, 3, limit, 0)


def test_local_state_is_kept_every_few_rounds_where_memory_is_left() -> None:
    """The state before them and their globals are there, and what came to a merge; on disk nothing waits."""
    meta = Meta(8000, 8, 1024, (ViewMeta("a", "gaussian", 4, "none"),))
    footprint, huge = Footprint(10, 40000, 500), 1 << 40
    limit = required_bytes(meta, footprint, 2, 3, huge) + 7 + 3 * (2 * 40000 + 40000 + KEPT_ROUNDS * 500)
    assert keep_every(meta, footprint, 2, 3, limit, 7) == KEPT_ROUNDS
    assert keep_every(meta, footprint, 2, 3, limit - 1, 7) == 1
    assert keep_every(meta, replace(footprint, local_per_row=10**5), 2, 3, 1 << 31, 0) == 1


def test_a_run_that_just_fits_is_not_refused() -> None:
    """And one that does not is told all numbers."""
    meta = Meta(8000, 8, 1024, (ViewMeta("a", "gaussian", 1024, "none"),))
    footprint = Footprint(0, 2 * MIB, 3 * MIB, 5 * MIB, 1024)
    need = (320 + 16 + 6 + 7 * 2 + 2 * 3) * MIB
    check_memory(meta, footprint, 1, 1, need)
    with pytest.raises(InputError) as refused:
        check_memory(meta, footprint, 1, 1, need - 1)
    for number in (
        "362 MiB a worker",
        "11.0 MiB to merge",
        "at least 362 MiB: 320 MiB of the process",
        "blocks of 4.0",
        "6.0 MiB to work",
        "2.0 MiB of st",
    ):
        assert number in str(refused.value)
    assert "3.0 MiB of globals" in str(refused.value)


def test_made_up_rows_lack_half_of_what_may_be_missing() -> None:
    """All that is kept of them is counted, each thing once."""
    kinds = {"a": "gaussian", "b": "bernoulli", "c": "poisson"}
    views = [ViewMeta(name, kind, 40, "scattered") for name, kind in kinds.items()]
    meta = Meta(500, 1, 500, (*views, ViewMeta("whole", "gaussian", 40, "none")))
    counted = _CountingCache()
    block = _made_up(meta, 500, counted)
    for view in meta.views:
        share = view.kind.observed(block.data[view.name]).mean()
        assert share == 1 if view.missing == "none" else 0.45 < share < 0.55
    for name, size in (("a", 3), ("b", 5), ("a", 3)):
        block.once(name, (), lambda size=size: np.zeros(size))
    assert counted.sizes == {"a": 24, "b": 40}


def test_the_memory_of_a_run_is_shared_out_among_its_threads() -> None:
    """What one task may use; threads have the blocks that are kept in common."""
    for n_threads, each in ((0, 800), (1, 800), (4, 200)):
        executor = LocalExecutor(n_threads, 800)
        assert (executor.memory_bytes, executor.cache_bytes) == (each, 600)
        executor.close()


@pytest.mark.parametrize("n_threads", [0, 2])
def test_blocks_are_kept_in_what_a_run_leaves(n_threads: int) -> None:
    """Of a limit that is given: three quarters at most, and no more than the rest."""
    view = ViewMeta("a", "gaussian", 40, "none")
    model = SparseGFA(n_factors=3).build(Meta(10_000, 20, 500, (view,)))
    n_groups, measured = max(1, n_threads), measure(model)
    for more in (1 << 20, 8 << 30):
        limit = n_groups * required_bytes(model.meta, measured, n_groups, 1, 1 << 40, 1) + more
        executor = LocalExecutor(n_threads, limit)
        footprint, room = fit_into_memory(model, measured, n_groups, executor)
        need = required_bytes(model.meta, footprint, n_groups, 1, executor.memory_bytes, 1)
        left = n_groups * (executor.memory_bytes - need)
        assert room == min(left, executor.cache_bytes)
        assert (room == left) == (more == 1 << 20)
        executor.close()


def test_limit_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest of the machine's memory and the limits of its control group; "max" is none."""
    from factorflow.engine.executors import local

    whole = local.available_memory()
    files = [tmp_path / name for name in ("max", "high", "absent")]
    files[0].write_text(f"{whole // 2}\n")
    files[1].write_text("max\n")
    monkeypatch.setattr(local, "CGROUP_LIMITS", tuple(map(str, files)))
    assert local.available_memory() == whole // 2
    files[0].write_text(f"{1 << 60}\n")
    assert local.available_memory() >= whole
