"""What a Python session shows: objects in a few readable lines, progress on stderr, events in the log."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import mutua
from mutua import Federation
from mutua.errors import LeftOut
from mutua.methods import FML
from mutua.rounds import progress
from mutua.rounds.events import Event, Finished, Rejected, RoundEnded, Started
from mutua.rounds.history import History
from mutua.rounds.notebook_bars import NotebookBars
from mutua.rounds.progress import ProgressBar
from mutua.rounds.state import RunState
from mutua.support.text import Sheet

Federate = Callable[..., Federation]


@pytest.fixture
def made(federate: Federate) -> mutua.Result:
    return mutua.run(FML(), federate(), rounds=1, progress=False, workers=1)


# Objects


def test_every_object_prints_as_a_few_lines(made: mutua.Result, federate: Federate, tiny: dict[str, Any]) -> None:
    client = made.clients[0]
    shown = [
        made,
        made.federation,
        made.participation,
        made.history,
        made.ledger,
        client,
        client.predictor,
        client.client,
    ]
    shown += [client.client.train, client.brief, made.job, mutua.Recipe.of(tiny), RunState()]
    for one in shown:
        assert len(repr(one)) < 1000 and len(str(one).splitlines()) < 15, one
        assert "tensor(" not in repr(one) and "array(" not in repr(one)
    many = federate([5] * 10, held=2)
    many = mutua.Federation(
        [mutua.Client(f"c{k}", c.train, c.val, c.test, c.model) for k, c in enumerate(list(many.clients) * 20)]
    )
    assert len(str(many).splitlines()) < 15 and "... and 190 more" in str(many)


def test_a_result_shows_its_clients_what_left_and_how_good_it_is(made: mutua.Result) -> None:
    text = str(made)
    assert text.startswith("fml: 3 clients, 1 round, seed 0\nclient  model")
    for client in made.clients:
        row = next(line for line in text.splitlines() if line.startswith(client.id + " "))
        assert f"{100 * (client.accuracy() or 0):.1f}" in row.split()
    assert "left the clients: weights (meme)" in text
    assert repr(made) == text


def test_notebooks_get_a_table_in_which_nothing_is_markup(federate: Federate) -> None:
    evil = "<script>alert(1)</script>"
    federation = federate(classes=[(evil, "b&b", "c")] * 3, common=0)
    page = federation._repr_html_()
    assert page.count("<tr>") == 4 and evil not in page and "&lt;script&gt;" in page and "b&amp;b" in page
    result = mutua.run(FML(), federation, rounds=0, progress=False)
    assert result._repr_html_().count("<tr>") == 5 and "<svg" not in result._repr_html_()  # one point is no curve
    assert "<b>" not in Sheet("<b>", ["<b>"], [["<b>"]], [["<b>"]], ["<b>"]).html()


# Progress


def test_progress_is_on_stderr_by_default_and_can_be_turned_off(
    federate: Federate, capfd: pytest.CaptureFixture[str]
) -> None:
    mutua.run(FML(), federate(), rounds=2)
    out, err = capfd.readouterr()
    assert out == "" and [line.split(",")[0] for line in err.splitlines()] == [
        f"fml: round {r}/2" for r in range(3)
    ]
    mutua.run(FML(), federate(), rounds=2, progress=False)
    assert capfd.readouterr() == ("", "")


def test_in_a_terminal_progress_is_a_bar(federate: Federate, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(progress, "err", Console(file=file, width=80, force_terminal=True, color_system=None))

    def within(event: Event) -> None:  # a run inside a run: the terminal is the outer one's
        if isinstance(event, Finished):
            mutua.run(FML(), federate(), rounds=0)

    mutua.run(FML(), federate(), rounds=2, callbacks=[within])
    assert "round 2/2" in file.getvalue() and "━" in file.getvalue()


def test_notes_and_left_out_clients_are_shown_and_logged(
    federate: Federate, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    from dataclasses import replace

    federation = replace(federate(), notes=("few samples",))
    faults = {"dropout": [{"clients": ["b"], "rounds": [1]}]}
    with caplog.at_level(logging.INFO, "mutua"), pytest.warns(LeftOut):
        result = mutua.run(FML(), federation, rounds=2, faults=faults)
    err = capfd.readouterr().err
    assert err.startswith("note: few samples\n") and err.count("without b") == 1
    assert str(result).splitlines()[-1].startswith("b: answered 1 of 2 rounds; failed (round 1): ")
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.split(":")[1] for text in warned] == [" note", " round 1"] and "without b" in warned[1]
    told = [record.message for record in caplog.records if record.levelno == logging.INFO]
    assert told[0] == "fml: 3 clients, 2 rounds, seed 0" and told[-1] == "fml: finished"
    assert [text.split(": ")[1] for text in told[1:-1]] == ["round 0/2", "round 1/2", "round 2/2"]


def test_the_log_is_silent_until_a_program_asks(federate: Federate, capfd: pytest.CaptureFixture[str]) -> None:
    faults = {"dropout": [{"clients": ["b"], "rounds": [1]}]}
    with pytest.warns(LeftOut):
        mutua.run(FML(), federate(), rounds=1, faults=faults, progress=False)
    assert capfd.readouterr() == ("", "")


def test_a_command_shows_its_progress_once(command: Callable[..., Any]) -> None:
    done = command("run", "tiny.yaml")
    assert done.err.count("round 1/1") == 1 and "round" not in command("run", "tiny.yaml", "--json").err


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """stderr as an 80-column terminal has it."""
    file = io.StringIO()
    screen = Console(file=file, width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr(progress, "err", screen)
    return file.getvalue


def history(round: int, shared: float, own: float) -> History:
    made = History()
    made.add(round, "global", "global", "test", "accuracy", shared)
    made.add(round, "c0", "predictor", "test", "accuracy", own)
    return made


def started(rounds: int) -> Any:
    return Started(SimpleNamespace(plan=SimpleNamespace(rounds=rounds)), None)  # type: ignore[arg-type]


def ended(round: int, shared: float = 0.5, own: float = 0.75) -> Any:
    return RoundEnded(round, history(round, shared, own), None)  # type: ignore[arg-type]


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.bars() as bars:
        assert bars is None
        bar = ProgressBar("mine", bars)
        bar(started(4))
        bar(ended(2))
        unmeasured = history(2, 0.5, 0.75)
        unmeasured.add(3, "c0", "meme", "train", "objective", 1.0)
        for nothing_new in (unmeasured, history(2, 0.5, 0.75)):  # a round that is not evaluated says nothing
            bar(RoundEnded(3, nothing_new, None))  # type: ignore[arg-type]
        bar(Rejected(4, "c1", "it holds NaN"))
        bar(Finished())
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "mine: round 2/4, global 50.0 %, clients 75.0 %",
        "round 4: without c1: it holds NaN",
    ]


def test_bars_move_in_a_terminal(terminal: Callable[[], str]) -> None:
    with progress.bars() as bars:
        assert bars is not None
        bar = ProgressBar("[mine]", bars)
        bars.refresh()
        bar(started(4))
        for round in (1, 4):
            bar(ended(round))
            bars.refresh()
        bar(Finished())
    text = terminal()
    places = [text.index(word) for word in ("starting", "round 1/4", "round 4/4")]
    assert places == sorted(places) and "[mine]" in text
    frames = [line for line in text.replace("\r", "\n").splitlines() if "round 4/4" in line]
    assert "global 50.0 %, clients 75.0 %" in frames[-1]


def test_many_runs_become_lines_above_the_bar_that_works(terminal: Callable[[], str]) -> None:
    with progress.bars() as bars:
        assert bars is not None
        for name in ("first", "second"):
            bar = ProgressBar(name, bars, keep=False)
            bar(started(1))
            bar(ended(1))
            bar(Finished())
        assert bars.tasks == []
    assert "first: global 50.0 %, clients 75.0 %" in terminal()


class FakeDisplay:
    """What IPython.display does for the bars: it keeps every page that a handle has shown."""

    def __init__(self) -> None:
        self.pages: list[list[str]] = []

    def HTML(self, page: str) -> str:  # noqa: N802
        return page

    def display(self, page: str, display_id: bool) -> Any:
        self.pages.append(mine := [page])
        return SimpleNamespace(update=mine.append)


def test_a_notebook_has_one_bar_that_is_replaced(federate: Federate, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = FakeDisplay()
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    screen = Console(file=io.StringIO(), force_jupyter=True)
    monkeypatch.setattr(progress, "err", screen)
    mutua.run(FML(), federate(), rounds=2)
    [pages] = shown.pages
    assert "<progress aria-label" in pages[0] and "starting" in pages[0]
    assert '<progress max="2" value="2"' in pages[-1] and "round 2/2" in pages[-1]
    with progress.bars() as bars:
        assert isinstance(bars, NotebookBars)
        tasks = [bars.add_task(label, total=9, at="", note="") for label in ("<b>evil</b>", "second")]
        bars.remove_task(tasks[0])
        bars.update(tasks[1], completed=3, note="<i>")
    pages = shown.pages[-1]
    assert "&lt;b&gt;evil" in pages[1] and "<b>" not in "".join(pages)
    assert 'value="3"' in pages[-1] and "evil" not in pages[-1] and "&lt;i&gt;" in pages[-1]


def test_no_bars_where_they_are_not_wanted(terminal: Callable[[], str]) -> None:
    with progress.bars(wanted=False) as bars:
        assert bars is None
    assert terminal() == ""
