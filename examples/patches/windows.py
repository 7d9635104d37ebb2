"""Windows that move smoothly over a frame: where they are, and the pixels they see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from factorflow.data.simulation.noise import Noise
from factorflow.errors import InputError
from factorflow.kernels.sites import PATCHES

__all__ = ["Motion", "Path", "Windows", "coefficients"]

PATHS, PLACES = PATCHES[0], PATCHES[3]
"""Purposes of noise: how a window moves, and where it begins; a stream of each for every sequence."""

ATTEMPTS = 50
"""Places where a sequence may begin that are looked at for contrast."""

SPLINE: Final = 3
"""Order of the interpolation between pixels."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Motion:
    """How windows move from frame to frame.

    Velocities are autoregressive, ``v_t = c v_(t-1) + sqrt(1 - c^2) e_t``: down, across, of the angle and of
    the logarithm of the zoom alike. What comes to the edge of its range is reflected there.

    Parameters
    ----------
    speed : float
        Root mean square of the way of a frame, in pixels.
    persistence : float
        Correlation c of the velocities of neighbouring frames.
    rotation : float
        Root mean square of the turn of a frame, in degrees; 0: windows are upright.
    zoom : float
        Root mean square of the relative change of the scale of a frame; 0: a window is as large as a patch.
    most_zoom : float
        Largest scale, and the inverse of the smallest.

    Raises
    ------
    InputError
        When one of them is out of its range.
    """

    speed: float
    persistence: float = 0.95
    rotation: float = 0.0
    zoom: float = 0.0
    most_zoom: float = 1.5

    def __post_init__(self) -> None:
        for name in ("speed", "rotation", "zoom"):
            value = getattr(self, name)
            if not 0.0 <= value < np.inf:
                raise InputError(name, value, "a finite number from 0 on", "0: it does not change.")
        if not 0.0 <= self.persistence < 1.0:
            raise InputError(
                "persistence", self.persistence, "a number from 0 to below 1", "0.95 makes smooth paths."
            )
        if not 1.0 < self.most_zoom < np.inf:
            raise InputError("most_zoom", self.most_zoom, "a number above 1", "1.5 is half as large again.")

    @property
    def is_still(self) -> bool:
        """Whether windows stay where they are."""
        return not (self.speed or self.rotation or self.zoom)

    def reach(self, size: tuple[int, int]) -> tuple[float, float]:
        """Return how far the outermost pixels of a window can be from its centre, down and across."""
        half = (size[0] - 1) / 2, (size[1] - 1) / 2
        scale = self.most_zoom if self.zoom else 1.0
        if self.rotation:
            return (scale * float(np.hypot(*half)),) * 2
        return scale * half[0], scale * half[1]


@dataclass(frozen=True)
class Path:
    """Where one window is in each frame.

    Parameters
    ----------
    y, x : (T,) arrays
        Its centre, in pixels from the centre of the first pixel, down and across.
    angle : (T,) array
        Its turn in radians; positive ones are clockwise as a picture is seen.
    scale : (T,) array
        Pixels of the frame between two pixels of the patch.
    """

    y: FloatArray
    x: FloatArray
    angle: FloatArray
    scale: FloatArray


