"""Photographs and films, wherever they lie: grey frames, one after the other."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from factorflow.core.extras import require
from factorflow.errors import InputError
from factorflow.storage.location import source_not_found

__all__ = ["Footage", "FootageKind", "open_footage"]

FootageKind = Literal["images", "video"]
"""Single photographs, or frames that follow one another."""

PHOTOGRAPHS = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".pgm", ".ppm")
FILMS = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv", ".ogv")
ARRAYS = (".npy", ".npz")
ANIMATED = ".gif"
"""A film that Pillow reads."""

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue (ITU-R BT.601)."""

FloatArray = NDArray[np.float32]
Frames = Callable[[], Iterator[FloatArray]]


@dataclass(frozen=True)
class Footage:
    """One photograph or one film.

    Parameters
    ----------
    name : str
        As errors call it.
    kind : {"images", "video"}
        Which of the two.
    n_frames : int
        Frames (T); 1 of a photograph.
    shape : (int, int)
        Height and width of a frame (H, W), in pixels.
    read : callable
        () -> iterator over the frames, (H, W) float32 each, from the first on. Whole numbers become shares of
        the largest of their type, colours their luma.
    """

    name: str
    kind: FootageKind
    n_frames: int
    shape: tuple[int, int]
    read: Frames

    def frames(self) -> Iterator[FloatArray]:
        """Yield the frames, (H, W) each, from the first on.

        Raises
        ------
        InputError
            For a value that is not finite, a frame of another shape, fewer frames than there were to be, or a
            photograph of one grey.
        """
        n_read = 0
        for number, frame in enumerate(self.read()):
            if number == self.n_frames:
                return
            self._check(number, frame)
            yield frame
            n_read = number + 1
        if n_read < self.n_frames:
            expected = f"{self.n_frames}, as its index says"
            raise InputError(f"frames of {self.name}", n_read, expected, "The file is damaged.")

    def _check(self, number: int, frame: FloatArray) -> None:
        place = self.name if self.kind == "images" else f"frame {number} of {self.name}"
        if frame.shape != self.shape:
            expected = f"{self.shape[0]} x {self.shape[1]} pixels, as the first frame"
            raise InputError(f"shape of {place}", frame.shape, expected, "Cut it, or leave it out.")
        if not np.isfinite(frame).all():
            raise InputError(place, "infinite or missing values", "finite numbers", "Fill them in.")
        if self.kind == "images" and frame.min() == frame.max():
            found = f"{float(frame.min()):g} everywhere"
            raise InputError(place, found, "a picture of more than one grey", "Leave it out.")


def open_footage(source: Any, kind: FootageKind | None = None) -> list[Footage]:
    """Return the photographs or the films of a source; no frame is read.

    Parameters
    ----------
    source : path, array, or a list of them
        As for `write_patches`.
    kind : {"images", "video"}, optional
        What frames are; left out, what the source looks like.

    Raises
    ------
    InputError
        When there is nothing, something that cannot be read, or photographs beside films.
    """
    if kind not in (None, "images", "video"):
        raise InputError("kind", kind, "images or video", "Leave it out, and it follows from the source.")
    items = list(source) if isinstance(source, list | tuple) else [source]
    found = [footage for number, item in enumerate(items) for footage in _opened(item, number, kind)]
    if not found:
        raise InputError("source", "nothing", "photographs or a film", "Name a file, a folder or an array.")
    if kind == "video" and all(footage.kind == "images" for footage in found):
        return [_joined(found)]
    kinds = {footage.kind for footage in found}
    if len(kinds) > 1:
        raise InputError("source", "photographs and films", "one of the two", "Write two datasets.")
    return found


def _opened(item: Any, number: int, kind: FootageKind | None) -> list[Footage]:
    if not isinstance(item, str | os.PathLike):
        return _of_array(f"source {number}", item, kind)
    path = Path(item)
    if path.is_dir():
        known = (*PHOTOGRAPHS, *FILMS, *ARRAYS, ANIMATED)
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in known)
        if not files:
            raise InputError("source", str(path), f"a folder with files of {', '.join(known)}", "Check it.")
        return [footage for file in files for footage in _of_file(file, kind)]
    if not path.exists():
        raise source_not_found(path, "source")
    return _of_file(path, kind)


def _of_file(path: Path, kind: FootageKind | None) -> list[Footage]:
    suffix = path.suffix.lower()
    if suffix in PHOTOGRAPHS:
        return [_photograph(path)]
    if suffix in FILMS:
        return [_film(path)]
    if suffix == ANIMATED:
        return [_animated(path)]
    if suffix in ARRAYS:
        with _readable(path, (OSError, ValueError)):
            loaded = _Stored.of(path) if suffix == ".npy" else np.load(path)
        if suffix == ".npy":
            return _of_array(str(path), loaded, kind)
        with loaded:
            return [f for name in loaded.files for f in _of_array(f"{path}[{name}]", loaded[name], kind)]
    known = ", ".join((*PHOTOGRAPHS, *FILMS, *ARRAYS, ANIMATED))
    raise InputError("source", str(path), f"a file of {known}", "Convert it.")


