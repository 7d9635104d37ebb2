"""ingest, simulate, inspect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from factorflow.cli.options import SIMULATORS, Overwrite, assignments, path, simulators, value_of
from factorflow.cli.output import DisplayedResult, command
from factorflow.errors import InputError
from factorflow.settings import DerivedOptions, SourceOptions


def register(app: typer.Typer) -> None:
    """Add the commands that make and show datasets."""
    for function in (ingest, add_view, simulate, inspect):
        command(app)(function)


def ingest(
    out: Annotated[Path, typer.Option(help="Dataset to write.", parser=path)],
    options: SourceOptions,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE...",
            help="A file or folder with all views, or NAME=FILE for each; files of one view are joined.",
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="A long table instead, or a folder of them: CSV, TSV, Parquet, Arrow.")
    ] = None,
    overwrite: Overwrite = False,
) -> DisplayedResult:
    """Write a dataset from .npz, .csv, .tsv, .parquet, .npy, .h5ad, .h5mu or .zarr, or a folder of them.

    With --table and --formula: from a long table of one response and categorical variables.
    """
    from factorflow.data import write_dataset, write_table

    if table is not None or options.formula is not None:
        _check_table(sources, table, options.formula)
        dataset = write_table(out, table, overwrite=overwrite, **options.arguments())
    elif sources:
        dataset = write_dataset(out, _views(sources), overwrite=overwrite, **options.arguments())
    else:
        raise InputError("SOURCE", "nothing", "files or a folder", "Or give --table and --formula.")
    return DisplayedResult(dataset.describe(), repr(dataset))


def add_view(
    dataset: Annotated[Path, typer.Argument(help="A dataset on a disk.", parser=path)],
    name: Annotated[str, typer.Argument(help="Name of the new view.")],
    of: Annotated[str, typer.Option(help="The view of counts that it is computed from.")],
    options: DerivedOptions,
) -> DisplayedResult:
    """Add a view that is computed from the counts of another whenever a block is read."""
    from factorflow.data import add_view as add

    grown = add(dataset, name, of, **options.model_dump())
    return DisplayedResult(grown.describe(), repr(grown))


def _views(sources: Sequence[str]) -> str | dict[str, str | list[str | Path]]:
    """Return one source of all views, or the file of each, or its files: paths, not labels."""
    if len(sources) == 1 and "=" not in sources[0]:
        return sources[0]
    alone = next((source for source in sources if "=" not in source), None)
    if alone is not None:
        raise InputError(
            "SOURCE", alone, "NAME=FILE where there are several", f"Name its view, for example rna={alone}."
        )
    files: dict[str, list[str]] = {}
    for source in sources:
        for name, file in assignments("SOURCE", [source]).items():
            files.setdefault(name, []).append(file)
    return {
        name: several[0] if len(several) == 1 else [f if "://" in f else Path(f) for f in several]
        for name, several in files.items()
    }


def _check_table(sources: list[str] | None, table: str | None, formula: str | None) -> None:
    """Check that ``--table`` comes with ``--formula``, and without other sources."""
    for name, value in (("table", table), ("formula", formula)):
        if value is None:
            raise InputError(name, "nothing", "--table and --formula, both", "Give the other one as well.")
    if sources:
        raise InputError("table", str(table), "a table alone", "SOURCE is for matrices.")


def simulate(
    kind: Annotated[str, typer.Argument(help=f"What to simulate: {SIMULATORS}.", autocompletion=simulators)],
    out: Annotated[
        Path | None,
        typer.Option(help="Dataset to write; the truth is kept in it.", show_default="needed", parser=path),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE, such as n_samples=10000; as often as needed."),
    ] = None,
    list_settings: Annotated[
        bool, typer.Option("--settings", help="List what can be set of KIND, and simulate nothing.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Key of the random numbers.")] = 0,
    overwrite: Annotated[bool, typer.Option(help="Replace the dataset at OUT.")] = False,
) -> DisplayedResult:
    """Simulate a dataset of any size, block by block."""
    from factorflow.data import simulate as make

    kind, suited = _simulator_of(kind)
    if list_settings:
        return _settings_of(kind, suited)
    if out is None:
        raise InputError("out", "nothing", "a path", "Give --out, or --settings to list what can be set.")
    options = suited | {name: value_of(text) for name, text in assignments("set", settings or []).items()}
    dataset = make(kind, out, seed=seed, overwrite=overwrite, **options)
    return DisplayedResult(dataset.describe(), repr(dataset))


def _simulator_of(kind: str) -> tuple[str, dict[str, Any]]:
    """Return a simulator and settings that suit: of a family from elsewhere those of its first example."""
    from factorflow.data.simulation.simulate import FAMILIES, SIMULATORS
    from factorflow.models.registry import registered_models

    if kind in SIMULATORS or kind in FAMILIES or kind not in registered_models():
        return kind, {}
    example = next(iter(registered_models()[kind].examples().values()))
    return example.simulator, dict(example.data)


def _settings_of(kind: str, more: dict[str, Any]) -> DisplayedResult:
    """Return the settings of a simulator, from its docstring."""
    import re
    from inspect import getdoc, signature

    from factorflow.data.simulation.simulate import find_simulator

    simulator, suited = find_simulator(kind)
    suited = suited | more
    about, _, parameter_section = (getdoc(simulator) or "").partition("Parameters\n----------\n")
    noise = list(signature(simulator).parameters)[1]  # handed over by `simulate`, not set
    settings = re.sub(rf"(?m)^{noise} : .*\n(    .*\n)*", "", parameter_section.partition("\n\n")[0])
    lines = [about.rstrip(), "", settings]
    if suited:
        lines += ["", "Set already: " + ", ".join(f"{name}={value}" for name, value in suited.items())]
    return DisplayedResult({"kind": kind, "settings": settings, "suited": suited}, "\n".join(lines))


def inspect(
    store: Annotated[Path, typer.Argument(help="A dataset or a posterior.", parser=path)],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read everything and check every checksum.")
    ] = False,
) -> DisplayedResult:
    """Show the contents of a dataset or posterior."""
    from factorflow.api import open_posterior
    from factorflow.data import open_dataset
    from factorflow.posterior.schema import is_posterior

    if is_posterior(store):
        posterior = open_posterior(store)
        facts, text, check = posterior.summary(), repr(posterior), posterior.verify
    else:
        dataset = open_dataset(store)
        facts, text, check = dataset.describe(), repr(dataset), dataset.verify
    if not verify:
        return DisplayedResult(facts, text)
    check()
    return DisplayedResult(facts | {"verified": True}, f"{text}\nEvery checksum is right.")
