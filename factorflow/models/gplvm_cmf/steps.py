"""The steps of the optimiser, the evaluation of the bound, and the projection of new rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from factorflow.kernels.device import on_host
from factorflow.models.contract import Block, Info, Step, Sweep
from factorflow.models.gplvm_cmf.rows import (
    EVALUATION,
    FITTING,
    convert_rows,
    noise_of,
    noise_of_inducing,
    standardised_inputs,
    step_at,
)
from factorflow.models.gplvm_cmf.settings import Family, Settings
from factorflow.models.gplvm_cmf.state import Arrays, Cotangents, Globals, Gradients, Local, Values

if TYPE_CHECKING:
    from factorflow.models.gplvm_cmf.autodiff.passes import PassInputs

LEAST_RATE = 0.02
"""Share of a stage's first step length that its last step has."""

PROCESS = ("inducing", "log_length", "log_variance", "w", "log_noise")
"""Parameters of the process."""

SLOWLY = 0.3
"""Share of a step's length that the process takes where X is learned: a step of it moves z of all rows at
once, which they have to follow, and which sharp posteriors feel."""


def rate_at(rate: float, count: int, n_steps: int) -> float:
    """Return the length of a step: it falls as a cosine."""
    turn = math.pi * min(count, n_steps) / n_steps
    return rate * max(LEAST_RATE, 0.5 * (1.0 + math.cos(turn)))


def _arrays_of(settings: Settings, family: Family, block: Block, local: Local | None, g: Globals) -> Arrays:
    """Return the parameters of the rows, and their inputs where those are given."""
    if family == "gp" and not settings.learns_inputs:
        return {"inputs": standardised_inputs(settings, block, g.fixed)}
    assert local is not None
    return local.values


def pass_inputs(
    settings: Settings, family: Family, block: Block, local: Local | None, globals_: Globals
) -> PassInputs:
    """Return what a pass over the rows of a block is given."""
    from factorflow.models.gplvm_cmf.autodiff import passes

    arrays = _arrays_of(settings, family, block, local, globals_)
    return passes.PassInputs(
        settings, family, globals_.values, arrays, passes.read_block(settings, block, globals_.fixed)
    )


def n_observed(settings: Settings, block: Block) -> float:
    """Return the observed entries of a block, of the views that are explained."""
    count = 0
    for view in settings.views:
        values = on_host(block.data[view.name])
        count += int(((values == values) if view.likelihood == "gaussian" else (values >= 0)).sum())
    return float(count)


@dataclass(frozen=True)
class Reduce(Sweep[Globals, Local, Values]):
    """First of the two passes of a step where u is drawn: G and h of all rows, and their cotangents."""

    settings: Settings
    name: ClassVar[str] = "reduce"

    def map(
        self, block: Block, local: Local | None, globals_: Globals, step: Step
    ) -> tuple[Local | None, Values]:
        """Add up G and h."""
        from factorflow.models.gplvm_cmf.autodiff import passes

        settings = self.settings
        rows = convert_rows(settings, "gp", block, local, globals_, step)
        noise = noise_of(settings, "gp", block, step, settings.draws)
        bound, gram, shift = passes.evaluate(pass_inputs(settings, "gp", block, rows, globals_), noise)
        return local, Values(float(bound.sum()), 0.0, gram, shift)

    def update(self, globals_: Globals, stats: Values, step: Step) -> tuple[Globals, Info]:
        """Leave the derivatives of log r(w|z) - log q(w) for the second pass."""
        from factorflow.models.gplvm_cmf.autodiff import passes

        noise = noise_of_inducing(self.settings, step, self.settings.draws)
        assert stats.gram is not None
        assert stats.shift is not None
        cotangents = passes.cotangents(self.settings, globals_.values, noise, stats.gram, stats.shift)
        return replace(globals_, pending=cotangents), {}


