"""The model card of a posterior: data, model, results and limits, in Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from factorflow.core.markdown import code_block, escape
from factorflow.errors import pluralize
from factorflow.posterior.labels import sample_metadata
from factorflow.posterior.summary import (
    holdout_scores,
    likelihood_of,
    outcome,
    percent,
    score_rows,
    shares_by_view,
    short_config,
)

if TYPE_CHECKING:
    from factorflow.posterior.finding import Finding
    from factorflow.posterior.stored_posterior import StoredPosterior

CARD = "README.md"
"""Name of the card in the folder of a posterior: what hosts of files show."""

N_NAMES = 20
"""Groups and columns that are named."""

USE = """
```python
import factorflow

posterior = factorflow.load("PATH OR URL")
new = posterior.project("NEW_SAMPLES.zarr").scores()
```

New samples are matched by the names of features; views, features and entries may be missing.
The data of the fit are not needed.
"""


def model_card(posterior: StoredPosterior, findings: Sequence[Finding]) -> str:
    """Return the model card of a posterior (`Posterior.card`): the same text for the same posterior."""
    run, meta = posterior.run, posterior.meta
    sizes = [pluralize(meta.n_rows, "sample"), pluralize(len(meta.views), "view")]
    if posterior.factors:
        sizes.insert(0, pluralize(len(posterior.factors), "factor"))
    sections = {
        "Data": _data(posterior),
        "Model": _model(posterior),
        "Results": _results(posterior),
        "Limits": _limits(posterior, findings),
        "Use": USE,
    }
    head = (
        f"# Model card: {run['config']['model']}\n\n"
        f"{', '.join(sizes)}; fitted with factorflow {run['factorflow']}.\n"
    )
    return head + "".join(f"\n## {title}\n\n{text.strip()}\n" for title, text in sections.items())


def _data(posterior: StoredPosterior) -> str:
    run, meta = posterior.run, posterior.meta
    rows = [["view", "likelihood", "features"]]
    rows += [[view.name, likelihood_of(posterior, view), f"{view.n_features:,}"] for view in meta.views]
    lines = [f"Fingerprint of the dataset: `{run['fingerprint']}`."]
    if meta.groups:
        n_samples = meta.group_sizes or ("?",) * len(meta.groups)
        groups = [f"{name} ({n})" for name, n in zip(meta.groups, n_samples, strict=True)]
        lines.append(f"Groups (samples): {_join_names(groups)}.")
    if columns := sample_metadata(posterior).columns.tolist():
        lines.append(f"Sample metadata: {_join_names(columns)}.")
    return _table(rows) + "\n" + "\n".join(lines)


def _model(posterior: StoredPosterior) -> str:
    run = posterior.run
    chosen = short_config(posterior.config.model_dump(mode="json", exclude_defaults=True))
    options = json.dumps({"model": run["config"]["model"], **chosen}, indent=2, ensure_ascii=False)
    end = outcome(run)
    lines = [
        "Options that differ from the defaults:",
        f"\n{code_block(options)}\n",
        f"Seed {run['seed']}, device {run['device']}, {_hidden(run)}. {end[0].upper()}{end[1:]}.",
    ]
    return "\n".join(lines)


def _hidden(run: dict[str, Any]) -> str:
    unit = {"entry": "entries", "row": "rows", "sequence": "sequences", "count": "counts"}.get(
        run["holdout_unit"], run["holdout_unit"]
    )
    return f"{100 * run['holdout']:g} % of the {unit} held out" if run["holdout"] else "nothing held out"


def _results(posterior: StoredPosterior) -> str:
    parts = []
    if posterior.has("variance_explained") and posterior.factors:
        explained = posterior.variable("variance_explained")
        shares = {label: shares_by_view(explained.sel(factor=label)) for label in posterior.factors}
        shares["all"] = shares_by_view(posterior.variable("variance_explained_total"))
        rows = [["factor", *shares["all"]]]
        rows += [[label, *map(percent, share.values())] for label, share in shares.items()]
        parts.append("Variance explained (%):\n\n" + _table(rows))
    if posterior.was_scored and (rows := score_rows(holdout_scores(posterior))):
        what = "counts" if posterior.run["holdout_unit"] == "count" else "entries"
        parts.append(f"Held-out {what}:\n\n" + _table(rows))
    return "\n".join(parts) or "None were recorded."


def _limits(posterior: StoredPosterior, findings: Sequence[Finding]) -> str:
    lines = [f"- {escape(finding)}" for finding in findings]
    if not posterior.was_scored:
        lines.append("- Nothing was held out: how well it predicts new entries is not known.")
    lines.append("- The posterior holds scores, names and metadata of its samples: share it like these.")
    return "\n".join(lines)


def _join_names(names: Sequence[str]) -> str:
    text = ", ".join(map(escape, names[:N_NAMES]))
    return text if len(names) <= N_NAMES else f"{text} and {len(names) - N_NAMES} more"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, header first."""
    lines = [f"| {' | '.join(map(escape, row))} |" for row in rows]
    lines.insert(1, f"|{' --- |' * len(rows[0])}")
    return "\n".join(lines) + "\n"
