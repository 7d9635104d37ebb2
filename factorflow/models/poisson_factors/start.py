"""The first pass, and where programs start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from factorflow.kernels.sites import MODELS
from factorflow.kernels.sparse_rows import SparseRows
from factorflow.models.contract import Array, Block, Info, Step, Sweep
from factorflow.models.poisson_factors.programs import BATCH_SHAPE, RATE_PRIOR, feature_rates, score_rates
from factorflow.models.poisson_factors.settings import Settings, ViewSettings
from factorflow.models.poisson_factors.state import Data, Gamma, Globals, Programs
from factorflow.models.size_factors import METHODS, level_sums

START = MODELS[0]

SHAPE = 10.0
"""Shape of q(beta) at the start."""


@dataclass(frozen=True)
class CountStats:
    """Sums over the rows by view: counts by batch, (codes, D); observed rows, levels of sizes, (D,)."""

    counts: dict[str, Float64[np.ndarray, "C _D"]]
    n_observed: dict[str, Float64[np.ndarray, " _D"]]
    levels: dict[str, Float64[np.ndarray, " _D"]]
    constant: float


@dataclass(frozen=True)
class CountSweep(Sweep[Globals, None, CountStats]):
    """One pass over the data: what each feature and batch adds up to."""

    settings: Settings
    n_rows: int
    numbers: tuple[range, ...]
    name: ClassVar[str] = "counts"

    def map(self, block: Block, local: None, globals_: Globals, step: Step) -> tuple[None, CountStats]:
        """Return the sums of a block."""
        from scipy.special import gammaln

        codes, counts, n_observed, levels, constant = self.settings.codes(block), {}, {}, {}, 0.0
        for view in self.settings.views:
            rows: SparseRows = block.data[view.name]
            y, d = rows.entries.astype(np.float64), rows.n_features
            place = np.repeat(codes, rows.counts) * d + rows.columns
            sums = np.bincount(place, y, minlength=self.settings.n_codes * d)
            counts[view.name] = sums.reshape(self.settings.n_codes, d)
            n_observed[view.name] = rows.n_observed()
            if view.size_factors != "none" and view.size_factors in METHODS:
                levels[view.name] = level_sums(view.size_factors, rows)
            entries = view.rows(block).entries
            largest = int(entries.max(initial=0))
            if largest <= 1 << 16:  # each number once
                each = np.bincount(entries, minlength=largest + 1)
                constant -= float(each @ gammaln(np.arange(largest + 1) + 1.0))
            else:
                constant -= float(gammaln(entries.astype(np.float64) + 1.0).sum())
        return None, CountStats(counts, n_observed, levels, constant)

    def update(self, globals_: Globals, stats: CountStats, step: Step) -> tuple[Globals, Info]:
        """Return the globals of all starts."""
        average = {
            name: level / np.maximum(stats.n_observed[name], 1.0) for name, level in stats.levels.items()
        }
        s, programs = self.settings, {}
        data = Data(*_of_features(s, stats), average, stats.constant)
        seen = {name: np.maximum(n, 1.0) for name, n in data.n_observed.items()}
        others = s.others()
        other_data = Data(*_of_features(others, stats), average, 0.0) if others.views else None
        noise = {
            view.name: step.normal(START, _take(view, np.asarray(numbers)), s.n_starts * s.n_factors)
            for view, numbers in zip(s.views, self.numbers, strict=True)
        }
        for i in range(s.n_starts):
            mine = slice(i * s.n_factors, (i + 1) * s.n_factors)
            beta = {
                view.name: np.maximum(data.counts[view.name].sum(axis=0) / seen[view.name], 1e-9)[:, None]
                * np.exp(noise[view.name][:, mine] / np.sqrt(SHAPE))
                / s.n_factors
                for view in s.views
            }
            programs[str(i)] = start_programs(s, data, self.n_rows, beta)
        n_observed = float(sum(n.sum() for n in data.n_observed.values()))
        after = replace(globals_, programs=programs, data=data, other_data=other_data)
        return after, {"observed": n_observed}


def _take(view: ViewSettings, values: Array) -> Array:
    """Return what belongs to the features of a view, of what belongs to all (in the last axis)."""
    return values if view.chosen is None else values[..., np.asarray(view.chosen)]


def _of_features(settings: Settings, stats: CountStats) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return counts by batch, and rows in which features are observed, of those that settings have."""
    return tuple(  # type: ignore[return-value]
        {view.name: _take(view, by_view[view.name]) for view in settings.views}
        for by_view in (stats.counts, stats.n_observed)
    )


def start_programs(
    settings: Settings, data: Data, n_rows: int, beta: dict[str, Float64[np.ndarray, "_D K"]]
) -> Programs:
    """Return programs with given means of the loadings; theta is taken for 1, shapes are 1.

    Parameters
    ----------
    beta : dict of str to array
        E beta by view, (D, K).
    """
    k = settings.n_factors
    loadings = {name: Gamma(np.full(mean.shape, SHAPE), SHAPE / mean) for name, mean in beta.items()}
    batches = {}
    if settings.batch is not None:
        shapes = {name: BATCH_SHAPE + counts[:-1] for name, counts in data.counts.items()}
        batches = {name: Gamma(shape, shape) for name, shape in shapes.items()}
    ones = np.ones(k)
    return Programs(
        loadings=loadings,
        logs={name: gamma.logs_and_entropies()[0] for name, gamma in loadings.items()},
        feature_rates={name: feature_rates(1.0, gamma) for name, gamma in loadings.items()},
        batches=batches,
        score_rates=score_rates(n_rows, ones, n_rows * ones),
        score_shape=ones,
        loading_shape=1.0,
        stretch=ones,
        share=np.ones((len(settings.views), k)) / k,
    )


def start_others(settings: Settings, n_rows: int, globals_: Globals) -> Globals:
    """Return globals with a start of the features that the model was not fitted to: all of one shape."""
    chosen, data, of_others = choose(globals_), globals_.other_data, settings.others()
    assert data is not None
    best = chosen.best
    each = (best.score_rates.rate - RATE_PRIOR) / n_rows  # mean of theta
    weight = sum(beta.mean.sum(axis=0) for beta in best.loadings.values())
    profile = np.asarray(weight) / float(each @ np.asarray(weight))
    beta = {
        view.name: np.maximum(
            data.counts[view.name].sum(axis=0) / np.maximum(data.n_observed[view.name], 1.0), 1e-9
        )[:, None]
        * profile
        for view in of_others.views
    }
    started = start_programs(of_others, data, n_rows, beta)
    return replace(chosen, others=replace(started, loading_shape=best.loading_shape))


def empty_globals(settings: Settings) -> Globals:
    """Return globals before any data are seen."""
    return Globals({}, None, {}, np.zeros(0))


def choose(globals_: Globals) -> Globals:
    """Return the start with the highest bound, and what the others were."""
    if len(globals_.programs) < 2:
        return globals_
    best = max(globals_.programs, key=lambda name: globals_.programs[name].objective)
    return replace(remember(globals_), programs={best: globals_.programs[best]})


def remember(globals_: Globals) -> Globals:
    """Return globals with the programs of all starts beside them."""
    starts = globals_.programs.values()
    start_loadings = {
        name: np.stack([start.loadings[name].mean for start in starts])
        for name in next(iter(starts)).loadings
    }
    return replace(
        globals_, start_loadings=start_loadings, objectives=np.array([start.objective for start in starts])
    )
