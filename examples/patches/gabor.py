"""Gabor functions fitted to patches: where a field lies, its frequency, orientation and phase."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from factorflow.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "fit_gabor", "gabor_function", "spectrum"]

COLUMNS = ("x", "y", "frequency", "orientation", "phase", "width", "length", "amplitude", "r2")
"""What is found of each patch."""

PADDING = 4
"""Patches are laid into so many times their size before their frequencies are looked at."""

N_PEAKS = 2
"""Peaks of the spectrum from which a fit starts."""

TRIED = 5
"""Steps of each fit before the best of them goes on."""

NARROWEST = 0.5
"""Smallest standard deviation of an envelope, in pixels."""

FloatArray = NDArray[np.float64]


def gabor_function(
    size: tuple[int, int],
    x: float,
    y: float,
    frequency: float,
    orientation: float,
    phase: float,
    width: float,
    length: float,
    amplitude: float = 1.0,
) -> FloatArray:
    """Return a Gabor function, (h, w).

    ``a exp(-u^2 / 2 s^2 - v^2 / 2 l^2) cos(2 pi f u + phase)`` with u across and v along its bars
    (Daugman 1985, J. Opt. Soc. Am. A 2, 1160-1169; envelope and bars share their axes).

    Parameters
    ----------
    size : (int, int)
        Height and width (h, w), in pixels.
    x, y : float
        Centre of the envelope: column and row, in pixels from the first.
    frequency : float
        f, in cycles a pixel.
    orientation : float
        Of the bars, in degrees counter-clockwise from the horizontal, as the picture is seen.
    phase : float
        At the centre of the envelope, in degrees; 0: a bright bar lies there.
    width, length : float
        Standard deviations s and l of the envelope across and along the bars, in pixels.
    amplitude : float
        a.
    """
    u, v = _axes(size, x, y, np.radians(orientation))
    envelope = np.exp(-0.5 * ((u / width) ** 2 + (v / length) ** 2))
    wave = np.cos(2.0 * np.pi * frequency * u + np.radians(phase))
    return np.asarray(amplitude * envelope * wave).reshape(size)


def fit_gabor(patches: ArrayLike) -> pd.DataFrame:
    """Fit a Gabor function to each of some patches, by least squares.

    The best of several fits that start at the peaks of the spectrum; amplitude and phase are linear in it.

    Parameters
    ----------
    patches : (M, h, w) array
        For example what `PatchTransform.fields` makes of loadings.

    Returns
    -------
    DataFrame
        A row for each patch with the parameters of `gabor_function` and ``r2``, the share of its sum of
        squares that the function explains; NaN where a patch is zero. Orientations are from 0 to below 180,
        phases from -180 to 180 degrees, amplitudes positive.

    Raises
    ------
    InputError
        For another shape, patches of less than 3 x 3 pixels or values that are not finite.
    """
    import pandas as pd

    values = np.asarray(patches, dtype=np.float64)
    if values.ndim != 3 or min(values.shape[1:]) < 3 or not np.isfinite(values).all():
        raise InputError(
            "patches",
            f"an array {values.shape}",
            "finite numbers (M, h, w), of 3 x 3 pixels at least",
            "Stack them along the first axis.",
        )
    size = values.shape[1], values.shape[2]
    return pd.DataFrame([_remembered(patch.tobytes(), size) for patch in values], columns=list(COLUMNS))


def spectrum(patches: FloatArray) -> tuple[NDArray[np.complex128], FloatArray, FloatArray]:
    """Return what gratings find in patches: Fourier coefficients on a fine grid of frequencies.

    Parameters
    ----------
    patches : (..., h, w) array

    Returns
    -------
    coefficients : (..., n, n) complex array
        One half of the plane: the other one is its conjugate. Slower waves than one in two patches are left
        out (0): they are differences in brightness.
    across, up : (n, n) arrays
        The frequencies, in cycles a pixel to the right and up.
    """
    h, w = patches.shape[-2:]
    n = PADDING * max(h, w)
    found = np.fft.fft2(patches, (n, n))
    across, down = np.meshgrid(np.fft.fftfreq(n), np.fft.fftfreq(n), indexing="xy")
    half = (across > 0) | ((across == 0) & (down > 0))
    fast = np.hypot(across, down) >= 0.5 / max(h, w)
    return np.where(half & fast, found, 0.0), across, -down


def _axes(size: tuple[int, ...], x: float, y: float, orientation: float) -> tuple[FloatArray, FloatArray]:
    """Return where pixels are across and along bars from a centre, (h w,) each; radians."""
    row, column = np.indices(size).reshape(2, -1)
    right, up = column - x, y - row
    sine, cosine = np.sin(orientation), np.cos(orientation)
    return sine * right - cosine * up, cosine * right + sine * up


@lru_cache(maxsize=1024)
def _remembered(patch: bytes, size: tuple[int, int]) -> list[float]:
    """Return the parameters of a patch: tables and figures of a report ask for those of the same ones."""
    return _fit(np.frombuffer(patch).reshape(size))


def _fit(patch: FloatArray) -> list[float]:
    """Return the parameters of one patch, in the order of `COLUMNS`."""
    norm = float(np.linalg.norm(patch))
    if norm == 0.0:
        return [np.nan] * len(COLUMNS)
    from scipy.optimize import least_squares

    h, w = patch.shape
    scaled, largest = patch / norm, 2.0 * max(h, w)
    low = [-0.5, -0.5, 0.0, -np.inf, NARROWEST, NARROWEST, -np.inf, -np.inf]
    high = [w - 0.5, h - 0.5, 0.5, np.inf, largest, largest, np.inf, np.inf]

    def residuals(parameters: FloatArray) -> FloatArray:
        return _model(patch.shape, parameters)[0] - scaled.ravel()

    def derivatives(parameters: FloatArray) -> FloatArray:
        return _model(patch.shape, parameters)[1]

    def refined(start: FloatArray, most: int | None) -> Any:
        return least_squares(
            residuals,
            start,
            derivatives,
            bounds=(low, high),
            x_scale=UNITS,
            max_nfev=most,
            ftol=1e-6,
            xtol=1e-6,
        )

    fits = [refined(start, TRIED) for start in _starts(scaled)]
    best = refined(min(fits, key=lambda fit: float(fit.cost)).x, None)
    x, y, frequency, orientation, width, length, cosine, sine = (float(value) for value in best.x)
    phase, turn = float(np.arctan2(-sine, cosine)), orientation % (2.0 * np.pi)
    if turn >= np.pi:  # the same bars, seen from the other side
        turn, phase = turn - np.pi, -phase
    amplitude, r2 = norm * float(np.hypot(cosine, sine)), 1.0 - 2.0 * float(best.cost)
    return [x, y, frequency, np.degrees(turn) % 180.0, np.degrees(phase), width, length, amplitude, r2]


UNITS = np.array([1.0, 1.0, 0.02, 0.2, 1.0, 1.0, 0.1, 0.1])
"""By how much parameters change alike."""


def _model(size: tuple[int, ...], parameters: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a Gabor function and its derivatives, (h w,) and (h w, 8).

    ``parameters``: x, y, frequency, orientation in radians, width, length, and the amplitudes of cosine and
    sine.
    """
    x, y, frequency, orientation, width, length, cosine, sine = parameters
    u, v = _axes(size, x, y, orientation)
    wave = 2.0 * np.pi * frequency
    envelope = np.exp(-0.5 * ((u / width) ** 2 + (v / length) ** 2))
    even, odd = envelope * np.cos(wave * u), envelope * np.sin(wave * u)
    value, slope = cosine * even + sine * odd, sine * even - cosine * odd  # of the wave: by its phase
    by_u, by_v = wave * slope - value * u / width**2, -value * v / length**2
    s, c = np.sin(orientation), np.cos(orientation)
    derivatives = [
        -s * by_u - c * by_v,
        -c * by_u + s * by_v,
        2.0 * np.pi * u * slope,
        v * by_u - u * by_v,
        value * u**2 / width**3,
        value * v**2 / length**3,
        even,
        odd,
    ]
    return value, np.stack(derivatives, axis=1)


