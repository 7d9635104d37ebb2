"""Errors and warnings as commands word them, where they were typed."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from factorflow import open_dataset, open_posterior, write_dataset
from factorflow.__main__ import main
from factorflow.cli import app, output
from factorflow.cli.output import FLAGS
from factorflow.cli.wording import Flag, Wording
from factorflow.errors import InputError, OptionError, OptionText, RunError, UnusedWarning
from factorflow.models.registry import registered_models

FIT = Wording(
    "fit",
    {
        "out": Flag("--out"),
        "overwrite": Flag("--overwrite", is_switch=True),
        "max_iter": Flag("--max-iter"),
        "resume": Flag("--resume", is_switch=True),
    },
    FLAGS,
    {"model": "sparse_gfa", "kernel": "rbf"},
)


def run(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def error(*arguments: object) -> str:
    return str(run(*arguments, code=2).stderr).strip()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.zarr"
    run(
        "simulate",
        "sparse_gfa",
        "--out",
        path,
        "--set",
        "n_samples=40",
        "--set",
        'views={"a": ["gaussian", 6]}',
    )
    return path


@pytest.mark.parametrize(
    ("template", "options", "python", "shell"),
    [
        ("Use {overwrite}.", {"overwrite": True}, "Use overwrite=True.", "Use --overwrite."),
        ("Use {resume}.", {"resume": False}, "Use resume=False.", "Use --no-resume."),
        ("Give {max_iter}.", {"max_iter": ...}, "Give max_iter=....", "Give --max-iter."),
        ("Give {max_iter}.", {"max_iter": 20}, "Give max_iter=20.", "Give --max-iter 20."),
        ("Use {kernel}.", {"kernel": "rbf"}, "Use kernel='rbf'.", "Use --set kernel=rbf."),
        ("Select {views}.", {"views": ["a"]}, "Select views=['a'].", "Select --set 'views=[\"a\"]'."),
        (
            "Write it with {sequences}.",
            {"sequences": ...},
            "Write it with sequences=....",
            "Write it with --sequences.",
        ),
        (
            "Say {na_values}.",
            {"na_values": [-9, "x y"]},
            "Say na_values=[-9, 'x y'].",
            "Say --na-values -9 --na-values 'x y'.",
        ),
        ("Say {index_col}.", {"index_col": False}, "Say index_col=False.", "Say --index-col false."),
        ("Use {no_such}.", {"no_such": 1}, "Use no_such=1.", "Use no_such=1."),
        ("where {a} is {overwrite}", {}, "where {a} is {overwrite}", "where {a} is {overwrite}"),
        (
            "Use {model.likelihoods}.",
            {"model.likelihoods": "poisson"},
            "Use likelihoods='poisson'.",
            "Use --set likelihoods=poisson.",
        ),
    ],
)
def test_options_are_worded_by_each_front_end(
    template: str, options: dict[str, Any], python: str, shell: str
) -> None:
    text = OptionText(template, **options)
    assert (str(text), FIT.text(text)) == (python, shell)
    copy = pickle.loads(pickle.dumps(RunError(text)))
    assert (str(copy), FIT.message(copy)) == (python, shell)
    error = pickle.loads(pickle.dumps(InputError("out", "p", "a path", template, **options)))
    assert (str(error), FIT.message(error)) == (
        f"out = p: expected a path. {python}",
        f"--out p: expected a path. {shell}",
    )


def test_likelihoods_by_view_are_of_ingest() -> None:
    text = OptionText("Write it with {likelihoods}.", likelihoods={"y": "bernoulli"})
    assert Wording("predict", {}, FLAGS).text(text) == "Write it with --likelihood y=bernoulli."


def test_options_of_a_model_are_no_flags_of_other_commands() -> None:
    text = OptionText("Fit with {model.covariates}.", **{"model.covariates": ["age"]})
    assert Wording("predict", {}, FLAGS).text(text) == """Fit with --set 'covariates=["age"]'."""


def test_a_file_keeps_its_language() -> None:
    typed = Wording("fit", FIT.flags, FLAGS, FIT.model, "model.yaml", {"noise": "--set"})
    text = OptionText("Use {kernel} with {noise}.", kernel="rbf", noise="feature")
    assert typed.text(text) == "Use `kernel: rbf` with --set noise=feature."
    wrong = InputError("kernel", "matern12", "another", "Use {kernel}.", kernel="rbf")
    assert typed.message(wrong) == "kernel: matern12 in model.yaml: expected another. Use `kernel: rbf`."


def test_options_are_named_as_they_were_typed(dataset: Path, tmp_path: Path) -> None:
    fit = ["fit", dataset, "--out", tmp_path / "out.zarr"]
    config = tmp_path / "model.yaml"
    config.write_text("n_factor: 3\n")
    shown = error(*fit, "--config", config)
    assert f"n_factor: 3 in {config}" in shown
    assert "an option of sparse_gfa. Did you mean n_factors? `factorflow models sparse_gfa`" in shown
    shown = error(*fit, "--set", "n_factors=0")
    assert "--set n_factors=0: expected a number >= 1" in shown
    assert "--holdout 2.0: expected a number < 1.0" in (shown := error(*fit, "--holdout", 2))
    assert "`factorflow fit --help`" in shown
    for text in (shown, error(*fit, "--set", "no_such=1"), error(*fit, "--max-iter", 0)):
        assert "Options" not in text
        assert "SparseGFA" not in text
    assert "--set r2=x" in error("simulate", "sparse_gfa", "--out", tmp_path / "s", "--set", "r2=x")
    assert "Did you mean n_factors?" in error(
        "simulate", "sparse_gfa", "--out", tmp_path / "s", "--set", "n_factor=2"
    )
    document = json.loads(run(*fit, "--max-iter", 0, "--json", code=2).stdout)["error"]
    assert document["parameter"] == "max_iter"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n_factors: 3\nspike: hat\nn_factors: 4\n", "(line 3: n_factors comes a second time)"),
        ("n_factors: 3\n\tspike: hat\n", "(line 2: "),
        ("model: [probit]\n", '--model ["probit"]: expected one of '),
        ("n_factors: true\n", "n_factors: true in {file}: expected a number"),
        ("views: a\n", 'expected a list, such as ["a", "b"]'),
        ("ard_prior: [1]\n", "ard_prior: [1] in {file}: expected a list, such as [1, 2]"),
        ("cluster: {class: a.B, workers: 1, workers: 2}\n", "workers comes a second time"),
    ],
)
def test_mistakes_in_a_file(dataset: Path, tmp_path: Path, text: str, said: str) -> None:
    config = tmp_path / "model.yaml"
    config.write_text(text)
    assert said.format(file=config) in error("fit", dataset, "--out", tmp_path / "p", "--config", config)
    assert list(tmp_path.iterdir()) == [config]


def test_a_port_is_one(dataset: Path, tmp_path: Path) -> None:
    for port in ("99999", "host", "host:", "-1"):
        assert f"--metrics {port}: expected a port" in error(
            "fit", dataset, "--out", tmp_path / "p", "--metrics", port
        )


def test_a_start_that_is_no_file(dataset: Path, tmp_path: Path) -> None:
    shown = error("fit", dataset, "--out", tmp_path / "p", "--set", "n_factors=2", "--set", "start=PCA")
    assert "--set start=PCA: expected 'pca', 'random', or an .npy file" in shown
    assert "No such file" in shown


def test_the_home_folder(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    dataset.rename(tmp_path / dataset.name)
    try:
        assert "40 samples" in run("inspect", f"~/{dataset.name}").stdout
    finally:
        (tmp_path / dataset.name).rename(dataset)


def test_python_names_what_python_knows() -> None:
    from factorflow import fit
    from factorflow.models import SparseGFA

    with pytest.raises(OptionError, match="Did you mean n_factors.*help.factorflow.models.SparseGFA"):
        SparseGFA(n_factor=2)
    for options in ({"n_factors": 0}, {"scores": "no"}, {"ard_prior": (1, 2, 3)}, {"views": "a"}):
        with pytest.raises(InputError):
            SparseGFA(**options)
    with pytest.raises(InputError, match="help.factorflow.fit. explains"):
        fit("nowhere", {"model": "sparse_gfa"}, max_iter=0)


def test_every_option_is_explained() -> None:
    listed = run("models").stdout
    for name, kind in registered_models().items():
        assert name in listed
        if not kind.__module__.startswith("factorflow."):
            continue  # a family of other tests in this process
        shown = json.loads(run("models", name, "--json").stdout)
        assert {o["option"] for o in shown["options"]} == set(kind.model_fields) - {"model"}
        assert all(option["description"] and option["values"] for option in shown["options"]), name
        assert f"{shown['options'][1]['option']} : " in (kind.__doc__ or "")
        assert kind.model_json_schema()["description"] == shown["description"]
    text = run("models", "sparse_gfa").stdout
    assert "drop  number >= 0 and < 1; default 0.001\n    Drop factors" in text
    assert "gplvm_cmf, " in error("models", "nothing")
    assert all(name in "".join(run("fit", "--help").stdout.split()) for name in ("probit", "sparse_gfa"))


def test_nothing_is_cut_in_the_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of options and what commands do are there in full where a terminal is narrow."""
    monkeypatch.setenv("COLUMNS", "80")
    commands: tuple[list[str], ...] = ([], ["ingest"], ["fit"], ["refresh"])
    listed, ingest, fit, refresh = (run(*command, "--help").stdout for command in commands)
    assert "--no-drop-empty-features" in ingest
    assert "--performance-report" in fit
    shown = (listed, ingest, fit, refresh)
    lines = [line for text in shown for line in text.splitlines()[1:]]  # of usage, OPTIONS...
    assert not [line for line in lines if line.endswith(("...", "…"))]
    assert max(map(len, lines)) <= 80


