"""Simulated datasets of any size, written block by block, with the truth kept beside the data."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, get_type_hints

from factorflow.data.simulation.factor_models import binary, sparse_gfa
from factorflow.data.simulation.identity_attribute import identity_attribute
from factorflow.data.simulation.latent import gplvm
from factorflow.data.simulation.noise import Noise, Simulation
from factorflow.data.simulation.poisson_factors import poisson_factors
from factorflow.data.simulation.sequence import sequence
from factorflow.data.simulation.table import table
from factorflow.data.store.dataset import Dataset, open_dataset
from factorflow.data.store.layout import choose_block_rows, read_root
from factorflow.data.store.rows import Columns, RowNames
from factorflow.data.store.view_source import is_long_table
from factorflow.data.store.writer import write_store
from factorflow.errors import InputError
from factorflow.storage.local import check_space
from factorflow.storage.location import as_location
from factorflow.storage.publish import new_directory

SIMULATORS: dict[str, Callable[..., Simulation]] = {
    "sparse_gfa": sparse_gfa,
    "binary": binary,
    "table": table,
    "sequence": sequence,
    "identity_attribute": identity_attribute,
    "gplvm": gplvm,
    "poisson_factors": poisson_factors,
}
"""By name: (n_samples, Noise, **settings) -> Simulated."""

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "probit": ("binary", {}),
    "molten_poisson": ("table", {"response": "poisson"}),
    "molten_normal": ("table", {"response": "gaussian"}),
    "gplvm_cmf": ("gplvm", {}),
}
"""Families whose simulator has another name: simulator, and settings that suit."""


def simulate(
    kind: str,
    path: str | os.PathLike[str],
    n_samples: int = 1000,
    *,
    seed: int = 0,
    block_rows: int | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> Dataset:
    """Simulate a dataset of any size and open it.

    Parameters
    ----------
    kind : str
        A module of `factorflow.data.simulation`: "sparse_gfa" or "binary" (`factor_models`), "table" (a long
        table with categorical variables), "sequence", "identity_attribute", "gplvm" (neural decoders of a
        smooth function of inputs, `latent`) or "poisson_factors" (programs of counts); or the name of a
        family of models ("probit").
    path : path-like, or URL
        Directory to make.
    n_samples : int
        Rows.
    seed : int
        The same seed gives the same data, whatever ``block_rows`` is.
    block_rows, overwrite
        As for `factorflow.data.write_dataset`.
    **settings
        Those of the simulator.

    Returns
    -------
    Dataset
        With the truth in its group ``truth`` (`Dataset.truth`).

    Raises
    ------
    InputError
        When there is no such simulator or setting, or the disk is too small.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     views = {"rna": ("gaussian", 20)}
    ...     dataset = simulate("sparse_gfa", f"{folder}/toy", 100, views=views, n_factors=3)
    ...     dataset.truth["scores"].shape
    (100, 3)
    """
    simulator, suited = find_simulator(kind)
    settings = {**suited, **settings}
    if not isinstance(n_samples, int) or n_samples < 2:
        raise InputError("n_samples", n_samples, "an integer >= 2", "A factor model needs several samples.")
    if not 0 <= seed < 2**64:
        raise InputError("seed", seed, "an integer from 0 to 2^64 - 1", "For example 0.")
    parameters = list(inspect.signature(simulator).parameters)[2:]
    unknown = sorted(set(settings) - set(parameters))
    if unknown:
        near = get_close_matches(unknown[0], ["n_samples", *parameters], n=1)
        remedy = f"Did you mean {near[0]}?" if near else "Check the spelling."
        expected = f"a setting of {kind}: n_samples, {', '.join(parameters)}"
        raise InputError(unknown[0], settings[unknown[0]], expected, remedy)
    simulated = _simulate(simulator, n_samples, seed, settings)
    target = as_location(path)
    row_bytes = sum(view.work_bytes for view in simulated.views)
    with new_directory(target, overwrite, read_root) as partial:
        check_space(partial, n_samples * row_bytes)
        columns = Columns(
            RowNames(n_samples), simulated.codes, simulated.groups, simulated.n_sequences, simulated.obs
        )
        rows = choose_block_rows(n_samples, row_bytes, block_rows, table=is_long_table(simulated.views))
        write_store(partial, simulated.views, columns, rows, truth=simulated.truth)
    return open_dataset(target)


def find_simulator(kind: str) -> tuple[Callable[..., Simulation], dict[str, Any]]:
    """Return the simulator of a name, and the settings that a family of that name brings."""
    name, suited = FAMILIES.get(kind, (kind, {}))
    if name not in SIMULATORS:
        kinds = ", ".join([*SIMULATORS, *FAMILIES])
        raise InputError("kind", kind, f"one of {kinds}", "Choose one of them.")
    return SIMULATORS[name], suited


def _simulate(
    simulator: Callable[..., Simulation], n_samples: int, seed: int, settings: dict[str, Any]
) -> Simulation:
    """Call a simulator; a setting of another type than it takes is named."""
    try:
        return simulator(n_samples, Noise(seed), **settings)
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError):
        from pydantic import TypeAdapter, ValidationError

        hints = get_type_hints(simulator)
        for name, value in settings.items():
            try:
                TypeAdapter(hints[name]).validate_python(value)
            except ValidationError as error:
                expected = error.errors()[0]["msg"].removeprefix("Input should be ")
                raise InputError(name, value, expected, "Correct it.") from None
        raise
