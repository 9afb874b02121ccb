"""What a site is told before it takes part, and what the documents say of it."""

from __future__ import annotations

from pathlib import Path

from mutua.deploy.site_check import IN_WORDS, OF_OWN_SAMPLES
from mutua.federation.message import Kind
from mutua.methods.base import method_names, method_of

ROOT = Path(__file__).parents[2]


def rows() -> dict[str, str]:
    """By kind, who sends it, as the threat model says."""
    page = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for line in page.splitlines():
        if line.startswith("|"):
            kinds, senders = line.split("|")[1:3]
            for name in kinds.split(","):
                found[name.strip()] = found.get(name.strip(), "") + senders.lower()
    return found


def test_every_kind_is_said_in_words_and_in_the_threat_model() -> None:
    assert set(IN_WORDS) == set(Kind)
    assert set(OF_OWN_SAMPLES) < set(Kind)
    assert {str(kind) for kind in Kind} <= rows().keys()


def test_the_threat_model_names_every_method_that_sends_more_than_weights_and_a_count() -> None:
    said = rows()
    sent = {(kind, name) for name in method_names() for kind in method_of({"name": name}).shares.values()}
    told = [pair for pair in sent if pair[0] not in (Kind.WEIGHTS, Kind.COUNT)]
    assert len(told) > 10
    assert [(kind, name) for kind, name in told if name not in said[kind]] == []
