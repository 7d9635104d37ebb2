"""A tiny family of identities and attributes whose posterior is given, not fitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from factorflow.api import Posterior
from factorflow.data import Dataset
from factorflow.models import registry
from factorflow.models.configuration import ModelConfig
from factorflow.models.contract import Meta, Model, Variable
from factorflow.posterior.assembly import assemble, labels_of
from factorflow.posterior.record import RunRecord
from factorflow.settings import RunOptions

N, P, Q = 60, 3, 2
"""Rows, identities, attributes."""


class FieldsConfig(ModelConfig):
    """Configuration of a family of given identities."""

    model: Literal["given_fields"] = "given_fields"

    def build(self, meta: Meta) -> FieldsModel:
        return FieldsModel(meta)


@dataclass(frozen=True)
class FieldsModel(Model[Any, Any]):
    """Its globals are a record by name; so are what rows are made of."""

    kind: ClassVar[Literal["variational"]] = "variational"

    def variables(self) -> tuple[Variable, ...]:
        def named(name: str, dims: tuple[str, ...], **options: Any) -> Variable:
            return Variable(name, dims, name, lambda given: given[name], **options)

        column = ("identity", "attribute")
        return (
            named("loadings_patches", ("feature_patches", *column)),
            named("present", ("obs", "identity"), rows=True),
            named("attributes", ("obs", *column), rows=True),
            named("attributes_variance", ("obs", *column), rows=True),
        )

    def coords(self, globals_: Any) -> dict[str, list[str]]:
        return {
            "identity": [f"Identity{p + 1}" for p in range(P)],
            "attribute": [f"attribute{q + 1}" for q in range(Q)],
        }


def given_identities(
    dataset: Dataset, loadings: Any, patch: pytest.MonkeyPatch
) -> tuple[Posterior, dict[str, Any]]:
    """Return a posterior of a dataset with a view ``patches``, and what it says of the rows."""
    registry.registered_models()
    patch.setitem(registry._REGISTRY, "given_fields", FieldsConfig)
    rng = np.random.default_rng(0)
    rows = {
        "present": rng.random((N, P)),
        "attributes": rng.standard_normal((N, P, Q)),
        "attributes_variance": rng.random((N, P, Q)),
    }
    config = FieldsConfig()
    model = config.build(dataset.meta())
    begun = RunRecord.begin(
        str(dataset.path),
        dataset.fingerprint,
        config.model_dump(mode="json"),
        RunOptions(),
        {"factorflow": "0.1.0", "numpy": "2"},
    )
    trace = {"stage": ["all"], "iteration": [1], "kept": [False], "seconds": [0.1],
             "infos": [[{"objective": -1.0, "observed": 9.0}]]}  # fmt: skip
    labels = labels_of(dataset, model.meta, model.coords(None))
    chains = {name: values[None] for name, values in rows.items()}
    tree = assemble(
        model,
        labels,
        {"loadings_patches": loadings},
        chains,
        trace,
        begun.ended("complete", "converged", 1),
        None,
    )
    return Posterior(tree), rows
