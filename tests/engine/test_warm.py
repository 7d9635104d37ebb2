"""Warm starts: a fit to data that grew begins with the globals of an earlier one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorflow
from factorflow.engine.events import IterationDone
from factorflow.errors import InputError
from factorflow.models import ProbitFactors, SparseGFA
from factorflow.models.sparse_gfa.state import replace_part

D = {"a": 12, "b": 8}


def values(n: int, kind: str = "gaussian") -> dict[str, np.ndarray]:
    """Two views of 3 factors; more rows begin with those of fewer."""
    rng = np.random.default_rng(5)
    loadings = {v: rng.standard_normal((3, d)) * (rng.random((3, d)) < 0.6) for v, d in D.items()}
    scores = rng.standard_normal((400, 3)) * [1.5, 1.0, 0.7]
    found = {}
    for view, w in loadings.items():
        x = scores @ w
        noise = rng.standard_normal((400, D[view]))
        found[view] = x + 0.5 * noise + 3.0 if kind == "gaussian" else (x + noise > 0).astype(float)
    return {view: y[:n] for view, y in found.items()}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("warm")
    made: dict[Any, Any] = {}

    def dataset(n: int, kind: str = "gaussian", only: tuple[str, ...] = ("a", "b")) -> Any:
        if (n, kind, only) not in made:
            views = {view: y for view, y in values(n, kind).items() if view in only}
            path = folder / f"{kind}-{'-'.join(only)}-{n}.zarr"
            made[n, kind, only] = factorflow.write_dataset(path, views, dict.fromkeys(views, kind))
        return made[n, kind, only]

    return dataset


def gfa(**more: Any) -> SparseGFA:
    return SparseGFA(**{"n_factors": 4, "tol": 1e-7, "drop": 0.01, **more})


def equal(one: Any, other: Any) -> None:
    for name, group in one.tree.children.items():
        for variable in group.data_vars:
            if variable != "seconds":
                left, right = group[variable].values, other.tree[name][variable].values
                assert np.array_equal(left, right, equal_nan=left.dtype.kind == "f"), (name, variable)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["gaussian", pytest.param("bernoulli", marks=pytest.mark.thorough)])
def test_the_same_data_need_few_iterations_and_change_nothing(datasets: Any, kind: str) -> None:
    cold = factorflow.fit(datasets(300, kind), gfa())
    warm = factorflow.fit(datasets(300, kind), gfa(), warm_start=cold)
    assert warm.run["n_iterations"] * 4 < cold.run["n_iterations"]
    assert warm.factors == cold.factors
    # passes of few binary entries end before loadings that no entry is sure of have settled (`enough`)
    atol = 0.02 if kind == "gaussian" else 0.06
    for view in D:
        np.testing.assert_allclose(warm.loadings(view), cold.loadings(view), atol=atol)
    assert warm.trace["objective"].values[0] >= cold.trace["objective"].values[-1] - 1e-3 * 300 * 20
    assert warm.trace["objective"].values[-1] >= cold.trace["objective"].values[-1] - 0.1


@pytest.mark.thorough
def test_more_rows_keep_order_signs_and_names_of_factors(datasets: Any) -> None:
    cold = factorflow.fit(datasets(200), gfa())
    warm = factorflow.fit(datasets(400), gfa(), warm_start=cold)
    assert warm.factors == cold.factors
    for view in D:
        ours, theirs = warm.loadings(view).values, cold.loadings(view).values
        for k in range(len(cold.factors)):
            if np.linalg.norm(theirs[:, k]) > 1.0:
                assert np.corrcoef(ours[:, k], theirs[:, k])[0, 1] > 0.95
    anew = factorflow.fit(datasets(400), gfa())
    assert warm.run["n_iterations"] < anew.run["n_iterations"]
    gap = anew.trace["objective"].values[-1] - warm.trace["objective"].values[-1]
    assert gap < 1e-3 * 400 * 20


@pytest.mark.thorough
def test_order_and_signs_stay_where_a_fit_anew_would_change_them(tmp_path: Path) -> None:
    """Of the new rows the second factor is the strongest, and the first one's largest loading is another."""
    rng = np.random.default_rng(2)
    loadings = np.zeros((2, 8))
    loadings[0, :4], loadings[1, 4:] = [1.0, -0.7, 0.5, -0.4], [1.0, -0.7, 0.5, 0.4]
    scores, noise = rng.standard_normal((400, 2)), 0.5 * rng.standard_normal((400, 8))
    scores *= np.repeat([[1.5, 0.7], [0.5, 2.5]], 200, axis=0)
    noise[200:, 0] *= 8.0
    y = scores @ loadings + noise
    few = factorflow.write_dataset(tmp_path / "few.zarr", {"y": y[:200]})
    all_ = factorflow.write_dataset(tmp_path / "all.zarr", {"y": y})
    model = gfa(n_factors=2, scale_features=True)
    cold = factorflow.fit(few, model)
    warm = factorflow.fit(all_, model, warm_start=cold)
    anew = factorflow.fit(all_, model)

    def correlations(other: Any) -> Any:
        pairs = zip(cold.loadings("y").values.T, other.loadings("y").values.T, strict=True)
        return np.array([np.corrcoef(a, b)[0, 1] for a, b in pairs])

    assert (correlations(warm) > 0.8).all()
    assert (np.abs(correlations(anew)) < 0.5).all()  # the other order
    turned = np.corrcoef(anew.loadings("y").values[:, 1], cold.loadings("y").values[:, 0])[0, 1]
    assert turned < -0.8


