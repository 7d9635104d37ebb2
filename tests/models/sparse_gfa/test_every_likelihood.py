"""Every likelihood, the same checks of a small fit to draws from it.

Times to an event have risks in place of predictions: their checks are in `test_survival`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import factorflow
from factorflow.api import Posterior
from factorflow.core.trees import replace
from factorflow.likelihoods import get_likelihood, likelihood_names
from factorflow.models import SparseGFA

MODEL = SparseGFA(n_factors=4, max_iter=40)
N_ROWS, N_FEATURES, TRIALS = 150, 24, 6
NAMES = tuple(name for name in likelihood_names() if not get_likelihood(name).is_time)
PHI = {
    "negative_binomial": [1.5],
    "zero_inflated_poisson": [-1.5],
    "zero_inflated_negative_binomial": [1.5, -1.5],
    "gamma": [1.5],
    "beta": [2.5],
    "ordinal": [0.3, 0.3],
}
"""Nuisance parameters; of others the logarithm of a standard deviation of .6."""
TEXTS = {"ordinal": "ordinal(levels=4)", "binomial": f"binomial(trials={TRIALS})"}


class Case(NamedTuple):
    """Draws from a likelihood, what they were drawn from, and a fit from which a tenth was held out."""

    scores: Any
    mean: Any
    log_density: Any
    values: Any
    options: dict[str, Any]
    data: Any
    posterior: Posterior
    hidden: Any


def simulate(name: str) -> tuple[Any, ...]:
    """Return scores, mean and log density of each entry, entries, and options of a dataset of them."""
    rng = np.random.default_rng(13350 + NAMES.index(name))
    density = get_likelihood(TEXTS.get(name, name))
    z = rng.standard_normal((N_ROWS, 2))
    w = rng.normal(0.0, 1.2, (N_FEATURES, 2)) * (rng.random((N_FEATURES, 2)) < 0.7)
    x = z @ w.T + 0.3 * rng.standard_normal(N_FEATURES)
    if density.log_link or name == "lognormal":
        x = 0.5 * x + 0.7
    phi = np.array(PHI.get(name, [np.log(0.6)] * density.n_phi))[:, None, None] * np.ones((1, *x.shape))
    trials = np.full(x.shape, float(TRIALS)) if density.aux == "trials" else None
    y = density.draw(rng.random(x.shape), x, phi, trials)
    if name == "beta":  # numbers that are not told from 0 and 1 are no entries
        y = np.clip(y, 1e-4, 1.0 - 1e-4)
    options: dict[str, Any] = {"likelihoods": {"v": name}, "block_rows": 256}
    if density.aux == "trials":
        options["trials"] = {"v": TRIALS}
    if density.aux == "censored":
        options["limits"] = {"v": (float(np.quantile(y, 0.2)), None)}
    return z, density.moments(x, phi, trials)[0], density.log_density(y, x, phi, trials), y, options


def names_by_feature(name: str) -> dict[str, Any]:
    """Return the likelihood of the view as one of each feature."""
    return {"v": {f"feature{d}": name for d in range(N_FEATURES)}}


@pytest.fixture(scope="module")
def case_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Return what makes a case, once."""
    made: dict[str, Case] = {}

    def make(name: str) -> Case:
        if name not in made:
            z, mean, log_density, y, options = simulate(name)
            data = factorflow.write_dataset(tmp_path_factory.mktemp(name) / "d", {"v": y}, **options)
            posterior = factorflow.fit(data, MODEL, holdout=0.1, progress=False)
            holdout, hidden = factorflow.data.Holdout.of(posterior.run, None), np.zeros(y.shape, bool)
            hidden[tuple(np.asarray(data.block(0, ["v"], holdout).hidden["v"]))] = True
            made[name] = Case(z, mean, log_density, y, options, data, posterior, hidden)
        return made[name]

    return make


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_predictions_are_near_what_entries_were_drawn_from(case_of: Any, name: str) -> None:
    """Their means; 90 % intervals of hidden entries, whose ends are inclusive."""
    case = case_of(name)
    assert case.posterior.summary()["views"]["v"]["likelihood"].startswith(name)
    found = case.posterior.predict("v", interval=0.9)
    mean, low, high = (found[part].to_numpy() for part in ("mean", "lower", "upper"))
    left = (mean - case.mean) ** 2
    assert 1.0 - left.sum() / ((case.mean - case.mean.mean(axis=0)) ** 2).sum() > 0.5
    assert abs(np.median(mean / case.mean) - 1.0) < 0.1 or not (case.mean > 0.0).all()
    inside = ((low <= case.values) & (case.values <= high))[case.hidden]
    most = 1.0 if get_likelihood(name).discrete else 0.95
    assert 0.85 < inside.mean() <= most
    scores = case.posterior.holdout_scores().loc["v"]
    assert scores["log_likelihood"] > scores["baseline_log_likelihood"] + 0.03


