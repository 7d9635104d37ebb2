"""The sections of the report about factors and the scores of samples."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.analysis.association import run_tests
from factorflow.errors import InputError
from factorflow.posterior.active_views import LEAST_INCLUSION, active_views, n_active_features
from factorflow.posterior.labels import sample_metadata
from factorflow.report import drawing, factor_plots, sample_plots
from factorflow.report.svg import draw_figure, render

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from factorflow.api import Posterior

N_FEATURES = 12
"""Features of a view that are listed for a factor."""

N_NAMED = 4
"""Features of a view that the table of all factors names."""

N_LISTED = 50
"""Features of a factor and view in the table that is searched."""

MAX_LISTED = 4000
"""Rows of that table."""

N_OPEN = 2
"""Factors whose figures are unfolded."""

N_DRAWN = 20
"""Factors whose loadings are drawn; of all of them there are tables."""

N_COLUMNS = 3
"""Columns of sample metadata that scores are coloured by."""

N_ASSOCIATIONS = 12
"""Associations with sample metadata that are listed."""

MAX_TESTED = 200_000
"""With more samples no associations are tested."""


def rank_by_strength(posterior: Posterior) -> list[str]:
    """Return the factors, those first that explain most (the mean over views); else in their order."""
    factors = posterior.factors
    if not posterior.has("variance_explained"):
        return factors
    share = posterior.variable("variance_explained")
    of_factor = np.nan_to_num(share.mean([dim for dim in share.dims if dim != "factor"]).values)
    return [factors[k] for k in np.argsort(-of_factor, kind="stable")]


def describe_factors(posterior: Posterior) -> list[dict[str, Any]]:
    """Return the description of every factor: active views, top features, a figure."""
    descriptions = []
    for number, factor in enumerate(posterior.factors):
        views = active_views(posterior, factor)
        tables = [_table(posterior, view, factor) for view in views]
        descriptions.append(
            {
                "factor": factor,
                "open": number < N_OPEN,
                "tables": tables,
                "named": {table["view"]: table["named"] for table in tables},
                "untouched": [view for view in posterior.loaded_views if view not in views],
                "figure": _figure(posterior, factor, views) if views and number < N_DRAWN else "",
            }
        )
    return descriptions


def set_rows(posterior: Posterior) -> list[list[str]]:
    """Return the table of feature sets, its head first; empty where there are none."""
    if posterior.meta.feature_sets is None:
        return []
    refined, rows = posterior.refined_sets(), []
    for row in posterior.feature_sets().to_dict("records"):
        mine = refined[(refined["factor"] == row["factor"]) & (refined["view"] == row["view"])]
        changes = [
            ", ".join(mine[mine["change"] == change]["feature"][:N_FEATURES])
            for change in ("added", "removed")
        ]
        holds = "holds" if row["holds"] else ""
        cells = row["factor"], row["set"], row["view"], f"{row['evidence']:.1f}", holds, str(row["n_members"])
        rows.append([*cells, *changes])
    return (
        [["factor", "set", "view", "evidence", "name", "members", "lacks", "too many"], *rows] if rows else []
    )


def n_features(posterior: Posterior, view: str, factor: str) -> int:
    """Return how many features of a view are worth showing of a factor: those it reaches, if known."""
    count = n_active_features(posterior, factor, view)
    return len(posterior.features(view)) if count is None else count


def _table(posterior: Posterior, view: str, factor: str) -> dict[str, Any]:
    """Return the features of a view with the largest loadings, those left out that are likely 0."""
    n_reached = n_active_features(posterior, factor, view)
    table = posterior.top_features(view, factor, len(posterior.features(view)))
    if n_reached is not None:
        table = table[table["inclusion"] >= LEAST_INCLUSION]
    table = table[:N_FEATURES]
    columns = [name for name in ("loading", "sd", "inclusion") if name in table]
    forms = {"loading": "{:+.3g}", "sd": "{:.2g}", "inclusion": "{:.2f}"}
    rows = [
        [str(name), *(forms[column].format(row[column]) for column in columns)]
        for name, row in table.iterrows()
    ]
    return {
        "view": view,
        "columns": columns,
        "rows": rows,
        "named": ", ".join(f"{row[0]} ({row[1]})" for row in rows[:N_NAMED]),
        "facts": _facts(posterior, view, factor, n_reached),
    }


def list_loadings(posterior: Posterior, factors: list[str]) -> dict[str, Any]:
    """Return the features with the largest loadings as one table, the strongest factors first."""
    columns, rows = ["factor", "view", "feature", "loading"], list[list[str]]()
    extra: list[str] = []
    for factor in factors:
        for view in active_views(posterior, factor):
            n = min(N_LISTED, n_features(posterior, view, factor))
            table = posterior.top_features(view, factor, n)
            extra = [name for name in ("sd", "inclusion") if name in table]
            forms = {"sd": "{:.2g}", "inclusion": "{:.2f}"}
            for name, row in table.iterrows():
                extra_texts = [forms[column].format(row[column]) for column in extra]
                rows.append([factor, view, str(name), f"{row['loading']:+.3g}", *extra_texts])
    return {"columns": [*columns, *extra], "rows": rows[:MAX_LISTED]}


def _facts(posterior: Posterior, view: str, factor: str, n_reached: int | None) -> str:
    """Return how much of a view a factor explains, and how many features it reaches."""
    sentences = []
    if posterior.has("variance_explained"):
        share = posterior.variable("variance_explained")
        if view in share["view"].values:
            percent = 100 * np.atleast_1d(share.sel(view=view, factor=factor).values)
            percentages = " / ".join("-" if np.isnan(p) else f"{p:.1f}" for p in percent)
            if not np.isnan(percent).all():
                sentences.append(f"{percentages} % of the variance{' by group' * ('group' in share.dims)}")
    if n_reached is not None:
        sentences.append(f"{n_reached:,} of {len(posterior.features(view)):,} features")
    return ", ".join(sentences)


def _figure(posterior: Posterior, factor: str, views: list[str]) -> str:
    """Return the loadings of a factor, the views that it touches side by side; of each what it reaches."""
    n_shown = {view: min(N_FEATURES, n_features(posterior, view, factor)) for view in views}
    n = max(n_shown.values())
    rows = -(-len(views) // min(3, len(views)))

    def draw(figure: Figure) -> None:
        for ax, view in zip(drawing.panels(figure.subplots(), len(views)), views, strict=True):
            factor_plots.plot_loadings(posterior, view, factor, n_shown[view], ax)

    return render(draw, rows * (0.9 + 0.2 * n))


def associations(posterior: Posterior) -> pd.DataFrame | None:
    """Return significant associations of factors with sample metadata; None if nothing can be tested."""
    if posterior.meta.n_rows > MAX_TESTED or not posterior.sample_metadata().columns.size:
        return None
    try:
        table = run_tests(posterior, None, None)
    except InputError:
        return None
    return table[table["q_value"] < 0.05]


def association_rows(table: pd.DataFrame | None) -> list[list[str]]:
    """Return the strongest associations as rows of a table."""
    if table is None:
        return []
    form = {"effect": "{:.2f}", "p_value": "{:.1e}", "q_value": "{:.1e}", "n": "{:,}"}
    names = ("factor", "column", "test", "n", "effect", "p_value", "q_value")
    listed = table[:N_ASSOCIATIONS].to_dict("records")
    return [[form.get(n, "{}").format(row[n]) for n in names] for row in listed]


def scatters(posterior: Posterior, table: pd.DataFrame | None, of: str = "scores") -> list[str]:
    """Return scatter plots of the pairs of factors that matter, coloured by what they go with.

    For each of the few columns of the sample metadata with the strongest associations, the two factors that
    go with it most. Without any, or of inputs, the two strongest factors, coloured by columns that can be.
    """
    n = posterior.array(of).shape[-1]
    if n < 2:
        return []
    names: list[str | int] = list(range(1, n + 1)) if of != "scores" else [*rank_by_strength(posterior)]
    if of == "scores" and table is not None and len(table):
        pairs = _associated_factors(table, names)
    else:
        colors: list[str | None] = [*_usable(posterior)[:N_COLUMNS]] or [None]
        pairs = [(names[0], names[1], color) for color in colors]
    draw = partial(sample_plots.plot_scores, posterior, of=of)
    return [draw_figure(partial(draw, (x, y), color), 3.6, width=6.2) for x, y, color in pairs]


def _associated_factors(
    table: pd.DataFrame, names: list[str | int]
) -> list[tuple[str | int, str | int, str | None]]:
    """Return, for the columns that associate most, the two factors that go with each, and the column."""
    pairs: list[tuple[str | int, str | int, str | None]] = []
    for column in list(dict.fromkeys(table["column"]))[:N_COLUMNS]:
        mine = list(dict.fromkeys([*table[table["column"] == column]["factor"], *names]))
        pairs.append((mine[0], mine[1], str(column)))
    return pairs


def _usable(posterior: Posterior) -> list[str]:
    """Return the columns of the sample metadata that points can be coloured by."""
    table = sample_metadata(posterior, drawing.some_scores(posterior)[1], typed=False)
    return [
        str(name)
        for name, column in table.items()
        if 1 < column.nunique() < 0.9 * len(table) or column.dtype.kind == "f"
    ]
