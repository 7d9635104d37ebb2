"""Smooth scores: kernels, courses at the root, what rows say of them, and whole fits."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import factorflow as ff
from factorflow.core.block import Block
from factorflow.core.places import PLACES, Places
from factorflow.core.trees import replace
from factorflow.data.ingest.checks import DataWarning
from factorflow.data.places import code_places
from factorflow.errors import InputError
from factorflow.models.sparse_gfa import model as model_module
from factorflow.models.sparse_gfa.smooth import evidence as evidence_module
from factorflow.models.sparse_gfa.smooth import sweeps as sweeps_module
from factorflow.models.sparse_gfa.smooth import weak as weak_module
from factorflow.models.sparse_gfa.smooth.cosines import Cosines, ProductRows, choose_basis
from factorflow.models.sparse_gfa.smooth.courses import (
    Courses,
    NoiseSums,
    close_rough,
    open_courses,
    update_noise,
)
from factorflow.models.sparse_gfa.smooth.evidence import Forms, evidence, update_courses
from factorflow.models.sparse_gfa.smooth.points import Points
from factorflow.models.sparse_gfa.smooth.processes import (
    KERNELS,
    correlation,
    group_correlation,
    log_spectral_density,
)
from factorflow.models.sparse_gfa.smooth.rows import (
    Conditional,
    CoursePrior,
    SmoothSettings,
    course_prior,
    course_units,
    courses_at,
    noise_sums,
    spread_scores,
    with_tables,
)
from factorflow.models.sparse_gfa.smooth.site_sums import site_sums
from factorflow.models.sparse_gfa.smooth.sweeps import shows_courses
from factorflow.models.sparse_gfa.smooth.warping import KNOTS, WARP_ROUNDS, common_clock
from factorflow.models.sparse_gfa.state import Globals
from factorflow.models.sparse_gfa.weights import Weights

NUMBERS = json.loads(Path(__file__).with_name("smooth_factors.json").read_text(encoding="utf-8"))
"""Values that an independent program computed, with loops over rows and entries."""

PLANE = NUMBERS["plane"]


def assert_close(found: Any, wanted: Any, rtol: float = 1e-8) -> None:
    np.testing.assert_allclose(found, np.asarray(wanted), rtol=rtol, atol=1e-9)


def test_kernels_and_spectral_densities_are_the_known_ones() -> None:
    for known in NUMBERS["kernels"]:
        squares = np.array([[(known["distance"] / known["length"]) ** 2]])
        value, slope = correlation(known["kernel"], squares)
        assert_close([value[0], slope[0, 0]], [known["value"], known["by_log_length"]])
    for known in NUMBERS["spectral_densities"]:
        given = np.array([[known["frequency"] ** 2]]), np.array([known["length"]])
        value, slope = log_spectral_density(known["kernel"], *given, np.array([float(known["dimension"])]))
        assert_close([value[0], slope[0, 0]], [known["log_density"], known["by_log_length"]])


@pytest.mark.parametrize("kernel", KERNELS)
def test_slopes_by_several_length_scales(kernel: str) -> None:
    rng = np.random.default_rng(3)
    squares, lengths = rng.random((2, 5)) + 0.1, np.array([0.4, 1.3])
    dimensions, step = np.array([1.0, 2.0]), 1e-6
    for r in range(2):
        ends = [lengths * np.exp(step * sign * (np.arange(2) == r)) for sign in (1, -1)]
        high, low = (correlation(kernel, squares / end[:, None] ** 2)[0] for end in ends)
        slope = correlation(kernel, squares / lengths[:, None] ** 2)[1][r]
        np.testing.assert_allclose(slope, (high - low) / (2 * step), rtol=1e-6, atol=1e-9)
        high, low = (log_spectral_density(kernel, squares, end, dimensions)[0] for end in ends)
        slope = log_spectral_density(kernel, squares, lengths, dimensions)[1][r]
        np.testing.assert_allclose(slope, (high - low) / (2 * step), rtol=1e-6, atol=1e-8)


def test_cosines_add_up_to_the_kernel() -> None:
    """On a box that is wide enough, in its middle: sum_j S_j phi_j(x) phi_j(y) is k(x, y)."""
    places = Places(("t",), (0,), low=(0.0,), high=(1.0,), nearest=(0.01,))
    basis = Cosines(places, "matern52", (400,), 6.0)
    x = np.array([[0.5], [0.6], [0.9]])
    functions, codes = basis.functions(x, np.zeros(3, int)), np.zeros(3, int)
    density = basis.covariance(np.array([0.3]), np.array([0.9]))[0]
    wanted = correlation("matern52", ((x - x.T) / 0.3)[None] ** 2)[0]
    np.testing.assert_allclose((functions * density) @ functions.T, wanted, atol=1e-5)
    assert basis.at(x, codes, np.array([0.3]), np.array([0.9]), np.zeros(basis.size))[1].max() == 0.0


def test_groups_share_a_course() -> None:
    found, slopes = group_correlation(np.array([0.9, -0.5, 0.2]))
    assert_close(np.diag(found), 1.0)
    assert_close(found[0, 1], -0.45)
    step = 1e-6
    for g in range(3):
        high, low = (
            group_correlation(np.array([0.9, -0.5, 0.2]) + s * np.eye(3)[g])[0] for s in (step, -step)
        )
        np.testing.assert_allclose(slopes[g], (high - low) / (2 * step), atol=1e-8)


def plane() -> SimpleNamespace:
    """Cosines on a plane, with the state that the independent program began with."""
    x = np.array(PLANE["covariates"])
    places = Places(
        ("x", "y"), (0, 0), low=tuple(x.min(0)), high=tuple(x.max(0)), nearest=(0.1,), n_known=len(x)
    )
    basis = Cosines(places, PLANE["kernel"], (4, 3), 1.5)
    functions = basis.functions(x, np.zeros(len(x), int))
    centre = functions.mean(axis=0)
    second = (functions - centre).T @ (functions - centre) / len(x)
    start = {name: np.array(value) for name, value in PLANE["start"].items()}
    courses = replace(
        open_courses(basis, centre, second, float(len(x)), 2),
        mean=start["mean_c"],
        covariance=start["var_c"],
        noise=start["shares"][:, 2],
        lengths=start["length"][:, None],
        sharing=start["group_loadings"],
    )
    rows = {name: np.array(value) for name, value in PLANE["rows"].items()}
    return SimpleNamespace(
        x=x, basis=basis, functions=functions - centre, courses=courses, rows=rows, second=second
    )


def packed(matrices: np.ndarray) -> np.ndarray:
    i, j = np.tril_indices(matrices.shape[-1])
    return np.ascontiguousarray(matrices[..., i, j])


def test_rows_and_their_sums_are_the_known_ones() -> None:
    p = plane()
    mean = p.functions @ p.courses.mean.T
    variance = np.einsum("nm,kml,nl->nk", p.functions, p.courses.covariance, p.functions)
    assert_close(mean, p.rows["f"])
    assert_close(variance, p.rows["f_variance"])
    known = np.ones(len(p.x), bool)
    prior = CoursePrior(mean, variance, 1.0 / p.courses.noise[None], known, p.functions)
    given = Conditional(prior, packed(p.rows["S"]))
    assert_close(spread_scores(prior, given.covariance), packed(p.rows["z_covariance"]))
    sums = noise_sums(given, p.rows["m"])
    for name, wanted in (("residual", "ee"), ("second", "zz"), ("cross", "zf"), ("course", "ff")):
        assert_close(getattr(sums, name), p.rows[wanted])
    assert not sums.unknown.any()
    block = Block(0, 0, len(p.x), 1, {}, columns={PLACES: p.x})
    said = site_sums(SmoothSettings(p.basis, complete=False), block, given, p.rows["m"])
    assert_close(said.linear.T, p.rows["g"])
    for k in range(2):
        assert_close(said.forms[k], packed(p.rows["G"][k, k]))


def test_courses_are_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    p = plane()
    form = p.rows["G"]
    linear = p.rows["g"][0] + form[0, 0] @ p.courses.mean[0]
    share = 1.0 - p.courses.noise[0]
    value, slopes = evidence(
        p.basis, p.courses, form[0, 0], linear, p.courses.lengths[0], p.courses.sharing[0], share
    )
    known = PLANE["evidence"]
    assert_close([value, slopes[0], slopes[-1]], [known["value"], known["by_log_length"], known["by_log_s"]])
    monkeypatch.setattr(evidence_module, "N_CYCLES", 2)
    new = update_courses(p.basis, p.courses, Forms(lambda k, j: form[k, j], p.rows["g"]), starts=0)
    assert_close(new.mean, PLANE["after"]["mean_c"])
    assert_close(new.covariance, PLANE["after"]["var_c"])
    at = PLANE["predict"]
    mean, variance, *_ = courses_at(p.basis, np.array(at["covariates"]), np.zeros(3, int), new)
    assert_close(mean.T, at["mean"])
    assert_close(variance.T, at["variance"])


def test_shares_of_noise_are_the_known_ones() -> None:
    for known in NUMBERS["zeta_updates"]:
        size = known["coefficients"]
        none = np.zeros((1, size, size))
        courses = Courses(
            none[:, 0], none, np.array([known["energy"]]), np.zeros(1), np.array([known["zeta"]]),
            np.ones((1, 1)), np.ones((1, 1)), np.zeros(1), np.zeros(1), np.zeros(size), np.eye(size),
            float(known["n"]),
        )  # fmt: skip
        sums = NoiseSums(*(np.array([known[name]]) for name in ("ee", "zz", "zf", "ff")), np.zeros(1))
        best = max((known[along]["gain"], known[along]["zeta"]) for along in ("along_c", "along_v"))
        assert_close(update_noise(courses, sums).noise, [best[1]])


def test_all_at_once_reaches_what_turns_reach() -> None:
    """With a larger curvature where forms between factors are not known: more passes, the same end."""
    p = plane()
    form, linear = p.rows["G"], p.rows["g"]
    own = np.einsum("kkij->kij", form)

    def slope(courses: Courses) -> np.ndarray:
        """The slope of the bound at other means."""
        moved = courses.mean - p.courses.mean
        return linear - np.einsum("kjmn,jn->km", form, moved)

    ratio = 1.0 + max(np.abs(form[0, 1]).max() / np.diag(form[k, k]).max() for k in range(2))
    turns, steps = p.courses, p.courses
    for _ in range(60):
        turns = update_courses(p.basis, turns, Forms(lambda k, j: form[k, j], slope(turns)), starts=0)
        forms = Forms(lambda k, _: own[k], slope(steps), has_cross_forms=False, ratio=ratio)
        steps = update_courses(p.basis, steps, forms, starts=0)
    np.testing.assert_allclose(steps.mean, turns.mean, rtol=1e-5, atol=1e-7)


def line(kernel: str = "matern52", n: int = 24, groups: int = 1) -> tuple[Points, np.ndarray, np.ndarray]:
    """A basis of points, the places of two rows at each, and their groups."""
    t, codes = np.tile(np.linspace(0, 1, n), groups), np.repeat(np.arange(groups), n)
    cells = tuple(map(tuple, np.column_stack([codes, t]).tolist()))
    places = Places(
        ("t",), (0,), low=(0.0,), high=(1.0,), nearest=(1 / (n - 1),), n_known=2 * n * groups, cells=cells,
        groups=tuple(f"g{g}" for g in range(groups)) if groups > 1 else (),
    )  # fmt: skip
    return Points(places, kernel), np.repeat(t, 2)[:, None], np.repeat(codes, 2)


def test_one_factor_is_exact() -> None:
    """For one factor with known loadings, q(z) and the evidence are those of dense linear algebra."""
    basis, places, codes = line()
    rng, n = np.random.default_rng(5), len(places)
    precision, noise = 1.7, 0.3
    y = rng.standard_normal(n) + np.sin(6 * places[:, 0])
    cells = basis.cell(places, codes)
    functions = np.eye(basis.size)[cells]
    centre = functions.mean(axis=0)
    second = (functions - centre).T @ (functions - centre) / n
    courses = replace(
        open_courses(basis, centre, second, float(n), 1, share=1.0 - noise), lengths=np.array([[0.3]])
    )
    smooth = SmoothSettings(basis, complete=False)
    block = Block(0, 0, n, 1, {}, columns={PLACES: places})
    spread = np.full((n, 1), 1.0 / (precision + 1.0 / noise))

    def rows(courses: Courses) -> tuple[Conditional, np.ndarray]:
        f = (functions - centre) @ courses.mean.T
        d = np.einsum("nm,ml,nl->n", functions - centre, courses.covariance[0], functions - centre)[:, None]
        prior = CoursePrior(f, d, np.full((1, 1), 1.0 / noise), np.ones(n, bool), cells)
        return Conditional(prior, spread), spread * (precision * y[:, None] + f / noise)

    from factorflow.models.sparse_gfa.smooth.site_sums import forms_of

    for _ in range(2):
        given, mean = rows(courses)
        forms = forms_of(smooth, courses, site_sums(smooth, block, given, mean))
        courses = update_courses(basis, courses, forms, starts=0)
    given, mean = rows(courses)
    variance = spread_scores(given.prior, given.covariance)
    scaled = basis.scaled_covariance(np.array([0.3]), np.array([0.9]), second)[0]
    prior = (1 - noise) * (functions - centre) @ scaled @ (functions - centre).T + noise * np.eye(n)
    dense = np.linalg.inv(np.linalg.inv(prior) + precision * np.eye(n))
    np.testing.assert_allclose(mean[:, 0], dense @ (precision * y), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(variance[:, 0], np.diag(dense), rtol=1e-6)
    without = stats.multivariate_normal.logpdf(y, cov=noise * np.eye(n) + np.eye(n) / precision)
    total = stats.multivariate_normal.logpdf(y, cov=prior + np.eye(n) / precision)
    np.testing.assert_allclose(courses.evidence[0], total - without, rtol=1e-6)


@pytest.mark.parametrize("groups", [1, 3])
def test_slopes_of_the_evidence(groups: int) -> None:
    basis, places, codes = line(groups=groups)
    rng = np.random.default_rng(1)
    functions = np.eye(basis.size)[basis.cell(places, codes)]
    centre = functions.mean(axis=0)
    second = (functions - centre).T @ (functions - centre) / len(places)
    courses = open_courses(basis, centre, second, float(len(places)), 1)
    form = (functions - centre).T @ (functions - centre) * 2.0
    linear = form @ rng.standard_normal(basis.size)
    at = np.concatenate([[np.log(0.2)], rng.uniform(-0.8, 0.8, groups)])

    def value(vector: np.ndarray, ratio: float) -> tuple[float, np.ndarray]:
        return evidence(basis, courses, form, linear, np.exp(vector[:1]), vector[1:], 0.6, ratio)

    for ratio in (1.0, 1.3):
        slopes, step = value(at, ratio)[1], 1e-5
        for i in range(len(at) if groups > 1 else 1):
            move = step * np.eye(len(at))[i]
            wanted = (value(at + move, ratio)[0] - value(at - move, ratio)[0]) / (2 * step)
            np.testing.assert_allclose(slopes[i], wanted, rtol=1e-5, atol=1e-6)


def test_new_rows_know_no_more_than_their_course() -> None:
    """N(E f, zeta + Var f), of an unknown place N(0, 1)."""
    p = plane()
    block = Block(0, 0, 3, 1, {}, columns={PLACES: np.array([[0.2, 0.3], [0.9, 0.9], [np.nan, 0.5]])})
    smooth = SmoothSettings(p.basis, complete=False)
    prior = course_prior(smooth, block, p.courses, each=False, new=True)
    mean, variance, _, reached = courses_at(p.basis, block.columns[PLACES], np.zeros(3, int), p.courses)
    assert reached.tolist() == [True, True, False]
    assert variance[:2].min() > 0.01
    assert_close(prior.mean, np.where(reached[:, None], mean, 0.0))
    assert_close(1.0 / prior.precision[:2], p.courses.noise + variance[:2])
    assert_close(prior.precision[2], 1.0)


@pytest.mark.parametrize("per_column", [(5,), (3, 4), (3, 2, 4)])
def test_products_of_cosines_are_never_made(per_column: tuple[int, ...]) -> None:
    """Of more rows than are multiplied at a time, with one whose place is not known."""
    rng, n, columns = np.random.default_rng(6), 300, len(per_column)
    ends = {"low": (0.0,) * columns, "high": (1.0, 3.0, 2.0)[:columns], "nearest": (0.1,)}
    basis = Cosines(Places(("x", "y", "z")[:columns], (0,) * columns, **ends), "rbf", per_column)
    places, known = rng.random((n, columns)), np.arange(n) != 7
    centre, values, rows = (rng.standard_normal(shape) for shape in (basis.size, (basis.size, 3), (n, 3)))
    values[:, 1] = 0.0  # of a factor without a course
    products = ProductRows(*basis.by_column(places), centre, known.astype(float))
    wanted = (basis.functions(places, np.zeros(n, int)) - centre) * known[:, None]
    assert_close(products.whole(), wanted, 1e-12)
    np.testing.assert_allclose(products.times(values), wanted @ values, atol=1e-12)
    assert not products.times(np.zeros((basis.size, 3))).any()
    np.testing.assert_allclose(products.sums(rows), wanted.T @ rows, atol=1e-11)


@pytest.mark.parametrize("groups", [(), ("a", "b")])
@pytest.mark.parametrize("per_column", [(5,), (4, 6), (3, 2, 4)])
def test_sums_of_products_of_cosines(groups: tuple[str, ...], per_column: tuple[int, ...]) -> None:
    rng, columns = np.random.default_rng(7), len(per_column)
    ends = {"low": (0.0,) * columns, "high": (1.0, 3.0, 2.0)[:columns], "nearest": (0.1,)}
    places = Places(("x", "y", "z")[:columns], (0,) * columns, **ends, groups=groups)
    basis = Cosines(places, "rbf", per_column)
    rows, codes = rng.random((30, columns)), np.arange(30) % basis.n_groups
    functions = basis.functions(rows, codes)
    found = basis.products_from(basis.product_sums(rows, codes))
    np.testing.assert_allclose(found, functions.T @ functions, atol=1e-12)


@pytest.mark.parametrize("groups", [(), ("a", "b")])
@pytest.mark.parametrize("per_column", [(5,), (3, 4)])
def test_variances_of_cosines(groups: tuple[str, ...], per_column: tuple[int, ...]) -> None:
    """Var f = (phi - mean phi)' Cov c (phi - mean phi), 0 where the place is not known."""
    rng, columns = np.random.default_rng(5), len(per_column)
    ends = {"low": (0.0,) * columns, "high": (1.0, 3.0)[:columns], "nearest": (0.1,)}
    basis = Cosines(Places(("x", "y")[:columns], (0,) * columns, **ends, groups=groups), "rbf", per_column)
    places, codes = rng.random((6, columns)), np.arange(6) % basis.n_groups
    places[4] = np.nan
    opened = open_courses(basis, rng.standard_normal(basis.size), np.eye(basis.size), 6.0, 2)
    roots = rng.standard_normal((2, basis.size, basis.size))
    courses = replace(opened, covariance=roots @ roots.swapaxes(1, 2))
    block = Block(0, 0, 6, 1, {}, columns={PLACES: places, "group": codes})
    smooth = SmoothSettings(basis, complete=True)
    prior = course_prior(smooth, block, with_tables(smooth, courses, each=True), each=True, new=False)
    functions = basis.functions(np.nan_to_num(places), codes) - courses.centre
    wanted = np.einsum("bm,kmn,bn->bk", functions, courses.covariance, functions)
    assert prior.variance is not None
    assert_close(prior.variance, np.where(np.isfinite(places).all(axis=1)[:, None], wanted, 0.0))


