"""Results of a molten component model: variables, labels and predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from jaxtyping import Float64

from factorflow.core.design import EXPOSURE, OFFSET, WEIGHT, WITHIN
from factorflow.models.contract import Array, Block, Variable
from factorflow.models.molten.factors import mean_factors
from factorflow.models.molten.groups import group_weights
from factorflow.models.molten.rows import covariate, level_codes
from factorflow.models.molten.scales import precision
from factorflow.models.molten.settings import Settings
from factorflow.models.molten.state import Globals, best_start

MOMENTS = {"loadings": 0, "loadings_variance": 1}
"""Variables of the factors of levels, and which of their moments they are."""


def component_order(settings: Settings, globals_: Globals) -> np.ndarray:
    """Return the components of the best start, strongest first."""
    strength = best_start(globals_).strength[0]
    multiplied = settings.is_component(len(strength))
    return np.argsort(-strength[multiplied], kind="stable")


def variables(settings: Settings) -> tuple[Variable, ...]:
    """Return the table of variables."""
    counts = settings.likelihood == "poisson"
    symbol = "lambda" if counts else "mu"
    out = [
        Variable(
            "weight",
            ("factor",),
            _WEIGHTS[settings.likelihood],
            lambda g: best_start(g).strength[0, component_order(settings, g)],
        ),
        Variable(
            "scale",
            ("factor",),
            "b_l, mean: rate of the prior of lambda" if counts else "tau_l, mean: precision of mu",
            lambda g: precision(settings, best_start(g).scale)[0][0, component_order(settings, g)],
        ),
        Variable(
            "start_objective",
            ("start",),
            "bound that each start reached",
            lambda g: g.tried if g.tried.size else g.objective,
        ),
    ]
    for name in settings.names:
        for word, moment in MOMENTS.items():
            what, find = ("mean", "variance")[moment], partial(_level_moments, settings, name, moment)
            new = partial(Variable, positive=counts and moment == 0)
            dims = f"feature_{name}", "factor"
            out.append(new(f"{word}_{name}", dims, f"{symbol}_dl, {what}", find(slice(None, -1))))
            doc = f"{symbol}_dl of rows whose level is missing or unknown, {what}"
            out.append(new(f"{word.replace('loadings', 'missing')}_{name}", dims[1:], doc, find(-1)))
            if settings.n_additive:
                doc = f"w_d, {what}: what a level adds to the rate"
                added, word = partial(_additive, settings, name, moment), word.replace("loadings", "additive")
                out.append(new(f"{word}_{name}", dims[:1], doc, added(slice(None, -1))))
                doc = f"w of rows whose level is missing or unknown, {what}"
                out.append(new(f"{word}_missing_{name}", (), doc, added(-1)))
    return (*out, *_shared_variables(settings))


_WEIGHTS = {
    "poisson": "expected share of all counts that are a component's",
    "gaussian": "sum of squares of a component's products, relative to that of the response around its mean",
}


def _shared_variables(settings: Settings) -> list[Variable]:
    """Return the variables shared by all levels and components."""
    out = []
    if settings.likelihood == "gaussian":

        def noise(g: Globals) -> Float64[np.ndarray, 2]:
            shape_rate = best_start(g).noise
            assert shape_rate is not None
            return shape_rate[:, 0]

        doc = "E 1 / lambda: variance of a row"
        out.append(Variable("noise_variance", (), doc, lambda g: noise(g)[1] / max(noise(g)[0] - 1.0, 1e-9)))
        out.append(Variable("intercept", (), "beta_0, mean", lambda g: _intercept(g)[0]))
        out.append(Variable("intercept_variance", (), "beta_0, variance", lambda g: _intercept(g)[1]))
        return out
    out.append(
        Variable(
            "prior_shape", (), "a: shape of the prior of lambda", lambda g: _single_value(best_start(g).shape)
        )
    )
    if settings.hyper.overdispersed:
        out.append(
            Variable(
                "dispersion",
                (),
                "c: variance of xi_n is 1 / c",
                lambda g: _single_value(best_start(g).dispersion),
            )
        )
    return out


def _single_value(values: Float64[np.ndarray, " S"] | None) -> float:
    """Return what the one start that is left has."""
    assert values is not None
    return float(values[0])


def _intercept(g: Globals) -> tuple[float, float]:
    """Return mean and variance of the intercept, on the scale of the data."""
    globals_ = best_start(g)
    if globals_.intercept is None:
        return 0.0, 0.0
    return float(globals_.intercept[0, 0] + globals_.reference), float(globals_.intercept[1, 0])


def _level_moments(
    settings: Settings, name: str, moment: int, rows: slice | int
) -> Callable[[Globals], Array]:
    """Return a function for the mean or variance of the factors of a variable, columns by component."""

    def find(g: Globals) -> Array:
        return _moment(settings, g, name, moment)[rows][..., component_order(settings, g)]

    return find


def _additive(settings: Settings, name: str, moment: int, rows: slice | int) -> Callable[[Globals], Array]:
    """Return a function for the mean or variance of the additive part of a variable."""

    def find(g: Globals) -> Array:
        variable = _moment(settings, g, name, moment)
        return variable[rows, variable.shape[1] - settings.n_additive + settings.names.index(name)]

    return find


def _moment(settings: Settings, g: Globals, name: str, moment: int) -> Float64[np.ndarray, "D K"]:
    """Return mean (0) or variance (1) of q."""
    levels = best_start(g).levels[name]
    if settings.likelihood == "poisson":
        free = settings.free(name, range(len(levels.seen)), levels.one.shape[2])
        variance = np.where(free[:, None, :], levels.one / levels.two**2, 0.0)
        return np.asarray((mean_factors(levels) if moment == 0 else variance)[:, 0])
    return np.asarray((levels.one if moment == 0 else levels.two)[:, 0])


def products(
    settings: Settings, block: Block, record: Mapping[str, Array]
) -> tuple[Float64[np.ndarray, "B K"], Float64[np.ndarray, "B K"]]:
    """Return mean and mean square of the product of every component in every row."""
    codes, groups = level_codes(settings, block), group_weights(settings, block)
    first, second = 1.0, 1.0
    for g, (start, name) in enumerate(zip(settings.starts, settings.names, strict=False)):
        m = np.vstack([record[f"loadings_{name}"], record[f"missing_{name}"]])
        v = np.vstack([record[f"loadings_variance_{name}"], record[f"missing_variance_{name}"]])
        if name in groups:
            mean, spread = groups[name] @ m, groups[name] ** 2 @ v
        else:
            own = codes[:, g] - start
            mean, spread = m[own], v[own]
        first, second = first * mean, second * (mean**2 + spread)
    return np.asarray(first), np.asarray(second)


def predict(
    settings: Settings, block: Block, record: Mapping[str, Array]
) -> tuple[Float64[np.ndarray, "B 1"], Float64[np.ndarray, "B 1"]]:
    """Return mean and standard deviation of a new observation of every row, (B, 1) each.

    Uncertainty of all parameters is in the standard deviation; a level that no row had counts with its prior.
    An unknown exposure is taken for 1, an unknown offset for 0.
    """
    first, second = products(settings, block, record)
    mean, variance = first.sum(axis=1), (second - first**2).sum(axis=1)
    if settings.likelihood == "gaussian":
        offset = np.nan_to_num(covariate(block, settings.roles.offset, 0.0))
        mean = mean + record["intercept"] + offset
        variance = variance + record["intercept_variance"] + record["noise_variance"]
        return mean[:, None], np.sqrt(variance)[:, None]
    groups = group_weights(settings, block)
    for name in settings.names if settings.n_additive else ():
        w, v = (
            np.append(record[f"{word}_{name}"], record[f"{word}_missing_{name}"])
            for word in ("additive", "additive_variance")
        )
        if name in groups:
            mean, variance = mean + groups[name] @ w, variance + groups[name] ** 2 @ v
        else:
            codes = block.data[name]  # -1 finds the last one
            mean, variance = mean + w[codes], variance + v[codes]
    t = np.nan_to_num(exposures(settings, block), nan=1.0)
    mean, variance = t * mean, t**2 * variance
    mixing = (variance + mean**2) / record["dispersion"] if settings.hyper.overdispersed else 0.0
    return mean[:, None], np.sqrt(variance + mean + mixing)[:, None]


def sd_of_means(
    settings: Settings, block: Block, record: Mapping[str, Array], sd: Float64[np.ndarray, "B 1"]
) -> Float64[np.ndarray, "B 1"]:
    """Return the standard deviations of values that are means of ``weight`` observations, given those of one.

    Each observation has noise of its own; what is not known of the parameters is the same for all of them.
    """
    if settings.roles.weight is None:
        return sd
    weight = covariate(block, settings.roles.weight, 1.0)[:, None]
    weight = np.where(weight > 0.0, weight, 1.0)  # not known, as in scores
    return np.asarray(np.sqrt(sd**2 - record["noise_variance"] * (1.0 - 1.0 / weight)))


def row_roles(settings: Settings, block: Block) -> dict[str, Float64[Array, " B"]]:
    """Return the roles of rows (`Model.row_roles`)."""
    roles = settings.roles
    names = {EXPOSURE: roles.exposure, OFFSET: roles.offset, WEIGHT: roles.weight, WITHIN: roles.within}
    return {role: covariate(block, name, 0.0) for role, name in names.items() if name is not None}


def exposures(settings: Settings, block: Block) -> Float64[Array, " B"]:
    """Return the exposure of every row; of a cell of a grid, the product of those of its levels."""
    out = covariate(block, settings.roles.exposure, 1.0)
    for name, _ in settings.roles.level_exposures or ():
        exposure = settings.grid_exposure(name)
        out = out * np.where(block.data[name] < 0, 1.0, exposure[block.data[name]])
    return out
