"""The model card: what it says, and that it is written beside a stored posterior once."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow as ff
from factorflow.data import Dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 8)) + 0.3 * rng.normal(size=(60, 8))
    obs = pd.DataFrame({"age": rng.uniform(30, 60, 60), "a|b*": "x"}, [f"s{i}" for i in range(60)])
    frame = pd.DataFrame(x, obs.index, [f"g{i}" for i in range(8)])
    path = tmp_path_factory.mktemp("card") / "study.zarr"
    return ff.write_dataset(path, {"rna": frame}, obs=obs, groups=["u", "v"] * 30)


def fit(dataset: Dataset, **options: Any) -> ff.Posterior:
    return ff.fit(dataset, n_factors=2, seed=3, max_iter=10, progress=False, **options)


def test_what_a_card_says(dataset: Dataset) -> None:
    posterior = fit(dataset, holdout=0.1)
    card = posterior.card()
    scores = posterior.holdout_scores().loc["rna"]
    share = 100 * float(posterior.variable("variance_explained_total")[0, 0])
    for text in (
        "# Model card: sparse_gfa",
        f"60 samples, 1 view; fitted with factorflow {posterior.run['factorflow']}",
        "| rna | gaussian | 8 |",
        f"`{dataset.fingerprint}`",
        "u (30), v (30)",
        r"age, a\|b\*",
        '"n_factors": 2',
        "Seed 3, device cpu, 10 % of the entries held out.",
        "Complete (max_iter) after 10 iterations.",
        f"{scores['r2']:.4f}",
        "posterior.project(",
        "names and metadata of its samples",
    ):
        assert text in card, text
    assert f"| all | {share:.2f} |" in card
    assert [f"- {finding.kind}" for finding in posterior.findings] == ["- budget"]
    assert r"- The run was ended by max\_iter after 10 iterations" in card
    assert "Nothing was held out" not in card
    assert str(dataset.path) not in card  # where it was says nothing elsewhere


def test_the_same_fit_has_the_same_card(dataset: Dataset) -> None:
    card = fit(dataset).card()
    assert fit(dataset).card() == card
    assert "Nothing was held out: how well it predicts" in card
    assert "Held-out entries" not in card


@pytest.mark.thorough
def test_a_card_is_written_beside_a_stored_posterior(
    dataset: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "p.zarr"
    stored = fit(dataset, out=out)
    assert (out / "README.md").read_text() == stored.card() == fit(dataset).card()
    stored.verify()
    (out / "README.md").write_text("mine")
    fit(dataset, out=out, resume="auto")  # complete: it is opened
    assert (out / "README.md").read_text() == "mine"
    fit(dataset, out=out, overwrite=True)
    assert (out / "README.md").read_text() == stored.card()
    stored.save(tmp_path / "copy.zarr")
    assert (tmp_path / "copy.zarr" / "README.md").read_text() == stored.card()


def test_a_run_that_is_resumed_has_the_card_of_its_end(dataset: Dataset, tmp_path: Path) -> None:
    stopped = fit(dataset, out=tmp_path / "p.zarr", max_minutes=1e-6)
    assert "Partial (max_minutes)" in (tmp_path / "p.zarr" / "README.md").read_text() == stopped.card()
    ff.resume(tmp_path / "p.zarr", progress=False)
    assert "Complete" in (tmp_path / "p.zarr" / "README.md").read_text()


def test_a_card_that_cannot_be_written_is_said(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from factorflow.api import posterior as module

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_file", full)
    with caplog.at_level(logging.WARNING, "factorflow"):
        fit(dataset, out=tmp_path / "p.zarr").verify()
    assert re.search("README.md was not written.*No space left", caplog.text)
