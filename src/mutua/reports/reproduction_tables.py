"""Reproductions as people see them: tables in a terminal, and a Markdown page of all items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mutua.errors import InputError
from mutua.reports import console
from mutua.studies.comparison_tables import clients_table
from mutua.studies.measures import ABOUT, COUNTS, Measure
from mutua.studies.papers.items import Item, item_names, load_item
from mutua.studies.reproduction import Reproduction, recomputed_record
from mutua.studies.summaries import OVER_CLIENTS
from mutua.support.configuration import PathLike
from mutua.support.text import Sheet, spread

_PAGE = """# Reproduction

`mutua reproduce` writes this page; no number in it is typed by hand. Every item is a table, a figure or a claim
from the text of a paper, at scale *laptop*: the same structure with fewer rounds, samples or clients. Below each
table, *Cut* says what was left out. *Paper* and *ours* are means of the same cells, the first against the second;
*difference* is paired over seeds, with a 95 % interval (Student's t). A claim *holds* where the whole interval
is above 0, *does not hold* where all of it is below 0; otherwise we *cannot tell*. Where a claim allows a loss of
some points, the interval is compared with minus that number instead of 0; where it names a factor, the second
number is first multiplied by it. Each interval is computed on its own: of forty claims without any effect, about
one holds and one does not hold by chance. A *control* is not a claim of the paper: it explains one. Accuracies are
percentages. How to run any of it: [comparing.md](comparing.md#reproducing-papers).
"""
_CLIENTS = """\
Over clients, by the accuracy of their predictors on their own test data: the worst client, the
standard deviation over clients and, if the item also trains them alone, the share of clients that are better off
than alone:
"""


def show_items(names: Sequence[str]) -> None:
    """What there is to reproduce."""
    table = console.table(["item", "where", "what"])
    for name in names:
        item = load_item(name)
        table.add_row(name, item.where, item.title)
    console.show_table(f"{len(names)} items of papers", table, "to run one: mutua reproduce ITEM")


def show_reproduction(done: Reproduction, minutes: float) -> None:
    """An item: the paper's numbers beside ours, and the claims."""
    item, runs = done.item, done.sweep
    cut = f"; cut: {'; '.join(done.cut)}" if done.cut else ""
    seeds = f"{len(done.seeds)} seed{'s' * (len(done.seeds) > 1)}"
    console.say(f"\n{done.name} ({item.where}): {item.title}")
    console.say(f"scale {done.scale}, {seeds}{cut}\n")
    # At another scale only differences can be compared, and a reader of the numbers alone must see that.
    same = item.published.same_data
    beside = "paper" if same or done.scale == "paper" else "paper (not comparable in level)"
    table = console.table(["cell", "measure"], [beside, "ours", *(_SAME if same else [])])
    for row in done.table:
        table.add_row(*_beside(asdict(row), same))
    if done.table or not done.measured:
        console.out.print(table)
    rule = item.published.selection or "not said"
    console.say(f"\nselection: the paper's: {rule}; ours: {done.cells[0][1].selection}")
    if item.published.doubt:
        console.say(f"doubt: {item.published.doubt}")
    if done.left_out:
        console.say(f"{done.left_out} printed numbers are of cells that this scale leaves out")
    if done.measured:
        console.say("")
        console.show_sheets(_measured_sheet(item, [asdict(row) for row in done.measured]))
    summary = {} if done.measured else runs.summary()
    if summary:
        console.say("")
        console.show_sheets(clients_table(summary))
    claims = console.table(["claim", "verdict"], ["difference", "95 % interval"])
    for claim in done.claims:
        text = f"control: {claim.text}" if claim.control else claim.text
        few = f" ({claim.seeds} of {len(done.seeds)} seeds)" if 0 < claim.seeds < len(done.seeds) else ""
        told = _difference(claim.difference, claim.low, claim.high, claim.measure)
        claims.add_row(text, claim.verdict + few, *told)
    if done.claims:
        console.say("")
        console.out.print(claims)
    of = f"{len(runs.finished)} of {len(runs.runs)} runs"
    console.say(f"\n{of}, {minutes:.1f} minutes; saved in {runs.place}")


def _measured_sheet(item: Item, rows: Sequence[Mapping[str, Any]]) -> Sheet:
    """The item's measures: a row for each cell, with what validation has chosen for it."""
    choose = [item.choose] if item.choose else []
    body = [
        [
            row["cell"],
            *([row["chosen"] or "–"] if choose else []),
            *(
                _number(row["values"][m][0], None if m in COUNTS else row["values"][m][1], m)
                for m in item.measures
            ),
        ]
        for row in rows
    ]
    chosen = [f"{item.choose}: the best on validation data, by the mean over seeds"] if choose else []
    about = [f"{measure}: {ABOUT[Measure.of(measure).name]}" for measure in item.measures]
    heads, remarks = ["cell", *choose, *item.measures], [*chosen, *about]
    return Sheet("measures", heads, body, remarks=remarks, left=1 + len(choose), most=len(body))


_SAME = ["one more split, 95 %", "the paper's number"]


def _beside(row: Mapping[str, Any], same: bool) -> list[str]:
    """A number of the paper beside ours and, of the same data, whether it is like ours."""
    measure, ends = row["measure"], row["interval"]
    told = [_number(row["paper"], row["paper_spread"], measure), _number(row["ours"], row["ours_sd"], measure)]
    between = "–" if ends is None else f"{ends[0]:{_digits(measure)}} to {ends[1]:{_digits(measure)}}"
    return [row["cell"], measure, *told, *([between, row["verdict"] or "–"] if same else [])]


def _levels(records: Mapping[str, dict[str, Any] | None]) -> list[str]:
    """A table for each item whose paper has the same data."""
    parts = []
    for name, record in records.items():
        if record is None or not load_item(name).published.same_data:
            continue
        heads = ["cell", "measure", "paper", "ours", *_SAME]
        rows = [_line(*_beside(row, True)) for row in record["values"]]
        remark = (
            "A number of the paper *holds* if it is what one more split of the same data would give, by the mean "
            "and the deviation over ours (95 %, Student's t)."
        )
        title = f"{name.partition('/')[2]}, the paper's numbers beside ours:"
        table = "\n".join([_line(*heads), "|" + "---|" * len(heads), *rows])
        doubt = f"{remark} {record['doubt']}" if record["doubt"] else remark
        parts.append(f"{title}\n\n{table}\n\n{doubt}\n")
    return parts


def _number(value: float | None, spread: float | None, measure: str) -> str:
    """A number in its unit, with its spread."""
    if value is None:
        return "–"
    digits = _digits(measure)
    return f"{value:{digits}}" if spread is None else f"{value:{digits}} ± {spread:{digits}}"


def _difference(mean: float | None, low: float | None, high: float | None, measure: str) -> tuple[str, str]:
    """A difference and its interval."""
    digits = f"+{_digits(measure)}"
    told = "–" if mean is None else f"{mean:{digits}}"
    return told, "–" if low is None or high is None else f"{low:{digits}} to {high:{digits}}"


def _digits(measure: str) -> str:
    """As many as papers print: hundredths of a percent, whole bytes."""
    name = Measure.of(measure).name
    return ".1f" if name in ("rounds_to", "cpu_seconds") else ",.0f" if name in COUNTS else ".2f"


def reproduction_page(out: PathLike) -> str:
    """A Markdown page of all items as they are now, from the runs that are there."""
    records = {name: _record(name, out) for name in item_names()}
    by_paper = dict.fromkeys(name.partition("/")[0] for name in records)
    parts = [_PAGE, _totals(records)]
    for paper in by_paper:
        mine = {name: record for name, record in records.items() if name.startswith(f"{paper}/")}
        parts += [f"## {paper}\n", _rows(mine), _cuts(mine), *_levels(mine), *_measures(mine), _clients(mine)]
    return "\n".join(part for part in parts if part)


def _record(name: str, out: PathLike) -> dict[str, Any] | None:
    try:
        return recomputed_record(name, "laptop", out)
    except InputError as error:  # its runs are of an older version of the item
        console.say(f"{name}: {error}", console.err)
        return None


def _totals(records: Mapping[str, dict[str, Any] | None]) -> str:
    done = [record for record in records.values() if record is not None]
    verdicts = Counter(claim["verdict"] for record in done for claim in record["claims"] if not claim["control"])
    minutes = sum(record["minutes"] for record in done)
    counted = ", ".join(f"{verdict}: {n}" for verdict, n in sorted(verdicts.items())) or "none"
    part = sum(record["runs"]["finished"] < record["runs"]["planned"] for record in done)
    run = f"{len(done)} of {len(records)} items were run" + (f" ({part} in part)" if part else "")
    return f"{run}, in {minutes:.0f} minutes in all. Claims: {counted}.\n"


def _rows(records: Mapping[str, dict[str, Any] | None]) -> str:
    same = all(load_item(name).published.same_data for name in records)
    beside = "paper" if same else "paper (not comparable in level)"
    head = f"| item | claim | {beside} | ours | difference | verdict | seeds | minutes |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for name, record in records.items():
        item = load_item(name)
        where = f"{name.partition('/')[2]} ({item.where})"
        if record is None:
            lines.append(_line(where, f"{item.title}; data: {_data(item)}", "", "", "", "not run", "", ""))
            continue
        if record["runs"]["finished"] < record["runs"]["planned"]:
            where += f", {record['runs']['finished']} of {record['runs']['planned']} runs"
        if not record["claims"]:
            lines.append(_line(where, item.title, "", "", "", "no claim", "", f"{record['minutes']:.1f}"))
        for i, claim in enumerate(record["claims"]):
            text = f"*control:* {claim['text']}" if claim["control"] else claim["text"]
            paper = _sides([(value, None) for value in claim["paper"]], claim["measure"])
            told, interval = _difference(claim["difference"], claim["low"], claim["high"], claim["measure"])
            ours, minutes = _sides(claim["ours"], claim["measure"]), f"{record['minutes']:.1f}" if i == 0 else ""
            between = told if interval == "–" else f"{told} ({interval})"
            lines.append(_line(where, text, paper, ours, between, claim["verdict"], str(claim["seeds"]), minutes))
    return "\n".join(lines) + "\n"


def _data(item: Item) -> str:
    """Which data sets the item's runs learn from."""
    learned = [recipe for _, recipe in item.cells("laptop")]
    given = [data for recipe in learned for data in (recipe.data, *(entry.data for entry in recipe.clients or []))]
    return ", ".join(dict.fromkeys(data.name for data in given if data is not None))


def _sides(sides: Sequence[Sequence[float | None]], measure: str) -> str:
    told = [_number(mean, spread, measure) for mean, spread in sides]
    return "–" if set(told) == {"–"} else " against ".join(told)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _cuts(records: Mapping[str, dict[str, Any] | None]) -> str:
    told = [
        f"- {name}: {'; '.join(record['cut'])}" for name, record in records.items() if record and record["cut"]
    ]
    return "Cut:\n\n" + "\n".join(told) + "\n" if told else ""


def _measures(records: Mapping[str, dict[str, Any] | None]) -> list[str]:
    """A table for each item that has measures."""
    parts = []
    for name, record in records.items():
        rows = record.get("measured", []) if record else []
        if not rows:
            continue
        item = load_item(name)
        sheet = _measured_sheet(item, rows)
        title = f"{name.partition('/')[2]}, mean and deviation over {max(row['seeds'] for row in rows)} seeds:"
        lines = [_line(*sheet.heads), "|" + "---|" * len(sheet.heads), *(_line(*row) for row in sheet.body)]
        parts.append("\n".join([title, "", *lines, "", *(f"- {remark}" for remark in sheet.remarks)]) + "\n")
    return parts


def _clients(records: Mapping[str, dict[str, Any] | None]) -> str:
    told = [
        _line(name.partition("/")[2], cell, *(spread(of[key]) for key in OVER_CLIENTS))
        for name, record in records.items()
        for cell, of in (record["clients"].items() if record else ())
    ]
    head = ["| item | cell | worst client | spread | better off |", "|---|---|---|---|---|"]
    return _CLIENTS + "\n" + "\n".join(head + told) + "\n" if told else ""