@dataclass(frozen=True)
class Descend(Sweep[Globals, Local, Gradients]):
    """One step of Adam, of the rows of a part and of the parameters.

    Parameters
    ----------
    family : str
        How q(z) is held.
    n_steps, before : int
        Steps that the length falls over, and how many of them the warm-up took.
    """

    settings: Settings
    family: Family
    n_steps: int
    before: int = 0
    name: ClassVar[str] = "descend"

    def map(
        self, block: Block, local: Local | None, globals_: Globals, step: Step
    ) -> tuple[Local | None, Gradients]:
        """Move the rows, and add up the gradient with respect to the parameters."""
        from factorflow.models.gplvm_cmf.autodiff import passes

        settings, family = self.settings, self.family
        rows = convert_rows(settings, family, block, local, globals_, step)
        names = () if rows is None else tuple(rows.values)
        bound, of_globals, of_rows = passes.differentiate(
            pass_inputs(settings, family, block, rows, globals_),
            noise_of(settings, family, block, step, settings.draws),
            tuple(globals_.values),
            names,
            globals_.pending,
        )
        stats = Gradients(bound, of_globals)
        if rows is None:
            return None, stats
        return _ascend_rows(rows, of_rows, self._rate(settings.row_rate, step)), stats

    def update(self, globals_: Globals, stats: Gradients, step: Step) -> tuple[Globals, Info]:
        """Move the parameters."""
        from factorflow.models.gplvm_cmf.autodiff import optimise

        pending, bound = globals_.pending, step.scale * stats.bound
        gradients = {name: step.scale * gradient for name, gradient in stats.values.items()}
        if pending is not None:
            bound += pending.bound
            gradients |= {name: gradients[name] + more for name, more in pending.values.items()}
        n = float(self.settings.n_rows)  # a bound a row: Adam does not mind, but its least denominator does
        gradients = {name: gradient / n for name, gradient in gradients.items()}
        step_sizes = {name: float(globals_.steps.get(name, 0.0)) for name in gradients}
        rate = self._rate(self.settings.rate, step)
        shares = {name: SLOWLY if self._moves_all(name) else 1.0 for name in gradients}
        values, first, second = optimise.ascend(
            globals_.values, globals_.first, globals_.second, gradients, step_sizes, rate, shares
        )
        steps = dict(globals_.steps) | {name: np.array(n + 1.0) for name, n in step_sizes.items()}
        moved = replace(globals_, values=values, first=first, second=second, steps=steps, pending=None)
        return moved, {"objective": bound}

    def _moves_all(self, name: str) -> bool:
        """Return whether a parameter moves z of all rows, beside what each row learns of its own."""
        return name in PROCESS and self.settings.learns_inputs

    def _rate(self, rate: float, step: Step) -> float:
        """Return the length of this step: one cosine over the warm-up and what follows."""
        return rate_at(rate, self.before + step.count, self.n_steps)


def _ascend_rows(rows: Local, gradients: Arrays, rate: float) -> Local:
    """Return rows after a step of Adam; those of a block have taken equally many."""
    from factorflow.models.gplvm_cmf.autodiff import optimise

    updated = optimise.ascend(rows.values, rows.first, rows.second, gradients, float(rows.steps[0]), rate)
    return Local(*updated, rows.steps + 1.0)


@dataclass(frozen=True)
class Evaluate(Sweep[Globals, Local, Values]):
    """The bound of all rows, with the same noise every time."""

    settings: Settings
    family: Family
    name: ClassVar[str] = "evaluate"

    def map(self, block: Block, local: Local | None, globals_: Globals, step: Step) -> tuple[None, Values]:
        """Add up the bound."""
        from factorflow.models.gplvm_cmf.autodiff import passes

        settings, family = self.settings, self.family
        rows = convert_rows(settings, family, block, local, globals_, step)
        noise = noise_of(settings, family, block, step_at(step, EVALUATION), settings.evaluation_draws)
        bound, gram, shift = passes.evaluate(pass_inputs(settings, family, block, rows, globals_), noise)
        return None, Values(float(bound.sum()), n_observed(settings, block), gram, shift)

    def update(self, globals_: Globals, stats: Values, step: Step) -> tuple[Globals, Info]:
        """Report the bound."""
        bound = stats.bound + rest_of_bound(self.settings, globals_, stats, step_at(step, EVALUATION))
        return globals_, {"objective": bound, "observed": stats.observed}


def rest_of_bound(settings: Settings, globals_: Globals, stats: Values, step: Step) -> float:
    """Return log r(w|z) - log q(w), given G and h of all rows; 0 where u is not drawn."""
    if stats.gram is None or stats.shift is None:
        return 0.0
    from factorflow.models.gplvm_cmf.autodiff import passes

    noise = noise_of_inducing(settings, step, settings.evaluation_draws)
    terms: Cotangents = passes.cotangents(settings, globals_.values, noise, stats.gram, stats.shift)
    return terms.bound


@dataclass(frozen=True)
class Project(Sweep[Globals, Local, None]):
    """Rows of new samples under fixed parameters: each iteration some steps of their own.

    Row by row first; where the coupling is learned, q(X) begins at what that finds, and goes on from there.
    """

    settings: Settings
    n_steps: int
    name: ClassVar[str] = "project"

    def map(
        self, block: Block, local: Local | None, globals_: Globals, step: Step
    ) -> tuple[Local | None, None]:
        """Move the rows."""
        settings = self.settings
        family: Family = settings.coupling
        if family == "gp" and not globals_.coupled:
            family = settings.alone
        if family == "gp" and not settings.learns_inputs:
            return None, None
        if local is None and family == "gp":
            local = fit_local(settings, settings.alone, self.n_steps, block, None, globals_, step)
        return fit_local(settings, family, self.n_steps, block, local, globals_, step), None


def fit_local(
    settings: Settings,
    family: Family,
    n_steps: int,
    block: Block,
    local: Local | None,
    globals_: Globals,
    step: Step,
) -> Local:
    """Return rows after some steps of Adam under decoders that stay; its moments begin anew."""
    from factorflow.models.gplvm_cmf.autodiff import passes

    rows = convert_rows(settings, family, block, local, globals_, step)
    assert rows is not None

    def noise(count: int) -> Arrays:
        return noise_of(
            settings, family, block, step_at(step, FITTING + step.iteration * n_steps + count), 1
        )[0]

    rate = settings.row_rate / (1.0 + step.count)
    moved = passes.fit_rows(pass_inputs(settings, family, block, rows, globals_), noise, n_steps, rate)
    return replace(rows, values={name: np.asarray(array) for name, array in moved.items()})
