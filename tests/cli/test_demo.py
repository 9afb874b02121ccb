"""The demo, in small and, if time allows, as it is."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mutua import Recipe
from mutua.cli import demo as demos
from mutua.reports import demo as shown
from mutua.runs.folder import RunFolder

SMALL = {
    **demos._RECIPE,
    "data": {"name": "mnist5k", "samples_per_client": 30, "split": {"val": 0.2, "test": 0.4}},
    "rounds": 1,
    "epochs": 1,
}


def table(text: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split() for line in text.splitlines() if re.match(r"c\d|mean", line)}


def test_the_demo_in_small(command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demos, "_RECIPE", SMALL)
    kept: dict[str, Any] = {}
    real = shown._rows
    monkeypatch.setattr(shown, "_rows", lambda results: kept.update(results) or real(results))
    done = command("demo", "--out", "shown")
    assert done.code == 0
    assert list(kept) == ["fml", "no-regret"]

    rows = table(done.out)
    assert list(rows) == ["c0", "c1", "c2", "c3", "c4", "mean"]
    assert [rows[f"c{k}"][1] for k in range(5)] == ["mlp", "lenet5", "cnn1", "cnn2", "cnn-5x5"]
    for k in range(5):
        fml, ours = (kept[name].clients[k] for name in ("fml", "no-regret"))
        found = ours.accuracy("personal"), ours.accuracy("global"), fml.accuracy(), ours.accuracy()
        assert rows[f"c{k}"][2:6] == [f"{100 * value:.1f}" for value in found]
    ours = kept["no-regret"]
    alone, fedavg, mixed = (100 * ours.mean_accuracy(model) for model in ("personal", "global", "predictor"))
    fml = 100 * kept["fml"].mean_accuracy()
    assert rows["mean"][1:5] == [f"{mean:.1f}" for mean in (alone, fedavg, fml, mixed)]
    for unit in rows["c0"][6:]:
        assert unit in ("kB", "MB") or float(unit) > 0
    said = " ".join(done.out.split())
    assert "alone nothing; FML weights (meme); no-regret, as FedAvg, weights (meme), count (samples)." in said
    assert ours.clients[0].benefit(noun="images").sentence in said

    closing = done.out.rstrip().splitlines()[-1]
    assert f"clients reach {mixed:.1f} %: {mixed - alone:+.1f} points against training alone" in closing
    assert f", {mixed - fedavg:+.1f} against one model for all, {mixed - fml:+.1f} against mutual" in closing
    with Image.open(tmp_path / "shown" / "demo.png") as image:
        assert image.format == "PNG" and image.width > image.height > 300

    # The command it names works on a recipe that is there, and is the demo's.
    recipe = re.search(r"Next: mutua compare (\S+) --methods no-regret,fml,independent --seeds 0,1,2$", closing)
    assert recipe is not None
    assert Recipe.load(tmp_path / recipe[1]) == Recipe.of(SMALL)
    runs = sorted(path.name.split("-")[0] for path in (tmp_path / "shown").iterdir() if path.is_dir())
    assert runs == ["fml", "no"]
    for path in (tmp_path / "shown").iterdir():
        assert path.suffix == ".png" or RunFolder.open(path).client("c4").predictor()

    # Every line but the last one fits a terminal; progress is on stderr, in lines where it is no terminal.
    assert max(map(len, done.out.splitlines()[:-5])) <= 80
    assert "no-regret: the default: round 0/1, " in done.err and "FML: mutual learning: round 1/1, " in done.err


def test_five_clients_five_designs_non_iid_and_no_download() -> None:
    recipe = Recipe.of(demos._RECIPE)
    federation = recipe.federation(Path("/nowhere"))
    assert len(federation.clients) == 5
    assert len({client.model.label for client in federation.clients}) == 5
    for client in federation.clients:
        assert sum(client.train.counts() > 0) == 4 and len(client.test) > len(client.train)


def test_a_demo_that_cannot_write_says_so(command: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = command("demo", "--out", "file")
    assert done.code == 2 and done.err.startswith("mutua: --out: cannot write to file/fml-")
    assert done.err.count("\n") == 1


@pytest.mark.long
def test_the_demo_takes_less_than_ninety_seconds(command: Callable[..., Any]) -> None:
    began = time.perf_counter()
    done = command("demo")
    assert time.perf_counter() - began < 90
    rows = table(done.out)
    alone, fedavg, fml, mixed = (float(value) for value in rows["mean"][1:5])
    assert done.code == 0 and mixed > alone and mixed > fedavg + 3 and fml > fedavg + 3
