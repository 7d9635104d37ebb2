"""The free energy: by its definition, by Monte Carlo, and up at every single update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from frames_in_memory import STEP, Run, in_blocks, simulated, states
from scipy.special import gammaln

from factorflow.models import IdentityAttribute
from factorflow.models.identity_attribute import learning
from factorflow.models.identity_attribute.dynamics import density, expectations
from factorflow.models.identity_attribute.frame_updates import compute_means, rescale_frames
from factorflow.models.identity_attribute.frames import EvenFrames

LENGTHS = [7, 1, 9, 2, 6]


def _run(factorisation: str, gaps: bool = True, p: int = 2, cut: int = 6, **choices: Any) -> Run:
    """Return a run of small sequences of two views; entries, frames of a view, a whole frame are missing."""
    y = simulated(LENGTHS, 5, p, 2)
    views = {"a": y[:, :3].copy(), "b": y[:, 3:].copy()}
    if gaps:
        views["a"][np.random.default_rng(1).random(views["a"].shape) < 0.2] = np.nan
        views["b"][[2, 9, 10]] = np.nan
        views["a"][9] = np.nan
    meta, blocks = in_blocks(views, LENGTHS, cut)
    config = IdentityAttribute(
        n_identities=p, n_attributes=2, factorisation=factorisation, relevance_after=2, **choices
    )
    run = Run(config, meta, blocks)
    run.start()
    return run


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("factorisation", ["frame", "chain"])
def test_reported_is_the_definition(factorisation: str, gaps: bool) -> None:
    run = _run(factorisation, gaps)
    for stage in (-2, -1):
        list(run.iterate(3, stage))
        assert run.infos[-1]["objective"] == pytest.approx(run.energy(), rel=1e-12)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("factorisation", ["frame", "chain"])
def test_one_block_in_one_sweep_is_several_in_many(factorisation: str, gaps: bool) -> None:
    several, one = (_run(factorisation, gaps, cut=cut) for cut in (6, 64))
    assert len(one.blocks) == 1
    for stage in (-2, -1):
        assert len(one.stages[stage].sweeps) == 1
        for run in (several, one):
            list(run.iterate(3, stage))
        found, expected = (run.infos[-1]["objective"] for run in (one, several))
        assert found == pytest.approx(expected, rel=1e-10)
        assert found == pytest.approx(one.energy(), rel=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("factorisation", ["frame", "chain", "frame_then_chain"])
def test_rises_at_every_sweep(factorisation: str, gaps: bool) -> None:
    """Each half of the frames, each chain of b and of a, and each M-step, measured by the definition.

    Half-way through the updates of a chain of attributes (summed up, but not yet smoothed) nothing changes.
    """
    run = _run(factorisation, gaps, start="random")
    for stage in (stage for stage in run.stages if stage.counts):
        list(run.iterate(1, run.stages.index(stage)))
        before = run.energy()
        for sweep in run.iterate(6, run.stages.index(stage)):
            now = run.energy()
            assert now >= before - 1e-10 * abs(before), (stage.name, sweep.name)
            before = now


def in_unit(g: Any, by: Any) -> dict[str, Any]:
    """Return the loadings and the unit of attributes that are ``by`` times as large."""
    scaled = {n: replace(w, mean=w.mean / by, variance=w.variance / by**2) for n, w in g.weights.items()}
    return {"weights": scaled, "unit": g.unit * by}


def test_rises_at_every_step_of_the_m_step() -> None:
    """Loadings, noise, T, Lambda and relevance, one after the other, are each the best there is."""
    run = _run("frame")
    list(run.iterate(3))
    g, stats, c = run.globals_, run.stats, run.settings.hyper
    g = replace(g, **in_unit(g, run.local[0].odd.unit / g.unit))  # of the frames that the sums are of
    run.globals_ = g = replace(g, relevance=2.0 * g.relevance)

    def step(**changes: Any) -> None:
        before = run.energy()
        run.globals_ = replace(run.globals_, **changes)
        assert run.energy() >= before - 1e-10 * abs(before), list(changes)

    def best(**changes: Any) -> None:
        step(**changes)
        top = run.energy()
        for name, value in changes.items():
            if isinstance(value, np.ndarray):
                for factor in (0.98, 1.02):
                    run.globals_ = replace(run.globals_, **{name: value * factor})
                    if name == "dynamics":
                        run.globals_ = replace(run.globals_, expected=expectations(value * factor))
                    assert run.energy() < top
                    run.globals_ = replace(run.globals_, **changes)

    for name in ("a", "b"):
        own, now = stats.views[name], g.weights[name]
        second = stats.second[name] if own.second is None else own.second
        mean, variance, shift = learning.loadings(own, second, now.precision, g.relevance, True)
        weights = replace(now, mean=mean, variance=variance, shift=shift)
        step(weights={**run.globals_.weights, name: weights})
        kept, top = run.globals_, run.energy()
        for off in (-0.02, 0.02):
            moved = replace(weights, shift=shift + off)
            run.globals_ = replace(kept, weights={**kept.weights, name: moved})
            assert run.energy() < top
        run.globals_ = kept
        own = learning.shift_statistics(own, shift)
        shape, rate = learning.noise(own, second, mean, variance, c.noise)
        step(weights={**run.globals_.weights, name: replace(weights, shape=shape, rate=rate)})
        kept, top = run.globals_, run.energy()
        for changed in (
            replace(weights, shape=shape, rate=1.05 * rate),
            replace(weights, shape=shape, rate=0.95 * rate),
        ):
            run.globals_ = replace(kept, weights={**kept.weights, name: changed})
            assert run.energy() < top
        run.globals_ = kept
    best(transition=np.array(c.transition) + stats.moments.pairs)
    dynamics = c.dynamics_prior + learning.dynamics_statistics(stats.moments)
    best(dynamics=dynamics, expected=expectations(dynamics))

    def squares() -> Any:
        return sum((w.mean**2 + w.variance).sum(axis=0) for w in run.globals_.weights.values())

    given = run.globals_
    by = learning.best_scale(
        stats.moments, given.expected.moments, c.variance, 5, given.relevance * squares()
    )
    step(**in_unit(given, by))
    top, kept = run.energy(), run.globals_
    for column in range(len(by)):
        for factor in (0.98, 1.02):
            run.globals_ = replace(
                given, **in_unit(given, np.where(np.arange(4) == column, factor, 1.0) * by)
            )
            assert run.energy() < top
    run.globals_ = kept
    best(relevance=run.settings.n_features / squares())


@pytest.mark.parametrize("factorisation", ["frame", "chain"])
def test_states_are_the_best_there_are(factorisation: str) -> None:
    """Of what was updated last: any change of its parameters costs free energy."""
    run = _run(factorisation, p=1)
    list(run.iterate(2))
    sweeps = run.stages[-1].sweeps
    run.sweep(sweeps[0])
    if factorisation == "chain":
        run.sweep(sweeps[1])
    top, kept = run.energy(), list(run.local)
    rng = np.random.default_rng(0)
    for _ in range(5):
        if factorisation == "frame":
            for i, now in enumerate(kept):
                noise = 1e-3 * rng.normal(size=now.even.on.shape)
                even = replace(now.even, on=now.even.on + noise, off=now.even.off - noise)
                run.local[i] = replace(now, even=even)
            assert run.energy() < top
            for i, now in enumerate(kept):
                present = now.even.present
                present = np.clip(present + 1e-3 * rng.choice([-1, 1], present.shape), 0, 1)
                run.local[i] = replace(now, even=replace(now.even, present=present))
            assert run.energy() < top
        run.local = list(kept)


@pytest.mark.thorough
@pytest.mark.parametrize("factorisation", [pytest.param("frame", marks=pytest.mark.slow), "chain"])
def test_equals_monte_carlo(factorisation: str) -> None:
    """Mean of log p - log q of draws from q, all parameters included.

    Of chains after the update of the only one: a dense Gaussian that is known then.
    """
    run = _run(factorisation, p=1 if factorisation == "chain" else 2)
    list(run.iterate(4, -2))
    if factorisation == "chain":
        *sweeps, end = run.stages[-2].sweeps
        for sweep in sweeps:
            run.sweep(sweep)
        earlier = np.concatenate([x.tracks[0].present for x in run.local])[:, None]
        run.look(end)
    g, c, s = run.globals_, run.settings.hyper, run.settings
    q: Any = states(run)
    rng, n_draws = np.random.default_rng(0), 1500
    if factorisation == "chain":
        q.seen_present = earlier  # as q(a) saw it
    n, p = q.b.shape
    weights = [g.weights[v.name] for v in s.views]
    mean, variance = (np.concatenate([getattr(w, k) for w in weights]) for k in ("mean", "variance"))
    lam = np.tanh(np.linspace(-8, 8, 20_001))
    mass = density(g.dynamics, lam) * np.gradient(lam)
    prior = density(c.dynamics_prior, lam)
    log_ratio = np.log(prior) - np.log(np.maximum(density(g.dynamics, lam), 1e-300))
    places = [rng.choice(len(lam), n_draws, p=m / m.sum()) for m in mass]
    values = np.empty(n_draws)
    for i in range(n_draws):
        w = mean + np.sqrt(variance) * rng.normal(size=mean.shape)
        rho = rng.gamma(q.shape, 1 / q.rate)
        t = np.array([rng.dirichlet(row) for row in g.transition])
        at = [place[i] for place in places]
        total = sum(log_ratio[k, j] for k, j in enumerate(at))
        total += 0.5 * float((np.log(g.relevance) - g.relevance * w**2).sum())
        total += 0.5 * float((np.log(variance) + (w - mean) ** 2 / variance).sum())
        total += _log_gamma(rho, *c.noise) - _log_gamma(rho, q.shape, q.rate)
        for row, u, v in zip(t, c.transition, g.transition, strict=True):
            total += _log_dirichlet(row, np.array(u)) - _log_dirichlet(row, v)
        b, a, log_q = _draw_states(q, run, rng)
        x = (b[..., None] * a).reshape(n, -1)
        error = q.seen * (q.y - x @ w.T) ** 2
        total += 0.5 * float((q.seen * (np.log(rho) - np.log(2 * np.pi)) - rho * error).sum())
        total -= float((q.seen * np.log(q.scale)).sum())
        total += _log_states(b, a, q.first, t, lam[at].reshape(p, -1), c) - log_q
        values[i] = total
    error = values.std() / np.sqrt(n_draws)
    assert abs(values.mean() - run.energy()) < 4 * error
    assert error < 0.5


def _draw_states(q: Any, run: Run, rng: Any) -> tuple[Any, Any, float]:
    """Return b (N, P), a (N, P, Q) from q, and log q of them."""
    n, p = q.b.shape
    b, a, log_q = np.zeros((n, p)), np.zeros_like(q.a), 0.0
    chain = not hasattr(q, "s1")
    if chain:
        gram = np.einsum("td,d,dpij->tpij", q.seen, q.shape / q.rate, q.ww)
        residual = np.concatenate([x.residual for x in run.local])
    for i in range(p):
        if chain:
            b[:, i], part = _draw_presence(q, i, rng)
            log_q += part
            own = q.x[:, i] @ q.w[:, i].T * q.seen
            evidence = (residual + own) @ ((q.shape / q.rate)[:, None] * q.w[:, i])
            part_a, part = _draw_attributes(q, i, gram[:, i], evidence, rng)
            a[:, i] = part_a
            log_q += part
            continue
        b[:, i] = rng.random(n) < q.b[:, i]
        for t in range(n):
            there = b[t, i] > 0
            m, s = (q.on, q.s1) if there else (q.off, q.s0)
            a[t, i] = rng.multivariate_normal(m[t, i], s[t, i])
            log_q += np.log(q.b[t, i] if there else 1 - q.b[t, i]) + _log_normal(a[t, i] - m[t, i], s[t, i])
    return b, a, float(log_q)


def _draw_presence(q: Any, i: int, rng: Any) -> tuple[Any, float]:
    """Return one chain of b, drawn by its pairwise marginals."""
    b, log_q = np.zeros(len(q.b)), 0.0
    for t in range(len(b)):
        chance = q.b[t, i]
        if not q.first[t]:
            j, e = q.joint[t, i], q.earlier[t, i]
            chance = j / e if b[t - 1] else (q.b[t, i] - j) / (1 - e)
        b[t] = rng.random() < chance
        log_q += np.log(chance if b[t] else 1 - chance)
    return b, log_q


def _draw_attributes(q: Any, i: int, gram: Any, evidence: Any, rng: Any) -> tuple[Any, float]:
    """Return one chain of a, drawn from the dense Gaussian that is its best posterior."""
    mean, covariance = dense(q, i, gram, evidence)
    np.testing.assert_allclose(mean.reshape(q.a[:, i].shape), q.a[:, i], atol=1e-8)
    draw = rng.multivariate_normal(mean, covariance)
    return draw.reshape(q.a[:, i].shape), _log_normal(draw - mean, covariance)


def dense(q: Any, i: int, gram: Any, evidence: Any) -> tuple[Any, Any]:
    """Return mean and covariance of all attributes of an identity in all frames."""
    n, size = q.a[:, i].shape
    precision, m = np.zeros((n, size, n, size)), q.moments[:, i]
    at = np.arange(size)
    for t in range(n):
        precision[t, :, t, :] += q.seen_present[t, i] * gram[t]
        if q.first[t]:
            precision[t, at, t, at] += 1 / q.c.variance
            continue
        precision[t, at, t, at] += m[0]
        precision[t - 1, at, t - 1, at] += m[2]
        precision[t, at, t - 1, at] -= m[1]
        precision[t - 1, at, t, at] -= m[1]
    covariance = np.linalg.inv(precision.reshape(n * size, n * size))
    return covariance @ (q.seen_present[:, i, None] * evidence).reshape(-1), covariance


def _log_normal(x: Any, covariance: Any) -> float:
    half = np.linalg.slogdet(2 * np.pi * covariance)[1] + x @ np.linalg.solve(covariance, x)
    return -0.5 * float(half)


def _log_gamma(x: Any, shape: Any, rate: Any) -> float:
    value = shape * np.log(rate) - gammaln(shape) + (shape - 1) * np.log(x) - rate * x
    return float(np.sum(value * np.ones_like(x)))


def _log_dirichlet(x: Any, u: Any) -> float:
    return float(gammaln(u.sum()) - gammaln(u).sum() + ((u - 1) * np.log(x)).sum())


def _log_states(b: Any, a: Any, first: Any, t: Any, lam: Any, c: Any) -> float:
    total = 0.0
    for n in range(len(b)):
        if first[n]:
            total += float(np.log(np.where(b[n] > 0, c.initial, 1 - c.initial)).sum())
            total -= 0.5 * float((np.log(2 * np.pi * c.variance) + a[n] ** 2 / c.variance).sum())
            continue
        total += float(np.log(t[b[n - 1].astype(int), b[n].astype(int)]).sum())
        rest = 1 - lam**2
        total -= 0.5 * float((np.log(2 * np.pi * rest) + (a[n] - lam * a[n - 1]) ** 2 / rest).sum())
    return total


def test_edges_are_the_ends_of_blocks() -> None:
    """Also of the half that a sweep hands on, in the unit of before the last M-step."""
    run = _run("frame", gaps=False)
    list(run.iterate(2))
    for sweep in run.model.stages()[-1].sweeps:
        tables = sweep.prepare(run.globals_)
        for block, local in zip(run.blocks, run.local, strict=True):
            after, stats = sweep.map(block, local, tables, STEP)
            assert (after.odd.unit != tables.unit).any() == isinstance(sweep, EvenFrames)
            frames, edge = rescale_frames(run.settings, block, after, tables), stats.edges.values
            mean = compute_means(frames)[1]
            for end, name in ((0, "first"), (-1, "last")):
                np.testing.assert_allclose(getattr(edge, f"{name}_mean").ravel(), mean[end], rtol=1e-14)
                np.testing.assert_array_equal(getattr(edge, f"{name}_present").ravel(), frames.present[end])
        run.sweep(sweep)
