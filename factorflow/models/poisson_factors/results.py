"""Results of Poisson factors: variables, labels and predictions.

Programs are told as distributions over the features of all views, and scores as expected counts: a pair
(theta_k, beta_k) is known up to a factor. Programs are in the order of their shares of the counts; those with
less than `Settings.drop` are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float64, Int64

from factorflow.models.contract import Array, Block, Step, Variable
from factorflow.models.poisson_factors.cells import own_scores, read_cells
from factorflow.models.poisson_factors.settings import Settings, ViewSettings
from factorflow.models.poisson_factors.state import Data, Gamma, Globals, Local, Programs


@dataclass(frozen=True)
class Rows:
    """What is stored of the rows of a block.

    Parameters
    ----------
    scores, variance : array
        Mean and variance of theta, as expected counts.
    sizes : array
        Size factors, 1 of views that a row lacks.
    """

    scores: Float64[np.ndarray, "B K"]
    variance: Float64[np.ndarray, "B K"]
    sizes: Float64[np.ndarray, "B V"]
    codes: Int64[np.ndarray, " B"]


def program_order(settings: Settings, programs: Programs) -> Int64[np.ndarray, " K1"]:
    """Return the programs that are reported, largest share first; at least one."""
    total = programs.share.sum(axis=0)
    order = np.argsort(-total, kind="stable")
    is_strong = total[order] >= settings.drop * total.sum()
    is_strong[0] = True
    return np.asarray(order[is_strong])


def _units(programs: Programs) -> Float64[np.ndarray, " K"]:
    """Return the sums of the programs over the features of all views."""
    return np.asarray(sum(beta.mean.sum(axis=0) for beta in programs.loadings.values()))


def variables(settings: Settings) -> tuple[Variable, ...]:
    """Return the table of variables."""

    def of_best(find: Callable[[Programs, Array], Array]) -> Callable[[Globals], Array]:
        return lambda g: find(g.best, program_order(settings, g.best))

    dims, single = ("obs", "factor"), partial(Variable, rows=True, dtype="float32")
    score = "theta_nk sum_d beta_dk: expected counts of a cell of size 1"
    out = [
        single("scores", dims, f"{score}, mean", lambda r: r.scores, positive=True),
        single("scores_variance", dims, f"{score}, variance", lambda r: r.variance),
        Variable("share", ("view", "factor"), "shares of programs in the counts of views", of_best(_share)),
        Variable("prior_shape", ("factor",), "a_k: shape of theta", of_best(lambda p, k: p.score_shape[k])),
        Variable("loading_shape", (), "c: shape of beta", lambda g: np.float64(g.best.loading_shape)),
    ]
    for view in settings.views:
        name, dims = view.name, (f"feature_{view.name}", "factor")
        what = "beta_dk / sum_d beta_dk: share of the feature in the program"
        mean, spread = partial(_loadings, settings, view), partial(_spread, settings, view)
        out += [
            Variable(f"loadings_{name}", dims, f"{what}, mean", mean, positive=True),
            Variable(f"loadings_variance_{name}", dims, f"{what}, variance", spread),
        ]
        doc = "root of the mean count, about its standard deviation: loadings of features compare by it"
        out.append(Variable(f"scale_{name}", dims[:1], doc, partial(_scale, view)))
        if settings.batch is not None:
            dims, doc = ("batch", dims[0]), "gamma_bd: what batch b multiplies the rate of the feature by"
            mean, spread = (partial(_batch, view, moment) for moment in ("mean", "variance"))
            out += [
                Variable(f"batch_{name}", dims, f"{doc}, mean", mean, positive=True),
                Variable(f"batch_variance_{name}", dims, f"{doc}, variance", spread),
            ]
        if settings.n_starts > 1:
            doc = "programs of each start; they sum to 1"
            value = partial(_start_loadings, settings, view)
            of_starts = "start", "program", f"feature_{name}"
            out.append(Variable(f"start_loadings_{name}", of_starts, doc, value, dtype="float32"))
    if settings.n_starts > 1:
        doc = "bound that each start reached"
        out.append(Variable("start_objective", ("start",), doc, _objectives))
    if any(view.size_factors != "none" for view in settings.views):
        doc = "s_n: how much of a cell was counted, relative to the others"
        out.append(Variable("size_factors", ("obs", "view"), doc, lambda r: r.sizes, rows=True))
    if settings.batch is not None:
        doc = "position of the batch of a cell; the number of batches: not known"
        out.append(Variable("batch_code", ("obs",), doc, lambda r: r.codes, rows=True, dtype="int32"))
    return tuple(out)


def _share(p: Programs, order: Array) -> Array:
    return p.share[:, order] / np.maximum(p.share.sum(axis=1, keepdims=True), 1e-300)


def _of_all_features(
    view: ViewSettings, g: Globals, find: Callable[[Programs], Array], axis: int = 0
) -> Array:
    """Return values of all features of a view, fitted and others."""
    others = None if view.chosen is None or g.others is None else find(g.others)
    return view.join(find(g.best), others, axis)


def _loadings(settings: Settings, view: ViewSettings, g: Globals) -> Array:
    loadings = _of_all_features(view, g, lambda p: p.loadings[view.name].mean)
    return (loadings / _units(g.best))[:, program_order(settings, g.best)]


def _spread(settings: Settings, view: ViewSettings, g: Globals) -> Array:
    variance = _of_all_features(view, g, lambda p: p.loadings[view.name].variance)
    return (variance / _units(g.best) ** 2)[:, program_order(settings, g.best)]


def _scale(view: ViewSettings, g: Globals) -> Array:
    def root(data: Data) -> Array:
        return np.sqrt((data.counts[view.name].sum(axis=0) + 0.5) / (data.n_observed[view.name] + 1.0))

    assert g.data is not None
    others = None if view.chosen is None or g.other_data is None else root(g.other_data)
    return view.join(root(g.data), others)


def _batch(view: ViewSettings, what: str, g: Globals) -> Array:
    return _of_all_features(view, g, lambda p: getattr(p.batches[view.name], what), 1)


def _start_loadings(settings: Settings, view: ViewSettings, g: Globals) -> Array:
    if not g.start_loadings:  # the run ended before the starts had
        n_features = view.n_features if view.chosen is None else view.n_all
        return np.full((settings.n_starts, settings.n_factors, n_features), np.nan)
    total = sum(each.sum(axis=1) for each in g.start_loadings.values())
    return view.join(np.swapaxes(g.start_loadings[view.name] / np.asarray(total)[:, None], 1, 2), None, 2)


def _objectives(g: Globals) -> Array:
    if g.objectives.size:
        return g.objectives
    return np.array([p.objective for p in g.programs.values()])


def describe_rows(
    settings: Settings, block: Block, local: Local | None, globals_: Globals, step: Step
) -> Rows:
    """Return what is stored of the rows of a block."""
    name = max(globals_.programs, key=lambda name: globals_.programs[name].objective)
    programs, data = globals_.programs[name], globals_.data
    assert data is not None
    scores: Gamma = own_scores(settings, name, programs, block, local, step)
    order, unit = program_order(settings, programs), _units(programs)
    cells = read_cells(settings, block, data)
    sizes = np.stack([np.exp(cells[view.name].log_sizes) for view in settings.views], axis=1)
    mean, variance = (scores.mean * unit)[:, order], (scores.variance * unit**2)[:, order]
    return Rows(mean, variance, sizes, settings.codes(block))


def predict(
    settings: Settings, rows: Mapping[str, Array], record: Mapping[str, Array], name: str
) -> tuple[Float64[np.ndarray, "B D"], Float64[np.ndarray, "B D"]]:
    """Return mean and standard deviation of new counts of the rows; theta, beta and gamma are uncertain."""
    scores, spread = (np.asarray(rows[v], np.float64) for v in ("scores", "scores_variance"))
    loadings, uncertain = (np.asarray(record[f"loadings_{word}{name}"]) for word in ("", "variance_"))
    mean = scores @ loadings.T
    variance = (scores**2 + spread) @ uncertain.T + spread @ (loadings**2).T
    if settings.batch is not None:
        codes = np.asarray(rows["batch_code"]).astype(int)
        ones = np.ones((1, loadings.shape[0]))
        gamma = np.concatenate([np.asarray(record[f"batch_{name}"]), ones])[codes]
        of_gamma = np.concatenate([np.asarray(record[f"batch_variance_{name}"]), 0.0 * ones])[codes]
        variance = (variance + mean**2) * of_gamma + gamma**2 * variance
        mean = mean * gamma
    if "size_factors" in rows:
        index = [view.name for view in settings.views].index(name)
        size = np.asarray(rows["size_factors"])[:, index, None]
        mean, variance = size * mean, size**2 * variance
    return mean, np.sqrt(mean + variance)
