"""A tiny family whose posterior is given, not fitted, so that every number of it is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

import factorflow
from factorflow.api import Posterior
from factorflow.data import Dataset
from factorflow.models import registry
from factorflow.models.configuration import ModelConfig
from factorflow.models.contract import Meta, Model, Variable
from factorflow.posterior.assembly import assemble, labels_of
from factorflow.posterior.record import RunRecord
from factorflow.settings import RunOptions

ENVIRONMENT = {"factorflow": "0.1.0", "numpy": np.__version__}
WIDTHS = {"rna": ("gaussian", 12), "mutation": ("bernoulli", 7)}


class GivenConfig(ModelConfig):
    """Configuration of the tiny family."""

    model: Literal["given"] = "given"
    n_factors: int = 3

    def build(self, meta: Meta) -> GivenModel:
        return GivenModel(meta, self)


@dataclass(frozen=True)
class GivenModel(Model[Any, Any]):
    """Its globals are a record by name; so are what rows are made of."""

    config: GivenConfig
    kind: ClassVar[Literal["variational"]] = "variational"

    def variables(self) -> tuple[Variable, ...]:
        def named(name: str, dims: tuple[str, ...], doc: str, **options: Any) -> Variable:
            return Variable(name, dims, doc, lambda given: given[name], **options)

        table = [
            named("scores", ("obs", "factor"), "E[z]", rows=True),
            named("scores_variance", ("obs", "factor"), "Var z", rows=True),
        ]
        for view in self.meta.views:
            feature = f"feature_{view.name}"
            table += [
                named(f"loadings_{view.name}", (feature, "factor"), "E[w]"),
                named(f"loadings_variance_{view.name}", (feature, "factor"), "Var w"),
                named(f"inclusion_{view.name}", (feature, "factor"), "P(s = 1)"),
                named(f"intercept_{view.name}", (feature,), "b"),
            ]
        return tuple(table)

    def coords(self, globals_: Any) -> dict[str, list[str]]:
        return {"factor": self.factor_names(self.config.n_factors)}

    def predict(self, block: Any, rows: Any, record: Any, view: str) -> tuple[Any, Any]:
        x = rows["scores"] @ record[f"loadings_{view}"].T + record[f"intercept_{view}"]
        if view == "mutation":
            mean = 1 / (1 + np.exp(-x))
            return mean, np.sqrt(mean * (1 - mean))
        return x, np.full(x.shape, 0.5)


@pytest.fixture
def given_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the tiny family for one test (and not for the contract suite)."""
    registry.registered_models()
    monkeypatch.setitem(registry._REGISTRY, "given", GivenConfig)


@dataclass(frozen=True)
class Given:
    """A posterior with what it was made of."""

    posterior: Posterior
    dataset: Dataset
    model: GivenModel
    record: dict[str, Any]
    rows: dict[str, Any]
    trace: dict[str, Any]
    run: RunRecord


def truth(n: int, n_factors: int, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return record and rows of the tiny family."""
    rng = np.random.default_rng(seed)
    rows = {"scores": rng.normal(size=(n, n_factors)), "scores_variance": np.full((n, n_factors), 0.01)}
    record: dict[str, Any] = {}
    for view, (_, d) in WIDTHS.items():
        inclusion = (rng.random((d, n_factors)) < 0.6).astype(float)
        record[f"inclusion_{view}"] = inclusion
        record[f"loadings_{view}"] = inclusion * rng.normal(size=(d, n_factors)) * [2.0, 1.0, 0.5][:n_factors]
        record[f"loadings_variance_{view}"] = np.full((d, n_factors), 0.04)
        record[f"intercept_{view}"] = rng.normal(size=d)
    return record, rows


@pytest.fixture(scope="session")
def make_given(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Given]:
    """Return a function that makes a dataset of the tiny family and its true posterior."""
    import pandas as pd

    def make(seed: int = 0, n: int = 70, n_factors: int = 3, scores: Any = None) -> Given:
        record, rows = truth(n, n_factors, seed)
        rng = np.random.default_rng(seed + 1)
        x = {v: rows["scores"] @ record[f"loadings_{v}"].T + record[f"intercept_{v}"] for v in WIDTHS}
        rna = (x["rna"] + 0.5 * rng.normal(size=x["rna"].shape)).astype(np.float32)
        rna[rng.random(rna.shape) < 0.1] = np.nan
        mutation = (rng.random(x["mutation"].shape) < 1 / (1 + np.exp(-x["mutation"]))).astype(np.int8)
        samples = [f"sample {i}" for i in range(n)]
        obs = pd.DataFrame(
            {"age": 50 + 10 * rows["scores"][:, 0], "sex": ["f" if i % 2 else "m" for i in range(n)]},
            index=samples,
        )
        path = tmp_path_factory.mktemp("given") / "data.zarr"
        dataset = factorflow.write_dataset(
            path,
            views={"rna": rna, "mutation": mutation},
            likelihoods={"rna": "gaussian", "mutation": "bernoulli"},
            samples=samples,
            features={v: [f"{v} {j}" for j in range(d)] for v, (_, d) in WIDTHS.items()},
            groups=["a"] * (n // 2) + ["b"] * (n - n // 2),
            obs=obs,
            block_rows=32,
        )
        config = GivenConfig(n_factors=n_factors)
        model = config.build(dataset.meta())
        trace = {
            "stage": ["warm-up"] * 3 + ["sparse"] * 2,
            "iteration": [1, 2, 3, 4, 5],
            "kept": [False] * 5,
            "seconds": [0.1, 0.2, 0.3, 0.4, 0.5],
            "infos": [[{"objective": -100.0 + i, "observed": 800.0}] for i in range(5)],
        }
        options = RunOptions(seed=seed, holdout=0.1 if scores else 0.0)
        begun = RunRecord.begin(
            str(dataset.path), dataset.fingerprint, config.model_dump(mode="json"), options, ENVIRONMENT
        )
        run = begun.ended("complete", "converged", 5)
        labels = labels_of(dataset, model.meta, model.coords(None))
        chains = {name: values[None] for name, values in rows.items()}
        posterior = Posterior(assemble(model, labels, record, chains, trace, run, scores))
        return Given(posterior, dataset, model, record, rows, trace, run)

    return make


@pytest.fixture
def given(make_given: Callable[..., Given], given_family: None) -> Given:
    """The tiny posterior."""
    return make_given(
        scores={"rna": {"n_entries": 80.0, "r2": 0.5}, "mutation": {"n_entries": 40.0, "r2": 0.2, "auc": 0.8}}
    )
