"""The contract suite: every registered model enters by existing.

A family takes part with every case in ``examples()`` of its configuration, and with those of `MORE`. The
families beside this file are written against the guide in ``docs/add-a-model.md`` and take part like the
others. A test that no other case of a family could tell more about takes its first one only (mark ``once``),
or those that the mark names; one that starts much takes the first and the last (mark ``few``). Of cases
between these, tests that run a model to its end take a third in CI, each another one, and the others with the
slow tests; known numbers are compared in CI for all. Where a family of the
package has the shape of one of these, the tests that start much take this one with the slow tests, and so all
of them take its other cases.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import bayesian_pca  # noqa: F401  (they register themselves)
import poisson_nmf  # noqa: F401
import pytest
import sequence_model  # noqa: F401
import stochastic_model  # noqa: F401
import table_model  # noqa: F401
from contract_tools import plan_of, run_plan

import factorflow
from factorflow.data import Holdout
from factorflow.models import SparseGFA
from factorflow.models.configuration import Example, ModelConfig
from factorflow.models.registry import registered_models

MORE = {
    "sparse_gfa": {
        "counts": Example(
            SparseGFA(n_factors=2, warmup_iter=4, max_iter=4, likelihoods="negative_binomial"),
            data={"views": {"a": ("poisson", 6), "b": ("gaussian", 5)}, "n_factors": 2},
        ),
        "draws": Example(
            SparseGFA(
                n_factors=3,
                warmup_iter=3,
                max_iter=2,
                n_draws=4,
                n_burn_in=2,
                chains=2,
                covariates="group",
                smooth_covariates="time",
                score_covariates="group",
                smooth_groups=False,
            ),
            data={
                "views": {"a": ("gaussian", 9), "b": ("bernoulli", 8)},
                "n_factors": 3,
                "groups": 2,
                "smooth": 2,
                "r2": 0.8,
                "sparsity": 0.3,
                "view_activity": 1.0,
            },
        ),
        "metropolis": Example(
            SparseGFA(
                n_factors=2,
                likelihoods={"a": "negative_binomial", "b": "student_t"},
                size_factors={"a": "total+learned"},
                warmup_iter=3,
                max_iter=2,
                n_draws=4,
                n_burn_in=2,
                chains=2,
            ),
            data={"views": {"a": ("poisson", 6), "b": ("gaussian", 5)}, "n_factors": 2},
        ),
        "drawn_loadings": Example(
            SparseGFA(
                n_factors=3,
                loadings={"a": "informed", "b": "nonnegative", "c": "adaptive_shrinkage"},
                feature_sets={"odd": ["feature1", "feature3"], "low": ["feature0", "feature1"]},
                warmup_iter=3,
                max_iter=2,
                n_draws=4,
                n_burn_in=2,
                chains=2,
            ),
            data={
                "views": {"a": ("gaussian", 9), "b": ("bernoulli", 7), "c": ("poisson", 6)},
                "n_factors": 3,
            },
        ),
        "surplus": Example(  # a smaller model takes over amid the warm-up
            SparseGFA(n_factors=4, warmup_iter=7, max_iter=2),
            data={"views": {"a": ("gaussian", 30), "b": ("bernoulli", 5)}, "n_factors": 2},
        ),
    }
}
"""Cases that data as small as these would not come to by themselves."""

FIRST = {"sparse_gfa", "probit"}
"""Families that take part always in tests of once, a variational one and a sampler; the others in CI."""

WHOLE_RUNS = {"test_device", "test_runs", "test_stored", "test_projection"}
"""Modules of tests that run a model to its end."""

ONE_IN = 3
"""Of cases between the first and the last of a family, the share that such a test takes in CI: by the names
of both, so that each case meets some tests, and each test some cases."""

ALONE = {"stochastic_factors"}
"""Families of these tests whose shape no family of the package has without an extra."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "family" not in metafunc.fixturenames:
        return
    once = metafunc.definition.get_closest_marker("once")
    few = metafunc.definition.get_closest_marker("few")
    cases = []
    for name, kind in registered_models().items():
        words, of_package = list(examples(name)), kind.__module__.startswith("factorflow.")
        words = words[:1] if once else words[:1] + words[1:][-1:] if few else words
        always = len(words) if of_package else name in ALONE or not (once or few)
        module = metafunc.module.__name__.rpartition(".")[2]
        for i, word in enumerate(words):
            between = module in WHOLE_RUNS | {"test_numbers"} and 0 < i < len(words) - 1
            by_turns = between and module in WHOLE_RUNS
            turn = crc32(f"{metafunc.definition.name} {name}:{word}".encode()) % ONE_IN if by_turns else 0
            in_ci = (once and of_package and name not in FIRST) or between
            marks = [pytest.mark.thorough] if in_ci else []
            marks = marks if i < always and turn == 0 else [pytest.mark.slow]
            cases.append(pytest.param(f"{name}:{word}", marks=marks))
    metafunc.parametrize("family", once.args if once and once.args else cases)


