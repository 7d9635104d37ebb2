"""Surplus factors: which are proposed to go, and what the statistics say of the factors that would be left.

Coordinate updates leave a factor that is not needed only slowly: two that share one direction hand it to
each other, one that stands for the noise of a feature keeps it. So every few passes fewer factors are
proposed, W -> W B with the columns of B those of the unit matrix that stay, or two joined to one, and judged
by the bound. No data are needed. Of Gaussian entries that are all observed, q(z) is a Gaussian for each
sample, all of covariance S, and the best q(z') of the smaller model has::

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

import numpy as np
from jaxtyping import Float64, Integer

from factorflow.kernels.linalg import congruence, diagonal, n_pairs, pack, unpack
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Globals, Smaller, Trial, View, Weights, transformed_weights
from factorflow.models.sparse_gfa.sums import FeatureStats, FeatureSums, Stats
from factorflow.trees import replace

__all__ = [
    "cost_of_loadings",
    "explained_alone",
    "fewer_stats",
    "fewer_weights",
    "in_bulk",
    "in_common",
    "leaders",
    "looked_at",
    "propose",
    "reliability",
    "turned_trial",
    "unexplained",
    "with_constant",
]

_AT_ONCE = 6
"""Proposals of a round."""
_FEATURES_A_LOOK = 2.0
"""How much more than a factor costs (log N / 2 a loading) it may seem to bring, and still be looked at."""
_IN_COMMON = (1.0, 0.5, 0.25)
"""Variances of a direction of the correlations, which has that of so many features, that may be signal."""
_ALIKE = 0.3
"""Correlation of scores from which two factors are not proposed to go together."""


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


def reliability(settings: Settings, globals_: Globals, stats: Stats) -> Float64[Array, " K"]:
    """Return 1 - Var z / its prior variance: how well the scores of each factor are known, from 0 to 1."""
    covariance = average_covariance(stats, globals_.n_factors)
    return np.asarray(np.clip(1.0 - np.diag(covariance) * average_prior(settings, globals_, stats), 0.0, 1.0))


def leaders(pick: Float64[Array, "K fewer"]) -> Integer[Array, " fewer"]:
    """Return the old factor that weighs most in each new one."""
    return np.abs(pick).argmax(axis=0) if pick.size else np.zeros(0, np.intp)


def fewer_stats(
    settings: Settings, globals_: Globals, stats: Stats, model: Smaller
) -> tuple[Stats, Float64[Array, "fewer K"]]:
    """Return the statistics with the best scores of a smaller model, and A.

    Parameters
    ----------
    settings, globals_ : Settings, Globals
        Of the run; before the pass.
    stats : Stats
        Of all samples; of features, those that are there.
    model : Smaller
        The smaller model.
    """
    n_rows, (k, left) = float(stats.rows.sum()), model.pick.shape
    covariance = average_covariance(stats, k)
    prior = average_prior(settings, globals_, stats)[leaders(model.pick)]
    new = np.linalg.inv(model.evidence + np.diag(prior))
    image = new @ model.reading
    gained = new - image @ covariance @ image.T
    second = image @ unpack(stats.moments[: n_pairs(k)], k) @ image.T + n_rows * gained
    if settings.scores_prior == "normal":
        # Two factors that were one have half of its variance each: the scale that the prior expects.
        size = np.sqrt(n_rows / np.maximum(np.diag(second), 1e-300))
        image, new = size[:, None] * image, size[:, None] * new * size
        gained = size[:, None] * gained * size
    turn, extra = with_constant(image), pack(_padded(gained))
    logdet = np.linalg.slogdet(new)[1] - np.linalg.slogdet(covariance)[1]
    before = np.maximum(diagonal(stats.moments, k + 1)[:k], 1e-300)
    by_group = np.sqrt(stats.second / before)
    after = [np.diag((image * r) @ unpack(stats.moments[: n_pairs(k)], k) @ (image * r).T) for r in by_group]
    own = stats.rows[:, None] * np.diag(gained)
    return replace(
        stats,
        features=stats.features and {n: _turned(f, turn, extra) for n, f in stats.features.items()},
        shared={n: congruence(p, turn) + p[:, -1:] * extra for n, p in stats.shared.items()},
        entropy=stats.entropy + 0.5 * n_rows * (float(logdet) - (k - left)),
        number=np.broadcast_to(stats.rows[:, None], (len(stats.rows), left)),
        second=np.stack(after) + own,
        moments=congruence(stats.moments[None], turn)[0] + n_rows * extra,
        covariance=n_rows * pack(new),
    ), image


def _padded(matrix: Float64[Array, "K K"]) -> Float64[Array, "K1 K1"]:
    extended = np.zeros((len(matrix) + 1, len(matrix) + 1))
    extended[:-1, :-1] = matrix
    return extended


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


def _inverse(spread: Float64[Array, "K K"]) -> Float64[Array, "K K"]:
    """Return the inverse of a covariance of which some directions may have no variance."""
    size = np.sqrt(np.maximum(np.diag(spread), 1e-12))
    correlation = spread / np.outer(size, size) + 1e-6 * np.eye(len(size))
    return np.asarray(np.linalg.inv(correlation) / np.outer(size, size))


def unexplained(stats: Stats, n_factors: int) -> Float64[Array, " K"]:
    """Return the variance of the expected scores of each factor that those of the others do not explain."""
    return np.asarray(1.0 / np.diag(_inverse(spread_of_means(stats, n_factors))))


def looked_at(
    stats: Stats, model: Smaller, views: Mapping[str, View], sums: Mapping[str, FeatureSums]
) -> Smaller:
    """Return a smaller model as its updated features leave it."""
    k, n_rows = len(model.pick), float(stats.rows.sum())
    evidence = np.sum([s.evidence for s in sums.values() if s.evidence is not None], axis=0) / n_rows
    said = np.sum([s.reading for s in sums.values() if s.reading is not None], axis=0) / n_rows
    moments = unpack(stats.moments[: n_pairs(k)], k) / n_rows - average_covariance(stats, k)
    return replace(model, evidence=evidence, reading=said @ _inverse(moments), views=views)


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


def in_bulk(settings: Settings, *, sparse: bool) -> bool:
    """Return whether the search only saves time, as what it leaves is judged later: in such a warm-up."""
    return not sparse and settings.spike != "none" and not settings.many_samples


def propose(
    settings: Settings,
    globals_: Globals,
    stats: Stats,
    alone: Float64[Array, " K"],
    included: Float64[Array, " K"],
    common: Float64[Array, "K K"] | None,
    *,
    sparse: bool,
) -> Trial | None:
    """Return which factors to judge next: those that explain less than they cost, about.

    What a factor explains alone, less what its scores cost (log |S^-1_kk| / 2 a sample), is set against what
    its loadings cost (log N / 2 each). With many samples a surplus factor is seldom one of the basis: the
    signal is spread over all of them. While there are no spikes, the largest directions of what features have
    in ``common`` are proposed, too.
    """
    k, n_rows = globals_.n_factors, float(stats.rows.sum())
    if k == 0:
        return None
    covariance, prior = average_covariance(stats, k), average_prior(settings, globals_, stats)
    precision = np.linalg.inv(covariance)
    scores = 0.5 * n_rows * np.log(np.maximum(np.diag(precision) / prior, 1.0))
    net = alone - scores - _FEATURES_A_LOOK * 0.5 * np.log(n_rows) * (included + 1.0)
    order = np.argsort(net, kind="stable")
    few = settings.many_samples
    weak = [int(i) for i in order if few or net[i] < 0.0]
    if not weak:
        return None
    if in_bulk(settings, sparse=sparse):
        if globals_.strength[:, weak].max() < settings.drop:  # they go after the warm-up as it is
            return None
        gone = sorted({(len(weak) + 1) // 2, len(weak)})
        return Trial(tuple(_smaller(globals_, precision, prior, _without(k, weak[:n])) for n in gone))
    moments = unpack(stats.moments, k + 1)[:-1, :-1] / n_rows - covariance
    size = np.sqrt(np.maximum(np.diag(moments), 1e-12))
    alike = np.abs(moments / np.outer(size, size))
    again = globals_.refused > 0 and not few  # all has been looked at before
    picks = [_without(k, [i]) for i in weak[: 1 if again else _AT_ONCE - 3]]
    apart: list[int] = []
    for i in weak:
        if all(alike[i, j] < _ALIKE for j in apart):
            apart.append(i)
    for number in sorted({(len(apart) + 1) // 2} if again else {2, (len(apart) + 1) // 2, len(apart)}):
        if 2 <= number <= len(apart):
            picks.append(_without(k, apart[:number]))
    joined = _join(k, weak, alike, precision - np.diag(prior))
    if few and common is not None and settings.scores_prior == "normal" and globals_.numbers is None:
        picks += _principal(unpack(stats.moments[: n_pairs(k)], k) / n_rows, common)
    return Trial(tuple(_smaller(globals_, precision, prior, pick) for pick in (*picks, *joined)))


def _principal(
    second: Float64[Array, "K K"], common: Float64[Array, "K K"]
) -> list[Float64[Array, "K fewer"]]:
    """Return the proposals of the directions that features have in common, as many as are larger than.

    With scores of variance 1 these are the principal directions of the correlations: what stands for the
    noise of one feature has a variance of 1 at most there, however well it explains it.
    """
    values, vectors = np.linalg.eigh(second)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    shares, turned = np.linalg.eigh(root @ common @ root)
    basis = root @ turned[:, ::-1]
    numbers = sorted({int((shares > least).sum()) for least in _IN_COMMON})
    return [np.ascontiguousarray(basis[:, :r]) for r in numbers if r < len(second)]


def _smaller(
    globals_: Globals,
    precision: Float64[Array, "K K"],
    prior: Float64[Array, " K"],
    pick: Float64[Array, "K fewer"],
) -> Smaller:
    """Return the model of the factors W B before it was looked at."""
    views = {name: fewer_view(view, pick) for name, view in globals_.views.items()}
    evidence = pick.T @ (precision - np.diag(prior)) @ pick
    return Smaller(pick, pick.T @ precision, evidence, views)


def _without(k: int, gone: list[int]) -> Float64[Array, "K fewer"]:
    return np.ascontiguousarray(np.delete(np.eye(k), gone, axis=1))


def _join(
    k: int, weak: list[int], alike: Float64[Array, "K K"], evidence: Float64[Array, "K K"]
) -> list[Float64[Array, "K fewer"]]:
    """Return the proposal to join the weak factor and the other whose scores are most alike."""
    off = alike - 2.0 * np.eye(k)
    i = max(weak, key=lambda n: float(off[n].max()))
    j = int(off[i].argmax())
    if k < 2 or off[i, j] < _ALIKE:
        return []
    pair = [min(i, j), max(i, j)]
    vector = np.linalg.eigh(evidence[np.ix_(pair, pair)])[1][:, -1]
    pick = _without(k, [pair[1]])
    pick[pair, pair[0]] = vector if vector[0] >= 0.0 else -vector
    return [pick]
