"""Who took part in which rounds, and why not."""

from __future__ import annotations

from collections.abc import Iterator

from mutua.reports.study import Study
from mutua.reports.tables import MOST_CLIENTS, CellValue, Table
from mutua.rounds.participation import WRONG, never_drawn


def attendance_blocks(study: Study) -> Iterator[str | Table]:
    """One row per client that was left out, never drawn or never trained, or a sentence that there is none."""
    rows: list[tuple[CellValue, ...]] = []
    remarks = [
        "answered: rounds whose work was done and, where it was sent, merged; asked: rounds it was drawn for"
    ]
    told = False
    for run in (run for label in study.labels for run in study.of(label)):
        known = [client for client in (run.summary or {}).get("clients", []) if "participation" in client]
        told = told or bool(known)
        mine: list[tuple[CellValue, ...]] = []
        for client in known:
            part = client["participation"]
            why = [f"{what} in {at}: {reason}" for what in WRONG for reason, at in part[what].items()]
            if not client["trained"]:
                never = "drawn" if never_drawn(client) else "trained"
                why.append(f"never {never}, so its own model is out of all means")
            if why:
                seed = (str(run.seed),) if len(study.seeds) > 1 else ()
                name = str(client["id"])
                mine.append((name, run.label, *seed, "; ".join(why), int(part["asked"]), int(part["answered"])))
        rows += mine[:MOST_CLIENTS]
        if len(mine) > MOST_CLIENTS:
            remarks.append(
                f"{run.label}, seed {run.seed}: {len(mine) - MOST_CLIENTS} more clients; run.json has all"
            )
    if rows:
        heads = (
            "client",
            "method",
            *(("seed",) if len(study.seeds) > 1 else ()),
            "what went wrong, in which rounds",
        )
        title = "Clients that were left out of rounds or never drawn"
        yield Table("attendance", title, heads, ("asked", "answered"), tuple(rows), tuple(remarks))
    elif told:
        yield "Every client answered in every round in which it was asked."
