"""What people see: tables that fit 80 columns, bars that move, lines where nobody watches."""

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from mutua.reports import console
from mutua.reports.console import ProgressBar
from mutua.rounds import progress
from mutua.rounds.events import Finished, Rejected, RoundEnded, Started
from mutua.rounds.history import History
from mutua.studies.comparison_tables import accuracy_table, comparison_tables, differences_table
from mutua.support.text import percent, size

Runs = Callable[..., tuple[Path, Any]]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """stdout as an 80-column file has it."""
    file = io.StringIO()
    plain = Console(file=file, width=80, markup=False, emoji=False, highlight=False)
    monkeypatch.setattr(console, "out", plain)
    return file.getvalue


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """stderr as an 80-column terminal has it."""
    file = io.StringIO()
    for module in (console, progress):
        screen = Console(file=file, width=80, force_terminal=True, color_system=None)
        monkeypatch.setattr(module, "err", screen)
    return file.getvalue


def test_numbers_for_people() -> None:
    assert [size(n) for n in (0, 999, 1000, 246_824, 12_345_678, 10**12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "246.8 kB",
        "12.3 MB",
        "1.0 TB",
    ]
    assert (percent(0.12345), percent(1.0), percent(None)) == ("12.3", "100.0", "–")


def test_a_table_cuts_nothing_off(printed: Callable[[], str]) -> None:
    table = console.table(["name", "what"], ["number"])
    long = "a_name_that_is_longer_than_any_column_of_eighty_could_ever_hope_to_be_in_its_life"
    table.add_row(long, "some words " * 20, "1234567890")
    table.add_row("[red]x[/red]", ":smile:", "1")
    console.show_table("title", table, "remark")
    text = printed()
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    assert long in "".join(line.split(" ")[0] for line in text.splitlines())
    assert "1234567890" in text and "[red]x[/red]" in text and ":smile:" in text
    assert text.startswith("title\n") and text.endswith("remark\n")


# Results


def test_a_result(finished: Runs, printed: Callable[[], str]) -> None:
    _, result = finished("fedavg")
    console.show_result(result)
    text, summary = printed(), result.summary()
    assert max(map(len, text.splitlines())) <= 80
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    up = result.ledger.bytes("up", "c1")
    own = percent(result.clients[1].accuracy())
    assert rows["c1"] == [
        "c1",
        "mlp×0.1",
        "14",
        "1/1",
        own,
        percent(result.clients[1].accuracy("global")),
        *size(up).split(),
    ]
    assert rows["mean"][1] == percent(result.mean_accuracy())
    assert f"global on the common test set: {percent(summary['global']['accuracy'])} %, loss " in text
    assert "left the clients: weights (meme), count (samples)" in text
    assert text.endswith("models start from scratch\noptions: combine mean, weights samples, serve global\n")
    assert "local steps" not in text


def test_a_result_of_models_that_do_not_start_from_scratch_says_so(
    finished: Runs, printed: Callable[[], str]
) -> None:
    folder, _ = finished("fedavg")
    file = str(folder / "global" / "weights.safetensors")
    _, result = finished("fedavg", models={"global": {"name": "mlp", "width": 0.1, "init": file}})
    console.show_result(result)
    assert f"models start from {file}\n" in printed()


def test_a_result_over_domains_and_of_several_steps_a_round(finished: Runs, printed: Callable[[], str]) -> None:
    rotated = {"kind": "rotated", "angles": [0, 90]}
    changes = {"partition": rotated, "public": {"share": 0.1}, "steps": 3, "rounds": 2}
    _, result = finished({"name": "fedh2l"}, **changes)
    console.show_result(result)
    text, found = printed(), {metric: percent(value) for metric, value in result.summary()["domains"].items()}
    assert f"own domain {found['wdp']} %, the others' {found['cdp']} %, all {found['acc']} %" in text
    assert "2 rounds of 3: 6 local steps per client" in text
    assert "kl True, projection paper, local_gradient sum, local_data private, combine mean\n" in text


def test_the_weighted_mean_stands_beside(finished: Runs, printed: Callable[[], str]) -> None:
    data = {"name": "mnist5k", "samples_per_client": 60}
    _, result = finished("fedavg", data=data, partition={"kind": "lognormal", "clients": 3, "sigma": 1.0})
    sizes = [len(client.client.test) for client in result.clients]
    right = [client.accuracy() for client in result.clients]
    weighted, plain = sum(n * a for n, a in zip(sizes, right, strict=True)) / sum(sizes), sum(right) / 3
    assert percent(weighted) != percent(plain)
    console.show_result(result)
    rows = {line.split()[0]: line.split() for line in printed().splitlines() if line.strip()}
    assert rows["mean"][1] == percent(plain) and rows["weighted"][1] == percent(weighted)


def test_a_result_without_a_global(finished: Runs, printed: Callable[[], str]) -> None:
    _, result = finished("independent")
    console.show_result(result)
    text = printed()
    assert "left the clients: nothing" in text and "common test set" not in text
    assert next(line for line in text.splitlines() if line.startswith("c0")).split()[-3:] == ["–", "0", "B"]


def test_a_result_that_has_diverged_says_so(finished: Runs, printed: Callable[[], str]) -> None:
    _, result = finished("fedavg", optimizer={"lr": 1e6})
    console.show_result(result)
    assert "the model has diverged, a lower optimizer.lr may help" in printed()


def spread(mean: float | None, std: float | None = 0.01) -> dict[str, Any]:
    return {"mean": mean, "std": std, "values": []}


def test_a_comparison(printed: Callable[[], str]) -> None:
    def row(shared: float | None, own: float, d_shared: float | None, d_own: float) -> dict[str, Any]:
        return {
            "minus": "fml",
            "accuracy": {"global": spread(shared), "predictor": spread(own)},
            "difference": {"global": spread(d_shared), "predictor": spread(d_own)},
            "bytes": {"up": 1234.0, "down": 0},
        }

    long = "fedprox:mu=0.1:weights=uniform:serve=local"
    summary = {
        "fml": row(0.761, 0.971, 0, 0),
        long: row(0.692, 0.693, -0.069, -0.278),
        "alone": row(None, 0.9, None, -0.071),
    }
    console.show_sheets(accuracy_table(summary, "best", ["a note"]))
    text = printed()
    lines = [line.split() for line in text.splitlines()]
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    assert ["fml", "76.1", "±", "1.0", "97.1", "±", "1.0", "1.2", "kB"] in lines
    assert [long, "69.2", "±", "1.0", "69.3", "±", "1.0", "1.2", "kB"] in lines
    assert lines.count(["minus", "fml", "-6.9", "±", "1.0", "-27.8", "±", "1.0"]) == 1
    assert ["minus", "fml", "–", "-7.1", "±", "1.0"] in lines
    assert text.startswith("accuracy (%) when best on validation: mean ± ")
    assert text.endswith("a note\n") and "predictor: the clients' predictors on their own test data" in text


def test_a_comparison_of_one_seed_over_domains(printed: Callable[[], str]) -> None:
    cells = {key: spread(0.5, None) for key in ("global", "predictor", "wdp", "cdp", "acc")}
    console.show_sheets(
        accuracy_table(
            {"fml": {"minus": "fml", "accuracy": cells, "difference": cells, "bytes": {"up": 0}}}, "last"
        )
    )
    lines = [line.split() for line in printed().splitlines()]
    assert ["method", "global", "predictor", "acc", "sent"] in lines
    assert ["fml", "50.0", "50.0", "50.0", "0", "B"] in lines


def test_differences_are_told_with_what_they_are_to(printed: Callable[[], str]) -> None:
    def row(minus: str, mean: float, low: float | None, high: float | None) -> dict[str, Any]:
        found = {"predictor": spread(mean) | {"low": low, "high": high}}
        return {"minus": minus, "accuracy": {"predictor": spread(0.5)}, "difference": found, "bytes": {"up": 0}}

    over = dict.fromkeys(("worst", "spread_clients", "better_off"), spread(0.5))
    summary = {
        "x, easy": row("x, easy", 0, 0, 0),
        "x, hard": row("x, hard", 0, 0, 0),
        "y, easy": row("x, easy", 0.03, 0.01, 0.05),
        "y, hard": row("x, hard", -0.03, -0.05, -0.01),
        "z, hard": row("x, hard", 0.01, -0.02, 0.04),
        "z, easy": row("x, easy", 0.01, None, None),  # of one seed
    }
    console.show_sheets(accuracy_table(summary, "last"))
    first = printed()
    assert [line.split()[1:4] for line in first.splitlines() if line.startswith("  minus")] == [
        ["x,", "easy", "+3.0"],
        ["x,", "hard", "-3.0"],
        ["x,", "hard", "+1.0"],
        ["x,", "easy", "+1.0"],
    ]
    console.show_sheets(differences_table(summary))
    told = printed().removeprefix(first)
    assert [" ".join(line.split()) for line in told.splitlines() if "predictor" in line] == [
        "y, easy x, easy predictor +3.0 +1.0 to +5.0 better",
        "y, hard x, hard predictor -3.0 -5.0 to -1.0 worse",
        "z, hard x, hard predictor +1.0 -2.0 to +4.0 cannot tell",
    ]
    one_seed = {label: {**summary[label], "clients": over} for label in ("x, easy", "z, easy")}
    assert [table.title[:12] for table in comparison_tables(one_seed, "last")] == ["accuracy (%)", "over clients"]


# Progress


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
    with console.bars() as bars:
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
    with console.bars() as bars:
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
    with console.bars() as bars:
        assert bars is not None
        for name in ("first", "second"):
            bar = ProgressBar(name, bars, keep=False)
            bar(started(1))
            bar(ended(1))
            bar(Finished())
        assert bars.tasks == []
    assert "first: global 50.0 %, clients 75.0 %" in terminal()


def test_no_bars_where_they_are_not_wanted(terminal: Callable[[], str]) -> None:
    with console.bars(wanted=False) as bars:
        assert bars is None
    assert terminal() == ""


def test_notes_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    console.show_notes(["half of [it]"])
    assert capsys.readouterr() == ("", "note: half of [it]\n")
