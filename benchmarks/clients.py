"""How memory and time grow with the number of clients: FML with stores on disk, through the command line.

    python benchmarks/clients.py                                   # 1,000 and 4,000 clients, CNN1, both engines
    python benchmarks/clients.py --clients 20000 --model linear --rounds 5
    python benchmarks/clients.py --stores memory,disk --clients 1000 --engines local

Memory is that of all processes of a run together, at its peak (PSS, sampled twice a second). What processes map
from files (stores, data, libraries) is counted apart: the system gives it back when memory is short. Fails if with
four times the clients, or more, it is more than 10 % higher.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SAMPLES = 50
SIDE = 28


@dataclass
class Peak:
    """The most memory of a process and all that descend from it, in bytes by kind."""

    process: int
    most: dict[str, int] = field(default_factory=lambda: {"own": 0, "mapped": 0})

    def sample(self) -> None:
        """Look once."""
        total = {"own": 0, "mapped": 0}
        for process in _family(self.process):
            try:
                lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            kb = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
            total["own"] += 1024 * (kb["Pss_Anon"] + kb["Pss_Shmem"])
            total["mapped"] += 1024 * kb["Pss_File"]
        self.most = {kind: max(self.most[kind], total[kind]) for kind in total}


def _family(first: int) -> list[int]:
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [first]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def measure(clients: int, engine: str, stores: str, given: argparse.Namespace) -> int:
    """One run, and a row about it; the bytes of its processes' own memory."""
    with tempfile.TemporaryDirectory() as place:
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (clients * SAMPLES, SIDE, SIDE), dtype=np.uint8)
        np.savez(Path(place) / "data.npz", x=x, y=rng.integers(0, 10, len(x)))
        data = x.nbytes
        del x
        recipe = {
            "name": "clients",
            "data": {"name": "arrays", "path": str(Path(place) / "data.npz"), "mapped": True},
            "partition": {"kind": "iid", "clients": clients},
            "models": {"global": given.model},
            "method": "fml",
            "rounds": given.rounds,
            "epochs": 1,
            "batch_size": 10,
            "client_fraction": 0.1,
            "evaluate_every": given.rounds,
            "stores": stores,
            "device": "cpu",
        }
        (Path(place) / "recipe.yaml").write_text(json.dumps(recipe))
        out = Path(place) / "run"
        words = ["run", "recipe.yaml", "--out", str(out), "--engine", engine, "--workers", "2", "--json"]
        began = time.perf_counter()
        # A file, since a summary of thousands of clients would fill a pipe.
        with (Path(place) / "said").open("wb") as said:
            run = subprocess.Popen([sys.executable, "-m", "mutua", *words], cwd=place, stdout=said)
            peak = Peak(run.pid)
            while run.poll() is None:
                peak.sample()
                time.sleep(0.5)
        if run.returncode:
            sys.exit(f"{engine}, {clients} clients: the run ended with code {run.returncode}")
        took = time.perf_counter() - began
        events = [json.loads(line) for line in (out / "events.jsonl").open()]
        at = {e["round"]: e["time"] for e in events if e["event"] == "round"}
        times = sorted(_seconds(at[r + 1]) - _seconds(at[r]) for r in at if r + 1 in at)
        middle = times[len(times) // 2] if times else float("nan")
        disk = sum(f.stat().st_size for f in (out / "checkpoints").rglob("*") if f.is_file())
        print(
            f"{engine:8}{stores:8}{clients:8,}{peak.most['own'] / 2**20:10.0f}{peak.most['mapped'] / 2**20:10.0f}"
            f"{data / 2**20:8.0f}{disk / 2**20:9.0f}{middle:9.2f}{1e3 * middle / (clients / 10):9.1f}{took:9.1f}",
            flush=True,
        )
        return peak.most["own"]


def _seconds(stamp: object) -> float:
    if isinstance(stamp, int | float):
        return float(stamp)
    from datetime import datetime

    return datetime.fromisoformat(str(stamp)).timestamp()


def main() -> int:
    """A row for every engine, place of stores and number of clients; a code that says if memory grows little."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="1000,4000")
    parser.add_argument("--engines", default="local,ray")
    parser.add_argument("--stores", default="disk")
    parser.add_argument("--model", default="cnn1")
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    heads = ("MB own", "mapped", "data", "on disk", "s/round", "ms/step", "s in all")
    print(f"{'engine':8}{'stores':8}{'clients':>8}{heads[0]:>10}{heads[1]:>10}{heads[2]:>8}", end="")
    print(f"{heads[3]:>9}{heads[4]:>9}{heads[5]:>9}{heads[6]:>9}")
    met = True
    for engine in given.engines.split(","):
        for stores in given.stores.split(","):
            found = [measure(clients, engine, stores, given) for clients in map(int, given.clients.split(","))]
            if len(found) > 1:
                print(f"{engine:8}{stores:8}{found[-1] / found[0] - 1:+.1%} memory", flush=True)
                met = met and (stores == "memory" or found[-1] <= 1.1 * found[0])
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
