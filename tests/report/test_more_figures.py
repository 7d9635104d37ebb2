"""Figures as methods of a posterior, and those of samples, tests and several panels."""

from __future__ import annotations

import inspect
import sys
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

import factorflow
from factorflow import report
from factorflow.cli import app
from factorflow.errors import InputError
from factorflow.report import drawing
from factorflow.report.accessor import NAMES


@pytest.fixture
def ax() -> Any:
    return Figure(layout="constrained").subplots()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    yield
    plt.close("all")


def points(ax: Any) -> Any:
    return np.concatenate([np.asarray(c.get_offsets()) for c in ax.collections if len(c.get_offsets())])


def test_methods_are_the_functions_of_the_report(given: Any) -> None:
    assert dir(given.posterior.plot) == sorted(NAMES)
    assert {f"plot_{name}" for name in NAMES} == {*report.__all__} - {"plot_selection", "write_report"}
    for name in NAMES:
        function, method = getattr(report, f"plot_{name}"), getattr(given.posterior.plot, name)
        assert method.__doc__ == function.__doc__
        parameters = list(inspect.signature(function).parameters.values())
        assert list(inspect.signature(method).parameters.values()) == parameters[1:]
        assert "ax" in inspect.signature(method).parameters
    with pytest.raises(AttributeError, match="did you mean scores?"):
        given.posterior.plot.score  # noqa: B018


def test_refused_figures_leave_nothing(given: Any) -> None:
    plot = given.posterior.plot
    calls = [
        lambda: plot.scores([1, 9]),
        lambda: plot.scores([1, 2], color="height"),
        lambda: plot.scores([1, 2, 3]),
        lambda: plot.scores([1, 2], kind="cloud"),
        lambda: plot.variance_explained(by="sample"),
        lambda: plot.variance_explained(kind="pie"),
        lambda: plot.distribution(1, by="height"),
        lambda: plot.distribution(1, by="age"),
        lambda: plot.covariate("sex"),
        lambda: plot.covariate("height"),
        lambda: plot.top_weights(1, views=["atac"]),
        lambda: plot.data("rna", annotation="height"),
        lambda: plot.association("height"),
        lambda: plot.enrichment("rna", {"few": ["rna 0"]}),
        lambda: plot.embedding(method="tsne"),
    ]
    for call in calls:
        with pytest.raises(InputError):
            call()
        assert plt.get_fignums() == []


@pytest.mark.thorough
def test_axes_given_are_used(given: Any) -> None:
    """Also by figures of several panels, which lie inside."""
    sets = {"a": [f"rna {j}" for j in range(6)]}
    calls: dict[str, tuple[Any, ...]] = {
        "association": (),
        "covariate": ("age", [1, 2]),
        "data": ("rna",),
        "distribution": ([1, 2], "sex"),
        "enrichment": ("rna", sets),
        "factor_correlation": (),
        "loadings": ("rna",),
        "scores": (None, None, "pairs"),
        "top_weights": (),
        "trace": (),
        "variance_explained": ("stacked", "group"),
    }
    for name, arguments in calls.items():
        figure = Figure(layout="constrained")
        left, right = figure.subplots(1, 2)
        assert getattr(given.posterior.plot, name)(*arguments, ax=left) is left
        figure.draw_without_rendering()
        for other in figure.axes:
            if other not in (left, right):
                assert other.get_position().x1 < right.get_position().x1 - 0.2
        free = Figure().add_axes((0.1, 0.1, 0.8, 0.8))
        assert getattr(given.posterior.plot, name)(*arguments, ax=free) is free
    assert plt.get_fignums() == []


