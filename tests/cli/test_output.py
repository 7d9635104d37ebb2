"""How results, errors and progress are shown."""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import factorflow
import factorflow.cli
from factorflow.cli.application import run_application
from factorflow.cli.output import DisplayedResult, as_json, command, render
from factorflow.errors import InputError, RunError
from factorflow.settings import ResumeOptions, RunOptions, SelectOptions, TrialOptions


def app_of(function: Any) -> typer.Typer:
    app = typer.Typer()
    command(app)(function)
    return app


def failing(error: BaseException) -> typer.Typer:
    def run() -> dict[str, Any]:
        raise error

    return app_of(run)


def test_text_has_tables_and_sections() -> None:
    text = render(
        {
            "a": 1,
            "long name": 0.123456,
            "rows": [{"x": "p", "y": 1.0}, {"x": "qq", "y": None}],
            "in": {"b": [1, 2]},
        }
    )
    assert text.splitlines() == [
        "a          1",
        "long name  0.1235",
        "rows",
        "  x   y",
        "  p   1",
        "  qq  -",
        "in",
        "  b  1, 2",
    ]


def test_json_holds_no_nan_and_no_numpy() -> None:
    value = {"a": np.float64("nan"), "b": np.arange(2), "c": (np.int64(3), float("inf")), 4: {"d": None}}
    assert json.loads(as_json(value)) == {"a": None, "b": [0, 1], "c": [3, None], "4": {"d": None}}


def test_a_group_of_settings_becomes_options() -> None:
    default = TrialOptions(holdout=0.1, executor="threads")

    def run(number: int, group: TrialOptions = default, last: bool = False) -> dict[str, Any]:
        return {"number": number, **group.model_dump(), "last": last}

    app = app_of(run)
    found = json.loads(CliRunner().invoke(app, ["3", "--json"]).stdout)
    assert found == {"number": 3, **default.model_dump(), "last": False}
    arguments = ["3", "--holdout", "0.2", "--memory-limit", "1GB", "--last", "--json"]
    found = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert (found["holdout"], found["memory_limit"], found["executor"]) == (0.2, "1GB", "threads")
    assert found["last"] is True
    refused = CliRunner().invoke(app, ["3", "--max-minutes", "0"])
    assert refused.exit_code == 2
    assert "--max-minutes 0" in refused.stderr


def test_commands_take_the_settings_that_python_takes() -> None:
    """One place defines them: a setting that is added there is an argument and an option everywhere."""
    python = inspect.signature(factorflow.fit).parameters
    assert set(RunOptions().arguments()) <= set(python)
    for name, value in RunOptions().arguments().items():
        assert python[name].default == value, name
    cluster = {"address": "tcp://host:8786", "workers": 2}  # which Python takes as the executor
    assert RunOptions(cluster=cluster).arguments()["executor"].workers == 2
    kinds = {"fit": RunOptions, "refresh": RunOptions, "select": SelectOptions, "resume": ResumeOptions}
    commands = typer.main.get_command(factorflow.cli.app).commands  # type: ignore[attr-defined]
    for name, kind in kinds.items():
        assert set(kind.model_fields) <= {parameter.name for parameter in commands[name].params}


def test_a_result_may_bring_its_own_text() -> None:
    def run() -> DisplayedResult:
        return DisplayedResult({"n": 1}, "one")

    assert CliRunner().invoke(app_of(run), []).stdout == "one\n"
    assert json.loads(CliRunner().invoke(app_of(run), ["--json"]).stdout) == {"n": 1}


def test_a_finding_that_is_not_ok_exits_with_1() -> None:
    def run() -> dict[str, Any]:
        return {"ok": False}

    assert CliRunner().invoke(app_of(run), []).exit_code == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("k", 0, "at least 1", "Raise it."), 2),
        (RunError("a worker is gone"), 1),
        (ZeroDivisionError("division"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(error: BaseException, code: int) -> None:
    result = CliRunner().invoke(failing(error), [])
    assert result.exit_code == code
    assert "Traceback" not in result.output
    assert str(error) in result.stderr


def test_errors_as_json_name_their_parts() -> None:
    result = CliRunner().invoke(failing(InputError("k", 0, "at least 1", "Raise it.")), ["--json"])
    error = json.loads(result.stdout)["error"]
    assert {k: error[k] for k in ("type", "parameter", "value", "expected", "remedy")} == {
        "type": "InputError",
        "parameter": "k",
        "value": 0,
        "expected": "at least 1",
        "remedy": "Raise it.",
    }


def test_debug_shows_the_traceback() -> None:
    assert "Traceback" in CliRunner().invoke(failing(ZeroDivisionError("x")), ["--debug"]).stderr


@pytest.mark.parametrize("words", [["ingest", "x.csv"], ["no-such-command"], ["fit", "--seeds", "1"]])
def test_wrong_options_are_json_too(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("factorflow.cli.serve", run_application)
    for asked in (True, False):
        monkeypatch.setattr("sys.argv", ["factorflow", *words, *["--json"] * asked])
        with pytest.raises(SystemExit) as ended:
            factorflow.cli.main()
        shown = capsys.readouterr()
        assert ended.value.code == 2
        assert "Error: " in shown.err
        assert (json.loads(shown.out)["error"]["message"] in shown.err) if asked else not shown.out
