"""How to repeat the runs and the report."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from mutua.reports.document import Code
from mutua.reports.html import html_page
from mutua.reports.report import compose as report
from mutua.reports.study import read_study


def test_the_command_is_told_as_it_was_typed_and_notes_are_not_lost(command: Callable[..., Any]) -> None:
    words = ("compare", "tiny.yaml", "--methods", "fml,fedavg", "--seeds", "0", "--workers", "1", "--out", "a b")
    odd = ("--set", "partition={kind: shards, clients: 2, shards_per_client: 3}")
    assert command(*words, *odd).code == 0
    [repeat] = [section for section in report(read_study(Path("a b"))).sections if section.title == "To repeat it"]
    codes = [block.text for block in repeat.blocks if isinstance(block, Code) and not block.folded]
    assert codes[0] == shlex.join(["mutua", *words, *odd])
    text = html_page(report(read_study(Path("a b"))))
    assert "mutua run &#x27;a b/fml-0/recipe.yaml&#x27;" in text
    notes = json.loads(Path("a b/fml-0/run.json").read_text())["notes"]
    assert notes and all(f"<p>Note: {escape(note)}.</p>" in text for note in notes)
