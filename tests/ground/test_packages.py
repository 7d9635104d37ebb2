"""Packages and recipes in deploy/: they have the dependencies of pyproject.toml, and run on examples."""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import shutil
import string
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DIGITS = ROOT / "examples" / "multiple_features.npz"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]

CONDA = {"dask[array,distributed]": ("dask-core", "distributed"), "arviz-stats[xarray]": ("arviz-stats",)}
"""Requirements with extras: their packages in conda-forge."""

OF_EXTRAS = {"xarray-einstats"}
"""What these extras bring besides."""

MODULE = DEPLOY / "nextflow" / "modules" / "local" / "factorflow" / "fit"


def requirements(lines: list[str]) -> set[str]:
    """Return requirements as conda writes them: ``name >=version``."""
    found = set()
    for line in lines:
        name, bound = re.fullmatch(r"([\w.\[\],-]+)(.*)", line).groups()  # type: ignore[union-attr]
        found |= {f"{package} {bound}".strip() for package in CONDA.get(name, (name,))}
    return found


def test_the_conda_recipe_has_the_dependencies() -> None:
    recipe = yaml.safe_load((DEPLOY / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    python = f"python {PROJECT['requires-python']}"
    assert set(recipe["requirements"]["run"]) == requirements(PROJECT["dependencies"]) | OF_EXTRAS | {
        "__linux",
        python,
    }
    built_with = requirements(PYPROJECT["build-system"]["requires"])
    assert set(recipe["requirements"]["host"]) == built_with | {"pip", python}
    points = [f"{name} = {function}" for name, function in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == points
    assert PROJECT["description"].startswith(recipe["about"]["summary"])
    assert recipe["about"]["license"] == PROJECT["license"]
    assert (ROOT / recipe["about"]["license_file"]).exists()
    imports = recipe["tests"][0]["python"]["imports"]
    assert imports == PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def docker() -> dict[str, str]:
    """Return base image, default extras and variables of the Dockerfile."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    found = dict(re.findall(r"^(FROM) (\S+)", text, re.M)) | dict(
        re.findall(r"^ARG (EXTRAS)=(\S+)", text, re.M)
    )
    return found | dict(re.findall(r"(\w+)=(\S+)", re.search(r"^ENV (.*)", text, re.M)[1]))  # type: ignore[index]


def test_apptainer_builds_what_docker_does() -> None:
    text, image = (DEPLOY / "apptainer.def").read_text(encoding="utf-8"), docker()
    assert re.search(r"^From: (\S+)", text, re.M)[1] == image.pop("FROM")  # type: ignore[index]
    extras = image.pop("EXTRAS")
    assert f"    EXTRAS={extras}\n" in text
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    assert "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_FACTORFLOW" in text
    cache = image.pop("NUMBA_CACHE_DIR")
    assert "NUMBA_CACHE_DIR=" in text
    assert cache not in text  # an image of Apptainer cannot be written to
    assert not [name for name, value in image.items() if f"{name}={value}" not in text]
    copied = dict(re.findall(r"^    (\S+) /app/(\S+)$", text, re.M))
    needed = {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"]}
    needed |= set(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert copied == {name: name for name in needed}
    assert set(re.findall(r"factorflow (\w+)", text.partition("%runscript")[2])) == {"doctor"}
    sections = dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", text, re.M | re.S))
    for name in ("environment", "post", "runscript", "test"):
        subprocess.run(["sh", "-n", "-c", sections[name]], check=True)


@pytest.fixture
def shell(tmp_path: Path) -> Any:
    """A function that runs a shell script in a folder where `factorflow` is this one."""
    command = tmp_path / "bin" / "factorflow"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W ignore -m factorflow "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{command.parent}:{os.environ['PATH']}"}
    (tmp_path / "work").mkdir()

    def run(script: str) -> None:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path / "work",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"

    run.folder = tmp_path / "work"  # type: ignore[attr-defined]
    return run


class Files(list[str]):
    """Files of a rule of Snakemake, some of them named."""

    def __init__(self, *files: str, **named: str) -> None:
        super().__init__([*files, *named.values()])
        self._named = named

    def items(self) -> Any:
        return self._named.items()


def wrapper_command(name: str, given: Files, out: str, threads: int = 1, **params: Any) -> str:
    """Return the shell command of a wrapper of Snakemake, whose place a stand-in takes."""
    commands: list[str] = []

    class Quoting(string.Formatter):
        def format_field(self, value: Any, format_spec: str) -> str:
            return f"'{value}'" if format_spec == "q" else str(value)

    def shell(text: str) -> None:
        frame = sys._getframe(1)
        commands.append(Quoting().vformat(text, (), {**frame.f_globals, **frame.f_locals}))

    rule = SimpleNamespace(input=given, output=[out], params=params, threads=threads)
    rule.log_fmt_shell = lambda stdout, stderr: ""
    module = ModuleType("snakemake.shell")
    module.shell = shell  # type: ignore[attr-defined]
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setitem(sys.modules, "snakemake", ModuleType("snakemake"))
        patch.setitem(sys.modules, "snakemake.shell", module)
        runpy.run_path(str(DEPLOY / "snakemake" / name / "wrapper.py"), {"snakemake": rule})
    (command,) = commands
    return command


def test_commands_of_the_snakemake_wrappers() -> None:
    named = wrapper_command(
        "ingest", Files(rna="a b.csv", mut="m.csv"), "d.zarr", extra="--likelihood mut=bernoulli"
    )
    assert named.split("--out")[0].split() == [
        "factorflow", "ingest", "'rna=a", "b.csv'", "mut=m.csv", "--likelihood", "mut=bernoulli",
    ]  # fmt: skip
    several = wrapper_command("fit", Files("d.zarr"), "p.zarr", threads=3, model={"views": ["rna"]}, seed=7)
    assert "--executor dask --workers 3" in several
    assert """--set 'views=["rna"]' --seed 7""" in several
    assert "--workers" not in wrapper_command("fit", Files("d.zarr"), "p.zarr")
    for name in ("ingest", "fit"):
        meta = yaml.safe_load((DEPLOY / "snakemake" / name / "meta.yaml").read_text(encoding="utf-8"))
        read = set(
            re.findall(r'params\.get\("(\w+)"', (DEPLOY / "snakemake" / name / "wrapper.py").read_text())
        )
        assert {next(iter(param)) for param in meta["params"]} == read


@pytest.mark.slow
def test_the_snakemake_wrappers_run(shell: Any) -> None:
    """With the options of the rules in deploy/snakemake/test, by a stand-in for Snakemake."""
    text = (DEPLOY / "snakemake" / "test" / "Snakefile").read_text(encoding="utf-8")
    params = re.search(r"params:\n(.*?)\n    threads", text, re.S)[1]  # type: ignore[index]
    given = eval(f"dict({params})")
    shell(wrapper_command("ingest", Files(str(DIGITS)), "digits.zarr"))
    shell(wrapper_command("fit", Files("digits.zarr"), "fit.zarr", **given))
    for rule, out in (("tables", "tables/scores.csv"), ("mofa", "model.hdf5")):
        command = re.search(rf"rule {rule}:.*?shell:\n\s+\"(.*?)\"\n", text, re.S)[1]  # type: ignore[index]
        shell(command.format(input="fit.zarr", output=out, log="log"))
        assert (shell.folder / out).exists()


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("snakemake") is None, reason="needs Snakemake")
def test_snakemake_itself(shell: Any) -> None:
    shell(f"snakemake --snakefile {DEPLOY}/snakemake/test/Snakefile --directory . --cores 1")
    assert (shell.folder / "tables" / "scores.csv").exists()
    assert (shell.folder / "fit.zarr" / "README.md").exists()


def nextflow_script(**names: str) -> str:
    """Return the shell script of the module, with values for what Groovy puts into it."""
    text = (MODULE / "main.nf").read_text(encoding="utf-8")
    script = re.search(r'script:.*?"""\n(.*?)"""', text, re.S)[1]  # type: ignore[index]
    known = {**names, "task.process": "FACTORFLOW_FIT", "task.cpus": "1"}
    script = re.sub(r"\$\{([\w.]+)\}", lambda found: known[found[1]], script)
    lines = [line.removeprefix("    ") for line in script.replace("\\$", "$").splitlines()]
    return "\n".join(line.replace("<<-END", "<<END") for line in lines)


IN_GROOVY = """
def show = { path ->
    new Expando(baseName: new File(path).name.replaceFirst(/\\.[^.]*$/, ''), toString: { -> path })
}
def known = new groovy.json.JsonSlurper().parseText(args[1])
known.sources = known.sources.size() > 1 ? known.sources.collect(show) : show(known.sources[0])
def module = new GroovyShell(new Binding(known)).parse(new File(args[0]).text.split('stub:')[0] + '}')
def script = ''
module.metaClass.methodMissing = { String name, values ->
    if (name == 'process') script = values[0]
    values.size() == 1 && values[0] instanceof Closure ? values[0].call() : null
}
module.run()
print(script.stripIndent())
"""
"""Evaluates a module of Nextflow, which is Groovy, up to its stub, and prints the script of its process."""


@pytest.mark.thorough
@pytest.mark.skipif(not (shutil.which("groovy") and shutil.which("java")), reason="needs Groovy")
@pytest.mark.parametrize("views", [["digits.npz"], ["rna.csv", "mutations.csv"]])
def test_groovy_makes_the_same_script_of_the_nextflow_module(views: list[str], tmp_path: Path) -> None:
    (tmp_path / "evaluate.groovy").write_text(IN_GROOVY)
    task = {
        "ext": {"args": "--transpose", "args2": "--set n_factors=3"},
        "cpus": 1,
        "process": "FACTORFLOW_FIT",
    }
    known = {
        "meta": {"id": "a"},
        "sources": views,
        "task": task,
        "params": {},
        "moduleDir": ".",
        "prefix": "",
    }
    known |= dict.fromkeys(("dataset", "posterior", "tables", "versions"), "")  # labels of outputs
    java = str(Path(shutil.which("java") or "").resolve().parents[1])
    done = subprocess.run(
        ["groovy", "evaluate.groovy", str(MODULE / "main.nf"), json.dumps(known)],
        cwd=tmp_path,
        env={"JAVA_HOME": java, **os.environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    named = " ".join(views if len(views) == 1 else [f"{Path(view).stem}={view}" for view in views])
    expected = nextflow_script(views=named, args="--transpose", args2="--set n_factors=3", prefix="a")
    found = done.stdout.replace("<<-END", "<<END").strip()
    assert [line.strip() for line in found.split("\n")] == [
        line.strip() for line in expected.strip().split("\n")
    ]


@pytest.mark.slow
def test_the_nextflow_module_runs(shell: Any) -> None:
    """Its script, with the options of its own test; its outputs are where it says."""
    config = (MODULE / "tests" / "nextflow.config").read_text(encoding="utf-8")
    args2 = re.search(r"ext\.args2 = '(.*)'", config)[1]  # type: ignore[index]
    shell(nextflow_script(views=str(DIGITS), args="", args2=args2, prefix="digits"))
    text = (MODULE / "main.nf").read_text(encoding="utf-8")
    outputs = re.findall(r'path[( ]"(.*?)"\)?\s*, emit', text)
    assert len(outputs) == 4
    for output in outputs:
        assert list(shell.folder.glob(output.replace("${prefix}", "digits"))), output
    versions = yaml.safe_load((shell.folder / "versions.yml").read_text())
    assert re.match(r"\d", versions["FACTORFLOW_FIT"]["factorflow"])


def test_the_nextflow_module_is_described() -> None:
    text = (MODULE / "main.nf").read_text(encoding="utf-8")
    meta = yaml.safe_load((MODULE / "meta.yml").read_text(encoding="utf-8"))
    assert text.startswith(f"process {meta['name'].upper()} {{")
    assert set(re.findall(r"emit: (\w+)", text)) == set(meta["output"])
    assert [name for name in re.findall(r"(?:val|path)\((\w+)\)", text.partition("output:")[0])] == [
        "meta",
        "sources",
    ]
    assert [next(iter(one)) for one in meta["input"][0]] == ["meta", "sources"]
    assert text.count("{") == text.count("}")


def test_archives_are_looked_into(tmp_path: Path) -> None:
    """A file that is left out of the wheel, or a stray one, is named."""
    check = runpy.run_path(str(ROOT / ".ci" / "packages.py"))
    names = check["tracked"]("factorflow", "flows")
    assert "factorflow/report/report.html.j2" in names
    extras = "".join(f"Provides-Extra: {name}\n" for name in PROJECT["optional-dependencies"])
    metadata = f"Requires-Python: {PROJECT['requires-python']}\n{extras}"

    def wheel(names: set[str]) -> Any:
        with zipfile.ZipFile(tmp_path / "a.whl", "w") as packed:
            for name in names:
                packed.writestr(name, "")
            packed.writestr("a.dist-info/METADATA", metadata)
            packed.writestr("a.dist-info/licenses/LICENSE", "")
            packed.writestr("a.dist-info/entry_points.txt", "factorflow = factorflow.__main__:main")
        return check["check_wheel"](tmp_path / "a.whl")

    assert wheel(names) == []
    assert wheel(names - {"factorflow/report/report.html.j2"}) == [
        "factorflow/report/report.html.j2 is missing"
    ]
    assert wheel(names | {"tests/x.py"}) == ["tests/x.py does not belong to it"]
