"""The tables of a comparison, as 80 columns show them."""

from collections.abc import Callable
from typing import Any

from mutua.reports import console
from mutua.studies.comparison_tables import accuracy_table, comparison_tables, differences_table


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
