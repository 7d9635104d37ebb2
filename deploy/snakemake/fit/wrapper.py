"""Snakemake wrapper of `factorflow fit`."""

import json
from shlex import quote

from snakemake.shell import shell

chosen = {name: json.dumps(value) for name, value in snakemake.params.get("model", {}).items()}
options = " ".join(f"--set {quote(f'{name}={value}')}" for name, value in chosen.items())
seed, extra = snakemake.params.get("seed", 0), snakemake.params.get("extra", "")
workers = f"--executor dask --workers {snakemake.threads}" if snakemake.threads > 1 else ""
log = snakemake.log_fmt_shell(stdout=True, stderr=True)

shell(
    "factorflow fit {snakemake.input[0]:q} {options} --seed {seed} {workers} {extra}"
    " --out {snakemake.output[0]:q} {log}"
)
