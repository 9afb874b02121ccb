"""Who has what: training samples by client and class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mutua.federation.federation import Federation
from mutua.reports import console, figures
from mutua.support.configuration import PathLike, local_path


@dataclass(frozen=True)
class LabelCounts:
    """Training samples: a row per client, a column per class; and the sizes of val and test."""

    clients: list[str]
    classes: list[str]
    train: np.ndarray
    val: list[int]
    test: list[int]
    opted_out: list[int]
    """How many of the training samples are opted out."""

    def summary(self) -> dict[str, Any]:
        """The counts as JSON."""
        return {
            "classes": self.classes,
            "clients": [
                {
                    "id": c,
                    "train": self.train[k].tolist(),
                    "val": self.val[k],
                    "test": self.test[k],
                    "opted_out": self.opted_out[k],
                }
                for k, c in enumerate(self.clients)
            ],
        }

    def draw(self, path: PathLike, title: str) -> None:
        """Draw the picture of labels by client."""
        figures.write_label_picture(self.train, self.clients, self.classes, local_path(path, "--out"), title)


def counts_by_client(federation: Federation) -> LabelCounts:
    """Count training samples; the classes are those of all clients, by name."""
    own = (name for client in federation.clients for name in client.task.classes)
    classes = list(dict.fromkeys([*federation.classes, *own]))
    clients = [client.relabelled(classes) for client in federation.clients]
    return LabelCounts(
        [client.id for client in clients],
        classes,
        np.stack([client.train.counts() for client in clients]),
        [len(client.val) for client in clients],
        [len(client.test) for client in clients],
        [client.opted_out for client in clients],
    )


def show_counts(counts: LabelCounts, notes: Sequence[str]) -> None:
    """Print the table: a column per class, by name, by number where names are too wide, or only how many."""
    columns = _columns(counts, console.out.width)
    opting = any(counts.opted_out)
    table = console.table(["client"], [*(columns or ["classes"]), "train", *["opted out"] * opting, "val", "test"])
    for k, client in enumerate(counts.clients):
        row = counts.train[k]
        cells = [str(n) if n else "·" for n in row] if columns else [str(int((row > 0).sum()))]
        out = [str(counts.opted_out[k])] * opting
        table.add_row(client, *cells, str(int(row.sum())), *out, str(counts.val[k]), str(counts.test[k]))
    remarks = []
    if columns and columns != counts.classes:
        named = zip(columns, counts.classes, strict=True)
        remarks = ["classes: " + ", ".join(f"{number} {name}" for number, name in named)]
    console.show_table("training samples by class", table, *remarks)
    console.show_notes(notes)


def _columns(counts: LabelCounts, width: int) -> list[str]:
    """Headings for the columns of classes: names or numbers; none where not even numbers fit."""
    gap, digits = 2, max(len(str(counts.train.max())), 1)
    rest = max(map(len, [*counts.clients, "client"])) + 3 * (6 + gap) + (9 + gap) * any(counts.opted_out)
    for headings in (counts.classes, [str(i) for i in range(len(counts.classes))]):
        if rest + sum(max(len(heading), digits) + gap for heading in headings) <= width:
            return headings
    return []
