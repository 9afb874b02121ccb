"""The run folder: recipe, history, ledger, and every model with a card that says what it is.

recipe.yaml     the full recipe, defaults filled in
run.json        method, plan, versions and a summary of the results; written last
history.csv     one row a number        ledger.csv      one row a part that crossed
global/         weights.safetensors, card.json
clients/ID/     personal.safetensors, ..., card.json: each client's in a folder of its own
newcomers/ID/   the same, of those who joined later

What is read from a folder is checked as if a stranger had sent it.
"""

from __future__ import annotations

import csv
import json
import math
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

import torch
from pydantic import ConfigDict, Field, PositiveInt, ValidationError, model_validator
from safetensors import SafetensorError
from torch import nn

from mutua.data.samples import Preprocess, Samples
from mutua.errors import InputError, MutuaError, RunError
from mutua.explain import explain
from mutua.history import Row
from mutua.ledger import Entry
from mutua.message import Tensors
from mutua.methods import base
from mutua.models import Architecture
from mutua.models.splice import Share
from mutua.plan import Plan
from mutua.recipe import Recipe
from mutua.result import ClientResult, Predictor, Result
from mutua.rounds import Event, RoundEnded
from mutua.spec import Spec

BEGUN = ("recipe.yaml", "history.csv", "ledger.csv")


class _Kept(Spec):
    """What a file of a run folder holds; a newer mutua may have put in more."""

    model_config = ConfigDict(extra="ignore")


class Card(_Kept):
    """What a model is, expects and predicts: enough to rebuild it without mutua."""

    architecture: dict[str, Any]
    input: Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=3)]
    dtype: Literal["uint8", "float32"]
    classes: tuple[str, ...]
    preprocess: Preprocess
    formula: str = "(x * scale - mean) / std, by channel"
    weights: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")
    share: Share = "all"
    client: str | None = None
    accuracy: float | None = None

    @model_validator(mode="after")
    def _fits_channels(self) -> Self:
        for name in ("mean", "std"):
            numbers = getattr(self.preprocess, name)
            if len(numbers) not in (1, self.input[0]):
                raise ValueError(f"preprocess.{name}: {len(numbers)} numbers for {self.input[0]} channels")
        return self

    @classmethod
    def of(cls, architecture: Mapping[str, Any], samples: Samples, **more: Any) -> Card:
        """The card of a model that takes such samples."""
        return cls(
            architecture=dict(architecture),
            input=tuple(samples.x.shape[1:]),
            dtype="uint8" if samples.x.dtype == torch.uint8 else "float32",
            classes=samples.classes,
            preprocess=samples.preprocess,
            **more,
        )


class Record(_Kept):
    """What run.json holds."""

    versions: dict[str, str]
    method: dict[str, Any]
    plan: Plan
    notes: tuple[str, ...] = ()
    summary: dict[str, Any]


