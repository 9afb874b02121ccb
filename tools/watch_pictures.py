"""Draw docs/images/watch-run.png and watch-phone.png: the live page of small runs, in Chromium."""

import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import yaml
from playwright.sync_api import sync_playwright

from mutua.watch.serving import page_in_background

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
FAULTS = {
    "dropout": [{"clients": ["c1"], "rounds": [5, 6]}],
    "corruption": [{"kind": "nan", "clients": ["c3"], "rounds": [12]}],
}
SHARDS = {
    "name": "shards",
    "data": {"name": "mnist5k", "samples_per_client": 120},
    "partition": {"kind": "shards", "clients": 4, "shards_per_client": 4},
    "models": {"global": "mlp"},
    "rounds": 8,
    "batch_size": 20,
    "optimizer": {"name": "sgd", "lr": 0.02, "momentum": 0.9},
}
METHODS = "fml,fedavg,independent"


def mutua(*words: str) -> None:
    """Run a command of mutua."""
    subprocess.run([sys.executable, "-m", "mutua", *words], check=True, stdout=subprocess.DEVNULL)


def draw() -> None:
    """Run, serve, draw."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    recipe = yaml.safe_load((ROOT / "examples" / "mixed-models.yaml").read_text())
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as driver, ExitStack() as stack:
        place = Path(temporary) / "runs"
        recipe.update(rounds=12, evaluate_every=1, faults=FAULTS)
        (Path(temporary) / "mixed.yaml").write_text(yaml.safe_dump(recipe))
        mutua("run", f"{temporary}/mixed.yaml", "--out", f"{place}/mixed-models")
        (Path(temporary) / "shards.yaml").write_text(yaml.safe_dump(SHARDS))
        mutua("compare", f"{temporary}/shards.yaml", "--methods", METHODS, "--out", f"{place}/shards")
        address = stack.enter_context(page_in_background(place))
        opened = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for name, path, width, height, theme in (
            ("watch-run", "#/run/mixed-models", 1280, 1180, "light"),
            ("watch-phone", "#/study/shards", 390, 1000, "dark"),
        ):
            tab = opened.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
            tab.goto(f"{address}{path}")
            tab.locator("path.curve").first.wait_for()
            tab.evaluate("document.querySelectorAll('.page-head p').forEach(text => { text.hidden = true; })")
            tab.wait_for_timeout(500)
            tab.screenshot(path=IMAGES / f"{name}.png")
        opened.close()


if __name__ == "__main__":
    draw()
