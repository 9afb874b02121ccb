"""What a run costs does not grow with what is behind it: rows are looked at once, and need not stay in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mutua import Recipe
from mutua.recipe.grid import Cell
from mutua.reports.loggers import Logged
from mutua.rounds.events import Event, Reached, RoundEnded, RoundStarted
from mutua.runs.execute import execute
from mutua.runs.recording import Recorder
from mutua.runs.resuming import ResumedRecorder
from mutua.studies import sweep_runner
from mutua.studies.sweep import Sweep
from mutua.support.row_log import Log

MANY = {
    "rounds": 6,
    "partition": {"kind": "iid", "clients": 8},
    "data": {"name": "mnist5k", "samples_per_client": 12},
}


class Ears:
    """A logger, which is given every number."""

    def log(self, round: int, numbers: Any) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many rows of any log were looked at so far."""
    count = [0]

    def row(self: Any, i: int, of: Any = Log._row) -> Any:
        count[0] += 1
        return of(self, i)

    monkeypatch.setattr(Log, "_row", row)
    return lambda: count[0]


@pytest.mark.parametrize("selection", ["last", "last5", "best"])
def test_no_row_is_looked_at_again_in_later_rounds_nor_once_for_every_client(
    tiny: dict[str, Any], tmp_path: Path, looks: Callable[[], int], selection: str
) -> None:
    recipe = Recipe.of({**tiny, **MANY, "selection": selection})
    in_round: list[int] = []

    def watch(event: Event) -> None:
        if isinstance(event, RoundStarted | RoundEnded):
            in_round.append(looks())

    folder = Recorder.create("x", 0, tmp_path / "x")
    result = execute(recipe, recipe.federation(), folder, workers=1, callbacks=[Logged(Ears()), watch])
    a_round = [b - a for a, b in zip(in_round[1::2], in_round[3::2], strict=False)]
    assert len(a_round) == 5 and len(set(a_round)) == 1
    rows = len(result.history) + len(result.ledger) + len(result.participation)
    assert looks() < 6 * rows  # written, logged, and selected in a pass or two: not once for every client


@pytest.mark.parametrize("selection", ["last5", "best"])
def test_rows_that_a_file_holds_leave_memory_and_the_run_ends_in_the_same_bytes(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, selection: str
) -> None:
    recipe = Recipe.of({**tiny, **MANY, "selection": selection})
    results, kept = [], []

    def watch(event: Event) -> None:
        if isinstance(event, Reached):
            kept.append(max(len(log._rounds) for log in _logs(event)))

    def stop(event: Event) -> None:
        if isinstance(event, RoundStarted) and event.round == 4:
            raise KeyboardInterrupt

    for name, most in (("whole", 10**6), ("few", 20), ("stopped", 20)):
        monkeypatch.setattr("mutua.support.row_log.ROWS_IN_MEMORY", most)
        kept.clear()
        folder = Recorder.create("x", 0, tmp_path / name)
        if name == "stopped":
            with pytest.raises(Exception, match="to go on"):
                execute(recipe, recipe.federation(), folder, callbacks=[stop])
            folder = ResumedRecorder(tmp_path / name)
        results.append(execute(recipe, recipe.federation(), folder, callbacks=[watch]))
        assert (max(kept) > 200) == (name == "whole")
    for name in ("few", "stopped"):
        for file in ("history.csv", "ledger.csv", "participation.csv"):
            assert (tmp_path / name / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
        one, other = (json.loads((tmp_path / n / "run.json").read_text())["summary"] for n in (name, "whole"))
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    whole, few, _ = results
    assert few.history.rows == whole.history.rows
    assert few.history.curve("predictor") == whole.history.curve("predictor")
    assert few.history.select(client="c3", round=2) == whole.history.select(client="c3", round=2) != []


def _logs(event: Reached) -> list[Any]:
    run_state: Any = event.run_state
    return [run_state.history.log, run_state.ledger.log, run_state.participation.log]


def test_results_of_a_sweep_are_not_written_after_every_run_but_are_whole_at_the_end(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [(Cell({"method": name}, {}), Recipe.of({**tiny, "method": name})) for name in ("fml", "independent")]
    written: dict[float, int] = {}
    for seldom in (0.0, 1e9):
        monkeypatch.setattr(sweep_runner, "_SELDOM", seldom)
        place = tmp_path / str(seldom)
        made = Sweep(place, cells, [0, 1, 2])
        write, count = made.write, [0]

        def counted(write: Any = write, count: list[int] = count) -> None:
            count[0] += 1
            write()

        made.write = counted  # type: ignore[method-assign]
        with made.locked():
            assert not sweep_runner.run_sweep(made, lambda news: None, workers=2).failed
        written[seldom] = count[0]
        text = (place / "comparison.json").read_text()
        assert len(json.loads(text)["runs"]) == 6
    assert written == {0.0: 7, 1e9: 2}
    files = [(tmp_path / str(seldom) / "results.csv").read_bytes() for seldom in written]
    assert files[0] == files[1]