@pytest.mark.thorough
def test_options_that_do_nothing_say_so(dataset: Path, tmp_path: Path) -> None:
    fit = ["fit", dataset, "--out", tmp_path / "out.zarr", "--set", "n_factors=1", "--max-iter", 1]
    with pytest.warns(UnusedWarning) as said:
        run(*fit, "--workers", 4, "--set", "grouped_noise=true", "--holdout-unit", "row")
    texts = [str(each.message) for each in said]
    names = ["grouped_noise=True", "holdout_unit='row'", "workers=4"]
    assert [text.partition(" ")[0] for text in texts] == names
    assert "without holdout=0.1" in texts[1]
    first = said[0].message
    assert isinstance(first, Warning)
    assert FIT.text(first.args[0]).startswith("--set grouped_noise=true does nothing here")
    meta = open_dataset(dataset).meta()
    for name, kind in registered_models().items():
        assert set(kind().unused(meta)) <= set(kind.model_fields), name


def test_options_of_another_kind_of_source_say_so(tmp_path: Path) -> None:
    (tmp_path / "y.csv").write_text("id,a,b\nx,1,0\ny,0,1\n")
    shown = error("ingest", tmp_path / "y.csv", "--out", tmp_path / "y", "--holdout", 0.1, "--grid")
    assert "--grid true: expected nothing: it is for long tables. Leave it out, or give --formula" in shown
    table = ["ingest", "--table", tmp_path / "y.csv", "--formula", "a ~ id", "--out", tmp_path / "t"]
    shown = error(*table, "--drop-empty-features")
    assert "--drop-empty-features true: expected nothing beside --formula 'a ~ id'" in shown
    assert "expected a response, ~, and variables. For example" in error(*table[:4], "~ id", *table[5:])


