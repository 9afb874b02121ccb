"""`mutua join`, `predict` and `export`: what a run is good for once it is finished."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mutua import load

Command = Callable[..., Any]


def test_join_predict_and_export(
    command: Command, finished: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(finished("fml", rounds=2)[0], tmp_path / "run"))
    digits = load("mnist5k").train
    x, y = digits.x[4000:4040, 0].numpy(), digits.y[4000:4040].numpy()
    np.savez(tmp_path / "new.npz", x=x, y=y)

    (tmp_path / "join_nets.py").write_text(
        "from torch import nn\n"
        "def build(channels, size, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes))\n"
    )
    words = ["--model", "join_nets:build", "--how", "mutual", "--name", "eve", "--seed", "1"]
    done = command("join", run, "--data", "new.npz", *words)
    assert done.code == 0 and done.err == ""
    assert "eve: accuracy (%) on its own 8 test samples" in done.out
    for row in ("the global as it is", "joined (mutual)", "trained alone"):
        assert re.search(rf"^{re.escape(row)} +\d+\.\d$", done.out, re.MULTILINE)
    done = command("join", run, "--data", "new.npz", "--how", "global", "--out", "joined", "--json")
    report = json.loads(done.out)
    assert set(report) == {"client", "how", "samples", "accuracy", "folder"}
    assert (report["client"], report["how"], report["folder"]) == ("newcomer", "global", "joined")
    assert set(report["accuracy"]) == {"global", "predictor", "alone"}

    done = command("predict", run, "--client", "eve", "--data", "new.npz", "--json")
    report = json.loads(done.out)
    assert set(report) == {"classes", "samples", "labels", "probabilities", "accuracy"}
    right = np.mean([name == str(label) for name, label in zip(report["labels"], y, strict=True)])
    assert report["accuracy"] == pytest.approx(right)
    assert done.err == f"accuracy {100 * right:.1f} % on 40 samples\n"

    done = command("predict", run, "--client", "c0", "--data", "new.npz", "--out", "p.csv")
    assert (done.code, done.out) == (0, "") and done.err.startswith("40 predictions in p.csv\naccuracy ")
    printed = command("predict", run, "--client", "c0", "--data", "new.npz").out
    assert printed == (tmp_path / "p.csv").read_text() and "\r" not in printed
    np.savez(tmp_path / "bare.npz", x=x)
    done = command("predict", run, "--client", "c0", "--data", "bare.npz")
    assert done.out == printed and done.err == ""

    done = command("export", run, "--client", "c1")
    assert done.out == "c1-export/model.safetensors\nc1-export/card.json\n"
    kept = (run / "clients" / "c1" / "personal.safetensors").read_bytes()
    assert (tmp_path / "c1-export" / "model.safetensors").read_bytes() == kept
    assert command("export", run, "--client", "eve", "--out", "e").code == 0
    assert command("export", run, "--client", "c1").code == 2  # it is there already
