"""A site's store: whatever it has replied is on its disk, and another process goes on from there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mutua import Message, RunError
from mutua.engines.site_store import SiteStore
from mutua.federation.message import count

STATE = {"personal": {"w": torch.arange(3.0)}}


def opened(folder: Path) -> SiteStore:
    return SiteStore(folder=folder, client="a")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three rounds were committed in a process that has gone."""
    store = opened(tmp_path)
    for round in range(3):
        state = {"personal": {"w": STATE["personal"]["w"] + round}}
        store.commit(round, state, Message(samples=count(round + 1)), {"meme": 0.1 + round})
    return tmp_path


def test_another_process_has_the_last_two_commits_to_the_bit(folder: Path) -> None:
    store = opened(folder)
    assert [commit.round for commit in store.commits] == [1, 2]
    for round in (1, 2):
        commit = store.committed(round)
        assert commit is not None and commit.terms == {"meme": 0.1 + round}
        assert torch.equal(commit.state["personal"]["w"], STATE["personal"]["w"] + round)
        assert commit.reply == Message(samples=count(round + 1))
    assert len(list(folder.glob("clients/a/*"))) == 2  # of the first nothing is left


def test_what_is_forgotten_stays_forgotten(folder: Path) -> None:
    opened(folder).back_to(1)
    assert [commit.round for commit in opened(folder).commits] == [1]


def test_a_commit_that_is_not_listed_does_not_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the commit's file and the list of commits: the brief comes again and is worked again."""

    def killed(self: SiteStore) -> None:
        raise KeyboardInterrupt

    store = opened(folder)
    with monkeypatch.context() as patch:
        patch.setattr(SiteStore, "_save", killed)
        with pytest.raises(KeyboardInterrupt):
            store.commit(3, STATE, None)
    assert len(list(folder.glob("clients/a/*"))) == 3
    store = opened(folder)
    assert [commit.round for commit in store.commits] == [1, 2]
    store.commit(3, STATE, Message(samples=count(9)))
    assert [commit.round for commit in opened(folder).commits] == [2, 3]
    assert len(list(folder.glob("clients/a/*"))) == 2


@pytest.mark.parametrize("damage", ["list", "field", "file", "gone"])
def test_damage_is_said_with_the_way_out(damage: str, folder: Path) -> None:
    listed = folder / "commits.json"
    newest = max(folder.glob("clients/a/*"))
    match damage:
        case "list":
            listed.write_text("[{")
        case "field":
            listed.write_text(json.dumps([{"round": 2}]))
        case "file":
            newest.write_bytes(newest.read_bytes()[:-1] + b"x")
        case "gone":
            newest.unlink()
    with pytest.raises(RunError, match=r"(cannot be read|damaged).*; put it back from a backup, or"):
        opened(folder)
