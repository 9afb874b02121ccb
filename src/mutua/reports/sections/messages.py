"""What left each client, from the ledger, and what its privacy is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mutua.reports.sections.what_was_run import enumerated
from mutua.reports.study import Study, common_value
from mutua.reports.tables import Bytes, CellValue, Table


def message_blocks(study: Study) -> Iterator[str | Table]:
    """One row per kind of part; then what was public before, and the guarantees."""
    rows: list[tuple[CellValue, ...]] = []
    for label in study.labels:
        runs = study.of(label)
        sent: dict[str, dict[tuple[str, str], tuple[float, float]]] = {}
        for run in runs:
            for entry in run.ledger:
                if entry.direction == "up":
                    mine = sent.setdefault(entry.client, {})
                    times, size = mine.get((entry.kind, entry.name), (0, 0))
                    mine[entry.kind, entry.name] = times + 1 / len(runs), size + entry.bytes / len(runs)
        alike: dict[tuple[Any, ...], list[str]] = {}
        for client, mine in sent.items():
            alike.setdefault(tuple(mine.items()), []).append(client)
        for parts, clients in alike.items():
            for (kind, name), (times, size) in parts:
                rows.append(
                    (label, ", ".join(clients), kind, name, f"{times:.4g}", Bytes(size / times), Bytes(size))
                )
        if not sent:
            # Clients of `centralised` give up their data, but not in messages.
            what = "all data" if study.method(label) == "centralised" else "nothing"
            rows.append((label, "all", what, "", "0", Bytes(0), Bytes(0)))
    title = "What left each client, from the ledger" + (", mean over seeds" if len(study.seeds) > 1 else "")
    remarks = (
        "messages and bytes are of each client named, over the whole run",
        "envelope: a message's own names and shapes",
        *(("all data: brought to one place, not sent in messages",) if _pooled(study) else ()),
    )
    heads = ("messages", "bytes a message", "bytes")
    yield Table("left", title, ("method", "clients", "kind", "name"), heads, tuple(rows), remarks)
    yield from _public(study)
    promised = {label: list(dict.fromkeys(run.privacy for run in study.of(label))) for label in study.labels}
    if (same := common_value(promised.values())) is not None:
        promised = {"Differential privacy": same}
    for label, told in promised.items():
        prefix = "" if same is not None else "differential privacy "
        yield f"{label}: {prefix}{'; '.join(told)}."


def _public(study: Study) -> Iterator[str]:
    """What all knew of the clients' data before the run: no message shows it."""
    known: dict[str, list[str]] = {}
    for label in study.labels:
        public = study.of(label)[0].section("public")
        if isinstance(public, Mapping) and public.get("share") is not None:
            labelled = "with" if public.get("labelled") else "without"
            told = f"{public['share']} of each client's data, {labelled} labels, was known to all beforehand"
            known.setdefault(told, []).append(label)
    for told, of in known.items():
        yield f"Not in the ledger: in {enumerated(of)} a public set, {told}."


def _pooled(study: Study) -> bool:
    return any(run.method == "centralised" for run in study.runs)
