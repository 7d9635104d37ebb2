"""Refuse to go on without Prefect, with the name of the extra: imported before it."""

from factorflow.extras import require

require("prefect", "runs the flows")
