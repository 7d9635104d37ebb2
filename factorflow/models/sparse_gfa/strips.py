"""Sparse group factor analysis of many features and few samples, cut by features instead of samples.

Cut by samples, every pass hands the weights of all features to every worker and takes statistics of all
features back. Cut by features, the weights of a strip stay with the strip; what travels is q(z) of the few
samples, and what the strip says about it. The updates are those of `UpdateSweep`, in the same order::

    row cut      z of every block | weights of every run | shared parameters, the bound
    strips       weights of every strip, and the evidence they give | shared parameters, the bound, z

For Gaussian views with one noise precision a feature and normal scores: there q(z) follows from the weights,
and entries are their own pseudo-data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float64

from factorflow.kernels import device
from factorflow.kernels.linalg import congruence, diagonal, pad_columns
from factorflow.models.contract import Array, Block, Gather, Info, Step, Sweep
from factorflow.models.sparse_gfa.features import precision_pairs, rows_of, update_features
from factorflow.models.sparse_gfa.pseudo import Evidence, evidence_of, gaussian_data, low_noise, table_of
from factorflow.models.sparse_gfa.root import finish_iteration, shares
from factorflow.models.sparse_gfa.samples import (
    Refreshed,
    blank,
    blank_entropy,
    rounded,
    statistics,
    update_scores,
)
from factorflow.models.sparse_gfa.search.surplus import with_constant
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.start.components import starting_scores
from factorflow.models.sparse_gfa.state import (
    Fixed,
    Globals,
    Held,
    Local,
    Weights,
    expected_weights,
    transformed_weights,
)
from factorflow.models.sparse_gfa.sums import FeatureSums
from factorflow.trees import replace

__all__ = ["LoadingsSweep", "ScoresSweep", "StripSweep", "can_be_cut", "is_wide"]

MANY, TIMES = 16_384, 32
"""Strips are for so many features, and for so many times more features than samples."""

_NONE = np.empty(0, np.intp)


def is_wide(settings: Settings) -> bool:
    """Return whether the features are so many that they are to stay where their strips are."""
    n_features = sum(view.n_features for view in settings.views)
    return can_be_cut(settings) and n_features >= max(MANY, TIMES * settings.n_rows)


def can_be_cut(settings: Settings) -> bool:
    """Return whether the model is one of those that strips are for."""
    one = settings.n_noise_groups == 1 and settings.n_groups == 1 and settings.inference == "full"
    return one and not settings.stateful


@dataclass(frozen=True)
class Strip:
    """What a strip knows of its features, and has learned of them."""

    fixed: Fixed
    weights: Weights
    before: Weights | None = None
    """The weights when a smaller model took over, until it is known whether it stays."""


@dataclass(frozen=True)
class StripStats:
    """What strips add up, by view.

    Parameters
    ----------
    evidence : mapping of view to Evidence
        What the view says of every sample.
    sums : mapping of view to FeatureSums
        See there.
    signal : mapping of view to array
        sum_d n_d E[w_d]^2, n_d: observed entries.
    fewer : mapping of view to Evidence
        The evidence of the smaller model that is to take over.
    start : array or None
        Of the scores that a run starts from, what this strip has to give.
    """

    evidence: Mapping[str, Evidence | None]
    sums: Mapping[str, FeatureSums | None]
    signal: Mapping[str, Float64[np.ndarray, " K"] | None]
    fewer: Mapping[str, Evidence | None]
    start: Float64[np.ndarray, "N L"] | None = None


@dataclass(frozen=True)
class ScoresSweep(Sweep[Globals, Strip, StripStats]):
    """Hand the weights out to the strips and find the scores that the next stage begins with.

    Parameters
    ----------
    settings : Settings
        Of the run.
    sparse : bool
        Before the sparse stage: from the evidence; else as a run starts.
    """

    settings: Settings
    sparse: bool
    name: ClassVar[str] = "scores"

    def send(self, globals_: Globals) -> Globals:
        """Return what the strips read."""
        return replace(globals_, starts=())

    def map(
        self, block: Block, local: Strip | None, globals_: Globals, step: Step
    ) -> tuple[Strip, StripStats]:
        """Take the strip's own, and return what it says of the scores."""
        name, rows = _place(block)
        strip = Strip(rows_of(globals_.fixed[name], rows), rows_of(globals_.weights[name], rows))
        settings, evidence, start = self.settings, None, None
        if self.sparse:
            evidence = _evidence(_of_strip(settings, block), block, globals_, strip)
        elif globals_.basis:
            data = gaussian_data(settings, name, block, _own(globals_, name, strip), _NONE)
            basis = globals_.basis[name][rows, : globals_.n_factors]
            start = device.product(data.response, pad_columns(basis, settings.dtype), basis.shape[1])
        elif block.number == 0:
            start = starting_scores(settings, block, globals_, step)
        nothing = _only(settings, name, None)
        return strip, StripStats(_only(settings, name, evidence), nothing, nothing, nothing, start)

    def update(self, globals_: Globals, stats: StripStats, step: Step) -> tuple[Globals, Info]:
        """Start the scores; the weights are with the strips from now on."""
        settings = self.settings
        if self.sparse:
            mean = _scores(settings, globals_, stats.evidence)[0].mean
        else:
            assert stats.start is not None
            mean = stats.start
        held = Held(
            scores=rounded(blank(settings, mean), settings),
            entropy=blank_entropy(mean),
            squares={name: float(f.squares.sum()) for name, f in globals_.fixed.items()},
            observed=sum(float(f.count.sum()) for f in globals_.fixed.values()),
        )
        return replace(globals_, fixed={}, weights={}, basis={}, transform=None, held=held), {}