def test_the_average_of_scores_goes_into_the_intercepts(monkeypatch: pytest.MonkeyPatch) -> None:
    """b + w (z + m) is (b + w m) + w z."""
    monkeypatch.setattr(sweeps_module, "with_fresh_pairs", lambda settings, globals_: globals_)
    rng = np.random.default_rng(0)
    w, b, m = rng.standard_normal((5, 2)), rng.standard_normal((5, 1)), np.array([0.7, -0.3])
    weights = Weights(w, np.zeros((5, 2)), None, b, np.zeros((5, 1)), None, None, np.zeros((5, 0)))

    @dataclass(frozen=True)
    class Some:
        weights: dict[str, Weights]

    def moved(**options: bool) -> np.ndarray:
        settings = SimpleNamespace(**{"stateful": False, "intercepts": True, **options})
        found = sweeps_module._with_mean_in_intercepts(settings, Some({"a": weights}), m)
        return found.weights["a"].coefficients

    z = rng.standard_normal((4, 2))
    assert_close(z @ w.T + moved()[:, 0], (z + m) @ w.T + b[:, 0])
    for option in ({"stateful": True}, {"intercepts": False}):
        assert_close(moved(**option), b)


def test_rough_courses_are_closed() -> None:
    basis, *_ = line()
    second = np.eye(basis.size) / basis.size
    opened = open_courses(basis, np.zeros(basis.size), second, 100.0, 2)
    kept = close_rough(basis, replace(opened, evidence=np.array([4.5, 4.7])))  # log(100) = 4.6
    assert kept.noise.tolist() == [1.0, 0.5]
    assert not kept.covariance[0].any()
    assert kept.covariance[1].any()
    # A length scale as short as the distance of neighbours is noise, whatever the evidence.
    short = replace(opened, evidence=np.full(2, 50.0), lengths=np.array([[1 / 23], [0.06]]))
    assert close_rough(basis, short).noise.tolist() == [1.0, 0.5]


