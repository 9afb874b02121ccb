"""`mutua report`: a run or a comparison as a page, a PDF, tables and figures."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from mutua.cli.options import DataDir, TrustCode, trust_names
from mutua.errors import MutuaError


def report_command(
    place: Annotated[
        Path, typer.Argument(help="The folder of a run or of a comparison.", metavar="RUN|COMPARISON")
    ],
    html: Annotated[
        Path | None,
        typer.Option(
            help="One page that needs no other file. Default: report.html in the folder.", metavar="FILE"
        ),
    ] = None,
    pdf: Annotated[Path | None, typer.Option(help="The same as a PDF.", metavar="FILE")] = None,
    tables: Annotated[
        Path | None, typer.Option(help="Folder for every table as LaTeX, Markdown and CSV.", metavar="DIR")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for every figure as SVG and PDF.", metavar="DIR")
    ] = None,
    load_data: Annotated[
        bool,
        typer.Option("--load-data", help="Load the data too: training labels, PCA of features, UMAP of the data."),
    ] = False,
    data_dir: DataDir = None,
    trust_code: TrustCode = None,
) -> None:
    """Write a report on a run or a comparison, from its files alone.

    Without --html, --pdf, --tables and --figures, the page is report.html in the folder.
    """
    from mutua.reports import console
    from mutua.reports.report import compose
    from mutua.reports.study import read_study
    from mutua.reports.writing import write_report

    trust_names(trust_code)
    if html is None and pdf is None and tables is None and figures is None:
        html = place / "report.html"
    study = read_study(place)
    if load_data:
        for one in study.runs:
            # Questions about code to trust come now, before the spinner. What fails here is told by the report.
            with suppress(MutuaError):
                _ = one.overview.folder.recipe
    with console.err.status("reading and drawing"):
        for path in write_report(compose(study, load_data, data_dir), html, pdf, tables, figures):
            console.say(str(path))
