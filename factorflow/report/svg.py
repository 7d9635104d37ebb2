"""Figures as parts of a page: inline SVG in the page's font and colours."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from factorflow.report.style import INK, MUTED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SVG = (
    'class="figure" role="img" xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
)

WIDTH = 9.4
"""Width of the page in inches of a figure."""


def draw_figure(draw: Callable[..., Any], height: float, *, width: float = WIDTH) -> str:
    """Return the figure of one function that draws into ``ax``."""
    return render(lambda figure: draw(ax=figure.subplots()), height, width)


def render(draw: Callable[[Figure], Any], height: float, width: float = WIDTH) -> str:
    """Return a figure as inline SVG whose text and lines take the colours of the page."""
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "factorflow",
        "font.size": 9,
        "text.color": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "axes.labelcolor": MUTED,
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.patch.set_alpha(0.0)
        draw(figure)
        for ax in figure.axes:
            ax.patch.set_alpha(0.0)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(buffer.getvalue(), width, _describe(figure))


def _describe(figure: Figure) -> str:
    """Return a description of a figure for screen readers: titles and axes of its panels."""
    texts = []
    for ax in figure.axes:
        title = ax.get_title(loc="left") or ax.get_title()
        axes = " against ".join(text for text in (ax.get_ylabel(), ax.get_xlabel()) if text)
        texts.append(": ".join(text for text in (title, axes) if text))
    return "; ".join(dict.fromkeys(text for text in texts if text)) or "figure"


def _inline(svg: str, width: float, label: str) -> str:
    """Return an SVG file as part of a page: the page's font and colours, ids that no other figure has.

    On a narrow screen it keeps a width at which it can be read, and is moved by itself.
    """
    text = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    head = f'<svg {SVG} aria-label="{escape(label)}" style="max-width:{width}in"'
    text = re.sub(r"<svg [^>]*?(viewBox=\"[^\"]+\")[^>]*>", lambda m: f"{head} {m[1]}>", text, count=1)
    used = set(re.findall(r"#([\w.-]+)[\")]", text))
    mark = f"f{zlib.crc32(text.encode()):08x}-"
    text = re.sub(r' id="([\w.-]+)"', lambda m: f' id="{mark}{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r'(url\(#|href="#)', rf"\1{mark}", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    text = text.replace(INK, "currentColor").replace(MUTED, "var(--muted)")
    return f'<div class="scroll">{text}</div>'
