"""How quick the live page is with a large run (1,000 clients, 500 rounds) and with a list of 200 runs.

The folders are made up: files as a run writes them, about 400 MB. Times are of Chromium on the same machine. First
paint: from the beginning of the navigation until what the page is for is drawn. Update: from the moment when the
run's last write has returned until the browser has drawn what it says; the server looks every 20 ms.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

from playwright.sync_api import Page, sync_playwright

from mutua.support.folders import FolderLock

FIRST_PAINT, UPDATE = 2.0, 0.1
"""Seconds; more is too much."""
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
PAINTED = """what => new Promise(done => {
  const look = () => {
    const told = [...document.querySelectorAll("dd, .progress-text")];
    const tile = document.querySelector(".tile .seen");
    const found = told.some(node => node.textContent.startsWith(what)) &&
      (document.querySelector(".runs tbody tr") !== null ||
        (document.querySelector("path.curve") !== null && tile !== null &&
          tile.textContent.includes(`seen in round ${what.split(" ")[0]}`)));
    if (found) requestAnimationFrame(() => setTimeout(() => done(Date.now() / 1000)));
    else setTimeout(look, 1);
  };
  look();
})"""


class MadeUpRun:
    """A run's folder that grows by rounds."""

    def __init__(self, place: Path, clients: int, rounds: int, seed: int = 0) -> None:
        place.mkdir(parents=True)
        self.lock = FolderLock(place, "PLACE")  # as a run at work holds it
        self.rounds, self.random = rounds, random.Random(seed)
        self.ids = [f"c{n}" for n in range(clients)]
        names = "events.jsonl", "history.csv", "ledger.csv", "participation.csv"
        self.files: list[TextIO] = [(place / name).open("a", encoding="utf-8") for name in names]
        self.round = 0
        heads = (
            "round,client,model,split,metric,value\n",
            "round,client,direction,kind,name,arrays,values,bytes\n",
            "round,client,outcome,reason\n",
        )
        for file, head in zip(self.files[1:], heads, strict=True):
            file.write(head)
        models = dict.fromkeys(self.ids, "lenet5")
        begun = {"schema": 1, "method": "fml", "seed": seed, "rounds": rounds, "clients": self.ids}
        self._event(
            "begun", **begun, versions={}, command=None, models=models, samples=dict.fromkeys(self.ids, 270)
        )
        (place / "recipe.yaml").write_text(f"method: fml\nseed: {seed}\n")

    def _event(self, event: str, **facts: Any) -> None:
        at = (BEGAN + timedelta(seconds=self.round)).isoformat(timespec="milliseconds")
        self.files[0].write(json.dumps({"event": event, "time": at, **facts}) + "\n")

    def grow(self) -> None:
        """Write one more round."""
        self.round += 1
        n, draw = self.round, self.random.random
        _, history, ledger, turns = self.files
        score = 1 - 0.9 / (1 + n / 60)
        self._event("round", round=n, clients=self.ids)
        for client in self.ids:
            self._event("trained", round=n, client=client, seconds=0.123, bytes=134320)
            mine = score - 0.1 * draw()
            loss = 2.3 * (1 - mine)
            history.write(
                f"{n},{client},meme,train,objective,{loss}\n{n},{client},personal,train,objective,{loss / 2}\n"
                f"{n},{client},global,val,accuracy,{mine - 0.1}\n{n},{client},global,val,loss,{loss}\n"
                f"{n},{client},global,test,accuracy,{mine - 0.1}\n{n},{client},global,test,loss,{loss}\n"
                f"{n},{client},predictor,val,accuracy,{mine}\n{n},{client},predictor,val,loss,{loss}\n"
                f"{n},{client},predictor,test,accuracy,{mine}\n{n},{client},predictor,test,loss,{loss}\n"
            )
            ledger.write(
                f"{n},{client},down,weights,global,6,33450,133800\n{n},{client},down,envelope,,0,0,536\n"
                f"{n},{client},up,weights,meme,6,33450,133800\n{n},{client},up,envelope,,0,0,520\n"
            )
            turns.write(f"{n},{client},merged,\n")
        history.write(f"{n},global,global,test,accuracy,{score - 0.12}\n")
        share = round(1 / len(self.ids), 6)
        self._event("merged", round=n, weights=dict.fromkeys(self.ids, share))
        self._event("ended", round=n, accuracy={"global": score - 0.12, "clients": score - 0.05})
        for file in reversed(self.files):  # as a run does: what the events tell of may still be on its way
            file.flush()