def test_a_dropped_factor_takes_its_name_along(datasets: Any) -> None:
    """Names are those of the first fit, through drops and projections."""
    cold = factorflow.fit(datasets(200), gfa(drop=0.0))
    assert cold.factors == ["Factor1", "Factor2", "Factor3", "Factor4"]
    from factorflow.models.sparse_gfa.change_of_basis import select_factors
    from factorflow.models.sparse_gfa.start.warm_start import warm_globals
    from factorflow.posterior.globals import StoredGlobals

    globals_ = StoredGlobals.of(cold.tree, None).read(0, 0)
    begun = warm_globals(cold.model.settings, globals_, globals_)
    left = select_factors(begun, np.array([0, 2, 3]))
    assert cold.model.coords(left)["factor"] == ["Factor1", "Factor3", "Factor4"]
    again = warm_globals(cold.model.settings, globals_, replace_part(left, "progress", trial_failed=True))
    assert cold.model.coords(again)["factor"] == ["Factor1", "Factor3", "Factor4"]
    assert not again.progress.trial_failed  # of other data it is not known


@pytest.mark.parametrize("scale", ["scale_views", "scale_features"])
def test_weights_mean_the_same_on_the_scale_of_the_data(datasets: Any, scale: str) -> None:
    """Reference and scale are those of the data as they are now: loadings, noise and means are not moved."""

    from factorflow.models.sparse_gfa.start.warm_start import warm_globals
    from factorflow.models.sparse_gfa.weights import expected_weights
    from factorflow.posterior.globals import StoredGlobals

    fit = factorflow.fit(datasets(200), gfa(**{"scale_views": False, scale: True}))
    old = StoredGlobals.of(fit.tree, None).read(0, 0)
    rng = np.random.default_rng(0)
    fixed = {
        v: replace(
            f,
            scale=f.scale * rng.uniform(0.5, 2.0, f.scale.shape),
            reference=f.reference + 1.0,
            location=f.location + 1.0,
        )
        for v, f in old.fixed.items()
    }
    new = warm_globals(fit.model.settings, replace(old, fixed=fixed), old)
    for view in D:
        was, now, f, g = old.weights[view], new.weights[view], old.fixed[view], new.fixed[view]
        for moment in (0, 1):
            power = moment + 1
            np.testing.assert_allclose(
                expected_weights(now)[moment] * g.scale[:, None] ** power,
                expected_weights(was)[moment] * f.scale[:, None] ** power,
            )
        np.testing.assert_allclose(
            now.intercept * g.scale + g.reference, was.intercept * f.scale + f.reference
        )
        np.testing.assert_allclose(
            (now.noise_rate / now.noise_shape) * g.scale[:, None] ** 2,
            (was.noise_rate / was.noise_shape) * f.scale[:, None] ** 2,
        )
        np.testing.assert_allclose(now.intercept_variance * g.scale**2, was.intercept_variance * f.scale**2)


def test_precisions_follow_a_change_of_units(datasets: Any) -> None:
    """Of all features twice as wide: the slab has the width that it had on the scale of the data."""

    from factorflow.models.sparse_gfa.start.warm_start import warm_globals
    from factorflow.models.sparse_gfa.weights import sum_pairs
    from factorflow.posterior.globals import StoredGlobals

    fit = factorflow.fit(datasets(200), gfa(), max_iter=5)
    old = StoredGlobals.of(fit.tree, None).read(0, 0)
    fixed = {v: replace(f, scale=2.0 * f.scale) for v, f in old.fixed.items()}
    new = warm_globals(fit.model.settings, replace(old, fixed=fixed), old)
    for view in D:
        np.testing.assert_allclose(4.0 / new.views[view].alpha, 1.0 / old.views[view].alpha)
        pairs = sum_pairs(new.weights[view], fit.model.settings.precision(view, new.weights[view]))
        np.testing.assert_allclose(new.views[view].pairs, pairs)
    assert (new.progress.step_length, new.change.transform) == (1.0, None)


