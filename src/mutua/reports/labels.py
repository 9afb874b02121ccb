"""Who has what: training samples by client and class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from mutua.federation import Federation
from mutua.reports import console, figures


@dataclass(frozen=True)
class LabelCounts:
    """A row a client, a column a class; beside it the sizes of val and test."""

    clients: list[str]
    classes: list[str]
    train: np.ndarray
    val: list[int]
    test: list[int]

    def summary(self) -> dict[str, Any]:
        """The counts as JSON."""
        return {
            "classes": self.classes,
            "clients": [
                {"id": c, "train": self.train[k].tolist(), "val": self.val[k], "test": self.test[k]}
                for k, c in enumerate(self.clients)
            ],
        }

    def draw(self, path: Path, title: str) -> None:
        """The label-by-client picture."""
        figures.label_picture(self.train, self.clients, self.classes, path, title)


def counts_by_client(federation: Federation) -> LabelCounts:
    """Count training samples; classes are all clients' classes, by name."""
    classes = list(federation.classes)
    clients = [client.relabelled(classes) for client in federation.clients]
    return LabelCounts(
        [client.id for client in clients],
        classes,
        np.stack([client.train.counts() for client in clients]),
        [len(client.val) for client in clients],
        [len(client.test) for client in clients],
    )


def show_counts(counts: LabelCounts, notes: Sequence[str]) -> None:
    """The table; with more than 20 classes, how many classes instead of how many of each."""
    table = Table(title="training samples by class")
    wide = len(counts.classes) > 20
    columns = ["client", *(["classes"] if wide else counts.classes), "train", "val", "test"]
    for column in columns:
        table.add_column(column, justify="left" if column == "client" else "right")
    for k, client in enumerate(counts.clients):
        row = counts.train[k]
        cells = [str(int((row > 0).sum()))] if wide else [str(n) if n else "·" for n in row]
        table.add_row(client, *cells, str(int(row.sum())), str(counts.val[k]), str(counts.test[k]))
    console.out.print(table)
    for note in notes:
        console.out.print(f"note: {note}", highlight=False)
