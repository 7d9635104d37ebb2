"""Counts of non-negative programs, such as those of single cells: `poisson_factors`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.kinds import KINDS
from factorflow.data.ingest import checks
from factorflow.data.ingest.align import number_names
from factorflow.data.simulation.noise import Noise, Simulation, check_count, share_of
from factorflow.data.store.view_source import ViewSource
from factorflow.data.store.writer import RowTruth, Truth
from factorflow.errors import InputError
from factorflow.kernels.sites import SIMULATORS

if TYPE_CHECKING:
    import pandas as pd

SCORES, PARAMETERS, ABSENT, BATCHES = (SIMULATORS[i] for i in range(4))
FIRST_VIEW = 10
"""Purposes of noise; view ``i`` has site number ``FIRST_VIEW + 2 i`` for values, the next for gaps."""

OWN = 0.06
"""Share of the features that a program has more of than the first one."""

ACTIVITY = 0.3
"""Shape of the usages of programs: few of them are used by a cell."""

SPREAD = 0.45
"""Standard deviation of the logarithm of the size of a cell."""

DEFAULT_VIEWS = {"rna": 500}

FloatArray = NDArray[np.float64]


def poisson_factors(
    n_samples: int,
    noise: Noise,
    views: Mapping[str, int] = DEFAULT_VIEWS,
    n_factors: int = 6,
    depth: float = 0.5,
    usage: float = 0.35,
    dispersion: float = 0.25,
    batches: int = 0,
    batch_effect: float = 0.5,
    missing: float | Mapping[str, float] = 0.0,
    missing_samples: float | Mapping[str, float] = 0.0,
) -> Simulation:
    """Simulate counts of non-negative programs, of which the first is common to all cells.

    ``y_nd ~ negative binomial with mean s_n gamma_bd sum_k theta_nk beta_dk`` and variance
    mean + dispersion mean^2; each program is a distribution over the features of a view.

    Parameters
    ----------
    n_samples : int
        Cells (N).
    views : mapping of str to int
        The views in order: numbers of features.
    n_factors : int
        Programs (K).
    depth : float
        Counts of a cell in a view, as a multiple of the number of features.
    usage : float
        Share of the counts that is not of the first program.
    dispersion : float
        See above; 0: Poisson counts.
    batches : int
        Batches, in a column ``batch`` of the metadata; 0: none.
    batch_effect : float
        Standard deviation of log gamma.
    missing, missing_samples : float, or mapping of view to float
        Share of entries, and of samples, that are missing from a view.
    """
    check_count("n_factors", n_factors)
    check_count("batches", batches, 0)
    checks.check_view_names(list(views))
    for name, n_features in views.items():
        check_count(f"views[{name!r}]", n_features)
    if not depth > 0.0:
        raise InputError("depth", depth, "a number above 0", "Leave it out.")
    if not 0.0 < usage < 1.0:
        raise InputError("usage", usage, "a number between 0 and 1", "Leave it out.")
    for what, value in (("dispersion", dispersion), ("batch_effect", batch_effect)):
        if value < 0.0:
            raise InputError(what, value, "a number >= 0", "Leave it out.")
    generator = noise.generator(PARAMETERS)
    world = _Cells(noise, n_factors, usage, batches, n_samples)
    sources, arrays = [], dict[str, tuple[tuple[str, ...], Any]]()
    for index, (name, n_features) in enumerate(views.items()):
        programs = _programs(generator, n_features, n_factors)
        gamma = np.exp(batch_effect * generator.standard_normal((max(1, batches), n_features)))
        gamma = gamma if batches else np.ones((1, n_features))
        arrays[f"loadings_{name}"] = ((f"feature_{name}", "factor"), programs)
        if batches:
            arrays[f"batch_{name}"] = (("batch", f"feature_{name}"), gamma)
        gaps = share_of("missing", missing, name), share_of("missing_samples", missing_samples, name)
        view = _View(world, index, len(views), programs, gamma, depth * n_features, dispersion, *gaps)
        sources.append(ViewSource(name, number_names("gene", n_features), view.read, KINDS["poisson"]))
    rows = {"scores": RowTruth("factor", n_factors, world.scores)}
    return Simulation(sources, Truth(arrays, rows), obs=world.metadata() if batches else None)


def _programs(generator: np.random.Generator, n_features: int, n_factors: int) -> FloatArray:
    """Return distributions over features, (D, K): the first of all, others of some with more counts."""
    common = np.exp(1.6 * generator.standard_normal(n_features))
    out = np.empty((n_features, n_factors))
    out[:, 0] = common
    for k in range(1, n_factors):
        own = generator.random(n_features) < OWN
        own[generator.integers(n_features)] = True
        out[:, k] = np.where(own, common * np.exp(1.5 + 0.7 * generator.standard_normal(n_features)), 0.0)
    return np.asarray(out / out.sum(axis=0))


@dataclass(frozen=True)
class _Cells:
    """Usages, sizes and batches of the cells."""

    noise: Noise
    n_factors: int
    usage: float
    n_batches: int
    n_rows: int

    def _draw(self, start: int, stop: int) -> FloatArray:
        """Return usages and log sizes, (B, K + 1)."""
        size = self.noise.tile_rows
        first, last = start // size, -(-stop // size)
        parts = []
        for tile in range(first, last):
            generator = self.noise.generator(SCORES, tile)
            theta = generator.gamma(ACTIVITY, 1.0, (size, self.n_factors))
            theta[:, 0] = 0.0
            theta *= self.usage / (theta.sum(axis=1, keepdims=True) + 1e-3)
            theta[:, 0] = 1.0 - self.usage
            parts.append(np.column_stack([theta, SPREAD * generator.standard_normal(size)]))
        return np.concatenate(parts)[start - first * size : stop - first * size]

    def scores(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return usages, (B, K)."""
        return self._draw(start, stop)[:, :-1].astype(np.float32)

    def rates(self, start: int, stop: int) -> FloatArray:
        """Return usages times sizes."""
        draws = self._draw(start, stop)
        return np.asarray(draws[:, :-1] * np.exp(draws[:, -1:]))

    def batch(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the batch of each cell."""
        if not self.n_batches:
            return np.zeros(stop - start, np.int64)
        uniform = self.noise.rows(BATCHES, start, stop, 1, "uniform")[:, 0]
        return np.minimum((uniform * self.n_batches).astype(np.int64), self.n_batches - 1)

    def metadata(self) -> pd.DataFrame:
        """Return the batches as a column."""
        import pandas as pd

        return pd.DataFrame({"batch": [f"batch{b}" for b in self.batch(0, self.n_rows)]})


@dataclass(frozen=True)
class _View:
    """The counts of one view, made when they are read."""

    cells: _Cells
    index: int
    n_views: int
    programs: FloatArray
    gamma: FloatArray
    depth: float
    dispersion: float
    missing: float
    missing_samples: float

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows ``start`` to ``stop``, (stop - start, D)."""
        noise, site = self.cells.noise, FIRST_VIEW + 2 * self.index
        size = noise.tile_rows
        first, last = start // size, -(-stop // size)
        parts = [
            self._tile(noise.generator(SIMULATORS[site], tile), tile * size) for tile in range(first, last)
        ]
        values = np.concatenate(parts)[start - first * size : stop - first * size]
        if self.missing:
            width = values.shape[1]
            gaps = noise.rows(SIMULATORS[site + 1], start, stop, width, "uniform") < self.missing
            values[gaps] = np.nan
        if self.missing_samples:
            absent = noise.rows(ABSENT, start, stop, self.n_views, "uniform") < self.missing_samples
            if self.n_views > 1:  # no cell is missing from all views
                lost = np.flatnonzero(absent.all(axis=1))
                absent[lost, (start + lost) % self.n_views] = False
            values[absent[:, self.index]] = np.nan
        return values

    def _tile(self, generator: np.random.Generator, start: int) -> NDArray[np.float32]:
        rows = start, start + self.cells.noise.tile_rows
        mean = self.depth * (self.cells.rates(*rows) @ self.programs.T) * self.gamma[self.cells.batch(*rows)]
        if self.dispersion:
            mean *= generator.gamma(1.0 / self.dispersion, self.dispersion, mean.shape)
        return generator.poisson(mean).astype(np.float32)