@contextmanager
def served(place: Path) -> Iterator[str]:
    """`mutua watch` in a process of its own; its address."""
    words = [sys.executable, "-m", "mutua", "watch", str(place)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[-1]
        finally:
            server.send_signal(signal.SIGINT)


def first_paint(tab: Page, address: str, what: str) -> float:
    """Seconds from the beginning of the navigation."""
    began = time.time()
    tab.goto(address, wait_until="commit")
    painted: float = tab.evaluate(PAINTED, what)
    return painted - began


def updates(tab: Page, runs: list[MadeUpRun], shown: str, number: int) -> list[float]:
    """Seconds from what a run writes to what the browser draws, several times."""
    took = []
    for n in range(number):
        time.sleep(1.0 + 0.37 * (n % 3))  # not in step with the server's looks
        run = runs[n % len(runs)]
        tab.evaluate(f"what => {{ window.drawn = ({PAINTED})(what) }}", shown.format(run.round + 1))
        run.grow()
        written = time.time()
        took.append(tab.evaluate("window.drawn") - written)
    return took


def measured(clients: int, rounds: int, listed: int, chromium: str) -> bool:
    """Make the folders, open the pages, print the times; whether they are short enough."""
    fine = True

    def say(what: str, seconds: list[float], most: float | None) -> None:
        nonlocal fine
        middle = statistics.median(seconds)
        bar = "" if most is None else f"  bar {1000 * most:5.0f}"
        fine = fine and (most is None or middle <= most)
        print(f"{what:44} {1000 * middle:6.0f} ms  worst {1000 * max(seconds):6.0f}{bar}", flush=True)

    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as driver:
        place = Path(temporary)
        large = MadeUpRun(place / "large" / "run", clients, rounds + 20)
        for _ in range(rounds):
            large.grow()
        size = sum(path.stat().st_size for path in (place / "large" / "run").iterdir())
        many = [MadeUpRun(place / "many" / f"run-{n:03}", 5, 40, n) for n in range(listed)]
        for run in many:
            for _ in range(20):
                run.grow()
        for run in many[1:]:
            run.lock.release()  # one is at work
        print(f"{clients:,} clients, {rounds} rounds, {size / 1e6:.0f} MB; a list of {listed} runs")
        opened = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        tab = opened.new_page(viewport={"width": 1280, "height": 900})
        with served(place / "large") as address:
            began = time.time()
            say("large run, first paint", [first_paint(tab, f"{address}#/run/run", f"{rounds} of")], FIRST_PAINT)
            tab.locator(".note[role=status]").wait_for(state="hidden", timeout=120_000)
            say("large run, all that was recorded is read", [time.time() - began], None)
            again = [first_paint(tab, f"{address}?{n}#/run/run", f"{rounds} of") for n in range(3)]
            say("large run, first paint, opened again", again, FIRST_PAINT)
            say("large run, update", updates(tab, [large], "{} of", 10), UPDATE)
        with served(place / "many") as address:
            paints = [first_paint(tab, f"{address}?{n}#/", "20 / 40") for n in range(4)]
            say("list, first paint (first time)", paints[:1], FIRST_PAINT)
            say("list, first paint (then)", paints[1:], FIRST_PAINT)
            say("list, update", updates(tab, many[:1], "{} / 40", 8), UPDATE)
        opened.close()
    return fine


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--runs", type=int, default=200)
    given = parser.parse_args()
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        raise SystemExit("needs Chromium: apt-get install chromium")
    if not measured(given.clients, given.rounds, given.runs, found):
        raise SystemExit("too slow")
