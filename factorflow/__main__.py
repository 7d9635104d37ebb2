"""``python -m factorflow``: the command line."""

from factorflow.cli import main

main()
