"""`load`: a shared posterior from a folder, a .zip file and URLs; verified, and kept in the cache."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest
from given_posterior import given_family, make_given

import factorflow as ff
from factorflow.api import sharing
from factorflow.errors import InputError

__all__ = ["given_family", "make_given"]


@pytest.fixture
def stored(make_given: Any, given_family: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FACTORFLOW_CACHE", str(tmp_path / "cache"))
    make_given().posterior.save(tmp_path / "p.zarr")
    return tmp_path / "p.zarr"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Serves the folder; lists what was asked for."""
    asked: list[str] = []

    def urlopen(url: str, timeout: float) -> io.BytesIO:
        asked.append(url)
        file = tmp_path / url.partition("?")[0].removeprefix("https://lab.example/")
        if not file.is_file():
            raise HTTPError(url, 404, "Not Found", None, None)  # type: ignore[arg-type]
        return io.BytesIO(file.read_bytes())

    monkeypatch.setattr(sharing, "urlopen", urlopen)
    return asked


def test_a_folder_is_verified(stored: Path) -> None:
    expected = ff.open_posterior(stored).scores().values
    np.testing.assert_array_equal(ff.load(stored).scores().values, expected)
    chunk = next(path for path in (stored / "variational" / "scores" / "c").rglob("*") if path.is_file())
    chunk.write_bytes(chunk.read_bytes()[::-1])
    with pytest.raises(InputError, match="checksum"):
        ff.load(stored)


def test_a_url_of_a_folder(stored: Path, server: list[str], tmp_path: Path) -> None:
    expected = ff.open_posterior(stored).scores().values
    found = ff.load("https://lab.example/p.zarr?key=1")
    np.testing.assert_array_equal(found.scores().values, expected)
    assert Path(str(found.path)).parent == tmp_path / "cache" / "posteriors"
    n_asked = len(server)
    assert n_asked == len([path for path in stored.rglob("*") if path.is_file()])
    assert all(url.endswith("?key=1") for url in server)
    ff.load("https://lab.example/p.zarr?key=1")
    assert len(server) == n_asked + 1  # the root, to see that it is the same one
    assert len(list((tmp_path / "cache" / "posteriors").iterdir())) == 1


@pytest.mark.parametrize("top", [True, False])
def test_zip_files(stored: Path, server: list[str], tmp_path: Path, top: bool) -> None:
    """With the files at the top, or in one folder."""
    where = {"root_dir": stored} if top else {"root_dir": tmp_path, "base_dir": "p.zarr"}
    shutil.make_archive(str(tmp_path / "shared"), "zip", **where)
    expected = ff.open_posterior(stored).scores().values
    for path in (tmp_path / "shared.zip", "https://lab.example/shared.zip"):
        np.testing.assert_array_equal(ff.load(path).scores().values, expected)


def test_what_is_no_posterior(stored: Path, server: list[str], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "zarr.json").write_text('{"attributes": {}}')
    (tmp_path / "broken.zip").write_text("no zip")
    for path in ("https://lab.example/absent", "https://lab.example/other", tmp_path / "broken.zip"):
        with pytest.raises(InputError, match=r"path = .*a posterior"):
            ff.load(path)
    next((stored / "variational").rglob("c/*")).rename(tmp_path / "gone")
    with pytest.raises(InputError, match="404"):
        ff.load("https://lab.example/p.zarr")
    assert list((tmp_path / "cache" / "posteriors").iterdir()) == []
