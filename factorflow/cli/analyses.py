"""The commands associate, enrich, match, consensus, anomalies, diagnostics and interpolate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from factorflow.cli.options import Overwrite, path
from factorflow.cli.output import DisplayedResult, command, render
from factorflow.cli.results import Moved, Posterior, check_free, open_posterior, open_with_dataset
from factorflow.errors import InputError, pluralize
from factorflow.storage.location import Location, output_location
from factorflow.storage.publish import new_file

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 40
"""Rows of a table that are printed; a file and ``--json`` have all of them."""

Out = Annotated[
    Path | None,
    typer.Option(help="File to write as well, with all rows: .csv, .tsv or .parquet.", parser=path),
]


def register(app: typer.Typer) -> None:
    """Add the commands that analyse a posterior."""
    for function in (associate, enrich, match, consensus, anomalies, diagnostics, interpolate):
        command(app)(function)


def associate(
    posterior: Posterior,
    columns: Annotated[
        list[str] | None, typer.Option("--column", help="Column to test, as often as needed; else all.")
    ] = None,
    metadata: Annotated[
        Path | None, typer.Option(help="Table of sample metadata; that of the dataset when left out.")
    ] = None,
    adjust: Annotated[
        list[str] | None, typer.Option(help="Column whose effects are taken out first, as often as needed.")
    ] = None,
    blocks: Annotated[
        str | None, typer.Option(help="Column of samples that are compared with each other alone.")
    ] = None,
    survival: Annotated[
        str | None, typer.Option(metavar="TIME,EVENT", help="Columns of a Cox regression on the scores.")
    ] = None,
    out: Out = None,
    overwrite: Overwrite = False,
) -> DisplayedResult:
    """Test every factor against columns of the sample metadata, by ranks; p-values are corrected."""
    times = None if survival is None else tuple(survival.split(","))
    from factorflow.data.ingest.metadata import read_metadata

    table = None if metadata is None else read_metadata(metadata, "metadata")
    results = open_posterior(posterior).associate(
        columns or None,
        table,
        adjust=adjust or None,
        blocks=blocks,
        survival=times,  # type: ignore[arg-type]  # their number is checked there
    )
    return _write_table(results, out, overwrite)


def enrich(
    posterior: Posterior,
    view: Annotated[str, typer.Argument(help="View whose features are in the sets.")],
    sets: Annotated[
        Path, typer.Argument(help="GMT file: name, description and members of a set, separated by tabs.")
    ],
    sign: Annotated[
        Literal["both", "positive", "negative"], typer.Option(help="Which loadings count.")
    ] = "both",
    test: Annotated[Literal["rank", "parametric"], typer.Option(help="Mann-Whitney, or Welch's t.")] = "rank",
    min_size: Annotated[int, typer.Option(min=1, help="Smaller sets are left out.")] = 5,
    correlation_adjusted: Annotated[
        bool, typer.Option("--correlation-adjusted", help="Take in that features of a set move together.")
    ] = False,
    out: Out = None,
    overwrite: Overwrite = False,
) -> DisplayedResult:
    """Test feature sets among the large loadings of each factor; p-values are corrected."""
    results = open_posterior(posterior).enrich(
        view, sets, sign=sign, test=test, min_size=min_size, correlation_adjusted=correlation_adjusted
    )
    return _write_table(results, out, overwrite)


def match(
    posteriors: Annotated[
        list[Path],
        typer.Argument(metavar="POSTERIOR POSTERIOR...", help="The first is the reference.", parser=path),
    ],
    by: Annotated[
        Literal["scores", "loadings"], typer.Option(help="What is correlated; loadings: of other samples.")
    ] = "scores",
    out: Out = None,
    overwrite: Overwrite = False,
) -> DisplayedResult:
    """Match the factors of several runs with those of the first, one to one, and compute their stability."""
    from factorflow.analysis import match_factors

    matches = match_factors([open_posterior(path) for path in posteriors], by)
    written_table = _write_table(matches.table, out, overwrite)
    stability = {str(name): float(value) for name, value in matches.stability.items()}
    text = f"{written_table.text}\n\nstability of the factors of {posteriors[0]}\n{render(stability, '  ')}"
    return DisplayedResult({**written_table.data, "stability": stability}, text)


def consensus(
    posterior: Posterior,
    threshold: Annotated[
        float, typer.Option(help="Distance to the nearest programs of other starts: others are left out.")
    ] = 0.5,
    out: Out = None,
    overwrite: Overwrite = False,
) -> DisplayedResult:
    """Show the programs that the starts of a fit agree on, and how stable each is."""
    import pandas as pd

    result = open_posterior(posterior).consensus(threshold)
    names = result["consensus_factor"].values
    table = pd.DataFrame({"stability": result["stability"].values}, pd.Index(names, name="program"))
    table["n"] = [int((result["label"] == k + 1).sum()) for k in range(len(names))]
    for name in [str(n) for n in result.data_vars if str(n).startswith("loadings_")]:
        view = name.removeprefix("loadings_")
        order = abs(result[name].values).argsort(axis=1)[:, ::-1][:, :5]
        labels = result[f"feature_{view}"].values
        table[view] = [", ".join(labels[row].astype(str)) for row in order]
    written_table = _write_table(table.reset_index(), out, overwrite)
    share = result.attrs["share_kept"]
    text = f"{written_table.text}\n\nshare of the programs of all starts that is kept: {share:.2f}"
    return DisplayedResult({**written_table.data, "share_kept": share}, text)


def anomalies(
    posterior: Posterior,
    view: Annotated[str | None, typer.Option(help="View; the first that is explained when left out.")] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Entries at most.")] = 20,
    dataset: Moved = None,
    out: Out = None,
    overwrite: Overwrite = False,
) -> DisplayedResult:
    """List the observed entries that the model finds least likely."""
    from factorflow.analysis import find_anomalies

    return _write_table(find_anomalies(open_with_dataset(posterior, dataset), view, n), out, overwrite)


def diagnostics(posterior: Posterior, out: Out = None, overwrite: Overwrite = False) -> DisplayedResult:
    """Show R-hat and effective sample sizes of a sampler's variables, the worst first."""
    table = open_posterior(posterior).diagnostics().sort_values("r_hat", ascending=False, kind="stable")
    return _write_table(table.reset_index(), out, overwrite)


