"""New samples under a fitted model: matched by name, with anything missing, on any executor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract_tools import Cut, assert_same_bits, on_workers

import factorflow
from factorflow.engine.plan import Plan
from factorflow.errors import InputError

NEW = 40


@pytest.fixture
def posterior(family: str, config: Any, dataset: Any, kept: dict[str, Any]) -> Any:
    """What a run of the case without held-out entries found."""
    if f"{family} fitted" not in kept:
        kept[f"{family} fitted"] = factorflow.fit(dataset, config, seed=3)
    return kept[f"{family} fitted"]


def every_feature(dataset: Any) -> dict[str, Any]:
    return {name: np.arange(view.n_features) for name, view in dataset.views.items()}


def new_samples(path: Path, dataset: Any, features: Mapping[str, Any]) -> Any:
    """Write the first samples again under other names, with these features (or levels) in this order."""
    views, names = {}, {name: dataset.features(name)[index] for name, index in features.items()}
    for name, index in features.items():
        values, view = dataset.values(name, 0, NEW), dataset.views[name]
        if view.kind.coded:
            views[name] = np.append(dataset.features(name), "")[values]
        else:
            values = np.where(view.kind.observed(values), values, np.nan)
            views[name] = values[:, index]
    return factorflow.write_dataset(
        path,
        views,
        likelihoods={
            v.name: v.likelihood for v in dataset.views.values() if v.name in views and v.kind.is_values
        },
        inputs={
            v.name: v.likelihood for v in dataset.views.values() if v.name in views and not v.kind.is_values
        },
        features=names,
        samples=[f"new{i}" for i in range(NEW)],
        groups=[dataset.groups[code] for code in dataset.codes("group", 0, NEW)] if dataset.groups else None,
        sequences=dataset.codes("sequence", 0, NEW).tolist() if dataset.n_sequences else None,
        block_rows=16,
    )


def explained(posterior: Any) -> list[str]:
    return [view.name for view in posterior.meta.value_views]


@pytest.mark.thorough
@pytest.mark.few
def test_names_match_features(posterior: Any, dataset: Any, tmp_path: Path) -> None:
    """Features and levels in another order are other columns and codes of the same data."""
    same = every_feature(dataset)
    turned = {view: order[::-1] for view, order in same.items()}
    straight = posterior.project(new_samples(tmp_path / "a.zarr", dataset, same))
    again = posterior.project(new_samples(tmp_path / "b.zarr", dataset, turned))
    assert list(again.obs_names) == [f"new{i}" for i in range(NEW)]
    for view in posterior.views:
        assert list(again.features(view)) == list(posterior.features(view))
    for view in explained(posterior):
        for found, expected in zip(
            again.predict(view).values(), straight.predict(view).values(), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    if posterior.has("scores"):
        np.testing.assert_allclose(again.scores(), straight.scores(), atol=1e-6)


@pytest.mark.few
def test_what_is_missing_is_predicted(posterior: Any, dataset: Any, tmp_path: Path) -> None:
    """Of one view every second feature is there, and what the model is given."""
    inputs = {view.name for view in posterior.meta.input_views}
    few = {
        view: index if view in inputs else index[::2]
        for view, index in every_feature(dataset).items()
        if view in {*inputs, explained(posterior)[0]}
    }
    projected = posterior.project(new_samples(tmp_path / "a.zarr", dataset, few))
    projected.save(tmp_path / "p.zarr")
    stored = factorflow.open_posterior(tmp_path / "p.zarr")
    for view in explained(posterior):
        predicted = stored.predict(view)
        assert predicted["mean"].shape == (NEW, dataset.views[view].n_features)
        assert np.isfinite(predicted["mean"].to_numpy()).all()
        assert np.isfinite(predicted["sd"].to_numpy()).all()
    assert repr(stored)


@pytest.mark.few
def test_any_executor(posterior: Any, dataset: Any, tmp_path: Path) -> None:
    """A projection is a run: the same bits in any cut, in threads, and with its output on disk."""
    new = new_samples(tmp_path / "a.zarr", dataset, every_feature(dataset))
    assert new.n_blocks == 3
    alone = posterior.project(new, iterations=4)
    for executor in (Cut(1, look_ahead=3), Cut(1, 2, look_ahead=1, feature_tasks=1)):
        assert_same_bits(posterior.project(new, iterations=4, executor=executor), alone)
    out = tmp_path / "p.zarr"
    written = posterior.project(new, iterations=4, executor="threads", workers=2, out=out)
    assert_same_bits(written, alone)
    assert written.run["status"] == "projected"


@pytest.mark.thorough
@pytest.mark.once
def test_on_a_cluster(cluster: Any, posterior: Any, dataset: Any, tmp_path: Path) -> None:
    new = new_samples(tmp_path / "a.zarr", dataset, every_feature(dataset))
    there = posterior.project(new, iterations=4, executor=on_workers(cluster, 2))
    assert_same_bits(there, posterior.project(new, iterations=4))


@pytest.mark.few
def test_own_rows_get_other_noise(
    posterior: Any, config: Any, dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No number that a fit has drawn for its rows is drawn for new ones."""
    drawn: dict[bool, set[tuple[int, int]]] = {True: set(), False: set()}
    step = Plan.step

    def watch(self: Plan, *place: Any) -> Any:
        made = step(self, *place)
        assert made.projecting == (self.fixed is not None)
        drawn[made.projecting].add((made.stream, made.iteration))
        return made

    monkeypatch.setattr(Plan, "step", watch)
    factorflow.fit(dataset, config, seed=3, max_iter=3)
    posterior.project(dataset, iterations=3)
    assert drawn[True]
    assert drawn[False]
    assert not drawn[True] & drawn[False]


def test_nothing_in_common_is_refused(reference: Any, tmp_path: Path) -> None:
    other = factorflow.write_dataset(
        tmp_path / "o.zarr", {"other": np.random.default_rng(0).normal(size=(9, 4))}
    )
    with pytest.raises(InputError, match="fitted views"):
        reference.project(other)