def example(family: str) -> Example:
    """Return a case of a family: "sparse_gfa:groups"."""
    name, _, word = family.partition(":")
    return examples(name)[word]


def examples(name: str) -> dict[str, Example]:
    """Return the cases of a family by their words."""
    return {**registered_models()[name].examples(), **MORE.get(name, {})}


@pytest.fixture
def config(family: str) -> ModelConfig:
    """The configuration of a case."""
    return example(family).config


@pytest.fixture(scope="session")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Make (once) the dataset of a case: 97 rows in blocks of 32, some entries missing."""
    made: dict[str, Any] = {}

    def dataset(family: str, n_samples: int = 97, block_rows: int = 32, missing: float = 0.1) -> Any:
        case = example(family)
        settings = {"n_samples": n_samples, "block_rows": block_rows, "missing": missing, **case.data}
        key = json.dumps([case.simulator, settings])
        if key not in made:
            path = tmp_path_factory.mktemp(case.simulator) / "data.zarr"
            made[key] = factorflow.simulate(case.simulator, path, seed=7, **settings)
        return made[key]

    return dataset


@pytest.fixture
def sparse(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The dataset of a case without missing entries, its views of values stored sparse."""
    from factorflow.data.store import views, writer

    def prepare(view: Any, *given: Any) -> Any:
        is_values = view.kind is None or view.kind.is_values
        can_be = is_values and view.split is None
        return views.prepare(replace(view, layout="sparse") if can_be else view, *given)

    monkeypatch.setattr(writer, "prepare", prepare)
    case = example(family)
    settings = {"n_samples": 97, "block_rows": 32, "missing": 0.0, **case.data}
    made = factorflow.simulate(case.simulator, tmp_path / "sparse.zarr", seed=7, **settings)
    assert {entry.layout for entry in made.manifest.views if entry.kind.is_values and not entry.aux} == {
        "sparse"
    }
    return made


@pytest.fixture
def dataset(family: str, datasets: Callable[..., Any]) -> Any:
    """The dataset of a case."""
    return datasets(family)


@pytest.fixture
def plan(dataset: Any, config: ModelConfig) -> Any:
    """A run of a case, with a tenth of the entries held out."""
    return plan_of(dataset, config, Holdout(0.1, 3))


@pytest.fixture(scope="session")
def kept() -> dict[str, Any]:
    """What was found once for all tests, by name of the case and of the thing."""
    return {}


@pytest.fixture
def alone(family: str, plan: Any, kept: dict[str, Any]) -> dict[str, Any]:
    """What a serial run in one group finds: the reference of all others."""
    if f"{family} alone" not in kept:
        kept[f"{family} alone"] = run_plan(plan)
    return kept[f"{family} alone"]


@pytest.fixture
def stored(
    family: str,
    config: ModelConfig,
    dataset: Any,
    kept: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Any, list[Any]]:
    """The posterior of a serial run on disk, and the events of the run."""
    if f"{family} stored" not in kept:
        out, events = tmp_path_factory.mktemp("stored") / "p.zarr", list[Any]()
        factorflow.fit(dataset, config, seed=3, holdout=0.1, out=out, on_event=events.append)
        kept[f"{family} stored"] = factorflow.open_posterior(out), events
    found: tuple[Any, list[Any]] = kept[f"{family} stored"]
    return found


@pytest.fixture
def reference(family: str, stored: tuple[Any, list[Any]], kept: dict[str, Any]) -> Any:
    """The posterior of a serial run, read into memory: the reference of all others."""
    if f"{family} posterior" not in kept:
        kept[f"{family} posterior"] = factorflow.open_posterior(stored[0].path).load()
    return kept[f"{family} posterior"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Three single-threaded worker processes."""
    from factorflow.engine.executors.local_cluster import local_cluster

    client, owned = local_cluster(3, "1GiB")
    yield client
    for thing in owned:
        thing.close()