def test_white_scores_show_no_courses() -> None:
    """Of 40 sets one or two do; of smooth scores all."""
    basis, places, codes = line(n=40)
    functions = np.eye(basis.size)[basis.cell(places, codes)]
    centre, n = functions.mean(axis=0), len(places)
    second = (functions - centre).T @ (functions - centre) / n

    def shown(z: np.ndarray, rng: np.random.Generator) -> bool:
        signs = np.concatenate([np.ones((1, n)), rng.choice([-1.0, 1.0], (39, n))])
        products = np.einsum("nm,sn,nk->msk", functions - centre, signs, z)
        return shows_courses(basis, second, float(n), z.T @ z, products)

    rng = np.random.default_rng(2)
    assert sum(shown(rng.standard_normal((n, 3)), rng) for _ in range(40)) <= 5
    wave = np.sin(5 * places)
    assert all(shown(np.hstack([wave, rng.standard_normal((n, 2))]), rng) for _ in range(5))


# Whole fits


def simulated(folder: Path, name: str = "data", **settings: Any) -> ff.Dataset:
    views = {"a": ("gaussian", 40), "b": ("gaussian", 30)}
    given = {
        "views": views,
        "n_factors": 3,
        "smooth": 2,
        "view_activity": 1.0,
        "sparsity": 0.3,
        "r2": 0.6,
        "seed": 3,
    }
    return ff.simulate("sparse_gfa", folder / f"{name}.zarr", **{"n_samples": 160, **given, **settings})


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("smooth")
    dataset = simulated(folder, groups=2, missing=0.2, r2=0.5)
    posterior = ff.fit(dataset, ff.models.SparseGFA(n_factors=6, smooth_covariates="time"), progress=False)
    return SimpleNamespace(dataset=dataset, posterior=posterior, folder=folder)


