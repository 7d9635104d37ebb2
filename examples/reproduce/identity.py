"""Identities and attributes of simulated sequences: both posteriors, two controls, and what each predicts.

Data by the model's own world (`factorflow.data.simulation.identity_attribute`): sequences of equal length,
the last fifth of them kept back. For each seed and way of fitting: what was found of the truth, the free
energy that each stage ended at, and the log density of a frame given the frames before it in the sequences
kept back, beside that of a normal distribution with the features' means and covariance. The controls of what
is said of identities are a random start, and the learned columns paired across identities at random. What the
true states themselves say of T and lambda is beside what is learned of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from examples.patches.pairs import pair_anew
from examples.reproduce import fit
from factorflow.errors import InputError
from factorflow.storage.publish import write_file

__all__ = ["of_states", "paired_at_random", "recovered", "reproduce"]

Report = Callable[[str], None]

WAYS: dict[str, dict[str, Any]] = {
    "frame": {"factorisation": "frame"},
    "frame_then_chain": {"factorisation": "frame_then_chain"},
    "random start": {"factorisation": "frame", "start": "random"},
    "mean subtracted": {"center": False},
}
"""The last one is given the data less their mean, which is not what is there where no identity is present."""


def reproduce(
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    n_sequences: int = 25,
    length: int = 200,
    n_features: int = 20,
    n_identities: int = 4,
    n_attributes: int = 2,
    seeds: int = 5,
    max_iter: int = 300,
    report: Report | None = None,
) -> dict[str, Any]:
    """Fit simulated sequences in every way, over several seeds.

    Parameters
    ----------
    out : path
        Folder for ``identity.json``; made when it is not there.
    data : path, optional
        Not taken: the data are simulated.
    n_sequences, length : int
        Sequences, the last fifth of which is kept back, and frames of each.
    n_features, n_identities, n_attributes : int
        Shape of the loadings.
    seeds : int
        Seeds 0, 1, ...
    max_iter : int
        Iterations of each stage at most.
    report : callable, optional
        Told what is being run.

    Returns
    -------
    dict
        By seed and way of fitting: `recovered`, ``free_energy`` by stage, ``log_density`` of a frame kept
        back; ``random pairs``, `paired_at_random` of the columns of ``frame_then_chain``; ``true states``,
        `of_states`; and ``normal_log_density``.

    Raises
    ------
    InputError
        When ``data`` is given, there are too few sequences to keep any back, or fewer identities than
        attributes, whose columns cannot be paired anew.
    """
    if data is not None:
        raise InputError("data", str(data), "nothing", "The sequences of this experiment are simulated.")
    if n_sequences < 5:
        raise InputError("n_sequences", n_sequences, "at least 5", "A fifth of them is kept back.")
    if n_identities < n_attributes:
        expected = f"at least {n_attributes}, as many as attributes"
        raise InputError("n_identities", n_identities, expected, "Columns are paired across identities.")
    tell = report or (lambda line: None)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    world = {"n_features": n_features, "n_identities": n_identities, "n_attributes": n_attributes}
    found: dict[str, Any] = {}
    for seed in range(seeds):
        found[str(seed)] = _of_seed(folder, seed, n_sequences, length, world, max_iter, tell)
        write_file(folder / "identity.json", json.dumps(found, indent=2) + "\n")
    return found


def _of_seed(
    folder: Path,
    seed: int,
    n_sequences: int,
    length: int,
    world: dict[str, int],
    max_iter: int,
    tell: Report,
) -> dict[str, Any]:
    """Return what all ways of fitting find in the data of one seed."""
    import factorflow
    from factorflow import models

    n_rows, kept = n_sequences * length, (n_sequences - n_sequences // 5) * length
    simulated = factorflow.simulate(
        "identity_attribute",
        folder / f"simulated_{seed}.zarr",
        n_rows,
        seed=seed + 1000,  # not that of the fits
        n_sequences=n_sequences,
        equal_lengths=True,
        overwrite=True,
        **world,
    )
    y = np.concatenate([simulated.block(i).data["y"] for i in range(simulated.n_blocks)])
    number = np.repeat(np.arange(n_sequences), length).astype(str)

    def written(name: str, rows: slice, less: Any = 0.0) -> Any:
        return factorflow.write_dataset(
            folder / f"{name}_{seed}.zarr",
            {"y": y[rows] - less},
            {"y": "gaussian"},
            sequences=number[rows].tolist(),
            overwrite=True,
        )

    parts, mean = {"shown": slice(0, kept), "new": slice(kept, None)}, y[:kept].mean(axis=0)
    shown, new = (written(name, rows) for name, rows in parts.items())
    less_mean = [written(f"centred_{name}", rows, mean) for name, rows in parts.items()]
    truth = {name: np.asarray(simulated.truth[name].values) for name in ("loadings_y", "present", "dynamics")}
    truth["present"] = truth["present"][:kept]
    truth |= {name: np.asarray(simulated.truth[name].values) for name in ("transition", "precision_y")}
    attributes = np.asarray(simulated.truth["attributes"].values)[:kept]
    rows: dict[str, Any] = {"normal_log_density": _normal(y[:kept], y[kept:])}
    rows["true states"] = of_states(truth, attributes.reshape(kept, *truth["dynamics"].shape), length)
    for way, choices in WAYS.items():
        tell(f"seed {seed}: {way}")
        config = models.configure(
            {
                "model": "identity_attribute",
                "n_identities": world["n_identities"],
                "n_attributes": world["n_attributes"],
                "max_iter": max_iter,
                **choices,
            }
        )
        seen, kept_back = less_mean if way == "mean subtracted" else (shown, new)
        posterior = fit(seen, config, seed=seed)
        trace = posterior.trace
        stages = dict.fromkeys(str(name) for name in trace["stage"].values)
        energy = {s: float(trace["objective"][(trace["stage"] == s).values][-1]) for s in stages}
        density = float(posterior.one_step(dataset=kept_back)["log_density"].mean())
        rows[way] = recovered(posterior, truth) | {"free_energy": energy, "log_density": density}
        if way == "frame_then_chain":
            rows["random pairs"] = {"cosines": paired_at_random(posterior, truth, seed)}
    return rows


def recovered(posterior: Any, truth: dict[str, Any]) -> dict[str, Any]:
    """Return how near a posterior is to the truth of simulated data.

    Parameters
    ----------
    posterior : Posterior
        Of one view ``y``.
    truth : mapping of str to array
        ``loadings_y``, ``present``, ``dynamics``, ``transition`` and ``precision_y``.

    Returns
    -------
    dict
        ``cosines``: of the largest angle between the loadings of each true identity and of the one nearest
        to it; ``accuracy`` of presence; ``transition``, ``dynamics``: largest errors; ``noise`` and
        ``median_noise``: ratio of rho, over features; ``covered``: how many of lambda, of the rows of T, and
        of rho are within their 95 % intervals, and of how many.
    """
    cosines = _cosines(posterior.loadings("y").values, truth["loadings_y"])
    nearest = nearest_identities(posterior, truth)
    present = posterior.identities().values[:, nearest] > 0.5
    dynamics = np.sort(posterior.variable("dynamics").values[nearest], axis=1)
    transition = posterior.variable("transition").values
    ratio = posterior.variable("precision_y").values / truth["precision_y"]
    return {
        "cosines": cosines.max(axis=0).tolist(),
        "accuracy": float((present == truth["present"]).mean()),
        "transition": float(np.abs(transition - truth["transition"]).max()),
        "dynamics": float(np.abs(dynamics - np.sort(truth["dynamics"], axis=1)).max()),
        "noise": float(ratio.mean()),
        "median_noise": float(np.median(ratio)),
        "covered": _covered(posterior, truth, nearest),
    }


def nearest_identities(posterior: Any, truth: dict[str, Any]) -> Integer[np.ndarray, " P"]:
    """Return the identity whose loadings are nearest to those of each true one."""
    return np.asarray(_cosines(posterior.loadings("y").values, truth["loadings_y"]).argmax(axis=0))


def _covered(
    posterior: Any, truth: dict[str, Any], nearest: Integer[np.ndarray, " P"]
) -> dict[str, list[int]]:
    """Return how many parameters are within their intervals, and how many there are; lambda in its order."""
    mean = posterior.variable("dynamics").values[nearest]
    order = np.argsort(mean, axis=1)[..., None]
    of = {
        "dynamics": np.take_along_axis(
            posterior.variable("dynamics_interval").values[nearest], order, axis=1
        ),
        "transition": posterior.variable("transition_interval").values[:, :1],
        "precision_y": posterior.variable("precision_interval_y").values,
    }
    true = truth | {"dynamics": np.sort(truth["dynamics"], axis=1), "transition": truth["transition"][:, :1]}
    inside = {
        name: (bounds[..., 0] <= true[name]) & (true[name] <= bounds[..., 1]) for name, bounds in of.items()
    }
    return {name: [int(hit.sum()), hit.size] for name, hit in inside.items()}


def of_states(truth: dict[str, Any], attributes: Float[np.ndarray, "n P Q"], length: int) -> dict[str, float]:
    """Return the errors of estimates from the true states, in sequences of equal length: what data can tell.

    T from the transitions; lambda from the attributes in pairs of frames in both of which their identity is.
    """
    b = truth["present"].reshape(-1, length, truth["present"].shape[1])
    a = attributes.reshape(*b.shape[:2], *attributes.shape[1:])
    before, now, both = b[:, :-1], b[:, 1:], (b[:, 1:] * b[:, :-1])[..., None]
    share = np.array([now[before == was].mean() for was in (0, 1)])
    early, late = a[:, :-1], a[:, 1:]
    cross, squares = ((both * x).sum(axis=(0, 1)) for x in (early * late, (early**2 + late**2) / 2))
    return {
        "transition": float(np.abs(share - truth["transition"][:, 1]).max()),
        "dynamics": float(np.abs(cross / squares - truth["dynamics"]).max()),
    }


def paired_at_random(posterior: Any, truth: dict[str, Any], seed: int, repeats: int = 20) -> list[float]:
    """Return the cosines of `recovered` after the columns were paired across identities at random.

    Parameters
    ----------
    posterior, truth
        As for `recovered`.
    seed : int
        Of the pairings.
    repeats : int
        Pairings, over which the median of each true identity is taken.
    """
    loadings = posterior.loadings("y").values
    _, p, q = loadings.shape
    found = [
        _cosines(loadings[:, pair_anew(p, q, seed, repeat), np.arange(q)], truth["loadings_y"]).max(axis=0)
        for repeat in range(repeats)
    ]
    return list(map(float, np.median(found, axis=0)))


def _cosines(
    loadings: Float[np.ndarray, "D P Q"], true: Float[np.ndarray, "D R Q"]
) -> Float[np.ndarray, "P R"]:
    """Return the cosine of the largest angle between the columns of every identity and every true one."""
    from scipy.linalg import subspace_angles

    return np.array(
        [
            [np.cos(subspace_angles(loadings[:, i], true[:, j]).max()) for j in range(true.shape[1])]
            for i in range(loadings.shape[1])
        ]
    )


def _normal(shown: Float[np.ndarray, "n D"], new: Float[np.ndarray, "m D"]) -> float:
    """Return the mean log density of frames under a normal distribution fitted to others."""
    from scipy.stats import multivariate_normal

    y = shown.astype(np.float64)
    fitted = multivariate_normal(y.mean(axis=0), np.cov(y.T) + 1e-9 * np.eye(y.shape[1]))
    return float(np.mean(fitted.logpdf(new.astype(np.float64))))
