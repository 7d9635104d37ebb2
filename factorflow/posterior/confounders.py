"""Findings of factors that follow how samples were measured: their depth, or the batch they were in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from factorflow.errors import InputError, OptionText
from factorflow.posterior.data_findings import LEAST_MANY
from factorflow.posterior.finding import Finding
from factorflow.posterior.labels import as_slice, sample_metadata

if TYPE_CHECKING:
    from factorflow.posterior.stored_posterior import StoredPosterior

MOST_ROWS = 4096
"""Samples that are looked at: of more, evenly spaced ones."""

MOST_ENTRIES = 4_000_000
"""Counts that are summed for the depths of samples."""

LEAST_SHARE = 0.5
"""Share of the variance of a factor's scores that depth, or batch, must explain."""

MOST_CHANCE = 1e-4
"""Probability of such a share in scores that have nothing to do with it."""

ONE_SIGN = 0.8
"""Share of a view's squared loadings that a factor of depth has of one sign: more of everything."""

MOST_BATCHES = 0.5
"""With more levels than this share of the samples a column names samples, not batches."""

DEPTH = re.compile(
    r"(^|_)(n_?(counts|umis?|reads|genes)|(total|sum)_?(counts|umis?|reads|genes)|counts_total|ncount(_\w+)?"
    r"|nfeature(_\w+)?|n_genes_by_counts|lib(rary)?_?size|(sequencing|read|seq)_?depth|size_?factors?)$|^depth$",
    re.IGNORECASE,
)
"""Names of columns of depths, as scanpy, Seurat and others call them."""

BATCH = re.compile(
    r"(^|_)(batch(es)?|plate|lane|run|slide|chip|array|flow_?cell|library|sequencer|instrument|machine|scanner"
    r"|operator|technician|kit|lot|cent(er|re)|lab(oratory)?)(_?(id|no|nr|name|number|date|\d+))?$",
    re.IGNORECASE,
)
"""Names of columns that say how, not what, was measured."""


def depth(posterior: StoredPosterior) -> Iterator[Finding]:
    """Find factors that follow the total counts of the samples, or a metadata column of depths.

    Not those of views with size factors, and columns where there are any such views: scores that counts say
    little of are drawn to the prior, by the less the deeper.
    """
    rows = _rows(posterior)
    if not rows.size:
        return
    sized = _sized_views(posterior, rows)
    scores = _scores(posterior, rows)
    candidates: list[tuple[str, Any, str]] = [
        (f"the total count of {view.name}", _totals(posterior, view.name, rows), view.name)
        for view in posterior.meta.value_views
        if view.likelihood == "poisson"
        and posterior.model.likelihood(view.name).log_link  # not of trials, levels
        if view.n_features >= LEAST_MANY and view.name not in sized
    ]
    for name, column in ({} if sized else _columns(posterior, rows, DEPTH)).items():
        if getattr(column.dtype, "kind", "O") in "iuf":
            candidates.append((f"the column {name}", column.to_numpy(np.float64, na_value=np.nan), ""))
    for k, label in enumerate(posterior.factors):
        for what, values, view in candidates:
            share = _share(scores[:, k], np.log(np.where(values > 0, values, np.nan))[:, None])
            if share > LEAST_SHARE and (not view or _is_one_sign(posterior, view, k)):
                yield Finding(
                    "depth",
                    f"{label} follows the depth of the samples: {what} explains {100 * share:.0f} % of the "
                    "variance of its scores.",
                    OptionText(
                        "If it is that of the measurement, fit again with size factors, if the family has "
                        "any ({model.size_factors}), or do not interpret the factor.",
                        **{"model.size_factors": "total"},
                    ),
                )
                break


def batch(posterior: StoredPosterior) -> Iterator[Finding]:
    """Find factors that follow a metadata column named like a batch."""
    rows = _rows(posterior)
    if not rows.size:
        return
    scores, columns = _scores(posterior, rows), _columns(posterior, rows, BATCH)
    covariates = posterior.meta.covariates
    names = [column.name for column in covariates.columns] if covariates else []
    for k, label in enumerate(posterior.factors):
        for name, column in columns.items():
            present = column.notna().to_numpy()
            levels, codes = np.unique(column[present].astype(str), return_inverse=True)
            if not 1 < len(levels) <= MOST_BATCHES * rows.size:
                continue
            design = np.full((rows.size, len(levels) - 1), np.nan)
            design[present] = codes[:, None] == np.arange(1, len(levels))
            share = _share(scores[:, k], design)
            if share > LEAST_SHARE:
                yield Finding(
                    "batch",
                    f"{label} follows the column {name}: its {len(levels)} values explain "
                    f"{100 * share:.0f} % of the variance of the scores.",
                    "It is a covariate of the model: interpret the adjusted scores, scores(adjusted=True)."
                    if name in names
                    else "If these are batches of comparable samples, fit again with the column among the "
                    "covariates, if the family takes them, or do not interpret the factor.",
                )
                break


