"""What people see: tables that fit 80 columns, bars that move, lines where nobody watches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mutua.reports import console
from mutua.support.text import percent, size

Runs = Callable[..., tuple[Path, Any]]


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


# Progress


def test_notes_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    console.show_notes(["half of [it]"])
    assert capsys.readouterr() == ("", "note: half of [it]\n")
