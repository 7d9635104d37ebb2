"""Survival by groups of risk: estimates of the data, and curves of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import factorflow
from factorflow.errors import InputError
from factorflow.report.survival_plots import kaplan_meier


def test_kaplan_meier_is_the_product_limit() -> None:
    """Censored times count as at risk until then; of ties of events and censored times the event is first."""
    time, event = np.array([1.0, 2.0, 2.0, 3.0, 5.0]), np.array([True, True, False, False, True])
    times, alive = kaplan_meier(time, event)
    np.testing.assert_array_equal(times, [0.0, 1.0, 2.0, 5.0])
    np.testing.assert_allclose(alive, [1.0, 0.8, 0.8 * 0.75, 0.0])


@pytest.mark.thorough
def test_groups_of_risk_and_curves_of_the_model(tmp_path: Path) -> None:
    views = {"rna": ("gaussian", 30), "death": ("survival", 1)}
    data = factorflow.simulate(
        "sparse_gfa", tmp_path / "d", 120, seed=1, views=views, n_factors=2, sparsity=0.2, view_activity=1.0
    )
    posterior = factorflow.fit(data, n_factors=3, progress=False)
    ax = posterior.plot.survival("death", groups=2, ax=Figure().subplots())
    observed, model, other = ax.lines[0], ax.lines[1], ax.lines[2]
    low = np.argsort(posterior.risk("death").to_numpy(), kind="stable")[:60]
    time, censored = (
        np.concatenate([data.block(i).data[key][:, 0] for i in range(data.n_blocks)])
        for key in ("death", "death/censored")
    )
    times, alive = kaplan_meier(time[low], censored[low] == 0)
    np.testing.assert_allclose(observed.get_ydata(), alive)
    np.testing.assert_allclose(observed.get_xdata(), times)
    at = model.get_xdata()
    curves = posterior.survival("death", at).to_numpy()[low].mean(axis=0)
    np.testing.assert_allclose(model.get_ydata(), curves, rtol=1e-10)
    assert observed.get_ydata()[-1] > other.get_ydata()[-1]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "risk 1 of 2 (n = 60)",
        "risk 2 of 2 (n = 60)",
    ]
    with pytest.raises(InputError, match="view = deaths: expected one of"):
        posterior.plot.survival("deaths", ax=ax)
    with pytest.raises(InputError, match="groups"):
        posterior.plot.survival("death", groups=0, ax=ax)
    with pytest.raises(InputError, match="fitted under the likelihood survival"):
        posterior.plot.survival("rna", ax=ax)
