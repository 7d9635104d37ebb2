"""ingest, simulate, inspect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from factorflow.cli.options import Likelihoods, assignments, value_of
from factorflow.cli.output import Shown, command

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands that make and show datasets."""
    for function in (ingest, simulate, inspect):
        command(app)(function)


def ingest(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE...", help="A file or folder with all views, or NAME=FILE for each."),
    ],
    out: Annotated[Path, typer.Option(help="Dataset to write.")],
    likelihood: Likelihoods = None,
    obs: Annotated[str | None, typer.Option(help="Table of sample metadata (CSV, TSV, Parquet).")] = None,
    groups: Annotated[str | None, typer.Option(help="Metadata column of the sample groups.")] = None,
    sequences: Annotated[str | None, typer.Option(help="Metadata column of the sequences.")] = None,
    sample_column: Annotated[str | None, typer.Option(help="Column with the sample names.")] = None,
    block_rows: Annotated[int | None, typer.Option(help="Rows of a block, a power of two.")] = None,
    drop_empty_features: Annotated[bool, typer.Option(help="Leave out features without any value.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace the dataset at OUT.")] = False,
) -> Shown:
    """Write a dataset from .npz, .csv, .tsv, .parquet, .npy, .h5ad, .h5mu or .zarr, or a folder of them."""
    from factorflow.data import write_dataset

    views: Any = sources[0] if len(sources) == 1 and "=" not in sources[0] else assignments("SOURCE", sources)
    dataset = write_dataset(
        out,
        views,
        likelihoods=assignments("likelihood", likelihood or []),
        obs=obs,
        groups=groups,
        sequences=sequences,
        sample_column=sample_column,
        block_rows=block_rows,
        drop_empty_features=drop_empty_features,
        overwrite=overwrite,
    )
    return Shown(dataset.describe(), repr(dataset))


def simulate(
    kind: Annotated[str, typer.Argument(help="What to simulate: the name of a model.")],
    out: Annotated[Path, typer.Option(help="Dataset to write; the truth is kept in it.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE, such as n_samples=10000; as often as needed."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Key of the random numbers.")] = 0,
    overwrite: Annotated[bool, typer.Option(help="Replace the dataset at OUT.")] = False,
) -> Shown:
    """Simulate a dataset of any size, block by block."""
    from factorflow.data import simulate as make

    options = {name: value_of(text) for name, text in assignments("set", settings or []).items()}
    made = make(kind, out, seed=seed, overwrite=overwrite, **options)
    return Shown(made.describe(), repr(made))


def inspect(
    store: Annotated[Path, typer.Argument(help="A dataset or a posterior.")],
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
