"""FedH2L's Table I: marks are of what methods declare and send, and differences from the paper's are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mutua import InputError
from mutua.reports import listings
from mutua.studies import systems as table
from mutua.studies.systems import PUBLISHED, TRAITS, SystemFacts, systems

Command = Callable[..., Any]
SOME = ("fedh2l", "fedprox", "fedmd", "scaffold", "lgfedavg", "independent")


@pytest.fixture(scope="module")
def some() -> dict[str, SystemFacts]:
    return {one.method: one for one in systems(SOME)}


def test_the_papers_systems_come_first_in_its_order(some: dict[str, SystemFacts]) -> None:
    assert list(some) == ["fedprox", "fedmd", "fedh2l", "independent", "lgfedavg", "scaffold"]
    assert len(PUBLISHED) == 13 and all(set(marks) == set(TRAITS) for marks in PUBLISHED.values())


def test_marks_are_of_what_is_declared_and_sent(some: dict[str, SystemFacts]) -> None:
    marks = {name: " ".join(one.marks.values()) for name, one in some.items()}
    assert marks == {
        "fedprox": "no no no - +",
        "fedmd": "yes no yes + -",
        "fedh2l": "yes yes yes + +",
        "independent": "yes yes yes + -",
        "lgfedavg": "partly no no + +",
        "scaffold": "no no no - +",
    }
    assert some["fedmd"].differences == {"data": ("-", "+")}
    assert not some["fedprox"].differences and some["scaffold"].published is None


def test_bytes_are_of_the_ledger(some: dict[str, SystemFacts]) -> None:
    """An mlp has 199,210 numbers of 4 bytes; SCAFFOLD's controls are as large again; a head has 2,010."""
    sent = {name: one.bytes_up or 0 for name, one in some.items()}
    assert 4 * 199_210 < sent["fedprox"] < 4 * 199_210 + 1000
    assert 8 * 199_210 < sent["scaffold"] < 8 * 199_210 + 2000
    assert 4 * 2010 < sent["lgfedavg"] < 4 * 2010 + 500
    assert sent["fedh2l"] < 1500 and sent["independent"] == 0


def test_a_method_that_refuses_the_small_run_is_told_by_what_it_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = table._sent

    def refusing(method: Any) -> Any:
        if method.name == "fml":
            raise InputError("labels_leave: false")
        return sent(method)

    monkeypatch.setattr(table, "_sent", refusing)
    [fml] = systems(["fml"])
    assert fml.bytes_up is None and fml.refused == "labels_leave: false"
    assert fml.marks["no weights"] == "no" and fml.marks["bandwidth"] == "-"


def test_the_command_prints_the_table_and_lists_differences(
    command: Command, some: dict[str, SystemFacts], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = replace(some["fedprox"], marks={**some["fedprox"].marks, "bandwidth": "+"}, refused="no labels leave")
    monkeypatch.setattr(listings, "systems", lambda: [odd, some["fedh2l"], some["scaffold"]])
    done = command("methods", "--table")
    said = " ".join(done.out.split())
    assert done.code == 0 and "…" not in done.out
    assert "fedprox no (no) no (no) no (no) + (-) + (+)" in said and "scaffold no no no - + 1.6 MB" in said
    assert "differences: fedprox, bandwidth: + here, - in the paper" in said and "fedh2l, " not in said
    assert "fedprox: by what it declares alone; no labels leave" in said
    assert "in the paper and not here: fedavg, fml" in said
