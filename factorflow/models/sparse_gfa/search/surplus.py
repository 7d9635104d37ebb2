"""Surplus factors: what the statistics of a pass say of the factors that would be left without them.

Coordinate updates leave a factor that is not needed only slowly: two that share one direction hand it to
each other, one that stands for the noise of a feature keeps it. So every few passes fewer factors are
proposed (see `proposals`), W -> W B with the columns of B those of the unit matrix that stay, or two joined
to one, and judged by the bound. No data are needed. Of Gaussian entries that are all observed, q(z) is a
Gaussian for each sample, all of covariance S, and the best q(z') of the smaller model has::

    S' = (B' (S^-1 - beta) B + beta')^-1,  E z' = A E z,  A = S' B' S^-1

so that every statistic follows from the old: sum E z'z'' = A (sum E zz' - N S) A' + N S', sum y z'' =
(sum y z') A'. From them weights, intercepts and noise are updated anew, a few times, and the bound that comes
out is a bound of the smaller model. Where entries are missing or their precisions differ, S is the average
over the samples: then the change of the bound is that of a model whose samples all have it.

References
----------
Hughes and Sudderth (2013), NIPS 26 (delete and merge moves judged from kept statistics).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Integer

from factorflow.kernels.linalg import congruence, diagonal, n_pairs, pack, unpack
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.search.models import Smaller, Trial
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Globals, View, Weights, expected_weights, transformed_weights
from factorflow.models.sparse_gfa.sums import FeatureStats, FeatureSums, Stats
from factorflow.trees import replace

__all__ = [
    "FewerScores",
    "average_covariance",
    "average_prior",
    "cost_of_loadings",
    "explained_alone",
    "fewer_scores",
    "fewer_view",
    "fewer_weights",
    "hidden_by_average",
    "in_common",
    "inverse_spread",
    "leaders",
    "looked_at",
    "of_one_feature",
    "reliability",
    "stats_of_features",
    "stats_of_samples",
    "turned_trial",
    "unexplained",
    "with_constant",
]


def with_constant(transform: Float64[Array, "K before"]) -> Float64[Array, "K1 before1"]:
    """Return a transform of w as one of (w, b)."""
    extended = np.zeros((len(transform) + 1, transform.shape[1] + 1))
    extended[:-1, :-1], extended[-1, -1] = transform, 1.0
    return extended


def average_prior(settings: Settings, globals_: Globals, stats: Stats) -> Float64[Array, " K"]:
    """Return the prior precision of the scores, averaged over the samples."""
    if settings.scores_prior == "normal":
        return np.ones(globals_.n_factors)
    share = stats.rows / stats.rows.sum()
    return np.asarray(share @ (globals_.beta_shape / globals_.beta_rate))


def average_covariance(stats: Stats, n_factors: int) -> Float64[Array, "K K"]:
    """Return Cov z, averaged over the samples."""
    return np.asarray(unpack(stats.covariance, n_factors)) / stats.rows.sum()


def hidden_by_average(stats: Stats, n_factors: int) -> float:
    """Return what the average covariance hides: the entropy of scores that all had it, less that of q(z).

    By so many nats, about, statistics may say too much for the factors that there are: a smaller model is
    given the difference as it is, and needs none of it if only the factors that go know some samples better
    than others.
    """
    n_rows, logdet = float(stats.rows.sum()), np.linalg.slogdet(average_covariance(stats, n_factors))[1]
    return max(0.5 * n_rows * (float(logdet) + n_factors) - float(stats.entropy), 0.0)


def of_one_feature(settings: Settings, globals_: Globals) -> Bool[Array, " K"]:
    """Return which factors stand for one feature: it has most of what they tell of, sum_d f_d w_d^2."""
    told = np.concatenate(
        [
            settings.information(name, weights)[:, None] * expected_weights(weights)[0] ** 2
            for name, weights in globals_.weights.items()
        ]
    )
    return np.asarray(2.0 * told.max(axis=0) > told.sum(axis=0))


def reliability(settings: Settings, globals_: Globals, stats: Stats) -> Float64[Array, " K"]:
    """Return 1 - Var z / its prior variance: how well the scores of each factor are known, from 0 to 1."""
    covariance = average_covariance(stats, globals_.n_factors)
    return np.asarray(np.clip(1.0 - np.diag(covariance) * average_prior(settings, globals_, stats), 0.0, 1.0))


def leaders(pick: Float64[Array, "K fewer"]) -> Integer[Array, " fewer"]:
    """Return the old factor that weighs most in each new one."""
    return np.abs(pick).argmax(axis=0) if pick.size else np.zeros(0, np.intp)


@dataclass(frozen=True)
class FewerScores:
    """The best scores of a smaller model, E z' = A E z.

    Parameters
    ----------
    image : array
        A.
    covariance : array
        S', of each sample.
    gained : array
        S' - A S A'.
    logdet : float
        log |S'| - log |S|.
    """

    image: Float64[np.ndarray, "fewer K"]
    covariance: Float64[np.ndarray, "fewer fewer"]
    gained: Float64[np.ndarray, "fewer fewer"]
    logdet: float


def fewer_scores(settings: Settings, globals_: Globals, stats: Stats, model: Smaller) -> FewerScores:
    """Return the best scores of a smaller model, from the statistics of all samples.

    Parameters
    ----------
    settings, globals_ : Settings, Globals
        Of the run; before the pass.
    stats : Stats
        Of all samples.
    model : Smaller
        The smaller model.
    """
    n_rows, k = float(stats.rows.sum()), len(model.pick)
    covariance = average_covariance(stats, k)
    prior = average_prior(settings, globals_, stats)[leaders(model.pick)]
    new = np.linalg.inv(model.evidence + np.diag(prior))
    image = new @ model.reading
    gained = new - image @ covariance @ image.T
    if settings.scores_prior == "normal":
        # Two factors that were one have half of its variance each: the scale that the prior expects.
        of_means = (image @ unpack(stats.moments[: n_pairs(k)], k) * image).sum(axis=1)
        size = np.sqrt(n_rows / np.maximum(of_means + n_rows * np.diag(gained), 1e-300))
        image, new = size[:, None] * image, size[:, None] * new * size
        gained = size[:, None] * gained * size
    logdet = np.linalg.slogdet(new)[1] - np.linalg.slogdet(covariance)[1]
    return FewerScores(image, new, gained, float(logdet))


def stats_of_samples(stats: Stats, scores: FewerScores) -> Stats:
    """Return the statistics of the best scores of a smaller model, those of features left out."""
    image, (left, k), n_rows = scores.image, scores.image.shape, float(stats.rows.sum())
    own = np.diag(scores.gained)
    before = np.maximum(diagonal(stats.moments, k + 1)[:k], 1e-300)
    second, by_group = unpack(stats.moments[: n_pairs(k)], k), np.sqrt(stats.second / before)
    after = [((image * r) @ second * (image * r)).sum(axis=1) for r in by_group]
    return replace(
        stats,
        features={},
        shared={},
        entropy=stats.entropy + 0.5 * n_rows * (scores.logdet - (k - left)),
        number=np.broadcast_to(stats.rows[:, None], (len(stats.rows), left)),
        second=np.stack(after) + stats.rows[:, None] * own,
        moments=congruence(stats.moments[None], with_constant(image))[0] + n_rows * _extra(scores),
        covariance=n_rows * pack(scores.covariance),
    )


def stats_of_features(stats: Stats, name: str, scores: FewerScores) -> Stats:
    """Return what the features of a view need of the best scores of a smaller model."""
    turn, extra = with_constant(scores.image), _extra(scores)
    shared = {n: congruence(p, turn) + p[:, -1:] * extra for n, p in stats.shared.items() if n == name}
    return replace(stats, features={name: _turned(stats.features[name], turn, extra)}, shared=shared)


def _extra(scores: FewerScores) -> Float64[Array, " Q"]:
    """Return what a sample adds to E[(z', 1)(z', 1)'] beside the image of what there was, packed."""
    extended = np.zeros((len(scores.gained) + 1, len(scores.gained) + 1))
    extended[:-1, :-1] = scores.gained
    return pack(extended)


def _turned(
    stats: FeatureStats, turn: Float64[Array, "K1 before1"], extra: Float64[Array, " Q"]
) -> FeatureStats:
    cross = stats.cross @ turn.T
    if stats.pairs is None:
        return replace(stats, cross=cross)
    flat = stats.pairs.reshape(-1, stats.pairs.shape[-1])
    pairs = congruence(flat, turn) + flat[:, -1:] * extra
    return replace(stats, cross=cross, pairs=pairs.reshape(*stats.pairs.shape[:-1], -1))


def fewer_weights(weights: Weights, pick: Float64[Array, "K fewer"]) -> Weights:
    """Return W B; of factors that are joined, a weight is there where one of them had one.

    Full covariances are left out: an update does not ask for those before it.
    """
    if weights.inclusion is None:
        blank = np.broadcast_to(0.0, (len(weights.mean), n_pairs(pick.shape[1])))
        return replace(weights, mean=weights.mean @ pick, variance=blank)
    joined = transformed_weights(weights, pick.T)
    assert joined.inclusion is not None
    return replace(joined, inclusion=np.minimum(joined.inclusion, 1.0))


def fewer_view(view: View, pick: Float64[Array, "K fewer"]) -> View:
    """Return what the features of a view share, of the factors that are left."""
    lead = leaders(pick)
    names = ("alpha_shape", "alpha_rate", "theta_on", "theta_off", "off_variance")
    return replace(view, **{name: getattr(view, name)[lead] for name in names})


def spread_of_means(stats: Stats, n_factors: int) -> Float64[Array, "K K"]:
    """Return the covariance of the expected scores over the samples."""
    moments = unpack(stats.moments, n_factors + 1) / float(stats.rows.sum())
    centre = moments[-1, :-1]
    return np.asarray(moments[:-1, :-1] - average_covariance(stats, n_factors) - np.outer(centre, centre))


def inverse_spread(spread: Float64[Array, "K K"]) -> Float64[Array, "K K"]:
    """Return the inverse of a covariance of which some directions may have no variance."""
    size = np.sqrt(np.maximum(np.diag(spread), 1e-12))
    correlation = spread / np.outer(size, size) + 1e-6 * np.eye(len(size))
    return np.asarray(np.linalg.inv(correlation) / np.outer(size, size))


def unexplained(stats: Stats, n_factors: int, *, known: bool = True) -> Float64[Array, " K"]:
    """Return the variance of the expected scores of each factor that those of the others do not explain.

    Of all that the scores vary, if not only what is ``known`` of them counts.
    """
    spread = spread_of_means(stats, n_factors)
    variance = 1.0 / np.diag(inverse_spread(spread))
    if known:
        return np.asarray(variance)
    share = variance / np.maximum(np.diag(spread), 1e-12)
    return np.asarray(share * (np.diag(spread) + np.diag(average_covariance(stats, n_factors))))


def looked_at(
    stats: Stats, model: Smaller, views: Mapping[str, View], sums: Mapping[str, FeatureSums]
) -> Smaller:
    """Return a smaller model as its updated features leave it."""
    k, n_rows = len(model.pick), float(stats.rows.sum())
    evidence = np.sum([s.evidence for s in sums.values() if s.evidence is not None], axis=0) / n_rows
    said = np.sum([s.reading for s in sums.values() if s.reading is not None], axis=0) / n_rows
    moments = unpack(stats.moments[: n_pairs(k)], k) / n_rows - average_covariance(stats, k)
    return replace(model, evidence=evidence, reading=said @ inverse_spread(moments), views=views)


def turned_trial(trial: Trial | None, inverse: Float64[Array, "K K"]) -> Trial | None:
    """Return the models under trial after w -> T'^-1 w, given T'^-1."""
    if trial is None:
        return None
    models = tuple(replace(m, pick=inverse @ m.pick, reading=m.reading @ inverse.T) for m in trial.models)
    return replace(trial, models=models)


def cost_of_loadings(
    mean: Float64[Array, "D K"], variance: Float64[Array, "D K"], alpha: Float64[Array, " K"]
) -> Float64[Array, " K"]:
    """Return sum_d KL(q(w_dk) | N(0, 1 / alpha_k)): what the loadings of each factor cost, in nats.

    Parameters
    ----------
    mean, variance : array
        E[w] and Var w, without spikes.
    alpha : array
        Precision of the prior.
    """
    spread = alpha * variance
    return np.asarray(0.5 * (spread + alpha * mean**2 - 1.0 - np.log(spread)).sum(axis=0))


def in_common(
    mean: Float64[Array, "D K"], precision: Float64[Array, " D"], second: Float64[Array, "K K"]
) -> Float64[Array, "K K"]:
    """Return sum_d w w' / (w' E zz' w + 1 / f_d): the loadings of features of variance 1.

    Parameters
    ----------
    mean, precision : array
        E[w] and f_d.
    second : array
        E zz', averaged over the samples.
    """
    variance = 1.0 / precision + np.einsum("dk,kl,dl->d", mean, second, mean)
    return np.asarray((mean / variance[:, None]).T @ mean)


def explained_alone(
    mean: Float64[Array, "D K"],
    precision: Float64[Array, " D"],
    weight: Float64[Array, " D"],
    variance: Float64[Array, " K"],
    cost: float,
    *,
    gaussian: bool,
) -> Float64[Array, " K"]:
    """Return about how many nats of the likelihood only this factor explains.

    Parameters
    ----------
    mean : array
        E[w].
    precision, weight : array
        f_d, and the weight of all samples in the statistics.
    variance : array
        See `unexplained`.
    cost : float
        Of a loading; features that explain less have none.
    gaussian : bool
        Whether the noise would take what the factor gave up.
    """
    signal = precision[:, None] * mean**2 * variance
    nats = 0.5 * weight[:, None] * (np.log1p(signal) if gaussian else signal)
    return np.asarray(np.maximum(nats - cost, 0.0).sum(axis=0))
