"""Gabor functions: drawn ones are found again; pairs in quadrature are told from others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from examples.patches import (
    PatchTransform,
    compare_pairs,
    describe_pairs,
    fit_gabor,
    gabor_function,
    phase_energy,
)
from examples.patches.gabor import _model
from factorflow.errors import InputError

SIZE = (12, 12)


def transform(n: int = 144) -> PatchTransform:
    """The pixels themselves."""
    return PatchTransform("p", SIZE, np.zeros(144), np.eye(144)[:n], np.ones(n), True, False, 1.0)


def parameters(rng: np.random.Generator) -> dict[str, float]:
    ranges = {
        "x": (3, 9),
        "y": (3, 9),
        "frequency": (0.08, 0.35),
        "orientation": (0, 180),
        "phase": (-180, 180),
        "width": (1.5, 3),
        "length": (1.5, 4),
        "amplitude": (0.5, 3),
    }
    return {name: float(rng.uniform(*between)) for name, between in ranges.items()}


def apart(x: Any, y: Any, period: float) -> Any:
    return np.abs((np.asarray(x) - y + period / 2) % period - period / 2)


def test_what_a_gabor_function_looks_like() -> None:
    level = gabor_function((9, 9), 4, 4, 0.1, 0, 0, 50, 50)
    np.testing.assert_allclose(
        level[4] / level[4, 4], 1, atol=0.01
    )  # bars lie flat, a bright one in the middle
    np.testing.assert_allclose(level[:, 4], np.cos(0.2 * np.pi * (np.arange(9) - 4)), atol=0.01)
    rising = gabor_function((9, 9), 4, 4, 0.1, 45, 0, 50, 50)
    np.testing.assert_allclose(
        np.diag(rising[::-1]), 1, atol=0.01
    )  # from below on the left to the upper right
    assert np.ptp(np.diag(rising)) > 0.5
    odd = gabor_function((9, 9), 4, 4, 0.1, 90, 90, 50, 50)  # upright; u grows to the right
    np.testing.assert_allclose(odd[3], -np.sin(0.2 * np.pi * (np.arange(9) - 4)), atol=0.01)
    spot = gabor_function((31, 31), 15, 15, 0.0, 30, 0, 2, 4)
    across, along = np.sin(np.radians(30)), np.cos(np.radians(30))
    row, column = np.indices((31, 31))
    u = across * (column - 15) + along * (row - 15)
    assert (spot * u**2).sum() / spot.sum() == pytest.approx(4, rel=1e-3)


def test_known_functions_are_found() -> None:
    rng = np.random.default_rng(0)
    true = [parameters(rng) for _ in range(10)]
    true += [{**true[0], "orientation": turn, "phase": 50.0} for turn in (0.6, 179.4)]  # about level
    found = fit_gabor(np.array([gabor_function(SIZE, **one) for one in true]))
    assert (found["r2"] > 1 - 1e-9).all()
    assert found["orientation"].between(0.0, 180.0, inclusive="left").all()
    assert found["phase"].between(-180.0, 180.0).all()
    for name in true[0]:
        period = {"orientation": 180.0, "phase": 360.0}.get(name, 1e9)
        expected = [one[name] for one in true]
        np.testing.assert_allclose(apart(found[name], expected, period), 0, atol=1e-3, err_msg=name)


def test_functions_in_noise() -> None:
    """Noise of a tenth of the amplitude: orientation to 5 degrees, frequency to 0.01, phase to 20 degrees."""
    rng = np.random.default_rng(1)
    true = [{**parameters(rng), "amplitude": 1.0} for _ in range(6)]
    patches = np.array([gabor_function(SIZE, **one) for one in true]) + 0.1 * rng.standard_normal((6, *SIZE))
    found = fit_gabor(patches)
    for name, period, most in (("orientation", 180, 5), ("phase", 360, 20), ("frequency", 1e9, 0.01)):
        assert (apart(found[name], [one[name] for one in true], period) < most).all(), name
    assert ((found["r2"] > 0.6) & (found["r2"] < 1)).all()


def test_derivatives() -> None:
    at = np.array([5, 4.3, 0.1, 0.3, 2.0, 3.0, 0.4, -0.7])
    steps = 1e-6 * np.eye(8)
    slopes = [(_model(SIZE, at + e)[0] - _model(SIZE, at - e)[0]) / 2e-6 for e in steps]
    np.testing.assert_allclose(_model(SIZE, at)[1], np.stack(slopes, axis=1), atol=1e-8)


def test_patches_without_a_wave() -> None:
    found = fit_gabor(np.stack([np.zeros(SIZE), np.ones(SIZE)]))
    assert found.iloc[0].isna().all()
    assert np.isfinite(found.iloc[1]).all()


@pytest.mark.parametrize("patches", [np.zeros((3, 144)), np.zeros((3, 2, 9)), np.full((1, 9, 9), np.nan)])
def test_what_is_no_patch(patches: Any) -> None:
    with pytest.raises(InputError, match="patches"):
        fit_gabor(patches)


def pairs(differences: list[float], turns: list[float] | None = None) -> Any:
    """Loadings of pairs of Gabor functions: differences of phase, and of orientation, in degrees."""
    rng = np.random.default_rng(2)
    turns = turns or [0.0] * len(differences)
    fields = []
    for number, (difference, turn) in enumerate(zip(differences, turns, strict=True)):
        place = {"x": 5.5, "y": 5.5, "frequency": 0.18, "width": 2.2, "length": 2.5}
        orientation, phase = 180.0 * number / len(differences), float(rng.uniform(0, 360))
        fields.append(
            [
                gabor_function(SIZE, orientation=orientation, phase=phase, **place).ravel(),
                gabor_function(
                    SIZE, orientation=orientation + turn, phase=phase + difference, **place
                ).ravel(),
            ]
        )
    return np.array(fields).transpose(2, 0, 1)


def test_pairs_in_and_out_of_quadrature() -> None:
    """Of two fields of equal power, phases d apart: modulation |1 + e^(2id)| / 2 = |cos d|."""
    phases = [90.0, 60.0, 0.0, 30.0]
    found = describe_pairs(pairs(phases), transform())
    np.testing.assert_allclose(found["phase_modulation"], np.abs(np.cos(np.radians(phases))), atol=0.02)
    np.testing.assert_allclose(found["phase_difference"], phases, atol=1.5)
    np.testing.assert_allclose(found["orientation_difference"], 0, atol=0.1)
    turned = describe_pairs(pairs([90.0] * 4, [20.0, 90.0, 120.0, 175.0]), transform())
    np.testing.assert_allclose(turned["orientation_difference"], [20, 90, 60, 5], atol=0.1)
    assert (turned["r2"] > 0.999).all()


def test_energy_is_that_of_gratings() -> None:
    """Answers are the sums of products with a grating of the frequency that the fields answer most."""
    fields = pairs([70.0]).transpose(1, 2, 0).reshape(1, 2, *SIZE)
    phases = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    answers, modulation, _ = phase_energy(fields, phases)
    n = 48
    frequencies = np.fft.fftfreq(n)
    row, column = np.indices(SIZE)
    best = (0.0, np.zeros(0))
    for down in frequencies:
        for across in frequencies:
            if np.hypot(down, across) < 0.5 / 12:
                continue
            waves = np.exp(-2j * np.pi * (down * row + across * column))
            found = (fields[0] * waves).sum(axis=(1, 2))
            power = float((np.abs(found) ** 2).sum())
            if power > best[0] * (1 + 1e-12):
                best = (power, np.real(found[:, None] * np.exp(1j * phases)))
    energy = (best[1] ** 2).sum(axis=0)
    np.testing.assert_allclose((answers[0] ** 2).sum(axis=0).mean(), energy.mean())
    swing = (energy.max() - energy.min()) / (energy.max() + energy.min())
    assert modulation[0] == pytest.approx(swing, abs=0.01)


@pytest.mark.thorough
def test_controls() -> None:
    learned = pairs([90.0] * 4)
    table = compare_pairs(learned, transform(), random_start=pairs([40.0] * 4, [30.0] * 4), seed=1)
    assert table.index.tolist() == ["learned", "random start", "random pairs", "not learned"]
    assert table["n"].tolist() == [4, 4, 80, 4]
    medians = table["orientation_difference"]
    assert medians["learned"] < 1e-3
    assert medians["random start"] == pytest.approx(30, abs=0.1)
    assert 44 < medians["random pairs"] < 91  # orientations 45 degrees apart, pairs never of one identity
    modulation = table["phase_modulation"]
    assert modulation["learned"] < 0.02
    assert modulation["random pairs"] > 0.9
    assert table["r2"]["not learned"] < 0.5 < table["r2"]["learned"]
    again = compare_pairs(learned, transform(), seed=1)
    np.testing.assert_array_equal(again.loc["random pairs"], table.loc["random pairs"])
    other = compare_pairs(learned, transform(), seed=2)
    assert (other.loc["not learned"] != again.loc["not learned"]).any()


def test_three_attributes() -> None:
    """Fields of an identity never meet in a random pair; differences are means over the three pairs."""
    place = {"x": 5.5, "y": 5.5, "frequency": 0.18, "width": 2.2, "length": 2.5, "phase": 0.0}
    fields = [
        [gabor_function(SIZE, orientation=base + turn, **place).ravel() for turn in (0, 12, 30)]
        for base in (0, 40, 80, 120)
    ]
    loadings = np.array(fields).transpose(2, 0, 1)
    found = describe_pairs(loadings, transform())
    np.testing.assert_allclose(found["orientation_difference"], (12 + 30 + 18) / 3, atol=0.1)
    assert compare_pairs(loadings, transform())["n"].tolist() == [4, 80, 4]


def test_pruned_identities_are_left_out() -> None:
    loadings = pairs([90.0, 90.0, 90.0])
    loadings[:, 1] *= 1e-3
    labelled = xr.DataArray(
        loadings, dims=("feature", "identity", "attribute"), coords={"identity": ["a", "b", "c"]}
    )
    assert describe_pairs(loadings, transform()).index.tolist() == ["Identity1", "Identity3"]
    assert describe_pairs(labelled, transform()).index.tolist() == ["a", "c"]


@pytest.mark.parametrize(
    ("loadings", "match"),
    [
        (np.ones((144, 2)), "loadings"),
        (np.ones((143, 3, 2)), "features"),
        (np.ones((144, 3, 1)), "attributes"),
        (np.zeros((144, 3, 2)), "loadings"),
    ],
)
def test_what_are_no_pairs(loadings: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        describe_pairs(loadings, transform())


def test_one_identity_has_no_random_pairs() -> None:
    with pytest.raises(InputError, match="identities"):
        compare_pairs(pairs([90.0]), transform())