def test_sources_are_named(tmp_path: Path) -> None:
    assert "SOURCE an empty path" in error("ingest", "y=", "--out", tmp_path / "y")
    shown = error("ingest", "a.csv", "b.csv", "--out", tmp_path / "y")
    assert "SOURCE a.csv: expected NAME=FILE where there are several" in shown


def test_resume_of_a_complete_run_says_so(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.zarr"
    run("fit", dataset, "--out", out, "--set", "n_factors=1", "--max-iter", 2)
    assert "is complete: there is nothing to go on with" in run("resume", out).stdout
    assert "complete" in error("resume", out, "--max-iter", 9)
    assert "--start -5: expected an integer >= 0" in error(
        "predict", out, "a", "--out", tmp_path / "a.csv", "--start", -5
    )


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::factorflow.data.DataWarning")  # of features that happen to be constant
def test_every_family_can_be_simulated(tmp_path: Path) -> None:
    for name, kind in registered_models().items():
        run("simulate", name, "--out", tmp_path / name, "--set", "n_samples=100")
        if kind.examples():  # a family has none where its extra is not installed
            config = next(iter(kind.examples().values())).config.model_copy(update={"views": None})
            config.build(open_dataset(tmp_path / name).meta())
        assert "n_samples : int" in (shown := run("simulate", name, "--settings").stdout)
        assert "Noise" not in shown.partition("n_samples : int")[2]


def test_options_of_models_that_are_typed_as_flags(dataset: Path, tmp_path: Path) -> None:
    def told(flag: str) -> str:
        return " ".join(error("fit", dataset, "--out", tmp_path / "p", flag, "3").replace("│", " ").split())

    assert "No such option: --n-factors" in told("--n-factors")
    assert "--set n_factors=VALUE" in told("--n-factors")
    assert "--set n_factors=VALUE" in told("--nfactors")
    assert "--max-iter" in (text := told("--max-itr"))
    assert "--set max_iter" not in text
    assert "--set" not in told("--zzz")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('{"kind": "slurm"}', "options: class, kwargs"),
        ('{"class": "a.B", "workers": 0}', "--cluster: workers = 0: expected a number >= 1"),
        ('{"class": "a.B", "workrs": 1}', "Did you mean workers?"),
    ],
)
def test_options_of_a_cluster_have_no_flags(dataset: Path, tmp_path: Path, given: str, said: str) -> None:
    assert said in error("fit", dataset, "--out", tmp_path / "p", "--cluster", given)


