"""A report as one HTML page that needs nothing else: styles and pictures are inside."""

from __future__ import annotations

from base64 import b64encode
from itertools import groupby

from mutua import __version__
from mutua.reports.document import Code, Content, Report, Section
from mutua.reports.figures import INK, Picture
from mutua.reports.tables import Table
from mutua.support.text import markup

_STYLE = f"""
body {{ margin: 0; background: #fff; color: #1a1a1a; font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", Arial, sans-serif; }}
main {{ max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem; }}
h2 {{ font-size: 1.25rem; margin: 2.2rem 0 .6rem; padding-top: .8rem; border-top: 1px solid #ddd; }}
p {{ max-width: 46rem; margin: .5rem 0; }}
nav ol {{ columns: 18rem; font-size: .92rem; margin: .8rem 0 0; padding-left: 1.4rem; }}
nav a {{ color: #0b57a4; }}
.caption {{ font-size: .92rem; font-weight: 600; margin: 1.2rem 0 0; }}
.table {{ overflow-x: auto; margin: .4rem 0 .3rem; }}
table {{ border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }}
thead th {{ border-top: 2px solid #1a1a1a; border-bottom: 1px solid #1a1a1a; vertical-align: bottom; }}
tbody tr:last-child > * {{ border-bottom: 2px solid #1a1a1a; }}
th, td {{ text-align: left; padding: .3rem .9rem .3rem 0; vertical-align: top; overflow-wrap: break-word; }}
td {{ min-width: 3rem; max-width: 34rem; }}
tbody th {{ font-weight: 400; white-space: nowrap; }}
.number {{ text-align: right; }}
td.number {{ white-space: nowrap; }}
th:last-child, td:last-child {{ padding-right: 0; }}
.remarks p {{ font-size: .85rem; color: #444; margin: .1rem 0; }}
.figures {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1.5rem;
  align-items: start; }}
figure {{ margin: .5rem 0; }}
figure img {{ display: block; width: 100%; height: auto; }}
figcaption {{ font-size: .9rem; font-weight: 600; color: {INK}; margin-bottom: .3rem; }}
pre {{ background: #f6f6f6; padding: .7rem .9rem; overflow-x: auto; font-size: .85rem; line-height: 1.4; }}
summary {{ cursor: pointer; }}
footer {{ margin-top: 3rem; font-size: .85rem; color: #444; }}
@media (max-width: 40rem) {{ tbody th {{ white-space: normal; min-width: 7rem; }} }}
@page {{ margin: 16mm; }}
@media print {{
  body {{ font-size: 10pt; }}
  main {{ max-width: none; padding: 0; }}
  h2 {{ break-after: avoid; }}
  figure, tr {{ break-inside: avoid; }}
  .table, pre {{ overflow: visible; }}
  pre {{ white-space: pre-wrap; }}
  .figures {{ grid-template-columns: 1fr 1fr; }}
  details {{ display: none; }}
}}
"""

# The browser itself is told to load nothing.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def html_page(report: Report) -> str:
    """The page."""
    sections = "".join(_section(number, section) for number, section in enumerate(report.sections, 1))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{markup(report.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{markup(report.title)}</h1>\n{_contents(report)}{sections}"
        f"<footer>Made by mutua {__version__} from the files of the runs alone.</footer>\n"
        "</main>\n</body>\n</html>\n"
    )


def _contents(report: Report) -> str:
    """Links to the sections."""
    links = "".join(
        f'<li><a href="#section-{number}">{markup(section.title)}</a></li>\n'
        for number, section in enumerate(report.sections, 1)
    )
    return f'<nav aria-label="Contents">\n<ol>\n{links}</ol>\n</nav>\n'


def _section(number: int, section: Section) -> str:
    parts = []
    for together, blocks in groupby(section.blocks, lambda block: isinstance(block, Picture)):
        inner = "".join(map(_block, blocks))
        parts.append(f'<div class="figures">\n{inner}</div>\n' if together else inner)
    at = f"section-{number}"
    heading = f'<h2 id="{at}">{markup(section.title)}</h2>\n'
    return f'<section aria-labelledby="{at}">\n{heading}{"".join(parts)}</section>\n'


def _block(block: Content) -> str:
    match block:
        case Table():
            return block.html()
        case Picture():
            wide = f"max-width: {block.size[0] * 1.15:.1f}in"
            source = f"data:image/svg+xml;base64,{b64encode(block.file('svg')).decode()}"
            return (
                f'<figure id="figure-{markup(block.name)}">\n<figcaption>{markup(block.title)}</figcaption>\n'
                f'<img style="{wide}" alt="{markup(block.alt)}" src="{source}">\n</figure>\n'
            )
        case Code(text, folded):
            code = f'<pre tabindex="0"><code>{markup(text)}</code></pre>\n'
            if not folded:
                return code
            return f"<details>\n<summary>{markup(folded)}</summary>\n{code}</details>\n"
        case _:
            return f"<p>{markup(block)}</p>\n"
