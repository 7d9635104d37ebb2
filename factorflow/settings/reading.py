"""Settings in YAML or JSON; duplicate keys are errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import count
from typing import Any

MOST_ENTRIES = 100_000
"""Settings have fewer; aliases of aliases can stand for billions."""

NUMBERS = {
    "int": r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$",
    "float": r"[-+]?((\.\d+|(0|[1-9]\d*)(\.\d*)?)([eE][-+]?\d+)?|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$",
}
"""As in YAML 1.2, those with leading zeros text. To YAML 1.1 12:00:00 is 43200, 010 is 8 and 1e-3 text."""


def read_yaml(text: str) -> Any:
    """Parse a YAML or JSON text.

    Raises
    ------
    ValueError
        Naming the line, when it cannot be read or a name comes twice in one mapping: YAML itself would take
        the last one without a word.
    """
    import yaml

    try:
        _check_names(yaml.compose(text, Loader=yaml.SafeLoader), count(), ())
        return yaml.load(text, Loader=_loader())  # noqa: S506  it is one of the safe ones
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        tabs = ", and YAML is indented by spaces" if "\\t" in str(error.problem) else ""
        raise ValueError(f"{where}{error.problem}{tabs}") from error
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None


@cache
def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    tags = {f"tag:yaml.org,2002:{name}": re.compile(pattern) for name, pattern in NUMBERS.items()}
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers
    Loader.yaml_implicit_resolvers = {
        first: [pair for pair in pairs if pair[0] not in tags] for first, pairs in resolvers.items()
    }
    for tag, pattern in tags.items():
        Loader.add_implicit_resolver(tag, pattern, list("-+.0123456789"))
    return Loader


def _check_names(node: Any, entries: Iterator[int], around: tuple[Any, ...]) -> None:
    """Refuse duplicate keys in a mapping, at any depth, and aliases without end, or of very much."""
    line = node.start_mark.line + 1 if node is not None else 0
    if node in around:
        raise ValueError(f"line {line}: it holds an alias of itself")
    if next(entries) > MOST_ENTRIES:
        raise ValueError(f"line {line}: there are more than {MOST_ENTRIES:,} entries, with those of aliases")
    value = getattr(node, "value", None)
    if not isinstance(value, list):
        return
    names: set[str] = set()
    for item in value:
        for part in item if isinstance(item, tuple) else (item,):
            _check_names(part, entries, (*around, node))
        if isinstance(item, tuple) and isinstance(name := item[0].value, str):
            if name in names:
                raise ValueError(f"line {item[0].start_mark.line + 1}: {name} comes a second time")
            names.add(name)
