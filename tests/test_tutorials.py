"""The tutorials and short pages work as they are written: all code, recipes and commands, in their order."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WALKED = [
    *(DOCS / name for name in ("start.md", "concepts.md", "how-to.md", "coming-from.md")),
    *sorted((DOCS / "tutorials").glob("*.md")),
]


def fences(page: Path) -> Iterator[tuple[str, str]]:
    """What stands behind the three backticks, and the block."""
    text = page.read_text(encoding="utf-8")
    yield from re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", WALKED, ids=lambda page: page.stem)
def test_a_page_works_from_its_first_line_to_its_last(
    page: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are written, Python is executed, commands are typed; what is marked `sh`, `py` or `skip` is shown."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.syspath_prepend(".")
    names: dict[str, Any] = {"__name__": "page"}
    done = 0
    before = set(sys.modules)
    try:
        for kind, block in fences(page):
            file = re.match(r"# ([\w-]+\.(?:py|yaml))", block)
            if kind in ("python", "yaml") and file:
                Path(file[1]).write_text(block, encoding="utf-8")
            elif kind == "python":
                exec(compile(block, f"{page.name}", "exec"), names)
                done += 1
            elif kind == "":
                for line in block.splitlines():
                    assert line.startswith("mutua "), f"{line}: a block of commands has others; mark it sh"
                    typed = command(*line.partition(" #")[0].split()[1:])
                    assert typed.code == 0, (line, typed.err)
                    done += 1
            else:
                assert kind in ("sh", "py", "yml", "text", "yaml skip"), kind
    finally:
        for name in set(sys.modules) - before:
            if name == "my_models":
                del sys.modules[name]
    assert done


def test_other_peoples_code_is_marked_as_not_run() -> None:
    text = (DOCS / "coming-from.md").read_text(encoding="utf-8")
    for name in ("PFLlib", "Flower", "NVFlare", "FedML"):
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        opening, fence, _ = section.partition("```")
        assert fence and "not run" in opening, name


def test_every_drawing_is_what_a_tool_of_the_repository_draws() -> None:
    concepts = runpy.run_path(str(ROOT / "tools" / "drawings.py"))["DRAWINGS"]
    architecture = runpy.run_path(str(ROOT / "tools" / "architecture_drawings.py"))["DRAWINGS"]
    drawn = {name: draw().svg() for name, draw in concepts.items()} | {
        n: draw() for n, draw in architecture.items()
    }
    assert {path.stem for path in (DOCS / "images").glob("*.svg")} == set(drawn)
    for name, text in drawn.items():
        there = (DOCS / "images" / f"{name}.svg").read_text(encoding="utf-8")
        assert there == text, "run python tools/drawings.py and python tools/architecture_drawings.py"
        page = "concepts" if name in concepts else "architecture"
        assert f"images/{name}.svg" in (DOCS / f"{page}.md").read_text(encoding="utf-8")


# Methods


def test_every_methods_page_says_what_leaves_and_when_to_use_it() -> None:
    for page in sorted((DOCS / "methods").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        bullets = " ".join(re.findall(r"^- \*\*(.*?)\*\*", text, re.MULTILINE)).lower()
        said = bullets + (" exchange" if re.search(r"\bsends|leaves|sent\b", text) else "")
        for needed in ("when", "exchange"):
            assert needed in said, f"{page.name}: nothing on {needed}"


def test_measured_numbers_are_those_of_the_page_of_reproductions() -> None:
    """What a method's page says of our own studies is in the page that `mutua reproduce` has written."""
    report = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    found = 0
    for number in re.findall(r"\d+\.\d+ ± \d+\.\d+", (DOCS / "which-method.md").read_text(encoding="utf-8")):
        assert number in report, f"which-method.md: {number}"
    for page in sorted((DOCS / "methods").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for part in re.findall(r"^- \*\*Measured\*\*.*?(?=\n- |\n\n)", text, re.MULTILINE | re.DOTALL):
            for number in re.findall(r"\d+\.\d+ ± \d+\.\d+|\d{1,3}(?:,\d{3})+", part):
                assert number in report, f"{page.name}: {number}"
                found += 1
    assert found > 30
