"""Inputs of `fit` other than datasets: data in memory and files, written to the cache folder."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorflow.data import Dataset, open_dataset, write_dataset
from factorflow.data.ingest.by_feature import FittedLikelihoods
from factorflow.data.ingest.checks import usable_name
from factorflow.data.ingest.tables import is_table, table_stem
from factorflow.errors import InputError, OptionError
from factorflow.models.registry import default_family, find_model, registered_models
from factorflow.storage.checksums import METADATA, SIGNATURE
from factorflow.storage.location import as_location

if TYPE_CHECKING:
    from factorflow.models.configuration import ModelConfig
    from factorflow.posterior.stored_posterior import StoredPosterior

OWN = {"path", "views", "overwrite", "attributes", "unknown"}
"""Parameters of `write_dataset` that `fit` gives itself, or that mean something else there."""

NAME_LENGTH = 40
"""Letters of the names of views in the name of a dataset in the cache."""


def cache_folder() -> Path:
    """Return the folder for what can be made again: ``$FACTORFLOW_CACHE``, or that of the user."""
    own = os.environ.get("FACTORFLOW_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "factorflow"


def split_options(
    data: Any,
    model: ModelConfig | Mapping[str, Any] | None,
    options: Mapping[str, Any],
    option_names: tuple[str, ...],
) -> tuple[ModelConfig | Mapping[str, Any], dict[str, Any]]:
    """Return the model of a fit, and the options of `write_dataset`.

    Parameters
    ----------
    data : object
        What is fitted.
    model : ModelConfig or mapping, optional
        As for `fit`; left out, the default model takes the options that are not those of `write_dataset`.
    options : mapping
        Keywords of `fit` besides its own.
    option_names : tuple of str
        Its own.

    Raises
    ------
    InputError
        For an option that does not exist, or that does nothing here.
    """
    if model is not None and not options:
        return model, {}
    stored, default = is_stored(data), registered_models()[default_family()]
    of_datasets = tuple(name for name in inspect.signature(write_dataset).parameters if name not in OWN)
    modelled = tuple(name for name in default.model_fields if name != "model")
    of_data: dict[str, Any] = {}
    of_model: dict[str, Any] = {}
    for name, value in options.items():
        is_one_name = name == "likelihoods" and isinstance(value, str) and model is None  # for all views
        if name in of_datasets and not stored and not is_one_name:
            of_data[name] = value
        elif name in modelled and model is None:
            of_model[name] = value
        elif name in modelled:
            family = model.get("model") if isinstance(model, Mapping) else getattr(model, "model", model)
            own = find_model(str(family)) or default
            remedy = f"Give it to the model: models.{own.__name__}({name}=...)."
            raise InputError(name, value, "left out beside {model}", remedy, model=...)
        elif name in of_datasets:
            expected = "left out: the dataset is written already"
            remedy = f"Write it again: write_dataset(path, views, {name}=...)."
            raise InputError(name, value, expected, remedy)
        else:
            raise OptionError(name, value, None, "factorflow.fit", (*option_names, *of_datasets, *modelled))
    return default(**of_model) if model is None else model, of_data


def is_stored(data: Any) -> bool:
    """Return whether data are a dataset, or a path for `open_dataset`: of a store, or of nothing at all."""
    if isinstance(data, Dataset):
        return True
    if not isinstance(data, str | os.PathLike):
        return False
    place = as_location(data, "data")
    try:
        document = json.loads((place / METADATA).read_text(encoding="utf-8"))
        return str(document["attributes"].get("schema")).startswith("factorflow.")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return isinstance(place, Path) and not place.exists()


def likelihoods_for(data: Any, posterior: StoredPosterior) -> dict[str, Any]:
    """Return options of `write_dataset` for new samples of a posterior: its likelihoods of their views."""
    views = getattr(data, "mod", data)
    names = list(views) if isinstance(views, Mapping) else []
    if isinstance(data, str | os.PathLike) and is_table(Path(data)):  # its name is that of the view
        names = [usable_name(table_stem(Path(data)))]
    likelihoods: dict[str, Any] = {}
    for view in posterior.meta.value_views:
        if view.name in names:
            whole = likelihoods.get(view.name)
            own = view.likelihood
            likelihoods[view.name] = FittedLikelihoods(whole, **{"": own}) if whole else own
            continue
        default = view.default_likelihood  # features of a view that was cut by likelihoods
        whole = view.name.removesuffix(f"_{default.partition('(')[0]}")
        if default and whole in names:
            others = likelihoods.get(whole, {})
            by_feature = FittedLikelihoods(others if isinstance(others, dict) else {"": others})
            by_feature.update(dict.fromkeys(map(str, posterior.features(view.name)), default))
            likelihoods[whole] = by_feature
    return {"likelihoods": likelihoods} if likelihoods and not is_stored(data) else {}


def as_dataset(data: Any, options: Mapping[str, Any], say: Callable[[str], None]) -> Dataset:
    """Return the dataset of a fit: opened, or written to the cache folder.

    The same data have the same place there, so that fits of them, and of one that is resumed, find it.

    Parameters
    ----------
    data : object
        What `fit` takes.
    options : mapping
        Of `write_dataset`.
    say : callable
        Shows a line: where the dataset is.
    """
    if isinstance(data, Dataset):
        return data
    if is_stored(data):
        return open_dataset(data)
    folder = cache_folder() / "datasets"
    new = folder / f"new-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        expected = f"a folder that can be made ({error.strerror})"
        raise InputError("FACTORFLOW_CACHE", str(folder), expected, "Set it to one.") from error
    try:
        dataset = write_dataset(new, data, **options)
    except InputError as error:
        if error.parameter != "views":
            raise
        remedy = str(error.remedy).replace("views=", "data=")
        raise InputError("data", error.value, error.expected, remedy) from error
    document = json.loads((new / METADATA).read_text(encoding="utf-8"))
    views = "-".join(dataset.views)[:NAME_LENGTH]
    target = folder / f"{views}-{document['attributes'][SIGNATURE][:12]}.zarr"
    say(f"dataset in {target}: delete it when its posteriors need it no more")
    return open_dataset(keep(new, target))


def keep(new: Path, target: Path) -> Path:
    """Give a new folder of the cache its name; where the same is there already, that stays."""
    try:
        new.rename(target)
    except OSError:
        shutil.rmtree(new)
    return target
