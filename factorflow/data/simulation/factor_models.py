"""Factor models that data are simulated from; each has its name in `factorflow.data.simulation.simulate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from factorflow.core.kinds import KINDS, VALUES, kind_of
from factorflow.data.ingest import checks
from factorflow.data.ingest.align import number_names
from factorflow.data.ingest.events import as_times
from factorflow.data.simulation.noise import TILE_ROWS, Noise, Simulation, check_count, share_of
from factorflow.data.store.view_source import ViewSource
from factorflow.data.store.writer import RowTruth, Truth
from factorflow.errors import InputError
from factorflow.kernels.sites import SIMULATORS

SCORES, PARAMETERS, ABSENT, CURVES, POSITIONS = (SIMULATORS[i] for i in range(5))
FIRST_VIEW = 10
"""Purposes of noise; view ``i`` has site number ``FIRST_VIEW + 2 i`` for values, the next for gaps."""

if TYPE_CHECKING:
    import pandas as pd

FloatArray = NDArray[np.float32]

ROUGH = 0.1
"""Share of the variance of a smooth factor that is noise."""
WAVES = 64
"""Cosines that a smooth function is made of."""

SURVIVAL = "survival"
"""Likelihood of views of times to an event."""

DEFAULT_VIEWS = {"first": ("gaussian", 200), "second": ("gaussian", 100)}


def sparse_gfa(
    n_samples: int,
    noise: Noise,
    views: Mapping[str, tuple[str, int]] = DEFAULT_VIEWS,
    n_factors: int = 8,
    sparsity: float = 0.8,
    r2: float = 0.3,
    missing: float | Mapping[str, float] = 0.0,
    missing_samples: float | Mapping[str, float] = 0.0,
    groups: int = 0,
    view_activity: float = 0.6,
    scale: float = 1.5,
    smooth: int = 0,
    places: Literal["time", "plane"] = "time",
    length_scale: float = 0.1,
) -> Simulation:
    """Simulate a group factor model with spike-and-slab loadings.

    ``x_nd = b_d + sum_k z_nk w_dk``; gaussian: x plus noise; bernoulli: success probability sigmoid(x);
    poisson: rate log(1 + exp(x)); survival: times of hazard exp(x), censored at times of hazard 1/2.

    Parameters
    ----------
    n_samples : int
        Rows (N).
    views : mapping of str to (likelihood, n_features)
        The views in order; of survival one feature.
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
    smooth : int
        Factors, the first ones, that are functions of where a sample lies, to nine tenths of their variance.
    places : {"time", "plane"}
        Samples lie at ``time``, evenly spaced from 0 to 1 within each group, or at ``x`` and ``y``, anywhere
        from 0 to 1: columns of the sample metadata.
    length_scale : float
        Distance over which the functions change.
    """
    specs = specifications(views)
    check_count("n_factors", n_factors)
    check_count("groups", groups, 0)
    check_count("smooth", smooth, 0)
    if smooth > n_factors:
        raise InputError("smooth", smooth, f"at most n_factors, {n_factors}", "Ask for fewer.")
    if places not in ("time", "plane"):
        raise InputError("places", places, "time or plane", "Choose one of them.")
    generator = noise.generator(PARAMETERS)
    active = _activity(generator, len(specs), n_factors, view_activity)
    labels = tuple(f"group{g}" for g in range(groups))

    def group(start: int, stop: int) -> NDArray[np.int32]:
        return np.asarray(np.arange(start, stop) * groups // n_samples, dtype=np.int32)

    curves = _Curves.draw(noise, smooth, 1 if places == "time" else 2, length_scale)
    positions = _positions(noise, n_samples, groups, places) if smooth else None
    in_group = _activity(generator, groups, n_factors, 2 / 3).astype(np.float32) if groups else None

    def scores(start: int, stop: int) -> FloatArray:
        z = noise.rows(SCORES, start, stop, n_factors)
        if positions is not None:
            z[:, :smooth] *= np.float32(ROUGH**0.5)
            z[:, :smooth] += np.float32((1.0 - ROUGH) ** 0.5) * curves.at(positions[start:stop])
        return z if in_group is None else z * in_group[group(start, stop)]

    absent_share = np.array(
        [share_of("missing_samples", missing_samples, name) for name in specs], np.float32
    )

    def absent(view: int, start: int, stop: int) -> NDArray[np.bool_]:
        rows = noise.rows(ABSENT, start, stop, len(specs), "uniform") < absent_share
        if len(specs) > 1:
            lost = np.flatnonzero(rows.all(axis=1))
            rows[lost, (start + lost) % len(specs)] = False
        return np.asarray(rows[:, view])

    sources = []
    arrays: dict[str, tuple[tuple[str, ...], Any]] = {"active": (("view", "factor"), active)}
    for index, (name, (likelihood, n_features)) in enumerate(specs.items()):
        size = 1.0 if likelihood == "gaussian" else scale
        loadings = _sparse_loadings(generator, n_features, active[index], sparsity, size)
        intercept = generator.standard_normal(n_features, dtype=np.float32)
        deviation = _noise_deviation(generator, loadings, r2)
        arrays[f"loadings_{name}"] = ((f"feature_{name}", "factor"), loadings)
        arrays[f"intercept_{name}"] = ((f"feature_{name}",), intercept)
        if likelihood == "gaussian":
            arrays[f"noise_deviation_{name}"] = ((f"feature_{name}",), deviation)
        share = share_of("missing", missing, name)
        absent_from = (
            (lambda start, stop, view=index: absent(view, start, stop)) if absent_share[index] else None
        )
        view = _View(noise, index, likelihood, loadings, intercept, deviation, scores, share, absent_from)
        sources.append(_as_source(name, view))
    if in_group is not None:
        arrays["active_groups"] = (("group", "factor"), in_group > 0)
    truth = Truth(arrays, {"scores": RowTruth("factor", n_factors, scores)})
    obs = None if positions is None else _as_frame(positions)
    return Simulation(sources, truth, {"group": group} if groups else {}, labels, obs=obs)


def _sparse_loadings(
    generator: np.random.Generator, n_features: int, active: NDArray[np.bool_], sparsity: float, size: float
) -> FloatArray:
    """Return spike-and-slab loadings of the factors that are active in a view, (D, K)."""
    loadings = generator.standard_normal((n_features, len(active)), dtype=np.float32)
    loadings *= (generator.random((n_features, len(active))) >= sparsity) * active
    loadings *= np.float32(size)
    return loadings


def _as_source(name: str, view: _View) -> ViewSource:
    """Return the source of a simulated view."""
    if view.likelihood != SURVIVAL:
        names = number_names("feature", len(view.intercept))
        return ViewSource(name, names, view.read, KINDS[view.likelihood])
    columns = np.array(["time", "event"])
    return as_times(ViewSource(name, columns, view.read, KINDS["gaussian"], default_likelihood=SURVIVAL))


@dataclass(frozen=True)
class _Curves:
    """Draws of a Gaussian process with a squared exponential kernel: sums of cosines."""

    frequencies: NDArray[np.float64]
    phases: NDArray[np.float64]

    @classmethod
    def draw(cls, noise: Noise, number: int, columns: int, length_scale: float) -> _Curves:
        """Draw ``number`` functions of ``columns`` numbers."""
        generator = noise.generator(CURVES)
        frequencies = generator.standard_normal((number, WAVES, columns)) / length_scale
        return cls(frequencies, 2.0 * np.pi * generator.random((number, WAVES)))

    def at(self, positions: NDArray[np.float64]) -> FloatArray:
        """Return the functions at some places, (B, K)."""
        waves = [
            np.cos(positions @ frequencies.T + phases).sum(axis=1)
            for frequencies, phases in zip(self.frequencies, self.phases, strict=True)
        ]
        return np.asarray(np.sqrt(2.0 / WAVES) * np.stack(waves, axis=1), np.float32)


def _positions(noise: Noise, n_samples: int, groups: int, places: str) -> NDArray[np.float64]:
    """Return where samples lie, (N, columns)."""
    if places == "plane":
        return noise.rows(POSITIONS, 0, n_samples, 2, "uniform").astype(np.float64)
    codes = np.arange(n_samples) * max(1, groups) // n_samples
    positions = np.empty((n_samples, 1))
    for group in range(max(1, groups)):
        rows = np.flatnonzero(codes == group)
        positions[rows, 0] = np.linspace(0.0, 1.0, len(rows))
    return positions


def _as_frame(positions: NDArray[np.float64]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(positions, columns=["time"] if positions.shape[1] == 1 else ["x", "y"])


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
        site, width = SIMULATORS[FIRST_VIEW + 2 * self.index], self.intercept.size
        gaps = SIMULATORS[FIRST_VIEW + 2 * self.index + 1]
        x = self._predictor(start, stop)
        if self.likelihood == "gaussian":
            values = self.noise.rows(site, start, stop, width)
            values *= self.deviation
            values += x
        elif self.likelihood == "bernoulli":
            uniform = self.noise.rows(site, start, stop, width, "uniform")
            values = (uniform * (1 + np.exp(-x)) < 1).astype(np.float32)
        elif self.likelihood == SURVIVAL:
            waits = -np.log1p(-self.noise.rows(site, start, stop, 2, "uniform"))
            event, end = waits[:, 0] * np.exp(-x[:, 0]), 2.0 * waits[:, 1]
            values = np.stack([np.minimum(event, end), event <= end], axis=1).astype(np.float32)
        else:
            values = self._counts(site, start, np.logaddexp(0, x))
        if self.missing:
            gap = self.noise.rows(gaps, start, stop, width, "uniform") < self.missing
            values[gap[:, [0, 0]] if self.likelihood == SURVIVAL else gap] = np.nan
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
) -> Simulation:
    """Simulate a probit factor model: ``y_nd = 1`` where ``o_d + sum_k f_nk z_dk + noise > 0``.

    Parameters
    ----------
    n_samples : int
        Rows (observations).
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
    """
    if factors not in ("binary", "spike_slab", "nonnegative"):
        raise InputError("factors", factors, "binary, spike_slab or nonnegative", "Choose one of them.")
    checks.check_view_names([view])
    check_count("n_features", n_features)
    check_count("n_factors", n_factors)
    missing = share_of("missing", missing, view)
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
    source = ViewSource(view, number_names("feature", n_features), read, KINDS["bernoulli"])
    return Simulation([source], Truth(arrays, {"scores": RowTruth("factor", n_factors, scores)}))


def specifications(views: Any) -> dict[str, tuple[str, int]]:
    """Return likelihood and width of every view, as they were given."""
    expected = "a likelihood and a number of features for every name"
    if not isinstance(views, Mapping):
        raise InputError("views", views, expected, 'For example {"rna": ["gaussian", 200]}.')
    checks.check_view_names(list(views))
    specs = {}
    for name, spec in views.items():
        if isinstance(spec, str) or not isinstance(spec, Sequence) or len(spec) != 2:
            raise InputError(
                f"view {name!r}", spec, expected, f'For example {{"{name}": ["gaussian", 200]}}.'
            )
        check_count(f"features of view {name!r}", spec[1])
        if tuple(spec) == (SURVIVAL, 1):
            specs[name] = SURVIVAL, 1
            continue
        if not kind_of(name, spec[0]).is_values:
            raise InputError(
                f"likelihood of view {name!r}", spec[0], f"one of {', '.join(VALUES)}", "Choose one of them."
            )
        specs[name] = spec[0], int(spec[1])
    return specs


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
