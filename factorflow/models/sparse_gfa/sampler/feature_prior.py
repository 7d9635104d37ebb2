"""Prior of loadings and coefficients of a run of features, given what they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float64, Int8, Integer

from factorflow.core.trees import replace
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.kernels import draws
from factorflow.models.sparse_gfa.loadings import LoadingsPrior, LoadingSums
from factorflow.models.sparse_gfa.loadings.drawn import Equations, LoadingParameters, Noise
from factorflow.models.sparse_gfa.m_step import System
from factorflow.models.sparse_gfa.settings import Settings

if TYPE_CHECKING:
    from factorflow.models.sparse_gfa.sampler.gibbs_state import ChainGlobals


@dataclass(frozen=True)
class FeaturePrior:
    """Prior of (w, b) of some features.

    Parameters
    ----------
    loadings : LoadingsPrior
        That of the view.
    parameters : LoadingParameters
        A draw of what loadings share.
    classes : array or None
        As `Weights.classes`.
    precision : array
        Of the coefficients of given columns that are learned, the intercept first.
    shift : array
        Prior means of the intercepts.
    """

    loadings: LoadingsPrior
    parameters: LoadingParameters
    classes: Int8[np.ndarray, "D K"] | None
    precision: Float64[np.ndarray, " C"]
    shift: Float64[np.ndarray, " D"]

    def select(self, rows: Integer[Array, " R"]) -> FeaturePrior:
        """Return the prior of some of the features."""
        classes = None if self.classes is None else self.classes[rows]
        return replace(self, classes=classes, shift=self.shift[rows])

    def draw(
        self, system: System, noise: Noise, start: Float64[Array, "D L"], *, backwards: bool = False
    ) -> Float64[Array, "D L"]:
        """Draw (w, b) given what entries say; see `LoadingsPrior.draw_features`."""
        equations = Equations(system.pairs, system.cross, system.scale, self.precision, self.shift)
        arguments = equations, self.parameters, self.classes, noise, start
        return self.loadings.draw_features(*arguments, backwards=backwards)

    def sums(
        self, loadings: Float64[Array, "D K"], uniform: Callable[[], Float64[Array, "D K"]]
    ) -> LoadingSums:
        """Return what drawn loadings add up; see `LoadingsPrior.sums_of_draw`."""
        return self.loadings.sums_of_draw(loadings, self.parameters, self.classes, uniform)

    def gaussian_part(
        self, loadings: Float64[Array, "D K"], uniform: Callable[[], Float64[Array, "D K"]]
    ) -> GaussianPart:
        """Return the normal part of the prior of loadings that are not 0, given that they are not."""
        precision, log_extra = self.loadings.gaussian_part(loadings, self.parameters, uniform)
        given = np.broadcast_to(self.precision, (len(precision), len(self.precision)))
        return GaussianPart(np.concatenate([precision, given], axis=1), self.shift, log_extra)


def feature_prior(settings: Settings, axis: str, globals_: ChainGlobals, rows: slice) -> FeaturePrior:
    """Return the prior of a run of features of a view."""
    view, shared, fixed = settings.view(axis), globals_.shared.views[axis], globals_.fixed[axis]
    classes = globals_.classes.get(axis)
    learned = settings.learned_columns(view)
    place = (fixed.reference / fixed.scale)[rows]  # intercepts are drawn less this
    return FeaturePrior(
        view.prior,
        shared.of_loadings,
        None if classes is None else classes[rows],
        shared.column_precision(settings)[learned],
        (shared.intercept_mean - place) * (learned.start == 0),
    )


@dataclass(frozen=True)
class GaussianPart:
    """A normal prior of the (w, b) of some features that are not 0, and the log of theirs over it.

    Parameters
    ----------
    precision, shift : array
        Precisions; means of the intercepts.
    log_extra : callable or None
        Of loadings; None: their prior is normal.
    """

    precision: Float64[np.ndarray, "#D L"]
    shift: Float64[np.ndarray, " D"]
    log_extra: Callable[[Float64[np.ndarray, "D K"]], Float64[np.ndarray, " D"]] | None

    def draw(
        self,
        system: System,
        rows: Integer[Array, " R"],
        normal: Float64[Array, "R L"],
        start: Float64[Array, "R L"],
        n_factors: int,
    ) -> Float64[Array, "R L"]:
        """Draw (w, b) of some features, which are 0 where they start at 0."""
        precision = self.precision if len(self.precision) == 1 else self.precision[rows]
        same = np.where(start[:, :n_factors] != 0.0, 0.0, 1.0)  # uniforms by which zeros stay zeros
        arguments = system.pairs, system.cross, system.scale, precision, self.shift[rows]
        return draws.draw_loadings(*arguments, np.ones(n_factors), (same, normal), start)
