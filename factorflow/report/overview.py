"""The sections of the report about data and run: what there was, what was missing, how to repeat it."""

from __future__ import annotations

import pprint
from functools import partial
from typing import TYPE_CHECKING, Any

from factorflow.errors import InputError
from factorflow.report import figures
from factorflow.report.svg import draw_figure
from factorflow.settings import RunOptions

if TYPE_CHECKING:
    from factorflow.surface import Posterior

__all__ = ["describe_data", "reproduce"]


def describe_data(posterior: Posterior) -> dict[str, Any]:
    """Return views by size and what is missing of them, and a picture of which samples each view has.

    Without the dataset only what the posterior knows of its shape.
    """
    views = [
        {"name": view.name, "likelihood": view.likelihood, "n_features": view.n_features}
        for view in posterior.meta.views
    ]
    found: dict[str, Any] = {"views": views, "known": False, "figure": "", "groups": []}
    sizes = posterior.meta.group_sizes
    if posterior.meta.groups and len(sizes) == len(posterior.meta.groups):
        found["groups"] = list(zip(posterior.meta.groups, sizes, strict=True))
    try:
        facts = {view["name"]: view for view in posterior.dataset.describe()["views"]}
    except InputError:  # the dataset has moved
        return found
    for view in views:
        mine = facts[view["name"]]
        view |= {
            "n_samples": posterior.meta.n_rows - mine["n_missing_samples"],
            "missing": f"{mine['missing_percent']:.3g} %" if mine["missing_percent"] else "none",
        }
    found["known"] = True
    if any(facts[view["name"]]["missing_percent"] for view in views):
        draw = partial(figures.plot_presence, posterior)
        found["figure"] = draw_figure(draw, 0.7 + 0.26 * len(views))
    return found


def reproduce(posterior: Posterior) -> str:
    """Return the lines of Python that make the same fit; nothing of a projection."""
    run, defaults = posterior.run, RunOptions()
    if run["status"] == "projected":
        return ""
    config = posterior.config.model_dump(mode="json", exclude_defaults=True)
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
        "import factorflow\n\nposterior = factorflow.fit(\n" + "".join(f"    {a},\n" for a in arguments) + ")"
    )
