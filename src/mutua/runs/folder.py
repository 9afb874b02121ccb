"""The run folder: recipe, history, ledger, and every model with a card that says what it is.

recipe.yaml     the full recipe, defaults filled in
run.json        method, plan, versions and the summary that `--json` prints
history.csv     one row a number        ledger.csv      one row a part that crossed
global/         weights.safetensors, card.json
clients/ID/     personal.safetensors, ..., card.json: each client's in a folder of its own
"""

from __future__ import annotations

import csv
import json
import platform
from collections.abc import Iterable, Mapping
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mutua.data.samples import Preprocess, Samples
from mutua.errors import InputError
from mutua.history import Row
from mutua.ledger import Entry
from mutua.message import Tensors
from mutua.methods import base
from mutua.models import Architecture
from mutua.plan import Plan
from mutua.recipe import Recipe
from mutua.result import Predictor, Result
from mutua.rounds import Event, RoundEnded


class RunFolder:
    """A run's folder, made before the run begins so that a bad place is known at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = {"history.csv": 0, "ledger.csv": 0}

    @classmethod
    def create(cls, name: str, seed: int, out: Path | None = None, under: Path = Path("runs")) -> RunFolder:
        """A new, empty folder: `out`, else runs/NAME-DATE-SEED."""
        path = out or _unused(under / f"{name}-{datetime.now():%Y%m%d-%H%M%S}-{seed}")
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InputError(f"--out: {path} is there already and not empty; name another or remove it")
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder._append("history.csv", Row._fields, [])
            folder._append("ledger.csv", Entry._fields, [])
        except OSError as error:
            raise InputError(f"--out: cannot write to {path}: {error.strerror}") from None
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A folder that a run has left."""
        if not (path / "run.json").is_file():
            what = "has no run.json: it is not a finished run's folder" if path.is_dir() else "does not exist"
            raise InputError(f"RUN: {path} {what}; give the folder that 'mutua run' named")
        return cls(path)

    def __call__(self, event: Event) -> None:
        """A callback: history and ledger grow with the rounds, so a run that stops leaves what it had."""
        if isinstance(event, RoundEnded):
            self._append("history.csv", Row._fields, event.history.rows)
            self._append("ledger.csv", Entry._fields, event.ledger.entries)

    def _append(self, name: str, fields: tuple[str, ...], rows: Iterable[NamedTuple]) -> None:
        new = list(rows)[self._written[name] :]
        with (self.path / name).open("a", newline="") as file:
            writer = csv.writer(file)
            if file.tell() == 0:
                writer.writerow(fields)
            writer.writerows(new)
        self._written[name] += len(new)

    def write_recipe(self, recipe: Recipe) -> None:
        """The full recipe, defaults filled in."""
        (self.path / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")

    def write(self, result: Result) -> None:
        """Models, cards and summary."""
        job = result.job
        if result.global_state is not None and job.global_model is not None:
            first = result.federation.clients[0].train
            card = model_card(job.global_model, first) | {
                "share": job.global_model.share,
                "weights": "weights.safetensors",
            }
            write_model(self.path / "global", {"weights": result.global_state}, card)
        for client in result.clients:
            groups = {name: arrays for name, arrays in client.state.items() if "." not in name}
            predictor = client.predictor.model.state_dict()
            serving = next((name for name, arrays in groups.items() if _equal(arrays, predictor)), None)
            if serving is None:
                serving, groups = "predictor", {**groups, "predictor": predictor}
            card = model_card(client.architecture, client.client.train) | {
                "client": client.id,
                "weights": f"{serving}.safetensors",
                "accuracy": client.accuracy(),
            }
            place = self.path / "clients" / client.id
            write_model(place, groups, card)
            table = {"classes": list(client.client.task.classes), "confusion": client.confusion().tolist()}
            (place / "confusion.json").write_text(json.dumps(table) + "\n")
        record = {
            "versions": versions(),
            "method": base.spec(job.method),
            "plan": job.plan.model_dump(mode="json"),
            "notes": list(result.federation.notes),
            "summary": result.summary(),
        }
        (self.path / "run.json").write_text(json.dumps(record, indent=2) + "\n")

    @property
    def record(self) -> dict[str, Any]:
        """What run.json holds."""
        return _read_json(self.path / "run.json")

    @property
    def method(self) -> base.Method:
        """The method of the run."""
        return base.of(self.record["method"])

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return Plan(**self.record["plan"])

    def clients(self) -> list[str]:
        """The ids of the clients in the folder."""
        folder = self.path / "clients"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def client(self, client_id: str) -> SavedModel:
        """The model that this client serves with."""
        if client_id not in self.clients():
            raise InputError(f"--client: '{client_id}' is not in the run; there are {', '.join(self.clients())}")
        return SavedModel(self.path / "clients" / client_id)

    def shared(self) -> SavedModel:
        """The global."""
        if not (self.path / "global").is_dir():
            raise InputError(f"RUN: method {self.record['method']['name']} left no global model in {self.path}")
        return SavedModel(self.path / "global")


class SavedModel:
    """A folder with weights and a card."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.card = _read_json(path / "card.json")

    @property
    def weights(self) -> Tensors:
        """The arrays of the model that the card describes."""
        from safetensors.torch import load_file

        return load_file(self.path / self.card["weights"])

    @property
    def architecture(self) -> Architecture:
        """What the model is."""
        return Architecture.of({**self.card["architecture"], "share": self.card.get("share", "all")})

    @property
    def template(self) -> Samples:
        """No samples, but the classes, preprocessing and shape that the model expects."""
        pre = self.card["preprocess"]
        return Samples(
            torch.empty(0, *self.card["input"], dtype=getattr(torch, self.card["dtype"])),
            torch.empty(0, dtype=torch.long),
            tuple(self.card["classes"]),
            Preprocess(pre["scale"], tuple(pre["mean"]), tuple(pre["std"])),
        )

    def expects(self, samples: Samples) -> None:
        """Refuse inputs of another shape or type than the model was trained on."""
        found, wanted = samples.x, self.template.x
        if (found.shape[1:], found.dtype) != (wanted.shape[1:], wanted.dtype):
            raise InputError(
                f"--data: inputs are {found.dtype} {tuple(found.shape[1:])}, "
                f"the model expects {wanted.dtype} {tuple(wanted.shape[1:])}"
            )

    def predictor(self) -> Predictor:
        """The model, ready for raw inputs."""
        template = self.template
        model = self.architecture.build(
            channels=template.channels, size=template.size, classes=len(template.classes), seed=0
        )
        model.load_state_dict(self.weights)
        return Predictor(model.eval(), template)


def versions() -> dict[str, str]:
    """Versions of everything that can change a number."""
    found = {"python": platform.python_version()}
    for package in ("mutua", "torch", "numpy", "pydantic", "safetensors"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def model_card(architecture: Architecture, samples: Samples) -> dict[str, Any]:
    """What a model is, expects and predicts: enough to rebuild it without mutua."""
    pre = samples.preprocess
    return {
        "architecture": architecture.spec(),
        "input": list(samples.x.shape[1:]),
        "dtype": str(samples.x.dtype).removeprefix("torch."),
        "classes": list(samples.classes),
        "preprocess": {"scale": pre.scale, "mean": list(pre.mean), "std": list(pre.std)},
    }


def write_model(folder: Path, groups: Mapping[str, Tensors], card: dict[str, Any]) -> None:
    """Weights as safetensors, one file a group, and the card."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    for name, arrays in groups.items():
        # Cloned because safetensors refuses arrays that share memory, as tied weights do.
        save_file({k: v.contiguous().clone() for k, v in arrays.items()}, folder / f"{name}.safetensors")
    (folder / "card.json").write_text(json.dumps(card, indent=2) + "\n")


def _equal(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"RUN: {path} cannot be read ({error})") from None
    assert isinstance(found, dict)
    return found


def _unused(path: Path) -> Path:
    """The path, with a number behind it where two runs begin in the same second."""
    candidates = [path, *(path.with_name(f"{path.name}-{n}") for n in range(2, 1000))]
    return next(candidate for candidate in candidates if not candidate.exists())
