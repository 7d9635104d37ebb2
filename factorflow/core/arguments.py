"""Errors for wrong argument types of public functions, derived from annotations after a call has failed.

Functions refuse in their own words what they look at; where one ends in a raw error instead, its arguments
are held against its annotations, and the first of another type is named. Annotations are read as text, so
that nothing is imported for them: each member of a union is a type that is known here by its name, or any
value passes. What a value of the right type may be stays with the functions.
"""

from __future__ import annotations

import ast
import inspect
import numbers
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from typing import Any, TypeVar

from factorflow.errors import FactorflowError, InputError

F = TypeVar("F", bound=Callable[..., Any])
Tests = tuple[tuple[Callable[[Any], bool], str], ...]
"""Tests of values, each with what passes in words."""


def _instance_test(*names: str) -> Callable[[Any], bool]:
    """Return a test for instances of a class of one of these names, or of one derived from it."""
    return lambda value: any(base.__name__ in names for base in type(value).__mro__)


def _integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _listens(value: Any) -> bool:
    """Return whether a value can be called with one argument."""
    try:
        inspect.signature(value).bind(None)
    except TypeError:
        return False
    except ValueError:  # compiled functions may tell no signature
        return callable(value)
    return True


def _several(value: Any) -> bool:
    plain = not isinstance(value, str | bytes | Mapping) and not hasattr(value, "columns")
    return plain and isinstance(value, Iterable) and hasattr(value, "__len__")


_POSTERIOR = "a posterior (factorflow.open_posterior opens one at a path)"

TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "None": (lambda value: value is None, "None"),
    "bool": (lambda value: isinstance(value, bool) or type(value).__name__ == "bool_", "True or False"),
    "int": (_integer, "an integer"),
    "float": (_real, "a number"),
    "str": (lambda value: isinstance(value, str), "text"),
    "os.PathLike": (lambda value: isinstance(value, os.PathLike), "a path"),
    "Path": (lambda value: isinstance(value, os.PathLike), "a path"),
    "Remote": (_instance_test("Remote"), "a URL"),
    "Sequence": (_several, "a list"),
    "Collection": (_several, "a list"),
    "Iterable": (lambda value: isinstance(value, Iterable) and not isinstance(value, str), "a list"),
    "Mapping": (lambda value: isinstance(value, Mapping), "a mapping"),
    "dict": (lambda value: isinstance(value, Mapping), "a mapping"),
    "Callable": (callable, "a function"),
    "OnEvent": (_listens, "a function of one argument, the event"),
    "range": (lambda value: isinstance(value, range), "a range"),
    "Posterior": (_instance_test("StoredPosterior"), _POSTERIOR),
    "StoredPosterior": (_instance_test("StoredPosterior"), _POSTERIOR),
    "Dataset": (_instance_test("Dataset"), "a dataset (factorflow.open_dataset opens one at a path)"),
    "ModelConfig": (
        _instance_test("ModelConfig"),
        "a model, such as factorflow.models.SparseGFA(n_factors=10)",
    ),
    "Holdout": (_instance_test("Holdout"), "a Holdout"),
    "Axes": (_instance_test("Axes"), "Axes of Matplotlib"),
    "pd.Series": (_instance_test("Series"), "a Series"),
    "tuple": (lambda value: isinstance(value, tuple | list), "a pair"),
    "pd.DataFrame": (_instance_test("DataFrame"), "a DataFrame"),
    "AnnData": (_instance_test("AnnData"), "an AnnData"),
    "MuData": (_instance_test("MuData"), "a MuData"),
}
"""By the name of a type, a test for its values, and what they are in words."""

ALIASES = {
    "By": "Literal['group', 'sample', 'feature']",
    "Names": "Sequence[str]",
    "Part": "Literal['both', 'kept', 'held out']",
}
"""What names of types in annotations stand for."""


def name_wrong_arguments(function: F, name: str | None = None) -> F:
    """Wrap a function so that, when it fails, the error names arguments that do not match its annotations.

    Parameters
    ----------
    function : callable
        With annotations as text (``from __future__ import annotations``).
    name : str, optional
        What users call it; by default its own name.
    """
    signature, of_function = inspect.signature(function), name or function.__qualname__
    is_method = next(iter(signature.parameters), "") == "self"

    @wraps(function)
    def call(*positional: Any, **named: Any) -> Any:
        called = of_function
        if is_method and positional:  # of the class that users know, not the one that it is inherited from
            called = f"{type(positional[0]).__name__}.{function.__name__}"
        try:
            arguments = signature.bind(*positional, **named)
        except TypeError as error:
            raise _refused_call(called, signature, positional, named, str(error)) from None
        try:
            with _usual_floating_point():
                return function(*positional, **named)
        except (FactorflowError, Warning):
            raise
        except Exception as error:
            for parameter, value in arguments.arguments.items():
                wrong = _wrong(called, signature.parameters[parameter], value)
                if wrong is not None:
                    raise wrong from error
                if isinstance(error, KeyError) and hasattr(value, "columns") and error.args[0] not in value:
                    expected = f"a table with the column {error.args[0]!r}"
                    columns = ", ".join(map(str, value.columns)) or "none"
                    raise InputError(
                        parameter, f"columns {columns}", expected, f"See help({called})."
                    ) from error
            raise

    return call  # type: ignore[return-value]


class NamesWrongArguments:
    """A base of classes: `name_wrong_arguments` is applied to the public methods of those derived from it."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Wrap the methods that a class defines."""
        super().__init_subclass__(**options)
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method) and not name.startswith("_"):
                setattr(cls, name, name_wrong_arguments(method))


