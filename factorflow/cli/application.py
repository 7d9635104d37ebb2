"""A Typer application as a process: warnings as lines, signals, exit codes."""

from __future__ import annotations

import gc
import logging
import signal
import sys
import warnings
from typing import Any, NoReturn

import typer

from factorflow.cli.output import BAD_INPUT, INTERRUPTED, as_json, show_warning


def serve(app: typer.Typer) -> NoReturn:
    """Run an application: warnings are one line each, and SIGTERM ends a run in order, as Ctrl-C does.

    What is to be known of a posterior is in what a command shows of it, so `fit` does not log it too.
    """
    warnings.showwarning = show_warning
    logging.getLogger("factorflow.findings").disabled = True
    signal.signal(signal.SIGTERM, _interrupt)
    run_application(app)


def run_application(app: typer.Typer) -> NoReturn:
    """Run an application, and exit with its status; wrong options are JSON too, where that is asked for."""
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        print("Aborted.", file=sys.stderr)
        code = INTERRUPTED
    except Exception as error:
        show = getattr(error, "show", None)  # the class of errors of options is Typer's own
        if show is None:
            raise
        show()
        code, message = getattr(error, "exit_code", BAD_INPUT), getattr(error, "format_message", str)()
        if "--json" in sys.argv[1:]:
            print(as_json({"error": {"type": "UsageError", "message": message}}))
    gc.freeze()  # else Python looks through all modules several times as it ends: half a second
    raise SystemExit(code)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
