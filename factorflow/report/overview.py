"""The sections of the report about data and run: sizes, missing entries, how to repeat it."""

from __future__ import annotations

import pprint
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from factorflow.errors import InputError
from factorflow.posterior.summary import likelihood_of
from factorflow.report import data_plots
from factorflow.report.svg import draw_figure
from factorflow.settings import RunOptions

if TYPE_CHECKING:
    from factorflow.api import Posterior


def describe_data(posterior: Posterior) -> dict[str, Any]:
    """Return views by size and what is missing of them, and a picture of which samples each view has.

    Without the dataset only what the posterior knows of its shape.
    """
    views = [
        {"name": view.name, "likelihood": likelihood_of(posterior, view), "n_features": view.n_features}
        for view in posterior.meta.views
    ]
    facts: dict[str, Any] = {"views": views, "known": False, "figure": "", "groups": []}
    sizes = posterior.meta.group_sizes
    if posterior.meta.groups and len(sizes) == len(posterior.meta.groups):
        facts["groups"] = list(zip(posterior.meta.groups, sizes, strict=True))
    try:
        fitted, there = posterior.data, posterior.dataset.describe()["views"]
    except InputError:  # the dataset has moved
        return facts
    n_rows, absent = posterior.meta.n_rows, {view["name"]: view["n_missing_samples"] for view in there}
    incomplete = False
    for view, meta in zip(views, posterior.meta.views, strict=True):
        n_observed = int(fitted.moments(meta.name, "n_observed")["n_observed"].sum())
        percent = round(100.0 * (1.0 - n_observed / (n_rows * meta.kind.row_entries(meta.n_features))), 4)
        view |= {
            "n_samples": n_rows - absent.get(meta.name, n_rows),
            "missing": f"{percent:.3g} %" if percent else "none",
        }
        incomplete |= percent > 0.0
    facts["known"] = True
    if incomplete:
        draw = partial(data_plots.plot_presence, posterior)
        facts["figure"] = draw_figure(draw, 0.7 + 0.26 * len(views))
    return facts


class _Name(str):
    """A name in code."""

    def __repr__(self) -> str:
        return str(self)


def reproduce(posterior: Posterior) -> str:
    """Return the lines of Python that make the same fit; nothing of a projection."""
    run, defaults = posterior.run, RunOptions()
    if run["status"] == "projected":
        return ""
    config = posterior.config.model_dump(mode="json", exclude_defaults=True)
    first = ""
    if isinstance(config.get("feature_sets"), Mapping):
        first, config["feature_sets"] = "sets = posterior.config.feature_sets\n", _Name("sets")
    model = pprint.pformat({"model": run["config"]["model"], **config}, sort_dicts=False, width=90)
    names = ("seed", "holdout", "holdout_unit", "device", "max_iter")
    options = {name: run[name] for name in names if name in run}
    options = {name: value for name, value in options.items() if value != getattr(defaults, name)}
    arguments = [
        repr(str(run["dataset"])),
        model.replace("\n", "\n    "),
        *(f"{n}={v!r}" for n, v in options.items()),
    ]
    if "seed" not in options:
        arguments.append(f"seed={run.get('seed', 0)!r}")
    return (
        f"import factorflow\n\n{first}posterior = factorflow.fit(\n"
        + "".join(f"    {a},\n" for a in arguments)
        + ")"
    )
