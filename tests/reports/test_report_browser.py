"""The page in a browser: no error, no request, every figure to be seen, no sideways scrolling."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mutua.reports.html import html_page
from mutua.reports.report import compose as report
from mutua.reports.study import read_study

sync_api = pytest.importorskip("playwright.sync_api", reason='needs playwright: pip install "mutua[dev]"')
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
QUIET = ("no-sandbox", "disable-gpu", "disable-background-networking", "disable-component-update", "disable-sync")

SEEN = """() => [...document.images].map(image => {
  const box = image.getBoundingClientRect();
  return {loaded: image.complete && image.naturalWidth > 0, left: box.left, right: box.right,
          width: box.width, height: box.height, shown: image.checkVisibility()};
})"""

BROKEN = """() => [...document.querySelectorAll("thead th")].map(head => {
  const range = document.createRange();
  range.selectNodeContents(head);
  return [head.textContent, range.getClientRects().length];
}).filter(([text, lines]) => /^[a-z]+$/.test(text) && lines > 1)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=[f"--{word}" for word in QUIET])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def page(finished: Callable[..., tuple[Path, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of runs with long names, so that there is something to overflow."""
    place = tmp_path_factory.mktemp("runs")
    for method in ("fml", "fedavg", "independent"):
        shutil.copytree(finished(method, rounds=2)[0], place / f"{method}-with-quite-a-long-name-{'x' * 60}")
    shutil.copytree(finished("fml", rounds=2)[0], place / f"again-{'y' * 60}")
    file = place / "report.html"
    file.write_text(html_page(report(read_study(place))), encoding="utf-8")
    return file


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_whole_at_this_width(browser: Any, page: Path, width: int) -> None:
    tab = browser.new_page(viewport={"width": width, "height": 900})
    wrong: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda said: wrong.append(said.text))
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(page.as_uri())
    tab.wait_for_load_state("networkidle")
    assert wrong == []
    assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()]
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    figures = tab.evaluate(SEEN)
    assert len(figures) == tab.locator("figure").count() >= 6
    for figure in figures:
        assert figure["loaded"] and figure["shown"], figure
        assert figure["left"] >= 0 and figure["right"] <= width, figure
        assert figure["width"] >= min(300, 0.8 * width) and figure["height"] > 50, figure
    assert tab.evaluate(BROKEN) == []  # no word of a heading
    # What is too wide for the page scrolls within it, and can be reached.
    for table in tab.locator(".table").all():
        box = table.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
        assert table.get_attribute("tabindex") == "0"
    tab.close()
