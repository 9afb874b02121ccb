"""What a site is told before it takes part, and what the documents say of it."""

from __future__ import annotations

from pathlib import Path

from mutua.deploy.site_check import IN_WORDS
from mutua.federation.message import Kind

ROOT = Path(__file__).parents[2]


def test_every_kind_is_said_in_words_and_in_the_threat_model() -> None:
    page = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("|")]
    said = {name.strip() for row in rows for name in row.split(",")}
    assert set(IN_WORDS) == set(Kind)
    assert {str(kind) for kind in Kind} <= said
