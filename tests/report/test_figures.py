"""Figures show the numbers they are about; each returns its Axes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from factorflow import report
from factorflow.errors import InputError
from factorflow.report.drawing import some_rows


@pytest.fixture
def ax() -> Any:
    return Figure().subplots()


def test_trace(given: Any, ax: Any) -> None:
    assert report.plot_trace(given.posterior, ax) is ax
    first, second = ax.get_lines()[:2]
    np.testing.assert_array_equal(first.get_ydata(), [-100, -99, -98])
    np.testing.assert_array_equal(second.get_xdata(), [4, 5])
    assert {text.get_text() for text in ax.texts} == {"warm-up", "sparse"}


def test_variance_explained(given: Any, ax: Any) -> None:
    report.plot_variance_explained(given.posterior, ax=ax)
    share = 100 * given.posterior.variance_explained().values
    np.testing.assert_allclose(ax.images[0].get_array(), np.clip(share, 0, None))
    assert len(ax.texts) == share.size
    report.plot_variance_explained(given.posterior, ax=Figure().subplots(), group="b")
    with pytest.raises(InputError, match="group"):
        report.plot_variance_explained(given.posterior, ax=Figure().subplots(), group="c")


def test_loadings(given: Any, ax: Any) -> None:
    report.plot_loadings(given.posterior, "rna", 1, 4, ax)
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == list(given.posterior.top_features("rna", 1, 4).index[::-1])


@pytest.mark.parametrize("color", [None, "age", "sex", "group"])
def test_scores(given: Any, ax: Any, color: str | None) -> None:
    report.plot_scores(given.posterior, [np.int32(1), "Factor3"], color, ax=ax)
    points = np.concatenate([np.asarray(c.get_offsets()) for c in ax.collections])
    expected = given.rows["scores"][:, [0, 2]]
    np.testing.assert_allclose(np.sort(points, axis=0), np.sort(expected, axis=0))
    assert (ax.get_legend() is not None) == (color in {"sex", "group"})


def test_scores_by_an_unknown_column(given: Any, ax: Any) -> None:
    with pytest.raises(InputError, match="color"):
        report.plot_scores(given.posterior, [1, 2], "height", ax=ax)


def test_factor_correlation(given: Any, ax: Any) -> None:
    report.plot_factor_correlation(given.posterior, ax)
    expected = np.corrcoef(given.rows["scores"], rowvar=False)
    np.testing.assert_allclose(ax.images[0].get_array(), expected)


@pytest.mark.parametrize("factor", [1, 3])
def test_data(given: Any, ax: Any, factor: int) -> None:
    report.plot_data(given.posterior, "rna", factor, 5, ax=ax)
    shown = np.ma.filled(ax.images[0].get_array().astype(float), np.nan)
    assert shown.shape == (5, 70)
    order = np.argsort(given.rows["scores"][:, factor - 1], kind="stable")
    name = given.posterior.top_features("rna", factor, 1).index[0]
    column = given.dataset.values("rna")[:, list(given.dataset.features("rna")).index(name)].astype(float)[
        order
    ]
    np.testing.assert_array_equal(np.isnan(shown[0]), np.isnan(column))
    seen = ~np.isnan(column)
    assert np.corrcoef(shown[0][seen], column[seen])[0, 1] == pytest.approx(1.0)


@pytest.mark.thorough
def test_few_points_of_many_samples(given: Any, ax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorflow.report.drawing.MAX_POINTS", 30)
    report.plot_scores(given.posterior, [1, 2], "sex", ax=ax)
    points = np.concatenate([np.asarray(c.get_offsets()) for c in ax.collections])
    assert len(points) == 24
    np.testing.assert_allclose(np.sort(points[:, 0]), np.sort(given.rows["scores"][::3, 0]))


@pytest.mark.parametrize(
    ("n_rows", "block_rows", "n_read", "n_points"),
    [(70, 32, 3, 70), (9000, 4096, 3, 3000), (1_000_000, 131_072, 8, 4000), (1_000_000, 1000, 16, 4000)],
)
def test_figures_of_many_samples_read_few_blocks(
    n_rows: int, block_rows: int, n_read: int, n_points: int
) -> None:
    """Spread over all of the data, and no more points than can be seen."""
    n_blocks = -(-n_rows // block_rows)
    known: Any = SimpleNamespace(n_rows=n_rows, n_blocks=n_blocks, block_rows=block_rows)
    rows = some_rows(known)
    assert len(rows) == n_points
    read = np.unique(rows // block_rows)
    assert (len(read), read[0], read[-1]) == (n_read, 0, n_blocks - 1)


def test_without_axes_a_new_figure_is_made(given: Any) -> None:
    import matplotlib.pyplot as plt

    with mpl.rc_context({"backend": "agg"}):
        ax = report.plot_factor_correlation(given.posterior)
        assert ax.figure is not None
        plt.close("all")
