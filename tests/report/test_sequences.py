"""Figures of identities and attributes along a sequence, from a posterior whose every number is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from given_identities import given_identities
from matplotlib.figure import Figure

import factorflow as ff
from factorflow import report
from factorflow.errors import InputError


@pytest.fixture
def identities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Three identities over six sequences of ten frames: the posterior, and what it says of the rows."""
    rng = np.random.default_rng(0)
    sequences = np.repeat([f"s{k}" for k in range(6)], 10).tolist()
    dataset = ff.write_dataset(tmp_path / "d", {"patches": rng.random((60, 8))}, sequences=sequences)
    return given_identities(dataset, rng.random((8, 3, 2)), monkeypatch)


@pytest.fixture
def ax() -> Any:
    return Figure().subplots()


def test_identities_along_a_sequence(identities: Any, ax: Any) -> None:
    posterior, rows = identities
    report.plot_identities(posterior, 2, ax)
    np.testing.assert_allclose(ax.images[0].get_array(), rows["present"][20:30].T)
    for wrong in (-1, 6):
        with pytest.raises(InputError, match="sequence"):
            report.plot_identities(posterior, wrong, Figure().subplots())


def test_attributes_along_a_sequence(identities: Any, ax: Any) -> None:
    posterior, rows = identities
    report.plot_attributes(posterior, 2, 5, ax)
    mean = rows["attributes"][50:, 1]
    for q, line in enumerate(ax.lines):
        np.testing.assert_allclose(line.get_ydata(), mean[:, q])
    sd = np.sqrt(rows["attributes_variance"][50:, 1, 0])
    bands = np.concatenate([path.vertices[:, 1] for path in ax.collections[0].get_paths()])
    assert bands.max() == pytest.approx((mean[:, 0] + 2 * sd).max())
    with pytest.raises(InputError, match="identity"):
        report.plot_attributes(posterior, "Identity7", 0, Figure().subplots())


def test_other_families_have_no_identities(given: Any, ax: Any) -> None:
    with pytest.raises(InputError, match="identities and attributes"):
        report.plot_identities(given.posterior, 0, ax)


@pytest.mark.usefixtures("blank_figures")
def test_the_report_has_them(identities: Any, tmp_path: Path) -> None:
    posterior, _ = identities
    text = report.write_report(posterior, tmp_path / "report.html").read_text()
    assert 'id="identities"' in text
    assert "attributes of Identity" in text


@pytest.mark.usefixtures("blank_figures")
def test_a_report_without_the_data_has_none(identities: Any, tmp_path: Path) -> None:
    posterior, _ = identities
    (tmp_path / "d").rename(tmp_path / "elsewhere")
    assert 'id="identities"' not in report.write_report(posterior, tmp_path / "report.html").read_text()
