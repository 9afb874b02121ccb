"""Hashes of what every method gives for one tiny recipe: the same before and after a refactoring.

    python tools/fingerprints.py > before.json        # on the old tree
    python tools/fingerprints.py --against before.json # on the new one
    python tools/fingerprints.py --against before.json --set stores=disk # other options go to `mutua run`

It goes through the command line, so it works on any tree. The bytes are of one processor and one version of torch:
compare on one machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

RECIPE = """
name: fingerprint
data: {name: mnist5k, samples_per_client: 60}
partition: {kind: shards, clients: 4, shards_per_client: 3}
models: {global: cnn1, clients: [mlp, cnn1, mlp, cnn1]}
rounds: 3
steps: 3
batch_size: 16
client_fraction: 0.75
optimizer: {name: sgd, lr: 0.05, momentum: 0.9}
seed: 7
"""
MORE = {
    "fedmd": "public: {share: 0.2}\n",
    "feddf": "public: {share: 0.2}\n",
    "fedh2l": "public: {share: 0.2}\n",
    "aggregated": "public: {share: 0.2}\n",
    "datasharing": "public: {share: 0.2}\n",
    "mixture": "opt_out: {samples: 0.3}\n",
}
ALIKE = {"apfl", "ditto", "fedproto", "fedrolex", "pfedbayes", "fedgkt", "l2gd", "lgfedavg", "mocha"}
"""Methods whose personal models must have the global's design."""
SECTIONS = {"fedgkt": "{name: fedgkt, labels_leave: true}"}
"""Methods that need an option."""
METHODS = [
    "aggregated",
    "alone-again",
    "apfl",
    "centralised",
    "datasharing",
    "ditto",
    "dml",
    "fd",
    "fedala",
    "fedbabu",
    "fedrod",
    "moon",
    "scaffold",
    "fedavg",
    "fedbn",
    "fedh2l",
    "fedkd",
    "afl",
    "cfl",
    "fedrolex",
    "fedgkt",
    "pfedbayes",
    "fedsem",
    "feddf",
    "fedmd",
    "fedopt",
    "fedproto",
    "fedrep",
    "lgfedavg",
    "reptile",
    "fedper",
    "fedprox",
    "finetuned",
    "fml",
    "fmlu",
    "independent",
    "l2gd",
    "mixture",
    "mocha",
    "no-regret",
    "perfedavg",
]


def hashes(run: Path) -> dict[str, str]:
    """Of the global, of all that clients keep, of history and of ledger."""
    groups = {
        "global": sorted(run.glob("global/*.safetensors")),
        "clients": sorted(run.glob("clients/*/*.safetensors")),
        "history": [run / "history.csv"],
        "ledger": [run / "ledger.csv"],
    }
    found = {}
    for name, files in groups.items():
        digest = hashlib.sha256()
        for file in files:
            digest.update(str(file.relative_to(run)).encode())
            digest.update(file.read_bytes())
        found[name] = digest.hexdigest()[:16] if files else "none"
    return found


def main() -> None:
    """Print the hashes, or how they differ from earlier ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="what an earlier call printed")
    parser.add_argument("--workers", default="1,2", help="each number of workers to run with (default: 1,2)")
    given, more = parser.parse_known_args()
    made: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as place:
        for method in METHODS:
            recipe = Path(place) / f"{method}.yaml"
            models = RECIPE.replace(", clients: [mlp, cnn1, mlp, cnn1]", "") if method in ALIKE else RECIPE
            if method == "fedgkt":  # its global takes features, not images
                models = models.replace("global: cnn1", "global: mlp")
            recipe.write_text(f"{models}method: {SECTIONS.get(method, method)}\n{MORE.get(method, '')}")
            for workers in given.workers.split(","):
                run = Path(place) / f"{method}-{workers}"
                words = ["run", str(recipe), "--out", str(run), "--workers", workers, *more]
                subprocess.run(
                    [sys.executable, "-m", "mutua", *words],
                    check=True,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                made[f"{method}, workers {workers}"] = hashes(run)
    if given.against is None:
        print(json.dumps(made, indent=1))
        return
    before = json.loads(given.against.read_text())
    both = {run: now for run, now in made.items() if run in before}
    odd = [f"{run}: {what}" for run, now in both.items() for what in now if before[run][what] != now[what]]
    print(f"{len(both)} runs, {len(odd)} differences; {len(made) - len(both)} runs are new", *odd, sep="\n")
    sys.exit(bool(odd))


if __name__ == "__main__":
    main()
