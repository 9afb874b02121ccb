"""The page: it needs nothing else, and names stay text."""

from __future__ import annotations

import csv
import io
import json
import re
from html import escape
from pathlib import Path

from mutua.reports.document import Report
from mutua.reports.html import html_page
from mutua.reports.pdf import pdf_file
from mutua.reports.report import compose as report
from mutua.reports.study import read_study
from reading_reports import ODD, Page, latex_rows, markdown_rows


def test_a_page_has_a_table_of_contents(compared_report: Report, compared_page: str) -> None:
    links = re.findall(r'<a href="#(section-\d+)">([^<]*)</a>', compared_page)
    assert [escape(section.title) for section in compared_report.sections] == [title for _, title in links]
    assert all(f'<h2 id="{at}">{title}</h2>' in compared_page for at, title in links)


def test_the_page_needs_nothing_else(compared_report: Report, compared_page: str) -> None:
    page = Page(compared_page)
    assert page.loads and all(value.startswith(("data:", "#section-")) for value in page.loads)
    assert (
        "http:" not in compared_page
        and "https:" not in compared_page
        and "url(" not in compared_page
        and "@import" not in compared_page
    )
    assert "script" not in page.tags
    assert "default-src &#x27;none&#x27;" in compared_page or "default-src 'none'" in compared_page
    assert len(page.images) == len(list(compared_report.pictures)) == 12
    assert all(len(image["alt"]) > 40 for image in page.images)
    assert len({image["alt"] for image in page.images}) == 12
    assert [tag for tag in page.tags if tag == "h1"] == ["h1"] and page.tags.count("h2") >= 8
    assert html_page(compared_report) == compared_page  # the same bytes for the same folder


def test_odd_names_stay_text(compared_copy: Path) -> None:
    run = compared_copy / "fml-0"
    held = json.loads((run / "run.json").read_text())
    held["summary"]["clients"][0]["id"] = ODD
    (run / "run.json").write_text(json.dumps(held))
    for name in ("history.csv", "ledger.csv"):
        with (run / name).open(newline="") as file:
            rows = [[ODD if cell == "c0" else cell for cell in row] for row in csv.reader(file)]
        with (run / name).open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    confusion = run / "clients" / "c0" / "confusion.json"
    counts = json.loads(confusion.read_text())
    counts["classes"][0] = ODD
    confusion.write_text(json.dumps(counts))
    made = report(read_study(run))
    page = Page(html_page(made))
    assert "b" not in page.tags
    assert [row[0] for row in page.tables["clients"]] == ["client", ODD, "c1", "c2"]
    assert any(ODD in image["alt"] for image in page.images)
    tables = {table.name: table for table in made.tables}
    assert markdown_rows(tables["clients"].markdown())[1][0] == ODD
    assert latex_rows(tables["clients"].latex())[1][0] == ODD
    assert next(csv.DictReader(io.StringIO(tables["clients"].csv())))["client"] == ODD
    assert pdf_file(made).startswith(b"%PDF")