def fitted_values(fitted: SimpleNamespace) -> pd.DataFrame:
    blocks = [block.data["a"] for block in map(fitted.dataset.block, range(fitted.dataset.n_blocks))]
    names = {"index": fitted.dataset.obs_names, "columns": fitted.dataset.features("a")}
    return pd.DataFrame(np.concatenate(blocks), **names)


@pytest.mark.thorough
def test_smooth_factors_are_found(fitted: SimpleNamespace) -> None:
    table = fitted.posterior.smoothness()
    assert list(table.columns) == ["smooth", "rest", "length_scale_time", "evidence"]
    truth = np.asarray(fitted.dataset.truth["scores"])
    found = fitted.posterior.scores().values
    best = np.abs(np.corrcoef(truth.T, found.T)[:3, 3:])
    assert best.max(axis=1).min() > 0.9
    share = table["smooth"].to_numpy()[best.argmax(axis=1)]
    assert share[:2].min() > 0.5
    assert share[2] == 0.0
    np.testing.assert_allclose(table["smooth"] + table["rest"], 1.0)


def test_no_round_lowers_the_bound(fitted: SimpleNamespace) -> None:
    trace = fitted.posterior.trace.to_dataframe()
    for stage in ("smooth", "smooth or not"):
        values = trace.loc[trace["stage"] == stage, "objective"].to_numpy()
        assert len(values) > 1
        assert (np.diff(values) > -1e-10 * np.abs(values[:-1])).all()


def test_courses_are_judged_before_passes_settle(fitted: SimpleNamespace) -> None:
    """What is rough is closed as soon as the bound rises little: its passes would settle last."""
    stages = {stage.name: stage for stage in fitted.posterior.model.stages()}
    assert stages["smooth"].tol == stages["warm-up"].tol == 100 * stages["smooth or not"].tol
    assert stages["sparse"].tol == stages["smooth"].tol
    assert not stages["sparse"].sweeps[0].settles
    assert not stages["smooth"].sweeps[1].settles
    assert stages["smooth or not"].sweeps[1].settles


