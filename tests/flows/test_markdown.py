"""Names in Prefect's pages: shown as they are, whatever they contain."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from factorflow.core.markdown import code_block, escape
from factorflow.workflow.folder import Folder

NAMES = [
    "HLA-A*02:01", "HLA-B*07:02", "![x](http://127.0.0.1:9/x.png)", "[c](javascript:alert(3))",
    '"><img src=x onerror=alert(2)>', "<b>g</b>", "a_b_c", "__init__", "`code`", "a `` b", "~~gone~~", "a|b",
    "\\*", "&lt;", "<!-- gone", "<http://x.org>", "http://x.org", "www.x.org", "a@b.org", "# one", "- one",
    "+ one", "1. one", "2) one", "=====", "> quoted", "[r]: http://x.org", "c:/data//raw", "1.5", "-0.1",
    "---", "- - -", "#", "1.", "0001.zarr",
]  # fmt: skip


class Text(HTMLParser):
    """Tags and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def render() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_shown_as_it_is(name: str, render: MarkdownIt) -> None:
    page = Text(render.render(escape(name)))
    assert page.text.strip() == name
    assert page.tags == {"p"}
    assert not re.search(r"https?://|www\.|[^\\]@", escape(name))  # what becomes a link by itself


@pytest.mark.parametrize("name", NAMES)
def test_a_name_stays_in_its_cell(name: str, render: MarkdownIt) -> None:
    page = Text(render.render(f"| name | n |\n| --- | --- |\n| {escape(name)} | 1 |"))
    assert page.tags == {"table", "thead", "tbody", "tr", "th", "td"}
    assert "".join(page.text.split()) == f"namen{''.join(name.split())}1"


def test_lines_are_joined() -> None:
    assert escape("a\n\n# b\r\n\tc  d") == "a # b c d"
    assert (escape(12), escape("-0.1"), escape("0001.zarr")) == ("12", "-0.1", "0001.zarr")


def test_a_fence_ends_no_block_of_code(render: MarkdownIt) -> None:
    text = "views\n```\n<b>x</b>\n`````\n# no"
    page = Text(render.render(code_block(text)))
    assert page.tags == {"pre", "code"}
    assert page.text.strip() == text


@pytest.mark.thorough
def test_names_on_the_page_of_what_changed(render: MarkdownIt) -> None:
    """Of the data, the folder, factors and features; in alerts, notes and tables."""
    from factorflow.workflow.due import Due
    from factorflow.workflow.history import Entry
    from factorflow.workflow.refresh import RefreshResult
    from flows.artifacts import Label
    from flows.refresh import _page

    for name in NAMES:
        rows = [{"factor": name, "correlation": 0.5}]
        comparison = {"with": name, "factors": rows, "scores": [], "data": [{"feature": name, "moved": 1.0}]}
        entry = Entry(2, "fit", "", 9, "f", "", note=name, comparison=comparison)
        folder = Folder(Path("/runs"), "0002.zarr")
        result = RefreshResult(folder, True, Due("fit", name), entry, alerts=(name,))
        page = Text(render.render(_page(result, Label(name, name))))
        assert page.tags <= {*"h1 h2 p ul li table thead tbody tr th td".split()}, name
        text = " ".join(page.text.split())
        assert text.count(" ".join(name.split())) >= 7, (name, text)
