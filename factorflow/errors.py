"""The exceptions a user meets; each names the parameter, the value, what was expected and what to do."""

from __future__ import annotations

__all__ = ["FactorflowError", "InputError", "RunError"]


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

    def __reduce__(self) -> tuple[type[InputError], tuple[str, object, str, str]]:
        return type(self), (self.parameter, self.value, self.expected, self.remedy)


class RunError(FactorflowError, RuntimeError):
    """A run that began could not be completed (command line: exit code 1)."""