@pytest.mark.thorough
def test_findings_name_options_as_they_are_typed(tmp_path: Path) -> None:
    """Where the command names the model, in a file of its options, where the posterior does, in JSON."""
    data, out, config = tmp_path / "noise.zarr", tmp_path / "p.zarr", tmp_path / "model.yaml"
    write_dataset(data, {"a": np.random.default_rng(0).normal(size=(50, 20))})
    config.write_text("n_factors: 2\nmax_iter: 30\n")
    options = "--set", "n_factors=2", "--set", "max_iter=30"
    texts = [run("fit", data, "--out", out, *options).stdout, run("summary", out).stdout]
    texts += [run("resume", out).stdout, run("project", out, data, "--out", tmp_path / "q.zarr").stderr]
    texts += [json.loads(run("summary", out, "--json").stdout)["findings"][0]["remedy"]]
    for text in texts[:3]:
        assert "keep all factors with --set drop=0." in " ".join(text.split())
    assert texts[4].endswith("with --set drop=0.")
    from_file = run("fit", data, "--out", out, "--overwrite", "--config", config).stdout
    assert "keep all factors with `drop: 0`." in " ".join(from_file.split())
    for flags in ([], [], ["--json"]):  # made, and read from the summary
        shown = run("refresh", data, "--out", tmp_path / "runs", *options, *flags)
        assert "keep all factors with --set drop=0." in shown.stderr
    assert json.loads(shown.stdout)["findings"][0]["remedy"].endswith("with --set drop=0.")
    posterior = open_posterior(out)
    assert posterior.findings[0].remedy.endswith("with drop=0.")
    assert json.dumps(posterior.summary()["findings"][0]["remedy"]).endswith('with drop=0."')


def test_interrupted_while_it_loads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "factorflow.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "factorflow.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "Aborted.\n"


def test_what_libraries_tell_programmers_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, file in ((FutureWarning, "pandas/core.py"), (UserWarning, "lib/mudata/_core/mudata.py")):
        output.show_warning("from 0.4 on", kind, file, 1)
    output.show_warning("a view lacks values", UserWarning, "factorflow/data.py", 1)
    assert capsys.readouterr().err == "warning: a view lacks values\n"
