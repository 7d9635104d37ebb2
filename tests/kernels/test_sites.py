"""The table of noise sites: no two ranges overlap, and everybody draws in their own."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorflow
from factorflow.data import Holdout
from factorflow.data.simulation.noise import Noise
from factorflow.data.simulation.simulate import SIMULATORS as WORLDS
from factorflow.engine.minibatch import PARTS_SITE
from factorflow.errors import InputError
from factorflow.kernels import sites
from factorflow.kernels.random import Step


def test_no_two_ranges_overlap() -> None:
    for a, b in itertools.combinations(sites.TABLE, 2):
        assert a.first + a.size <= b.first or b.first + b.size <= a.first, (a, b)
    named = [value for value in vars(sites).values() if isinstance(value, sites.Sites)]
    assert sorted(named, key=lambda s: s.first) == list(sites.TABLE)
    assert all(0 <= s.first and s.first + s.size <= 2**16 for s in sites.TABLE)


def test_a_range_ends() -> None:
    part = sites.Sites(10, 3, "three things")
    assert [part[i] for i in range(3)] == [10, 11, 12]
    assert [site in part for site in (9, 10, 12, 13)] == [False, True, True, False]
    for number in (3, -1):
        with pytest.raises(InputError, match="noise sites of three things"):
            part[number]


def constants(package: str) -> dict[str, set[int]]:
    """The sites that the modules of a package name, by the module that defines them."""
    found: dict[str, set[int]] = {}
    root = importlib.import_module(package)
    names = [module.name for module in pkgutil.walk_packages(root.__path__, package + ".")]
    for name in [package, *names]:
        if name.endswith("cuda"):
            continue
        source = Path(importlib.import_module(name).__file__ or "").read_text(encoding="utf-8")
        lines = re.findall(r"^([A-Z_, ]+) = \(?MODELS\[", source, re.M)
        values = vars(importlib.import_module(name))
        found[name] = {values[part.strip()] for line in lines for part in line.split(",")}
        tables = [v for v in values.values() if type(v).__name__ == "Sites" and type(v).__module__ == name]
        several = [site for table in tables for site in astuple(table)]
        assert not found[name].intersection(several)
        assert len(set(several)) == len(several)
        found[name] |= set(several)
    return found


@pytest.mark.parametrize(
    ("family", "n_sites"), [("molten", 1), ("sparse_gfa", 44), ("probit", 6), ("gplvm_cmf", 14)]
)
def test_sites_of_a_family_are_its_own(family: str, n_sites: int) -> None:
    if family == "gplvm_cmf":
        pytest.importorskip("torch")
    found = constants(f"factorflow.models.{family}")
    every = [site for module in found.values() for site in module]
    assert len(every) == len(set(every)) == n_sites
    assert all(site in sites.MODELS for site in every)


def test_sites_of_the_engine() -> None:
    assert PARTS_SITE in sites.ENGINE


@pytest.mark.parametrize("kind", WORLDS)
def test_sites_of_simulators(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = set()
    generator = Noise.generator

    def watched(self: Noise, site: int, tile: int = 0) -> np.random.Generator:
        drawn.add(site)
        return generator(self, site, tile)

    monkeypatch.setattr(Noise, "generator", watched)
    made = WORLDS[kind](100, Noise(0), missing=0.1)
    for view in made.views:
        view.read(0, 50)
    for rows in made.truth.rows.values():
        rows.read(0, 50)
    assert len(drawn) > 2
    assert all(site in sites.SIMULATORS for site in drawn)


def test_too_many_simulated_views(tmp_path: Path) -> None:
    views = {f"v{i}": ("gaussian", 2) for i in range(58)}
    with pytest.raises(InputError, match="noise sites of a simulator and its views"):
        factorflow.simulate("sparse_gfa", tmp_path / "s", 100, views=views, n_factors=1)


def test_sites_of_the_holdout() -> None:
    assert sites.HOLDOUT_ENTRIES[0] == 1024  # the same entries are held out as ever
    with pytest.raises(InputError, match="views of a dataset"):
        Holdout(0.1).mask(15360, 0, 2, 2)


def test_sites_of_draws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dataset = factorflow.simulate(
        "sparse_gfa", tmp_path / "s", 60, views={"a": ("gaussian", 5), "b": ("gaussian", 4)}, n_factors=2
    )
    posterior = factorflow.fit(dataset, {"model": "sparse_gfa", "n_factors": 2, "max_iter": 5})
    drawn: list[int] = []
    uniform = Step.uniform

    def watched(self: Step, site: int, index: Any, words: int = 1) -> Any:
        drawn.append(site)
        return uniform(self, site, index, words)

    monkeypatch.setattr(Step, "uniform", watched)
    posterior.sample(2)
    assert len(set(drawn)) > 3
    assert all(site in sites.DRAWS for site in drawn)
