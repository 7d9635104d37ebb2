"""What the attributes of a stored posterior say, and how they are read back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from factorflow.errors import InputError
from factorflow.models.contract import Model
from factorflow.shape import Meta, ViewMeta

__all__ = [
    "NAMED",
    "SCHEMA",
    "SCHEMA_VERSION",
    "attributes",
    "decode",
    "group_attributes",
    "is_posterior",
    "meta_of",
    "read_attributes",
]

SCHEMA = "factorflow.posterior"
SCHEMA_VERSION = 1

NAMED = "obs_named"
"""Attribute that says whether the samples have names; those of numbered ones are made, not stored."""

IDENTITY = {"dataset": "fingerprint"}
"""Attribute of a part of the run's identity where it has another name."""


def attributes(model: Model[Any, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the root attributes: plain values, and JSON text for what has parts.

    Parameters
    ----------
    model : Model
        Its kind and meta.
    run : mapping
        ``status``, ``reason``, ``dataset`` (path), ``environment``, ``n_iterations`` and ``identity``: what
        tells this run from any other (``config``, ``seed``, ``holdout``, ``dataset``: its fingerprint,
        ``factorflow``: the version).
    """
    identity = dict(run.get("identity", {}))
    found: dict[str, Any] = {key: value for key, value in run.items() if key != "identity"}
    found |= {IDENTITY.get(str(key), str(key)): value for key, value in identity.items()}
    found |= {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "inference_library": "factorflow",
        "inference_library_version": str(identity.get("factorflow", "unknown")),
        "inference_method": model.kind,
        "meta": asdict(model.meta),
        "identity": list(identity),
    }
    return {
        key: json.dumps(value) if isinstance(value, dict | list | tuple) else value
        for key, value in found.items()
    }


def group_attributes(root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that ArviZ's schema asks for on every group."""
    return {key: root[key] for key in ("created_at", "inference_library", "inference_library_version")}


def decode(root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run record that `attributes` wrote, JSON text parsed and ``identity`` put together again."""
    found = dict(root)
    for key, value in root.items():
        if isinstance(value, str) and value[:1] in ("{", "["):
            found[key] = json.loads(value)
    found["identity"] = {key: found.get(IDENTITY.get(key, key)) for key in found.get("identity", [])}
    return found


def meta_of(record: Mapping[str, Any]) -> Meta:
    """Return the meta of a decoded run record."""
    fields = dict(record["meta"])
    fields["views"] = tuple(ViewMeta(**view) for view in fields["views"])
    fields |= {name: tuple(fields.get(name, ())) for name in ("groups", "group_sizes")}
    return Meta(**fields)


def is_posterior(path: str | os.PathLike[str]) -> bool:
    """Return whether there is a posterior at ``path``, of whatever schema version."""
    try:
        found = json.loads((Path(path) / "zarr.json").read_text(encoding="utf-8"))
        return bool(found["attributes"]["schema"] == SCHEMA)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def read_attributes(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the run record of the posterior at ``path``, without opening it as Zarr.

    Raises
    ------
    InputError
        When there is no posterior, or one of another schema version.
    """
    expected, file = "the path of a factorflow posterior", Path(path) / "zarr.json"
    remedy = "factorflow.fit(..., out=path) or `factorflow fit` makes one."
    try:
        found = json.loads(file.read_text(encoding="utf-8"))["attributes"]
        schema = found.get("schema")
    except FileNotFoundError:
        state = "exists, but it is not a Zarr v3 group" if Path(path).exists() else "does not exist"
        raise InputError("posterior", str(path), expected, f"It {state}. {remedy}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            "posterior", str(path), expected, f"{file} cannot be read ({error}). {remedy}"
        ) from error
    if schema != SCHEMA:
        what = f"a {schema}" if schema else "another Zarr group"
        raise InputError("posterior", str(path), expected, f"It is {what}. {remedy}")
    if found.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"schema version of {path}",
            found.get("schema_version"),
            f"{SCHEMA_VERSION}",
            "Open it with the version of factorflow that wrote it "
            f"({found.get('inference_library_version', 'unknown')}), or fit again.",
        )
    return decode(found)
