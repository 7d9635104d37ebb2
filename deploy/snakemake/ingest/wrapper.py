"""Snakemake wrapper of `factorflow ingest`."""

from shlex import quote

from snakemake.shell import shell

named = [f"{view}={file}" for view, file in snakemake.input.items()]
sources = " ".join(map(quote, named or map(str, snakemake.input)))
extra = snakemake.params.get("extra", "")
log = snakemake.log_fmt_shell(stdout=True, stderr=True)

shell("factorflow ingest {sources} {extra} --out {snakemake.output[0]:q} {log}")
