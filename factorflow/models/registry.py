"""Configurations by name: found by a scan of this package and of entry points, once."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from factorflow.core.flatten import allow_package
from factorflow.core.garbage import rare_collection
from factorflow.models.configuration import ModelConfig

_REGISTRY: dict[str, type[ModelConfig]] = {}

C = TypeVar("C", bound=ModelConfig)


def register(config: type[C]) -> type[C]:
    """Register a configuration under its ``model`` literal, such as ``"sparse_gfa"`` (a class decorator).

    Parameters
    ----------
    config : type
        A subclass of `ModelConfig` with a field ``model``.

    Returns
    -------
    type
        The same class.
    """
    allow_package(config.__module__)
    _REGISTRY[config.model_fields["model"].default] = config
    return config


def registered_models() -> dict[str, type[ModelConfig]]:
    """Return the registered configurations by name.

    Returns
    -------
    dict of str to type
        Subclass of `ModelConfig` by name.

    Examples
    --------
    >>> from factorflow.models.registry import registered_models
    >>> registered_models()["sparse_gfa"].__name__
    'SparseGFA'
    """
    _scan()
    return dict(sorted(_REGISTRY.items()))


def default_family() -> str:
    """Return the name of the family of commands and flows where none is named."""
    return next(name for name, config in registered_models().items() if config.is_default)


def find_model(name: str) -> type[ModelConfig] | None:
    """Return the configuration of a name; None: there is none.

    Only of one that has another name than its folder all families are imported: a quarter of a second.

    Returns
    -------
    type or None
        Subclass of `ModelConfig`.
    """
    if name not in _REGISTRY and name.isidentifier() and (Path(__file__).parent / name).is_dir():
        with rare_collection:
            import_module(f"factorflow.models.{name}")
    return _REGISTRY.get(name) or registered_models().get(name)


@cache
def _scan() -> None:
    """Import the families, once: the folders of `factorflow.models`, and what entry points name."""
    from importlib import metadata
    from pkgutil import iter_modules

    for module in iter_modules([str(Path(__file__).parent)]):
        if module.ispkg:
            import_module(f"factorflow.models.{module.name}")
    for entry in metadata.entry_points(group="factorflow.models"):
        entry.load()
