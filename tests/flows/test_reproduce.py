"""The flow that runs a published experiment anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("prefect_api")


@pytest.mark.thorough
def test_probit_experiments_in_small(tmp_path: Path) -> None:
    from examples.reproduce.flow import reproduce

    out = tmp_path / "probit"
    options = {"n_factors": [2], "splits": 1, "sweeps": 6, "burn_in": 2, "long_draws": 0, "figures": False}
    found = reproduce(str(out), options=options)
    rows = found["synthetic"]["scores"]
    assert {row["factors"] for row in rows} == {"binary", "spike_slab", "nonnegative"}
    assert json.loads((out / "probit.json").read_text())["synthetic"]["scores"] == rows


LOCAL = {
    "class": "distributed.LocalCluster",
    "kwargs": {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"},
}


@pytest.mark.slow
def test_on_a_cluster(tmp_path: Path) -> None:
    """Its fits work on workers, which see what they need; the numbers are those of this process."""
    from examples.reproduce.flow import reproduce

    table = tmp_path / "counts_of.csv"
    rows = [f"{a},{b},{(a + 1) * (b + 2)}" for a in range(4) for b in range(3)]
    table.write_text("\n".join(["site,year,count", *rows]))
    options = {"n_components": [1], "n_starts": 1, "splits": 1, "max_iter": 3}
    here = reproduce(str(tmp_path / "here"), str(table), "molten", options)
    there = reproduce(str(tmp_path / "there"), str(table), "molten", options, cluster=LOCAL)
    assert there == here
    assert not list((tmp_path / "there").glob(".scratch-*"))


@pytest.mark.thorough
def test_molten_components_in_small(tmp_path: Path) -> None:
    from examples.reproduce.flow import reproduce

    table = tmp_path / "counts_of.csv"
    rows = [f"{a},{b},{(a + 1) * (b + 2)}" for a in range(4) for b in range(3)]
    table.write_text("\n".join(["site,year,count", *rows]))
    options = {"n_components": [1], "n_starts": 1, "splits": 1, "max_iter": 3}
    found = reproduce(str(tmp_path / "out"), str(table), "molten", options)
    assert found.keys() == {"simulated", "counts_of"}
    assert json.loads((tmp_path / "out" / "molten.json").read_text()) == found


@pytest.mark.thorough
def test_identities_in_small(tmp_path: Path) -> None:
    from examples.reproduce.flow import _rows, reproduce

    options = {"n_sequences": 5, "length": 40, "n_features": 8, "n_identities": 2, "seeds": 1, "max_iter": 4}
    found = reproduce(str(tmp_path / "out"), what="identity", options=options)
    assert json.loads((tmp_path / "out" / "identity.json").read_text()) == found
    rows = {row["way"]: row for row in _rows(found["0"])}
    assert rows.keys() == found["0"].keys() - {"normal_log_density"}
    chain = rows["frame_then_chain"]
    assert chain["smallest cosine"] == min(found["0"]["frame_then_chain"]["cosines"])
    assert chain["log density of new frames"] == found["0"]["frame_then_chain"]["log_density"]
    assert rows["random pairs"]["accuracy of b"] is None


@pytest.mark.thorough
def test_gaussian_processes_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from examples.reproduce import gplvm
    from examples.reproduce.flow import _rows, reproduce

    monkeypatch.setattr(gplvm, "FAMILIES", {"point": {"compare_steps": 5}})
    options = {"families": ["point"], "n_inducing": 8, "steps": 8, "rows": 40}
    found = reproduce(str(tmp_path / "out"), what="gplvm", options=options)
    (row,) = _rows(found["simulated"])
    assert row["held out"] == found["simulated"]["families"]["point"]["held_out"]


@pytest.mark.thorough
def test_figures_can_be_seen_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefect_api: str
) -> None:
    """The pages of Prefect open no files of a worker."""
    from matplotlib.figure import Figure
    from prefect.client.orchestration import get_client

    from examples.reproduce import flow

    out = tmp_path / "out"
    out.mkdir()
    Figure(figsize=(1, 1)).savefig(out / "probit-some_data.png")
    monkeypatch.setattr(flow, "run_experiment", lambda *_: {"some_data": {"scores": [{"k": 1}]}})
    flow.reproduce(str(out))
    with get_client(sync_client=True) as client:
        found = {artifact.key: artifact.data for artifact in client.read_artifacts()}
    run = f"probit-{tmp_path.name}-out".replace("_", "-").lower()
    assert "](data:image/png;base64," in str(found[f"figure-some-data-{run}"])
    assert f"some-data-{run}" in found
