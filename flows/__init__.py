"""Prefect flows: they launch, schedule and retry runs; the work itself is in `factorflow`.

Importing this package sets defaults that an embedded Prefect server needs, before Prefect reads them.
"""

from __future__ import annotations

import os

_DEFAULTS = {
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",  # the first start makes a database: 20 s fail
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "DASK_LOGGING__DISTRIBUTED": "warning",  # Prefect would show every line of scheduler and workers
    "PREFECT_LOGGING_EXTRA_LOGGERS": "factorflow",
}

for _name, _value in _DEFAULTS.items():
    os.environ.setdefault(_name, _value)