@pytest.mark.parametrize("name", NAMES)
def test_factors_are_found_and_samples_project_onto_them(case_of: Any, name: str) -> None:
    """Projections see the held-out entries too: scores differ by a share of their standard deviation."""
    case = case_of(name)
    found = case.posterior.scores().to_numpy()
    design = np.column_stack([found, np.ones(N_ROWS)])
    left = case.scores - design @ np.linalg.lstsq(design, case.scores, rcond=None)[0]
    assert (left.var(axis=0) / case.scores.var(axis=0)).max() < 0.5
    sd = np.sqrt(case.posterior.variable("scores_variance").values)
    moved = (case.posterior.project(case.data).scores().to_numpy() - found) / sd
    assert np.sqrt(np.mean(moved**2)) < 0.6


@pytest.mark.parametrize("name", NAMES)
def test_draws_see_entries_as_they_were_drawn(case_of: Any, name: str) -> None:
    """Log density of entries under draws, at the truth .1 lower or higher on average."""
    case = case_of(name)
    tree = case.posterior.sample(10).to_arviz("v")
    found = tree["log_likelihood"]["v"].to_numpy().mean()
    if "limits" in case.options:  # some are probabilities
        assert np.isfinite(found)
        return
    assert found == pytest.approx(case.log_density[~case.hidden].mean(), abs=0.15)


@pytest.mark.parametrize("name", NAMES)
def test_a_likelihood_of_each_feature_is_that_of_the_view(case_of: Any, tmp_path: Path, name: str) -> None:
    """The settings of a fit are the same, and so are the entries."""
    case = case_of(name)
    options = {**case.options, "likelihoods": names_by_feature(name)}
    for option in {"limits", "trials"} & set(options):  # the view is cut by likelihood
        options[option] = {f"v_{name}": options[option]["v"]}
    data = factorflow.write_dataset(tmp_path / "d", {"v": case.values}, **options)
    found, expected = (MODEL.build(one.meta()).settings.views[0] for one in (data, case.data))
    assert replace(found, name="v", aux_key=expected.aux_key) == expected
    blocks = (one.block(0, list(one.views)).data.values() for one in (data, case.data))
    for part, whole in zip(*blocks, strict=True):
        np.testing.assert_array_equal(part, whole)


@pytest.mark.parametrize("name", NAMES)
def test_a_feature_that_does_not_vary(name: str, tmp_path: Path) -> None:
    """It is no component, whatever rounding leaves of its variance: genes that are never seen are many."""
    y, options = simulate(name)[3:]
    values = y[:60].astype(float)
    values[:, 3] = np.median(values[:, 3]) if name == "beta" else values[0, 3]
    with pytest.warns(UserWarning, match="constant"):
        data = factorflow.write_dataset(tmp_path / "d.zarr", {"v": values}, **options)
    posterior = factorflow.fit(data, MODEL.model_copy(update={"max_iter": 3}), progress=False)
    assert np.isfinite(posterior.scores().values).all()
    assert np.isfinite(posterior.predict("v")["mean"].values).all()