def _refused_call(
    called: str, signature: inspect.Signature, positional: Any, keywords: Mapping[str, Any], why: str
) -> InputError:
    """Return the error for unexpected or missing arguments."""
    parameters = [p for p in signature.parameters.values() if p.name not in {"self", "cls"}]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    unknown = [] if takes_any else sorted(set(keywords) - {parameter.name for parameter in parameters})
    names = ", ".join(parameter.name for parameter in parameters)
    if unknown:
        return InputError(
            unknown[0], keywords[unknown[0]], f"an option of {called}: {names}", "Correct its name."
        )
    places = [p for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(positional) > len(places):
        more = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        remedy = f"Give options by name: {more[0]}=..." if more else f"Its arguments are {names or 'none'}."
        at_most = ", ".join(p.name for p in places if p.name not in {"self", "cls"}) or "none"
        text = _format_value(positional[len(places)])
        return InputError(f"arguments of {called}", text, f"these without a name: {at_most}", remedy)
    remedy = f"Its arguments are {names or 'none'}."
    return InputError(f"arguments of {called}", why, "each that has no default", remedy)


def _wrong(called: str, parameter: inspect.Parameter, value: Any) -> InputError | None:
    """Return the error for a value of the wrong type; None if its type is right."""
    annotation = parameter.annotation
    if not isinstance(annotation, str) or value is parameter.default:
        return None
    values: Iterable[tuple[str, Any]]
    if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
        values = value.items() if isinstance(value, Mapping) else ((parameter.name, v) for v in value)
    else:
        values = ((parameter.name, value),)
    tests = _tests(annotation)
    for name, each in values:
        if _integer(each) and not -(2**63) <= each < 2**63:
            return InputError(name, _format_value(each), "an integer of 64 bits", f"See help({called}).")
        if tests and not any(test(each) for test, _ in tests):
            words = list(dict.fromkeys(words for _, words in tests if words != "None"))
            return InputError(name, _format_value(each), " or ".join(words), f"See help({called}).")
    return None


@cache
def _tests(annotation: str) -> Tests:
    """Return a test for each member of a union; none if any value passes."""
    return _tests_of(ast.parse(annotation, mode="eval").body)


def _tests_of(node: ast.expr) -> Tests:
    if isinstance(node, ast.BinOp):
        left, right = _tests_of(node.left), _tests_of(node.right)
        return left + right if left and right else ()
    name, inside = ast.unparse(node), list[ast.expr]()
    if name in ALIASES:
        return _tests(ALIASES[name])
    if isinstance(node, ast.Subscript):
        name = ast.unparse(node.value)
        inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name == "Literal":
        return (_one_of([ast.literal_eval(value) for value in inside]),)
    return (_with_entries(name, inside),) if name in TYPES else ()


def _with_entries(name: str, inside: list[ast.expr]) -> tuple[Callable[[Any], bool], str]:
    """Return a test for a container type and, if the annotation gives them, the types of its entries."""
    test, words = TYPES[name]
    if name not in {"Sequence", "Collection", "Iterable", "Mapping", "dict"}:
        return test, words
    entries = [_tests_of(part) for part in inside]
    if not entries or not all(entries):
        return test, words

    def passes(tests: Tests, value: Any) -> bool:
        return any(test(value) for test, _ in tests)

    expectations = [" or ".join(dict.fromkeys(words for _, words in tests)) for tests in entries]
    if name in {"Mapping", "dict"}:
        keys, values = entries

        def passes_entries(value: Any) -> bool:
            return test(value) and all(passes(keys, k) and passes(values, v) for k, v in value.items())

        return passes_entries, f"{words} of {expectations[0]} to {expectations[1]}"
    return (
        lambda value: test(value) and all(passes(entries[0], v) for v in value),
        f"{words} of {expectations[0]}",
    )


def _one_of(allowed: Sequence[Any]) -> tuple[Callable[[Any], bool], str]:
    def test(value: Any) -> bool:
        return isinstance(value, str | bool | int) and value in allowed

    return test, "one of " + ", ".join(map(str, allowed))


def _usual_floating_point() -> AbstractContextManager[Any]:
    """Suspend `numpy.seterr` settings that raise errors (a context manager).

    Numbers too small for float64, say, are no errors in what is computed here.
    """
    numpy = sys.modules.get("numpy")
    raising = {} if numpy is None else {kind: how for kind, how in numpy.geterr().items() if how == "raise"}
    usual = {kind: "ignore" if kind == "under" else "warn" for kind in raising}
    return numpy.errstate(**usual) if numpy is not None and raising else nullcontext()


def _format_value(value: Any) -> str:
    """Format a value for a message: its repr if short, else its type."""
    if value is None or isinstance(value, str | bytes | numbers.Number):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return f"an object of type {type(value).__name__}"


def closing_figures(function: F) -> F:
    """Return a function that closes the figures which it began, when it fails."""

    @wraps(function)
    def call(*positional: Any, **named: Any) -> Any:
        before = set(_figures())
        try:
            return function(*positional, **named)
        except BaseException:
            for number in set(_figures()) - before:
                sys.modules["matplotlib.pyplot"].close(number)
            raise

    return call  # type: ignore[return-value]


def _figures() -> list[int]:
    pyplot = sys.modules.get("matplotlib.pyplot")
    return [] if pyplot is None else list(pyplot.get_fignums())
