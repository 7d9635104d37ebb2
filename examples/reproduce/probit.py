"""The experiments of the probit factor models' source, run anew [1]_: scores, pictures, and long chains.

For each set of binary data, model and number of factors: five random splits (a tenth of the entries held
out, seeds 0-4), 120 sweeps of one chain of which 30 are dropped, mean negative log-predictive probability
(bits) of shown and held-out entries. Priors as in the source except that a and b have flat ones (as printed
they trap factors that are on or off everywhere).

Beside them, what the source does not have: four long chains under proper priors, with R-hat.

References
----------
.. [1] A. Pakman, B. Shababo, L. Paninski, "Bayesian sparse unsupervised learning for probit models of binary
   data", section 5, figures 1-4.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.reproduce import fit, scratch_folder
from factorflow.errors import InputError
from factorflow.storage.publish import write_file

__all__ = ["FACTORS", "load_set", "mnlp", "reproduce", "synthetic"]

FACTORS = ("binary", "spike_slab", "nonnegative")
"""Models 1, 2 and 3 of the source."""

VIEW = "binary"
SNAPSHOTS = (1, 2, 5, 10, 50)
"""Sweeps that figure 1 shows."""

Report = Callable[[str], None]


def reproduce(
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    n_factors: Sequence[int] = (1, 2, 3, 4, 5, 7, 10),
    splits: int = 5,
    sweeps: int = 120,
    burn_in: int = 30,
    sampler: str | None = None,
    long_factors: int = 3,
    long_draws: int = 2000,
    figures: bool = True,
    report: Report | None = None,
) -> dict[str, Any]:
    """Run the experiments on the synthetic set and, where it is given, on other binary data.

    Parameters
    ----------
    out : path
        Folder for ``probit.json`` and the figures; made when it is not there.
    data : path, optional
        A CSV file of zeros and ones (observations in rows, empty where missing), or a folder with
        ``binary/*.csv``.
    n_factors : sequence of int
        Numbers of factors.
    splits : int
        Random splits.
    sweeps, burn_in : int
        Sweeps of a chain, and how many of them are dropped.
    sampler : str, optional
        For all models: "hmc" is the source's, with its travel time of 23. Left out: each model's default.
    long_factors, long_draws : int
        Factors and draws (of each of four chains, half as many dropped before) of the long chains; 0: none.
    figures : bool
        Whether to draw figures 1-4 and the traces.
    report : callable, optional
        Told what is being run.

    Returns
    -------
    dict
        By set: ``scores`` (one row for model and number of factors), ``baseline`` and ``long_chains``.

    Raises
    ------
    InputError
        When ``data`` holds no binary table.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    tell = report or (lambda line: None)
    found: dict[str, Any] = {}
    for name, x in {"synthetic": synthetic(), **load_set(data)}.items():
        with scratch_folder() as scratch:
            dataset = _write(x, Path(scratch) / "data.zarr")
            protocol = {"sampler": sampler, "n_burn_in": burn_in, "n_draws": sweeps - burn_in}
            tell(f"{name}: {splits} splits")
            rows = _short_runs(dataset, x, n_factors, splits, protocol, tell)
            found[name] = {"shape": list(x.shape), "baseline": _baseline(x, splits), "scores": rows}
            if long_draws:
                tell(f"{name}: long chains, K = {long_factors}")
                found[name]["long_chains"] = _long_runs(dataset, x, long_factors, long_draws)
            if figures and name == "synthetic":
                _draw_matrices(dataset, x, folder / "probit-figure-1.png")
    write_file(folder / "probit.json", json.dumps(found, indent=1) + "\n")
    if figures:
        for name, result in found.items():
            _draw_scores(name, result, folder / f"probit-{name}.png")
    return found


def synthetic(seed: int = 0) -> NDArray[np.float64]:
    """Return the source's synthetic set (600, 16): three random vectors, 200 times each, a tenth flipped."""
    rng = np.random.default_rng(seed)
    x = np.repeat(rng.choice([-1, 1], (16, 3)), 200, axis=1)
    x = np.where(rng.random(x.shape) < 0.1, -x, x)
    return np.ascontiguousarray(x.T > 0, dtype=np.float64)


def load_set(data: str | os.PathLike[str] | None) -> dict[str, NDArray[np.float64]]:
    """Return the binary tables of a CSV file or a folder, by name; none without a path."""
    import pandas as pd

    if data is None:
        return {}
    path = Path(data)
    files = [path] if path.is_file() else sorted([*path.glob("*.csv"), *path.glob("binary/*.csv")])
    tables = {}
    for file in files:
        try:
            table = pd.read_csv(file)
        except ValueError as error:  # not text, not a table, or empty
            raise InputError("data", str(file), f"a CSV file ({error})", "Save the table as CSV.") from error
        values = table.select_dtypes("number").to_numpy(dtype=np.float64)
        if values.size and np.isin(values[np.isfinite(values)], (0.0, 1.0)).all():
            tables[file.stem] = values
    if not tables:
        expected = "a CSV file of zeros and ones, or a folder with some"
        raise InputError("data", str(path), expected, "One observation a row, one feature a column.")
    return tables


def mnlp(x: NDArray[np.float64], p: NDArray[np.float64], where: NDArray[np.bool_]) -> float:
    """Return the mean negative log2 of the probability that ``p`` (of a 1) gives to the entries ``where``."""
    chance = np.clip(np.where(x == 1.0, p, 1.0 - p)[where], 1e-12, 1.0)
    return float(-np.log2(chance).mean())


def _write(x: NDArray[np.float64], path: Path) -> Any:
    import factorflow

    return factorflow.write_dataset(path, views={VIEW: x}, likelihoods={VIEW: "bernoulli"})


def _fit(dataset: Any, seed: int, holdout: float, **settings: Any) -> Any:
    """Fit in memory, under the source's travel time where it is HMC."""
    from factorflow.models import ProbitFactors

    if settings.get("sampler") == "hmc":
        settings["travel_time"] = 23.0
    if settings.get("sampler") == "collapsed" and settings["factors"] != "binary":
        settings["sampler"] = None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is improper.*", UserWarning)
        return fit(dataset, ProbitFactors(**settings), seed=seed, holdout=holdout)


def _shown(x: NDArray[np.float64], seed: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which observed entries are shown and which held out in a split."""
    from factorflow.data import Holdout

    hidden = Holdout(0.1, seed).mask(0, 0, *x.shape)
    return np.isfinite(x) & ~hidden, np.isfinite(x) & hidden


def _probability(posterior: Any) -> NDArray[np.float64]:
    """Return p(x = 1) of all entries by chain, (chain, T, N)."""
    values = posterior.tree["averages"][f"probability_{VIEW}"].values
    return np.asarray(values, dtype=np.float64)


def _short_runs(
    dataset: Any, x: NDArray[np.float64], n_factors: Sequence[int], splits: int, protocol: Mapping[str, Any],
    tell: Report,
) -> list[dict[str, Any]]:  # fmt: skip
    rows = []
    for factors in FACTORS:
        for k in n_factors:
            tell(f"  {factors}, K = {k}")
            train, test = [], []
            for split in range(splits):
                posterior = _fit(
                    dataset, split, 0.1, factors=factors, n_factors=k, chains=1, priors="improper",
                    variance_prior=(1.0, 0.0), predictive="all", **protocol,
                )  # fmt: skip
                p = _probability(posterior)[0]
                shown, hidden = _shown(x, split)
                train.append(mnlp(x, p, shown))
                test.append(mnlp(x, p, hidden))
            scores = {**_moments("train", train), **_moments("test", test)}
            rows.append({"factors": factors, "n_factors": k, **scores})
    return rows


def _moments(name: str, values: Sequence[float]) -> dict[str, float]:
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {f"{name}_mnlp": float(np.mean(values)), f"{name}_mnlp_sd": spread}


def _baseline(x: NDArray[np.float64], splits: int) -> dict[str, float]:
    """Return the test MNLP of the share of ones among the shown entries."""
    values = []
    for split in range(splits):
        shown, hidden = _shown(x, split)
        values.append(mnlp(x, np.full(x.shape, x[shown].mean()), hidden))
    return _moments("test", values)


def _long_runs(dataset: Any, x: NDArray[np.float64], n_factors: int, draws: int) -> dict[str, Any]:
    """Return, by model, test MNLP of each of four chains of split 0, and R-hat and ESS of scalars."""
    import arviz_stats

    measures: Any = arviz_stats
    found = {}
    for factors in FACTORS:
        posterior = _fit(
            dataset, 0, 0.1, factors=factors, n_factors=n_factors, chains=4, n_burn_in=draws // 2,
            n_draws=draws, predictive="all",
        )  # fmt: skip
        _, hidden = _shown(x, 0)
        stats = posterior.tree["sample_stats"].to_dataset()
        names = [name for name in ("lp", "variance", "density", "monitor_active") if name in stats]
        found[factors] = {
            "test_mnlp": [mnlp(x, p, hidden) for p in _probability(posterior)],
            "r_hat": {name: float(measures.rhat(stats[[name]])[name]) for name in names},
            "ess_bulk": {name: float(measures.ess(stats[[name]], method="bulk")[name]) for name in names},
        }
    return found


# Figures


def _draw_matrices(dataset: Any, x: NDArray[np.float64], path: Path) -> None:
    """Draw figure 1: Phi(z s) of the model with binary factors, K = 5, at a few sweeps, and the data."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from scipy.special import ndtr

    posterior = _fit(
        dataset, 0, 0.0, factors="binary", n_factors=5, chains=1, n_burn_in=0, n_draws=max(SNAPSHOTS),
        store_factors=True,
    )  # fmt: skip
    group = posterior.tree["posterior"]
    z, o = group[f"loadings_{VIEW}"].values[0], group[f"intercept_{VIEW}"].values[0]
    s = group["scores_draws"].values[0]
    pictures = {f"sweep {m}": ndtr(s[m - 1] @ z[m - 1].T + o[m - 1]) for m in SNAPSHOTS}
    figure, axes = plt.subplots(1, len(pictures) + 1, figsize=(2 * (len(pictures) + 1), 5), sharey=True)
    for axis, (title, values) in zip(axes, {**pictures, "data": x}.items(), strict=True):
        axis.imshow(values, aspect="auto", cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
        axis.set_title(title)
        axis.set_xticks([])
    axes[0].set_ylabel("observation")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_scores(name: str, result: Mapping[str, Any], path: Path) -> None:
    """Draw figures 2-4: MNLP of shown and held-out entries over K, and the long chains beside them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    chains = result.get("long_chains", {})
    figure, axes = plt.subplots(1, 3 if chains else 2, figsize=(13 if chains else 9, 4))
    for axis, part, title in zip(axes, ("train", "test"), ("shown", "held out"), strict=False):
        for factors in FACTORS:
            rows = [row for row in result["scores"] if row["factors"] == factors]
            k = [row["n_factors"] for row in rows]
            mean, spread = [row[f"{part}_mnlp"] for row in rows], [row[f"{part}_mnlp_sd"] for row in rows]
            axis.errorbar(k, mean, yerr=spread, marker="o", capsize=3, label=factors)
        axis.set_xlabel("factors (K)")
        axis.set_title(f"{name}: {title} entries")
    axes[0].set_ylabel("MNLP (bits)")
    axes[1].axhline(result["baseline"]["test_mnlp"], color="gray", linestyle=":", label="share of ones")
    axes[1].legend()
    for i, chain in enumerate(chains.values()):
        worst = max(chain["r_hat"].values())
        axes[2].plot([i] * len(chain["test_mnlp"]), chain["test_mnlp"], "o")
        axes[2].annotate(f"R-hat {worst:.2f}", (i, max(chain["test_mnlp"])), ha="center", xytext=(0, 8),
                         textcoords="offset points")  # fmt: skip
    if chains:
        axes[2].set_xticks(range(len(chains)), list(chains))
        axes[2].margins(x=0.3, y=0.3)
        axes[2].set_title("long chains, held-out entries")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
