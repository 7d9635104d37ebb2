"""Figures of smooth scores: courses over what they are functions of, and tables of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection, PolyCollection, QuadMesh
from matplotlib.dates import date2num
from matplotlib.figure import Figure
from typer.testing import CliRunner

import factorflow as ff
from factorflow.cli import app
from factorflow.errors import InputError
from factorflow.report import smooth_plots, style, write_report


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    yield
    plt.close("all")


@pytest.fixture
def ax() -> Any:
    return Figure(layout="constrained").subplots()


DATA = {"views": {"a": ("gaussian", 40)}, "n_factors": 3, "smooth": 2, "view_activity": 1.0, "sparsity": 0.3}


def fit(folder: Path, smooth: Any = "time", **settings: Any) -> ff.Posterior:
    data = ff.simulate("sparse_gfa", folder / "data.zarr", **{**DATA, "r2": 0.7, "seed": 3, **settings})
    return ff.fit(data, ff.models.SparseGFA(n_factors=5, smooth_covariates=smooth), progress=False)


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("smooth plots")
    (folder / "time").mkdir()
    return SimpleNamespace(
        time=fit(folder / "time", n_samples=120, groups=2),
        plane=fit(folder, [["x", "y"]], n_samples=150, places="plane"),
        plain=ff.fit(folder / "data.zarr", n_factors=3, max_iter=2, progress=False),
    )


def smooth_and_rough(posterior: Any) -> tuple[list[str], list[str]]:
    share = posterior.smoothness()["smooth"]
    return share.index[share > 0].tolist(), share.index[share == 0].tolist()


def panels_of(ax: Any) -> list[Any]:
    return [part for part in ax.figure.axes if part is not ax and part.get_label() != "<colorbar>"] or [ax]


def only(ax: Any, kind: type) -> list[Any]:
    return [found for found in ax.collections if isinstance(found, kind)]


@pytest.mark.thorough
def test_courses_are_drawn_over_the_scores(fits: SimpleNamespace, ax: Any) -> None:
    """For each group its own in the colour of its samples; of a rough factor the running median."""
    posterior = fits.time
    smooth, rough = smooth_and_rough(posterior)
    posterior.plot.covariate("time", [smooth[0], rough[0]], ax=ax)
    with_course, without = panels_of(ax)
    at = with_course.lines[0].get_xdata()
    times = posterior.sample_metadata()["time"].to_numpy()
    np.testing.assert_allclose([at[0], at[-1]], [times.min(), times.max()])
    curve = posterior.interpolate(at).sel(factor=smooth[0])
    bands = only(with_course, PolyCollection)
    points = only(with_course, PathCollection)
    assert len(with_course.lines) == len(bands) == len(points) == 2
    for i, group in enumerate(("group0", "group1")):
        one = curve.isel(point=curve["group"].values == group)
        np.testing.assert_allclose(with_course.lines[i].get_ydata(), one["f_mean"])
        (path,) = bands[i].get_paths()
        assert path.vertices[:, 1].min() == pytest.approx(float(one["f_lower"].min()))
        assert path.vertices[:, 1].max() == pytest.approx(float(one["f_upper"].max()))
        np.testing.assert_allclose(points[i].get_facecolor()[0, :3], bands[i].get_facecolor()[0, :3])
        mine = posterior.sample_metadata()["group"].to_numpy() == group
        np.testing.assert_allclose(np.asarray(points[i].get_offsets())[:, 0], times[mine])
    assert not only(without, PolyCollection)
    assert len(without.lines) == 1
    assert [text.get_text() for text in without.get_legend().get_texts()] == ["group0", "group1"]


def test_colours_that_are_asked_for_stay(fits: SimpleNamespace, ax: Any) -> None:
    smooth, _ = smooth_and_rough(fits.time)
    fits.time.plot.covariate("time", smooth[0], color="time", ax=ax)
    assert {line.get_color() for line in ax.lines} == {style.INK}
    assert len(ax.lines) == 2


@pytest.mark.thorough
def test_courses_of_dates(tmp_path: Path, ax: Any) -> None:
    rng = np.random.default_rng(0)
    days = rng.permutation(90)
    score = np.sin(days / 12)
    frame = pd.DataFrame(
        score[:, None] * rng.normal(size=12) + rng.normal(size=(90, 12)), [f"s{i}" for i in range(90)]
    )
    seen = pd.Timestamp("2020-01-01") + pd.to_timedelta(days, "D")
    obs = pd.DataFrame({"seen": seen}, frame.index)
    posterior = ff.fit(
        {"y": frame}, ff.models.SparseGFA(n_factors=2, smooth_covariates="seen"), obs=obs, progress=False
    )
    posterior.plot.covariate("seen", ax=ax)
    x = date2num(ax.lines[0].get_xdata())
    y = np.interp(date2num(np.asarray(seen)), x, ax.lines[0].get_ydata())
    assert abs(np.corrcoef(y, score)[0, 1]) > 0.95
    np.testing.assert_allclose([x[0], x[-1]], date2num([seen.min(), seen.max()]), atol=1e-6)
    at_samples = posterior.interpolate(obs)["f_mean"]  # dates in a frame are those of the fit
    np.testing.assert_allclose(at_samples, posterior.smooth_scores()["mean"], atol=1e-5)


@pytest.mark.parametrize("of", ["scores", "course"])
def test_space(fits: SimpleNamespace, ax: Any, of: Any) -> None:
    posterior = fits.plane
    smooth, _ = smooth_and_rough(posterior)
    posterior.plot.space(smooth, of=of, ax=ax)
    table = posterior.sample_metadata()
    parts = panels_of(ax)
    assert [part.get_title(loc="left") for part in parts] == smooth
    for part, name in zip(parts, smooth, strict=True):
        (points,) = only(part, PathCollection)
        np.testing.assert_allclose(points.get_offsets(), table[["x", "y"]])
        assert (part.get_xlabel(), part.get_ylabel()) == ("x", "y")
        if of == "scores":
            np.testing.assert_allclose(points.get_array(), posterior.scores().sel(factor=name))
            continue
        (mesh,) = only(part, QuadMesh)
        shown = mesh.get_array()
        course = posterior.smooth_scores()["mean"].sel(factor=name).values
        n = smooth_plots.N_GRID - 1
        x, y = (table[key].to_numpy() for key in "xy")
        nearest = shown[
            np.round((y - y.min()) / np.ptp(y) * n).astype(int),
            np.round((x - x.min()) / np.ptp(x) * n).astype(int),
        ]
        assert np.corrcoef(nearest, course)[0, 1] > 0.97


def test_space_of_any_columns(fits: SimpleNamespace, ax: Any) -> None:
    """Of a model without smooth scores, and of one group."""
    fits.plain.plot.space(1, columns=["y", "x"], ax=ax)
    (points,) = only(ax, PathCollection)
    np.testing.assert_allclose(points.get_offsets(), fits.plain.sample_metadata()[["y", "x"]])
    other = Figure().subplots()
    fits.time.plot.space(1, columns=["time", "time"], group="group1", ax=other)
    (points,) = only(other, PathCollection)
    mine = fits.time.sample_metadata()["group"].to_numpy() == "group1"
    np.testing.assert_allclose(points.get_array(), fits.time.scores().values[mine, 0])


def test_bars_of_smoothness(fits: SimpleNamespace, ax: Any) -> None:
    fits.time.plot.smoothness(ax=ax)
    table = fits.time.smoothness().fillna(0.0).iloc[::-1]
    parts = panels_of(ax)
    labels = ["share of the course", "length scale, time", "evidence (nats)"]
    assert [part.get_xlabel() for part in parts] == labels
    for part, name in zip(parts, ("smooth", "length_scale_time", "evidence"), strict=True):
        np.testing.assert_allclose([bar.get_width() for bar in part.patches], table[name])
    assert [text.get_text() for text in parts[0].get_yticklabels()] == table.index.tolist()


def test_heat_maps_of_groups(fits: SimpleNamespace, ax: Any) -> None:
    fits.time.plot.group_correlation(ax=ax)
    smooth, _ = smooth_and_rough(fits.time)
    parts = panels_of(ax)
    assert [part.get_title(loc="left") for part in parts] == smooth
    wanted = fits.time.group_correlation().sel(factor=smooth[1])
    np.testing.assert_allclose(parts[1].images[0].get_array(), wanted)
    assert {text.get_text() for text in parts[1].texts} == {f"{float(wanted[0, 1]):.2f}"}


def test_refused_figures_leave_nothing(fits: SimpleNamespace) -> None:
    _, rough = smooth_and_rough(fits.time)
    _, rough_on_the_plane = smooth_and_rough(fits.plane)
    calls = [
        lambda: fits.plane.plot.space(9),
        lambda: fits.plane.plot.space(1, columns=["x"]),
        lambda: fits.plane.plot.space(1, columns=["x", "z"]),
        lambda: fits.plane.plot.space(1, of="curve"),
        lambda: fits.plane.plot.space(rough_on_the_plane[0], of="course"),
        lambda: fits.plane.plot.space(1, group="group0"),
        lambda: fits.time.plot.space(1),
        lambda: fits.time.plot.space(1, columns=["time", "group"]),
        lambda: fits.time.plot.space(1, columns=["time", "time"], of="course"),
        lambda: fits.plain.plot.space(1, columns=["x", "y"], of="course"),
        lambda: fits.plain.plot.smoothness(),
        lambda: fits.plain.plot.group_correlation(),
        lambda: fits.plane.plot.group_correlation(),
        lambda: fits.time.plot.group_correlation(rough[0]),
        lambda: fits.time.plot.group_correlation([]),
    ]
    for call in calls:
        with pytest.raises(InputError):
            call()
        assert plt.get_fignums() == []


@pytest.mark.thorough
@pytest.mark.usefixtures("blank_figures")
def test_courses_of_groups_on_a_plane(tmp_path: Path, ax: Any) -> None:
    """Of the group that is named; without a name there is no telling which."""
    posterior = fit(tmp_path, [["x", "y"]], n_samples=150, places="plane", groups=2)
    smooth, _ = smooth_and_rough(posterior)
    with pytest.raises(InputError, match="group0, group1"):
        posterior.plot.space(smooth[0], of="course")
    posterior.plot.space(smooth[0], of="course", group="group1", ax=ax)
    (mesh,) = only(ax, QuadMesh)
    table = posterior.sample_metadata()
    low = {key: [float(table[key].min())] for key in "xy"}
    corner = posterior.interpolate(low, groups="group1")["f_mean"].sel(factor=smooth[0])
    assert float(mesh.get_array()[0, 0]) == pytest.approx(float(corner[0]))
    write_report(posterior, tmp_path / "r.html")


def test_axes_given_are_used(fits: SimpleNamespace) -> None:
    for name, posterior in (
        ("space", fits.plane),
        ("smoothness", fits.time),
        ("group_correlation", fits.time),
    ):
        figure = Figure(layout="constrained")
        left, right = figure.subplots(1, 2)
        assert getattr(posterior.plot, name)(ax=left) is left
        figure.draw_without_rendering()
        assert all(part.get_position().x1 <= right.get_position().x0 for part in figure.axes if part != right)
    assert plt.get_fignums() == []


@pytest.mark.thorough
@pytest.mark.usefixtures("blank_figures")
def test_the_report_has_them(fits: SimpleNamespace, tmp_path: Path) -> None:
    text = write_report(fits.time, tmp_path / "r.html").read_text(encoding="utf-8")
    part = text[text.index('<h2 id="smooth">') : text.index('<h2 id="factors">')]
    table = fits.time.smoothness()
    for value in table["evidence"]:
        assert f"<td>{value:.3g}</td>" in part
    assert "<th>length scale time</th>" in part
    assert part.count('class="figure"') == 3
    plane = write_report(fits.plane, tmp_path / "p.html").read_text(encoding="utf-8")
    assert plane.split('<h2 id="smooth">')[1].split("<h2")[0].count('class="figure"') == 2
    assert 'id="smooth"' not in write_report(fits.plain, tmp_path / "q.html").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_the_command(fits: SimpleNamespace, tmp_path: Path) -> None:
    fits.plane.save(tmp_path / "p.zarr")
    words = [
        "plot",
        str(tmp_path / "p.zarr"),
        "space",
        "--out",
        str(tmp_path / "f.svg"),
        "--set",
        "of=course",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "<svg" in (tmp_path / "f.svg").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_a_fit_without_factors(tmp_path: Path, ax: Any) -> None:
    """Noise has none: the fit ends all the same, with empty tables and figures."""
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(80, 20)), [f"s{i}" for i in range(80)])
    obs = pd.DataFrame({"time": np.linspace(0.0, 1.0, 80)}, frame.index)
    data = ff.write_dataset(tmp_path / "noise.zarr", {"y": frame}, obs=obs)
    posterior = ff.fit(data, ff.models.SparseGFA(n_factors=3, smooth_covariates="time"), progress=False)
    assert posterior.smoothness().empty
    posterior.plot.smoothness(ax=ax)
    assert not any(part.patches for part in panels_of(ax))
    assert 'id="smooth"' in write_report(posterior, tmp_path / "r.html").read_text(encoding="utf-8")
