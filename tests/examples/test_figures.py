"""Figures of the fields of identities, from a posterior whose every number is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from given_identities import given_identities
from matplotlib.figure import Figure

import factorflow as ff
from examples import patches
from examples.patches import PatchTransform
from factorflow.api import Posterior
from factorflow.errors import InputError

SIZE = (9, 9)


@dataclass(frozen=True)
class Fields:
    posterior: Posterior
    loadings: Any
    transform: PatchTransform


@pytest.fixture
def fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fields:
    """Three identities over six sequences of ten frames; the third was pruned."""
    rng = np.random.default_rng(0)
    options: Any = {"n_components": None, "whiten": False, "own_mean": False, "block_rows": 32}
    dataset = patches.write_patches(
        tmp_path / "d", rng.random((30, 30)), size=SIZE, n_sequences=6, n_frames=10, **options
    )
    place = {"x": 4.0, "y": 4.0, "frequency": 0.2, "width": 2.0, "length": 2.0}
    waves = [
        [patches.gabor_function(SIZE, orientation=o, phase=p, **place).ravel() for p in (0.0, 90.0)]
        for o in (30.0, 120.0, 0.0)
    ]
    loadings = np.array(waves).transpose(2, 0, 1) * [[1.0], [2.0], [1e-4]]
    posterior, _ = given_identities(dataset, loadings, monkeypatch)
    return Fields(posterior, posterior.loadings("patches"), PatchTransform.of(dataset))


@pytest.fixture
def ax() -> Any:
    return Figure().subplots()


def test_fields(fields: Fields, ax: Any) -> None:
    assert patches.plot_fields(fields.loadings, fields.transform, ax=ax) is ax
    sheet = np.asarray(ax.images[0].get_array().filled(np.nan))
    assert sheet.shape == (2 * 9 + 2, 2 * 9 + 2)  # the third identity was pruned
    shown = sheet[11:, 11:]
    expected = fields.loadings.values[:, 1, 1].reshape(SIZE)
    np.testing.assert_allclose(shown, expected / np.abs(expected).max())
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2"]
    assert len(ax.lines) == 4
    x, y = (np.ptp(values) * np.sign(values[-1] - values[0]) for values in ax.lines[0].get_data())
    assert np.degrees(np.arctan2(-y, x)) == pytest.approx(30, abs=0.1)  # rows count downwards
    chosen = patches.plot_fields(
        fields.loadings, fields.transform, ["Identity3", 1], gabor=False, ax=Figure().subplots()
    )
    assert [label.get_text() for label in chosen.get_xticklabels()] == ["3", "1"]
    assert not chosen.lines
    for wrong in ([0], [4], ["Identity9"], []):
        with pytest.raises(InputError, match="identit"):
            patches.plot_fields(fields.loadings, fields.transform, wrong, ax=Figure().subplots())


def test_pairs(fields: Fields, ax: Any) -> None:
    table = patches.describe_pairs(fields.loadings, fields.transform)
    medians = patches.compare_pairs(fields.loadings, fields.transform)
    patches.plot_pairs(table, medians, ax)
    points = ax.collections[0].get_offsets()
    np.testing.assert_allclose(points, table[["orientation_difference", "phase_modulation"]])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == medians.index.tolist()


def test_phase_energy(fields: Fields, ax: Any) -> None:
    patches.plot_phase_energy(fields.loadings, fields.transform, "Identity2", ax)
    first, second, total = (np.asarray(line.get_ydata()) for line in ax.lines)
    np.testing.assert_allclose(first + second, total)
    assert total[:-1].mean() == pytest.approx(1)
    assert np.ptp(total) < 0.1  # in quadrature
    assert np.ptp(first) > 0.9
    with pytest.raises(InputError, match="identity"):
        patches.plot_phase_energy(fields.loadings, fields.transform, 4, Figure().subplots())


@pytest.mark.thorough
def test_the_report(fields: Fields, tmp_path: Path) -> None:
    text = patches.write_report(fields.posterior, tmp_path / "report.html").read_text()
    for words in ("Fields of patches", "random pairs", "not learned", "attributes of Identity"):
        assert words in text
    fields.posterior._dataset = ff.write_dataset(  # the setter would refuse it
        tmp_path / "plain", {"patches": np.random.default_rng(0).random((60, 81))}, sequences=["a"] * 60
    )
    text = patches.write_report(fields.posterior, tmp_path / "report.html").read_text()
    assert "Fields of patches" not in text
    assert 'id="identities"' in text


def test_the_report_without_the_data(fields: Fields, tmp_path: Path) -> None:
    (tmp_path / "d").rename(tmp_path / "elsewhere")
    text = patches.write_report(fields.posterior, tmp_path / "report.html").read_text()
    assert 'id="identities"' not in text
