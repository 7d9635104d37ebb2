"""The number of factors to begin with: components that random signs do not show.

Deflated sign-flip parallel analysis. With Z the entries less their means, in units of the noise of their
feature (0 where missing), R what K components leave of Z, and S random signs::

    K <- number of singular values of Z above the largest ones of R o S,   until it no longer grows

Signs leave the size of every entry as it is, so variances of features and samples and missing entries need
no formula. The noise of a feature is what the components leave of it, by the leave-one-out residual
r / (1 - h), h the leverage of the feature in them: a component that is one feature alone leaves all of it (no
Heywood case).

Singular values come from randomised subspace iteration (Halko, Martinsson and Tropp 2011, SIAM Review 53,
217-288, algorithm 4.4): of the data and of every draw of signs by sketches of one width, with equally many
products, begun anew in each round, so that all lose the same. All views are counted together, then each
alone: components of one view are added where less than half of them is known. The random numbers of a first
start do not depend on the seed of the run, so that all seeds begin alike.

References
----------
Dobriban and Owen (2019), Journal of the Royal Statistical Society B 81, 163-183. Hong, Sheng and Dobriban
(2020), arXiv:2012.02985 (signs).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Float64

from factorflow.core.trees import replace
from factorflow.errors import InputError
from factorflow.kernels import device
from factorflow.kernels.linalg import orthonormal, pad_columns
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Array, Block, Info, Step, Sweep
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.start.components import filled_views, initial_globals, multiply_views
from factorflow.models.sparse_gfa.start.signs import FLIPS, as_signs, rows_with_signs
from factorflow.models.sparse_gfa.start.sketches import (
    PRODUCTS,
    Counting,
    CountStats,
    FeatureSketch,
    SketchStats,
    Spectrum,
    inverse_root,
)
from factorflow.models.sparse_gfa.state import Globals, replace_part

SITE_SKETCH = MODELS[0]
MARGIN = 8
"""Columns of a sketch besides one for each factor that may be kept, at least."""
SPARE = 2
"""Components to begin with besides those counted, since signs may miss weak ones: of few binary entries above
all."""
KNOWN = 0.5
"""Squared length outside all others from which on a component of one view is added."""


def first_number(settings: Settings, n_counted: int) -> int:
    """Return how many factors a fit begins with: some to spare, where those that are not there go."""
    goes = settings.deletes or settings.nonnegative
    return min(n_counted + (SPARE if goes else 0), settings.n_factors)


def most_passes(n_factors: int) -> int:
    """Return how many passes a count takes at most: every round but two finds one component more."""
    return (PRODUCTS + 1) * (n_factors + 2) + 1


@dataclass(frozen=True)
class CountSweep(Sweep[Globals, None, CountStats]):
    """A product of all sketches with the data; in the end the number of factors, and their start.

    Parameters
    ----------
    settings : Settings
        Of the run.
    counts : bool
        Whether components are counted; else as many are taken as the globals have factors, after one round.
    from_seed : bool
        Whether random numbers depend on the seed of the run: for other starts than the first.
    """

    settings: Settings
    counts: bool = True
    from_seed: bool = False
    name: ClassVar[str] = "components"

    def send(self, globals_: Globals) -> Globals:
        """Return what the blocks read."""
        return replace(globals_, weights={}, starts=())

    def map(self, block: Block, local: None, globals_: Globals, step: Step) -> tuple[None, CountStats]:
        """Multiply the sketches with the block and with its transpose."""
        counting, settings = self._counting(globals_), self.settings
        step = step if self.from_seed else replace(step, seed=0)
        filled = filled_views(settings, block, globals_)
        if counting.is_over:
            columns = [s.scores for s in counting.spectra if s.values is not None and len(s.values)]
            parts = [multiply_views(filled, scores, settings.dtype) for scores in columns]
            scores = np.concatenate(parts, axis=1)
            return None, CountStats((), scores.T @ scores)
        sketches: list[SketchStats | None] = []
        for spectrum in counting.spectra:
            if spectrum.values is not None:
                sketches.append(None)
            elif self._is_part(spectrum, counting.spectra[0]) and sketches and sketches[0] is not None:
                mine = {name: sketches[0].views[name] for name in spectrum.views}
                sketches.append(SketchStats(mine, sketches[0].gram))
            else:
                sketches.append(self._multiply(block, filled, spectrum, step, counting.is_last))
        return None, CountStats(tuple(sketches))

    def _is_part(self, spectrum: Spectrum, whole: Spectrum) -> bool:
        """Return whether the first product of all views has that of this spectrum among its parts."""
        begin = not any(one.has_sketch or one.n_components for one in (spectrum, whole))
        shapes = [(self._width(one), self._n_flips(one)) for one in (spectrum, whole)]
        return begin and shapes[0] == shapes[1]

    def _multiply(
        self,
        block: Block,
        filled: Mapping[str, Float[Array, "B _"]],
        spectrum: Spectrum,
        step: Step,
        last: bool,
    ) -> SketchStats:
        """Multiply the sketches of a spectrum with the rows of a block, and with their transpose.

        Of draws of signs the last product of a round has no need of the transpose.
        """
        data = {name: filled[name] for name in spectrum.views}
        dtype, width, n_draws = self.settings.dtype, self._width(spectrum), 1 + self._n_flips(spectrum)

        def signed_rows() -> Iterator[tuple[str, slice, list[Float[Array, "B _"]]]]:
            if n_draws > 1:
                yield from rows_with_signs(self.settings, block, data, spectrum, step)

        if spectrum.has_sketch:
            sketches = [
                {name: pad_columns(view.sketch[:, s], dtype) for name, view in spectrum.views.items()}
                for s in range(n_draws)
            ]
            first = sum(device.product(x, sketches[0][name], width) for name, x in data.items())
            scores = [first, *(np.zeros((block.n_rows, width)) for _ in range(1, n_draws))]
            for name, features, draws in signed_rows():
                for s, rows in enumerate(draws, start=1):
                    scores[s] += device.product(rows, sketches[s][name][features], width)
        else:
            steps = [replace(step, iteration=(1 + FLIPS) * step.iteration + s) for s in range(n_draws)]
            bits = [draw.bits(SITE_SKETCH, block.rows, width) for draw in steps]
            scores = [as_signs(packed, width, np.float64) for packed in bits]
        padded = [pad_columns(a, dtype) for a in scores]
        views = {name: np.empty((x.shape[1], 1 if last else n_draws, width)) for name, x in data.items()}
        for name, x in data.items():
            views[name][:, 0] = device.product(x.T, padded[0], width)
        for name, features, draws in () if last else signed_rows():
            for s, rows in enumerate(draws, start=1):
                views[name][features, s] = device.product(rows.T, padded[s], width)
        return SketchStats(views, np.stack([a.T @ a for a in scores]))

    def update(self, globals_: Globals, stats: CountStats, step: Step) -> tuple[Globals, Info]:
        """Make the sketches orthonormal, or begin another round; in the end begin with the components."""
        counting = self._counting(globals_)
        observed = sum(float(f.count.sum()) for f in globals_.fixed.values())
        info = {"objective": 0.0, "observed": observed}
        if stats.joint is not None:
            return self._begin(globals_, counting, stats.joint), info
        last, spectra = counting.is_last, list(counting.spectra)
        for number, mine in enumerate(stats.spectra):
            if mine is not None:
                spectra[number] = (self._end_round if last else _orthonormal)(spectra[number], mine)
        counting = Counting(tuple(spectra), 0 if last else counting.product + 1)
        return replace(globals_, counting=counting), info | {"pending": 1.0}

    def _counting(self, globals_: Globals) -> Counting:
        """Return the state of the count; before the first pass what it begins with."""
        counting: Counting | None = globals_.counting
        if counting is not None:
            return counting
        names = [view.name for view in self.settings.views]
        groups = [names]
        if self.counts and len(names) > 1:  # a view of one feature has no components
            groups += [[view.name] for view in self.settings.views if view.n_features > 1]
        views = {}
        for name, fixed in globals_.fixed.items():
            count = np.maximum(fixed.count.sum(axis=1), 1e-9)
            total, none = fixed.squares.sum(axis=1) / count, np.zeros((len(count), 0))
            if fixed.regressed is not None:
                total = np.maximum(total - fixed.regressed, 0.0)
            share, empty = count / self.settings.n_rows, np.zeros((len(count), 0, 0))
            views[name] = FeatureSketch(total, total, share, empty, none, none, inverse_root(total))
        return Counting(tuple(Spectrum({name: views[name] for name in group}) for group in groups))

    def _size(self, spectrum: Spectrum) -> int:
        return min(self.settings.n_rows, sum(len(view.noise) for view in spectrum.views.values()))

    def _max_components(self, spectrum: Spectrum) -> int:
        """Return how many components may be found: one less than there are in all."""
        return min(self.settings.n_factors, self._size(spectrum) - 1)

    def _width(self, spectrum: Spectrum) -> int:
        width = -(-(self.settings.n_factors + MARGIN) // 8) * 8  # what matrix products take in any case
        return min(width, self._size(spectrum))

    def _n_flips(self, spectrum: Spectrum) -> int:
        """Return the draws of signs: none where as many components as there may be are known."""
        return FLIPS if self.counts and spectrum.n_components < self._max_components(spectrum) else 0

    def _end_round(self, spectrum: Spectrum, stats: SketchStats) -> Spectrum:
        """Return a spectrum with what a round shows: more components, or the end of the count."""
        values, turn = self._singular_values(spectrum, stats)
        k = spectrum.n_components
        if len(stats.gram) > 1:
            largest = np.linalg.eigvalsh(stats.gram[1:])[:, -1]
            above = int((values > largest.mean() + 2.0 * largest.std(ddof=1)).sum())
            k = min(above, self._max_components(spectrum))
        if k > spectrum.n_components:
            return self._deflate(spectrum, stats, turn[:, :k], values[:k])
        if len(spectrum.views) < len(self.settings.views):  # of one view the others are of no use
            values, turn = values[:k], turn[:, :k]
        views = {
            name: replace(
                view,
                scores=view.sketch[:, 0] @ turn,
                fitted=np.zeros((0, 0)),
                sketch=np.zeros((0, 0, 0)),
            )
            for name, view in spectrum.views.items()
        }
        return replace(spectrum, views=views, values=values)

    def _singular_values(
        self, spectrum: Spectrum, stats: SketchStats
    ) -> tuple[Float64[Array, " L"], Float64[Array, "L L"]]:
        """Return squared singular values, and what turns products of the sketch into scores of length 1."""
        values, vectors = np.linalg.eigh(stats.gram[0])
        if not values[-1] > 0.0:
            if len(spectrum.views) == len(self.settings.views):
                raise InputError(
                    "values of the views",
                    "the same in all samples, feature by feature",
                    "some that differ, apart from those held out",
                    "Check the data, or hold out less.",
                )
            values = np.ones(len(values))  # a view that is constant has no components
        values = np.maximum(values[::-1], 1e-12 * values[-1])
        return values, vectors[:, ::-1] / np.sqrt(values)

    def _deflate(
        self,
        spectrum: Spectrum,
        stats: SketchStats,
        turn: Float64[Array, "L K"],
        values: Float64[Array, " K"],
    ) -> Spectrum:
        """Return a spectrum at the begin of a round, given the components found."""
        n_rows, k, views = self.settings.n_rows, len(values), {}
        for name, view in spectrum.views.items():
            root = inverse_root(view.noise)
            loadings = root[:, None] * (stats.views[name][:, 0] @ turn)  # Z'U
            leverage = np.minimum((loadings**2 / values).sum(axis=1), 0.999)
            left = n_rows * view.share * view.total * root**2 - (loadings**2).sum(axis=1)
            left = np.maximum(left, 0.0) / ((n_rows - k) * view.share * (1.0 - leverage) ** 2)
            noise = np.clip(view.noise * left, 1e-9 * view.total, view.total)
            views[name] = replace(
                view,
                noise=noise,
                sketch=np.zeros((len(noise), 0, 0)),
                scores=view.sketch[:, 0] @ turn,
                fitted=loadings * np.sqrt(view.noise)[:, None],
                scale=inverse_root(noise * (1.0 - leverage) * (n_rows - k) / n_rows),
            )
        return Spectrum(views, k)

    def _begin(self, globals_: Globals, counting: Counting, gram: Float64[Array, "C C"]) -> Globals:
        """Return the globals that a fit begins with: components counted, of single views, and a spare one.

        ``gram``: products of the scores of all spectra, side by side.
        """
        settings, (first, *alone) = self.settings, counting.spectra
        assert first.values is not None
        most, columns, width = self._max_components(first), np.eye(len(gram)), len(first.values)
        chosen, at = columns[:, : first.n_components], width
        for spectrum in alone:
            assert spectrum.values is not None
            more = _outside(columns[:, at : at + spectrum.n_components], chosen, gram, KNOWN)
            chosen = np.concatenate([chosen, more], axis=1)[:, :most]
            at += len(spectrum.values)
        n_counted = chosen.shape[1]
        number = first_number(settings, n_counted) if self.counts else globals_.n_factors
        remaining = columns[:, first.n_components : width] * np.sqrt(first.values[first.n_components :])
        chosen = np.concatenate([chosen, _outside(remaining, chosen, gram, 0.0)], axis=1)
        chosen = chosen[:, : max(number, settings.n_factors)]
        # Data may have fewer components than factors that are to be kept.
        chosen = np.pad(chosen, ((0, 0), (0, max(number - chosen.shape[1], 0))))
        basis = {}
        for view in settings.views:
            parts, at = np.zeros((view.n_features, len(gram))), 0
            for spectrum in counting.spectra:
                assert spectrum.values is not None
                width = len(spectrum.values)
                if view.name in spectrum.views:
                    parts[:, at : at + width] = spectrum.scores[view.name]
                at += width
            basis[view.name] = np.sqrt(settings.n_rows) * (parts @ chosen)
        new = initial_globals(replace(settings, n_factors=number), globals_.fixed)
        n_known = n_counted if self.counts else globals_.factors.n_counted
        return replace_part(replace(new, basis=basis, starts=globals_.starts), "factors", n_counted=n_known)


def _outside(
    columns: Float64[Array, "C J"], chosen: Float64[Array, "C K"], gram: Float64[Array, "C C"], least: float
) -> Float64[Array, "C more"]:
    """Return orthonormal directions outside those chosen, longest first, if longer than `least`, squared."""
    left = columns - chosen @ (chosen.T @ gram @ columns)
    values, vectors = np.linalg.eigh(left.T @ gram @ left)
    values, vectors = values[::-1], vectors[:, ::-1]
    significant = values > max(least, 1e-9 * values.max(initial=0.0))
    return left @ (vectors[:, significant] / np.sqrt(values[significant]))


def _orthonormal(spectrum: Spectrum, stats: SketchStats) -> Spectrum:
    """Return a spectrum with sketches that span what the last product has left of them."""
    names = list(spectrum.views)
    units = {name: np.stack([inverse_root(v.noise), v.scale], axis=1) for name, v in spectrum.views.items()}
    cuts, bases = np.cumsum([len(units[name]) for name in names])[:-1], []
    for s in range(len(stats.gram)):
        product = np.concatenate([units[n][:, min(s, 1), None] * stats.views[n][:, s] for n in names])
        bases.append(np.split(orthonormal(product), cuts))
    views = {}
    for i, name in enumerate(names):
        parts = [units[name][:, min(s, 1), None] * basis[i] for s, basis in enumerate(bases)]
        views[name] = replace(spectrum.views[name], sketch=np.stack(parts, axis=1))
    return replace(spectrum, views=views)
