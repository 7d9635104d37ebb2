"""The report in a browser without a network: sizes of screens, print, contrast, pointer and keyboard."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorflow.report import write_report

pytestmark = pytest.mark.thorough

TOO_PALE = """() => {
  const light = color => {
    const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number);
    if (!a) return null;
    const [x, y, z] = [r, g, b].map(v => (v /= 255, v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = node =>
    node ? light(getComputedStyle(node).backgroundColor) ?? behind(node.parentElement) : 1;
  const found = new Set(), without = "svg, svg *, script, noscript, option, optgroup";
  for (const node of document.querySelectorAll(`main *:not(${without})`)) {
    const hasText = [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim());
    if (!hasText || !node.checkVisibility()) continue;
    const [low, high] = [light(getComputedStyle(node).color), behind(node)].sort((a, b) => a - b);
    const ratio = ((high + 0.05) / (low + 0.05)).toFixed(2);
    if (ratio < 4.5) found.add(`${node.tagName} ${ratio}: ${node.textContent.slice(0, 40)}`);
  }
  return [...found];
}"""
"""Texts whose contrast with what is behind them is below that of WCAG 2, level AA."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser that FACTORFLOW_CHROMIUM names, one on the path, or Playwright's own."""
    playwright = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    chosen = os.environ.get("FACTORFLOW_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    with playwright.sync_playwright() as run:
        try:
            browser = run.chromium.launch(executable_path=chosen, args=["--no-sandbox", "--disable-gpu"])
        except playwright.Error as error:
            pytest.skip(f"no browser: {error}")
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("browser")


@pytest.fixture
def open_page(chromium: Any, given: Any, folder: Path) -> Iterator[Any]:
    """A function that opens the report in a context with options; nothing fails, or asks for another file."""
    written = folder / "r.html"
    if not written.exists():
        write_report(given.posterior, written)
    errors: list[str] = []
    asked: list[str] = []
    contexts = []

    def new(**options: Any) -> Any:
        contexts.append(chromium.new_context(offline=True, **options))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(written.as_uri())
        return page

    yield new
    for context in contexts:
        context.close()
    assert errors == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked)


@pytest.fixture
def page(open_page: Any) -> Any:
    return open_page()


def test_tables_stand_below_their_search_fields(page: Any) -> None:
    """Also of factors, whose tables stand beside each other."""
    page.evaluate("document.querySelectorAll('details').forEach(item => item.open = true)")
    fields = page.locator(".search").all()
    assert fields
    for field in fields:
        box, table = field.bounding_box(), field.locator("xpath=following-sibling::table").bounding_box()
        assert box["x"] == table["x"]
        assert box["y"] + box["height"] <= table["y"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(open_page: Any, scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(item => item.open = true)")
    assert page.evaluate(TOO_PALE) == []
    page.emulate_media(media="print", color_scheme=scheme)
    assert page.evaluate(TOO_PALE) == []


def test_print(open_page: Any) -> None:
    """Controls go, and what they say stays: the column of the colours, and the colours of the key."""
    page = open_page(color_scheme="dark")
    page.select_option("#explorer-color", label="sex")
    page.emulate_media(media="print")
    assert not page.locator("#explorer-status").is_visible()
    assert not page.locator("#explorer-color").is_visible()
    legend = "getComputedStyle(document.getElementById('explorer-legend'), '::before').content"
    assert page.evaluate(legend) == '"sex: "'
    swatch = "getComputedStyle(document.querySelector('#explorer-legend i')).printColorAdjust"
    assert page.evaluate(swatch) == "exact"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_a_wide_screen_is_used(page: Any) -> None:
    widths = []
    for width in (1300, 2500):
        page.set_viewport_size({"width": width, "height": 900})
        widths.append(page.locator("#explorer canvas").first.bounding_box()["width"])
    assert widths[1] > 1.3 * widths[0]
    tops = {item.bounding_box()["y"] for item in page.locator(".answers section").all()}
    assert len(tops) == 1


def place_of(page: Any, given: Any, sample: int) -> tuple[float, float]:
    """Return where a sample lies in the first plot."""
    canvas = page.locator("#explorer canvas").first
    canvas.scroll_into_view_if_needed()
    box, ends = canvas.bounding_box(), []
    for k, low, size in ((0, 44, box["width"] - 50), (1, 6, box["height"] - 30)):
        values = given.rows["scores"][:, k]
        room = 0.04 * np.ptp(values)
        share = (values[sample] - values.min() + room) / (np.ptp(values) + 2 * room)
        ends.append(low + size * (share if k == 0 else 1 - share))
    return box["x"] + ends[0], box["y"] + ends[1]


def test_one_point_is_selected(open_page: Any, given: Any) -> None:
    """By a click, and by a tap on a narrow screen; that is shown in both plots."""
    outer = int(given.rows["scores"][:, 0].argmax())
    page = open_page()
    page.mouse.click(*place_of(page, given, outer))
    assert page.inner_text("#explorer-selected td").startswith(f"sample {outer}")
    page.mouse.click(*[x + 1 for x in page.locator("#explorer canvas").first.bounding_box().values()][:2])
    assert page.inner_text("#explorer-selected") == ""
    page = open_page(has_touch=True, viewport={"width": 390, "height": 844})
    page.touchscreen.tap(*place_of(page, given, outer))
    assert page.inner_text("#explorer-selected td").startswith(f"sample {outer}")
    assert page.inner_text("#explorer-status").startswith(f"sample {outer} ·")


def test_nothing_is_wider_than_the_screen(page: Any) -> None:
    for width in (390, 1300, 2500):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_points_are_selected_in_both_plots(page: Any, given: Any) -> None:
    canvas = page.locator("#explorer canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + 1)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + box["height"] - 1, steps=4)
    page.mouse.up()
    assert page.inner_text("#explorer-selected p").startswith("70 samples selected")
    assert len(page.query_selector_all("#explorer-selected tr")) == 71
    page.get_by_role("button", name="Clear").click()
    assert page.inner_text("#explorer-selected") == ""
    page.fill("#explorer-find", "sample 69")
    assert page.inner_text("#explorer-selected p").startswith("1 sample selected")
    score = given.rows["scores"][69, 0]
    assert f"{score:.4g}"[:5] in page.inner_text("#explorer-selected table")


def test_the_keyboard_goes_from_sample_to_sample(page: Any, given: Any) -> None:
    canvas = page.locator("#explorer canvas").first
    canvas.focus()
    order = np.argsort(given.rows["scores"][:, 0])
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#explorer-status").startswith(f"sample {order[1]} · Factor1 ")
    page.keyboard.press("Enter")
    assert "1 sample selected" in page.inner_text("#explorer-selected")
    page.keyboard.press("Escape")
    assert page.inner_text("#explorer-selected") == ""
    page.select_option("#explorer-color", label="sex")
    assert sorted(page.inner_text("#explorer-legend").split()) == ["f", "m"]
    assert "coloured by sex" in canvas.get_attribute("aria-label")


def test_tables_are_sorted_and_searched(page: Any) -> None:
    page.evaluate("document.querySelector('details:has(#features)').open = true")
    table = page.locator("#features")
    heading = table.locator("th button", has_text="loading")
    heading.click()
    assert table.locator("th[aria-sort=ascending]").inner_text().startswith("loading")
    loadings = [float(cell.replace("+", "")) for cell in table.locator("td:nth-child(4)").all_inner_texts()]
    assert loadings == sorted(loadings)
    heading.click()
    last = [float(cell.replace("+", "")) for cell in table.locator("td:nth-child(4)").all_inner_texts()]
    assert last == sorted(loadings, reverse=True)
    page.locator("details:has(#features) input").fill("mutation factor1")
    shown = table.locator("tr:visible").all_inner_texts()[1:]
    assert shown
    assert all("Factor1" in row and "mutation" in row for row in shown)
