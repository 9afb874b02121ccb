"""A report on the disk: a page, a PDF, every table and every figure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mutua.errors import InputError
from mutua.reports.page import html as as_html
from mutua.reports.paper import pdf as as_pdf
from mutua.reports.report import Report
from mutua.runs.files import reason
from mutua.runs.files import write as write_whole
from mutua.spec import PathLike, local_path


def write(
    report: Report,
    html: PathLike | None = None,
    pdf: PathLike | None = None,
    tables: PathLike | None = None,
    pictures: PathLike | None = None,
) -> Iterator[Path]:
    """Write what has a place to go to; what was written, file by file."""
    if html is not None:
        yield _put("--html", html, as_html(report))
    if pdf is not None:
        yield _put("--pdf", pdf, as_pdf(report))
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


def _put(option: str, path: PathLike, data: str | bytes) -> Path:
    path = local_path(path, option)
    try:
        write_whole(path, data)
    except OSError as error:
        raise InputError(f"{option}: cannot write to {path}: {reason(error)}; name another place") from None
    return path
