"""A report as files: a page, a PDF, every table and every figure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mutua.errors import InputError
from mutua.reports.document import Report
from mutua.reports.html import html_page
from mutua.reports.pdf import pdf_file
from mutua.reports.report import compose
from mutua.reports.study import read_study
from mutua.support.configuration import PathLike, local_path
from mutua.support.files import cannot_write, write_file


def write_report(
    report: Report,
    html: PathLike | None = None,
    pdf: PathLike | None = None,
    tables: PathLike | None = None,
    pictures: PathLike | None = None,
) -> Iterator[Path]:
    """Write the forms for which a path is given; yields each file that was written."""
    if html is not None:
        yield _put("--html", html, html_page(report))
    if pdf is not None:
        yield _put("--pdf", pdf, pdf_file(report))
    if tables is not None:
        for table in report.tables:
            folder = local_path(tables, "--tables")
            for end, text in (("tex", table.latex()), ("md", table.markdown()), ("csv", table.csv())):
                yield _put("--tables", folder / f"{table.name}.{end}", text)
    if pictures is not None:
        folder = local_path(pictures, "--figures")
        for picture in report.pictures:
            yield _put("--figures", folder / f"{picture.name}.svg", picture.file("svg"))
            yield _put("--figures", folder / f"{picture.name}.pdf", picture.file("pdf"))


def report(
    what: Any,
    html: PathLike | None = None,
    *,
    pdf: PathLike | None = None,
    tables: PathLike | None = None,
    figures: PathLike | None = None,
    load_data: bool = False,
    data_dir: PathLike | None = None,
) -> list[Path]:
    """Write a report on a saved run or comparison: its folder, or what `mutua.load_run` gives; the files written.

    Without html, pdf, tables and figures, the page is report.html in the folder.
    """
    place = getattr(what, "path", what)
    if not isinstance(place, str | os.PathLike):
        kind = type(what).__name__
        raise InputError(f"report: a {kind}; save it first: mutua.report(result.save('runs/first'))")
    if html is None and pdf is None and tables is None and figures is None:
        html = local_path(place, "RUN") / "report.html"
    return list(write_report(compose(read_study(place), load_data, data_dir), html, pdf, tables, figures))


def _put(option: str, path: PathLike, data: str | bytes) -> Path:
    path = local_path(path, option)
    try:
        write_file(path, data)
    except OSError as error:
        raise InputError(f"{option}: {cannot_write(path, error)}; name another place") from None
    return path