def interpolate(
    posterior: Posterior,
    at: Annotated[
        Path,
        typer.Option(help="Table of places: the columns that scores are functions of; group.", parser=path),
    ],
    out: Annotated[Path, typer.Option(help="File to write: .csv, .tsv or .parquet.", parser=path)],
    view: Annotated[
        str | None, typer.Option(help="View whose data are predicted; else courses and scores of factors.")
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", help="Group at all places, as often as needed; else column group, or all."),
    ] = None,
    interval: Annotated[float, typer.Option(help="Share that intervals are to hold.")] = 0.9,
    overwrite: Overwrite = False,
) -> dict[str, Any]:
    """Write smooth factors, or the data of a view, at any times or places, with intervals."""
    from factorflow.data.ingest.dialect import TableFormat
    from factorflow.data.ingest.metadata import read_metadata

    opened, target = open_posterior(posterior), output_location(out)
    _check_out(target, overwrite)
    places = read_metadata(at, "at", TableFormat(index_col=False))
    curves = opened.interpolate(places, groups or None, view, interval)
    table = curves.to_dataframe()
    keys = [name for name in curves.coords if name not in table.index.names]
    table = table.reset_index(level=1)
    values = [name for name in table.columns if name not in keys]
    _save(table[[*keys, *values]], target)
    return {"written": str(out), "n_points": curves.sizes["point"], "n_rows": len(table)}


def _write_table(table: pd.DataFrame, out: Path | None, overwrite: bool) -> DisplayedResult:
    """Write a table to ``out`` if given; return it for display."""
    if out is not None:
        target = output_location(out)
        _check_out(target, overwrite)
        _save(table, target)
    rows: list[dict[str, Any]] = table.to_dict("records")  # type: ignore[assignment]
    lines = [render({"": rows[:SHOWN]}).removeprefix("\n")] if rows else ["nothing"]
    if len(rows) > SHOWN:
        lines.append(f"... and {pluralize(len(rows) - SHOWN, 'row')} more: --out FILE, or --json")
    if out is not None:
        lines.append(f"written  {out}")
    return DisplayedResult({"rows": rows} | ({} if out is None else {"written": str(out)}), "\n".join(lines))


def _check_out(out: Location, overwrite: bool) -> None:
    """Refuse a file that is none of a table, or is there."""
    if out.suffix not in {".csv", ".tsv", ".parquet"}:
        raise InputError("out", str(out), "a name that ends in .csv, .tsv or .parquet", "Rename it.")
    check_free(out, overwrite)


def _save(table: pd.DataFrame, out: Location) -> None:
    with new_file(out, "out") as file:
        if out.suffix == ".parquet":
            table.to_parquet(file, index=False)
        else:
            table.to_csv(file, sep="," if out.suffix == ".csv" else "\t", index=False)
