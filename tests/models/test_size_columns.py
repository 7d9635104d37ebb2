"""Size factors of a column of the sample metadata: above 0, relative to their mean, asked for anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow as ff
from factorflow.errors import InputError

N, D = 120, 20
SHORT: dict[str, dict[str, Any]] = {
    "poisson_factors": {"model": "poisson_factors", "n_factors": 2, "settling_iter": 5, "max_iter": 5},
    "sparse_gfa": {"model": "sparse_gfa", "n_factors": 2, "warmup_iter": 5, "max_iter": 10},
    "draws": {
        "model": "sparse_gfa",
        "n_factors": 2,
        "warmup_iter": 5,
        "n_draws": 4,
        "n_burn_in": 4,
        "chains": 1,
    },
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Counts of one program whose depth is known, in a column of thousands."""
    rng = np.random.default_rng(3)
    depth = 2000.0 * np.exp(0.8 * rng.standard_normal(N))
    y = rng.poisson(depth[:, None] / 2000 * rng.gamma(3.0, 2.0, D)).astype(float)
    names = [f"s{i}" for i in range(N)]
    frame = pd.DataFrame(y, names, [f"f{i}" for i in range(D)])
    obs = pd.DataFrame({"depth": depth, "kind": rng.choice(["a", "b"], N)}, names)
    folder = tmp_path_factory.mktemp("columns")
    dataset = ff.write_dataset(folder / "d", {"x": frame}, {"x": "poisson"}, obs=obs, block_rows=32)
    return {"frame": frame, "obs": obs, "folder": folder, "dataset": dataset, "size": depth / depth.mean()}


@pytest.mark.thorough
@pytest.mark.parametrize("family", SHORT)
def test_rates_are_relative_to_the_column(family: str, world: dict[str, Any]) -> None:
    posterior = ff.fit(world["dataset"], SHORT[family] | {"size_factors": "depth"})
    np.testing.assert_allclose(posterior.size_factors("x").values, world["size"], rtol=1e-6)
    assert not any("follows the depth" in finding.message for finding in posterior.findings)
    logs = np.log(posterior.predict("x")["mean"].values) - np.log(world["size"])[:, None]
    assert logs.std(axis=0).max() < 0.15  # what is left has no depth in it: that has .8
    threads = ff.fit(
        world["dataset"], SHORT[family] | {"size_factors": {"x": "depth"}}, executor="threads", workers=2
    )
    np.testing.assert_array_equal(threads.scores(), posterior.scores())


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["poisson_factors", "sparse_gfa"])
def test_new_samples_need_the_column(family: str, world: dict[str, Any], tmp_path: Path) -> None:
    """It is relative to the mean of the fit; the run is known by its content."""
    out, config = tmp_path / "p.zarr", SHORT[family] | {"size_factors": "depth"}
    posterior = ff.fit(world["dataset"], config, out=out)
    few = world["frame"][:30]
    there = ff.write_dataset(tmp_path / "a", {"x": few}, {"x": "poisson"}, obs=world["obs"][:30])
    projected = posterior.project(there)
    np.testing.assert_allclose(projected.size_factors("x"), world["size"][:30], rtol=1e-6)
    bare = ff.write_dataset(tmp_path / "b", {"x": few}, {"x": "poisson"})
    with pytest.raises(InputError, match="size_factors = depth: expected a column of the sample metadata"):
        posterior.project(bare)
    given = posterior.project(bare, covariates=world["obs"][:30])
    np.testing.assert_array_equal(given.scores(), projected.scores())
    other = world["obs"].assign(depth=world["obs"]["depth"] + 1.0)
    moved = ff.write_dataset(
        tmp_path / "c", {"x": world["frame"]}, {"x": "poisson"}, obs=other, block_rows=32
    )
    with pytest.raises(InputError, match="a path that does not exist"):
        ff.fit(moved, config, out=out, resume="auto")


@pytest.mark.parametrize("family", ["poisson_factors", "sparse_gfa"])
@pytest.mark.parametrize(
    ("changed", "column", "expected"),
    [
        (0.0, "depth", "size_factors = 0 of sample s7 in column depth: expected a number above 0"),
        (-3.0, "depth", "size_factors = -3 of sample s7"),
        (np.nan, "depth", "size_factors = nan of sample s7"),
        (1.0, "kind", "size_factors = [a-z]+ of sample s0 in column kind: expected a number above 0"),
        (
            1.0,
            "totl",
            "size_factors = totl: expected none, total, median.*, a column .*depth, kind",
        ),
    ],
)
def test_what_is_no_size_is_refused(
    family: str, changed: float, column: str, expected: str, world: dict[str, Any], tmp_path: Path
) -> None:
    obs = world["obs"].copy()
    obs.loc["s7", "depth"] = changed
    dataset = ff.write_dataset(tmp_path / "d", {"x": world["frame"]}, {"x": "poisson"}, obs=obs)
    with pytest.raises(InputError, match=expected):
        ff.fit(dataset, SHORT[family] | {"size_factors": column})