@dataclass(frozen=True)
class StripSweep(Sweep[Globals, Strip, StripStats]):
    """One pass: weights of every strip, what they say of the scores; then what all share, and the scores."""

    settings: Settings
    sparse: bool
    name: ClassVar[str] = "update"

    @property
    def sends_all(self) -> bool:
        """Whether there is nothing to leave out: what travels is little but for other starts."""
        return self.settings.n_starts == 1

    def send(self, globals_: Globals) -> Globals:
        """Return what the strips read."""
        return replace(globals_, starts=())

    def map(
        self, block: Block, local: Strip | None, globals_: Globals, step: Step
    ) -> tuple[Strip, StripStats]:
        """Update the weights of the strip, given the scores; return what they say of the next ones."""
        assert local is not None
        assert globals_.held is not None
        (name, _), settings = _place(block), _of_strip(self.settings, block)
        strip = turned(local, globals_.held)
        mine, held = _own(globals_, name, strip), globals_.held
        data = gaussian_data(settings, name, block, mine, low_noise(settings, settings.view(name), mine))
        codes = np.zeros(len(held.scores.mean), np.int64)
        stats = statistics(settings, codes, Refreshed(held.scores, {name: data}, 0.0, held.entropy), mine)
        index = range(len(strip.weights.mean))
        weights, sums = update_features(settings, name, index, mine, stats, step, sparse=self.sparse)
        new, expected = replace(strip, weights=weights), expected_weights(weights)
        signal = strip.fixed.count.sum(axis=1) @ expected[0] ** 2
        evidence = _evidence(settings, block, globals_, new, sums.pairs, expected)
        fewer = None
        if weights.fewer is not None:
            smaller = replace(strip, weights=weights.fewer)
            fewer = _evidence(settings, block, globals_, smaller, sums.fewer[0].pairs)
        by_view = [_only(self.settings, name, value) for value in (evidence, sums, signal, fewer)]
        return new, StripStats(by_view[0], by_view[1], by_view[2], by_view[3])

    def update(self, globals_: Globals, stats: StripStats, step: Step) -> tuple[Globals, Info]:
        """Update what all features share, compute the bound, and find the next scores."""
        settings, held = self.settings, globals_.held
        assert held is not None
        codes = np.zeros(len(held.scores.mean), np.int64)
        added = statistics(
            replace(settings, views=()), codes, Refreshed(held.scores, {}, 0.0, held.entropy), globals_
        )
        sums = {name: one for name, one in stats.sums.items() if one is not None}
        scale = diagonal(added.moments, globals_.n_factors + 1)[:-1] / added.rows.sum()
        strength = [
            signal * scale / max(held.squares[name], 1e-300)
            for name, signal in stats.signal.items()
            if signal is not None
        ]
        before = replace(globals_, held=replace(held, turn=None, adopted=False, restored=False))
        new, info = finish_iteration(
            settings, before, added, {}, sums, step, sparse=self.sparse, strength=np.stack(strength)
        )
        assert new.held is not None
        if new.restored:  # with the scores that were found for it
            return new, info
        if not new.held.adopted:
            return _with_scores(settings, new, stats.evidence), info
        assert new.earlier is not None
        new = replace(new, earlier=_with_scores(settings, new.earlier, stats.evidence))
        return _with_scores(settings, new, stats.fewer), info


@dataclass(frozen=True)
class LoadingsStats:
    """What the strips know, laid side by side: of every feature, numbered through all views."""

    strips: Gather