@dataclass(frozen=True)
class _Stored:
    """An array in a .npy file, read a frame at a time: pages of a mapping count as memory of the process."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    first: int

    @classmethod
    def of(cls, path: Path) -> Any:
        """Return the array of a file; one that is not laid out frame by frame is mapped."""
        mapped = np.load(path, mmap_mode="r")
        if not mapped.flags.c_contiguous or not isinstance(mapped, np.memmap):
            return mapped
        return cls(path, mapped.shape, mapped.dtype, mapped.offset)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """Return one frame, or all (...)."""
        shape, start = (self.shape, 0) if index is ... else (self.shape[1:], int(index))
        count = math.prod(shape)
        offset = self.first + start * count * self.dtype.itemsize
        return np.fromfile(self.path, self.dtype, count, offset=offset).reshape(shape)


def _of_array(name: str, array: Any, kind: FootageKind | None) -> list[Footage]:
    """Return the footage of an array (H, W), (H, W, 3), (T, H, W) or (T, H, W, 3)."""
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        array = np.asarray(array)
    shape = tuple(int(size) for size in array.shape)
    colour = len(shape) in (3, 4) and shape[-1] in (3, 4)
    plane = len(shape) - colour
    if plane not in (2, 3) or np.dtype(array.dtype).kind not in "biuf":
        raise InputError(
            f"shape of {name}",
            f"{shape} of {array.dtype}",
            "numbers (H, W) or (T, H, W), with a last axis of 3 or 4 for colours",
            "Reshape or convert it.",
        )
    if 0 in shape:
        raise InputError(f"shape of {name}", shape, "at least one frame of one pixel", "Leave it out.")
    if plane == 2:
        return [Footage(name, "images", 1, (shape[0], shape[1]), lambda: iter([_grey(array[...])]))]
    size = shape[1], shape[2]
    if kind == "images":
        return [
            Footage(f"{name}[{t}]", "images", 1, size, lambda t=t: iter([_grey(array[t])]))  # type: ignore[misc]
            for t in range(shape[0])
        ]
    return [Footage(name, "video", shape[0], size, lambda: (_grey(array[t]) for t in range(shape[0])))]


def _joined(photographs: list[Footage]) -> Footage:
    """Return the film of which photographs are the frames, in their order."""
    first = photographs[0]
    read: Frames = lambda: (frame for photograph in photographs for frame in photograph.read())  # noqa: E731
    return Footage(first.name, "video", len(photographs), first.shape, read)


def _photograph(path: Path) -> Footage:
    Image = require("PIL.Image", "reads photographs")

    with _readable(path, (OSError, ValueError)), Image.open(path) as image:
        shape = image.height, image.width

    def read() -> Iterator[FloatArray]:
        with _readable(path, (OSError, ValueError)), Image.open(path) as image:
            yield _pillow_grey(image)

    return Footage(str(path), "images", 1, shape, read)


def _animated(path: Path) -> Footage:
    Image, ImageSequence = (require(f"PIL.{name}", "reads .gif") for name in ("Image", "ImageSequence"))

    with _readable(path, (OSError, ValueError)), Image.open(path) as image:
        shape, n_frames = (image.height, image.width), int(getattr(image, "n_frames", 1))

    def read() -> Iterator[FloatArray]:
        with _readable(path, (OSError, ValueError)), Image.open(path) as image:
            for frame in ImageSequence.Iterator(image):
                yield _pillow_grey(frame)

    return Footage(str(path), "video", n_frames, shape, read)


def _pillow_grey(image: Any) -> FloatArray:
    plain = image if image.mode in ("L", "I", "I;16", "F", "RGB") else image.convert("RGB")
    values = np.asarray(plain)
    # Pillow hands out the 16 bits of a grey picture as integers of 32.
    return _grey(values.astype(np.uint16) if image.mode in ("I", "I;16") else values)


def _film(path: Path) -> Footage:
    av = require("av", "reads films")
    failures = (OSError, ValueError, av.error.FFmpegError)

    @contextmanager
    def opened() -> Iterator[tuple[Any, Any]]:
        with _readable(path, failures), av.open(str(path)) as container:
            if not container.streams.video:
                raise InputError("source", str(path), "a file with a video stream", "It has none.")
            yield container, container.streams.video[0]

    def read() -> Iterator[FloatArray]:
        with opened() as (container, stream):
            stream.thread_type = "AUTO"
            for frame in container.decode(stream):
                yield _grey(frame.to_ndarray(format="gray"))

    with opened() as (container, stream):
        shape = int(stream.height), int(stream.width)
        n_frames = sum(packet.size > 0 for packet in container.demux(stream))  # an index need not be right
    return Footage(str(path), "video", n_frames, shape, read)


@contextmanager
def _readable(path: Path, failures: tuple[type[Exception], ...]) -> Iterator[None]:
    """Turn what a library says of a file into an InputError that names it."""
    try:
        yield
    except InputError:
        raise
    except failures as error:
        raise InputError("source", str(path), f"a file that can be read ({error})", "Check it.") from error


def _grey(values: Any) -> FloatArray:
    """Return a frame (H, W) or (H, W, 3 or 4) as grey; whole numbers as shares of the largest."""
    values = np.asarray(values)
    scale = 1.0 / np.iinfo(values.dtype).max if values.dtype.kind in "iu" else 1.0
    frame = values.astype(np.float32)
    if frame.ndim == 3:
        frame = frame[..., 0] * LUMA[0] + frame[..., 1] * LUMA[1] + frame[..., 2] * LUMA[2]
    return np.ascontiguousarray(frame * np.float32(scale), np.float32)
