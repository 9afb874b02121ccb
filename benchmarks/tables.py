"""Tables: how fast a client trains on one beside a bare PyTorch loop, and how long a CSV file takes beside pandas.

    python benchmarks/tables.py                      # 1 million rows × 50 columns over 20 clients, a CSV of 200 MB
    python benchmarks/tables.py --rows 100000 --megabytes 20

Both sides of a ratio are measured in turn in the same process, with one thread; ratios are what to compare.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import mutua
from mutua.data.table_files import read_table

CLIENTS, COLUMNS, BATCH = 20, 50, 128


def bare(x: torch.Tensor, y: torch.Tensor, epochs: int) -> float:
    """Rows per second of a loop that somebody would write, over data that is prepared already."""
    model = mutua.Architecture.of("mlp").build(channels=x.shape[1], size=1, classes=2, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    began = time.perf_counter()
    for _ in range(epochs):
        for index in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
    return epochs * len(x) / (time.perf_counter() - began)


def training(rows: int, epochs: int) -> None:
    rng = np.random.default_rng(0)
    table = {f"c{k}": rng.normal(size=rows) for k in range(COLUMNS)}
    table["y"] = (table["c0"] + table["c1"] * table["c2"] > 0).astype(np.int64)
    began = time.perf_counter()
    federation = mutua.Federation.from_table(
        table,
        target="y",
        partition=mutua.partitions.IID(clients=CLIENTS),
        models="mlp",
        split={"val": 0, "test": 0},
    )
    print(f"federation of {rows:,} rows × {COLUMNS} columns: {time.perf_counter() - began:.1f} s")
    client = federation.clients[0].train
    x, y = client.preprocess(client.x), client.y
    plan = mutua.Plan(rounds=1, epochs=epochs, batch_size=BATCH, optimizer=mutua.SGD(lr=0.01, momentum=0.9))
    ratios = []
    for _ in range(3):
        theirs = bare(x, y, epochs * CLIENTS)
        began = time.perf_counter()
        mutua.run(mutua.methods.Independent(), federation, plan=plan, workers=1)
        ours = epochs * len(x) * CLIENTS / (time.perf_counter() - began)
        ratios.append(ours / theirs)
        print(f"training, one worker: {ours:,.0f} rows/s, a bare loop {theirs:,.0f}: {ours / theirs:.2f}")
    print(f"median ratio {np.median(ratios):.2f} (at least 0.5 is wanted)")


def reading(megabytes: int) -> None:
    import pandas

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.csv"
        rng, rows = np.random.default_rng(0), 50_000
        lines = "".join(
            ",".join(f"{v:.6g}" for v in values) + f",{word},{int(label)}\n"
            for values, word, label in zip(
                rng.normal(size=(rows, 18)),
                rng.choice(["red", "green", "blue"], rows),
                rng.random(rows) > 0.5,
                strict=True,
            )
        )
        with path.open("w") as file:
            file.write(",".join(f"c{k}" for k in range(18)) + ",colour,y\n")
            while file.tell() < megabytes * 1e6:
                file.write(lines)
        ratios = []
        for _ in range(3):
            began = time.perf_counter()
            pandas.read_csv(path)
            theirs = time.perf_counter() - began
            told: list[int] = []
            began = time.perf_counter()
            read_table(path, lambda done, total, told=told: told.append(done))
            ours = time.perf_counter() - began
            ratios.append(ours / theirs)
            size = path.stat().st_size / 1e6
            print(
                f"{size:.0f} MB of CSV: {ours:.1f} s, pandas {theirs:.1f} s: {ours / theirs:.2f}, "
                f"progress told {len(told)} times"
            )
        print(f"median ratio {np.median(ratios):.2f} (at most 2 is wanted)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--megabytes", type=int, default=200)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    reading(chosen.megabytes)
    training(chosen.rows, chosen.epochs)
