"""Who has what: training samples by client and class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mutua.data.samples import Samples
from mutua.data.table_encoding import TableEncoding, describe_columns
from mutua.data.targets import NAMED, TaskKind
from mutua.federation.federation import Federation
from mutua.reports import console, figures
from mutua.support.configuration import PathLike, local_path
from mutua.support.text import some


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
    kind: TaskKind = "classification"
    samples: tuple[int, ...] = ()
    """Training samples of each client, where a sample may have several labels, or values."""
    values: tuple[tuple[tuple[float, float], ...], ...] = ()
    """Of each client's training values, their mean and standard deviation."""

    def sizes(self) -> list[int]:
        """How many training samples each client has."""
        return list(self.samples) or self.train.sum(1).tolist()

    def summary(self) -> dict[str, Any]:
        """The counts as JSON."""
        more: list[dict[str, Any]] = [{} for _ in self.clients]
        if self.kind != "classification":
            more = [{"samples": size} for size in self.sizes()]
        for found, mine in zip(more, self.values, strict=False):
            found["values"] = [{"mean": mean, "std": deviation} for mean, deviation in mine]
        return {
            "classes": self.classes,
            "clients": [
                {
                    "id": c,
                    **more[k],
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
    own = (name for client in federation.clients for name in client.train.classes)
    classes = list(dict.fromkeys([*federation.classes, *own]))
    clients = [client.relabelled(classes) for client in federation.clients]
    return LabelCounts(
        [client.id for client in clients],
        classes,
        np.stack([client.train.counts() for client in clients]),
        [len(client.val) for client in clients],
        [len(client.test) for client in clients],
        [client.opted_out for client in clients],
        federation.aim.kind,
        () if federation.aim.kind == "classification" else tuple(len(client.train) for client in clients),
        tuple(_spread_of(client.train) for client in clients) if federation.aim.kind == "regression" else (),
    )


def columns_by_client(federation: Federation) -> dict[str, list[Mapping[str, Any]]]:
    """The columns of clients that hold tables: as they are declared, since what is fitted is the client's own."""
    encodings = {c.id: c.train.preprocess for c in federation.clients}
    return {name: describe_columns(one) for name, one in encodings.items() if isinstance(one, TableEncoding)}


def show_columns(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Print the columns; clients with the same columns share a table."""
    groups: dict[str, list[str]] = {}
    for client, columns in found.items():
        groups.setdefault(repr(columns), []).append(client)
    for clients in groups.values():
        table = console.table(["column", "kind", "categories", "told if missing"], [])
        for column in found[clients[0]]:
            names = some(column["categories"], 8) or "–"
            table.add_row(column["name"], column["kind"], names, "yes" if column["missing"] else "no")
        remark = "declared, or read off all rows: for whoever gives these rows together, that is declared too"
        console.show_table(f"columns of {some(clients)}", table, remark)


def _spread_of(samples: Samples) -> tuple[tuple[float, float], ...]:
    """The mean and standard deviation of each value."""
    y = samples.y.double()
    return tuple(zip(y.mean(0).tolist(), y.std(0, unbiased=False).tolist(), strict=True))


def show_counts(counts: LabelCounts, notes: Sequence[str]) -> None:
    """Print the table: a column per class, by name, by number where names are too wide, or only how many."""
    columns = _columns(counts, console.out.width)
    opting, sizes, (one, several_) = any(counts.opted_out), counts.sizes(), NAMED[counts.kind]
    table = console.table(["client"], [*(columns or [several_]), "train", *["opted out"] * opting, "val", "test"])
    for k, client in enumerate(counts.clients):
        row = counts.train[k]
        cells = [str(n) if n else "·" for n in row] if columns else [str(int((row > 0).sum()))]
        if columns and counts.values:
            cells = [f"{mean:.4g} ± {deviation:.2g}" for mean, deviation in counts.values[k]]
        out = [str(counts.opted_out[k])] * opting
        table.add_row(client, *cells, str(sizes[k]), *out, str(counts.val[k]), str(counts.test[k]))
    remarks = []
    if columns and columns != counts.classes:
        named = zip(columns, counts.classes, strict=True)
        remarks = [f"{several_}: " + ", ".join(f"{number} {name}" for number, name in named)]
    title = (
        "training samples; their values' mean ± standard deviation"
        if counts.values
        else f"training samples by {one}"
    )
    console.show_table(title, table, *remarks)
    console.show_notes(notes)


def _columns(counts: LabelCounts, width: int) -> list[str]:
    """Headings for the columns of classes: names or numbers; none where not even numbers fit."""
    gap, digits = 2, max(len(str(counts.train.max())), 1)
    rest = max(map(len, [*counts.clients, "client"])) + 3 * (6 + gap) + (9 + gap) * any(counts.opted_out)
    for headings in (counts.classes, [str(i) for i in range(len(counts.classes))]):
        if rest + sum(max(len(heading), digits) + gap for heading in headings) <= width:
            return headings
    return []
