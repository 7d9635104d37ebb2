"""Text of users in Markdown: model cards, and Prefect's descriptions and cells of tables."""

from __future__ import annotations

import re
from typing import Any

HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}

MARKS = re.compile(r"[\\`*_\[\]~|]|(?<=:)/(?=/)|(?<=www)\.|@")
"""Marks of emphasis, code, links, tables, and of addresses that become links by themselves."""

BEGINNINGS = re.compile(r"^(#+(?=\s|$)|[+-](?=[\s-]|$)|=+$|\d+(?=[.)](\s|$)))")
"""Beginnings of lines that make a heading, or an entry of a list."""


def escape(text: Any) -> str:
    """Return text so that markdown shows it as it is, in one line."""
    line = " ".join(str(text).split())
    line = re.sub("[&<>]", lambda match: HTML[match[0]], line)
    line = MARKS.sub(lambda match: "\\" + match[0], line)
    return BEGINNINGS.sub(lambda match: match[0] + "\\" if match[0].isdigit() else "\\" + match[0], line)


def code_block(text: str) -> str:
    """Return lines as a block of code: nothing in them is markup, a fence neither."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