def _rows(posterior: StoredPosterior) -> NDArray[np.intp]:
    """Return the samples to examine; none where there are no scores of single samples, or too few."""
    n_rows = posterior.meta.n_rows
    if not posterior.has("scores") or n_rows < LEAST_MANY or not posterior.factors:
        return np.arange(0)
    if posterior.array("scores").dims[-2:] != ("obs", "factor"):
        return np.arange(0)
    return np.arange(0, n_rows, -(-n_rows // MOST_ROWS))


def _scores(posterior: StoredPosterior, rows: NDArray[np.intp]) -> Float64[np.ndarray, "R K"]:
    array = posterior.array("scores") if posterior.kind == "variational" else posterior.scores()
    return np.asarray(array.isel(obs=as_slice(rows)).values, float)


def _columns(posterior: StoredPosterior, rows: NDArray[np.intp], names: re.Pattern[str]) -> dict[str, Any]:
    """Return the columns of the sample metadata with such names."""
    if "constant_data" not in posterior.tree.children:
        return {}
    stored = posterior.tree["constant_data"].to_dataset().data_vars
    if not any(names.search(str(column.attrs.get("long_name", key))) for key, column in stored.items()):
        return {}
    table = sample_metadata(posterior, rows)
    return {str(name): column for name, column in table.items() if names.search(str(name))}


def _sized_views(posterior: StoredPosterior, rows: NDArray[np.intp]) -> set[str]:
    """Return the views with size factors; those of the others are 1."""
    if not posterior.has("size_factors"):
        return set()
    sizes = posterior.variable("size_factors").isel(obs=as_slice(rows))
    return {str(view) for view in sizes["view"].values[(sizes.values != 1.0).any(axis=0)]}


def _totals(posterior: StoredPosterior, view: str, rows: NDArray[np.intp]) -> Float64[np.ndarray, " R"]:
    """Return the total counts of samples, of the mean of what is observed; NaN where they are not known."""
    totals = np.full(rows.size, np.nan)
    try:
        dataset, n_features = posterior.dataset, posterior.dataset.views[view].n_features
        most = max(1, MOST_ENTRIES // n_features // dataset.block_rows)
        blocks = np.unique(rows // dataset.block_rows)
        for number in blocks[:: -(-blocks.size // most)]:
            block = dataset.block(int(number), [view])
            y, observed = dataset.views[view].kind.fill_missing(block.data[view])
            mine = np.flatnonzero(rows // dataset.block_rows == number)
            some = rows[mine] - int(number) * dataset.block_rows
            n = np.asarray(observed, bool)[some].sum(axis=1)
            total = np.where(np.asarray(observed, bool)[some], np.asarray(y, float)[some], 0.0).sum(axis=1)
            totals[mine] = np.where(n > 0, total / np.maximum(n, 1) * n_features, np.nan)
    except InputError:  # the dataset has moved
        pass
    return totals


def _is_one_sign(posterior: StoredPosterior, view: str, k: int) -> bool:
    """Return whether nearly all loadings of a factor in a view point one way."""
    loadings = posterior.loadings(view) if view in posterior.loaded_views else None
    if loadings is None or loadings.dims[-1] != "factor":
        return False
    weights = np.asarray(loadings.values[..., k], float).ravel()
    if posterior.has(f"scale_{view}"):
        weights = weights / posterior.variable(f"scale_{view}").values
    squares = weights**2
    share = squares[weights > 0].sum() / max(squares.sum(), 1e-300)
    return weights.size >= LEAST_MANY and max(share, 1.0 - share) >= ONE_SIGN


def _share(scores: Float64[np.ndarray, " R"], design: Float64[np.ndarray, "R P"]) -> float:
    """Return the adjusted share of the variance that a regression explains; 0 where it may be chance."""
    from scipy.special import fdtrc

    complete = np.isfinite(scores) & np.isfinite(design).all(axis=1)
    y, x = scores[complete], design[complete]
    n_left = len(y) - 1 - x.shape[1]
    if n_left < LEAST_MANY // 2 or np.ptp(y) == 0.0:
        return 0.0
    y, x = y - y.mean(), x - x.mean(axis=0)
    left = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    unexplained = float(left @ left) / float(y @ y)
    f = (1.0 - unexplained) / x.shape[1] / max(unexplained / n_left, 1e-300)
    adjusted = 1.0 - unexplained * (len(y) - 1) / n_left
    return adjusted if fdtrc(x.shape[1], n_left, f) < MOST_CHANCE else 0.0
