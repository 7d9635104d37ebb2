"""`tracking`: what MLflow is told, by a stand-in for it, and by MLflow itself where it is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import factorflow as ff
from factorflow.data import Dataset


class Recorder(ModuleType):
    """Has the functions of MLflow that are called, and keeps what they are told."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.params, self.tags, self.artifacts = dict[str, str](), dict[str, str](), dict[str, Any]()
        self.metrics: list[tuple[int | None, dict[str, float]]] = []
        self.fails = False

    def log_params(self, params: dict[str, Any]) -> None:
        self.params |= {name: str(value) for name, value in params.items()}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if self.fails:
            raise ConnectionError("no answer")
        self.metrics.append((step, metrics))

    def set_tag(self, name: str, value: str) -> None:
        self.tags[name] = value

    def set_tags(self, tags: dict[str, str]) -> None:
        self.tags |= tags

    def log_text(self, text: str, name: str) -> None:
        self.artifacts[name] = text

    def log_dict(self, values: dict[str, Any], name: str) -> None:
        self.artifacts[name] = values


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 8)) + 0.3 * rng.normal(size=(60, 8))
    path = tmp_path_factory.mktemp("tracked") / "study.zarr"
    return ff.write_dataset(path, {"rna": x}, groups=["a%", "b"] * 30)


def fit(dataset: Dataset, **options: Any) -> ff.Posterior:
    return ff.fit(dataset, n_factors=2, seed=3, max_iter=10, holdout=0.1, progress=False, **options)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    monkeypatch.setitem(sys.modules, "mlflow", found)
    return found


@pytest.mark.thorough
def test_what_is_logged(dataset: Dataset, recorder: Recorder) -> None:
    posterior = fit(dataset, on_event=ff.tracking.mlflow_logger())
    objective = posterior.trace["objective"].values.ravel()
    logged = [(step, found["objective"]) for step, found in recorder.metrics if "objective" in found]
    assert logged == list(enumerate(objective.tolist(), start=1))
    assert recorder.metrics[-1][1]["n_iterations"] == 10
    assert recorder.tags["factorflow.reason"] == "max_iter"
    assert recorder.params == {"n_samples": "60"}

    ff.tracking.log_posterior(posterior)
    chosen = {"model": "sparse_gfa", "n_factors": "2", "seed": "3", "holdout": "0.1"}
    assert recorder.params.items() >= {**chosen, "dataset": str(dataset.path)}.items()
    assert recorder.tags["factorflow.fingerprint"] == dataset.fingerprint
    numbers = recorder.metrics[-1][1]
    assert numbers["n_factors"] == len(posterior.factors)
    assert numbers["n_findings"] == len(posterior.findings)
    assert numbers["holdout_rna_r2"] == pytest.approx(posterior.holdout_scores().loc["rna", "r2"], abs=1e-6)
    assert numbers["variance_explained_rna _a__"] > 0.1  # characters that MLflow allows
    assert recorder.artifacts["model_card.md"] == posterior.card()
    assert recorder.artifacts["config.json"] == posterior.run["config"]


def test_a_server_without_an_answer_does_not_end_the_run(dataset: Dataset, recorder: Recorder) -> None:
    recorder.fails = True
    with pytest.warns(RuntimeWarning, match="the log of MLflow ends here: no answer") as said:
        posterior = fit(dataset, on_event=ff.tracking.mlflow_logger())
    assert posterior.run["n_iterations"] == 10
    assert len(said) == 1


def test_without_mlflow(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    for call in (ff.tracking.mlflow_logger, lambda: ff.tracking.log_posterior(fit(dataset))):
        with pytest.raises(ff.InputError, match=r"factorflow\[mlflow\]"):
            call()


@pytest.mark.filterwarnings("default")  # of MLflow's own packages
def test_mlflow_itself(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_experiment("factors")
    with mlflow.start_run() as begun:
        ff.tracking.log_posterior(fit(dataset, on_event=ff.tracking.mlflow_logger()))
    client = mlflow.MlflowClient()
    run = client.get_run(begun.info.run_id)
    assert run.data.params["n_factors"] == "2"
    assert run.data.metrics["n_iterations"] == 10
    assert [m.step for m in client.get_metric_history(run.info.run_id, "objective")] == list(range(1, 11))
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"config.json", "model_card.md"}
