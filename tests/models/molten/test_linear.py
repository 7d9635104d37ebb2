"""Linear groups: the bound, equality with a categorical variable for one-hot weights, exact evidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import gammaln

import factorflow
from factorflow.errors import InputError
from factorflow.models import MoltenNormal, MoltenPoisson

QUICK: dict[str, Any] = {"n_components": 3, "n_starts": 1, "drop": 0.0, "linear": ("x",)}
COUNTS = {
    "plain": {},
    "fixed prior": {"shape": 0.7, "rate": 2.0},
    "additive": {"additive": True},
    "all": {"additive": True, "overdispersed": True},
    "random start": {"start": "random"},
}
GAUSSIAN = {
    "plain": {},
    "fixed prior": {"precision": 1.5, "intercept": False},
    "random start": {"start": "random"},
}


def weights(rng: Any, n: int, gaps: bool) -> Any:
    """A column of ones, one of large numbers, one that is mostly 0; some rows with a number missing."""
    x = np.column_stack(
        [np.ones(n), rng.uniform(0, 300.0, n), rng.gamma(1.0, 1.0, n) * (rng.random(n) < 0.3)]
    )
    if gaps:
        x[rng.random(n) < 0.1, 1] = np.nan
    return x


def made(tools: Any, likelihood: str, gaps: bool, sizes: tuple[int, ...] = (5, 3)) -> Any:
    rng, n = np.random.default_rng(1), 90
    codes, x = np.stack([rng.integers(0, size, n) for size in sizes], axis=1), weights(rng, n, gaps)
    codes[0] = np.array(sizes) - 1
    phi = np.nan_to_num(x / [1.0, 100.0, 1.0], nan=1.0) @ rng.gamma(1.0, 1.0, (3, 2))
    mean = phi * np.prod([rng.gamma(1.0, 1.5, (s, 2))[codes[:, g]] for g, s in enumerate(sizes)], axis=0)
    mean = mean.sum(axis=1)
    if likelihood == "gaussian":
        w = rng.integers(1, 4, n).astype(float)
        return tools.table(codes, mean + 0.3 * rng.normal(size=n), "gaussian", 40, weight=w, x=x)
    t = rng.uniform(0.2, 3.0, n)
    y = rng.poisson(mean * t).astype(float)
    y[5] = np.nan
    return tools.table(codes, y, "poisson", 40, exposure=t, x=x)


@pytest.mark.parametrize("gaps", ["none", "level", "one"])
@pytest.mark.parametrize("case", COUNTS)
def test_bound_of_counts_at_every_update(case: str, gaps: str, tools: Any) -> None:
    """As of categorical variables: never falling, by its definition between the updates of the shares."""
    if gaps == "one" and COUNTS[case].get("additive"):
        pytest.skip("refused")
    meta, blocks = made(tools, "poisson", gaps != "none")
    config = MoltenPoisson(**QUICK, **COUNTS[case], missing="one" if gaps == "one" else "level")
    model = config.build(meta)
    tools.check_bound_of_counts(model, config, meta, blocks)


@pytest.mark.parametrize("gaps", ["none", "level", "one"])
@pytest.mark.parametrize("case", GAUSSIAN)
def test_bound_of_measurements_at_every_update(case: str, gaps: str, tools: Any) -> None:
    meta, blocks = made(tools, "gaussian", gaps != "none")
    config = MoltenNormal(**QUICK, **GAUSSIAN[case], missing="one" if gaps == "one" else "level")
    model, last = config.build(meta), -np.inf
    for globals_, info in tools.rounds(config, meta, blocks, 12):
        assert info["objective"] == pytest.approx(tools.bound(model, blocks, globals_), rel=1e-8)
        assert info["objective"] > last - 1e-10 * abs(last if np.isfinite(last) else 1.0)
        last = info["objective"]


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("likelihood", ["poisson", "gaussian"])
def test_one_hot_weights_are_a_categorical_variable(likelihood: str, group: int, tools: Any) -> None:
    """From the same factors all is the same after any update: of both variables, with additive parts."""
    rng, sizes, n = np.random.default_rng(2), (5, 4), 80
    codes = np.stack([rng.integers(0, size, n) for size in sizes], axis=1)
    codes[0] = np.array(sizes) - 1
    y = rng.poisson(4.0, n) if likelihood == "poisson" else rng.normal(size=n)
    names = [("a", "b")[1 - group], ("a", "b")[group]]  # linear groups come last
    quick = {"n_components": 3, "n_starts": 1, "drop": 0.0, "variables": tuple(names)}
    quick |= {"additive": True, "overdispersed": True} if likelihood == "poisson" else {}
    make: Any = MoltenPoisson if likelihood == "poisson" else MoltenNormal
    meta, blocks = tools.table(codes, y, likelihood, 30)
    begun, _ = list(tools.rounds(make(**quick), meta, blocks, 2))[-1]
    expected = list(tools.rounds(make(**quick), meta, blocks, 6, begun))
    one_hot = np.eye(sizes[group])[codes[:, group]]
    other, there = tools.table(codes, y, likelihood, 30, x=one_hot)
    moved = replace(
        begun,
        levels={names[0]: begun.levels[names[0]], "x": begun.levels[names[1]]},
        totals={names[0]: begun.totals[names[0]], "x": begun.totals[names[1]]},
    )
    config = make(**{**quick, "variables": (names[0],), "linear": ("x",)})
    found = list(tools.rounds(config, other, there, 6, moved))
    for (now, info), (wanted, told) in zip(found, expected, strict=True):
        assert info["objective"] == pytest.approx(told["objective"], rel=1e-12)
        for name, its in ((names[0], names[0]), ("x", names[1])):
            np.testing.assert_allclose(now.levels[name].one, wanted.levels[its].one, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(now.levels[name].two, wanted.levels[its].two, rtol=1e-9)


@pytest.mark.thorough
def test_one_weighted_level_is_exact_for_counts(tools: Any) -> None:
    """L = 1, one group of one column: y_n ~ Poisson(t_n x_n lambda), of which the evidence is known."""
    rng, a, b = np.random.default_rng(3), 0.7, 1.3
    x, t = rng.uniform(0.1, 5.0, 30), rng.uniform(0.5, 2.0, 30)
    y = rng.poisson(1.5 * t * x)
    evidence = (y * np.log(t * x) - gammaln(y + 1)).sum() + a * np.log(b) - gammaln(a)
    evidence += gammaln(a + y.sum()) - (a + y.sum()) * np.log(b + (t * x).sum())
    meta, blocks = tools.table(np.zeros((30, 1), int), y, "poisson", 20, exposure=t, x=x)
    config = MoltenPoisson(n_components=1, shape=a, rate=b, n_starts=1, variables=(), linear=("x",))
    assert list(tools.rounds(config, meta, blocks, 5))[-1][1]["objective"] == pytest.approx(
        evidence, rel=1e-10
    )


def test_orthogonal_columns_are_exact_for_measurements(tools: Any) -> None:
    """L = 1, one group, known noise: a linear regression; its posterior factorises where x'x is diagonal."""
    rng, noise, tau = np.random.default_rng(4), 2.0, 0.8
    x = np.linalg.qr(rng.normal(size=(30, 3)))[0] * [1.0, 2.0, 3.0]
    y = np.float32(x @ rng.normal(size=3) + 0.5 * rng.normal(size=30))
    evidence = stats.multivariate_normal.logpdf(y, cov=np.eye(30) / noise + x @ x.T / tau)
    meta, blocks = tools.table(np.zeros((30, 1), int), y, "gaussian", 20, x=x)
    config = MoltenNormal(
        n_components=1, precision=tau, n_starts=1, intercept=False, variables=(),
        noise_prior=(2e9, 1e9 / float(np.var(np.float64(y)))),
        linear=("x",),
    )  # fmt: skip
    found, info = list(tools.rounds(config, meta, blocks, 5))[-1]
    assert info["objective"] == pytest.approx(evidence, rel=1e-6)  # what is left of log Gamma(2e9)
    expected = noise * x.T @ y / (tau + noise * (x**2).sum(axis=0))
    np.testing.assert_allclose(found.levels["x"].one[:-1, 0, 0], expected, rtol=1e-6)