class RunFolder:
    """A run's folder, made before the run begins so that a bad place is known at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = {"history.csv": 0, "ledger.csv": 0}

    @classmethod
    def create(cls, name: str, seed: int, out: Path | None = None, under: Path = Path("runs")) -> RunFolder:
        """A new, empty folder: `out`, else runs/NAME-DATE-SEED."""
        folder = cls(new_folder(out or dated(name, f"-{seed}", under)))
        try:
            folder._append("history.csv", Row._fields, [])
            folder._append("ledger.csv", Entry._fields, [])
        except OSError as error:
            raise InputError(f"--out: cannot write to {folder.path}: {error.strerror}") from None
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A folder that a run has left."""
        if not (path / "run.json").is_file():
            what = "has no run.json: it is not a finished run's folder" if path.is_dir() else "is not a folder"
            raise InputError(f"RUN: {path} {what}; give the folder that 'mutua run' named")
        return cls(path)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Around a run: whatever stops it, say where what it had is."""
        left = f"history and ledger so far are in {self.path}"
        try:
            yield
        except KeyboardInterrupt:
            raise RunError(f"stopped by Ctrl-C; {left}") from None
        except RunError as error:
            raise RunError(f"{error}; {left}") from error
        except (OSError, SafetensorError) as error:
            raise RunError(f"cannot write to {self.path}: {_reason(error)}") from None
        except InputError:  # nothing has run: leave nothing behind
            with suppress(OSError):
                for name in BEGUN:
                    (self.path / name).unlink(missing_ok=True)
                self.path.rmdir()
            raise

    def __call__(self, event: Event) -> None:
        """A callback: history and ledger grow with the rounds, so a run that stops leaves what it had."""
        if isinstance(event, RoundEnded):
            self._append("history.csv", Row._fields, event.history.rows)
            self._append("ledger.csv", Entry._fields, event.ledger.entries)

    def _append(self, name: str, fields: tuple[str, ...], rows: Iterable[NamedTuple]) -> None:
        new = list(rows)[self._written[name] :]
        with (self.path / name).open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if file.tell() == 0:
                writer.writerow(fields)
            writer.writerows(new)
        self._written[name] += len(new)

    def write_recipe(self, recipe: Recipe) -> None:
        """The full recipe, defaults filled in."""
        (self.path / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")

    def write(self, result: Result) -> None:
        """Models, cards and, last, run.json: a folder that has it is whole."""
        job, shared = result.job, result.job.global_model
        if result.global_state is not None and shared is not None:
            first = min(result.federation.clients, key=lambda client: client.id).train
            card = Card.of(shared.spec(), first, share=shared.share, weights="weights.safetensors")
            if shared.share != "all":  # every client ends it in classes of its own
                card = card.model_copy(update={"classes": ()})
            write_model(self.path / "global", {"weights": result.global_state}, card)
        for client in result.clients:
            self._write_client(client)
        record = Record(
            versions=versions(),
            method=base.spec(job.method),
            plan=job.plan,
            notes=result.federation.notes,
            summary=result.summary(),
        )
        (self.path / "run.json").write_text(to_json(record.model_dump(mode="json")) + "\n", encoding="utf-8")

    def _write_client(self, client: ClientResult) -> None:
        # What a method keeps beside models has a dot or a space in its name, or nothing in it.
        groups = {name: arrays for name, arrays in client.state.items() if name.isidentifier() and arrays}
        predictor = client.predictor.model.state_dict()
        serving = next((name for name, arrays in groups.items() if _equal(arrays, predictor)), None)
        if serving is None:
            serving, groups = "predictor", {**groups, "predictor": predictor}
        place = self.path / "clients" / client.id
        card = Card.of(
            client.made_of,
            client.client.train,
            client=client.id,
            weights=f"{serving}.safetensors",
            accuracy=client.accuracy(),
        )
        write_model(place, groups, card)
        table = {"classes": list(client.client.task.classes), "confusion": client.confusion().tolist()}
        (place / "confusion.json").write_text(to_json(table, indent=None) + "\n", encoding="utf-8")

    @property
    def record(self) -> Record:
        """What run.json holds."""
        return _read(self.path / "run.json", Record)

    @property
    def method(self) -> base.Method:
        """The method of the run."""
        try:
            return base.of(self.record.method)
        except InputError as error:
            raise InputError(f"RUN: {self.path / 'run.json'}: {error}") from None

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self.record.plan

    def clients(self) -> dict[str, Path]:
        """The folders of the clients and of those who joined later, by id."""
        places = sorted([*self.path.glob("clients/*/card.json"), *self.path.glob("newcomers/*/card.json")])
        return {card.parent.name: card.parent for card in places}

    def client(self, client_id: str) -> SavedModel:
        """The model that this client serves with."""
        known = self.clients()
        if client_id not in known:
            there = ", ".join(known) or "none"
            raise InputError(f"--client: '{client_id}' is not in {self.path}; there are {there}")
        return SavedModel(known[client_id])

    def shared(self) -> SavedModel:
        """The global."""
        if not (self.path / "global").is_dir():
            raise InputError(
                f"RUN: {self.path} holds no global model, for method {self.record.method.get('name')} has none; "
                "a newcomer needs a run of a method that shares one, such as fml or fedavg"
            )
        return SavedModel(self.path / "global")


class SavedModel:
    """A folder with weights and a card."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.card = _read(path / "card.json", Card)

    @property
    def weights(self) -> Tensors:
        """The arrays of the model that the card describes."""
        from safetensors.torch import load_file

        file = self.path / self.card.weights
        try:
            return load_file(file)
        except (OSError, SafetensorError) as error:
            raise InputError(f"RUN: {file} cannot be read ({_reason(error)}); it is damaged or missing") from None

    @property
    def architecture(self) -> Architecture:
        """What the model is, where it is one model."""
        try:
            return Architecture.of({**self.card.architecture, "share": self.card.share})
        except InputError as error:
            raise InputError(f"RUN: {self.path / 'card.json'}: {error}") from None

    @property
    def template(self) -> Samples:
        """No samples, but the classes, preprocessing and shape that the model expects."""
        return Samples(
            torch.empty(0, *self.card.input, dtype=getattr(torch, self.card.dtype)),
            torch.empty(0, dtype=torch.long),
            self.card.classes,
            self.card.preprocess,
        )

    @property
    def image_size(self) -> int | None:
        """The side to which images are resized for this model; None where it takes no square images."""
        _, *sides = self.card.input
        return sides[0] if len(sides) == 2 and sides[0] == sides[1] else None

    def predictor(self) -> Predictor:
        """The model, ready for raw inputs."""
        template, weights = self.template, self.weights
        try:
            model = self._build(self.card.architecture, len(template.classes))
            model.load_state_dict(weights)
        except MutuaError as error:
            raise InputError(f"RUN: {self.path / 'card.json'}: {error}") from None
        except Exception as error:  # whatever a damaged card or file makes torch raise
            raise InputError(f"RUN: {self.path}: weights and card do not fit ({_reason(error)})") from error
        return Predictor(model.eval(), template)

    def _build(self, spec: Mapping[str, Any], classes: int) -> nn.Module:
        if spec.get("name") != "mixture":
            samples = self.template
            return Architecture.of(spec).build(
                channels=samples.channels, size=samples.size, classes=classes, seed=0
            )
        from mutua.methods.mixture import Mixture

        expert, personal = (self._build(spec[part], classes) for part in ("expert", "personal"))
        return Mixture(expert, personal, self._build(spec["gate"], 1), str(spec["mix"]))


