"""Commands that resume a run, shown at its checkpoints and with errors."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from factorflow.engine.events import CheckpointWritten, Event, OnEvent
from factorflow.engine.run_directory import Output
from factorflow.errors import FactorflowError, thread_limit_errors
from factorflow.settings import ResumeOptions


@contextmanager
def note_outcome(output: Output, options: ResumeOptions) -> Iterator[None]:
    """Add a note to an exception that ends a run: what is on disk and how to resume."""
    try:
        with thread_limit_errors():
            yield
    except FactorflowError as error:
        if output.can_go_on:
            error.add_note(f"To go on: {resume_command(output, options)}")
        raise
    except Exception:
        raise
    except BaseException as interrupt:  # KeyboardInterrupt, SystemExit, Prefect's TerminationSignal
        if (left := output.left_behind()) is not None:
            interrupt.add_note(left)
        if output.can_go_on:
            interrupt.add_note(f"To go on: {resume_command(output, options)}")
        raise


def with_resume_command(on_event: OnEvent, output: Output, options: ResumeOptions) -> OnEvent:
    """Return a listener whose checkpoints name the command that goes on from them."""
    if output.shown_path is None:
        return on_event
    command = resume_command(output, options)

    def tell(event: Event) -> None:
        on_event(replace(event, resume=command) if isinstance(event, CheckpointWritten) else event)

    return tell


def resume_command(output: Output, options: ResumeOptions) -> str:
    """Return the command that goes on with a run as it was begun."""
    words = ["factorflow", "resume", str(output.shown_path)]
    for name, field in ResumeOptions.model_fields.items():
        value = getattr(options, name)
        if value != field.default:
            text = value.model_dump_json(exclude_none=True) if name == "cluster" else str(value)
            words += [f"--{name.replace('_', '-')}", text]
    return shlex.join(words)
