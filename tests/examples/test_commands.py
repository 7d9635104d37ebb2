"""``python -m examples.patches`` and ``examples.reproduce``: options, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer import Typer
from typer.testing import CliRunner

from examples.patches import write_patches
from examples.patches.__main__ import app
from examples.reproduce.__main__ import app as experiments
from factorflow.cli import app as factorflow


def run_json(*arguments: object, code: int = 0, app: Typer = app) -> Any:
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
        "write", source, "--out", tmp_path / "d", "--size", "5x4", "--sequences", 12, "--frames", 8,
        "--components", 6, "--speed", 0.5, "--rotation", 2, "--seed", 3,
    )  # fmt: skip
    assert written["n_samples"] == 96
    assert written["n_sequences"] == 12
    kept = written["attributes"]
    assert (kept["size"], kept["components"], kept["whitened"]) == ([5, 4], "array (6, 20)", True)
    assert run_json("inspect", tmp_path / "d", "--verify", app=factorflow)["attributes"] == kept
    pictures = [np.load(file) for file in sorted(source.iterdir())]
    options: Any = {"size": (5, 4), "n_sequences": 12, "n_frames": 8, "n_components": 6, "seed": 3}
    again = write_patches(tmp_path / "e", pictures, speed=0.5, rotation=2, **options)
    assert again.fingerprint == written["fingerprint"]
    text = CliRunner().invoke(factorflow, ["inspect", str(tmp_path / "d")]).stdout
    assert "attributes: view, size, whitened" in text


def test_other_options_arrive(source: Path, tmp_path: Path) -> None:
    files = sorted(source.iterdir())
    small = ("--size", 5, "--sequences", 6, "--frames", 8)
    plain = run_json(
        "write", *files, "--out", tmp_path / "d", *small, "--components", "null", "--no-whiten",
        "--no-own-mean", "--view", "film", "--block-rows", 32, "--persistence", 0.5, "--zoom", 0.01,
        "--most-zoom", 1.2,
    )  # fmt: skip
    assert plain["attributes"]["components"] == "array (25, 25)"
    assert plain["attributes"]["own_mean"] is False
    assert plain["attributes"]["whitened"] is False
    assert plain["views"][0]["name"] == "film"
    assert plain["block_rows"] == 32
    film = tmp_path / "film.npy"
    np.save(film, np.random.default_rng(0).random((20, 30, 30)))
    new = run_json(
        "write", film, "--out", tmp_path / "e", "--like", tmp_path / "d", *small[2:], "--every", 2,
        "--kind", "video", "--overwrite",
    )  # fmt: skip
    assert new["attributes"] == plain["attributes"]


@pytest.mark.parametrize(
    ("options", "parameter"),
    [(("--size", "5by4"), "size"), (("--components", "many"), "n_components"), (("--kind", "film"), "kind")],
)
def test_bad_input(source: Path, tmp_path: Path, options: tuple[str, str], parameter: str) -> None:
    error = run_json("write", source, "--out", tmp_path / "d", *options, code=2)
    assert parameter in json.dumps(error)
    assert not (tmp_path / "d").exists()


def run_experiment(*arguments: object, code: int = 0) -> Any:
    return run_json(*arguments, code=code, app=experiments)


@pytest.mark.thorough
def test_experiments(tmp_path: Path) -> None:
    short = ["n_factors=[2]", "splits=1", "sweeps=12", "burn_in=4", "long_draws=0", "figures=false"]
    options = [word for setting in short for word in ("--set", setting)]
    assert run_experiment("probit", "--out", tmp_path / "out", *options)
    assert (tmp_path / "out" / "probit.json").exists()
    assert "nothing" in run_experiment("nothing", "--out", tmp_path / "x", code=2)["error"]["message"]
    wrong = run_experiment("probit", "--out", tmp_path / "x", "--set", "split=1", code=2)["error"]
    assert wrong["parameter"] == "split"