def versions() -> dict[str, str]:
    """Versions of everything that can change a number."""
    found = {"python": platform.python_version()}
    for package in ("mutua", "torch", "numpy", "pydantic", "safetensors"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def new_folder(path: Path) -> Path:
    """A folder that was not there or is empty; any other is refused, so that nothing is overwritten."""
    try:
        if path.is_dir() and any(path.iterdir()):
            raise InputError(f"--out: {path} is there already and not empty; name another or remove it")
        if path.exists() and not path.is_dir():
            raise InputError(f"--out: {path} is a file; name a folder")
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out: cannot write to {path}: {error.strerror}; name another place") from None
    return path


@contextmanager
def filling(path: Path) -> Iterator[Path]:
    """A new folder to be filled; it goes again where nothing came into it."""
    made = new_folder(path)
    try:
        yield made
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot write to {made}: {_reason(error)}") from None
    finally:
        with suppress(OSError):
            made.rmdir()  # which only removes an empty one


def write_model(folder: Path, groups: Mapping[str, Tensors], card: Card) -> None:
    """Weights as safetensors, one file a group, and the card."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    for name, arrays in groups.items():
        # Cloned because safetensors refuses arrays that share memory, as tied weights do.
        save_file({k: v.contiguous().clone() for k, v in arrays.items()}, folder / f"{name}.safetensors")
    (folder / "card.json").write_text(to_json(card.model_dump(mode="json")) + "\n", encoding="utf-8")


def to_json(value: Any, indent: int | None = 2) -> str:
    """JSON as any reader takes it: a number that is not finite is null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def _equal(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _reason(error: Exception) -> str:
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(said.split()) or type(error).__name__


K = TypeVar("K", bound=_Kept)


def _read(path: Path, kind: type[K]) -> K:
    try:
        return kind.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise InputError(f"RUN: {path}: {explain(error, kind)}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"RUN: {path} cannot be read ({_reason(error)}); it is damaged or missing") from None


def dated(name: str, end: str = "", under: Path = Path("runs")) -> Path:
    """runs/NAME-DATE, with a number behind it where two begin in the same second."""
    path = under / f"{name}-{datetime.now():%Y%m%d-%H%M%S}{end}"
    candidates = [path, *(path.with_name(f"{path.name}-{n}") for n in range(2, 1000))]
    return next(candidate for candidate in candidates if not candidate.exists())
