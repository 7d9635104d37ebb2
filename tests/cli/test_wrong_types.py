"""Public functions called with wrong types, one argument at a time: refused in words, no raw error."""

from __future__ import annotations

import inspect
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

import factorflow
import factorflow.analysis
import factorflow.report
from factorflow.errors import FactorflowError, InputError

mpl.use("Agg")

WRONG = {
    "None": None,
    "int": 3,
    "negative": -7,
    "huge": 10**30,
    "ragged": [[1, 2], [3]],
    "text": "no such thing",
    "nan": float("nan"),
    "list": [1, "a", None],
    "mapping": {"a": 1},
    "mapping of None": {"y": None},
    "nested": [[1]],
    "frame": pd.DataFrame({"a": [1]}),
    "array": np.zeros((2, 2)),
    "object": object(),
    "function": len,
}

LEFT_OUT = {"fit", "resume", "project", "simulate"}
"""Tried by themselves below."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that are taken for paths lead to a folder of the test."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("wrong")
    rng = np.random.default_rng(0)
    values = rng.normal(size=(40, 2)) @ rng.normal(size=(2, 12)) + 0.3 * rng.normal(size=(40, 12))
    frame = pd.DataFrame(values, [f"s{i}" for i in range(40)], [f"g{i}" for i in range(12)])
    obs = pd.DataFrame({"age": np.arange(40.0), "sex": ["a", "b"] * 20}, frame.index)
    dataset = factorflow.write_dataset(folder / "d", {"y": frame, "b": (frame > 0).astype(int)}, obs=obs)
    model = factorflow.models.SparseGFA(n_factors=2)
    posterior = factorflow.fit(dataset, model, progress=False, max_iter=3)
    return {"dataset": dataset, "posterior": posterior, "folder": folder, "values": frame, "obs": obs}


def right(name: str, parameter: inspect.Parameter, made: dict[str, Any]) -> Any:
    """Return a right value of an argument without a default."""
    known = {
        "posterior": made["posterior"],
        "fitted": made["posterior"],
        "left": made["posterior"],
        "right": made["posterior"],
        "other": made["posterior"],
        "reference": made["posterior"],
        "dataset": made["dataset"],
        "path": made["folder"] / "out",
        "views": {"y": made["values"]},
        "view": "y",
        "factor": 1,
        "metadata": made["obs"],
        "sets": {"one": ["g1", "g2", "g3"], "two": ["g4", "g5"]},
        "variable": "scores",
        "name": "scores",
        "names": ["scores"],
        "number": 0,
        "features": range(3),
        "table": [{"log_likelihood": 1.0, "standard_error": 0.1, "options": "a"}],
    }
    return known.get(parameter.name, made["folder"] / "nothing")


def targets(made: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for module in (factorflow, factorflow.analysis, factorflow.report):
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isfunction(found) and name not in LEFT_OUT:
                yield f"{module.__name__}.{name}", found
    for what in ("posterior", "dataset"):
        for name in dir(type(made[what])):
            if not name.startswith("_") and inspect.isfunction(getattr(type(made[what]), name)):
                yield f"{what}.{name}", getattr(made[what], name)


def failures(made: dict[str, Any], name: str, call: Any, every: int) -> Iterator[str]:
    parameters = [
        p
        for p in inspect.signature(call).parameters.values()
        if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}
    ]
    given = {p.name: right(name, p, made) for p in parameters if p.default is p.empty}
    for number, parameter in enumerate(parameters):
        for kind, value in list(WRONG.items())[(len(name) + number) % every :: every]:
            if kind == "function" and parameter.name == "on_event":
                continue
            try:
                call(**{**given, parameter.name: value})
            except (FactorflowError, Warning):
                continue
            except Exception as error:
                yield f"{name}({parameter.name}={kind}): {type(error).__name__}: {error}"
    try:
        call(*[object()] * 20)
    except FactorflowError:
        return
    except Exception as error:
        yield f"{name}(20 arguments): {type(error).__name__}: {error}"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "every", [5, pytest.param(2, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow)]
)
def test_no_raw_error(
    made: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Each argument takes some of the wrong values, in turn; all of them where there is time."""
    import matplotlib.pyplot as plt

    from factorflow.report import html

    monkeypatch.chdir(tmp_path)  # a text is a path for some
    drawn: dict[int, Any] = {}
    content = html._content

    def drawn_once(posterior: Any) -> Any:
        """Draw the figures of a report once: they took most of the time, and know one argument."""
        if id(posterior) not in drawn:
            drawn[id(posterior)] = content(posterior)
        return drawn[id(posterior)]

    monkeypatch.setattr(html, "_content", drawn_once)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, call in targets(made):
            found += failures(made, name, call, every)
            plt.close("all")
    assert not found, "\n".join(["", *found])