def test_coloured_by_a_feature(given: Any, ax: Any) -> None:
    """Missing entries are grey; a name that two views have is asked for with its view."""
    y = given.dataset.values("rna")[:, 4].astype(float)
    given.posterior.plot.scores([1, 2], color="rna 4", ax=ax)
    absent, seen = ax.collections
    np.testing.assert_allclose(seen.get_array(), y[np.isfinite(y)], rtol=1e-6)
    assert len(absent.get_offsets()) == np.isnan(y).sum() > 0
    np.testing.assert_allclose(absent.get_offsets(), given.rows["scores"][np.isnan(y)][:, :2])
    rows = np.arange(70)
    np.testing.assert_array_equal(
        drawing.colors_of(given.posterior, "mutation:mutation 2", rows),
        drawing.colors_of(given.posterior, "mutation 2", rows),
    )
    twice = SimpleNamespace(
        views=("a", "b"), features=lambda view: np.array(["x", view]), **{"tree": given.posterior.tree}
    )
    twice.meta, twice.is_numbered = given.posterior.meta, False
    twice.coordinate = given.posterior.coordinate
    with pytest.raises(InputError, match="Write a:x or b:x"):
        drawing.colors_of(twice, "x", rows)  # type: ignore[arg-type]


def test_pairs(given: Any, ax: Any) -> None:
    given.posterior.plot.scores([1, 2, 3], color="sex", kind="pairs", ax=ax)
    grid = [part for part in ax.figure.axes if part is not ax]
    assert len(grid) == 9
    assert [part.get_visible() for part in grid] == [i % 3 <= i // 3 for i in range(9)]
    found = points(grid[3])
    expected = given.rows["scores"][:, [0, 1]]
    np.testing.assert_allclose(np.sort(found, axis=0), np.sort(expected, axis=0))
    assert (grid[6].get_xlabel(), grid[6].get_ylabel()) == ("Factor1", "Factor3")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["f", "m"]


def test_stacked_variance_and_groups(given: Any, ax: Any) -> None:
    given.posterior.plot.variance_explained(kind="stacked", by="group", ax=ax)
    share = given.posterior.variance_explained(by="group")
    parts = [part for part in ax.figure.axes if part is not ax]
    assert len(parts) == 2
    for g, part in enumerate(parts):
        heights = np.array([bar.get_height() for bar in part.patches]).reshape(3, 2)
        expected = 100 * share[g].transpose("factor", "view").values
        np.testing.assert_allclose(np.sort(heights, axis=0), np.sort(np.clip(expected, 0, None), axis=0))
        assert part.get_title(loc="left").startswith(f"{'ab'[g]}: ")


def test_many_factors_share_a_colour(make_given: Any, given_family: None, ax: Any) -> None:
    made = make_given(n_factors=3)
    shares = np.linspace(0.01, 0.12, 24).reshape(2, 12)
    posterior: Any = SimpleNamespace(factors=[f"Factor{k + 1}" for k in range(12)], meta=made.posterior.meta)
    from factorflow.report.factor_plots import _explained_bars

    _explained_bars(ax, posterior, 100 * shares, 100.0, True)
    heights = np.array([bar.get_height() for bar in ax.patches]).reshape(11, 2)
    np.testing.assert_allclose(heights.sum(0), 100 * shares.sum(1))
    np.testing.assert_allclose(heights[-1], 100 * np.sort(shares, axis=1)[:, :2].sum(1))
    assert ax.get_legend_handles_labels()[1][-1] == "others"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["violin", "strip"])
def test_distributions(given: Any, ax: Any, kind: Any) -> None:
    given.posterior.plot.distribution([1, 3], by="sex", kind=kind, ax=ax)
    parts = [part for part in ax.figure.axes if part is not ax]
    sex = given.posterior.sample_metadata()["sex"].to_numpy()
    for part, k in zip(parts, (0, 2), strict=True):
        assert [label.get_text() for label in part.get_xticklabels()] == ["f", "m"]
        scores = given.rows["scores"][:, k]
        lines = [c for c in part.collections if type(c).__name__ == "LineCollection"]
        medians = [line.get_segments()[0][0, 1] for line in lines]
        np.testing.assert_allclose(medians, [np.median(scores[sex == level]) for level in "fm"])
        if kind == "strip":
            offsets = [c.get_offsets() for c in part.collections if type(c).__name__ == "PathCollection"]
            np.testing.assert_allclose(offsets[0][:, 1], scores[sex == "f"])
    one = Figure().subplots()
    given.posterior.plot.distribution([1, 2, 3], ax=one)
    assert [label.get_text() for label in one.get_xticklabels()] == given.posterior.factors


