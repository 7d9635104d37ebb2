"""Settings in YAML or JSON; duplicate keys are errors."""

from __future__ import annotations

from typing import Any


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
        _check_names(yaml.compose(text, Loader=yaml.SafeLoader))
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        tabs = ", and YAML is indented by spaces" if "\\t" in str(error.problem) else ""
        raise ValueError(f"{where}{error.problem}{tabs}") from error
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _check_names(node: Any) -> None:
    """Refuse duplicate keys in a mapping, at any depth."""
    value = getattr(node, "value", None)
    if not isinstance(value, list):
        return
    seen: set[str] = set()
    for item in value:
        for part in item if isinstance(item, tuple) else (item,):
            _check_names(part)
        if isinstance(item, tuple) and isinstance(name := item[0].value, str):
            if name in seen:
                raise ValueError(f"line {item[0].start_mark.line + 1}: {name} comes a second time")
            seen.add(name)
