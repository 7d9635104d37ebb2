"""From where on something is said of a posterior, and with which numbers: stand-ins of posteriors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.signal import lfilter
from scipy.stats import chi2

from factorflow.data import Holdout
from factorflow.likelihoods import get_likelihood
from factorflow.posterior import data_findings, mixing_findings
from factorflow.posterior.data_findings import _mean, _overdispersed_features, _residuals
from factorflow.posterior.findings import _baseline, _no_factors, _scales, _unstable
from factorflow.posterior.mixing import effective_sizes, rank_rhat


def mixing(
    monkeypatch: pytest.MonkeyPatch, r_hat: Any, sizes: Any, n_draws: int = 60, n_factors: int = 1
) -> Any:
    """Return what is said of two chains with these R-hats and sizes; None: nothing."""
    draws = np.zeros((2, n_draws, len(r_hat)))
    names = [f"entry{i}" for i in range(len(r_hat))]
    monkeypatch.setattr(mixing_findings, "_sample_entries", lambda posterior: (names, draws))
    monkeypatch.setattr(mixing_findings, "rank_rhat", lambda *given: np.array(r_hat))
    monkeypatch.setattr(
        mixing_findings, "effective_sizes", lambda *given, within_chains=False: np.array(sizes)
    )
    found = list(mixing_findings.mixing(SimpleNamespace(n_draws=n_draws, factors=["f"] * n_factors)))  # type: ignore[arg-type]
    return found[0] if found else None


def test_chains_have_mixed_up_to_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-hat of 1.01 and 100 effective draws a chain are enough; what never changes has neither."""
    assert mixing(monkeypatch, [1.01, 1.0, np.nan], [200.0, 900.0, np.nan]) is None
    high = mixing(monkeypatch, [1.0, 1.0101, 1.25, np.nan], [500.0, 1e5, 500.0, 500.0])
    assert "The chains have not mixed: R-hat is above 1.01, beyond chance, in 2 of 4" in high.message
    assert "(1.25 in entry2)." in high.message
    assert "effective" not in high.message
    assert high.remedy.endswith("; fewer factors mix better.")
    few = mixing(monkeypatch, [1.0, 1.0], [199.0, 240.0])
    assert few.message == (
        "The draws are autocorrelated: in 1 of 2 continuous entries looked at the effective sample size is "
        "below 200 (199 of 120 draws in entry0)."
    )
    assert "fewer factors" not in few.remedy
    both = mixing(monkeypatch, [1.5, 1.0], [30.0, 20.0], n_factors=0)
    assert "(1.50 in entry0); in 2 the effective sample size is below 200 (20 of" in both.message
    assert "fewer factors" not in both.remedy


def test_the_highest_of_many_is_not_held_against_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """n (R^2 - 1) + 1 of two chains is chi-square with 3 degrees of freedom, over 3."""
    bound = np.sqrt(1.0 + chi2.isf(0.01 / 400, 3) / 3 * 4 / 250)
    assert bound == pytest.approx(1.062, abs=1e-3)
    calm = [1.0] * 199
    assert mixing(monkeypatch, [bound - 1e-6, *calm], [250.0] * 200) is None
    assert "in 1 of 200" in mixing(monkeypatch, [bound + 1e-6, *calm], [250.0] * 200).message
    few = mixing(monkeypatch, [1.0101, *calm], [199.0, *[250.0] * 199])
    assert "have not mixed: R-hat is above 1.01, beyond chance, in 1 of 200" in few.message


def test_chains_that_have_mixed_are_not_blamed() -> None:
    """200 entries of 4 chains of 1000 draws, 1000 of them effective: but for chance, no R-hat is high."""
    x = lfilter([1.0], [1.0, -0.6], np.random.default_rng(0).normal(size=(4, 1200, 200)), axis=1)[:, 200:]
    r_hat, bound = rank_rhat(x), mixing_findings._high_rhat(effective_sizes(x, within_chains=True), 4)
    assert (r_hat > mixing_findings.HIGH_RHAT).any()
    assert (r_hat < bound).all()
    x[0] += 0.6 * x.std()
    within = effective_sizes(x, within_chains=True)
    np.testing.assert_allclose(mixing_findings._high_rhat(within, 4), bound, rtol=0.01)
    assert (rank_rhat(x) > bound).mean() > 0.9


