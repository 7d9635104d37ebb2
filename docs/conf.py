"""The site: `sphinx-build -W --keep-going -b html docs docs/_build/html`.

Nothing is fetched when it is read: fonts, scripts and icons are files of the theme, and MathJax is one file
of the package django-static-mathjax (which does not need Django).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import factorflow
from factorflow.settings import Options, describe

project = "factorflow"
author = "the authors of factorflow"
copyright = author
version = release = factorflow.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_external_toc",
]
templates_path = ["_templates"]
exclude_patterns = ["_build"]
default_role = "literal"  # docstrings write names in single backticks
smartquotes = False  # defaults and commands are to be copied as they are
suppress_warnings = ["etoc.toctree"]  # autosummary's own toctrees stand beside those of _toc.yml

external_toc_path = "_toc.yml"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3  # links to headings, as where the repository is hosted

autosummary_generate = True
autodoc_typehints = "none"  # numpydoc's sections say types, with shapes
numpydoc_show_class_members = False  # the template lists them

BACKSLASH = "\\"

COPIES = {
    "../CHANGELOG.md": "reference/changelog.rst",
    "../../CHANGELOG.md": "changelog.rst",
    "../examples/README.md": "reference/example-data.rst",
}

html_theme = "pydata_sphinx_theme"
html_title = "factorflow"
html_show_sourcelink = False
html_static_path = [str(Path(find_spec("mathjax").origin).parent / "static/mathjax/es5/tex-svg.js")]
mathjax_path = "tex-svg.js"  # SVG: needs no fonts beside it
html_theme_options = {"navbar_align": "left", "show_toc_level": 2, "navigation_with_keys": False}


def read_here(app: Sphinx, name: str, source: list[str]) -> None:
    """Lead links to pages beside this folder to the copies of them that the site has."""
    for path, page in COPIES.items():
        source[0] = source[0].replace(f"]({path})", f"]({page})")


def add_options(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Say what the fields of settings are, as the docstrings of model configurations do by themselves."""
    if isinstance(obj, type) and issubclass(obj, Options) and obj.model_fields and "Parameters" not in lines:
        lines += ["", "Parameters", "----------"]
        for option in describe(obj):
            default = option["default"] if option["default"] == "needed" else f"default {option['default']}"
            lines += [f"{option['option']} : {option['values']}; {default}"]
            lines += [f"    {option['description'].replace('|', BACKSLASH + '|')}"]


def skip_helpers(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out methods that only the package calls."""
    return True if name.startswith("check_") else None


def setup(app: Sphinx) -> None:
    """Say what Sphinx calls."""
    app.connect("source-read", read_here)
    app.connect("autodoc-process-docstring", add_options, priority=400)  # before numpydoc reads it
    app.connect("autodoc-skip-member", skip_helpers)
