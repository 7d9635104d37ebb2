"""``factorflow ingest --table``: options, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from factorflow.cli import app


def run_json(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "count": np.where(rng.random(300) < 0.1, np.nan, rng.poisson(1.0, 300)),
            "site": rng.choice(["a", "b", "c", None], 300),
            "year": rng.integers(2000, 2003, 300),
        }
    )
    (tmp_path / "in").mkdir()
    frame.to_csv(tmp_path / "in" / "t.csv", index=False)
    return tmp_path / "in" / "t.csv"


@pytest.mark.filterwarnings("ignore:.*rows left out")
def test_a_table_is_ingested(table: Path, tmp_path: Path) -> None:
    written = run_json(
        "ingest", "--table", table, "--formula", "count ~ site + year", "--out", tmp_path / "d"
    )
    assert [view["name"] for view in written["views"]] == ["count", "site", "year", "exposure"]
    assert written["design"]["variables"] == ["site", "year"]
    assert written["design"]["n_table_rows"] == 300
    assert written["n_samples"] == 12  # with the level "missing"
    assert run_json("inspect", tmp_path / "d", "--verify")["design"] == written["design"]
    text = CliRunner().invoke(app, ["inspect", str(tmp_path / "d")]).stdout
    assert "table count ~ site + year: 300 rows (" in text
    assert " incomplete, " in text
    assert " merged)" in text


@pytest.mark.filterwarnings("ignore:.*rows left out")
def test_options_arrive(table: Path, tmp_path: Path) -> None:
    base = ("ingest", "--table", table.parent, "--formula", "count ~ site + year")
    options = ("--missing-levels", "drop", "--no-merge", "--likelihood", "normal", "--block-rows", 64)
    written = run_json(*base, "--out", tmp_path / "a", *options)
    assert written["views"][0]["likelihood"] == "gaussian"
    assert (written["n_samples"], written["block_rows"]) == (
        int(pd.read_csv(table).notna().all(axis=1).sum()),
        64,
    )
    text = table.with_name("t.csv")
    text.write_text(text.read_text().replace(",", ":").replace(".", ","))
    how = ("--sep", ":", "--decimal", ",", "--na-values", "2000", "--na-values", "a")
    coded = run_json(*base, "--out", tmp_path / "coded", *options, *how)
    assert [view["n_features"] for view in coded["views"]] == [1, 2, 2]
    text.write_text(text.read_text().replace(",", ".").replace(":", ","))
    parts = ("--holdout", 0.3, "--seed", 3, "--no-merge", "--likelihood", "count=poisson")
    kept = run_json(*base, "--out", tmp_path / "b", *parts, "--part", "kept")
    rest = run_json(*base, "--out", tmp_path / "c", *parts, "--part", "held-out", "--like", tmp_path / "b")
    both = run_json(*base, "--out", tmp_path / "e", *parts)
    assert both["n_samples"] - both["design"]["first_held_out"] == rest["n_samples"]
    assert kept["design"]["n_held_out"] == both["design"]["n_held_out"] == rest["n_samples"]
    grid = run_json(*base, "--out", tmp_path / "d", "--grid")
    assert grid["design"]["grid"] is True
    assert [view["name"] for view in grid["views"]] == ["count", "site", "year"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--table", "{table}"], "--formula nothing"),
        (["--formula", "count ~ site"], "--table nothing"),
        (["--table", "{table}", "--formula", "count ~ site + yaer"], "yaer"),
        (["--table", "{table}", "--formula", "count ~ site * year"], "site:year"),
        (["--table", "{table}", "--formula", "count ~ site", "--missing-response", "refuse"], "row "),
        (
            ["--table", "{table}", "--formula", "count ~ site", "--obs", "x.csv"],
            "--obs x.csv: expected nothing beside",
        ),
        (["x.npz", "--table", "{table}", "--formula", "count ~ site"], "a table alone"),
        (
            [
                "--table",
                "{table}",
                "--formula",
                "count ~ site",
                "--likelihood",
                "a=poisson",
                "--likelihood",
                "c=poisson",
            ],
            "one response",
        ),
        ([], "SOURCE nothing"),
    ],
)
def test_bad_input_exits_with_2(table: Path, tmp_path: Path, options: list[str], named: str) -> None:
    given = [option.replace("{table}", str(table)) for option in options]
    error = run_json("ingest", *given, "--out", tmp_path / "out", code=2)["error"]
    assert named in error["message"]
    assert error["remedy"]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*rows left out")
def test_what_tables_have_no_part_in(table: Path, tmp_path: Path) -> None:
    """Models of matrices, and analyses of samples; each refusal says which way to go."""

    def told(*arguments: object) -> str:
        return str(run_json(*arguments, code=2)["error"]["message"])

    formula = ("--formula", "count ~ site + year")
    data, out = tmp_path / "d", tmp_path / "f"
    run_json("ingest", "--table", table, *formula, "--out", data)
    assert "fit a family of long tables" in told("fit", data, "--out", out)
    refused = told("fit", data, "--out", out, "--model", "molten_normal")
    assert "Counts are for molten_poisson, measurements for molten_normal." in refused
    options = ("--model", "molten_poisson", "--set", "n_components=1", "--max-iter", 2)
    run_json("fit", data, "--out", out, *options)
    for command in (
        ("associate", out),
        ("match", out, out),
        ("export", out, "--format", "mofa", "--out", "x"),
    ):
        assert "model = molten_poisson: expected a family whose samples have scores" in told(*command)
    text = table.with_name("text.csv")
    text.write_text(table.read_text().replace("\n1.0,", "\nmany,"))
    refused = told("ingest", "--table", text, *formula, "--out", tmp_path / "x")
    assert "column 'count'" in refused
    assert "= many: expected a number" in refused


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*rows left out")
def test_a_table_is_refreshed(table: Path, tmp_path: Path) -> None:
    """From table and formula to the report; again only when the formula or the table changes."""
    small = ["--set", "model=molten_poisson", "--set", "n_components=1", "--set", "n_starts=1"]

    def refresh(formula: str) -> str:
        done: str = run_json(
            "refresh", table, "--formula", formula, "--out", tmp_path / "out", *small, "--max-iter", 2
        )["done"]
        return done

    assert refresh("count ~ site + year") == "ingested, fitted"
    assert (tmp_path / "out" / "report.html").exists()
    assert refresh("count ~ site + year") == "nothing to do"
    assert refresh("count ~ site") == "ingested, fitted"  # of fewer cells: the table has all its rows
    lines = table.read_text().splitlines()
    table.write_text("\n".join(lines[: len(lines) // 2]) + "\n")
    lost = run_json(
        "refresh",
        table,
        "--formula",
        "count ~ site",
        "--out",
        tmp_path / "out",
        *small,
        "--max-iter",
        2,
        code=2,
    )
    assert lost["error"]["parameter"] == "rows of the source"


@pytest.mark.filterwarnings("ignore:.*rows left out")
def test_a_formula_is_refused_where_it_says_nothing(table: Path, tmp_path: Path) -> None:
    run_json("ingest", "--table", table, "--formula", "count ~ site", "--out", tmp_path / "d")
    arguments = ["--formula", "count ~ site", "--out", tmp_path / "out"]
    refused = run_json("refresh", tmp_path / "d", *arguments, code=2)
    assert "is a dataset already. Leave it out" in json.dumps(refused)
    refused = run_json("refresh", table, *arguments, "--likelihood", "bernoulli", code=2)
    assert "likelihood" in json.dumps(refused)