def _starts(patch: FloatArray) -> list[FloatArray]:
    """Return where fits begin: at peaks of the spectrum, with large and small envelopes."""
    h, w = patch.shape
    found, across, up = spectrum(patch)
    power = np.abs(found) ** 2
    row, column = np.indices(patch.shape)
    weight = patch**2 / (patch**2).sum()
    x, y = float((weight * column).sum()), float((weight * row).sum())
    out = []
    for _ in range(N_PEAKS):
        best = np.unravel_index(int(power.argmax()), power.shape)
        kx, ky = float(across[best]), float(up[best])
        # Bars stand at right angles to their wave: u = sin(o) right - cos(o) up.
        orientation, frequency = np.arctan2(kx, -ky), float(np.clip(np.hypot(kx, ky), 0.01, 0.49))
        for part in (4.0, 8.0):
            spread = max(max(h, w) / part, 1.1 * NARROWEST)
            start = np.array([x, y, frequency, orientation, spread, spread, 1.0, 0.0])
            waves = _model(patch.shape, start)[1][:, 6:]
            start[6:] = np.linalg.lstsq(waves, patch.ravel(), rcond=None)[0]
            out.append(start)
        near = np.hypot(across - kx, up - ky) < 1.0 / max(h, w)
        power = np.where(near, 0.0, power)
    return out
