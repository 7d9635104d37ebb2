"""ingest, simulate, inspect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from factorflow.cli.options import (
    SIMULATORS,
    Likelihoods,
    assignments,
    one_likelihood,
    path,
    simulators,
    value_of,
)
from factorflow.cli.output import Shown, command
from factorflow.errors import InputError, UnusedWarning, removed_option

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands that make and show datasets."""
    for function in (ingest, simulate, inspect):
        command(app)(function)


def ingest(
    out: Annotated[Path, typer.Option(help="Dataset to write.", parser=path)],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE...",
            help="A file or folder with all views, or NAME=FILE for each; files of one view are joined.",
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(help="A long table instead, or a folder of them: CSV, TSV, Parquet, Arrow."),
    ] = None,
    formula: Annotated[
        str | None, typer.Option(help="Of the table: 'count ~ site + year + offset(log(effort))'.")
    ] = None,
    likelihood: Likelihoods = None,
    obs: Annotated[str | None, typer.Option(help="Table of sample metadata (CSV, TSV, Parquet).")] = None,
    groups: Annotated[str | None, typer.Option(help="Metadata column of the sample groups.")] = None,
    sequences: Annotated[str | None, typer.Option(help="Metadata column of the sequences.")] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[VIEW=]NAME", help="Of AnnData and MuData: a layer instead of X; 'raw' is .raw."
        ),
    ] = None,
    index_col: Annotated[
        str | None,
        typer.Option(help="Column of tables with the sample names, by name or position; false: none."),
    ] = None,
    transpose: Annotated[
        bool, typer.Option("--transpose", help="Features are in rows, of all views.")
    ] = False,
    transpose_view: Annotated[
        list[str] | None, typer.Option(help="A view whose features are in rows; as often as needed.")
    ] = None,
    sep: Annotated[str | None, typer.Option(help="Separator of text tables; found if left out.")] = None,
    decimal: Annotated[str | None, typer.Option(help="Decimal mark of text tables: . or ,")] = None,
    na_values: Annotated[
        list[str] | None,
        typer.Option(help="A number or text that stands for a missing entry; as often as needed."),
    ] = None,
    encoding: Annotated[str | None, typer.Option(help="Encoding of text tables, such as cp1252.")] = None,
    sample_column: Annotated[str | None, typer.Option(hidden=True)] = None,
    obsm: Annotated[
        list[str] | None, typer.Option(help="Of AnnData: a matrix of obsm as one more view, by its key.")
    ] = None,
    highly_variable: Annotated[
        list[str] | None,
        typer.Option(metavar="[VIEW]", help="Of AnnData and MuData: only highly variable features."),
    ] = None,
    join: Annotated[
        str, typer.Option(help="Of a view of several files: features of any (outer) or of all (inner).")
    ] = "outer",
    block_rows: Annotated[int | None, typer.Option(help="Rows of a block, a power of two.")] = None,
    drop_empty_features: Annotated[bool, typer.Option(help="Leave out features without any value.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace the dataset at OUT.")] = False,
    missing_response: Annotated[
        str, typer.Option(help="Rows of a table without a response or another number: drop or refuse.")
    ] = "drop",
    missing_levels: Annotated[
        str, typer.Option(help="Rows of a table without a label: level (one of their own), drop or refuse.")
    ] = "level",
    merge: Annotated[bool, typer.Option(help="Make one of the rows that agree in all variables.")] = True,
    grid: Annotated[bool, typer.Option("--grid", help="Combinations not in the table count 0.")] = False,
    like: Annotated[Path | None, typer.Option(help="Dataset whose levels the table is to have.")] = None,
    holdout: Annotated[float, typer.Option(help="Share of the rows of a table that is held out.")] = 0.0,
    part: Annotated[
        str, typer.Option(help="Which rows: both (fits hide that share), kept, held-out.")
    ] = "both",
    seed: Annotated[int, typer.Option(min=0, help="Which rows are held out.")] = 0,
) -> Shown:
    """Write a dataset from .npz, .csv, .tsv, .parquet, .npy, .h5ad, .h5mu or .zarr, or a folder of them.

    With --table and --formula: from a long table of one response and categorical variables.
    """
    from factorflow.data import write_dataset, write_table

    of_tables = {
        "missing_response": missing_response != "drop",
        "missing_levels": missing_levels != "level",
        "merge": not merge,
        "grid": grid,
        "like": like,
        "holdout": holdout,
        "part": part != "both",
        "seed": seed,
    }
    if sample_column is not None:
        raise removed_option("sample_column", sample_column, "index_col")
    of_matrices = {
        "transpose": transpose or transpose_view,
        "layer": layer,
        "obsm": obsm,
        "highly_variable": highly_variable,
        "drop_empty_features": drop_empty_features,
        "join": join != "outer",
    }
    of_text: dict[str, Any] = {
        "sep": None if sep is None else sep.replace("\\t", "\t"),
        "decimal": decimal,
        "na_values": na_values or None,
        "encoding": encoding,
    }
    if table is not None or formula is not None:
        _check_table(sources, table, formula, (obs, groups, sequences, index_col))
        _unused(of_matrices, "is for matrices, not for --table")
        dataset = write_table(
            out,
            table,
            str(formula),
            one_likelihood(likelihood),
            missing_response=missing_response,
            missing_levels=missing_levels,
            merge=merge,
            grid=grid,
            like=like,
            holdout=holdout,
            part=part.replace("-", " "),  # type: ignore[arg-type]  # refused there
            seed=seed,
            block_rows=block_rows,
            overwrite=overwrite,
            **of_text,
        )
        return Shown(dataset.describe(), repr(dataset))
    if not sources:
        raise InputError("SOURCE", "nothing", "files or a folder", "Or give --table and --formula.")
    _unused(of_tables, "is for --table")
    views: Any = _views(sources)
    dataset = write_dataset(
        out,
        views,
        likelihoods=assignments("likelihood", likelihood or []),
        obs=obs,
        groups=groups,
        sequences=sequences,
        layer=_layers(layer or []),
        index_col=index_col,
        transpose=transpose or transpose_view or False,
        obsm=obsm or (),
        highly_variable="" in highly_variable or tuple(highly_variable) if highly_variable else False,
        join=join,
        block_rows=block_rows,
        drop_empty_features=drop_empty_features,
        overwrite=overwrite,
        **of_text,
    )
    return Shown(dataset.describe(), repr(dataset))