def test_correlated_columns_become_a_regression(tools: Any) -> None:
    """Whatever x'x is, updates level by level end at the mean of the joint posterior."""
    rng, noise, tau = np.random.default_rng(5), 2.0, 0.8
    x = rng.normal(size=(40, 4)) @ rng.normal(size=(4, 4))
    y = np.float32(x @ rng.normal(size=4) + 0.5 * rng.normal(size=40))
    meta, blocks = tools.table(np.zeros((40, 1), int), y, "gaussian", 20, x=x)
    config = MoltenNormal(
        n_components=1, precision=tau, n_starts=1, intercept=False, variables=(),
        noise_prior=(2e9, 1e9 / float(np.var(np.float64(y)))),
        linear=("x",),
    )  # fmt: skip
    found, _ = list(tools.rounds(config, meta, blocks, 300))[-1]
    expected = np.linalg.solve(tau * np.eye(4) + noise * x.T @ x, noise * x.T @ y)
    np.testing.assert_allclose(found.levels["x"].one[:-1, 0, 0], expected, rtol=1e-5, atol=1e-6)


def test_runs_of_levels_do_not_matter(tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels of a group depend on each other, and are found together wherever the axis is cut."""
    meta, blocks = made(tools, "gaussian", True)
    whole = [info["objective"] for _, info in tools.rounds(MoltenNormal(**QUICK), meta, blocks, 4)]
    monkeypatch.setattr("factorflow.engine.feature_runs.FEATURE_RUN", 2)
    cut = [info["objective"] for _, info in tools.rounds(MoltenNormal(**QUICK), meta, blocks, 4)]
    assert cut == pytest.approx(whole, rel=1e-10)


def test_refused(tools: Any) -> None:
    rng = np.random.default_rng(6)
    codes, y = rng.integers(0, 3, (20, 1)), np.full(20, 2)
    x = rng.uniform(0.0, 1.0, (20, 2))

    def start(x: Any, y: Any = y, likelihood: str = "poisson", **choices: Any) -> None:
        meta, blocks = tools.table(codes, y, likelihood, x=x)
        config: Any = MoltenPoisson if likelihood == "poisson" else MoltenNormal
        list(tools.rounds(config(n_components=2, n_starts=1, linear=("x",), **choices), meta, blocks, 1))

    wrong = x.copy()
    wrong[7, 1] = -0.5
    with pytest.raises(InputError, match=r"'x', row 8, column 2.*-0\.5"):
        start(wrong)
    start(wrong, likelihood="gaussian")
    wrong[7, 1] = np.inf
    with pytest.raises(InputError, match="row 8, column 2"):
        start(wrong, likelihood="gaussian")
    wrong[7] = 0.0
    with pytest.raises(InputError, match=r"'x', row 8.*beside a count of 2"):
        start(wrong)
    start(wrong, additive=True)
    start(wrong, np.where(np.arange(20) == 7, 0, y))
    with pytest.raises(InputError, match="70 columns"):
        start(rng.uniform(0.0, 1.0, (20, 70)), likelihood="gaussian")
    with pytest.raises(InputError, match="each variable once"):
        start(x, variables=("a", "x"))
    meta, _ = tools.table(codes, y, "poisson")
    with pytest.raises(InputError, match="a view of kind covariate"):
        MoltenPoisson(variables=(), linear=("a",)).build(meta)


@pytest.mark.thorough
def test_from_a_formula_to_predictions(tmp_path: Path) -> None:
    """Counts that rise with depth, from a table to new rows of it, also without a depth."""
    rng, n = np.random.default_rng(7), 400
    frame = pd.DataFrame({"site": rng.integers(0, 5, n), "depth": rng.uniform(0, 40.0, n)})
    site = np.array([0.5, 1.0, 2.0, 3.0, 4.0])
    frame["y"] = rng.poisson(site[frame["site"]] * (1.0 + 0.2 * frame["depth"]))
    data = factorflow.write_table(tmp_path / "d", frame, "y ~ site + linear(1, depth)")
    posterior = factorflow.fit(data, MoltenPoisson(n_components=1, n_starts=1, max_iter=60))
    of_site, of_depth = posterior.loadings("site").values[:, 0], posterior.loadings("depth").values[:, 0]
    assert posterior.features("depth").tolist() == ["1", "depth"]
    np.testing.assert_allclose(of_site / of_site[1], site, rtol=0.25)
    assert of_depth[1] / of_depth[0] == pytest.approx(0.2, rel=0.4)
    new = pd.DataFrame({"site": [0, 4, 2], "depth": [10.0, 0.0, np.nan]})
    found = posterior.predict(new)
    mean = of_site[[0, 4, 2]] * [of_depth[0] + 10.0 * of_depth[1], of_depth[0], np.nan]
    np.testing.assert_allclose(found["mean"].values[:2], mean[:2], rtol=1e-6)
    variance = [posterior.variable(f"loadings_variance_{name}").values[:, 0] for name in ("site", "depth")]
    phi, spread = of_depth[0] + 10.0 * of_depth[1], variance[1][0] + 100.0 * variance[1][1]
    square = (of_site[0] ** 2 + variance[0][0]) * (phi**2 + spread) - mean[0] ** 2
    assert found["sd"].values[0] == pytest.approx(np.sqrt(square + mean[0]), rel=1e-5)
    missing = float(posterior.variable("missing_depth").values[0])
    assert found["mean"].values[2] == pytest.approx(of_site[2] * missing, rel=1e-6)
    with pytest.raises(InputError, match=r"'depth', row 2, column 2"):
        posterior.predict(new.assign(depth=[1.0, -1.0, 2.0]))
    with pytest.raises(InputError, match="formula = depth: expected columns among site"):
        posterior.predict(new.drop(columns="depth"))


def test_predictions_of_additive_parts_against_draws(tools: Any) -> None:
    """Of rows with weights, one of them without: products and additive parts, all drawn from q.

    Additive parts are small beside products: mean and variance are also checked by their definition.
    """
    meta, blocks = made(tools, "poisson", True)
    config, rng, n = MoltenPoisson(**QUICK, additive=True), np.random.default_rng(8), 5_000
    model, (g, _) = config.build(meta), list(tools.rounds(config, meta, blocks, 4))[-1]
    gaps = [np.isnan(block.data["x"]).any(axis=1) for block in blocks]
    block, missing = next((block, gap) for block, gap in zip(blocks, gaps, strict=True) if gap.any())
    mean, sd = model.predict(block, {}, model.record(g), "y")
    for row in (*np.flatnonzero(~missing)[:2], np.flatnonzero(missing)[0]):
        product, added, spread, squares, centre, extra = 1.0, 0.0, 0.0, 1.0, 1.0, 0.0
        for position, name in enumerate(model.settings.names):
            level, x = g.levels[name], block.data[name][row]
            weight = np.eye(len(level.seen))[x] if name != "x" else np.append(np.nan_to_num(x), 0.0)
            if name == "x" and missing[row]:
                weight = np.eye(len(level.seen))[-1]
            drawn = rng.gamma(level.one[:, 0], 1.0 / level.two[:, 0], (n, *level.one[:, 0].shape))
            factor = np.einsum("d,ndk->nk", weight, drawn)
            spread += weight**2 @ (level.one / level.two**2)[:, 0, 3 + position]
            level_mean, level_variance = (
                (level.one / level.two)[:, 0, :3],
                (level.one / level.two**2)[:, 0, :3],
            )
            mean_square = (weight @ level_mean) ** 2 + weight**2 @ level_variance
            squares, centre = squares * mean_square, centre * (weight @ level_mean)
            extra += weight @ (level.one / level.two)[:, 0, 3 + position]
            product, added = product * factor[:, :3], added + factor[:, 3 + position]
        t = block.data["exposure"][row, 0]
        rate = t * (product.sum(axis=1) + added)
        variance = t**2 * (float(np.sum(squares - centre**2)) + spread)
        assert sd[row, 0] ** 2 - mean[row, 0] == pytest.approx(variance, rel=1e-6)
        assert mean[row, 0] == pytest.approx(t * (float(np.sum(centre)) + extra), rel=1e-6)
        assert mean[row, 0] == pytest.approx(rate.mean(), rel=0.1)
        assert sd[row, 0] == pytest.approx(np.sqrt(rate.var() + rate.mean()), rel=0.1)