@dataclass(frozen=True)
class Windows:
    """The windows of all sequences, each from the random numbers of its own.

    Parameters
    ----------
    seed : int
        Key of the random numbers.
    size : (int, int)
        Height and width of a patch (h, w).
    n_frames : int
        Frames of a sequence (T).
    motion : Motion
        How they move.
    least_contrast : float
        Least standard deviation of the pixels of a patch, as a share of that of the frame; 0: any.
    """

    seed: int
    size: tuple[int, int]
    n_frames: int
    motion: Motion
    least_contrast: float = 0.0

    def begin(self, sequence: int) -> float:
        """Return a uniform number for where, in time or among photographs, a sequence begins."""
        return float(Noise(self.seed).generator(PATHS, sequence).random())

    def chosen(self, sequence: int, frame: NDArray[np.float32], smooth: FloatArray, name: str) -> Path:
        """Return the path of a window that begins on a frame, one with contrast.

        Of `ATTEMPTS` paths of one form from places drawn at random, the first along which the patches of this
        frame have a median standard deviation of `least_contrast`, or the one with the largest.

        Parameters
        ----------
        sequence : int
            Its number.
        frame : (H, W) array
            The frame on which it begins.
        smooth : (H, W) array
            What `coefficients` made of it.
        name : str
            What errors call it.
        """
        path = self.path(sequence, (frame.shape[0], frame.shape[1]), name)
        if not self.least_contrast:
            return path
        least, tried = self.least_contrast * float(frame.std()), list[tuple[float, int]]()
        for attempt in range(ATTEMPTS):
            path = self.path(sequence, (frame.shape[0], frame.shape[1]), name, attempt)
            contrast = float(np.median(self.see(smooth, [path], [slice(None)]).std(axis=1)))
            if contrast >= least:
                return path
            tried.append((contrast, -attempt))
        return self.path(sequence, (frame.shape[0], frame.shape[1]), name, -max(tried)[1])

    def path(self, sequence: int, shape: tuple[int, int], name: str, attempt: int = 0) -> Path:
        """Return the path of a window over frames of a shape (H, W), from the place of an attempt on.

        Raises
        ------
        InputError
            When the window does not fit into the frame called ``name``.
        """
        motion = self.motion
        down, across = self.room(shape, name)
        generator = Noise(self.seed).generator(PATHS, sequence)
        generator.random()  # `begin`
        ways = self._ways(generator.standard_normal((self.n_frames, 4)))
        places = Noise(self.seed).generator(PLACES, sequence).random((attempt + 1, 4))
        y, x, angle, zoom = places[attempt]
        edge = np.log(motion.most_zoom) if motion.zoom else 0.0
        spread = motion.speed / np.sqrt(2.0), motion.speed / np.sqrt(2.0)
        reach = self.motion.reach(self.size)
        path = Path(
            reach[0] + _folded(y * down + spread[0] * ways[:, 0], down),
            reach[1] + _folded(x * across + spread[1] * ways[:, 1], across),
            (2.0 * np.pi * angle if motion.rotation else 0.0) + np.radians(motion.rotation) * ways[:, 2],
            np.exp(_folded(2.0 * edge * zoom + motion.zoom * ways[:, 3], 2.0 * edge) - edge),
        )
        if motion.is_still:  # on whole pixels: nothing is interpolated
            low = ((size - 1) / 2 for size in self.size)
            y0, x0 = (np.round(at - by) + by for at, by in zip((path.y, path.x), low, strict=True))
            return Path(y0, x0, path.angle, path.scale)
        return path

    def room(self, shape: tuple[int, int], name: str) -> tuple[float, float]:
        """Return how far the centre of a window can go down and across; refuse frames that are too small."""
        reach = self.motion.reach(self.size)
        room = tuple(side - 1 - 2.0 * far for side, far in zip(shape, reach, strict=True))
        if min(room) < 0:
            needed = " x ".join(str(int(np.ceil(2.0 * far)) + 1) for far in reach)
            turns = " to turn and zoom in" if self.motion.rotation or self.motion.zoom else ""
            raise InputError(
                "size",
                f"{self.size[0]} x {self.size[1]}",
                f"windows that fit: {name} has {shape[0]} x {shape[1]} pixels, {needed} are needed{turns}",
                "Take smaller patches, or larger pictures.",
            )
        return room[0], room[1]

    def see(self, frame: FloatArray, paths: Sequence[Path], times: Sequence[Any]) -> NDArray[np.float32]:
        """Return what windows see of a frame, (M, h w).

        Parameters
        ----------
        frame : (H, W) array
            As `coefficients` returns it; of windows that are still the frame itself.
        paths : sequence of Path
            Of windows.
        times : sequence of index
            Which of its frames each is at: a number, or a slice for several of them.
        """
        at = [np.concatenate([np.atleast_1d(getattr(p, name)[t]) for p, t in zip(paths, times, strict=True)])
              for name in ("y", "x", "angle", "scale")]  # fmt: skip
        y, x, angle, scale = (values[:, None] for values in at)
        down, across = self._grid
        rows = y + scale * (np.cos(angle) * down + np.sin(angle) * across)
        columns = x + scale * (np.cos(angle) * across - np.sin(angle) * down)
        if self.motion.is_still:
            return np.asarray(frame[np.rint(rows).astype(int), np.rint(columns).astype(int)], np.float32)
        from scipy.ndimage import map_coordinates

        seen = map_coordinates(frame, [rows, columns], order=SPLINE, mode="mirror", prefilter=False)
        return np.asarray(seen, np.float32)

    @cached_property
    def _grid(self) -> tuple[FloatArray, FloatArray]:
        """Where the pixels of a patch are from its centre, down and across, (h w,) each."""
        h, w = self.size
        down, across = np.meshgrid(np.arange(h) - (h - 1) / 2, np.arange(w) - (w - 1) / 2, indexing="ij")
        return down.ravel(), across.ravel()

    def _ways(self, shocks: FloatArray) -> FloatArray:
        """Return the ways from the first frame to each, (T, 4), of velocities of unit variance."""
        from scipy.signal import lfilter

        c = self.motion.persistence
        spread = np.sqrt(1.0 - c**2)
        shocks[0] /= spread  # the first velocity has the variance of all others
        velocity = lfilter([spread], [1.0, -c], shocks, axis=0)
        return np.asarray(np.cumsum(velocity, axis=0) - velocity[0])


def coefficients(frame: NDArray[np.float32], motion: Motion) -> FloatArray:
    """Return what windows interpolate a frame from: coefficients of cubic splines, or itself."""
    if motion.is_still:
        return frame.astype(np.float64)
    from scipy.ndimage import spline_filter

    return np.asarray(spline_filter(frame, SPLINE, mode="mirror"))


def _folded(value: FloatArray, length: float) -> FloatArray:
    """Return a walk reflected at 0 and at a length."""
    if length <= 0.0:
        return np.zeros_like(value)
    return length - np.abs(np.mod(value, 2.0 * length) - length)
