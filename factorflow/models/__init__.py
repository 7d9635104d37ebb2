"""One file per family: its equations, and nothing of engines, files or clusters.

The configurations are found by a scan: ``models.SparseGFA`` is the class of that name in any module of this
package (or of an entry point of the group ``factorflow.models``) that carries `base.register`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from factorflow.models.configuration import ModelConfig

__all__ = ["configure"]


def configure(options: ModelConfig | Mapping[str, Any]) -> ModelConfig:
    """Return a model configuration from plain values, as read from JSON, YAML or a command line.

    Parameters
    ----------
    options : ModelConfig or mapping of str to Any
        ``{"model": "sparse_gfa", "n_factors": 15, ...}``.

    Returns
    -------
    ModelConfig

    Raises
    ------
    InputError
        Naming an unknown model, an unknown option or a value out of bounds.

    Examples
    --------
    >>> factorflow.models.configure({"model": "sparse_gfa", "n_factors": 15}).n_factors
    15
    """
    from factorflow.errors import InputError
    from factorflow.models.configuration import ModelConfig
    from factorflow.models.registry import find_model, registered_models
    from factorflow.settings import parse_config

    if isinstance(options, ModelConfig):
        if find_model(getattr(options, "model", "")) is not type(options):
            raise InputError(
                "model",
                type(options).__name__,
                "a configuration that is registered: its posterior could not be read",
                "Decorate its class with factorflow.models.registry.register.",
            )
        return options
    if not isinstance(options, Mapping):
        raise InputError(
            "model",
            options.__name__ if isinstance(options, type) else str(options),
            'a configuration, models.SparseGFA(n_factors=10), or a mapping, {"model": "sparse_gfa"}',
            "Make one of it: options go between the brackets.",
        )
    name = options.get("model")
    config = find_model(name) if isinstance(name, str) else None
    if config is None:
        expected = f"one of {', '.join(registered_models())}"
        raise InputError("model", name, expected, "Choose one of these names.")
    return parse_config(config, options)


def _public() -> dict[str, type[ModelConfig]]:
    from factorflow.models.registry import registered_models

    return {config.__name__: config for config in registered_models().values()}


def __getattr__(name: str) -> Any:
    if name.startswith("_") or not name[:1].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    public = _public()
    if name not in public:
        raise AttributeError(f"module {__name__!r} has no configuration {name!r}; it has {', '.join(public)}")
    return public[name]


def __dir__() -> list[str]:
    return sorted([*__all__, *_public()])