@dataclass(frozen=True)
class LoadingsSweep(Sweep[Globals, Strip, LoadingsStats]):
    """Collect the weights from the strips, for what looks at all of them."""

    settings: Settings
    name: ClassVar[str] = "loadings"

    def map(
        self, block: Block, local: Strip | None, globals_: Globals, step: Step
    ) -> tuple[Strip | None, LoadingsStats]:
        """Return what the strip knows; where the globals have it all already, that."""
        (name, rows), held = _place(block), globals_.held
        if held is None:
            strip = Strip(rows_of(globals_.fixed[name], rows), rows_of(globals_.weights[name], rows))
        else:
            assert local is not None
            strip = replace(turned(local, held), before=None)
        numbers = np.arange(rows.start, rows.stop) + self._before(name)
        return local, LoadingsStats(Gather(numbers, strip))

    def update(self, globals_: Globals, stats: LoadingsStats, step: Step) -> tuple[Globals, Info]:
        """Put the weights of every view together."""
        fixed, weights = {}, {}
        for view in self.settings.views:
            before = self._before(view.name)
            rows = slice(before, before + view.n_features)
            fixed[view.name] = rows_of(stats.strips.values.fixed, rows)
            weights[view.name] = rows_of(stats.strips.values.weights, rows)
        whole = replace(globals_, fixed=fixed, weights=weights, transform=None, held=None)
        whole = replace(whole, earlier=None, bar=None, restored=False)
        return replace(whole, strength=shares(self.settings, whole)), {}

    def _before(self, name: str) -> int:
        names = [view.name for view in self.settings.views]
        return sum(view.n_features for view in self.settings.views[: names.index(name)])


def _place(block: Block) -> tuple[str, slice]:
    """Return the view of a strip and its rows among the features."""
    (name,) = block.data
    assert block.features is not None
    return name, slice(block.features.start, block.features.stop)


def _of_strip(settings: Settings, block: Block) -> Settings:
    """Return the settings of a run whose only view is the strip's."""
    name, rows = _place(block)
    view = replace(settings.view(name), n_features=rows.stop - rows.start)
    return replace(settings, views=(view,), many=settings.many_samples)


def _own(globals_: Globals, name: str, strip: Strip) -> Globals:
    """Return the globals as if the strip was all there is."""
    return replace(
        globals_, fixed={name: strip.fixed}, weights={name: strip.weights}, views={name: globals_.views[name]}
    )


def _only(settings: Settings, name: str, value: Any) -> dict[str, Any]:
    return {view.name: value if view.name == name else None for view in settings.views}


def turned(strip: Strip, held: Held) -> Strip:
    """Return a strip whose weights follow the last decisions of the root: smaller model, change of basis."""
    weights = replace(strip.weights, fewer=None)
    before = None
    if held.adopted:
        assert strip.weights.fewer is not None
        weights, before = strip.weights.fewer, weights
    if held.restored:
        assert strip.before is not None
        weights = strip.before
    if held.turn is not None:
        weights = transformed_weights(weights, held.turn)
    return replace(strip, weights=weights, before=before)


def _evidence(
    mine: Settings,
    block: Block,
    globals_: Globals,
    strip: Strip,
    pairs: Float64[Array, "T Q"] | None = None,
    expected: tuple[Float64[Array, "D K"], Float64[Array, "D V"]] | None = None,
) -> Evidence:
    """Return what a strip says of every sample, given its settings (`_of_strip`).

    Of its weights ``pairs`` (`View.pairs`) and ``expected`` (`expected_weights`), if known.
    """
    name, _ = _place(block)
    if pairs is None:
        pairs = precision_pairs(mine, name, strip.weights)
    own = _own(globals_, name, strip)
    own = replace(own, views={name: replace(own.views[name], pairs=pairs)})
    table = table_of(mine, mine.view(name), own, 0, block.data[name], expected)
    data = gaussian_data(mine, name, block, own, table.low_noise)
    found = evidence_of(data, table, strip.weights.mean.shape[1])
    rows = len(found.linear) if mine.view(name).scattered else len(found.pairs)
    return replace(found, pairs=np.broadcast_to(device.on_host(found.pairs), (rows, found.pairs.shape[1])))


def _with_scores(settings: Settings, globals_: Globals, evidence: Mapping[str, Evidence | None]) -> Globals:
    """Return the globals with the scores that follow from what their weights say."""
    assert globals_.held is not None
    scores, entropy = _scores(settings, globals_, evidence)
    return replace(globals_, transform=None, held=replace(globals_.held, scores=scores, entropy=entropy))


def _scores(
    settings: Settings, globals_: Globals, evidence: Mapping[str, Evidence | None]
) -> tuple[Local, float]:
    """Return q(z) of all samples and its entropy, given what the weights before the last turn say."""
    turn = None if globals_.held is None else globals_.held.turn
    said = {name: one for name, one in evidence.items() if one is not None}
    if turn is not None:
        extended = with_constant(turn)
        said = {
            name: Evidence(congruence(one.pairs, extended), one.linear @ extended.T)
            for name, one in said.items()
        }
    codes = np.zeros(len(next(iter(said.values())).linear), np.int64)
    new, entropy = update_scores(settings, codes, None, globals_, said)
    return rounded(new, settings), entropy
