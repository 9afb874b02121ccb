"""The page in a browser, while a run is at work: curves move, a client that fails shows as such, a run is stopped.

The long test looks at every page in both widths and themes, and has axe-core judge it, which is no part of mutua:
`npm pack axe-core`, unpack it, and name its file in MUTUA_AXE.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from killing import forked, waited
from mutua import Recipe
from mutua.runs.execute import execute
from mutua.runs.folder import RunFolder
from mutua.runs.recording import Recorder
from mutua.watch.serving import page_in_background

pytest.importorskip("uvicorn", reason='needs uvicorn: pip install "mutua[watch]"')
sync_api = pytest.importorskip("playwright.sync_api", reason='needs playwright: pip install "mutua[dev]"')
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
QUIET = ("no-sandbox", "disable-gpu", "disable-background-networking", "disable-component-update", "disable-sync")
AXE = os.environ.get("MUTUA_AXE")

LIVE = {
    "name": "live",
    "data": {"name": "mnist5k", "samples_per_client": 20},
    "partition": {"kind": "iid", "clients": 3},
    "models": {"global": {"name": "mlp", "width": 0.1}},
    "method": "fml",
    "rounds": 5000,
    "batch_size": 7,
    "optimizer": {"name": "sgd", "lr": 0.05},
    "device": "cpu",
    "faults": {"dropout": [{"clients": ["c1"], "rounds": list(range(3, 3000))}]},
}
EVIL = "<img src=x onerror=alert(1)>"


class Watched:
    """A browser at a page, and all that went wrong there or was asked of any server."""

    def __init__(self, browser: Any, address: str, **given: Any) -> None:
        self.address = address
        self.context = browser.new_context(**given)
        self.tab = self.context.new_page()
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.tab.on("console", lambda said: self.wrong.append(said.text))
        self.tab.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.tab.on("dialog", lambda dialog: self.wrong.append(f"a dialog: {dialog.message}"))
        self.tab.on("request", lambda request: self.asked.append(request.url))

    def check(self) -> None:
        """Nothing went wrong, nothing left this machine, nothing sticks out."""
        assert self.wrong == []
        assert self.asked and all(url.startswith(self.address) for url in self.asked)
        wide = self.tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0


@pytest.fixture(scope="module")
def live(finished: Callable[..., tuple[Path, Any]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of runs, one of them at work in a process of its own until it is stopped."""
    place = tmp_path_factory.mktemp("live")
    study = place / "study"
    study.mkdir()
    (study / "results.csv").write_text("method,seed,client,model,split,metric,value\n")
    for method, seed in (("fml", 0), ("fml", 1), ("fedavg", 0)):
        shutil.copytree(finished(method, rounds=2, seed=seed)[0], study / f"{method}-{seed}")
    shutil.copytree(finished("fml", rounds=2)[0], place / EVIL.replace("/", ""))
    recipe = Recipe.of(LIVE)

    def work() -> None:
        with suppress(Exception):
            execute(recipe, recipe.federation(), Recorder.create("live", 0, place / "live"), workers=1)

    child = forked(work, place / "told")
    try:
        until = time.monotonic() + 30
        while not (place / "live" / "recipe.yaml").is_file() and time.monotonic() < until:
            time.sleep(0.05)
        yield place
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        waited(child)


@pytest.fixture(scope="module")
def address(live: Path) -> Iterator[str]:
    """The page's server, in a thread."""
    with page_in_background(live) as found:
        yield found


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=[f"--{word}" for word in QUIET])
        yield opened
        opened.close()


def test_a_run_at_work_is_seen_compared_and_stopped(browser: Any, address: str, live: Path) -> None:
    seen = Watched(browser, address, viewport={"width": 1280, "height": 900})
    tab = seen.tab
    tab.goto(address)
    tab.get_by_role("row", name="live").get_by_text("running").wait_for()
    assert tab.get_by_role("link", name=EVIL.replace("/", "")).count() == 1  # as text
    tab.get_by_label("Compare fml-0").check()
    tab.get_by_label("Compare fml-1").check()
    tab.get_by_label("Compare fedavg-0").check()
    tab.get_by_role("link", name="Compare", exact=True).click()
    tab.locator(".band.c-own").wait_for()  # over the seeds of fml; fedavg has one
    assert tab.locator(".band").count() == 1 and tab.locator("path.curve").count() == 2
    tab.goto(f"{address}#/run/live")
    curve = tab.locator('path.curve[data-line="predictor"]')
    curve.wait_for()
    was = curve.get_attribute("d")
    tab.wait_for_function(
        "was => document.querySelector('path.curve[data-line=\"predictor\"]').getAttribute('d') !== was", arg=was
    )
    killed = tab.locator(".tile", has_text="c1")
    killed.get_by_text("failed", exact=True).wait_for()  # now, and with the reason
    killed.get_by_text("no reply came").wait_for()
    assert tab.locator(".tile", has_text="c0").get_by_text("no reply came").count() == 0
    tab.locator("circle.node.failed").wait_for()
    frame = tab.get_by_role("slider", name="Curves")
    frame.focus()
    tab.keyboard.press("Home")
    assert frame.get_attribute("aria-valuetext").startswith("round 0: ")
    tab.get_by_role("button", name="Stop the run").click()
    tab.get_by_role("dialog").get_by_role("button", name="Stop the run").click()
    tab.locator("h1 + .badge", has_text="stopped").wait_for()
    assert tab.locator(".command code").inner_text() == f"mutua run --resume {live}/live"
    assert RunFolder(live / "live").checkpoints.newest is not None
    seen.check()
    seen.context.close()


CASES = [(width, theme) for width in (1280, 390) for theme in ("light", "dark")]


@pytest.mark.long
@pytest.mark.parametrize(("width", "theme"), CASES)
def test_every_page_is_whole_and_accessible(
    width: int, theme: str, browser: Any, address: str, live: Path
) -> None:
    seen = Watched(browser, address, viewport={"width": width, "height": 844}, color_scheme=theme)
    for path in ("", "#/run/live", "#/study/study", "#/compare/study%2Ffml-0,study%2Ffedavg-0", "#/run/nothing"):
        seen.tab.goto(address + path)
        seen.tab.locator("main h1, main .empty").first.wait_for()
        seen.tab.wait_for_timeout(800)
        if path == "#/run/nothing":
            seen.wrong = [said for said in seen.wrong if "404" not in said]
        seen.check()
        if AXE:
            seen.tab.evaluate(Path(AXE).read_text(encoding="utf-8"))
            found = seen.tab.evaluate("axe.run({resultTypes: ['violations']})")
            grave = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
            assert grave == [], (path, [(one["id"], [node["html"] for node in one["nodes"]]) for one in grave])
    seen.context.close()
    if not AXE:
        pytest.skip("all but axe-core was checked: npm pack axe-core, and name its axe.min.js in MUTUA_AXE")
