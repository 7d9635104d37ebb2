"""Photographs and films of every kind, and those that cannot be used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from examples.patches.footage import open_footage
from factorflow.errors import InputError

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (20, 30), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)
FILM = np.cumsum(RNG.integers(0, 6, (5, 20, 30), dtype=np.uint8), axis=0, dtype=np.uint8)


def frames(source: Any, kind: Any = None) -> list[np.ndarray[Any, Any]]:
    return [frame for footage in open_footage(source, kind) for frame in footage.frames()]


def kinds(source: Any, kind: Any = None) -> list[tuple[str, int]]:
    return [(footage.kind, footage.n_frames) for footage in open_footage(source, kind)]


def write_film(path: Path, values: Any, codec: str = "mpeg4") -> Path:
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25)
        stream.height, stream.width, stream.pix_fmt = *values.shape[1:], "yuv420p"
        stream.bit_rate = 8_000_000
        for frame in values:
            picture = av.VideoFrame.from_ndarray(np.repeat(frame[..., None], 3, axis=2), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return path


def test_grey_values() -> None:
    np.testing.assert_allclose(frames(GREY)[0], GREY / 255, rtol=1e-6)
    luma = (COLOUR / 255) @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(frames(COLOUR)[0], luma, rtol=1e-5)
    alpha = np.concatenate([COLOUR, COLOUR[..., :1]], axis=2)
    np.testing.assert_allclose(frames(alpha)[0], luma, rtol=1e-5)
    wide = GREY.astype(np.uint16) * 257
    np.testing.assert_allclose(frames(wide)[0], GREY / 255, rtol=1e-6)
    np.testing.assert_array_equal(frames(GREY * 1.0)[0], GREY.astype(np.float32))


def test_what_frames_are() -> None:
    assert kinds(GREY) == [("images", 1)]
    assert kinds(COLOUR) == [("images", 1)]
    assert kinds(FILM) == [("video", 5)]
    assert kinds(FILM, "images") == [("images", 1)] * 5
    assert kinds(list(FILM)) == [("images", 1)] * 5
    assert kinds(list(FILM), "video") == [("video", 5)]
    assert kinds(np.stack([COLOUR] * 6)) == [("video", 6)]
    for other in (frames(FILM, "images"), frames(list(FILM), "video")):
        np.testing.assert_array_equal(frames(FILM), other)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.bmp", "a.pgm"])
def test_photographs(tmp_path: Path, name: str) -> None:
    Image.fromarray(GREY).save(tmp_path / name)
    np.testing.assert_allclose(frames(tmp_path / name)[0], GREY / 255, rtol=1e-6)


def test_photographs_of_16_bits_and_of_colours(tmp_path: Path) -> None:
    Image.fromarray(GREY.astype(np.uint16) * 257).save(tmp_path / "wide.png")
    np.testing.assert_allclose(frames(tmp_path / "wide.png")[0], GREY / 255, rtol=1e-6)
    Image.fromarray(COLOUR).save(tmp_path / "colour.png")
    np.testing.assert_allclose(frames(tmp_path / "colour.png")[0], frames(COLOUR)[0], rtol=1e-6)


def test_arrays_in_files_and_folders(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", GREY)
    np.savez(tmp_path / "c.npz", one=GREY[::-1], two=COLOUR)
    Image.fromarray(GREY[:, ::-1]).save(tmp_path / "a.png")
    (tmp_path / "notes.txt").write_text("no picture")
    found = frames(str(tmp_path))
    for frame, grey in zip(found[:3], (GREY[:, ::-1], GREY, GREY[::-1]), strict=True):
        np.testing.assert_allclose(frame, grey / 255, rtol=1e-6)
    assert len(found) == 4
    assert kinds(tmp_path / "b.npy") == [("images", 1)]


@pytest.mark.parametrize("order", ["C", "F"])
def test_films_in_files_of_arrays(tmp_path: Path, order: Any) -> None:
    np.save(tmp_path / "a.npy", np.asarray(FILM, order=order))
    assert kinds(tmp_path / "a.npy") == [("video", 5)]
    np.testing.assert_array_equal(frames(tmp_path / "a.npy"), frames(FILM))
    np.testing.assert_array_equal(frames(tmp_path / "a.npy", "images"), frames(FILM))


def test_an_animated_gif_is_a_film(tmp_path: Path) -> None:
    pictures = [Image.fromarray(frame) for frame in FILM]
    pictures[0].save(tmp_path / "a.gif", save_all=True, append_images=pictures[1:], optimize=False)
    assert kinds(tmp_path / "a.gif") == [("video", 5)]
    np.testing.assert_allclose(frames(tmp_path / "a.gif"), FILM / 255, atol=0.02)


def test_a_film(tmp_path: Path) -> None:
    smooth = np.linspace(20, 230, 32)[None, :, None] + np.arange(12)[:, None, None] * 2 + np.zeros((1, 1, 48))
    path = write_film(tmp_path / "a.mp4", smooth.astype(np.uint8))
    assert kinds(path) == [("video", 12)]
    np.testing.assert_allclose(frames(path), smooth / 255, atol=0.03)  # it is compressed


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.mp4").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InputError, match=r"factorflow\[examples\]"):
        open_footage(tmp_path / "a.mp4")


def test_damaged_files(tmp_path: Path) -> None:
    for name in ("a.png", "a.npy", "a.npz", "a.gif"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(InputError, match=name):
            frames(tmp_path / name)


def test_damaged_films(tmp_path: Path) -> None:
    pytest.importorskip("av")
    (tmp_path / "a.mp4").write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=r"a\.mp4"):
        frames(tmp_path / "a.mp4")


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("nowhere.png", "exists"),
        ([], "nothing"),
        (np.zeros(5), "shape of source 0"),
        (np.zeros((0, 5)), "shape of source 0"),
        (np.array([["a", "b"]]), "shape of source 0"),
        ([GREY, FILM], "photographs and films"),
    ],
)
def test_what_is_no_source(source: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        open_footage(source)


def test_other_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="kind"):
        open_footage(GREY, "film")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="folder with files of"):
        open_footage(tmp_path)
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(InputError, match=r"a\.txt"):
        open_footage(tmp_path / "a.txt")


def test_frames_that_cannot_be_used() -> None:
    with pytest.raises(InputError, match="more than one grey"):
        frames([GREY, np.full((20, 30), 7.0)])
    holes = GREY.astype(float)
    holes[3, 4] = np.nan
    with pytest.raises(InputError, match=r"source 0.*finite"):
        frames(holes)
    with pytest.raises(InputError, match="frame 1 of source 0"):
        frames([GREY, GREY[:-1]], "video")