@pytest.mark.thorough
def test_runs(made: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fit`, `project` and `resume`: too slow for each value that is right."""
    monkeypatch.chdir(tmp_path)
    model, found = factorflow.models.SparseGFA(n_factors=1, max_iter=1), []
    calls = {
        "fit.dataset": lambda value: factorflow.fit(value, model),
        "fit.model": lambda value: factorflow.fit(made["dataset"], value),
        "fit.executor": lambda value: factorflow.fit(made["dataset"], model, executor=value),
        "fit.out": lambda value: factorflow.fit(made["dataset"], model, out=value, holdout=-1.0),
        "fit.warm_start": lambda value: factorflow.fit(
            made["dataset"], model, warm_start=value, holdout=-1.0
        ),
        "project.posterior": lambda value: factorflow.project(value, made["dataset"]),
        "project.dataset": lambda value: factorflow.project(made["posterior"], value),
        "resume.out": lambda value: factorflow.resume(value),
        "resume.executor": lambda value: factorflow.resume(made["folder"] / "none", executor=value),
        "simulate": lambda value: factorflow.simulate(value, made["folder"] / "s", 10),
        "simulate.n": lambda value: factorflow.simulate("sparse_gfa", made["folder"] / "s", -1, seed=value),
        "positional": lambda value: factorflow.fit(made["dataset"], model, value),
    }
    for name, call in calls.items():
        for kind, value in WRONG.items():
            try:
                call(value)
            except FactorflowError:
                continue
            except Exception as error:
                found.append(f"{name}={kind}: {type(error).__name__}: {error}")
    assert not found, "\n".join(["", *found])


def test_names_what_is_wrong(made: dict[str, Any]) -> None:
    model = factorflow.models.SparseGFA(n_factors=1)
    with pytest.raises(InputError, match=r"executor = 3: expected local, threads, dask"):
        factorflow.fit(made["dataset"], model, executor=3)
    with pytest.raises(InputError, match=r"posterior = 'p\.zarr': expected a posterior.*open_posterior"):
        factorflow.report.plot_scores("p.zarr")
    with pytest.raises(InputError, match=r"arguments of factorflow\.fit = 3.*Give options by name: seed="):
        factorflow.fit(made["dataset"], model, 3)
    with pytest.raises(InputError, match=r"sead = 3: expected an option of factorflow\.fit"):
        factorflow.fit(made["dataset"], model, sead=3)
    frame = made["values"]
    for given, words in (
        ({"samples": 3}, "samples = 3: expected a list of text or a mapping of text to a list of text"),
        ({"features": {"y": None}}, "features = .*expected a mapping of text to a list of text"),
        ({"transpose": [[1]]}, "transpose = .*expected True or False or text or a list of text"),
        ({"likelihoods": {"y": ["gaussian"]}}, "likelihoods = .*expected a mapping of text to text"),
    ):
        with pytest.raises(InputError, match=words):
            factorflow.write_dataset(made["folder"] / "w", {"y": frame}, **given)
    with pytest.raises(InputError, match="n = 'ten': expected an integer"):
        made["posterior"].top_features("y", 1, n="ten")
    counts = factorflow.write_dataset(made["folder"] / "c", {"y": frame.abs().round()}, {"y": "poisson"})
    with pytest.raises(InputError, match=r"sets = 'MT-'.*help\(Dataset\.qc\)"):
        counts.qc("MT-")


def test_huge_integers_and_positions(made: dict[str, Any]) -> None:
    posterior = made["posterior"]
    with pytest.raises(InputError, match="n_draws = 10+: expected an integer of 64 bits"):
        posterior.sample(n_draws=10**30)
    for reference in (10**30, 2, -1):
        with pytest.raises(InputError, match=f"reference = {reference}: expected a position in .*, 0 to 1"):
            factorflow.analysis.match_factors([posterior, posterior], reference=reference)


def test_values_that_no_type_excludes(made: dict[str, Any]) -> None:
    frame, posterior = made["values"], made["posterior"]
    calls: dict[str, Any] = {
        "groups = .*expected texts or numbers": lambda: write(frame, groups=[{}] * 40),
        "labels = .*expected texts or numbers": lambda: factorflow.write_dataset(
            "w", {"y": frame.to_numpy(), "k": [{}] * 40}, inputs={"k": "categorical"}, overwrite=True
        ),
        "groups = lists of several lengths": lambda: write(frame, groups=[[1, 2], [3]]),
        r"path = 'a.x00b': expected a path without": lambda: factorflow.write_dataset("a\0b", {"y": frame}),
        r"dataset = '.*x00': expected a path without": lambda: factorflow.open_dataset("\0"),
        "n_draws = 10+: expected draws that fit in memory": lambda: posterior.sample(10**12),
    }
    for words, call in calls.items():
        with pytest.raises(InputError, match=words):
            call()
    assert write(frame, na_values=[10**400]).views["y"].missing == "none"
    assert list(factorflow.write_dataset(made["folder"] / "w", {None: frame}, overwrite=True).views) == [
        "None"
    ]


def write(frame: pd.DataFrame, **options: Any) -> Any:
    return factorflow.write_dataset("w", {"y": frame}, overwrite=True, **options)


@pytest.mark.parametrize("listener", [lambda: None, lambda event, more: None])
def test_listeners_take_one_argument(made: dict[str, Any], listener: Any) -> None:
    model = factorflow.models.SparseGFA(n_factors=1)
    with pytest.raises(InputError, match="on_event = .*expected a function of one argument"):
        factorflow.fit(made["dataset"], model, max_iter=1, on_event=listener)
    with pytest.raises(InputError, match="on_event = .*expected a function of one argument"):
        factorflow.project(made["posterior"], made["dataset"], on_event=listener)


def test_no_figure_is_left(made: dict[str, Any]) -> None:
    import matplotlib.pyplot as plt

    mine = plt.figure()
    with pytest.raises(InputError, match="CD3D"):
        factorflow.report.plot_scores(made["posterior"], [1, 2], "CD3D")
    with pytest.raises(InputError):
        factorflow.report.plot_loadings(made["posterior"], "no such view")
    assert plt.get_fignums() == [mine.number]
    plt.close(mine)
    factorflow.report.plot_scores(made["posterior"], [1, 1])
    assert len(plt.get_fignums()) == 1
    plt.close("all")


def test_functions_stay_what_they_are() -> None:
    assert pickle.loads(pickle.dumps(factorflow.fit)) is factorflow.fit
    assert factorflow.report.plot_scores is factorflow.report.plot_scores
    assert list(inspect.signature(factorflow.fit).parameters)[:2] == ["data", "model"]
    assert str(factorflow.fit.__doc__).startswith("Fit a model")


def test_clients_that_cannot_be_used(made: dict[str, Any]) -> None:
    from types import SimpleNamespace

    def client(**facts: Any) -> Any:
        facts = {"asynchronous": False, "status": "running"} | facts
        return SimpleNamespace(scheduler=SimpleNamespace(address="tcp://a:1"), submit=len, **facts)

    model = factorflow.models.SparseGFA(n_factors=1)
    with pytest.raises(InputError, match="a client that is closed.*Create it again"):
        factorflow.fit(made["dataset"], model, executor=client(status="closed"))
    with pytest.raises(InputError, match="an asynchronous client"):
        factorflow.fit(made["dataset"], model, executor=client(asynchronous=True))