def _layers(texts: Sequence[str]) -> str | dict[str, str] | None:
    """Return the layer of all views, or by view."""
    if len(texts) == 1 and "=" not in texts[0]:
        return texts[0]
    return assignments("layer", texts) or None


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


def _unused(given: Mapping[str, Any], why: str) -> None:
    """Warn of options that do nothing for this kind of source."""
    from warnings import warn

    for name, value in given.items():
        if value:
            warn(f"--{name.replace('_', '-')} does nothing here: it {why}.", UnusedWarning, stacklevel=3)


def _check_table(
    sources: list[str] | None, table: str | None, formula: str | None, others: tuple[str | None, ...]
) -> None:
    """Refuse half of what a table takes, and what only other sources take."""
    for name, value in (("table", table), ("formula", formula)):
        if value is None:
            raise InputError(name, "nothing", "--table and --formula, both", "Give the other one as well.")
    if sources or any(other is not None for other in others):
        raise InputError(
            "table",
            str(table),
            "a table alone",
            "SOURCE, --obs, --groups, --sequences and --index-col are for matrices.",
        )


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
) -> Shown:
    """Simulate a dataset of any size, block by block."""
    from factorflow.data import simulate as make

    kind, suited = _simulator_of(kind)
    if list_settings:
        return _settings_of(kind, suited)
    if out is None:
        raise InputError("out", "nothing", "a path", "Give --out, or --settings to list what can be set.")
    options = suited | {name: value_of(text) for name, text in assignments("set", settings or []).items()}
    made = make(kind, out, seed=seed, overwrite=overwrite, **options)
    return Shown(made.describe(), repr(made))


def _simulator_of(kind: str) -> tuple[str, dict[str, Any]]:
    """Return a simulator and settings that suit: of a family from elsewhere those of its first example."""
    from factorflow.data.simulation.simulate import FAMILIES, SIMULATORS
    from factorflow.models.registry import registered

    if kind in SIMULATORS or kind in FAMILIES or kind not in registered():
        return kind, {}
    example = next(iter(registered()[kind].examples().values()))
    return example.simulator, dict(example.data)


def _settings_of(kind: str, more: dict[str, Any]) -> Shown:
    """Return what can be set of a simulator, as its docstring says it."""
    import re
    from inspect import getdoc, signature

    from factorflow.data.simulation.simulate import find_simulator

    simulator, suited = find_simulator(kind)
    suited = suited | more
    about, _, rest = (getdoc(simulator) or "").partition("Parameters\n----------\n")
    noise = list(signature(simulator).parameters)[1]  # handed over by `simulate`, not set
    settings = re.sub(rf"(?m)^{noise} : .*\n(    .*\n)*", "", rest.partition("\n\n")[0])
    lines = [about.rstrip(), "", settings]
    if suited:
        lines += ["", "Set already: " + ", ".join(f"{name}={value}" for name, value in suited.items())]
    return Shown({"kind": kind, "settings": settings, "suited": suited}, "\n".join(lines))


def inspect(
    store: Annotated[Path, typer.Argument(help="A dataset or a posterior.", parser=path)],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read everything and check every checksum.")
    ] = False,
) -> Shown:
    """Show what a dataset or a posterior holds."""
    from factorflow import open_dataset, open_posterior
    from factorflow.posterior.schema import is_posterior

    if is_posterior(store):
        posterior = open_posterior(store)
        facts, text, check = posterior.summary(), repr(posterior), posterior.verify
    else:
        dataset = open_dataset(store)
        facts, text, check = dataset.describe(), repr(dataset), dataset.verify
    if not verify:
        return Shown(facts, text)
    check()
    return Shown(facts | {"verified": True}, f"{text}\nEvery checksum is right.")
