"""Constants that decide where a fit ends stand in one table of the page, with the values of the code."""

import re
from importlib import import_module
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "models" / "sparse_gfa.md"
PACKAGE = "factorflow.models.sparse_gfa"


def test_the_table_of_constants_has_the_values_of_the_code() -> None:
    section = PAGE.read_text().split("## Constants")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)\.(\w+)` \| ([\d.]+) \| .+ \|$", section, re.MULTILINE)
    assert 15 <= len(rows) <= 20
    for module, name, value in rows:
        package = "factorflow" if module.startswith("likelihoods.") else PACKAGE
        assert getattr(import_module(f"{package}.{module}"), name) == float(value), name
