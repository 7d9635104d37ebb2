"""Examples in docstrings; each goes on from the block of docs/reference/index.md, in one folder."""

from __future__ import annotations

import ast
import contextlib
import doctest
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

MOST_USED = set(
    """
    write_dataset write_table simulate open_dataset Dataset Dataset.describe Dataset.values configure fit
    resume project open_posterior load Posterior Posterior.project StorageMethods.save StorageMethods.findings
    Posterior.summary Posterior.top_features VarianceMethods.variance_explained PredictionMethods.predict
    PredictionMethods.impute Posterior.sample PredictionMethods.to_arviz StoredPosterior.features
    StoredVariables.variable StoredVariables.draws StoredPosterior.scores StoredPosterior.loadings
    StoredPosterior.inclusion StoredPosterior.intercept StoredPosterior.holdout_scores
    AnalysisMethods.associate AnalysisMethods.enrich AnalysisMethods.match associate enrich match_factors
    find_anomalies export_tables export_mofa annotate_anndata write_report plot_data plot_loadings
    plot_scores plot_trace plot_variance_explained
    """.split()
)
"""Names that users call most."""


def documented(path: Path) -> list[tuple[str, ast.Constant]]:
    """Return the docstrings of a file that have examples, by the names of their classes and functions."""
    found = []
    text = path.read_text(encoding="utf-8")

    def visit(node: Any, names: tuple[str, ...]) -> None:
        for child in node.body:
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                first = child.body[0]
                if ast.get_docstring(child) and ">>> " in first.value.value:
                    found.append((".".join([*names, child.name]), first.value))
                visit(child, (*names, child.name))

    if ">>> " in text:
        visit(ast.parse(text), ())
    return found


EXAMPLES = {
    (str(path.relative_to(ROOT).with_suffix("")).replace("/", "."), name): docstring
    for path in sorted((ROOT / "factorflow").rglob("*.py"))
    for name, docstring in documented(path)
}


def run_examples(text: str, globs: dict[str, Any], name: str, line: int) -> list[str]:
    """Run the examples of a docstring; return what doctest says of those that fail."""
    failures: list[str] = []
    test = doctest.DocTestParser().get_doctest(text, globs, name, None, line - 1)
    doctest.DocTestRunner(verbose=False).run(test, out=failures.append)
    return failures


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the folder and the names that the block of the page leaves."""
    plt = pytest.importorskip("matplotlib.pyplot")
    folder, names = tmp_path_factory.mktemp("examples"), dict[str, Any]()
    page = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    with contextlib.chdir(folder):
        exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], names)
    yield folder, names
    plt.close("all")


@pytest.mark.parametrize(("module", "name"), EXAMPLES)
def test_examples(
    module: str, name: str, given: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, names = given
    monkeypatch.chdir(folder)
    docstring = EXAMPLES[module, name]
    globs = {**vars(import_module(module)), **names}
    failures = run_examples(docstring.value, globs, f"{module}.{name}", docstring.lineno)
    assert not failures, "".join(failures)


def test_names_that_users_call_most_have_examples() -> None:
    assert MOST_USED <= {name for _, name in EXAMPLES}


def test_a_wrong_example_fails() -> None:
    assert run_examples(">>> 1 + 1\n3\n", {}, "x", 1)
    assert not run_examples(">>> 1 + 1\n2\n", {}, "x", 1)
