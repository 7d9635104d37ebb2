"""From photographs and films to a dataset of sequences of patches."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.patches.cut import cut
from examples.patches.footage import Footage, FootageKind, open_footage
from examples.patches.spool import RowFile
from examples.patches.transform import PIECE, PatchTransform, learn
from examples.patches.windows import Motion, Windows
from factorflow.core.kinds import KINDS
from factorflow.data.ingest import checks
from factorflow.data.simulation.noise import check_count
from factorflow.data.store.dataset import Dataset, open_dataset
from factorflow.data.store.layout import choose_block_rows, read_root
from factorflow.data.store.rows import Columns, RowNames
from factorflow.data.store.view_source import ViewSource
from factorflow.data.store.writer import write_store
from factorflow.errors import InputError
from factorflow.storage.local import check_space
from factorflow.storage.location import as_location
from factorflow.storage.publish import new_directory

__all__ = ["write_patches"]

SIZE = 12
"""Height and width of a patch, when they are left out."""

SPOOL = "spool"
"""Folder of what waits on the disk, within what is being written."""

SPEED = 1.0
"""Speed of windows over photographs, when it is left out; over films they are still then."""


def write_patches(
    path: str | os.PathLike[str],
    source: Any,
    *,
    size: int | tuple[int, int] | None = None,
    n_sequences: int = 400,
    n_frames: int = 50,
    kind: FootageKind | None = None,
    speed: float | None = None,
    persistence: float = 0.95,
    rotation: float = 0.0,
    zoom: float = 0.0,
    most_zoom: float = 1.5,
    every: int = 1,
    least_contrast: float = 0.0,
    n_components: float | None = 0.95,
    whiten: bool = True,
    own_mean: bool = True,
    like: Dataset | str | os.PathLike[str] | None = None,
    view: str = "patches",
    seed: int = 0,
    block_rows: int | None = None,
    overwrite: bool = False,
) -> Dataset:
    """Write sequences of patches, seen by windows that move over photographs or through films.

    Over a photograph a window moves along a smooth random path; through a film it goes with the frames, in
    its place or along such a path. Each path is one sequence of the dataset. The pixels of the patches become
    whitened principal components; the way back is stored (`PatchTransform.of`). Frames are read one by one,
    and patches wait on the disk: of a film of any length one frame is in memory. The same seed gives the same
    patches, whatever ``block_rows`` is.

    Parameters
    ----------
    path : path-like, or URL
        Directory to make.
    source : path, array, or a list of them
        Photographs (.png, .jpg, .tif, ...), films (.mp4, .avi, .mov, ...: PyAV; .gif without),
        .npy, .npz, folders of such; arrays (H, W) and (T, H, W), with a last axis of 3 or 4 for colours.
        Colours become grey, whole numbers shares of the largest of their type.
    size : int or (int, int), optional
        Height and width of a patch in pixels; 12, or that of ``like``, when left out.
    n_sequences, n_frames : int
        How many sequences, and the frames of each.
    kind : {"images", "video"}, optional
        What frames are: photographs of their own, or a film. Left out, (T, H, W) is a film and a list or
        folder of photographs is not.
    speed : float, optional
        Root mean square of the way of a window in a frame, in pixels; left out, 1 over photographs, and 0
        (windows stay in their place) in films.
    persistence : float
        Correlation of its velocities in neighbouring frames, 0 to below 1.
    rotation : float
        Root mean square of its turn in a frame, in degrees.
    zoom : float
        Root mean square of the relative change of its scale in a frame.
    most_zoom : float
        Largest scale, and the inverse of the smallest, where it zooms.
    every : int
        Of a film, frames from one patch to the next.
    least_contrast : float
        Least standard deviation of the pixels of a patch (the median of its path) as a share of that of the
        frame: 0.3 keeps windows from skies and walls. Where 50 places have less, the best of them is taken.
    n_components : int, float or None
        Principal components: their number, or the least share of the variance that they hold; None: the
        pixels themselves.
    whiten : bool
        Divide by standard deviations.
    own_mean : bool
        Take from each patch the mean of its pixels.
    like : Dataset or path, optional
        A dataset of patches whose transform this one is to have, for new data of a fitted model;
        ``n_components``, ``whiten``, ``own_mean`` and ``view`` are its then.
    view : str
        Name of the view.
    seed : int
        Key of the random numbers.
    block_rows, overwrite
        As for `factorflow.data.write_dataset`.

    Returns
    -------
    Dataset

    Raises
    ------
    InputError
        When something cannot be used as it is; nothing is left at ``path`` then.

    Warns
    -----
    DataWarning
        Of photographs or films that no sequence is from.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from examples.patches import PatchTransform, write_patches
    >>> photograph = np.random.default_rng(0).standard_normal((60, 80))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = write_patches(f"{folder}/p", photograph, size=5, n_components=8)
    ...     made.n_rows, made.n_sequences, PatchTransform.of(made).components.shape
    (20000, 400, (8, 25))
    """
    template = _template(like, size)
    height, width = _pair(template.size if template is not None else SIZE if size is None else size)
    for name, value in (("n_sequences", n_sequences), ("n_frames", n_frames), ("every", every)):
        check_count(name, value)
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
        raise InputError("seed", seed, "a whole number from 0 to 2^64 - 1", "Any of them will do.")
    checks.check_view_names([view])
    footage = open_footage(source, kind)
    motion = _motion(footage, speed, persistence, rotation, zoom, most_zoom)
    if not 0.0 <= least_contrast < np.inf:
        raise InputError(
            "least_contrast", least_contrast, "a finite number from 0 on", "0 takes all patches."
        )
    windows = Windows(int(seed), (height, width), int(n_frames), motion, least_contrast)
    n_rows, target = int(n_sequences) * int(n_frames), as_location(path)
    if n_rows < 2:
        raise InputError("n_frames", n_frames, "at least two patches in all", "Ask for more of them.")
    with new_directory(target, overwrite, read_root, "of the pictures") as partial, ExitStack() as opened:
        check_space(partial, 2 * n_rows * height * width * 4)
        (partial / SPOOL).mkdir()
        pixels = RowFile(partial / SPOOL / "pixels", n_rows, height * width)
        opened.callback(pixels.close)
        cut(footage, windows, int(n_sequences), int(every), pixels)
        transform = template or learn(
            view, (height, width), pixels.read, n_rows, n_components, whiten=whiten, own_mean=own_mean
        )
        values = RowFile(partial / SPOOL / "values", n_rows, len(transform.scale))
        opened.callback(values.close)
        for start in range(0, n_rows, PIECE):
            piece = slice(start, min(start + PIECE, n_rows))
            values[piece] = transform.forward(pixels[piece]).astype(np.float32)
        _write(partial, values, transform, int(n_frames), block_rows)
        shutil.rmtree(partial / SPOOL)
    return open_dataset(target)


def _write(
    partial: Path, values: RowFile, transform: PatchTransform, n_frames: int, block_rows: int | None
) -> None:
    """Write the store of features (N, K) of sequences of equal length."""

    def sequence(start: int, stop: int) -> NDArray[np.int32]:
        return np.asarray(np.arange(start, stop) // n_frames, np.int32)

    def time(start: int, stop: int) -> NDArray[np.int32]:
        return np.asarray(np.arange(start, stop) % n_frames, np.int32)

    n_rows, codes = values.n_rows, {"sequence": sequence, "time": time}
    source = ViewSource(transform.view, np.array(transform.features), values.read, KINDS["gaussian"])
    columns = Columns(RowNames(n_rows), codes, n_sequences=n_rows // n_frames)
    rows = choose_block_rows(n_rows, source.work_bytes, block_rows)
    write_store(partial, [source], columns, rows, attributes=transform.attributes())


def _motion(
    footage: Sequence[Footage],
    speed: float | None,
    persistence: float,
    rotation: float,
    zoom: float,
    most_zoom: float,
) -> Motion:
    photographs = footage[0].kind == "images"
    motion = Motion(
        (SPEED if photographs else 0.0) if speed is None else speed, persistence, rotation, zoom, most_zoom
    )
    if photographs and motion.is_still:
        raise InputError(
            "speed", speed, "windows that move: photographs do not", "Give a speed, a rotation or a zoom."
        )
    return motion


def _template(like: Any, size: Any) -> PatchTransform | None:
    """Return the transform of another dataset, which has to have one for patches of the size."""
    if like is None:
        return None
    dataset = open_dataset(like) if isinstance(like, str | os.PathLike) else like
    found = PatchTransform.of(dataset)
    if size is not None and _pair(size) != found.size:
        raise InputError("size", size, f"{found.size}, as of like=", "Leave it out.")
    return found


def _pair(size: Any) -> tuple[int, int]:
    pair = size if isinstance(size, tuple | list) else (size, size)
    whole = all(isinstance(side, int | np.integer) and side >= 1 for side in pair)
    if len(pair) != 2 or not whole or pair[0] * pair[1] < 2:
        raise InputError(
            "size", size, "a number of pixels, or height and width", "12 makes patches of 12 x 12."
        )
    return int(pair[0]), int(pair[1])
