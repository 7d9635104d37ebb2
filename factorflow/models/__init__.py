"""One file per family: its equations, and nothing of engines, files or clusters.

The configurations are found by a scan: ``models.SparseGFA`` is the class of that name in any module of this
package (or of an entry point of the group ``factorflow.models``) that carries `base.register`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from factorflow.models.base import ModelConfig

__all__ = ["configure"]


def configure(options: Mapping[str, Any]) -> ModelConfig:
    """Return a model configuration from plain values, as read from JSON, YAML or a command line.

    Parameters
    ----------
    options : mapping of str to Any
        ``{"model": "sparse_gfa", "n_factors": 15, ...}``.

    Raises
    ------
    InputError
        Naming an unknown model, an unknown option or a value out of bounds.
    """
    from pydantic import ValidationError

    from factorflow.errors import InputError
    from factorflow.models.base import registered

    known = registered()
    name = options.get("model")
    if name not in known:
        raise InputError("model", name, f"one of {', '.join(known)}", "Choose one of these names.")
    try:
        return known[name].model_validate(dict(options))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or str(name)
        unknown = first["type"] == "extra_forbidden"
        expected = f"an option of {name}" if unknown else first["msg"].removeprefix("Value error, ")
        options_of = ", ".join(field for field in known[name].model_fields if field != "model")
        raise InputError(where, first["input"], expected, f"Options of {name}: {options_of}.") from error


def _public() -> dict[str, type[ModelConfig]]:
    from factorflow.models.base import registered

    return {config.__name__: config for config in registered().values()}


def __getattr__(name: str) -> Any:
    if name.startswith("_") or not name[:1].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    public = _public()
    if name not in public:
        raise AttributeError(f"module {__name__!r} has no configuration {name!r}; it has {', '.join(public)}")
    return public[name]


def __dir__() -> list[str]:
    return sorted([*__all__, *_public()])