def test_four_draws_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mixing(monkeypatch, [1.0], [500.0], n_draws=4) is None
    assert mixing(monkeypatch, [1.0], [500.0], n_draws=3).message.startswith("3 draws of each chain do not")


def test_one_chain_is_told_to_have_company(monkeypatch: pytest.MonkeyPatch) -> None:
    mixing(monkeypatch, [1.0], [1.0])
    monkeypatch.setattr(mixing_findings, "_sample_entries", lambda posterior: (["x"], np.zeros((1, 9, 1))))
    (found,) = mixing_findings.mixing(SimpleNamespace(n_draws=9, factors=[]))  # type: ignore[arg-type]
    assert "is below 100 (1 of 9 draws" in found.message
    assert found.remedy.endswith("; fit several chains.")


def test_spread_of_counts_is_that_of_the_shown_entries(given: Any) -> None:
    """Mean of (y - mean)^2 / sd^2 over the first block, without what was missing or held out."""
    n = given.dataset.block_rows
    y = given.dataset.values("rna", 0, n).astype(float)
    y[Holdout(0.1, 0).mask(0, 0, *y.shape)] = np.nan
    mean, sd = (values[:n] for values in given.model.predict(None, given.rows, given.record, "rna"))
    expected = np.nanmean((y - mean) ** 2 / sd**2)
    assert _mean(_residuals(given.posterior, "rna")) == pytest.approx(expected, rel=1e-9)


def test_only_some_rows_are_held_against_their_predictions(
    given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_findings, "MOST_CHECKED", 5 * 12 + 11)
    y = given.dataset.values("rna", 0, 5).astype(float)
    y[Holdout(0.1, 0).mask(0, 0, *y.shape)] = np.nan
    mean, sd = (values[:5] for values in given.model.predict(None, given.rows, given.record, "rna"))
    expected = np.nanmean((y - mean) ** 2 / sd**2)
    assert _mean(_residuals(given.posterior, "rna")) == pytest.approx(expected, rel=1e-9)


def test_features_whose_counts_vary_too_much() -> None:
    """Beyond two standard errors, of eight entries on; what is missing takes no part."""
    rng = np.random.default_rng(0)
    squares = rng.chisquare(1, (400, 6))
    squares[:, 1] *= 9.0
    squares[:, 3] *= 3.0
    squares[:393, 4] = np.nan
    squares[393:, 4] = 50.0
    squares[::2, 3] = np.nan
    squares[0, 5] = 400.0  # a single entry
    posterior: Any = SimpleNamespace(features=lambda view: [f"g{i}" for i in range(6)])
    found = _overdispersed_features(posterior, "v", squares)
    assert [name for name, _ in found] == ["g1", "g3"]
    np.testing.assert_allclose([ratio for _, ratio in found], np.nanmean(squares[:, [1, 3]], axis=0))


@pytest.mark.parametrize(("scaled", "option"), [(False, True), (True, False)])
def test_gaussian_views_are_held_against_means_by_log_likelihood_too(scaled: bool, option: bool) -> None:
    import pandas as pd

    def said(likelihood: str, found: float, fitted: str | None = None) -> list[str]:
        score = "rmse" if likelihood == "gaussian" else "deviance"
        columns = {score: 0.5, f"baseline_{score}": 1.0, "log_likelihood": found}
        posterior: Any = SimpleNamespace(
            was_scored=True,
            run={},
            config=SimpleNamespace(scale_features=scaled, wider=lambda kind: f"likelihoods='{kind}'"),
            model=SimpleNamespace(likelihood=lambda view: get_likelihood(fitted or likelihood)),
            meta=SimpleNamespace(value_views=[SimpleNamespace(name="v", likelihood=likelihood)]),
            holdout_scores=lambda: pd.DataFrame(columns | {"baseline_log_likelihood": -3.0}, index=["v"]),
        )
        return [str(finding) for finding in _baseline(posterior)]

    (text,) = said("gaussian", -3.01)
    assert "(-3.01 nats an entry, of the means -3)" in text
    assert ("scale_features=True" in text) == option
    assert said("gaussian", -2.99) == []
    assert "fit with likelihoods='gaussian'" in text
    assert said("poisson", -3.01) == []
    assert said("gaussian", -2.99, "student_t") == []  # though errors of a few are large
    (text,) = said("gaussian", -3.01, "student_t")
    assert "predicted worse than by the means of its features (log likelihood -3.01, of the means -3)" in text


