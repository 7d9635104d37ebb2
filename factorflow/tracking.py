"""MLflow: a run's objective by iteration, and what a posterior is, in a run of an experiment.

MLflow is imported when a function is called: ``pip install 'factorflow[mlflow]'``. Which server and
experiment it is, and when a run begins and ends, is MLflow's own affair (``mlflow.start_run``).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any
from warnings import warn

from factorflow.core.extras import require
from factorflow.core.lazy_imports import names_of
from factorflow.engine.events import Event, IterationDone, OnEvent, RunFinished, RunStarted
from factorflow.posterior.summary import holdout_scores, shares_by_view, short_config

if TYPE_CHECKING:
    from factorflow.api import Posterior

__all__ = ["log_posterior", "mlflow_logger"]

__dir__ = names_of(__name__, __all__)

PURPOSE = "keeps records of experiments"

CARD = "model_card.md"

LONGEST = 500
"""Characters of a parameter, which older servers take at most."""


def mlflow_logger() -> OnEvent:
    """Return a listener for ``on_event=`` that logs a run to the active run of MLflow.

    Metrics by iteration: ``objective``, ``gain`` and ``seconds``; in the end ``n_iterations``, with the
    reason as tag ``factorflow.reason``. A server that cannot be reached does not end the run: a warning
    says that the log ends.

    Returns
    -------
    callable
        Of events (`factorflow.engine.events`).

    Raises
    ------
    InputError
        If MLflow is not installed.

    Examples
    --------
    >>> import mlflow  # doctest: +SKIP
    >>> with mlflow.start_run():  # doctest: +SKIP
    ...     logger = factorflow.tracking.mlflow_logger()
    ...     posterior = factorflow.fit(dataset, n_factors=3, on_event=logger, progress=True)
    ...     factorflow.tracking.log_posterior(posterior)
    """
    return _Logger(require("mlflow", PURPOSE))


class _Logger:
    def __init__(self, mlflow: Any) -> None:
        self._mlflow: Any | None = mlflow

    def __call__(self, event: Event) -> None:
        if self._mlflow is None:
            return
        try:
            self._log(self._mlflow, event)
        except Exception as error:  # of a server, of whatever kind: hours of work are not lost for it
            self._mlflow = None
            warn(f"the log of MLflow ends here: {error}", RuntimeWarning, stacklevel=2)

    def _log(self, mlflow: Any, event: Event) -> None:
        match event:
            case RunStarted():
                mlflow.set_tag("factorflow.run", event.run)
                mlflow.log_params({"n_samples": event.n_rows})
            case IterationDone():
                numbers = {"objective": event.objective, "gain": event.gain, "seconds": event.seconds}
                mlflow.log_metrics(_finite(numbers), step=event.iteration)
            case RunFinished():
                mlflow.set_tag("factorflow.reason", event.reason)
                numbers = {"n_iterations": event.iterations, "seconds": event.seconds}
                mlflow.log_metrics(_finite(numbers), step=event.iterations)


def log_posterior(posterior: Posterior) -> None:
    """Log what a posterior is to the active run of MLflow.

    Parameters: the options of the model that differ from the defaults, ``seed``, ``holdout`` and
    ``dataset``. Metrics: ``n_factors``, ``variance_explained_VIEW``, ``holdout_VIEW_SCORE`` and
    ``n_findings``. Tags: version, status and fingerprint. Artifacts: the model card, and all options
    (``config.json``). The arrays stay where they are.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.

    Raises
    ------
    InputError
        If MLflow is not installed.
    """
    mlflow, run = require("mlflow", PURPOSE), posterior.run
    options = short_config(posterior.config.model_dump(mode="json", exclude_defaults=True))
    parameters = {"model": run["config"]["model"], **options}
    parameters |= {name: run[name] for name in ("seed", "holdout", "dataset")}
    mlflow.log_params({name: str(value)[:LONGEST] for name, value in parameters.items()})
    mlflow.log_metrics(_finite(_numbers(posterior)))
    tags = {"version": run["factorflow"], "status": run["status"], "fingerprint": run["fingerprint"]}
    mlflow.set_tags({f"factorflow.{name}": value for name, value in tags.items()})
    mlflow.log_text(posterior.card(), CARD)
    mlflow.log_dict(dict(run["config"]), "config.json")


def _numbers(posterior: Posterior) -> dict[str, float | None]:
    numbers: dict[str, float | None] = {
        "n_factors": len(posterior.factors),
        "n_findings": len(posterior.findings),
    }
    if posterior.has("variance_explained"):
        shares = shares_by_view(posterior.variable("variance_explained_total"))
        numbers |= {f"variance_explained_{name}": share for name, share in shares.items()}
    if posterior.was_scored:
        for view, scores in holdout_scores(posterior).items():
            numbers |= {f"holdout_{view}_{name}": value for name, value in scores.items()}
    return numbers


def _finite(numbers: dict[str, Any]) -> dict[str, float]:
    """Return numbers that there are, by names as MLflow allows them."""
    return {
        re.sub(r"[^\w .:/-]", "_", name, flags=re.ASCII): float(value)
        for name, value in numbers.items()
        if value is not None and math.isfinite(value)
    }
