"""Cutting sequences of patches out of photographs and films: each frame is read once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.patches.footage import Footage
from examples.patches.windows import Path, Windows, coefficients
from factorflow.data.ingest import checks
from factorflow.errors import InputError, pluralize

__all__ = ["cut"]


def cut(footage: Sequence[Footage], windows: Windows, n_sequences: int, every: int, out: Any) -> None:
    """Cut all sequences of patches.

    Sequences begin in the order of photographs, or of the frames of films: sequence s of S is drawn from the
    s-th of S equal parts of all places where one may begin. So a photograph or a frame is read once, and what
    a sequence holds does not depend on others.

    Parameters
    ----------
    footage : sequence of Footage
        Photographs, or films.
    windows : Windows
        Where they are cut; T frames of h w pixels.
    n_sequences : int
        How many (S).
    every : int
        Of a film, frames from one patch to the next.
    out : (S T, h w) float32 array or RowFile
        Is filled in, in order of sequences and frames.

    Raises
    ------
    InputError
        When a frame is smaller than a window, a film shorter than a sequence, or one cannot be read.
    """
    places = _places(footage, windows.n_frames, every)
    edges = np.cumsum(places)
    parts = (np.arange(n_sequences) + [windows.begin(s) for s in range(n_sequences)]) / n_sequences
    begins = np.minimum((parts * edges[-1]).astype(np.int64), edges[-1] - 1)
    homes = np.searchsorted(edges, begins, side="right")
    unused = np.setdiff1d(np.arange(len(footage)), homes)
    if unused.size:
        cut, sources = pluralize(n_sequences, "sequence"), pluralize(len(footage), "source")
        names = checks.join_names([footage[number].name for number in unused])
        checks.warn(f"{cut}, not from all of {sources}: none from {names}")
    for home in np.unique(homes):
        picture, mine = footage[home], np.flatnonzero(homes == home)
        windows.room(picture.shape, picture.name)
        if picture.kind == "images":
            _cut_photograph(picture, windows, mine, out)
        else:
            first = begins[mine] - (edges[home] - places[home])
            _cut_film(picture, windows, mine, first, every, out)


def _places(footage: Sequence[Footage], n_frames: int, every: int) -> NDArray[np.int64]:
    """Return at how many frames of each film a sequence may begin; 1 of a photograph."""
    span = (n_frames - 1) * every + 1
    for film in footage:
        if film.kind == "video" and film.n_frames < span:
            raise InputError(
                "n_frames",
                n_frames,
                f"sequences that fit: {film.name} has {film.n_frames} frames, {span} are needed",
                "Take shorter sequences, or leave it out.",
            )
    return np.array([1 if f.kind == "images" else f.n_frames - span + 1 for f in footage])


def _cut_photograph(picture: Footage, windows: Windows, sequences: NDArray[Any], out: Any) -> None:
    n_frames = windows.n_frames
    for photograph in picture.frames():
        smooth = coefficients(photograph, windows.motion)
        for s in sequences.tolist():
            path = windows.chosen(s, photograph, smooth, picture.name)
            out[s * n_frames : (s + 1) * n_frames] = windows.see(smooth, [path], [slice(None)])


def _cut_film(
    film: Footage, windows: Windows, sequences: NDArray[Any], begins: NDArray[Any], every: int, out: Any
) -> None:
    """Cut sequences, which begin one after the other, while the frames go by."""
    last = int(begins[-1]) + (windows.n_frames - 1) * every
    waiting = deque(zip(sequences.tolist(), begins.tolist(), strict=True))
    seen: list[tuple[int, int, Path]] = []
    for number, frame in _numbered(film, last):
        begun = []
        while waiting and waiting[0][1] <= number:
            begun.append(waiting.popleft())
        if not begun and all((number - begin) % every for _, begin, _ in seen):
            continue
        smooth = coefficients(frame, windows.motion)
        seen += [(s, begin, windows.chosen(s, frame, smooth, film.name)) for s, begin in begun]
        now = [one for one in seen if (number - one[1]) % every == 0]
        times = [(number - begin) // every for _, begin, _ in now]
        rows = [s * windows.n_frames + time for (s, _, _), time in zip(now, times, strict=True)]
        out[rows] = windows.see(smooth, [path for *_, path in now], times)
        seen = [one for one in seen if number < one[1] + (windows.n_frames - 1) * every]


def _numbered(film: Footage, last: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield the frames of a film up to one, with their numbers."""
    for number, frame in enumerate(film.frames()):
        yield number, frame
        if number == last:
            return