@pytest.mark.thorough
def test_courses_are_judged_in_every_round(fitted: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is worth little only later goes then, and its factor has variance 1."""
    close, closed = sweeps_module.close_courses, []

    def late(settings: Any, globals_: Globals) -> Globals:
        new = close(settings, globals_)
        which = globals_.courses.is_smooth & (new.courses is None or ~new.courses.is_smooth)
        closed.append((globals_, new, np.flatnonzero(which)))
        return new

    monkeypatch.setattr(sweeps_module, "close_courses", late)
    monkeypatch.setattr(model_module, "close_courses", lambda settings, globals_: globals_)
    model = ff.models.SparseGFA(n_factors=6, smooth_covariates="time")
    posterior = ff.fit(fitted.dataset, model, progress=False)
    np.testing.assert_array_equal(
        posterior.smoothness()["smooth"] > 0, fitted.posterior.smoothness()["smooth"] > 0
    )
    before, after, which = next(each for each in closed if len(each[2]))
    np.testing.assert_allclose(np.diag(after.scores.second)[which], 1.0)
    scale = np.sqrt(np.diag(after.scores.second) / np.diag(before.scores.second))
    for name, weights in after.weights.items():
        np.testing.assert_allclose(weights.mean * scale, before.weights[name].mean)
        np.testing.assert_allclose(after.views[name].alpha / scale**2, before.views[name].alpha)
    np.testing.assert_allclose(after.change.transform, np.diag(scale))


def test_curves_at_the_samples_are_their_courses(fitted: SimpleNamespace) -> None:
    posterior, obs = fitted.posterior, fitted.dataset.obs
    curve = posterior.interpolate(obs[["time", "group"]])
    courses = posterior.smooth_scores()
    np.testing.assert_allclose(curve["f_mean"], courses["mean"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(curve["f_sd"], courses["sd"], rtol=1e-3, atol=1e-4)
    share = posterior.smoothness()["rest"].to_numpy()
    np.testing.assert_allclose(curve["z_sd"] ** 2 - curve["f_sd"] ** 2, np.tile(share, (len(obs), 1)))
    width = (curve["f_upper"] - curve["f_lower"]).values / (2 * curve["f_sd"].values + 1e-12)
    smooth = posterior.smoothness()["smooth"].to_numpy() > 0
    np.testing.assert_allclose(width[:, smooth], stats.norm.ppf(0.95), rtol=1e-6)


@pytest.mark.parametrize("functions", [None, 7])
def test_courses_given_draws_and_the_draws_make_up_their_prior(functions: int | None) -> None:
    """c from its prior: the variance of means at other places, and that beside them, are the prior's."""
    times = np.linspace(0.0, 1.0, 9)
    cells = () if functions else tuple((0.0, float(t)) for t in times)
    places = Places(("t",), (0,), (), (0.0,), (1.0,), (0.125,), (), cells, 9)
    basis = choose_basis(places, "matern52", functions)
    values = basis.functions(times[:, None], np.zeros(9, np.int64))
    centre = values.mean(axis=0)
    second = (values - centre).T @ (values - centre) / 9
    courses = open_courses(basis, centre, second, 9.0, 1, share=0.7)
    at = np.array([[0.06], [0.5], [1.4]])
    codes = np.zeros(3, np.int64)
    _, prior, *_ = courses_at(basis, at, codes, courses)
    rng, n = np.random.default_rng(0), 20_000
    drawn = rng.multivariate_normal(np.zeros(basis.size), courses.covariance[0], (2, n // 2))
    units, none = course_units(basis, courses), np.zeros((1, 0, 0))
    given = replace(courses, mean=drawn[:, :, None], covariance=none, second=none[0], units=units)
    mean, beside, *_ = courses_at(basis, at, codes, given)
    assert mean.shape == (2, n // 2, 3, 1)
    np.testing.assert_allclose(mean.var(axis=(0, 1)) + beside, prior, rtol=4.5 * np.sqrt(2.0 / n))
    assert functions or beside[2, 0] > 0.1


def test_curves_of_groups(fitted: SimpleNamespace) -> None:
    posterior = fitted.posterior
    both = posterior.interpolate([0.25, 0.75])
    assert both["group"].values.tolist() == ["group0", "group0", "group1", "group1"]
    one = posterior.interpolate({"time": [0.25, 0.75]}, groups="group1")
    np.testing.assert_allclose(one["f_mean"], both["f_mean"][2:], rtol=1e-12)
    found = posterior.group_correlation()
    assert found.dims == ("factor", "group", "other_group")
    smooth = posterior.smoothness()["smooth"].to_numpy() > 0
    assert np.isnan(found.values[~smooth]).all()
    np.testing.assert_array_equal(found.values[smooth][:, [0, 1], [0, 1]], 1.0)


@pytest.mark.thorough
def test_interpolated_data(fitted: SimpleNamespace) -> None:
    """At hidden times predictions are closer than the means, and intervals hold what they should."""
    folder = fitted.folder
    dataset = simulated(folder, "whole", r2=0.8)
    obs = dataset.obs
    hidden = np.isin(np.round(obs["time"] * 159).astype(int) % 16, [3, 4, 5])
    values = np.concatenate([block.data["a"] for block in map(dataset.block, range(dataset.n_blocks))])
    frame = pd.DataFrame(values, index=obs.index)
    part = ff.write_dataset(folder / "part.zarr", {"a": frame[~hidden]}, obs=obs[~hidden])
    posterior = ff.fit(part, ff.models.SparseGFA(n_factors=6, smooth_covariates="time"), progress=False)
    found = posterior.interpolate(obs.loc[hidden, ["time"]], view="a", interval=0.9)
    assert found["mean"].shape == (hidden.sum(), 40)
    truth = frame[hidden].to_numpy()
    seen = np.isfinite(truth)
    error = ((found["mean"].values - truth)[seen] ** 2).mean()
    assert error < 0.75 * ((truth - frame[~hidden].mean().to_numpy())[seen] ** 2).mean()
    inside = (truth >= found["lower"].values) & (truth <= found["upper"].values)
    assert 0.85 < inside[seen].mean() < 0.95


def test_far_places_are_named(fitted: SimpleNamespace) -> None:
    with pytest.warns(UserWarning, match="1 of 2 places lie more than a length scale beyond the samples"):
        found = fitted.posterior.interpolate([0.5, 9.0], groups="group0")
    share = fitted.posterior.smoothness()["smooth"].to_numpy()
    assert (found["f_sd"].values[1][share > 0] > 0.9 * np.sqrt(share[share > 0])).all()
    assert np.abs(found["f_mean"].values[1]).max() < 0.5


def test_new_samples_are_expected_where_they_lie(fitted: SimpleNamespace) -> None:
    """One of which nothing is measured has the score of its place; one of an unknown place the mean, 0."""
    posterior, folder = fitted.posterior, fitted.folder
    rng = np.random.default_rng(0)
    names = [f"n{i}" for i in range(9)]
    views = {
        name: pd.DataFrame(rng.standard_normal((9, size)), index=names)
        for name, size in (("a", 40), ("b", 30))
    }
    for frame in views.values():
        frame.iloc[:2] = np.nan
        frame.columns = fitted.dataset.features("a" if frame.shape[1] == 40 else "b")
    views["a"].iloc[:2, 0] = 0.0  # samples without any value are refused
    obs = pd.DataFrame({"time": [0.3, np.nan, *np.linspace(0, 1, 7)], "group": "group1"}, index=names)
    new = ff.write_dataset(folder / "new.zarr", views, obs=obs, groups="group", likelihoods={"a": "gaussian"})
    projected = posterior.project(new, progress=False)
    at = posterior.interpolate([0.3], groups="group1")
    smooth = posterior.smoothness()["smooth"].to_numpy() > 0
    scores = projected.scores().values
    np.testing.assert_allclose(scores[0, smooth], at["f_mean"].values[0, smooth], atol=0.25)
    assert np.abs(scores[1]).max() < 0.25
    courses = projected.smooth_scores()["mean"].values
    np.testing.assert_allclose(courses[0], at["f_mean"].values[0], atol=1e-6)
    assert np.isnan(courses[1]).all()
    unknown = posterior.project(new, covariates=False, progress=False)
    np.testing.assert_allclose(unknown.scores().values[1], scores[1], atol=1e-8)
    assert np.abs(unknown.scores().values[0]).max() < 0.25


@pytest.mark.thorough
def test_places_that_say_nothing_open_nothing(tmp_path: Path) -> None:
    """Permuted times: no factor is a function of them, and scores are those of a plain fit."""
    dataset = simulated(tmp_path)
    values = {
        name: pd.DataFrame(
            np.concatenate([block.data[name] for block in map(dataset.block, range(dataset.n_blocks))]),
            index=dataset.obs_names,
        )
        for name in ("a", "b")
    }
    order = np.random.default_rng(1).permutation(len(dataset.obs))
    obs = pd.DataFrame({"time": dataset.obs["time"].to_numpy()[order]}, index=dataset.obs_names)
    mixed = ff.write_dataset(tmp_path / "mixed.zarr", values, obs=obs)
    plain = ff.fit(mixed, ff.models.SparseGFA(n_factors=6), progress=False)
    found = ff.fit(mixed, ff.models.SparseGFA(n_factors=6, smooth_covariates="time"), progress=False)
    assert not found.smoothness()["smooth"].any()
    assert not found.smooth_scores()["mean"].values.any()
    np.testing.assert_allclose(found.scores(), plain.scores(), atol=0.05)


@pytest.mark.thorough
@pytest.mark.parametrize("square", [0.006, 0.0])
def test_weak_smooth_factors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, square: float) -> None:
    """A factor far below what a plain fit can see is found if it is smooth; noise is no factor."""
    rng = np.random.default_rng(4)
    n, n_features = 400, 100
    t = np.repeat(np.linspace(0, 1, n // 2), 2)
    curve = np.sin(9 * t) + np.cos(5 * t + 1)
    curve = (curve - curve.mean()) / curve.std()
    loadings = 0.7 * rng.standard_normal(n_features) * (rng.random(n_features) < 0.5)
    values = np.outer(curve, np.sqrt(square) * rng.standard_normal(n_features))
    values += np.outer(rng.standard_normal(n), loadings) + rng.standard_normal((n, n_features))
    names = [f"s{i}" for i in range(n)]
    frame, obs = pd.DataFrame(values, index=names), pd.DataFrame({"time": t}, index=names)
    dataset = ff.write_dataset(tmp_path / "data.zarr", {"a": frame}, obs=obs)
    plain = ff.fit(dataset, ff.models.SparseGFA(n_factors=5), progress=False)
    found = ff.fit(dataset, ff.models.SparseGFA(n_factors=5, smooth_covariates="time"), progress=False)
    like = [np.abs(np.corrcoef(curve, fit.scores().values.T)[0, 1:]).max() for fit in (plain, found)]
    assert len(plain.factors) == 1
    assert len(found.factors) == (2 if square else 1)
    assert like[0] < 0.3
    assert (like[1] > 0.95) == bool(square)
    monkeypatch.setattr(weak_module, "_residuals", None)  # not even looked for where there is no room
    full = ff.fit(dataset, ff.models.SparseGFA(n_factors=1, smooth_covariates="time"), progress=False)
    assert len(full.factors) == 1  # never more than were asked for


@pytest.mark.thorough
def test_cosines_and_points_agree(tmp_path: Path) -> None:
    dataset = simulated(tmp_path)
    fits = [
        ff.fit(
            dataset, ff.models.SparseGFA(n_factors=6, smooth_covariates="time", n_functions=n), progress=False
        )
        for n in (None, 40)
    ]
    assert isinstance(fits[0].model.settings.smooth.basis, Points)
    assert isinstance(fits[1].model.settings.smooth.basis, Cosines)
    assert fits[0].model.settings.smooth.complete
    curves = [  # the bound says next to nothing of the scale of a factor
        np.abs(fit.interpolate(np.linspace(0, 1, 11))["f_mean"].to_numpy())
        / fit.scores().to_numpy().std(axis=0)
        for fit in fits
    ]
    np.testing.assert_allclose(curves[0], curves[1], atol=0.08)
    bounds = [fit.trace.to_dataframe()["objective"].iloc[-1] for fit in fits]
    assert abs(bounds[0] - bounds[1]) < 3.0


@pytest.mark.thorough
def test_other_blocks_give_the_same(tmp_path: Path) -> None:
    found = []
    for rows in (32, 128):
        dataset = simulated(tmp_path, f"of {rows}", block_rows=rows, missing=0.1)
        model = ff.models.SparseGFA(n_factors=4, smooth_covariates="time", precision=64)
        found.append(ff.fit(dataset, model, progress=False))
    np.testing.assert_allclose(found[0].scores(), found[1].scores(), atol=1e-6)
    np.testing.assert_allclose(found[0].smoothness(), found[1].smoothness(), rtol=1e-4)


def test_random_intercepts(tmp_path: Path) -> None:
    """Visits of 40 subjects: one factor with a level of each, one without; new visits of known subjects."""
    rng = np.random.default_rng(8)
    subjects, visits, n_features = 40, 6, 60
    subject = np.repeat(np.arange(subjects), visits)
    level = np.sqrt(0.7) * rng.standard_normal(subjects)
    z = rng.standard_normal((subjects * visits, 2))
    z[:, 0] = level[subject] + np.sqrt(0.3) * z[:, 0]
    w = rng.standard_normal((n_features, 2)) * (rng.random((n_features, 2)) < 0.5)
    values = z @ w.T + 1.5 * rng.standard_normal((len(z), n_features))
    values[rng.random(values.shape) < 0.1] = np.nan
    names = [f"s{i}" for i in range(len(z))]
    obs = pd.DataFrame({"subject": [f"p{i}" for i in subject]}, index=names)
    frame = pd.DataFrame(values, index=names)
    seen = np.arange(len(z)) % visits != 5
    dataset = ff.write_dataset(tmp_path / "data.zarr", {"a": frame[seen]}, obs=obs[seen])
    model = ff.models.SparseGFA(n_factors=5, random_intercepts="subject")
    posterior = ff.fit(dataset, model, progress=False)
    found = posterior.intraclass_correlation()
    assert found.dims == ("random_intercept", "factor")
    best = np.abs(np.corrcoef(z[seen].T, posterior.scores().values.T)[:2, 2:])
    assert best.max(axis=1).min() > 0.9
    first, second = best.argmax(axis=1)
    assert 0.5 < found.values[0, first] < 0.85
    assert found.values[0, second] == 0.0
    own = posterior.smooth_scores()["mean"].values[:, first]
    assert np.abs(np.corrcoef(own, level[subject[seen]])[0, 1]) > 0.95
    # A visit of which little is measured is expected at the level of its subject; of others, at 0.
    new = frame[~seen].copy()
    new.iloc[:, 4:] = np.nan
    who = obs[~seen].copy()
    fresh = ff.write_dataset(tmp_path / "new.zarr", {"a": new.iloc[:, :4]}, obs=who)
    projected = posterior.project(fresh, progress=False)
    error = [
        np.mean(
            (
                fit.scores().values[:, first] * np.sign(np.corrcoef(own, level[subject[seen]])[0, 1])
                - z[~seen, 0]
            )
            ** 2
        )
        for fit in (projected, posterior.project(fresh, covariates=False, progress=False))
    ]
    assert error[0] < 0.8 * error[1]
    with pytest.raises(InputError, match="smooth_covariates"):
        posterior.interpolate([0.5])
    lonely = pd.DataFrame({"subject": names}, index=names)
    alone = ff.write_dataset(tmp_path / "alone.zarr", {"a": frame[seen]}, obs=lonely[seen])
    with pytest.raises(InputError, match="levels in 200 samples"):
        ff.fit(alone, model, progress=False)


def test_slopes_of_clocks() -> None:
    """Places on the common clock, and their slopes, are those of differences; time never runs backwards."""
    places = Places(("t",), (0,), low=(1.0,), high=(5.0,), groups=("a", "b"))
    rng = np.random.default_rng(0)
    times, codes = np.concatenate([np.linspace(1, 5, 9), [0.5, 6.0]]), np.array([0, 1] * 5 + [1])
    warp = 0.4 * rng.standard_normal((2, KNOTS))
    found, slopes = common_clock(places, times, codes, warp)
    for i in range(KNOTS):
        move = 1e-6 * np.eye(KNOTS)[i]
        high, low = (common_clock(places, times, codes, warp + s * move)[0] for s in (1, -1))
        np.testing.assert_allclose(slopes[:, i], (high - low) / 2e-6, rtol=1e-6, atol=1e-8)
    same = common_clock(places, times, codes, np.zeros((2, KNOTS)))[0]
    np.testing.assert_allclose(same, times)
    for code in (0, 1):
        assert (np.diff(found[codes == code][:4]) > 0).all()


@pytest.mark.thorough
def test_clocks_of_groups(tmp_path: Path) -> None:
    """Groups whose times are powers of the common one, or run at another pace, are put on one clock."""
    rng = np.random.default_rng(3)
    n, n_features = 40, 80
    own = np.linspace(0, 1, n)
    common = np.stack([own, own**1.6, 0.15 + 0.8 * own])
    f = [np.sin(7 * common + 1), np.cos(10 * common), np.sin(13 * common + 2)]
    z = np.stack([part.ravel() for part in f], axis=1) * 1.4 + 0.2 * rng.standard_normal((3 * n, 3))
    w = rng.standard_normal((n_features, 3)) * (rng.random((n_features, 3)) < 0.4)
    names = [f"s{i}" for i in range(3 * n)]
    frame = pd.DataFrame(z @ w.T + rng.standard_normal((3 * n, n_features)), index=names)
    obs = pd.DataFrame({"time": np.tile(own, 3), "group": np.repeat(["a", "b", "c"], n)}, index=names)
    dataset = ff.write_dataset(tmp_path / "data.zarr", {"a": frame}, obs=obs, groups="group")
    given = {"n_factors": 6, "smooth_covariates": "time"}
    fits = [ff.fit(dataset, ff.models.SparseGFA(**given, warping=w), progress=False) for w in (False, True)]
    bounds = [fit.trace.to_dataframe()["objective"].iloc[-1] for fit in fits]
    assert bounds[1] > bounds[0] + 10.0
    assert (fits[1].trace.to_dataframe()["stage"] == "smooth").sum() > WARP_ROUNDS[-1]
    clock = fits[1].warped().values.reshape(3, n)
    np.testing.assert_allclose(clock[0], own)  # the reference
    before, after = (np.sqrt(((t - common) ** 2).mean(axis=1)) for t in (np.tile(own, (3, 1)), clock))
    assert (after[1:] < 0.4 * before[1:]).all()
    sharing = [np.abs(fit.group_correlation().values[:, 0, 1:]).mean() for fit in fits]
    assert sharing[1] > sharing[0]
    curve = fits[1].interpolate(obs)  # own times of each group
    np.testing.assert_allclose(curve["f_mean"], fits[1].smooth_scores()["mean"], rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="warping"):
        fits[0].warped()
    with pytest.raises(InputError, match="groups among a, b, c"):
        ff.fit(dataset, ff.models.SparseGFA(**given, warping=True, warping_reference="d"), progress=False)
    with pytest.raises(InputError, match="few distinct ones"):
        ff.fit(dataset, ff.models.SparseGFA(**given, warping=True, smooth_groups=False), progress=False)


@pytest.mark.thorough
def test_clocks_of_new_samples(tmp_path: Path) -> None:
    """New samples of some groups are put on the clock as those of the fit; dates stay dates."""
    rng = np.random.default_rng(3)
    own = np.tile(np.linspace(0, 1, 20), 2)
    common = np.where(np.arange(40) < 20, own, own**1.6)
    z = np.column_stack([np.sin(7 * common), np.cos(10 * common)]) * 1.4
    frame = pd.DataFrame(z @ rng.standard_normal((2, 30)) + 0.5 * rng.standard_normal((40, 30)))
    frame.index = pd.Index([f"s{i}" for i in range(40)])
    dates = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.round(100 * own), unit="D")
    obs = pd.DataFrame({"time": dates, "group": np.repeat(["a", "b"], 20)}, index=frame.index)
    dataset = ff.write_dataset(tmp_path / "data.zarr", {"a": frame}, obs=obs, groups="group")
    fit = ff.fit(
        dataset, ff.models.SparseGFA(n_factors=3, smooth_covariates="time", warping=True), progress=False
    )
    clock = fit.warped().values
    np.testing.assert_array_equal(clock[:20], dates[:20])  # the reference
    assert (clock[21:39] != dates[21:39]).all()

    def write(name: str, times: pd.Series, groups: pd.Series) -> ff.Dataset:
        table = {"time": times[25:], "group": groups[25:]}
        return ff.write_dataset(
            tmp_path / name, {"a": frame[25:]}, obs=pd.DataFrame(table, frame.index[25:]), groups="group"
        )

    late = write("late.zarr", obs["time"], obs["group"])
    np.testing.assert_array_equal(fit.project(late, progress=False).warped(), clock[25:])
    assert np.isnat(fit.project(late, covariates=False, progress=False).warped().values).all()
    with pytest.raises(InputError, match="a table given to a projection"):  # which is not kept
        fit.project(late, covariates=obs, progress=False).warped()
    with pytest.warns(UserWarning, match="not among the groups"):
        unknown = fit.project(write("c.zarr", obs["time"], obs["group"].replace("b", "c")), progress=False)
    assert np.isnat(unknown.warped().values).all()


@pytest.mark.thorough
def test_unknown_places(tmp_path: Path) -> None:
    dataset = simulated(tmp_path)
    obs = dataset.obs.copy()
    obs.iloc[::10, obs.columns.get_loc("time")] = np.nan
    values = {
        name: pd.DataFrame(
            np.concatenate([block.data[name] for block in map(dataset.block, range(dataset.n_blocks))]),
            index=dataset.obs_names,
        )
        for name in ("a", "b")
    }
    other = ff.write_dataset(tmp_path / "other.zarr", values, obs=obs)
    posterior = ff.fit(other, ff.models.SparseGFA(n_factors=6, smooth_covariates="time"), progress=False)
    courses = posterior.smooth_scores()
    assert np.isnan(courses["mean"].values[::10]).all()
    assert np.isfinite(courses["mean"].values[1::10]).all()
    truth = np.asarray(dataset.truth["scores"])
    best = np.abs(np.corrcoef(truth.T, posterior.scores().values.T)[:3, 3:])
    assert best.max(axis=1).min() > 0.9


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"smooth_covariates": "tme"}, "Did you mean time?"),
        ({"smooth_covariates": ["time", "time"]}, "each once"),
        ({"smooth_covariates": "group"}, "numbers"),
        ({"scores": "smooth"}, "smooth_covariates"),
        ({"smooth_covariates": "time", "scores": "ard"}, "'smooth' or 'auto'"),
        ({"smooth_covariates": "time", "n_starts": 2}, "1 with smooth_covariates"),
        ({"smooth_covariates": "time", "loadings": "ard"}, "other than 'ard' in some view with smooth"),
        ({"smooth_covariates": "time", "kernel": "matern12", "n_functions": 5}, "kernel"),
    ],
)
def test_what_is_refused(fitted: SimpleNamespace, options: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        ff.fit(fitted.dataset, ff.models.SparseGFA(**options), progress=False)


def test_places_that_cannot_be_asked_for(fitted: SimpleNamespace) -> None:
    posterior = fitted.posterior
    with pytest.raises(InputError, match="no time"):
        posterior.interpolate({"tme": [0.5]})
    with pytest.raises(InputError, match="group9"):
        posterior.interpolate([0.5], groups="group9")
    with pytest.raises(InputError, match="finite"):
        posterior.interpolate([np.nan])
    with pytest.raises(InputError, match="interval"):
        posterior.interpolate([0.5], interval=90)
    with pytest.raises(InputError, match="places of 1 numbers"):
        posterior.interpolate(np.zeros((3, 2)))
    with pytest.raises(InputError, match="columns of 2, 3 places"):
        posterior.interpolate({"time": [0.5, 0.6], "group": ["group0"] * 3})
    with pytest.raises(InputError, match="no places: expected at least one"):
        posterior.interpolate([])


def test_dates_are_places_however_they_are_given(tmp_path: Path) -> None:
    """Not nanoseconds; and text is refused, as numbers of a place of two columns are."""
    rng, days = np.random.default_rng(0), np.linspace(0.0, 60.0, 60)
    values = np.outer(np.sin(days / 8.0), rng.standard_normal(12)) + 0.3 * rng.standard_normal((60, 12))
    dates = pd.Timestamp("2024-01-01") + pd.to_timedelta(days, unit="D")
    data = ff.write_dataset(tmp_path / "dates.zarr", {"a": values}, obs={"day": dates})
    posterior = ff.fit(data, ff.models.SparseGFA(n_factors=2, smooth_covariates="day"), progress=False)
    wanted = posterior.interpolate({"day": dates[10:13]})["f_mean"].values
    assert np.abs(wanted).max() > 0.1
    for given in (dates[10:13], list(dates[10:13]), dates[10:13].to_numpy()[:, None]):
        found = posterior.interpolate(given)
        np.testing.assert_array_equal(found["f_mean"].values, wanted)
        np.testing.assert_array_equal(found["day"].values, dates[10:13].to_numpy())
    zoned = posterior.interpolate(dates[10:13].tz_localize("UTC").tz_convert("Asia/Tokyo"), view="a")
    np.testing.assert_array_equal(zoned["day"].values, dates[10:13].to_numpy())
    number = (dates[10] - pd.Timestamp(0)) / pd.Timedelta(days=1)
    assert posterior.interpolate([number])["day"].item() == number
    np.testing.assert_allclose(posterior.interpolate(dates[10])["f_mean"].values, wanted[:1])
    with pytest.raises(InputError, match=r"numbers, dates or durations.*pandas\.to_datetime"):
        posterior.interpolate(["2024-01-11"])


def test_new_samples_without_a_group_are_warned_of(fitted: SimpleNamespace) -> None:
    with pytest.warns(DataWarning, match="new_obs: time says nothing of samples without a group"):
        unknown = fitted.posterior.predict("a", new_obs={"time": [0.5]})
    with pytest.warns(DataWarning, match="new_obs: time says nothing of samples of 'group7', not among"):
        other = fitted.posterior.predict("a", new_obs={"time": [0.5], "group": ["group7"]})
    np.testing.assert_array_equal(other["mean"].values, unknown["mean"].values)
    new = {"a": fitted_values(fitted).iloc[:40]}
    obs = fitted.dataset.obs.iloc[:40]
    data = ff.write_dataset(fitted.folder / "alone.zarr", new, obs=obs[["time"]])
    with pytest.warns(DataWarning, match="new samples: time says nothing of samples without a group"):
        alone = fitted.posterior.project(data, progress=False)
    assert np.isnan(alone.smooth_scores()["mean"].values).all()
    other = ff.write_dataset(fitted.folder / "others.zarr", new, obs=obs[["time"]], groups=["x", "y"] * 20)
    with pytest.warns(DataWarning, match="new samples: time says nothing of samples of 'x', 'y'"):
        fitted.posterior.project(other, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted.posterior.project(data, covariates=False, progress=False)


def test_a_warm_start_is_refused(fitted: SimpleNamespace) -> None:
    """The places of the data as they are now have other coefficients."""
    model = fitted.posterior.config
    with pytest.raises(InputError, match="courses are learned from the start"):
        ff.fit(fitted.dataset, model, warm_start=fitted.posterior, progress=False)


@pytest.mark.thorough
def test_sets_beside_places(fitted: SimpleNamespace) -> None:
    sets = {"low": [f"feature{i}" for i in range(12)], "high": [f"feature{i}" for i in range(20, 32)]}
    given = {"n_factors": 6, "smooth_covariates": "time", "loadings": {"a": "informed"}, "feature_sets": sets}
    posterior = ff.fit(fitted.dataset, ff.models.SparseGFA(**given), progress=False)
    truth = np.asarray(fitted.dataset.truth["scores"])
    best = np.abs(np.corrcoef(truth.T, posterior.scores().values.T)[:3, 3:])
    assert best.max(axis=1).min() > 0.9
    assert (posterior.smoothness()["smooth"] > 0).sum() >= 2


def test_a_fit_without_places_says_so(tmp_path: Path) -> None:
    posterior = ff.fit(simulated(tmp_path), ff.models.SparseGFA(n_factors=3, max_iter=2), progress=False)
    for ask in (posterior.smoothness, posterior.smooth_scores, lambda: posterior.interpolate([0.5])):
        with pytest.raises(InputError, match="smooth_covariates"):
            ask()


@pytest.mark.thorough
def test_columns_and_cells(tmp_path: Path) -> None:
    dataset = simulated(tmp_path, "plane", places="plane")
    places = code_places(dataset, [["x", "y"]], by_group=True)
    assert places.labels == ["x_y"]
    assert places.covariate == (0, 0)
    assert len(places.cells) == 160
    assert 0.01 < places.nearest[0] < 0.1
    assert isinstance(choose_basis(places, "rbf", None), Points)
    apart = code_places(dataset, ["x", "y"], by_group=True)
    assert apart.labels == ["x", "y"]
    two = pd.DataFrame({"t": [0.0, 1.0] * 80}, index=dataset.obs_names)
    frame = pd.DataFrame(np.random.default_rng(0).standard_normal((160, 4)), index=dataset.obs_names)
    other = ff.write_dataset(tmp_path / "two.zarr", {"a": frame}, obs=two)
    with pytest.raises(InputError, match="at least 3 distinct"):
        code_places(other, "t", by_group=False)
    cosines = choose_basis(replace(places, cells=()), "matern52", None)
    assert isinstance(cosines, Cosines)
    assert cosines.size == 400
    with pytest.raises(InputError, match="at most 40 for 2 columns"):
        choose_basis(places, "matern52", 41)
    model = ff.models.SparseGFA(n_factors=4, smooth_covariates=[["x", "y"]], n_functions=4)
    coarse = ff.fit(dataset, model, progress=False)
    assert [finding.remedy for finding in coarse.findings if finding.kind == "resolution"] == [
        "Fit with n_functions=8."
    ]