def scales(variance: Any, likelihood: str = "gaussian", scaled: bool = False) -> list[str]:
    """Return what is said of a view whose features have these variances."""
    view = SimpleNamespace(name="v", likelihood=likelihood, n_features=len(variance))
    posterior: Any = SimpleNamespace(
        config=SimpleNamespace(scale_features=scaled),
        model=SimpleNamespace(likelihood=lambda view: get_likelihood(likelihood)),
        meta=SimpleNamespace(value_views=[view]),
        dataset=SimpleNamespace(moments=lambda name, *names: {"variance": np.array(variance)}),
        features=lambda name: [f"g{i}" for i in range(len(variance))],
    )
    return [finding.message for finding in _scales(posterior)]


def test_scales_differ_where_half_of_the_features_have_next_to_nothing() -> None:
    """A median below a hundredth of the mean, of those that vary, of eight features on."""
    wide = [1.0] * 4 + [995.0, 1.0, 1.0, 0.0]  # mean of seven: 1001 / 7 = 143 > 100
    (said,) = scales(wide)
    assert "g4 has 99.4 % of the variance of the view, half of the others less than 0.1 % each" in said
    assert scales([1.0] * 7 + [700.0]) == []  # mean 88.4
    assert scales([0.0] * 6 + [1.0, 1.0, 200.0]) == []  # of what varies the median is 1, the mean 67
    assert scales([1.0] * 6 + [5000.0]) == []  # seven features
    assert len(scales([1.0] * 7 + [5000.0])) == 1
    assert scales(wide, "poisson") == []
    assert scales(wide, scaled=True) == []


def test_factors_depend_on_the_start_below_four_fifths() -> None:
    stability = xr.DataArray([0.8, 0.79, 0.3], dims="factor")
    objective = xr.DataArray(np.zeros(4), dims="start")
    known = {"stability": stability, "start_objective": objective}
    posterior: Any = SimpleNamespace(
        has=known.__contains__, variable=known.__getitem__, factors=["f", "g", "h"]
    )
    (found,) = _unstable(posterior)
    assert "2 of 3 factors depend on the start" in found.message
    assert "other starts (3) is on average g (0.79), h (0.30)." in found.message
    known["stability"] = xr.DataArray([0.8, 0.9, 1.0], dims="factor")
    assert list(_unstable(posterior)) == []
    known.clear()
    assert list(_unstable(posterior)) == []


def test_no_factors_are_said_where_there_could_be_some() -> None:
    for scores, factors, said in ((True, [], 1), (True, ["f"], 0), (False, [], 0)):
        posterior: Any = SimpleNamespace(has=lambda name, scores=scores: scores, factors=factors)
        assert len(list(_no_factors(posterior))) == said


@pytest.mark.parametrize(
    ("share", "status", "said"), [(0.01, "complete", 1), (0.0, "complete", 0), (0.01, "partial", 0)]
)
def test_nothing_held_out_is_said_where_it_was_asked_for(share: float, status: str, said: int) -> None:
    posterior: Any = SimpleNamespace(was_scored=False, run={"holdout": share, "status": status})
    assert [finding.kind for finding in _baseline(posterior)] == ["holdout"] * said
