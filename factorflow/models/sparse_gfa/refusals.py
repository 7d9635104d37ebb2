"""Options that do not go together, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from factorflow.errors import InputError
from factorflow.models.sparse_gfa.settings import Settings

PHRASES = {
    "n_draws": "draws",
    "scores": "smooth_covariates, random_intercepts or score_covariates",
    "warm_start": "a warm start",
}
"""What options may not go with, by the option that asks for it."""


@dataclass(frozen=True)
class Refusal:
    """A row of the table.

    Parameters
    ----------
    option, needed : str
        The option, and how it has to be.
    applies : callable
        Whether it is otherwise in some settings.
    reasons : mapping of str to str
        What it does not go with, by a key of `PHRASES`, and why.
    """

    option: str
    needed: str
    applies: Callable[[Settings], bool]
    reasons: Mapping[str, str]


REFUSALS = (
    Refusal(
        "scores_posterior",
        "'full'",
        lambda s: not s.full_scores and not s.scores_spike,
        {"scores": "courses change the covariance of the scores of a sample"},
    ),
    Refusal("n_starts", "1", lambda s: s.n_starts > 1, {"scores": "courses are learned from one start"}),
    Refusal(
        "grouped_noise",
        "False",
        lambda s: s.n_noise_groups > 1,
        {"scores": "rows of a course have one noise", "n_draws": "draws have one noise precision a feature"},
    ),
    Refusal(
        "noise",
        "'feature'",
        lambda s: s.sample_noise,
        {"scores": "rows of a course have one noise", "n_draws": "a sweep draws no noise of samples"},
    ),
    Refusal(
        "loadings",
        "other than 'ard' in some view",
        lambda s: s.dense,
        {"scores": "factors are rotated to the end", "warm_start": "factors are rotated to the end"},
    ),
    Refusal(
        "loadings",
        "of a prior that is drawn in all views",
        lambda s: not all(view.prior.is_drawn for view in s.views),
        {"n_draws": "the prior of some loadings does not say how a sweep draws them"},
    ),
    Refusal(
        "smooth scores",
        "left out",
        lambda s: s.smooth is not None,
        {"warm_start": "courses are learned from the start"},
    ),
)


def refuse_options(settings: Settings, asked: str) -> None:
    """Refuse what does not go with draws, smooth scores or a warm start.

    Parameters
    ----------
    settings : Settings
        Of the run.
    asked : str
        A key of `PHRASES`.

    Raises
    ------
    InputError
        Naming all options that do not go with it.
    """
    rows = [row for row in REFUSALS if asked in row.reasons and row.applies(settings)]
    if rows:
        phrase = PHRASES[asked]
        expected = "; ".join(
            f"{row.option} {row.needed} with {phrase} ({row.reasons[asked]})" for row in rows
        )
        names = ", ".join(row.option for row in rows)
        raise InputError(asked, f"beside {names}", expected, f"Leave {names} out, or {phrase}.")
