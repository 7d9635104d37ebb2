"""Findings about a posterior."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from factorflow.errors import OptionText


@dataclass(frozen=True)
class Finding:
    """A finding about a posterior.

    Parameters
    ----------
    kind : str
        "burn-in", "mixing", "budget", "outlier", "baseline", "overdispersion", "no factors", "unstable",
        "intercepts", "scale", "one sample", "one feature", "resolution", "depth" or "batch"; of a projection
        "outlier", "features", "limits", "not described" or "overdispersion".
    remedy : str
        What to do; an `OptionText` where it names options, which front ends format.
    """

    kind: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}"


def naming_option(template: str, option: str) -> OptionText:
    """Return a text that names an option of the model.

    Parameters
    ----------
    option : str
        As `ModelConfig.wider` returns it: ``overdispersed=True``.
    """
    name, _, value = option.partition("=")
    name = f"model.{name}"
    text = OptionText(template)
    template = text.template.replace("{option}", f"{{{name}}}")
    return OptionText(template, **text.options, **{name: ast.literal_eval(value)})