CASES = [
    pytest.param("gaussian", ("a", "b"), gfa(max_iter=12), id="gaussian"),
    pytest.param("bernoulli", ("a", "b"), gfa(max_iter=6), id="binary", marks=pytest.mark.thorough),
    pytest.param(
        "bernoulli",
        ("a",),
        ProbitFactors(n_factors=2, n_burn_in=4, n_draws=6, chains=2),
        id="probit",
        marks=pytest.mark.thorough,
    ),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "only", "model"), CASES)
def test_equal_bits_in_threads_and_when_resumed(
    datasets: Any, kind: str, only: tuple[str, ...], model: Any, tmp_path: Path
) -> None:
    first = tmp_path / "first.zarr"
    factorflow.fit(datasets(200, kind, only), model, out=first)
    data = datasets(400, kind, only)
    alone = factorflow.fit(data, model, warm_start=first)
    threads = factorflow.fit(data, model, warm_start=first, executor="threads", workers=3)
    equal(alone, threads)
    out = tmp_path / "out.zarr"

    def interrupt(event: Any) -> None:
        if isinstance(event, IterationDone) and event.iteration == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        factorflow.fit(data, model, warm_start=first, out=out, checkpoint_every=2, on_event=interrupt)
    assert factorflow.open_posterior(out).run["status"] == "partial"
    equal(alone, factorflow.resume(out))
    assert factorflow.open_posterior(out).run["warm_from"] == str(first)


def test_a_chain_begins_where_its_own_ended(datasets: Any) -> None:
    """Without iterations in between the first draw of each chain is near the last one of the fit."""
    from factorflow.engine.warm_start import warm_start
    from factorflow.posterior.globals import StoredGlobals, n_sets

    data = datasets(200, "bernoulli", ("a",))
    model = ProbitFactors(n_factors=2, n_burn_in=4, n_draws=6, chains=2)
    fit = factorflow.fit(data, model)
    found = warm_start(fit, data, model)
    stored = StoredGlobals.of(fit.tree, None)
    for chain in range(2):
        last = stored.read(chain, n_sets(fit.tree) - 1)
        np.testing.assert_array_equal(found.globals_(chain).loadings["a"], last.loadings["a"])
    assert stored.digest(2, 0) != stored.digest(2, 1) != stored.digest(1, 1)


def test_what_does_not_fit_is_refused(datasets: Any, tmp_path: Path) -> None:
    fit = factorflow.fit(datasets(200), gfa(), max_iter=2)
    for data, model, match in (
        (datasets(200), gfa(n_factors=3), "n_factors=4"),
        (datasets(200, "gaussian", ("a",)), gfa(), "views"),
        (datasets(200), gfa(loadings="ard"), "rotated to the end"),
        (datasets(200), {"model": "molten_poisson"}, "."),
    ):
        with pytest.raises(InputError, match=match):
            factorflow.fit(data, model, warm_start=fit)
    views = {view: y[:, ::-1] for view, y in values(200).items()}
    features = {view: [f"feature{i}" for i in reversed(range(d))] for view, d in D.items()}
    turned = factorflow.write_dataset(tmp_path / "t.zarr", views, features=features)
    with pytest.raises(InputError, match="same names in the same order"):
        factorflow.fit(turned, gfa(), warm_start=fit)


@pytest.mark.thorough
def test_the_run_of_another_start_is_another_run(datasets: Any, tmp_path: Path) -> None:
    out, first = tmp_path / "out.zarr", factorflow.fit(datasets(200), gfa(), max_iter=2)
    other = factorflow.fit(datasets(200), gfa(), max_iter=3)
    factorflow.fit(datasets(200), gfa(), max_iter=2, out=out, warm_start=first)
    events: list[Any] = []
    factorflow.fit(
        datasets(200), gfa(), max_iter=2, out=out, warm_start=first, resume="auto", on_event=events.append
    )
    assert not events
    with pytest.raises(InputError, match="out"):
        factorflow.fit(datasets(200), gfa(), max_iter=2, out=out, warm_start=other, resume="auto")
