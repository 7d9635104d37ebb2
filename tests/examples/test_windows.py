"""Windows over frames: where they are, what they see, and that nothing depends on how it is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples.patches.cut import cut
from examples.patches.footage import open_footage
from examples.patches.windows import Motion, Windows, coefficients
from factorflow.errors import InputError

SHAPE = (61, 83)


def ramp(down: float, across: float) -> np.ndarray[Any, Any]:
    row, column = np.indices(SHAPE)
    return (down * row + across * column).astype(np.float32)


def paths(motion: Motion, n: int, n_frames: int = 60, size: tuple[int, int] = (7, 5)) -> list[Any]:
    windows = Windows(3, size, n_frames, motion)
    return [windows.path(s, SHAPE, "a frame") for s in range(n)]


def test_a_window_sees_the_pixels_around_its_centre() -> None:
    windows = Windows(1, (7, 5), 40, Motion(1.5))
    down, across = (coefficients(ramp(*slope), windows.motion) for slope in ((1, 0), (0, 1)))
    paths = [windows.path(s, SHAPE, "a frame") for s in range(6)]
    y, x = (np.concatenate([getattr(path, name) for path in paths]) for name in "yx")
    far = (y > 14) & (y < 46) & (x > 14) & (x < 68)  # edges bend a spline
    assert 20 < far.sum() < far.size
    rows, columns = (
        windows.see(frame, paths, [slice(None)] * 6).reshape(-1, 7, 5) for frame in (down, across)
    )
    np.testing.assert_allclose(rows.mean((1, 2))[far], y[far], atol=1e-4)
    np.testing.assert_allclose(columns.mean((1, 2))[far], x[far], atol=1e-4)
    np.testing.assert_allclose((rows[:, 1] - rows[:, 0])[far], 1.0, atol=1e-4)
    np.testing.assert_allclose((columns[:, :, 1] - columns[:, :, 0])[far], 1.0, atol=1e-4)


def test_a_window_turns_clockwise_and_zooms() -> None:
    windows = Windows(1, (7, 7), 40, Motion(0.0, rotation=5.0, zoom=0.05, most_zoom=1.4))
    path = windows.path(2, SHAPE, "a frame")
    assert np.ptp(path.angle) > 0.1
    assert np.ptp(path.scale) > 0.1
    assert path.scale.min() >= 1 / 1.4 - 1e-12
    assert path.scale.max() <= 1.4 + 1e-12
    rows, columns = (
        windows.see(coefficients(ramp(*slope), windows.motion), [path], [slice(None)]).reshape(40, 7, 7)
        for slope in ((1, 0), (0, 1))
    )
    # One pixel to the right in the patch: that far down and across in the frame.
    down, across = (x[:, 3, 4] - x[:, 3, 3] for x in (rows, columns))
    np.testing.assert_allclose(down, path.scale * np.sin(path.angle), atol=1e-3)
    np.testing.assert_allclose(across, path.scale * np.cos(path.angle), atol=1e-3)


@pytest.mark.parametrize(
    "motion", [Motion(9.0), Motion(4.0, rotation=20.0), Motion(3.0, zoom=0.2, most_zoom=2.0), Motion(0.0)]
)
def test_windows_stay_inside(motion: Motion) -> None:
    for path in paths(motion, 20):
        corners = np.array([(-3, -2), (-3, 2), (3, -2), (3, 2)])[:, :, None]
        turn = np.array([[np.cos(path.angle), np.sin(path.angle)], [-np.sin(path.angle), np.cos(path.angle)]])
        down, across = path.scale * np.einsum("abt,cbt->act", turn, np.broadcast_to(corners, (4, 2, 60)))
        assert (path.y + down).min() > -1e-9
        assert (path.y + down).max() < SHAPE[0] - 1 + 1e-9
        assert (path.x + across).min() > -1e-9
        assert (path.x + across).max() < SHAPE[1] - 1 + 1e-9


def test_speed_and_persistence() -> None:
    """200 paths of 59 steps: correlated velocities leave about 600 independent ones; 5 standard errors."""
    motion = Motion(0.05, persistence=0.8, rotation=0.5)
    steps = np.stack([[np.diff(p.y), np.diff(p.x)] for p in paths(motion, 200)])
    assert np.sqrt((steps**2).sum(1).mean()) == pytest.approx(0.05, rel=0.1)
    assert np.sqrt((steps[:, :, 0] ** 2).sum(1).mean()) == pytest.approx(0.05, rel=0.17)  # from the first on
    lag = (steps[..., 1:] * steps[..., :-1]).mean() / (steps**2).mean()
    assert lag == pytest.approx(0.8, abs=0.05)
    turns = np.stack([np.diff(p.angle) for p in paths(motion, 200)])
    assert np.sqrt((turns**2).mean()) == pytest.approx(np.radians(0.5), rel=0.15)


def test_still_windows_are_slices_of_the_frames() -> None:
    film = np.random.default_rng(0).random((30, 40, 50)).astype(np.float32)
    windows, out = Windows(5, (6, 4), 5, Motion(0.0)), np.empty((8 * 5, 24), np.float32)
    cut(open_footage(film), windows, 8, 2, out)
    views = np.lib.stride_tricks.sliding_window_view(film, (6, 4), axis=(1, 2))
    for sequence in out.reshape(8, 5, 6, 4):
        (where,) = np.argwhere((views == sequence[0]).all(axis=(3, 4)))
        t, y, x = where
        np.testing.assert_array_equal(sequence, film[t : t + 9 : 2, y : y + 6, x : x + 4])


def test_moving_windows_follow_the_frames_of_a_film() -> None:
    """Each frame is brighter by one than that before it, and brighter by 1/100 a row."""
    film = np.arange(40)[:, None, None] + ramp(0.01, 0.0)[None]
    windows, out = Windows(5, (6, 4), 7, Motion(0.5)), np.empty((9 * 7, 24), np.float32)
    cut(open_footage(film), windows, 9, 3, out)
    begins = []
    for s, sequence in enumerate(out.reshape(9, 7, 24)):
        path = windows.path(s, SHAPE, "a frame")
        far = (path.y > 14) & (path.y < 46)
        times = sequence.mean(1) - 0.01 * path.y
        begins.append(times[0].round())
        np.testing.assert_allclose(times[far], (begins[-1] + 3 * np.arange(7))[far], atol=1e-4)
    assert begins == sorted(begins)
    assert len(set(begins)) > 5


def test_a_sequence_does_not_depend_on_others() -> None:
    """The first half of the sequences over the first of two photographs, alone and together."""
    one, two = (np.random.default_rng(k).random((30, 40)) for k in (1, 2))
    windows = Windows(7, (5, 5), 6, Motion(1.0))
    both, alone = np.empty((8 * 6, 25), np.float32), np.empty((4 * 6, 25), np.float32)
    cut(open_footage([one, two]), windows, 8, 1, both)
    cut(open_footage(one), windows, 4, 1, alone)
    np.testing.assert_array_equal(both[: 4 * 6], alone)
    shorter = Windows(7, (5, 5), 3, Motion(1.0))
    first = np.empty((8 * 3, 25), np.float32)
    cut(open_footage([one, two]), shorter, 8, 1, first)
    np.testing.assert_array_equal(first.reshape(8, 3, 25), both.reshape(8, 6, 25)[:, :3])


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"speed": -1.0}, "speed"),
        ({"speed": np.nan}, "speed"),
        ({"speed": 1.0, "rotation": np.inf}, "rotation"),
        ({"speed": 1.0, "zoom": -0.1}, "zoom"),
        ({"speed": 1.0, "persistence": 1.0}, "persistence"),
        ({"speed": 1.0, "most_zoom": 1.0}, "most_zoom"),
    ],
)
def test_motions_that_are_none(settings: dict[str, float], match: str) -> None:
    with pytest.raises(InputError, match=match):
        Motion(**settings)
