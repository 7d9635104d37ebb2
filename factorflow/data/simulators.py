"""Simulated datasets of any size, written block by block, with the truth kept beside the data.

Noise comes from NumPy's Philox generator, keyed by (seed, purpose) and counted by tiles of 32 rows, so the
same seed gives the same data under any block size.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from factorflow.data import checks
from factorflow.data.atomic import check_space, fresh_directory
from factorflow.data.dataset import Dataset, open_dataset
from factorflow.data.ingest import numbered
from factorflow.data.layout import choose_block_rows
from factorflow.data.writer import Columns, RowTruth, Truth, ViewSource, write_store
from factorflow.errors import InputError

__all__ = ["SIMULATORS", "Noise", "Simulated", "simulate"]

TILE_ROWS = 32
"""Rows drawn from one generator; the smallest block ingest chooses, so that none is drawn twice."""

SCORES, PARAMETERS, ABSENT, FIRST_VIEW = 900, 901, 902, 910
"""Purposes of noise; view ``i`` has ``FIRST_VIEW + 2 i`` for values, and the next for missing entries."""

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Noise:
    """Noise that depends on the seed, the purpose and the row alone.

    Parameters
    ----------
    seed : int
        0 ... 2^64 - 1.
    """

    seed: int

    def generator(self, site: int, tile: int = 0) -> np.random.Generator:
        """Return the generator of one purpose and tile."""
        key = np.array([self.seed, site], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, 0, tile], np.uint64)))

    def rows(
        self, site: int, start: int, stop: int, width: int, kind: Literal["normal", "uniform"] = "normal"
    ) -> FloatArray:
        """Return standard normals or uniforms for rows ``start`` to ``stop``, (stop - start, width)."""
        first, last = start // TILE_ROWS, -(-stop // TILE_ROWS)
        out = np.empty(((last - first) * TILE_ROWS, width), np.float32)
        for tile in range(first, last):
            generator = self.generator(site, tile)
            draw = generator.standard_normal if kind == "normal" else generator.random
            offset = (tile - first) * TILE_ROWS
            draw(dtype=np.float32, out=out[offset : offset + TILE_ROWS])
        return out[start - first * TILE_ROWS : stop - first * TILE_ROWS]


@dataclass(frozen=True)
class Simulated:
    """What a simulator hands back: everything but the writing.

    Parameters
    ----------
    views : list of ViewSource
        The views, read block by block.
    truth : Truth
        What the data were made from.
    codes : dict of str to (N,) int32 array
        ``group`` (and ``sequence``, ``time``) where there are any.
    groups : tuple of str
        Names of the groups.
    """

    views: list[ViewSource]
    truth: Truth
    codes: dict[str, NDArray[Any]] = field(default_factory=dict)
    groups: tuple[str, ...] = ()


def simulate(
    kind: str,
    path: str | os.PathLike[str],
    n_samples: int,
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
        "sparse_gfa" (`sparse_gfa`) or "binary" (`binary`).
    path : path-like
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
    if kind not in SIMULATORS:
        raise InputError("simulator", kind, f"one of {', '.join(SIMULATORS)}", "Choose one of them.")
    if n_samples < 2:
        raise InputError("n_samples", n_samples, "at least 2", "A factor model needs several samples.")
    if not 0 <= seed < 2**64:
        raise InputError("seed", seed, "a whole number from 0 to 2^64 - 1", "Any of them will do.")
    simulator = SIMULATORS[kind]
    known = [name for name in inspect.signature(simulator).parameters if name not in ("n_samples", "noise")]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise InputError(
            f"settings of {kind}", ", ".join(unknown), f"some of {', '.join(known)}", "Check the spelling."
        )
    made = simulator(n_samples, Noise(seed), **settings)
    target = Path(os.path.abspath(os.fspath(path)))
    widths = [view.features.size for view in made.views]
    with fresh_directory(target, overwrite) as partial:
        check_space(partial, 4 * n_samples * sum(widths))
        columns = Columns(numbered("sample", n_samples), made.codes, made.groups)
        write_store(
            partial, made.views, columns, choose_block_rows(n_samples, widths, block_rows), truth=made.truth
        )
    return open_dataset(target)


def sparse_gfa(
    n_samples: int,
    noise: Noise,
    views: Mapping[str, tuple[str, int]],
    n_factors: int = 8,
    sparsity: float = 0.8,
    r2: float = 0.3,
    missing: float | Mapping[str, float] = 0.0,
    missing_samples: float | Mapping[str, float] = 0.0,
    groups: int = 0,
    view_activity: float = 0.6,
    scale: float = 1.5,
) -> Simulated:
    """Simulate a group factor model with spike-and-slab loadings.

    ``x_nd = b_d + sum_k z_nk w_dk``; gaussian: x plus noise; bernoulli: success probability sigmoid(x);
    poisson: rate log(1 + exp(x)).

    Parameters
    ----------
    n_samples : int
        Rows (N).
    noise : Noise
        Where the randomness comes from.
    views : mapping of str to (likelihood, n_features)
        The views in order.
    n_factors : int
        Factors (K).
    sparsity : float
        Probability that a loading is zero where its factor is active in the view.
    r2 : float
        Gaussian views: share of the variance that the factors explain in the median feature.
    missing, missing_samples : float, or mapping of view to float
        Share of entries, and of samples, that are missing from a view. No sample is missing from all of
        several views.
    groups : int
        Sample groups, neighbouring rows each; a factor is active in about two thirds of them. 0: none.
    view_activity : float
        Probability that a factor is active in a view.
    scale : float
        Standard deviation of a non-zero loading of bernoulli and poisson views.
    """
    checks.check_view_names(list(views))
    specs = {
        name: (checks.check_likelihood_name(name, kind), int(size)) for name, (kind, size) in views.items()
    }
    generator = noise.generator(PARAMETERS)
    active = _activity(generator, len(specs), n_factors, view_activity)
    labels = tuple(f"group{g}" for g in range(groups))
    codes = (np.arange(n_samples if groups else 0) * groups // n_samples).astype(np.int32)
    in_group = _activity(generator, groups, n_factors, 2 / 3).astype(np.float32) if groups else None

    def scores(start: int, stop: int) -> FloatArray:
        z = noise.rows(SCORES, start, stop, n_factors)
        return z if in_group is None else z * in_group[codes[start:stop]]

    absent_share = np.array([_share("missing_samples", missing_samples, name) for name in specs], np.float32)

    def absent(view: int, start: int, stop: int) -> NDArray[np.bool_]:
        rows = noise.rows(ABSENT, start, stop, len(specs), "uniform") < absent_share
        if len(specs) > 1:
            lost = np.flatnonzero(rows.all(axis=1))
            rows[lost, (start + lost) % len(specs)] = False
        return np.asarray(rows[:, view])

    sources = []
    arrays: dict[str, tuple[tuple[str, ...], Any]] = {"active": (("view", "factor"), active)}
    for index, (name, (likelihood, n_features)) in enumerate(specs.items()):
        loadings = generator.standard_normal((n_features, n_factors), dtype=np.float32)
        loadings *= (generator.random((n_features, n_factors)) >= sparsity) * active[index]
        loadings *= np.float32(1.0 if likelihood == "gaussian" else scale)
        intercept = generator.standard_normal(n_features, dtype=np.float32)
        deviation = _noise_deviation(generator, loadings, r2)
        arrays[f"loadings_{name}"] = ((f"feature_{name}", "factor"), loadings)
        arrays[f"intercept_{name}"] = ((f"feature_{name}",), intercept)
        if likelihood == "gaussian":
            arrays[f"noise_deviation_{name}"] = ((f"feature_{name}",), deviation)
        share = _share("missing", missing, name)
        absent_from = (
            (lambda start, stop, view=index: absent(view, start, stop)) if absent_share[index] else None
        )
        view = _View(noise, index, likelihood, loadings, intercept, deviation, scores, share, absent_from)
        sources.append(ViewSource(name, numbered("feature", n_features), view.read, likelihood))
    if in_group is not None:
        arrays["active_groups"] = (("group", "factor"), in_group > 0)
    truth = Truth(arrays, {"scores": RowTruth("factor", n_factors, scores)})
    return Simulated(sources, truth, {"group": codes} if groups else {}, labels)


@dataclass(frozen=True)
class _View:
    """The values of one view of `sparse_gfa`, made when they are read."""

    noise: Noise
    index: int
    likelihood: str
    loadings: FloatArray
    intercept: FloatArray
    deviation: FloatArray
    scores: Callable[[int, int], FloatArray]
    missing: float
    absent: Callable[[int, int], NDArray[np.bool_]] | None

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows ``start`` to ``stop``, (stop - start, D)."""
        site, width = FIRST_VIEW + 2 * self.index, self.intercept.size
        x = self._predictor(start, stop)
        if self.likelihood == "gaussian":
            values = self.noise.rows(site, start, stop, width)
            values *= self.deviation
            values += x
        elif self.likelihood == "bernoulli":
            uniform = self.noise.rows(site, start, stop, width, "uniform")
            values = (uniform * (1 + np.exp(-x)) < 1).astype(np.float32)
        else:
            values = self._counts(site, start, np.logaddexp(0, x))
        if self.missing:
            values[self.noise.rows(site + 1, start, stop, width, "uniform") < self.missing] = np.nan
        if self.absent is not None:
            values[self.absent(start, stop)] = np.nan
        return values

    def _predictor(self, start: int, stop: int) -> FloatArray:
        """Return b + Z W', computed by tiles too: the shape of a product is part of its bits."""
        first = start // TILE_ROWS * TILE_ROWS
        z = self.scores(first, stop)
        x = np.concatenate(
            [z[i : i + TILE_ROWS] @ self.loadings.T for i in range(0, stop - first, TILE_ROWS)]
        )
        x += self.intercept
        return np.asarray(x[start - first :])

    def _counts(self, site: int, start: int, rate: FloatArray) -> FloatArray:
        out = np.empty_like(rate)
        stop = start + rate.shape[0]
        for tile in range(start // TILE_ROWS, -(-stop // TILE_ROWS)):
            # A Poisson draw takes a varying number of words: a generator for every row.
            for row in range(max(start, tile * TILE_ROWS), min(stop, (tile + 1) * TILE_ROWS)):
                out[row - start] = self.noise.generator(site, row).poisson(rate[row - start])
        return out


def binary(
    n_samples: int,
    noise: Noise,
    n_features: int = 100,
    n_factors: int = 10,
    factors: Literal["binary", "spike_slab", "nonnegative"] = "nonnegative",
    on: float = 0.4,
    inclusion: float = 0.5,
    scale: float = 1.5,
    missing: float = 0.0,
    view: str = "binary",
) -> Simulated:
    """Simulate a probit factor model: ``y_nd = 1`` where ``o_d + sum_k f_nk z_dk + noise > 0``.

    Parameters
    ----------
    n_samples : int
        Rows (observations).
    noise : Noise
        Where the randomness comes from.
    n_features, n_factors : int
        Shape of the loadings.
    factors : {"binary", "spike_slab", "nonnegative"}
        f is s, s v or s abs(v), where s is Bernoulli(``on``) and v standard normal.
    on : float
        Probability that a factor is on in a sample.
    inclusion : float
        Probability that a loading is not zero.
    scale : float
        Standard deviation of a non-zero loading.
    missing : float
        Share of the entries that are missing.
    view : str
        Name of the view.
    """
    if factors not in ("binary", "spike_slab", "nonnegative"):
        raise InputError("factors", factors, "binary, spike_slab or nonnegative", "Choose one of them.")
    checks.check_view_names([view])
    generator = noise.generator(PARAMETERS)
    loadings = generator.standard_normal((n_features, n_factors)) * scale
    loadings *= generator.random((n_features, n_factors)) < inclusion
    offset = 0.5 * generator.standard_normal(n_features)

    def scores(start: int, stop: int) -> FloatArray:
        s = noise.rows(ABSENT, start, stop, n_factors, "uniform") < on
        if factors == "binary":
            return s.astype(np.float32)
        v = noise.rows(SCORES, start, stop, n_factors)
        return s * (np.abs(v) if factors == "nonnegative" else v)

    w, o = loadings.astype(np.float32), offset.astype(np.float32)
    probit = _View(noise, 0, "gaussian", w, o, np.ones(n_features, np.float32), scores, missing, None)

    def read(start: int, stop: int) -> FloatArray:
        latent = probit.read(start, stop)
        return np.where(np.isnan(latent), np.float32(np.nan), (latent > 0).astype(np.float32))

    arrays = {
        f"loadings_{view}": ((f"feature_{view}", "factor"), w),
        f"intercept_{view}": ((f"feature_{view}",), o),
    }
    source = ViewSource(view, numbered("feature", n_features), read, "bernoulli")
    return Simulated([source], Truth(arrays, {"scores": RowTruth("factor", n_factors, scores)}))


SIMULATORS: dict[str, Callable[..., Simulated]] = {"sparse_gfa": sparse_gfa, "binary": binary}
"""By name: (n_samples, noise, **settings) -> Simulated."""


def _activity(generator: np.random.Generator, n_rows: int, n_factors: int, probability: float) -> Any:
    """Return which factor is active where, (rows, K) bool: every row has one, and every factor a place."""
    active = generator.random((n_rows, n_factors)) < probability
    for k in np.flatnonzero(~active.any(axis=0)):
        active[generator.integers(n_rows), k] = True
    for row in np.flatnonzero(~active.any(axis=1)):
        active[row, generator.integers(n_factors)] = True
    return active


def _noise_deviation(generator: np.random.Generator, loadings: FloatArray, r2: float) -> FloatArray:
    """Return standard deviations (D,) such that the factors explain ``r2`` of the median feature."""
    if not 0.0 < r2 < 1.0:
        raise InputError("r2", r2, "a share between 0 and 1", "0.3 is a usual value.")
    signal = (loadings.astype(np.float64) ** 2).sum(axis=1)
    median = np.median(signal[signal > 0]) if (signal > 0).any() else 1.0
    spread = np.exp(0.25 * generator.standard_normal(loadings.shape[0]))
    return np.asarray(np.sqrt(median * (1 - r2) / r2) * spread, dtype=np.float32)


def _share(what: str, value: float | Mapping[str, float], view: str) -> float:
    share = float(value.get(view, 0.0) if isinstance(value, Mapping) else value)
    if not 0.0 <= share < 1.0:
        raise InputError(what, share, "a share from 0 to below 1", "0.1 makes a tenth missing.")
    return share
