"""``factorflow patches``: options, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import factorflow as ff
from factorflow.cli import app


def run_json(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for k in range(2):
        np.save(tmp_path / "in" / f"{k}.npy", np.random.default_rng(k).random((30, 40)))
    return tmp_path / "in"


def test_patches_are_written(source: Path, tmp_path: Path) -> None:
    written = run_json(
        "patches", source, "--out", tmp_path / "d", "--size", "5x4", "--sequences", 12, "--frames", 8,
        "--components", 6, "--speed", 0.5, "--rotation", 2, "--seed", 3,
    )  # fmt: skip
    assert written["n_samples"] == 96
    assert written["n_sequences"] == 12
    patches = written["patches"]
    assert (patches["size"], patches["n_components"], patches["whitened"]) == ([5, 4], 6, True)
    assert run_json("inspect", tmp_path / "d", "--verify")["patches"] == patches
    pictures = [np.load(file) for file in sorted(source.iterdir())]
    options: Any = {"size": (5, 4), "n_sequences": 12, "n_frames": 8, "n_components": 6, "seed": 3}
    again = ff.write_patches(tmp_path / "e", pictures, speed=0.5, rotation=2, **options)
    assert again.fingerprint == written["fingerprint"]
    text = CliRunner().invoke(app, ["inspect", str(tmp_path / "d")]).stdout
    assert "patches of 5 x 4 pixels as 6 components" in text


def test_other_options_arrive(source: Path, tmp_path: Path) -> None:
    files = sorted(source.iterdir())
    small = ("--size", 5, "--sequences", 6, "--frames", 8)
    plain = run_json(
        "patches", *files, "--out", tmp_path / "d", *small, "--components", "null", "--no-whiten",
        "--no-own-mean", "--view", "film", "--block-rows", 32, "--persistence", 0.5, "--zoom", 0.01,
        "--most-zoom", 1.2,
    )  # fmt: skip
    assert plain["patches"]["n_components"] == 0
    assert plain["patches"]["own_mean"] is False
    assert plain["patches"]["whitened"] is False
    assert plain["views"][0]["name"] == "film"
    assert plain["block_rows"] == 32
    film = tmp_path / "film.npy"
    np.save(film, np.random.default_rng(0).random((20, 30, 30)))
    new = run_json(
        "patches", film, "--out", tmp_path / "e", "--like", tmp_path / "d", *small[2:], "--every", 2,
        "--kind", "video", "--overwrite",
    )  # fmt: skip
    assert new["patches"] == plain["patches"]


@pytest.mark.parametrize(
    ("options", "parameter"),
    [(("--size", "5by4"), "size"), (("--components", "many"), "n_components"), (("--kind", "film"), "kind")],
)
def test_bad_input(source: Path, tmp_path: Path, options: tuple[str, str], parameter: str) -> None:
    error = run_json("patches", source, "--out", tmp_path / "d", *options, code=2)
    assert parameter in json.dumps(error)
    assert not (tmp_path / "d").exists()
