"""The stages of sparse group factor analysis and the sweeps they are made of; the equations are beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from factorflow.core.trees import replace
from factorflow.errors import InputError
from factorflow.kernels.linalg import n_pairs
from factorflow.likelihoods import Likelihood
from factorflow.likelihoods.predictive import Predictive
from factorflow.models.contract import (
    Array,
    Block,
    Info,
    Model,
    Stage,
    Step,
    Sweep,
    Variable,
)
from factorflow.models.sparse_gfa import prediction, results
from factorflow.models.sparse_gfa.closing import ClosingSweep
from factorflow.models.sparse_gfa.e_step import Phase, map_rows
from factorflow.models.sparse_gfa.global_step import finish_iteration, follow_loadings
from factorflow.models.sparse_gfa.m_step import update_features
from factorflow.models.sparse_gfa.naming import EARLY, WARM_UP, factor_labels
from factorflow.models.sparse_gfa.projection import project_scores
from factorflow.models.sparse_gfa.pseudo_data import PreparedGlobals, strip_for_workers
from factorflow.models.sparse_gfa.refusals import refuse_options
from factorflow.models.sparse_gfa.settings import EARLY_TOLERANCE, PARAMETER_TOL, Settings
from factorflow.models.sparse_gfa.smooth.composite import smooth_part
from factorflow.models.sparse_gfa.smooth.cosines import Cosines
from factorflow.models.sparse_gfa.smooth.points import Points
from factorflow.models.sparse_gfa.smooth.results import course_labels, courses_from_record
from factorflow.models.sparse_gfa.smooth.rows import courses_at
from factorflow.models.sparse_gfa.smooth.sweeps import CourseSweep, PlacesSweep, close_courses
from factorflow.models.sparse_gfa.smooth.warping import WARP_ROUNDS, common_clock
from factorflow.models.sparse_gfa.squarem import discard_unverified_step as whole_steps
from factorflow.models.sparse_gfa.start.components import MomentsSweep, empty_globals, moment_passes
from factorflow.models.sparse_gfa.start.count import CountSweep, most_passes
from factorflow.models.sparse_gfa.start.guided import guided_labels
from factorflow.models.sparse_gfa.start.nonnegative import ShiftSweep
from factorflow.models.sparse_gfa.start.restarts import SPARE, best_start, next_start
from factorflow.models.sparse_gfa.start.set_components import SetComponentsSweep, looks_at_sets
from factorflow.models.sparse_gfa.start.sparse_stage import initialize_sparse
from factorflow.models.sparse_gfa.start.warm_start import warm_globals
from factorflow.models.sparse_gfa.state import Globals, Local
from factorflow.models.sparse_gfa.statistics import FeatureSums, Stats
from factorflow.models.sparse_gfa.stored_scores import scores_of
from factorflow.models.sparse_gfa.weights import Weights

Enter = Callable[[Globals], Globals]

PATIENCE = 2
"""Passes running that gain little, after which the sparse stage ends."""


@dataclass(frozen=True)
class UpdateSweep(Sweep[Globals, Local, Stats]):
    """One pass: scores of every block, weights of every run of features, then what all share."""

    settings: Settings
    warm: bool = False
    projecting: bool = False
    settles: bool = True
    name: ClassVar[str] = "update"

    def send(self, globals_: Globals) -> Globals:
        """Return the globals with the moments of the weights alone; see `strip_for_workers`.

        New samples may lie anywhere, and need courses whole.
        """
        if self.projecting and globals_.courses is not None:
            return globals_
        return strip_for_workers(self.settings, globals_)

    def prepare(self, globals_: Globals) -> PreparedGlobals:
        """Return the globals with tables that all blocks read."""
        return PreparedGlobals(self.settings, globals_)

    def map(
        self, block: Block, local: Local | None, globals_: PreparedGlobals, step: Step
    ) -> tuple[Local | None, Stats]:
        """Update the scores of a block; see `map_rows`."""
        first: Phase = "update" if self.warm else "restart" if not self.settings.dense else "start"
        phase: Phase = "update" if step.count or step.projecting else first
        begins = self.warm and not step.count and self.settings.stateful
        if begins and scores_of(local, globals_.globals_) is None:  # what the earlier fit makes of the rows
            local, phase = project_scores(self.settings, block, None, globals_), "known"
        return map_rows(self.settings, block, local, globals_, step, phase)

    def axes(self) -> Mapping[str, int]:
        """Return the views and their numbers of features."""
        return {view.name: view.n_features for view in self.settings.views}

    def features(
        self, axis: str, index: range, globals_: Globals, stats: Stats, step: Step
    ) -> tuple[Weights, FeatureSums]:
        """Update weights, intercepts and noise of a run of features; see `update_features`."""
        return update_features(self.settings, axis, index, globals_, stats, step)

    def assemble(
        self,
        globals_: Globals,
        stats: Stats,
        parts: Mapping[str, Weights],
        sums: Mapping[str, FeatureSums],
        step: Step,
    ) -> tuple[Globals, Info]:
        """Update shared parameters and compute the bound; see `finish_iteration`."""
        return finish_iteration(self.settings, globals_, stats, parts, sums, step, settles=self.settles)


@dataclass(frozen=True)
class SparseGFAModel(Model[Globals, Local]):
    """Sparse group factor analysis of a dataset of a given shape."""

    settings: Settings
    max_iter: int
    warmup_iter: int
    tol: float
    kind: ClassVar[Literal["variational", "monte carlo"]] = "variational"
    predicts_new: ClassVar[bool] = True

    def stages(self) -> tuple[Stage[Globals], ...]:
        """Return moments, principal components, warm-up, sparse stage, closing pass.

        Of several starts, each has its own from the components on; then the best goes on (`restarts`).
        """
        s = self.settings
        stages = [Stage[Globals]("moments", (MomentsSweep(s),), moment_passes(s), counts=False)]
        if s.start == "pca":
            stages.append(self._components(CountSweep(s, counts=s.counts)))
        fit = self._fit_stages()
        stages += fit
        spare = 0 if s.dense else SPARE
        rough = CountSweep(s, counts=False, from_seed=True)
        for number in range(2, s.n_starts + 1):
            another = [replace(self._components(rough), enter=partial(next_start, s, spare=spare)), *fit]
            stages += [replace(stage, name=f"{stage.name} {number}") for stage in another]
        closing: Enter | None = None
        if s.n_starts > 1:
            stages += self._last_stages()
            closing = partial(best_start, s, over=False)
        return (*stages, self._closing_stage(ClosingSweep(s), closing))

    def _closing_stage(self, sweep: ClosingSweep, enter: Enter | None = None) -> Stage[Globals]:
        over = partial(_both, whole_steps, partial(follow_loadings, self.settings))
        enter = over if enter is None else partial(_both, enter, over)
        return Stage("closing", (sweep,), 1, counts=False, closing=True, enter=enter)

    def _components(self, sweep: CountSweep) -> Stage[Globals]:
        passes = most_passes(self.settings.n_factors)
        return Stage("components", (sweep,), passes, tol=1.0, patience=1, counts=False)

    def _last_stages(self) -> list[Stage[Globals]]:
        """Return the stages in which the best start goes on."""
        s, enter = self.settings, partial(best_start, self.settings, over=True)
        last = self._fit_stages()[-1]
        sweep = UpdateSweep(s, warm=True)
        return [replace(last, name=f"best {last.name}", sweeps=(sweep,), enter=enter)]

    def _fit_stages(self) -> list[Stage[Globals]]:
        """Return the warm-up and the sparse stage, or the dense one."""
        s = self.settings
        warm = UpdateSweep(s.warm_up)
        if s.dense:
            return [Stage("dense", (warm,), self.max_iter, tol=self.tol, parameter_tol=PARAMETER_TOL)]
        return [
            Stage(
                "warm-up",
                (warm,),
                self.warmup_iter if s.sets is None else min(self.warmup_iter, WARM_UP),
                **self._loose,
            ),
            *self._sparse_stages(),
            *self._smooth_stages(),
        ]

    def _sparse_stages(self) -> list[Stage[Globals]]:
        """Return the sparse stage; with feature sets one before in which factors start from sets."""
        s, last = self.settings, self.settings.smooth is None
        sweep = UpdateSweep(s, settles=last)
        first, again = (self._sparse_stage(each) for each in (sweep, replace(sweep, warm=True)))
        first = replace(first, enter=partial(initialize_sparse, s))
        if not last:
            first, again = (replace(stage, **self._loose) for stage in (first, again))
        if s.nonnegative:
            shifts = Stage[Globals]("shift", (ShiftSweep(s),), 1, counts=False, enter=first.enter)
            return [shifts, again]
        if not looks_at_sets(s):
            return [first]
        early = replace(first, name="naming", max_iter=min(self.max_iter, EARLY))
        of_sets = Stage[Globals]("sets", (SetComponentsSweep(s),), 1, counts=False, enter=whole_steps)
        return [early, of_sets, again]

    def _smooth_stages(self) -> list[Stage[Globals]]:
        """Return the stages in which factors become functions of the places, if they are."""
        s = self.settings
        if s.smooth is None:
            return []
        early = UpdateSweep(s, warm=True, settles=False)
        loadings = replace(early, settles=True)
        return [
            Stage[Globals]("places", (PlacesSweep(s),), 1, counts=False, enter=whole_steps),
            replace(
                self._sparse_stage(early),
                name="smooth",
                sweeps=(CourseSweep(s, opening=True), early),
                min_iter=0 if s.smooth.warping is None else WARP_ROUNDS[-1] + 1,
                **self._loose,
            ),
            replace(
                self._sparse_stage(loadings),
                name="smooth or not",
                sweeps=(CourseSweep(s, opening=False), loadings),
                enter=partial(_both, whole_steps, partial(close_courses, s)),
            ),
        ]

    @property
    def _loose(self) -> dict[str, Any]:
        """When stages end that are followed by another of their kind."""
        return {
            "tol": EARLY_TOLERANCE * self.tol,
            "parameter_tol": EARLY_TOLERANCE * PARAMETER_TOL,
            "patience": 1,
        }

    def _sparse_stage(self, sweep: UpdateSweep) -> Stage[Globals]:
        return Stage(
            "sparse",
            (sweep,),
            self.max_iter,
            tol=self.tol,
            parameter_tol=PARAMETER_TOL,
            patience=PATIENCE,
        )

    def warm_stages(self) -> tuple[Stage[Globals], ...]:
        """Return moments, sparse stage, closing passes.

        Raises
        ------
        InputError
            For options that make a start from weights as they are pointless.
        """
        s = self.settings
        refuse_options(s, "warm_start")
        return (
            Stage[Globals]("moments", (MomentsSweep(s),), moment_passes(s), counts=False),
            self._sparse_stage(UpdateSweep(s, warm=True)),
            self._closing_stage(ClosingSweep(s, warm=True)),
        )

    def warm(self, globals_: Globals, fitted: Globals) -> Globals:
        """Return what an earlier fit learned, in the units of the data as they are now."""
        return warm_globals(self.settings, globals_, fitted)

    def projection(self) -> tuple[Sweep[Globals, Local, Stats], ...]:
        """Return the sweep that finds the scores of new samples."""
        return (UpdateSweep(self.settings, projecting=True),)

    def init(self, step: Step) -> Globals:
        """Return globals before any data are seen."""
        import scipy.optimize  # noqa: F401  (for rotations: loaded now, not amid the first of them)

        return empty_globals(self.settings)

    def variables(self) -> tuple[Variable, ...]:
        """Return the table of variables."""
        return results.variables(self.settings)

    def coords(self, globals_: Globals) -> Mapping[str, Sequence[str]]:
        """Return the labels of factors, views and starts."""
        numbered = self.factor_names(globals_.n_factors, globals_.factors.numbers)
        names = {
            "factor": guided_labels(
                self.settings, globals_, factor_labels(self.settings, globals_, numbered)
            ),
            "view": [view.name for view in self.settings.views],
        }
        if self.settings.covariates is not None:
            names |= self.settings.covariates.coords
            names["coefficient_pair"] = [str(i) for i in range(n_pairs(self.settings.n_given))]
            if self.settings.incomplete:
                size = globals_.n_factors + len(self.settings.covariates)
                names["score_pair"] = [str(i) for i in range(n_pairs(size))]
        if self.settings.sets is not None:
            names["feature_set"] = list(self.settings.sets.names)
        if self.settings.smooth is not None:
            names |= course_labels(self.settings.smooth)
        if self.settings.n_starts > 1:
            names["start"] = [f"start{i + 1}" for i in range(len(globals_.starts))]
            names["start_factor"] = [str(i + 1) for i in range(self.settings.n_factors)]
        return names

    def prepare(self, globals_: Globals) -> PreparedGlobals:
        """Return the globals with tables that all blocks read."""
        return PreparedGlobals(self.settings, globals_)

    def finish(
        self, block: Block, local: Local | None, globals_: PreparedGlobals, step: Step
    ) -> results.Final:
        """Return the final q(z) of a block."""
        return results.finish(self.settings, block, local, globals_, step)

    def predict(
        self, block: Block, rows: Mapping[str, Array], record: Mapping[str, Array], view: str
    ) -> tuple[Array, Array]:
        """Return mean and standard deviation of new observations of a view, (B, D) each."""
        return prediction.predict(self.settings, block, rows, record, view)

    def predictive(
        self, block: Block, rows: Mapping[str, Array], record: Mapping[str, Array], view: str
    ) -> Predictive | None:
        """Return the distribution of new observations of a view that is not Gaussian."""
        return prediction.predictive(self.settings, block, rows, record, view)

    def alone(self, globals_: Globals, view: str) -> tuple[Array, Array] | None:
        """Return the likelihood fitted to each feature of a view alone."""
        return prediction.alone(self.settings, globals_.fixed[view], view)

    def interpolate(
        self, record: Mapping[str, Array], places: Array, codes: Array
    ) -> tuple[Array, Array, Array]:
        """Return mean and variance of the courses at any places, (n, K), and of scores about them."""
        smooth = self.settings.smooth
        assert smooth is not None
        courses = courses_from_record(record)
        others = np.full((len(places), smooth.basis.width - places.shape[1]), np.nan)  # parts not asked for
        places = np.concatenate([places, others], axis=1)
        mean, variance, beside, reached = courses_at(smooth.basis, places, codes, courses)
        return mean, variance, np.where(reached[:, None], courses.noise + beside, courses.noise)

    def warped(self, record: Mapping[str, Array], places: Array, codes: Array) -> Array:
        """Return own times of groups on the common clock, (n,)."""
        smooth = self.settings.smooth
        if smooth is None or smooth.warping is None:
            remedy = "Fit with {warping}."
            raise InputError(
                "model", "one with one clock", "one with a clock of each group", remedy, warping=True
            )
        assert isinstance(smooth.basis, Points)
        is_known = np.isfinite(places[:, 0])
        warped_times = np.full(len(places), np.nan)
        warp = np.asarray(record["warp"], np.float64)
        warped_times[is_known] = common_clock(
            smooth.basis.places, places[is_known, 0], codes[is_known], warp
        )[0]
        return warped_times

    def shortest_lengths(self) -> tuple[Array, int] | None:
        """Return the shortest length scales that cosines resolve, and how many these are a column."""
        part = None if self.settings.smooth is None else smooth_part(self.settings.smooth.basis)
        basis = None if part is None else part[0]
        return (basis.shortest, max(basis.per_column)) if isinstance(basis, Cosines) else None

    def likelihood(self, view: str) -> Likelihood:
        """Return the likelihood of the entries of a view."""
        return self.settings.view(view).density

    def degrees_of_freedom(
        self, block: Block, rows: Mapping[str, Array], record: Mapping[str, Array], view: str
    ) -> Array | None:
        """Return the degrees of freedom of new measurements, (1 or B, D)."""
        return prediction.degrees_of_freedom(rows, record, view)


def _both(first: Enter, second: Enter, globals_: Globals) -> Globals:
    return second(first(globals_))
