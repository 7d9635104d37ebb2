"""Datasets of patches: whitening and the way back, equal bits however it is cut, bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

import factorflow as ff
from examples.patches import PatchTransform, write_patches
from examples.patches.cut import cut
from examples.patches.footage import open_footage
from examples.patches.transform import PIECE, centred, learn
from examples.patches.windows import Motion, Windows
from factorflow.data.ingest.checks import DataWarning
from factorflow.errors import InputError
from factorflow.storage.checksums import write_manifest


def photograph(seed: int = 0, shape: tuple[int, int] = (50, 60)) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    return gaussian_filter(rng.standard_normal(shape), 1.0) + 0.05 * rng.standard_normal(shape) + 0.3


PHOTOGRAPHS = [photograph(0), photograph(1)]
SMALL: dict[str, Any] = {"size": (5, 4), "n_sequences": 30, "n_frames": 12, "n_components": 8}


@pytest.fixture
def pixels() -> np.ndarray[Any, Any]:
    """The patches of SMALL, cut in memory."""
    out = np.empty((30 * 12, 20), np.float32)
    cut(open_footage(PHOTOGRAPHS), Windows(0, (5, 4), 12, Motion(1.0)), 30, 1, out)
    return out


def test_what_is_written(tmp_path: Path, pixels: Any) -> None:
    """Values are those of principal components computed at once, in memory."""
    dataset = write_patches(tmp_path / "d", PHOTOGRAPHS, **SMALL)
    own = pixels.astype(float) - pixels.mean(axis=1, keepdims=True, dtype=float)
    mean = own.mean(axis=0)
    variances, vectors = np.linalg.eigh((own - mean).T @ (own - mean) / len(own))
    expected = (own - mean) @ vectors[:, :-9:-1] / np.sqrt(variances[:-9:-1])
    found = dataset.values("patches").astype(float)
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found, expected * signs, atol=1e-5)
    np.testing.assert_allclose(found.T @ found / len(found), np.eye(8), atol=1e-5)
    assert PatchTransform.of(dataset).share == pytest.approx(variances[:-9:-1].sum() / variances.sum())
    components = PatchTransform.of(dataset).components
    assert (components[np.arange(8), np.abs(components).argmax(axis=1)] > 0).all()
    np.testing.assert_array_equal(dataset.codes("sequence"), np.repeat(np.arange(30), 12))
    np.testing.assert_array_equal(dataset.codes("time"), np.tile(np.arange(12), 30))
    assert dataset.n_sequences == 30
    assert dataset.features("patches").tolist() == [f"component{k}" for k in range(1, 9)]
    assert dataset.views["patches"].likelihood == "gaussian"
    dataset.verify()


def test_the_way_back(tmp_path: Path, pixels: Any) -> None:
    dataset = write_patches(tmp_path / "d", PHOTOGRAPHS, **{**SMALL, "n_components": 19})
    transform = PatchTransform.of(dataset)
    assert transform is not None
    own = centred(pixels, own_mean=True)
    back = transform.inverse(dataset.values("patches"))
    np.testing.assert_allclose(back.reshape(-1, 20), own, atol=1e-5)
    np.testing.assert_allclose(transform.forward(pixels), dataset.values("patches"), atol=1e-5)
    np.testing.assert_array_equal(transform.forward(pixels.reshape(-1, 5, 4)), transform.forward(pixels))
    directions = np.random.default_rng(0).standard_normal((19, 3, 2))
    fields = transform.fields(directions)
    assert fields.shape == (3, 2, 5, 4)
    step = transform.inverse(directions[:, 1, 0][None]) - transform.inverse(np.zeros((1, 19)))
    np.testing.assert_allclose(fields[1, 0], step[0])
    white = transform.fields(directions, white=True)[1, 0].ravel()
    np.testing.assert_allclose(transform.components @ white, directions[:, 1, 0])
    plain = write_patches(tmp_path / "f", PHOTOGRAPHS, **{**SMALL, "n_components": 19, "whiten": False})
    same = directions * transform.deviation[:, None, None]  # the same fields in features that are not white
    np.testing.assert_allclose(PatchTransform.of(plain).fields(same), fields, atol=1e-12)
    np.testing.assert_allclose(
        PatchTransform.of(plain).fields(same, white=True)[1, 0].ravel(), white, atol=1e-12
    )
    part = write_patches(tmp_path / "e", PHOTOGRAPHS, **SMALL)
    lost = own - PatchTransform.of(part).inverse(part.values("patches")).reshape(-1, 20)
    assert (lost**2).sum() / ((own - own.mean(0)) ** 2).sum() == pytest.approx(
        1 - PatchTransform.of(part).share, abs=1e-4
    )


@pytest.mark.parametrize("whiten", [True, False])
def test_pixels_themselves(tmp_path: Path, pixels: Any, whiten: bool) -> None:
    options = {**SMALL, "n_components": None, "own_mean": False, "whiten": whiten}
    dataset = write_patches(tmp_path / "d", PHOTOGRAPHS, **options)
    centre = pixels - pixels.mean(axis=0, dtype=float)
    expected = centre / pixels.std(axis=0, dtype=float) if whiten else centre
    np.testing.assert_allclose(dataset.values("patches"), expected, atol=1e-5)
    assert dataset.features("patches")[5] == "pixel_1_1"
    np.testing.assert_allclose(
        PatchTransform.of(dataset).inverse(expected).reshape(-1, 20), pixels, atol=1e-5
    )
    assert PatchTransform.of(dataset).is_pixels


def test_a_share_of_the_variance(tmp_path: Path) -> None:
    dataset = write_patches(tmp_path / "d", PHOTOGRAPHS, **{**SMALL, "n_components": 0.8})
    n = len(PatchTransform.of(dataset).scale)
    variances = PatchTransform.of(dataset).scale ** 2
    assert PatchTransform.of(dataset).share >= 0.8
    assert PatchTransform.of(dataset).share * (1 - variances[-1] / variances.sum()) < 0.8
    assert dataset.describe()["attributes"]["components"] == f"array ({n}, 20)"
    assert "attributes: " in repr(dataset)


def test_blocks_and_seeds(tmp_path: Path) -> None:
    made = [
        write_patches(tmp_path / str(i), PHOTOGRAPHS, **SMALL, seed=seed, block_rows=rows)
        for i, (seed, rows) in enumerate([(0, 32), (0, 256), (1, 32), (0, 32)])
    ]
    values = [dataset.values("patches") for dataset in made]
    np.testing.assert_array_equal(values[0], values[1])
    assert made[0].fingerprint == made[3].fingerprint
    assert (values[0] != values[2]).all()


def test_pieces(tmp_path: Path) -> None:
    """What is learnt and written in pieces is what is computed at once."""
    n = 2 * PIECE + 7
    values = np.random.default_rng(0).standard_normal((n, 6)) @ np.diag([1, 2, 3, 4, 5, 6.0])
    options: Any = {"whiten": True, "own_mean": False}
    whole = learn("p", (2, 3), lambda start, stop: values[start:stop], n, 3, **options)
    covariance = np.cov(values.T, bias=True)
    np.testing.assert_allclose(
        whole.components @ covariance @ whole.components.T, np.diag(whole.scale**2), atol=1e-10
    )
    np.testing.assert_allclose(whole.mean, values.mean(0), atol=1e-12)
    at_once = whole.forward(values)
    parts = [whole.forward(values[start : start + PIECE]) for start in range(0, n, PIECE)]
    np.testing.assert_array_equal(np.concatenate(parts), at_once)
    np.testing.assert_allclose(at_once, (values - whole.mean) @ whole.components.T / whole.scale)


def test_new_data_go_through_the_same_transform(tmp_path: Path) -> None:
    dataset = write_patches(tmp_path / "d", PHOTOGRAPHS[0], **SMALL, view="left")
    new = write_patches(tmp_path / "e", PHOTOGRAPHS[1], like=tmp_path / "d", n_sequences=20, n_frames=6)
    for name, value in PatchTransform.of(dataset).attributes().items():
        np.testing.assert_array_equal(getattr(PatchTransform.of(new), name), value)
    raw = np.empty((20 * 6, 20), np.float32)
    cut(open_footage(PHOTOGRAPHS[1]), Windows(0, (5, 4), 6, Motion(1.0)), 20, 1, raw)
    np.testing.assert_array_equal(
        new.values("left"), PatchTransform.of(dataset).forward(raw).astype(np.float32)
    )
    np.testing.assert_array_equal(new.features("left"), dataset.features("left"))  # a projection finds them
    with pytest.raises(InputError, match="size"):
        write_patches(tmp_path / "f", PHOTOGRAPHS[1], like=dataset, size=9)
    plain = ff.write_dataset(tmp_path / "plain", {"a": np.random.default_rng(0).standard_normal((9, 3))})
    with pytest.raises(InputError, match="a dataset of patches"):
        write_patches(tmp_path / "f", PHOTOGRAPHS[1], like=plain)


def test_a_damaged_transform_is_noticed(tmp_path: Path) -> None:
    write_patches(tmp_path / "d", PHOTOGRAPHS, **SMALL)
    chunk = tmp_path / "d" / "attributes" / "components" / "c" / "0" / "0"
    content = bytearray(chunk.read_bytes())
    content[9] ^= 1
    chunk.write_bytes(content)
    dataset = ff.open_dataset(tmp_path / "d")
    with pytest.raises(InputError, match="components"):
        PatchTransform.of(dataset)
    with pytest.raises(InputError, match="components"):
        dataset.verify()


def test_photographs_that_no_sequence_is_from(tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match="none from"):
        write_patches(tmp_path / "d", [photograph(k) for k in range(5)], **{**SMALL, "n_sequences": 2})


FILM = np.random.default_rng(0).random((9, 20, 20))


@pytest.mark.parametrize(
    ("source", "options", "match"),
    [
        ("nowhere.png", {}, "source"),
        (PHOTOGRAPHS, {"size": 51}, "size = 51 x 51.*50 x 60"),
        (PHOTOGRAPHS, {"size": 40, "rotation": 1.0}, "to turn and zoom in"),
        (PHOTOGRAPHS, {"size": 1}, "size"),
        (PHOTOGRAPHS, {"size": (5, 0)}, "size"),
        (PHOTOGRAPHS, {"n_frames": 0}, "n_frames"),
        (PHOTOGRAPHS, {"n_frames": 1, "n_sequences": 1}, "at least two patches"),
        (PHOTOGRAPHS, {"n_sequences": 0}, "n_sequences"),
        (PHOTOGRAPHS, {"speed": 0.0}, "speed"),
        (PHOTOGRAPHS, {"seed": -1}, "seed"),
        (PHOTOGRAPHS, {"view": "no view"}, "view name"),
        (PHOTOGRAPHS, {"view": "attributes"}, "view name"),
        (PHOTOGRAPHS, {"n_components": 21}, "n_components"),
        (PHOTOGRAPHS, {"n_components": 20}, "at most 19"),
        (PHOTOGRAPHS, {"n_components": 0}, "n_components"),
        (PHOTOGRAPHS, {"n_components": 1.5}, "n_components"),
        (PHOTOGRAPHS, {"n_components": True}, "n_components"),
        (np.full((30, 30), 0.5), {}, "more than one grey"),
        (np.full((20, 30, 30), 0.5), {}, "all the same"),
        (FILM, {}, "9 frames, 12 are needed"),
        (FILM, {"n_frames": 4, "every": 3}, "9 frames, 10 are needed"),
        (FILM, {"n_frames": 4, "every": 0}, "every"),
    ],
)
def test_bad_input(tmp_path: Path, source: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        write_patches(tmp_path / "d", source, **{**SMALL, **options})
    assert not list(tmp_path.iterdir())


def test_patches_of_another_size() -> None:
    transform = PatchTransform("p", (2, 3), np.zeros(6), np.eye(6)[:4], np.ones(4), True, False, 1.0)
    with pytest.raises(InputError, match="patches"):
        transform.forward(np.zeros((5, 3, 2)))
    with pytest.raises(InputError, match="features"):
        transform.fields(np.zeros((5, 3)))


def test_whitening_pixels_that_do_not_vary() -> None:
    values = np.array([[1.0, 2.0], [1.0, 3.0], [1.0, 4.0]])
    with pytest.raises(InputError, match="whiten"):
        learn("p", (1, 2), lambda a, b: values[a:b], 3, None, whiten=True, own_mean=False)


@pytest.mark.thorough
def test_windows_with_contrast(tmp_path: Path) -> None:
    """Half of the picture is a wall: windows begin on the other half, where a place for them is found."""
    picture = photograph(3, (60, 80))
    picture[:, :40] = picture.mean()
    options: dict[str, Any] = {
        **SMALL,
        "n_components": None,
        "whiten": False,
        "own_mean": False,
        "speed": 0.3,
    }
    deviation = []
    for least in (0.0, 0.4):
        dataset = write_patches(tmp_path / f"{least}", picture, **options, least_contrast=least)
        patches = PatchTransform.of(dataset).inverse(dataset.values("patches")).reshape(30, 12, 20)
        deviation.append(np.median(patches.std(axis=2), axis=1) / picture.std())
    assert (deviation[0] < 0.1).any()
    assert deviation[1].min() >= 0.4 - 1e-3
    chosen = deviation[0] >= 0.4
    np.testing.assert_allclose(deviation[1][chosen], deviation[0][chosen], rtol=1e-3)  # those need no other
    film = np.stack([picture] * 12)
    again = write_patches(tmp_path / "film", film, **options, least_contrast=0.4)
    seen = PatchTransform.of(again).inverse(again.values("patches")).reshape(30, 12, 20)
    np.testing.assert_allclose(np.median(seen.std(axis=2), axis=1) / picture.std(), deviation[1], rtol=1e-3)
    hardly = write_patches(tmp_path / "most", picture, **options, least_contrast=9.0)
    assert hardly.n_rows == 360
    for wrong in (-0.1, np.inf):
        with pytest.raises(InputError, match="least_contrast"):
            write_patches(tmp_path / "bad", picture, **options, least_contrast=wrong)


def test_datasets_of_before_there_were_attributes(tmp_path: Path) -> None:
    """They keep the transform in a group of that name."""
    made = PatchTransform.of(write_patches(tmp_path / "d", PHOTOGRAPHS, **SMALL))
    (tmp_path / "d" / "attributes").rename(tmp_path / "d" / "transform")
    write_manifest(tmp_path / "d")
    older = ff.open_dataset(tmp_path / "d")
    assert older.attributes == {}
    for name, value in made.attributes().items():
        np.testing.assert_array_equal(PatchTransform.of(older).attributes()[name], value)
