"""Exceptions for users: parameter, value, expectation and remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def pluralize(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: "1 view", "2,000 views"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


Word = Callable[[str, Any], str]
"""Writes an option and its value as a front end does; a value of ``...`` is any."""


def python_option(name: str, value: Any) -> str:
    """Return an option as an argument in Python: ``overwrite=True``, ``sep=...``."""
    return f"{name.rpartition('.')[2]}={'...' if value is ... else repr(value)}"


class OptionText(str):
    """A text with names of options, which each front end formats; by default as in Python.

    Parameters
    ----------
    template : str
        The text, with ``{name}`` where an option is named.
    **options
        The options and their values; ``...`` is any value. ``model.name`` is one of the model, where another
        has the same name.

    Examples
    --------
    >>> message = OptionText("Use {overwrite} or another path.", overwrite=True)
    >>> print(message)
    Use overwrite=True or another path.
    >>> message.worded(lambda name, value: f"--{name}")
    'Use --overwrite or another path.'
    """

    template: str
    options: dict[str, Any]

    def __new__(cls, template: str, /, **options: Any) -> OptionText:
        """Return the text in Python's words."""
        if isinstance(template, OptionText):
            options = {**template.options, **options}
            template = template.template
        message = super().__new__(cls, _fill(template, options, python_option))
        message.template, message.options = template, options
        return message

    def __reduce__(self) -> Any:
        return _message, (self.template, self.options)

    def worded(self, word: Word) -> str:
        """Return the text with every option as ``word`` writes it."""
        return _fill(self.template, self.options, word)


def _message(template: str, options: dict[str, Any]) -> OptionText:
    return OptionText(template, **options)


def _fill(template: str, options: dict[str, Any], word: Word) -> str:
    for name, value in options.items():
        template = template.replace(f"{{{name}}}", word(name, value))
    return template


class FactorflowError(Exception):
    """Base of every error that factorflow raises on purpose.

    Parameters
    ----------
    text : str
        What is wrong.
    **options
        Options that it names as ``{name}`` (`OptionText`).
    """

    exit_code = 1

    def __init__(self, text: str = "", /, **options: Any) -> None:
        self.text = OptionText(text, **options)
        super().__init__(self.text)


def _short_repr(value: object) -> str:
    """Return the repr of a value where it is one line of a message, else its type."""
    text = repr(value)
    return f"an object of type {type(value).__name__}" if "\n" in text or len(text) > 400 else text


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
    **options
        Options that the last two name as ``{name}`` (`OptionText`).
    """

    exit_code = 2

    def __init__(self, parameter: str, value: object, expected: str, remedy: str, **options: Any) -> None:
        self.parameter, self.value = parameter, value
        self.expected, self.remedy = OptionText(expected, **options), OptionText(remedy, **options)
        text = value if isinstance(value, str) else _short_repr(value)
        super().__init__(f"{parameter} = {text}: expected {self.expected}. {self.remedy}")

    def __reduce__(self) -> Any:
        return type(self), (self.parameter, self.value, self.expected, self.remedy)


class OptionError(InputError):
    """An option that does not exist, or a value that it cannot have.

    Parameters
    ----------
    expected : str or None
        What would have been accepted; None of an option that does not exist.
    of : str
        What takes the option, as Python names it: ``factorflow.fit``, ``factorflow.models.SparseGFA``.
    """

    def __init__(
        self, parameter: str, value: object, expected: str | None, of: str, known: tuple[str, ...]
    ) -> None:
        self.of, self.known, self.bounds = of, known, expected
        expected, remedy = self.worded(parameter, of, f"help({of}) explains the options.")
        super().__init__(parameter, value, expected, remedy)

    def worded(self, parameter: str, taker: str, where: str) -> tuple[str, str]:
        """Return expectation and remedy, given what takes the options and where they are explained."""
        from difflib import get_close_matches

        if self.bounds is not None:
            return self.bounds, f"Correct it; {where}"
        near = get_close_matches(parameter, self.known, n=1)
        names = f"Did you mean {near[0]}? {where}" if near else f"{where[:-1]}: {', '.join(self.known)}."
        return f"an option of {taker}", names

    def __reduce__(self) -> Any:
        return type(self), (self.parameter, self.value, self.bounds, self.of, self.known)


RUN_ANEW = OptionText("Run anew with {overwrite}.", overwrite=True)
"""Remedy for damaged files of a run or its result."""


class UnusedWarning(UserWarning):
    """An option was given that does nothing here."""


class ExportWarning(UserWarning):
    """A file of another program cannot hold a value exactly; the warning names the substitute."""


class RunError(FactorflowError, RuntimeError):
    """A run that began could not be completed (command line: exit code 1).

    Parameters
    ----------
    text : str
        What went wrong.
    **options
        Options that it names as ``{name}`` (`OptionText`).
    """


@contextmanager
def thread_limit_errors() -> Iterator[None]:
    """Convert "can't start new thread" into a RunError that names the limit (a context manager)."""
    try:
        yield
    except RuntimeError as error:
        if "can't start new thread" not in str(error) or isinstance(error, RunError):
            raise
        text = "no more threads can be started: this user or container has as many processes as it may"
        remedy = "Raise the limit (`ulimit -u`, `pids.max` of a container), or use fewer workers."
        raise RunError(f"{text}. {remedy}") from error
