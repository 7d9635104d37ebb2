"""Simulated truth is found; predictions cover what they say; bad input is refused, odd input works."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

import factorflow
from examples.reproduce.identity import paired_at_random, recovered
from factorflow.errors import InputError
from factorflow.models import IdentityAttribute

WORLD: dict[str, Any] = {"n_features": 20, "n_identities": 4, "n_attributes": 2, "equal_lengths": True}


def _compared(posterior: Any, dataset: Any) -> dict[str, Any]:
    """Return how near a posterior of the first frames of a dataset is to the truth."""
    names = "loadings_y", "present", "dynamics", "transition", "precision_y"
    truth = {name: np.asarray(dataset.truth[name].values) for name in names}
    truth["present"] = truth["present"][: posterior.meta.n_rows]
    return recovered(posterior, truth)


def _values(dataset: Any) -> Any:
    return np.concatenate([dataset.block(i).data["y"] for i in range(dataset.n_blocks)])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    """Return simulated frames of 14 sequences, what was found in ten of them, and the other four."""
    path = tmp_path_factory.mktemp("identity")
    simulated = factorflow.simulate(
        "identity_attribute", path / "all.zarr", 1400, seed=11, n_sequences=14, **WORLD
    )
    y, number = _values(simulated), np.repeat(np.arange(14), 100).astype(str)
    shown, new = (
        factorflow.write_dataset(
            path / f"{name}.zarr", {"y": y[rows]}, {"y": "gaussian"}, sequences=number[rows]
        )
        for name, rows in {"shown": slice(0, 1000), "new": slice(1000, None)}.items()
    )
    config = IdentityAttribute(n_identities=4, factorisation="frame", max_iter=40, relevance_after=15)
    return simulated, factorflow.fit(shown, config, seed=1), new


@pytest.mark.thorough
def test_recovery_in_short(small: tuple[Any, Any, Any]) -> None:
    dataset, posterior, _ = small
    found = _compared(posterior, dataset)
    assert min(found["cosines"]) > 0.99
    assert found["accuracy"] > 0.97
    assert found["transition"] < 0.03
    assert abs(found["noise"] - 1) < 0.03


@pytest.mark.thorough
def test_the_mean_of_the_data_is_not_what_is_there_without_identities(tmp_path: Path) -> None:
    """Slow attributes draw the mean of the frames away from it."""
    dataset = factorflow.simulate(
        "identity_attribute", tmp_path / "s.zarr", 1000, seed=5, n_sequences=10, **WORLD
    )
    y = _values(dataset) + 3.0
    number = np.repeat(np.arange(10), 100).astype(str).tolist()
    shown = factorflow.write_dataset(tmp_path / "y.zarr", {"y": y}, {"y": "gaussian"}, sequences=number)
    posterior = factorflow.fit(shown, IdentityAttribute(n_identities=4, max_iter=60), seed=1)
    off = np.abs(posterior.variable("intercept_y").values - 3.0)
    assert off.max() < 0.1
    assert np.abs(y.mean(axis=0) - 3.0).max() > 0.25
    assert abs(_compared(posterior, dataset)["noise"] - 1) < 0.03


@pytest.mark.thorough
def test_chains_by_themselves(tmp_path: Path) -> None:
    """Attributes are smoothed before presence: wide ones, of frames that are unsure, would say no to it."""
    dataset = factorflow.simulate(
        "identity_attribute", tmp_path / "s.zarr", 1000, seed=5, n_sequences=10, **WORLD
    )
    config = IdentityAttribute(n_identities=4, max_iter=60, factorisation="chain")
    found = _compared(factorflow.fit(dataset, config, seed=1), dataset)
    assert found["accuracy"] > 0.97
    assert found["transition"] < 0.03


def test_columns_paired_at_random_are_no_identities(small: tuple[Any, Any, Any]) -> None:
    """The same columns span none of the true identities once no two of them stay together."""
    dataset, posterior, _ = small
    truth = {"loadings_y": np.asarray(dataset.truth["loadings_y"].values)}
    cosines = paired_at_random(posterior, truth, seed=1)
    assert len(cosines) == 4
    assert max(cosines) < 0.6


def test_surface(small: tuple[Any, Any, Any]) -> None:
    _, posterior, _ = small
    size = f"(variational), {len(posterior.obs_names):,} samples, 1 view>"  # there are no factors to count
    assert repr(posterior).splitlines()[0].endswith(size)
    assert posterior.loadings("y").dims == ("feature_y", "identity", "attribute")
    assert posterior.identities().dims == ("obs", "identity")
    attributes = posterior.attributes()
    assert attributes["mean"].dims == ("obs", "identity", "attribute")
    np.testing.assert_allclose(attributes["sd"] ** 2, posterior.variable("attributes_variance"), rtol=1e-12)
    assert (attributes["sd"] > 0).all()
    for name in ("transition", "dynamics", "precision"):
        suffix = "_y" if name == "precision" else ""
        mean = posterior.variable(f"{name}{suffix}")
        low, high = np.moveaxis(posterior.variable(f"{name}_interval{suffix}").values, -1, 0)
        assert ((low < mean) & (mean < high)).all()
    assert "Identity1" in str(posterior.identities().identity.values)
    assert posterior.summary()
    assert "identity_attribute" in posterior._repr_html_()


def test_one_step_predictions_cover_what_they_say(small: tuple[Any, Any, Any]) -> None:
    """Of new sequences; and their density is above that of the marginal mean and variance."""
    _, posterior, new = small
    found, y = posterior.one_step(dataset=new), _values(new)
    z = (y - found["mean_y"].values) / found["sd_y"].values
    for share, off in ((0.5, 0.08), (0.9, 0.03), (0.95, 0.03)):  # a mixture has heavier tails than a normal
        inside = np.abs(z) < norm.ppf(0.5 + share / 2)
        assert abs(inside.mean() - share) < off, share
    constant = norm.logpdf(y, y.mean(axis=0), y.std(axis=0)).sum(axis=1)
    assert found["log_density"].mean() > constant.mean() + 3
    part = posterior.one_step(150, 160, dataset=new)
    np.testing.assert_array_equal(part["mean_y"].values, found["mean_y"].values[150:160])


@pytest.mark.thorough
def test_reconstruction_and_projection(small: tuple[Any, Any, Any]) -> None:
    _, posterior, new = small
    found, y = posterior.predict("y"), _values(posterior.dataset)
    z = (y - found["mean"].values) / found["sd"].values
    assert 0.8 < z.std() < 1.0  # the frames themselves were seen
    again = posterior.project(posterior.dataset).identities().values
    assert np.abs(again - posterior.identities().values).mean() < 0.01
    z = (_values(new) - posterior.project(new).predict("y")["mean"].values) / found["sd"].values[: new.n_rows]
    assert 0.8 < z.std() < 1.0


@pytest.mark.parametrize("unit", ["entry", "row", "sequence"])
def test_held_out(unit: str, tmp_path: Path) -> None:
    """Entries, frames and sequences; a frame between others is predicted better than one on its own."""
    world = WORLD | {"n_sequences": 10}
    dataset = factorflow.simulate("identity_attribute", tmp_path / "d.zarr", 400, seed=2, **world)
    config = IdentityAttribute(n_identities=4, factorisation="frame", max_iter=8, relevance_after=6)
    scores = factorflow.fit(dataset, config, seed=1, holdout=0.2, holdout_unit=unit).holdout_scores()
    assert scores["n_entries"].item() > 0
    least = {"entry": 0.5, "row": 0.05, "sequence": -0.2}[unit]
    assert scores["r2"].item() > least


def _written(tmp_path: Path, y: Any, sequences: Any = None) -> Any:
    return factorflow.write_dataset(tmp_path / "y.zarr", {"y": y}, {"y": "gaussian"}, sequences=sequences)


def _frames(n: int = 60, d: int = 5) -> Any:
    return np.random.default_rng(0).normal(size=(n, d))


QUICK: dict[str, Any] = {"n_identities": 2, "max_iter": 2, "relevance_after": 1}


def test_a_dataset_without_sequences_is_one_and_says_so(tmp_path: Path) -> None:
    dataset = _written(tmp_path, _frames())
    with pytest.warns(UserWarning, match="60 rows are taken for one"):
        posterior = factorflow.fit(dataset, IdentityAttribute(**QUICK))
    assert posterior.variable("dynamics_parameters").values[0, 0, 0] == pytest.approx(59 / 2)


@pytest.mark.filterwarnings("ignore::factorflow.data.ingest.checks.DataWarning")
def test_sequences_of_one_frame_and_constant_features(tmp_path: Path) -> None:
    """Nothing is learned of the dynamics; a feature without variance has no loadings."""
    y = _frames()
    y[:, 2] = 3.0
    posterior = factorflow.fit(_written(tmp_path, y, [str(i) for i in range(60)]), IdentityAttribute(**QUICK))
    assert np.isfinite(posterior.trace["objective"]).all()
    np.testing.assert_allclose(posterior.variable("transition"), 0.5)
    np.testing.assert_allclose(posterior.variable("dynamics_variance"), 1 / 3, rtol=1e-6)
    bounds = posterior.variable("dynamics_interval").values
    np.testing.assert_allclose(bounds, np.broadcast_to([-0.95, 0.95], bounds.shape), atol=3e-3)
    np.testing.assert_allclose(posterior.loadings("y")[2], 0.0, atol=1e-6)
    np.testing.assert_allclose(posterior.predict("y")["mean"][:, 2], 3.0, atol=1e-4)


@pytest.mark.filterwarnings("ignore::factorflow.data.ingest.checks.DataWarning")
def test_two_frames_start_without_a_word(tmp_path: Path) -> None:
    """Whitened, their energy is the same: no correlation of it tells what belongs together."""
    with warnings.catch_warnings(action="error", category=RuntimeWarning):
        posterior = factorflow.fit(_written(tmp_path, _frames()[:2], ["a", "b"]), IdentityAttribute(**QUICK))
    assert np.isfinite(posterior.trace["objective"]).all()


def test_bad_input(tmp_path: Path) -> None:
    dataset = _written(tmp_path, _frames(), np.repeat(["a", "b"], 30))
    with pytest.raises(InputError, match="n_identities = 3: expected at most 2 with 2 attributes each: of 5"):
        factorflow.fit(dataset, IdentityAttribute(n_identities=3))
    with pytest.raises(InputError, match="n_attributes = 6: expected at most 5: of 5 features"):
        factorflow.fit(dataset, IdentityAttribute(n_identities=1, n_attributes=6))
    factorflow.fit(dataset, IdentityAttribute(**QUICK | {"n_identities": 3, "start": "random"}))
    with pytest.raises(InputError, match="n_attributes"):
        IdentityAttribute(n_attributes=0)
    with pytest.raises(InputError, match="dynamics_prior"):
        factorflow.fit(dataset, IdentityAttribute(dynamics_prior=(1.0, 0.0, 1.0, 0.0)))
    with pytest.raises(InputError, match="no_such_column"):
        factorflow.write_dataset(
            tmp_path / "z.zarr", {"y": _frames()}, {"y": "gaussian"}, sequences="no_such_column"
        )
    y = _frames()
    y[3, 1] = np.inf
    with pytest.raises(InputError, match="infinite|finite"):
        factorflow.write_dataset(tmp_path / "inf.zarr", {"y": y}, {"y": "gaussian"})
    counts = np.random.default_rng(0).poisson(2.0, (30, 4))
    counted = factorflow.write_dataset(tmp_path / "counts.zarr", {"n": counts}, {"n": "poisson"})
    with pytest.raises(InputError, match="gaussian views"):
        factorflow.fit(counted, IdentityAttribute())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_recovery(seed: int, tmp_path: Path) -> None:
    """20 sequences of 200 frames: the figures of ``docs/models/identity_attribute.md``."""
    dataset = factorflow.simulate(
        "identity_attribute", tmp_path / "d.zarr", 4000, seed=seed + 100, n_sequences=20, **WORLD
    )
    posterior = factorflow.fit(dataset, IdentityAttribute(n_identities=4), seed=seed)
    found = _compared(posterior, dataset)
    assert min(found["cosines"]) >= 0.99
    assert found["accuracy"] >= 0.98
    assert found["transition"] <= 0.01
    assert found["dynamics"] <= 0.05
    assert abs(found["median_noise"] - 1) <= 0.02
    assert abs(found["noise"] - 1) <= 0.02
    trace = posterior.trace
    last = {
        name: float(trace["objective"][trace["stage"] == name][-1]) for name in set(trace["stage"].values)
    }
    assert last["chains"] > last["frames and relevance"]
