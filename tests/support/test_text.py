"""Text for people and for files: numbers, and characters that do nothing to a terminal or a spreadsheet."""

from __future__ import annotations

from mutua.support.text import markup, percent, printable, size, spreadsheet_csv


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


def test_numbers_stay_numbers() -> None:
    rows = [[-1.5, "-1.5", "-1e-3", 3, None, "plain", ""], ["-a", "=", "＝1", "\t=1", "\n=1"]]
    assert spreadsheet_csv(rows) == "-1.5,-1.5,-1e-3,3,,plain,\n'-a,'=,'＝1,\\t=1,\\n=1\n"
    assert printable("a\nb\x1b") == "a\nb\\x1b" and printable("x" * 50, 40) == "x" * 39 + "…"
    assert markup("<\x1b>") == "&lt;\\x1b&gt;"
