"""What the coupling of a GP-LVM-CMF gains: families of q(z), their bounds and held-out likelihood.

For each set of data and each family (coupled by a process, row by row diagonal and with full covariance; and
the bound as its source prints it, which is not used otherwise) a decoder is learned; a fifth of the rows is
kept back, and scored by importance sampling.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.reproduce import fit, scratch_folder
from factorflow.errors import InputError
from factorflow.storage.publish import write_file

__all__ = ["FAMILIES", "load_set", "reproduce"]

FAMILIES: dict[str, dict[str, Any]] = {
    "point": {},
    "free": {"q_u": "free"},
    "mean_field": {"coupling": "mean_field"},
    "full": {"coupling": "full"},
    "product": {"q_u": "free", "bound": "product"},
}
"""Settings of what is compared; "product" is equation (6) of the source."""

VIEW = "y"
BINARY_ABOVE = 7.5
"""Pixels of scikit-learn's digits (0 to 16) above this are 1."""

Report = Callable[[str], None]


def reproduce(
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    families: Sequence[str] = ("point", "mean_field", "full", "product"),
    n_factors: int = 2,
    n_inputs: int = 2,
    n_inducing: int = 50,
    steps: int = 4000,
    rows: int | None = None,
    report: Report | None = None,
) -> dict[str, Any]:
    """Fit the families to a simulated world, to scikit-learn's digits where they are, and to given data.

    Parameters
    ----------
    out : path
        Folder for ``gplvm.json`` and the posteriors; made when it is not there.
    data : path, optional
        A CSV file of numbers, one sample a row; zeros and ones are taken for Bernoulli data.
    families : sequence of str
        From `FAMILIES`.
    n_factors, n_inputs, n_inducing : int
        Of the model.
    steps : int
        Steps of each fit, a quarter of them with Gaussians of the rows first where there is a process.
    rows : int, optional
        Rows of each set at most.
    report : callable, optional
        Told what is being run.

    Returns
    -------
    dict
        By set and family: ``bound`` a row, ``same_decoders`` (bounds of all couplings on the decoders
        learned), ``held_out`` log likelihood a row and its ``held_out_error``.

    Raises
    ------
    InputError
        When a family is unknown, or the data are no numbers.
    """
    for name in families:
        if name not in FAMILIES:
            raise InputError("families", name, f"some of {', '.join(FAMILIES)}", "Correct the name.")
    folder, tell = Path(out), report or (lambda line: None)
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"n_factors": n_factors, "n_inputs": n_inputs, "n_inducing": n_inducing}
    found: dict[str, Any] = {}
    for name, y in _sets(data, tell).items():
        y = y[:rows]
        found[name] = {"shape": list(y.shape), "families": {}}
        for family in families:
            tell(f"{name}: {family}")
            place = folder / f"{name}_{family}"
            found[name]["families"][family] = _fit(y, {**sizes, **FAMILIES[family]}, steps, place)
            write_file(folder / "gplvm.json", json.dumps(found, indent=1) + "\n")
    return found


def load_set(path: str | os.PathLike[str]) -> NDArray[np.float64]:
    """Return the numbers of a CSV file, one sample a row.

    Raises
    ------
    InputError
        When it holds none.
    """
    import pandas as pd

    try:
        values = pd.read_csv(path).select_dtypes("number").to_numpy(dtype=np.float64)
    except (ValueError, OSError) as error:
        raise InputError("data", str(path), f"a CSV file ({error})", "Save the table as CSV.") from error
    if not values.size:
        raise InputError("data", str(path), "columns of numbers", "One sample a row, one feature a column.")
    return values


def _sets(data: str | os.PathLike[str] | None, tell: Report) -> dict[str, NDArray[np.float64]]:
    """Return the data by name."""
    import factorflow

    with scratch_folder() as scratch:
        world = factorflow.simulate("gplvm", Path(scratch) / "w.zarr", 500, views={VIEW: ("bernoulli", 40)})
        found = {"simulated": world.values(VIEW).astype(np.float64)}
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        tell("digits: left out, since scikit-learn is not installed")
    else:
        found["digits"] = (load_digits().data > BINARY_ABOVE).astype(np.float64)
    return found if data is None else {**found, Path(data).stem: load_set(data)}


def _fit(y: NDArray[np.float64], options: dict[str, Any], steps: int, place: Path) -> dict[str, Any]:
    """Fit four fifths of the rows, score the others, and leave the posterior beside the numbers."""
    order = np.random.default_rng(0).permutation(len(y))
    cut = len(y) // 5
    coupled = options.get("coupling", "gp") == "gp"
    first = steps // 4 if coupled else 0
    config = {"model": "gplvm_cmf", **options, "warmup_iter": first, "max_iter": max(1, steps - first)}
    shown = _write(y[np.sort(order[cut:])], place.with_suffix(".data.zarr"))
    posterior = fit(shown, config, out=place.with_suffix(".zarr"), overwrite=True)
    hidden = _write(y[np.sort(order[:cut])], place.with_suffix(".hidden.zarr"))
    scored = posterior.log_likelihood(hidden)
    facts = posterior.summary()
    return {
        "bound": facts["objective"] / (len(y) - cut),
        "same_decoders": facts["comparison"],
        "held_out": float(scored["log_likelihood"].mean()),
        "held_out_error": float(np.sqrt((scored["log_likelihood_error"] ** 2).sum()) / cut),
    }


def _write(y: NDArray[np.float64], path: Path) -> Any:
    import factorflow
    from factorflow.data import DataWarning

    kind = "bernoulli" if np.isin(y[np.isfinite(y)], (0.0, 1.0)).all() else "gaussian"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # some pixels are white in every image
        return factorflow.write_dataset(path, {VIEW: y}, likelihoods={VIEW: kind}, overwrite=True)
