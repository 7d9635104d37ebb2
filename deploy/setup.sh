#!/bin/sh
# Make the work pool, the deployments and the automation on the Prefect server at PREFECT_API_URL. Repeated, it
# puts them back to what deploy/prefect.yaml declares (parameters, schedules, whether they are on), with a line for
# each difference. Arguments: where runs compute, `dask` (the default: workers beside each run) or a scheduler's
# address; of a work pool of Kubernetes, its base job template.
set -eu
cd "$(dirname "$0")/.."
export FACTORFLOW_EXECUTOR="${1:-dask}"
if [ -n "${2:-}" ]; then
    prefect --no-prompt work-pool create factorflow --type kubernetes --base-job-template "$2" --overwrite
else
    prefect --no-prompt work-pool create factorflow --type process --overwrite
fi
python -m flows.restore deploy/prefect.yaml
prefect --no-prompt deploy --all --prefect-file deploy/prefect.yaml
# Anew each time: one that an earlier version made may have other times.
prefect --no-prompt automation delete "factorflow zombie runs" >/dev/null 2>&1 || true  # none at first
prefect --no-prompt automation create --from-file deploy/zombie-runs.yaml
