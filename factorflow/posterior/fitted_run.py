"""`FittedRun`: the record of a run, its model, and the dataset it was fitted to."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from factorflow.core.arguments import NamesWrongArguments
from factorflow.core.block import Meta
from factorflow.errors import InputError
from factorflow.models import configure
from factorflow.models.configuration import ModelConfig
from factorflow.models.contract import Model
from factorflow.posterior.record import RunRecord, decode
from factorflow.posterior.schema import meta_of

if TYPE_CHECKING:
    import xarray as xr

    from factorflow.data import Dataset
    from factorflow.data.aligned_dataset import AlignedDataset


class FittedRun(NamesWrongArguments):
    """The record of one run: its configuration, model, trace, and the dataset it was fitted to.

    Parameters
    ----------
    tree : xarray.DataTree
        The groups of its posterior, whose attributes are the record (``docs/posterior.md``).
    path : str, optional
        The store it was opened from.
    """

    def __init__(self, tree: xr.DataTree, path: str | None = None) -> None:
        self.tree = tree
        self.path = path
        self._dataset: Dataset | None = None
        self._projected_data: AlignedDataset | None = None

    @cached_property
    def run(self) -> dict[str, Any]:
        """The run record by name: configuration, seed, fingerprint and path of the dataset, status, ..."""
        return decode({str(key): value for key, value in self.tree.attrs.items()})

    @property
    def record(self) -> RunRecord:
        """The run record, typed.

        Raises
        ------
        InputError
            When the attributes are damaged.
        """
        return RunRecord.of_attributes(self.run)

    @property
    def kind(self) -> str:
        """Either "variational" or "monte carlo"."""
        return str(self.run["inference_method"])

    @cached_property
    def meta(self) -> Meta:
        """The shape of the dataset as the model saw it."""
        return meta_of(self.run)

    @cached_property
    def config(self) -> ModelConfig:
        """The configuration of the model."""
        return configure(self.run["config"])

    @cached_property
    def model(self) -> Model[Any, Any]:
        """The model, rebuilt from configuration and meta."""
        return self.config.build_fitted(self.meta)

    @property
    def trace(self) -> xr.Dataset:
        """Objective, seconds and stage of every iteration (with ``chain`` for a sampler)."""
        name = "optimization" if self.kind == "variational" else "iterations"
        return self.tree[name].to_dataset().load()

    @property
    def dataset(self) -> Dataset:
        """The dataset that the model was fitted to, where it was; of a projection, that of the new samples.

        It may be set where it has moved: by a dataset, or its path.

        Raises
        ------
        InputError
            When it is no longer there, has changed, or is another one.
        """
        if self._dataset is None:
            self._dataset = self._open_dataset()
        return self._dataset

    @dataset.setter
    def dataset(self, dataset: Dataset) -> None:
        from factorflow.data import open_dataset

        opened = open_dataset(dataset) if isinstance(dataset, str | os.PathLike) else dataset
        self._dataset, self._projected_data = self._check_fingerprint(opened), None

    def _open_dataset(self) -> Dataset:
        from factorflow.data import open_dataset

        try:
            dataset = open_dataset(self.run["dataset"])
        except InputError as error:
            remedy = "Assign its new path to `posterior.dataset`, or add --dataset to a command."
            raise InputError("dataset", self.run["dataset"], "the dataset of the fit", remedy) from error
        return self._check_fingerprint(dataset)

    def _check_fingerprint(self, dataset: Dataset) -> Dataset:
        """Return a dataset that is the one of the fit."""
        if dataset.fingerprint != self.run["fingerprint"]:
            raise InputError(
                "dataset",
                str(dataset.path),
                f"the dataset of the fit, with the fingerprint {self.run['fingerprint']}",
                "The dataset differs from that of the fit: fit again, or give the original dataset.",
            )
        return dataset

    @property
    def views(self) -> tuple[str, ...]:
        """Names of the views, in order."""
        return tuple(view.name for view in self.meta.views)
