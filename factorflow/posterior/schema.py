"""The attributes of a stored posterior: writing and reading."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from factorflow.core.block import Meta
from factorflow.core.records import from_record
from factorflow.errors import InputError, OptionText
from factorflow.models.contract import Model
from factorflow.posterior.record import RunRecord, decode, encode
from factorflow.storage.checksums import CHECKSUM_ATTRIBUTES, ChecksumManifest
from factorflow.storage.location import as_location
from factorflow.storage.remote import RemotePath

SCHEMA = "factorflow.posterior"
SCHEMA_VERSION = 4

DAMAGED = OptionText(
    "The posterior is damaged: copy it again, or fit again with {overwrite}.", overwrite=True
)

NAMED = "obs_named"
"""Attribute that says whether the samples have names; those of numbered ones are made, not stored."""


def attributes(model: Model[Any, Any], run: RunRecord) -> dict[str, Any]:
    """Return the root attributes: the record of the run, its model's meta, and what ArviZ asks for."""
    return {
        **run.attributes(),
        **encode({"meta": asdict(model.meta)}),
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "inference_library": "factorflow",
        "inference_library_version": run.identity.factorflow,
        "inference_method": model.kind,
    }


def group_attributes(root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that ArviZ's schema asks for on every group."""
    return {key: root[key] for key in ("created_at", "inference_library", "inference_library_version")}


def meta_of(record: Mapping[str, Any]) -> Meta:
    """Return the meta among decoded attributes."""
    return from_record(Meta, record["meta"])


def is_posterior(path: str | os.PathLike[str] | RemotePath) -> bool:
    """Return whether there is a posterior at ``path``, of whatever schema version."""
    try:
        document = json.loads((as_location(path, "posterior") / "zarr.json").read_text(encoding="utf-8"))
        return bool(document["attributes"]["schema"] == SCHEMA)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def read_attributes(path: str | os.PathLike[str] | RemotePath) -> dict[str, Any]:
    """Read the attributes of the posterior at ``path``, decoded; raises as `read_with_checksums`."""
    return read_with_checksums(path)[0]


def read_with_checksums(path: str | os.PathLike[str] | RemotePath) -> tuple[dict[str, Any], ChecksumManifest]:
    """Read the attributes of the posterior at ``path``, decoded, and its checksums, without opening it.

    Raises
    ------
    InputError
        When there is no posterior, one of another schema version, or one whose root was changed.
    """
    place = as_location(path, "posterior")
    expected, file = "the path of a factorflow posterior", place / "zarr.json"
    remedy = "Make one with factorflow.fit or `factorflow fit`."
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        own_attributes = document["attributes"]
        schema = own_attributes.get("schema")
    except FileNotFoundError:
        state = "exists, but it is not a Zarr v3 group" if place.exists() else "does not exist"
        raise InputError("posterior", str(path), expected, f"It {state}. {remedy}") from None
    except NotADirectoryError:
        raise InputError("posterior", str(path), expected, f"It is a file. {remedy}") from None
    except InputError:  # of an object store: it says what to do
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            "posterior", str(path), expected, f"{file} cannot be read ({error}). {remedy}"
        ) from error
    if schema != SCHEMA:
        what = f"a {schema}" if schema else "another Zarr group"
        raise InputError("posterior", str(path), expected, f"It is {what}. {remedy}")
    if own_attributes.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"schema version of {path}",
            own_attributes.get("schema_version"),
            f"{SCHEMA_VERSION}",
            "Open it with the version of factorflow that wrote it "
            f"({own_attributes.get('inference_library_version', 'unknown')}), or fit again.",
        )
    checksums = ChecksumManifest.from_root(place, document, DAMAGED)
    attributes = {name: value for name, value in own_attributes.items() if name not in CHECKSUM_ATTRIBUTES}
    return decode(attributes), checksums
