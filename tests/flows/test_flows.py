"""The flows in this process, on a Prefect server of the tests' own, with the local executor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorflow.errors import InputError

pytestmark = pytest.mark.usefixtures("prefect_api")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two views of 60 samples with 2 factors, as one file."""
    return write_source(tmp_path / "source.npz", seed=0)


def write_source(path: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((60, 2))
    views = {
        f"Y_{name}": scores @ rng.standard_normal((2, d)) + rng.standard_normal((60, d))
        for name, d in (("a", 12), ("b", 8))
    }
    np.savez(path, view_names=["a", "b"], likelihoods=["gaussian", "gaussian"], **views)
    return path


def options(**more: Any) -> Any:
    from flows.parameters import RunOptions

    return RunOptions(executor="local", max_iter=20, **more)


def model(n_factors: int = 2) -> Any:
    from factorflow.models import configure

    return configure({"model": "sparse_gfa", "n_factors": n_factors})


def artifacts(api_url: str) -> dict[str, Any]:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return {artifact.key: artifact for artifact in client.read_artifacts()}


def test_fit_writes_everything_once(source: Path, tmp_path: Path, prefect_api: str) -> None:
    from flows.fit import fit

    out = tmp_path / "out"
    outcome = fit(str(source), str(out), model=model(), run=options())
    assert outcome["done"] == "ingested, fitted"
    assert "<html" in (out / "report.html").read_text().lower()
    assert json.loads((out / "summary.json").read_text())["factors"]
    assert {"progress", "bound", "factors", "report"} <= set(artifacts(prefect_api))

    again = fit(str(source), str(out), model=model(), run=options())
    assert again["done"] == "nothing to do"
    with pytest.raises(InputError, match="out"):
        fit(str(source), str(out), model=model(), run=options(seed=1))


def test_refresh_does_only_what_is_needed(source: Path, tmp_path: Path) -> None:
    from flows.refresh import refresh

    out = tmp_path / "out"
    done = []
    for seed in (0, 0, 1):
        write_source(source, seed)
        done.append(refresh(str(source), str(out), model=model(), run=options())["done"])
    done.append(refresh(str(source), str(out), model=model(3), run=options())["done"])
    assert done == ["ingested, fitted", "nothing to do", "ingested, fitted", "fitted"]


def test_select_ranks_by_held_out_score(source: Path, tmp_path: Path, prefect_api: str) -> None:
    from flows.select import select

    out = tmp_path / "out"
    found = select(
        str(source), str(out), {"n_factors": [1, 2]}, model=model(), seeds=[0, 1], run=options(holdout=0.2)
    )
    assert found["best"]["n_factors"] == 2
    assert [row["n_seeds"] for row in found["table"]] == [2, 2]
    assert len(list((out / "trials").glob("*.zarr"))) == 4
    assert "selection" in artifacts(prefect_api)


def test_bad_input_is_not_retried(source: Path, tmp_path: Path) -> None:
    from flows.fit import fit

    with pytest.raises(InputError, match="n_factors"):
        fit(str(source), str(tmp_path / "out"), model=model(1000), run=options())
    assert not (tmp_path / "out" / "posterior.zarr").exists()


def test_the_form_offers_the_models_with_bounds() -> None:
    from flows.fit import fit

    schema = fit.parameters.model_dump()
    assert "sparse_gfa" in json.dumps(schema["properties"]["model"])
    chosen = schema["definitions"]["SparseGFA"]
    assert chosen["additionalProperties"] is False
    assert chosen["properties"]["n_factors"]["description"]
