"""Preparations before Prefect is imported: its installation, and defaults of an embedded server.

Modules that import Prefect import this one first.
"""

from __future__ import annotations

import logging
import os
import sys

from factorflow.cli.prefect_server import exempt_local_server, read_settings
from factorflow.core.extras import require
from factorflow.engine.progress import clock
from factorflow.errors import FactorflowError

_DEFAULTS = {
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",  # the first start makes a database
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "DASK_LOGGING__DISTRIBUTED": "warning",  # Prefect would show every line of scheduler and workers
    "PREFECT_LOGGING_EXTRA_LOGGERS": "factorflow",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",  # a fit beside flows, in a notebook
}

for _name, _value in _DEFAULTS.items():
    os.environ.setdefault(_name, _value)
exempt_local_server()


def _without_traceback(record: logging.LogRecord) -> bool:
    """Leave the traceback out of errors that say all there is to say."""
    if record.exc_info and isinstance(record.exc_info[1], FactorflowError):
        record.exc_info = None
    return True


for _name in ("prefect.flow_runs", "prefect.task_runs"):
    logging.getLogger(_name).addFilter(_without_traceback)

try:
    with clock("loading Prefect"):
        require("prefect", "runs the flows")
        read_settings()
except FactorflowError as error:
    command = getattr(sys.modules["__main__"], "__spec__", None)
    if command is None or not command.name.startswith("flows."):
        raise
    raise SystemExit(f"error: {error}") from None  # of `python -m flows.fit`, which has not begun yet
