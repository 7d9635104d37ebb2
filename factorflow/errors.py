"""The exceptions a user meets; each names the parameter, the value, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = [
    "ExportWarning",
    "FactorflowError",
    "InputError",
    "OptionError",
    "RunError",
    "UnusedWarning",
    "counted",
    "removed_option",
    "thread_limit_explained",
]


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: "1 view", "2,000 views"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


class FactorflowError(Exception):
    """Base of every error that factorflow raises on purpose."""

    exit_code = 1


class InputError(FactorflowError, ValueError):
    """The input cannot be used as it is (command line: exit code 2).

    Parameters
    ----------
    parameter : str
        Name of what is wrong: an argument, a view, a feature, a file.
    value : object
        What was given.
    expected : str
        What would have been accepted.
    remedy : str
        What to do about it.
    """

    exit_code = 2

    def __init__(self, parameter: str, value: object, expected: str, remedy: str) -> None:
        self.parameter, self.value, self.expected, self.remedy = parameter, value, expected, remedy
        shown = value if isinstance(value, str) else repr(value)
        super().__init__(f"{parameter} = {shown}: expected {expected}. {remedy}")

    def __reduce__(self) -> Any:
        return type(self), (self.parameter, self.value, self.expected, self.remedy)


class OptionError(InputError):
    """An option that does not exist, or a value that it cannot have.

    Parameters
    ----------
    parameter, value, expected
        As for `InputError`.
    of : str
        What takes the option, as Python names it: ``factorflow.fit``, ``factorflow.models.SparseGFA``.
    known : tuple of str
        The options there are.
    """

    def __init__(self, parameter: str, value: object, expected: str, of: str, known: tuple[str, ...]) -> None:
        from difflib import get_close_matches

        self.parameter, self.of, self.known = parameter, of, known
        near = [] if parameter in known else get_close_matches(parameter, known, n=1)
        self.near = near[0] if near else None
        super().__init__(parameter, value, expected, self.advice(f"help({of}) explains the options."))

    def advice(self, where: str) -> str:
        """Return the remedy, given where the options are explained."""
        if self.parameter in self.known:
            return f"Correct it; {where}"
        names = where if self.near else f"{where.removesuffix('.')}: {', '.join(self.known)}."
        return f"Did you mean {self.near}? {names}" if self.near else names

    def __reduce__(self) -> Any:
        return type(self), (self.parameter, self.value, self.expected, self.of, self.known)


def removed_option(name: str, value: object, successor: str) -> InputError:
    """Return the error of an option that is no more, naming its successor."""
    return InputError(name, value, "nothing: this option was removed", f"Use {successor}=... in its place.")


class UnusedWarning(UserWarning):
    """An option was given that does nothing here."""


class ExportWarning(UserWarning):
    """A file of another program cannot have something as it is: what it has instead."""


class RunError(FactorflowError, RuntimeError):
    """A run that began could not be completed (command line: exit code 1)."""


@contextmanager
def thread_limit_explained() -> Iterator[None]:
    """Turn Python's error of a thread that cannot be started into a RunError that says what limits them."""
    try:
        yield
    except RuntimeError as error:
        if "can't start new thread" not in str(error) or isinstance(error, RunError):
            raise
        text = "no more threads can be started: this user or container has as many processes as it may"
        remedy = "Raise the limit (`ulimit -u`, `pids.max` of a container), or use fewer workers."
        raise RunError(f"{text}. {remedy}") from error