def test_covariate(given: Any, ax: Any) -> None:
    given.posterior.plot.covariate("age", 1, ax=ax)
    age = given.posterior.sample_metadata()["age"].to_numpy()
    np.testing.assert_allclose(points(ax), np.column_stack([age, given.rows["scores"][:, 0]]))
    (line,) = ax.lines
    assert (np.diff(line.get_xdata()) >= 0).all()
    assert np.corrcoef(line.get_xdata(), line.get_ydata())[0, 1] > 0.99  # age is made of the first factor


def test_dates_and_durations(tmp_path: Path, ax: Any) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(50, 4)), [f"s{i}" for i in range(50)], list("abcd"))
    days = pd.Series(rng.permutation(50), frame.index)
    obs = pd.DataFrame({"seen": pd.Timestamp("2020-01-01") + pd.to_timedelta(days, "D"), "held": days})
    obs["held"] = pd.to_timedelta(obs["held"], "D")
    obs["dose"] = [Decimal(int(day)) / 4 for day in days]
    obs["day"] = [f"2020-01-01 00:00:{day:02d}" for day in days]
    posterior = factorflow.fit({"y": frame}, n_factors=1, drop=0.0, obs=obs, max_iter=3, progress=False)
    posterior.plot.covariate("held", ax=ax)
    assert ax.get_xlabel() == "held (days)"
    np.testing.assert_allclose(points(ax)[:, 0], days)
    for column, label, unit in (("dose", "dose", 4.0), ("day", "day (seconds since the first)", 1.0)):
        other = Figure().subplots()
        posterior.plot.covariate(column, ax=other)
        assert other.get_xlabel() == label
        np.testing.assert_allclose(points(other)[:, 0], days / unit)
    other = Figure().subplots()
    posterior.plot.covariate("seen", ax=other)
    from matplotlib.dates import date2num

    np.testing.assert_allclose(points(other)[:, 0], date2num(obs["seen"].to_numpy()))


def test_top_weights(given: Any, ax: Any) -> None:
    given.posterior.plot.top_weights(2, n=4, ax=ax)
    parts = [part for part in ax.figure.axes if part is not ax]
    assert [part.get_title(loc="left") for part in parts] == ["rna", "mutation"]
    for part, view in zip(parts, ("rna", "mutation"), strict=True):
        names = [label.get_text() for label in part.get_yticklabels()]
        assert names == list(given.posterior.top_features(view, 2, 4).index[::-1])
    one = Figure().subplots()
    given.posterior.plot.top_weights(2, views="mutation", ax=one)
    assert one.get_title(loc="left") == "mutation"


def test_annotated_data(given: Any, ax: Any) -> None:
    given.posterior.plot.data("rna", 1, 5, annotation=["age", "sex"], ax=ax)
    order = np.argsort(given.rows["scores"][:, 0], kind="stable")
    table = given.posterior.sample_metadata().iloc[order]
    strips = {part.get_yticklabels()[0].get_text(): part for part in ax.child_axes}
    assert list(strips) == ["sex", "age"]
    np.testing.assert_allclose(strips["age"].images[0].get_array()[0], table["age"])
    colors = strips["sex"].images[0].get_array()[0]
    women = (table["sex"] == "f").to_numpy()
    assert len(np.unique(colors[women], axis=0)) == len(np.unique(colors[~women], axis=0)) == 1
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["sex: f", "sex: m"]


def test_association(given: Any, ax: Any) -> None:
    given.posterior.plot.association(ax=ax)
    table = given.posterior.associate().set_index(["column", "factor"])
    names = [label.get_text() for label in ax.get_yticklabels()]
    shown = ax.images[0].get_array()
    for row, column in enumerate(names):
        for k, factor in enumerate(given.posterior.factors):
            assert shown[row, k] == pytest.approx(table.loc[(column, factor), "effect"])
    stars = [text.get_text().endswith("*") for text in ax.texts]
    expected = [table.loc[(c, f), "q_value"] < 0.05 for c in names for f in given.posterior.factors]
    assert stars == expected
    assert any(stars)


def test_enrichment(given: Any, ax: Any) -> None:
    rng = np.random.default_rng(0)
    sets = {f"set {i}": rng.choice([f"rna {j}" for j in range(12)], 6, replace=False) for i in range(9)}
    given.posterior.plot.enrichment("rna", sets, factors=[1, 3], n=2, ax=ax)
    table = given.posterior.enrich("rna", sets, factors=["Factor1", "Factor3"])
    kept = set(table.groupby("factor").head(2)["set"])
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert set(names) == kept
    table = table[table["set"].isin(kept)]
    drawn = {}
    for part in ax.collections[:2]:
        for (x, y), size, n in zip(part.get_offsets(), part.get_sizes(), part.get_array(), strict=True):
            drawn[("Factor1", "Factor3")[int(x)], names[int(y)]] = size, n
    assert len(drawn) == len(table) == 2 * len(kept)
    for row in table.itertuples():
        size, n = drawn[row.factor, row.set]
        assert size == pytest.approx(8 - 26 * np.log10(row.q_value))
        assert n == row.size


def test_embedding(
    given: Any, ax: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the scores of the factors named; without umap-learn the command that installs it is named."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    seen: dict[str, Any] = {}

    class UMAP:
        def __init__(self, **options: Any) -> None:
            seen.update(options)

        def fit_transform(self, scores: Any) -> Any:
            seen["scores"] = scores
            return scores[:, :2] * 2

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=UMAP))  # type: ignore[arg-type]
    given.posterior.plot.embedding(color="age", factors=[3, 1], seed=7, ax=ax)
    assert "embedding 70 samples" in capsys.readouterr().err
    np.testing.assert_array_equal(seen["scores"], given.rows["scores"][:, [2, 0]])
    assert (seen["random_state"], seen["n_neighbors"]) == (7, 15)
    np.testing.assert_allclose(points(ax), given.rows["scores"][:, [2, 0]] * 2)
    monkeypatch.setitem(sys.modules, "umap", None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"umap-learn.*pip install 'factorflow\[umap\]'"):
        given.posterior.plot.embedding()
    assert plt.get_fignums() == []


def test_figures_read_a_part_of_many_samples(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "MAX_POINTS", 20)
    monkeypatch.setattr(drawing, "MOST_BLOCKS", 1)
    read: list[int] = []
    block = type(given.dataset).block
    monkeypatch.setattr(
        type(given.dataset), "block", lambda self, n, *rest: (read.append(n), block(self, n, *rest))[1]
    )
    ax = given.posterior.plot.scores([1, 2], color="rna 3", ax=Figure().subplots())
    assert len(points(ax)) <= 20
    assert set(read) == {0}


@pytest.mark.thorough
def test_the_command(given: Any, tmp_path: Path) -> None:
    given.posterior.save(tmp_path / "p.zarr")

    def run(*words: object) -> Any:
        return CliRunner().invoke(app, ["plot", str(tmp_path / "p.zarr"), *map(str, words)])

    svg, png = tmp_path / "f.svg", tmp_path / "f.png"
    done = run("scores", "--out", svg, "--set", "factors=1,3", "--set", "color=sex")
    assert done.exit_code == 0, done.output
    assert "<svg" in svg.read_text()
    assert run("data", "--out", png, "--set", "view=rna", "--set", "n=3").exit_code == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    assert run("scores", "--out", svg).exit_code == 2  # it is there
    for words in (
        ("score", "--out", tmp_path / "g.svg"),
        ("scores", "--out", tmp_path / "g.gif"),
        ("scores", "--out", tmp_path / "g.svg", "--set", "colour=sex"),
        ("data", "--out", tmp_path / "g.svg"),
        ("scores", "--out", tmp_path / "g.svg", "--set", "ax=1"),
    ):
        assert run(*words).exit_code == 2, words
    assert not (tmp_path / "g.svg").exists()
